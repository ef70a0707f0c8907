"""Which flags, how many GPUs each, how many replicas: a search over engine settings with the simulator as its judge."""

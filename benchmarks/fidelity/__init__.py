"""How near the simulator comes to runs of real engines."""

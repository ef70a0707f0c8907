"""Where whole answers are kept outside a worker's memory: a file, Redis, PostgreSQL. `store.py` is their one face."""

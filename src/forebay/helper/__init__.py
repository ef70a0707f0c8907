"""The helper process: what caches of answers need and what would be too slow for a worker."""

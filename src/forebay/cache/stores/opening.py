"""The store that the configuration names."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from forebay.cache.stores.disk import Disk, answers_file
from forebay.cache.stores.store import SharedStore, Store, StoreError
from forebay.cache.stores.tiered import Tiered
from forebay.config.cache import Cache, IndexKind

__all__ = ["open_store"]

_LEAST_DISK: Final = 1 << 20
"""A file is not smaller."""
_MOST_SHARED: Final = 1 << 30


def open_store(rules: Cache, database: str, state_dir: Path, wall: Callable[[], float], *, wait: float) -> Store:
    """A file of the state directory (`disk_bytes`), a store that hosts share (`redis`; without it, the database where
    the index is there, too), or the one in front of the other. Connects to nothing yet. `wait`: seconds for a look-up.
    Raises StoreError."""
    shared = _shared(rules, database, wall, wait)
    if not rules.disk_bytes and shared is not None:
        return shared
    near = Disk(answers_file(state_dir), max(_LEAST_DISK, rules.disk_bytes), wall, wait=wait)
    if shared is None:
        return near
    return Tiered(near, shared, state_dir / "answers.position", wall)


def _shared(rules: Cache, database: str, wall: Callable[[], float], wait: float) -> SharedStore | None:
    if rules.redis:
        try:
            from forebay.cache.stores.redis_store import RedisStore
        except ImportError as e:
            raise StoreError(f"cache.redis needs forebay[redis] ({e}): pip install 'forebay[redis]'") from e
        return RedisStore(rules.redis, wall, wait=wait)
    if rules.semantic.enabled and rules.semantic.index is IndexKind.PGVECTOR:
        try:
            from forebay.cache.stores.postgres_store import PostgresStore
        except ImportError as e:
            raise StoreError(
                f"cache.semantic.index: pgvector needs forebay[postgres] ({e}): pip install 'forebay[postgres]'"
            ) from e
        return PostgresStore(database, wall, most_bytes=rules.disk_bytes or _MOST_SHARED, wait=wait)
    return None

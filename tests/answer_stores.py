"""Records for tests of stores, and the stores that pass one contract."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from forebay.cache.stores.disk import Disk
from forebay.cache.stores.postgres_store import PostgresStore
from forebay.cache.stores.redis_store import RedisStore
from forebay.cache.stores.store import Record
from forebay.cache.stores.tiered import Tiered
from forebay.clock import ManualClock
from postgres_server import Postgres
from redis_server import RedisServer

Open = Callable[[ManualClock], Any]
"""The same store, anew: as after a restart, or on another host."""


def record(n: int, clock: ManualClock, **fields: object) -> Record:
    """The n-th, different from all others, begun now."""
    made = Record(
        entry=f"{n:016x}",
        exact=n.to_bytes(16, "big"),
        scope=(n % 7 + 1).to_bytes(16, "little"),
        question=f"第 {n} 张发票怎么开? {n}",
        partition=f"org{n % 3}/web/model",
        model="qwen",
        version="1",
        tags=("faq", f"tag{n % 5}"),
        sources=(f"doc-{n}",),
        created=clock.wall(),
        ttl=100.0,
        stale=50.0,
        answer=random.Random(n).randbytes(500) + b"\x00\xff",
    )
    return Record(**{name: fields.get(name, getattr(made, name)) for name in Record.__struct_fields__})


@contextmanager
def disks(folder: Path, most_bytes: int = 4 << 20) -> Iterator[Open]:
    with ExitStack() as opened:

        def again(clock: ManualClock) -> Disk:
            store = Disk(folder / "answers.db", most_bytes, clock.wall)
            opened.callback(store.close)
            return store

        yield again


@contextmanager
def in_redis(server: RedisServer) -> Iterator[Open]:
    url = server.url()
    with ExitStack() as opened:

        def again(clock: ManualClock) -> RedisStore:
            store = RedisStore(url, clock.wall, wait=1.0)
            opened.callback(store.close)
            return store

        yield again


@contextmanager
def in_postgres(server: Postgres) -> Iterator[Open]:
    url = server.new()
    with ExitStack() as opened:

        def again(clock: ManualClock) -> PostgresStore:
            store = PostgresStore(url, clock.wall, wait=1.0)
            opened.callback(store.close)
            return store

        yield again


@contextmanager
def tiered(folder: Path, server: RedisServer) -> Iterator[Open]:
    """A host with a file of its own each time: what it has in common with the others is Redis."""
    url = server.url()
    with ExitStack() as opened:

        def again(clock: ManualClock) -> Tiered:
            own = folder / f"host{next(numbers)}"
            near = Disk(own / "answers.db", 4 << 20, clock.wall)
            store = Tiered(near, RedisStore(url, clock.wall, wait=1.0), own / "position", clock.wall)
            opened.callback(store.close)
            return store

        numbers = itertools.count()
        yield again

"""The index in Redis: RediSearch, which hosts share.

A question is a hash with its scope (a TAG) and its vector in half precision; RediSearch finds the nearest of a scope,
by a graph (HNSW) in large ones and by comparing with all in small ones. Keys carry the space's name: what another
embedder made is under other keys, and what nobody has opened for a month is removed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar

import numpy as np
import redis
from redis.exceptions import ResponseError

from forebay.cache.semantic.index import SCOPE_BYTES, BadVector, IndexUnavailable, Near, Space, Vectors, checked
from forebay.cache.stores.redis_client import RedisClient, Script, all_of
from forebay.cache.stores.redis_scripts import PREFIX
from forebay.cache.stores.store import StoreGone

__all__ = ["RedisIndex"]

_T = TypeVar("_T")

_LAYOUT: Final = 1
"""Of the hashes and their index; part of their names."""
_SPACES: Final = PREFIX + "spaces"
_ABANDONED: Final = 30 * 86_400.0
"""Seconds after which a space that nobody opened is removed."""
_REFINED: Final = 200
"""Candidates the graph looks at (EF_RUNTIME)."""
_MOST_TOUCHED: Final = 2_048
_MOST_NEAR: Final = 10_000
"""Entries that one search names at most."""

# KEYS: hash, sorted set of uses. ARGV: entry, scope, vector, when, most, prefix of hashes. What is beyond most goes.
_ADD: Final = Script(
    """#!lua
redis.call('HSET', KEYS[1], 's', ARGV[2], 'v', ARGV[3])
redis.call('ZADD', KEYS[2], ARGV[4], ARGV[1])
local beyond = redis.call('ZCARD', KEYS[2]) - tonumber(ARGV[5])
if beyond > 0 then
  local gone = redis.call('ZPOPMIN', KEYS[2], math.min(beyond, 100))
  for i = 1, #gone, 2 do redis.call('DEL', ARGV[6] .. gone[i]) end
end
return 1
"""
)


class RedisIndex:
    """`Index`, of at most `most` entries over all hosts. `wait`: seconds for a search; `change_wait`: for all else."""

    def __init__(
        self,
        url: str,
        space: Space,
        most: int,
        wall: Callable[[], float],
        *,
        wait: float = 0.025,
        change_wait: float = 2.0,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """Makes the index where it is missing. Raises StoreError for a URL that is none; IndexUnavailable, whose
        message says what is missing."""
        self.client = RedisClient(url, wait=wait, change_wait=change_wait, now=now)
        self._space = space
        self._most = most
        self._wall = wall
        name = f"{space.name}:{_LAYOUT}"
        self._index = f"{PREFIX}index:{name}"
        self._hashes = f"{PREFIX}v:{name}:"
        self._uses = f"{PREFIX}used:{name}"
        self._touched: dict[str, float] = {}
        self._touching = threading.Lock()
        self._length = 0
        try:
            self._open()
        except IndexUnavailable:
            self.client.close()
            raise

    @property
    def space(self) -> Space:
        return self._space

    def _open(self) -> None:
        def ask(client: redis.Redis) -> None:
            client.zadd(_SPACES, {f"{self._space.name}:{_LAYOUT}": self._wall()})
            abandoned: list[Any] = client.zrangebyscore(_SPACES, 0, self._wall() - _ABANDONED)
            for name in (one.decode() for one in abandoned):
                _drop(client, f"{PREFIX}index:{name}")
                client.delete(f"{PREFIX}used:{name}")
                client.zrem(_SPACES, name)
            self._create(client)

        self._changed(ask)

    def _create(self, client: redis.Redis) -> None:
        try:
            _told(client, "FT.CREATE", self._index, "ON", "HASH", "PREFIX", 1, self._hashes, "SCHEMA",
                  "s", "TAG", "CASESENSITIVE",
                  "v", "VECTOR", "HNSW", 12, "TYPE", "FLOAT16", "DIM", self._space.dimensions, "DISTANCE_METRIC", "IP",
                  "M", 16, "EF_CONSTRUCTION", 128, "EF_RUNTIME", _REFINED)  # fmt: skip
        except ResponseError as e:
            if "already exists" not in str(e).lower():
                raise

    # --- questions ---------------------------------------------------------------------------------------------------

    def search(self, scope: bytes, vectors: Vectors, k: int) -> list[list[Near]]:
        asked = checked(vectors, self._space.dimensions)
        query = f"(@s:{{{scope.hex()}}})=>[KNN {min(k, _MOST_NEAR)} @v $q AS d]"
        return self._asked(lambda: self.client.look_up(lambda client: self._nearest(client, query, asked, k)))

    def like(self, vector: Vectors, at_least: float, most: int) -> list[Near]:
        asked = checked(vector, self._space.dimensions)
        query = f"*=>[KNN {min(most, _MOST_NEAR)} @v $q AS d]"
        found = self._changed(lambda client: self._nearest(client, query, asked, most))[0]
        return [near for near in found if near.cosine >= at_least]

    def _nearest(self, client: redis.Redis, query: str, asked: Vectors, k: int) -> list[list[Near]]:
        pipeline = client.pipeline(transaction=False)
        for row in asked:
            _told(pipeline, "FT.SEARCH", self._index, query, "PARAMS", 2, "q", _half(row), "SORTBY", "d",
                  "RETURN", 1, "v", "LIMIT", 0, min(k, _MOST_NEAR), "DIALECT", 2)  # fmt: skip
        return [self._read(row, answer) for row, answer in zip(asked, all_of(pipeline), strict=True)]

    def _read(self, asked: Vectors, answer: list[Any]) -> list[Near]:
        found: list[Near] = []
        for key, fields in zip(answer[1::2], answer[2::2], strict=True):
            vector = fields[1] if fields else b""  # removed while it was found
            if len(vector) == 2 * self._space.dimensions:
                row = np.frombuffer(vector, np.float16).astype(np.float32)
                found.append(Near(key.decode().removeprefix(self._hashes), float(asked @ row), row))
        return sorted(found, key=lambda near: -near.cosine)

    # --- changes -----------------------------------------------------------------------------------------------------

    def add(self, scope: bytes, entry: str, vector: Vectors) -> None:
        if len(scope) != SCOPE_BYTES:
            raise ValueError(f"a scope has {SCOPE_BYTES} bytes, not {len(scope)}")
        rows = checked(vector, self._space.dimensions)
        if len(rows) != 1:
            raise BadVector(f"one vector is added at a time, not {len(rows)}")
        keys = [self._hashes + entry, self._uses]
        args = [entry, scope.hex(), _half(rows[0]), self._wall(), self._most, self._hashes]
        self._write_uses()
        self._changed(lambda client: _ADD(client, keys, args))

    def touch(self, entries: Iterable[str]) -> None:
        now = self._wall()
        with self._touching:
            for entry in entries:
                if entry in self._touched or len(self._touched) < _MOST_TOUCHED:
                    self._touched[entry] = now

    def _write_uses(self) -> None:
        with self._touching:
            touched, self._touched = self._touched, {}
        if touched:
            self._changed(lambda client: client.zadd(self._uses, dict(touched), xx=True))

    def remove(self, entries: Iterable[str]) -> int:
        gone = list(entries)
        if not gone:
            return 0

        def ask(client: redis.Redis) -> int:
            client.zrem(self._uses, *gone)
            return int(client.delete(*(self._hashes + entry for entry in gone)))

        return self._changed(ask)

    def missing(self, entries: Sequence[str]) -> list[str]:
        def ask(client: redis.Redis) -> list[int]:
            pipeline = client.pipeline(transaction=False)
            for entry in entries:
                pipeline.exists(self._hashes + entry)
            return all_of(pipeline)

        return [entry for entry, there in zip(entries, self._changed(ask), strict=True) if not there]

    def clear(self) -> int:
        def ask(client: redis.Redis) -> int:
            count = int(client.zcard(self._uses))
            _drop(client, self._index)
            client.delete(self._uses)
            self._create(client)
            return count

        return self._changed(ask)

    # --- how much ----------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        """As it was last known, where Redis is gone."""
        try:
            self._length = self._changed(lambda client: int(client.zcard(self._uses)))
        except IndexUnavailable:
            return self._length
        return self._length

    def memory_bytes(self) -> int:
        """Of Redis; vectors are there twice, in the hashes and in the graph."""

        def ask(client: redis.Redis) -> int:
            told = _told(client, "FT.INFO", self._index)
            facts = dict(zip(told[::2], told[1::2], strict=False))
            sizes = [value for key, value in facts.items() if key.endswith(b"_sz_mb")]
            return int(sum(float(size) for size in sizes) * (1 << 20))

        hashes = len(self) * (2 * self._space.dimensions + 200)
        return self._changed(ask) + hashes

    def save(self) -> None:
        """What was touched; the rest is there."""
        self._write_uses()

    def close(self) -> None:
        with suppress(IndexUnavailable):  # it only says what makes room first
            self._write_uses()
        self.client.close()

    def _changed(self, ask: Callable[[redis.Redis], _T]) -> _T:
        return self._asked(lambda: self.client.change(ask, anyway=True))

    def _asked(self, ask: Callable[[], _T]) -> _T:
        try:
            return ask()
        except StoreGone as e:
            cause = e.__cause__
            if isinstance(cause, ResponseError):
                self._mended(cause)
                raise IndexUnavailable(f"{self.client.where}: {_explained(cause)}") from e
            raise IndexUnavailable(str(e)) from e

    def _mended(self, problem: ResponseError) -> None:
        """Redis was emptied, perhaps: the index is made again."""
        if "no such index" in str(problem).lower() or "unknown index" in str(problem).lower():
            try:
                self.client.change(self._create)
            except StoreGone:  # said by the next call, too
                return

    def __repr__(self) -> str:
        return f"<RedisIndex {self._space.embedder} {self.client}>"


def _told(client: redis.Redis, *command: Any) -> Any:
    return client.execute_command(*command)  # type: ignore[no-untyped-call]


def _drop(client: redis.Redis, index: str) -> None:
    """With its hashes."""
    try:
        _told(client, "FT.DROPINDEX", index, "DD")
    except ResponseError as e:
        said = str(e).lower()
        if "no such index" not in said and "unknown index" not in said:
            raise


def _half(vector: Vectors) -> bytes:
    return vector.astype(np.float16).tobytes()


def _explained(problem: ResponseError) -> str:
    said = str(problem).splitlines()[0]
    if "unknown command" in said.lower():
        return (
            "it has no RediSearch, which cache.semantic.index: redis needs; take Redis 8 or Redis Stack, or "
            "cache.semantic.index: faiss"
        )
    if "db != 0" in said.lower():
        return f"{said}: RediSearch works in database 0 only; let the URL in cache.redis end without a /number"
    return said

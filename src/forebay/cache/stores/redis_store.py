"""Answers in a Redis (7 or later) or Valkey that hosts share.

Redis bounds its own memory: set `maxmemory`, and a policy that evicts. Every answer has a time after which Redis
removes it, so that volatile-lru fits.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import redis

from forebay.cache.messages import Purge
from forebay.cache.stores import redis_scripts as scripts
from forebay.cache.stores.redis_client import RedisClient, Script, all_of
from forebay.cache.stores.sharing import News, Sharing, read_news
from forebay.cache.stores.store import (
    FORMAT,
    PAGE,
    BadRecord,
    Known,
    OtherFormat,
    Position,
    Record,
    Stats,
    StoreGone,
    pack,
    unpack,
)

__all__ = ["RedisStore"]

_COUNTING: Final = 0.5
"""Seconds that `stats` counts entries, at most."""
_COUNT_KEPT: Final = 30.0
"""Seconds after which they are counted again."""


_EXACT: Final = Script(scripts.EXACT)
_PUT: Final = Script(scripts.PUT)
_DROP: Final = Script(scripts.DROP)
_NEWS: Final = Script(scripts.NEWS)
_SWEEP: Final = Script(scripts.SWEEP)
_QUESTIONS: Final = Script(scripts.QUESTIONS)
_COUNT: Final = Script(scripts.COUNT)


class RedisStore(Sharing):
    """`position`: as SharedStore has it, of an earlier life of this process."""

    name = "redis"

    def __init__(
        self,
        url: str,
        wall: Callable[[], float],
        *,
        wait: float = 0.025,
        change_wait: float = 2.0,
        position: Position | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """Connects to nothing yet. Raises StoreError for a URL that is none."""
        self.client = RedisClient(url, wait=wait, change_wait=change_wait, now=now)
        super().__init__(wall, position)
        self._counted_at = float("-inf")
        self._count: int | None = None

    @property
    def _resting(self) -> bool:
        return self.client.circuit.is_open

    @property
    def state(self) -> str:
        return self.client.circuit.problem or "ok"

    # --- look-ups ----------------------------------------------------------------------------------------------------

    def exact(self, key: bytes) -> Record | None:
        record = self._one(lambda client: _EXACT(client, [_pointer(key)], []))
        if record is not None and record.exact != key:  # a pointer that outlived what it was made for
            record = None
        return self._counted(record)

    def get(self, entry: str) -> Record | None:
        record = self._one(lambda client: client.hget(scripts.ANSWER + entry, "r"))
        if record is not None and record.entry != entry:
            self._tally.damaged += 1
            record = None
        return self._counted(record)

    def _one(self, ask: Callable[[redis.Redis], Any]) -> Record | None:
        data = self._looked_up(ask)
        if not isinstance(data, bytes):
            return None
        try:
            record = unpack(data)
        except OtherFormat:
            self._tally.other_format += 1
        except BadRecord:
            self._tally.damaged += 1
        else:
            if record.until > self._wall():
                return record
        return None

    def _counted(self, record: Record | None) -> Record | None:
        if record is None:
            self._tally.misses += 1
        else:
            self._tally.hits += 1
        return record

    def known(self, entries: Sequence[str]) -> dict[str, Known]:
        def ask(client: redis.Redis) -> list[list[bytes | None]]:
            pipeline = client.pipeline(transaction=False)
            for entry in entries:
                pipeline.hmget(scripts.ANSWER + entry, ["c", "q", "p", "u"])
            return all_of(pipeline)

        rows = (self._looked_up(ask) if entries else None) or []
        found = (_read_known(entry, *row) for entry, row in zip(entries, rows, strict=False))
        return {one.entry: one for one, until in filter(None, found) if until > self._wall()}

    def _looked_up(self, ask: Callable[[redis.Redis], Any]) -> Any:
        """None where it is gone."""
        resting = self._resting
        try:
            return self.client.look_up(ask)
        except StoreGone:
            self._failed(resting)
            return None

    # --- changes -----------------------------------------------------------------------------------------------------

    def _put(self, record: Record, known: Position) -> tuple[str, ...] | None:
        fields: dict[str, bytes | str | float] = {
            "r": pack(record),
            "x": record.exact.hex(),
            "c": record.scope.hex(),
            "q": record.question,
            "p": record.partition,
            "m": record.model,
            "v": record.version,
            "t": json.dumps(record.tags, ensure_ascii=False),
            "s": json.dumps(record.sources, ensure_ascii=False),
            "u": record.until,
        }
        keys = [scripts.ANSWER + record.entry, _pointer(record.exact)]
        args = [known.n, known.word, record.entry, int(record.until * 1000)]
        args += [part for field in fields.items() for part in field]
        said = self.client.change(lambda client: _PUT(client, keys, args))
        return tuple(one.decode() for one in said[1:]) if said[0] == b"kept" else None

    def _remove(self, purge: Purge) -> tuple[str, ...]:
        below = purge.partition.rstrip("/") + "/" if purge.partition else ""
        wanted = [purge.entry, purge.model, purge.version, purge.tag, purge.source, purge.partition, below]
        return tuple(one.decode() for page in self._pages(_SWEEP, wanted) for one in page)

    def _discard(self, entries: Sequence[str]) -> int:
        keys = [scripts.ANSWER + entry for entry in entries]
        return int(self._changed(lambda client: client.delete(*keys)))

    def _pages(self, script: Script, args: list[str]) -> Iterator[Any]:
        """Of a script that scans: what it says, without the cursor."""
        cursor: bytes = b"0"
        while True:
            sent = [cursor, PAGE, *args]
            cursor, page = self._changed(lambda client, sent=sent: script(client, [], sent))  # type: ignore[misc]
            yield page
            if cursor == b"0":
                return

    def _changed(self, ask: Callable[[redis.Redis], Any]) -> Any:
        try:
            return self.client.change(ask, anyway=True)
        except StoreGone:
            self._tally.failed += 1
            raise

    def questions(self) -> Iterator[Sequence[Known]]:
        for page in self._pages(_QUESTIONS, []):
            found = (_read_known(row[0].decode("utf-8", "replace"), *row[1:]) for row in page)
            now = self._wall()
            if known := [one for one, until in filter(None, found) if until > now]:
                yield known

    def touch(self, entries: Sequence[str]) -> None:
        """Nothing: Redis sees itself what is read."""

    def expire(self) -> tuple[str, ...]:
        """Nothing: Redis does it."""
        return ()

    # --- other hosts -------------------------------------------------------------------------------------------------

    def _tell(self, word: str, by: str, at: float, drop: bytes) -> None:
        self._changed(lambda client: _DROP(client, [], [word, by, at, drop]))

    def _await_drop(self, known: Position, wait: float) -> None:
        block = max(1, int(min(wait, self.client.change_wait / 2) * 1000))
        self._changed(lambda client: client.xread({scripts.DROPS: f"{known.n}-0"}, count=1, block=block))

    def _news(self, known: Position) -> News:
        n, word, then, items = self._changed(lambda client: _NEWS(client, [], [known.n]))
        drops = ((by.decode(), float(at), drop) for by, at, drop in items)
        return read_news(known, Position(int(n), word.decode()), then.decode(), drops)

    # --- people ------------------------------------------------------------------------------------------------------

    def stats(self) -> Stats:
        try:
            memory = self._changed(lambda client: client.info("memory"))
            self._recount()
        except StoreGone as e:
            return self._tally.stats(self.name, str(e), None, None, None)
        most = int(memory.get("maxmemory", 0))
        return self._tally.stats(self.name, "ok", self._count, int(memory["used_memory"]), most or None)

    def _recount(self) -> None:
        began = time.monotonic()
        if began - self._counted_at < _COUNT_KEPT:
            return
        self._counted_at = began
        self._count = None
        total = 0
        for page in self._pages(_COUNT, []):
            total += int(page)
            if time.monotonic() - began > _COUNTING:
                return
        self._count = total

    def close(self) -> None:
        self.client.close()

    def __repr__(self) -> str:
        return f"<RedisStore {self.client}>"


def _pointer(exact: bytes) -> str:
    return f"{scripts.PREFIX}x{FORMAT}:{exact.hex()}"


def _read_known(
    entry: str, scope: bytes | None, question: bytes | None, partition: bytes | None, until: bytes | None
) -> tuple[Known, float] | None:
    """With its last second; None where it is not there, or no record of ours."""
    if scope is None or question is None or partition is None or until is None:
        return None
    try:
        return Known(entry, bytes.fromhex(scope.decode()), question.decode(), partition.decode()), float(until)
    except ValueError:
        return None

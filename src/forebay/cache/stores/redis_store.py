"""Answers in a Redis (7 or later) or Valkey that hosts share.

Redis bounds its own memory: set `maxmemory`, and a policy that evicts. Every answer has a time after which Redis
removes it, so that volatile-lru fits.

What is dropped (purges, discarded entries) is numbered there. Who puts an answer says which drop is the last it knows
of; where it is behind, it reads the others first and looks whether its answer is among what was purged: no purged
answer comes back from another host. A host that missed some (it was away for more than a thousand) forgets everything;
where Redis itself lost some (an older state of it is back), everything in it is forgotten. Clocks of hosts must agree,
to the second or so.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import msgspec
import redis

from forebay.cache.messages import Drop, Purge
from forebay.cache.stores import redis_scripts as scripts
from forebay.cache.stores.redis_client import RedisClient, run
from forebay.cache.stores.store import (
    FORMAT,
    PAGE,
    BadRecord,
    Known,
    OtherFormat,
    Purged,
    Put,
    Record,
    Stats,
    StoreGone,
    Tally,
    checked,
    pack,
    unpack,
)

__all__ = ["RedisStore"]

_TRIES: Final = 3
"""Of a put, where each time drops came meanwhile."""
_COUNTING: Final = 0.5
"""Seconds that `stats` counts entries."""


class _Script:
    def __init__(self, text: str) -> None:
        self._text = text
        self._sha = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()

    def __call__(self, client: redis.Redis, keys: list[str], args: list[Any]) -> Any:
        return run(client, self._text, self._sha, keys, args)


_EXACT: Final = _Script(scripts.EXACT)
_PUT: Final = _Script(scripts.PUT)
_DROP: Final = _Script(scripts.DROP)
_NEWS: Final = _Script(scripts.NEWS)
_SWEEP: Final = _Script(scripts.SWEEP)
_QUESTIONS: Final = _Script(scripts.QUESTIONS)
_COUNT: Final = _Script(scripts.COUNT)


class Position(msgspec.Struct, frozen=True):
    """The last drop that is known."""

    n: int = 0
    word: str = ""


class _News(NamedTuple):
    last: Position
    drops: Sequence[tuple[str, float, Drop]]
    """By whom, at (Unix seconds), what."""
    whole: bool
    """There was nothing else since the position that was asked for."""
    lost: bool
    """Redis lost what it knew then."""


class RedisStore:
    """`position`: what `dropped` said last, in an earlier life of this process; None: nothing is known of what others
    dropped before, so that the first call says everything."""

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
        self._wall = wall
        self._me = secrets.token_hex(8)
        self._tally = Tally()
        self._purged = Purged()
        self._known = Position()
        """What `_purged` was told of."""
        self._knowing = threading.Lock()
        self.position = position

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
            return pipeline.execute()

        rows = (self._looked_up(ask) if entries else None) or []
        found = (_read_known(entry, *row) for entry, row in zip(entries, rows, strict=False))
        return {one.entry: one for one, until in filter(None, found) if until > self._wall()}

    def _looked_up(self, ask: Callable[[redis.Redis], Any]) -> Any:
        """None where it is gone."""
        resting = self.client.circuit.is_open
        try:
            return self.client.look_up(ask)
        except StoreGone:
            self._failed(resting)
            return None

    def _failed(self, resting: bool) -> None:
        if resting:
            self._tally.rested += 1
        else:
            self._tally.failed += 1

    # --- changes -----------------------------------------------------------------------------------------------------

    def put(self, record: Record) -> Put:
        if record.until <= self._wall():
            return self._refused()
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
        flat = [part for field in fields.items() for part in field]
        keys = [scripts.ANSWER + record.entry, _pointer(record.exact)]
        until = int(record.until * 1000)
        resting = self.client.circuit.is_open
        try:
            for _ in range(_TRIES):
                with self._knowing:
                    known = self._known
                if self._purged.forbids(record):
                    return self._refused()
                args = [known.n, known.word, record.entry, until, *flat]
                said = self.client.change(lambda client, args=args: _PUT(client, keys, args))  # type: ignore[misc]
                if said[0] == b"kept":
                    self._tally.puts += 1
                    return Put(True, tuple(one.decode() for one in said[1:]))
                self._catch_up(known)
        except StoreGone:
            self._failed(resting)
        return self._refused()

    def _refused(self) -> Put:
        self._tally.refused += 1
        return Put(False, ())

    def _catch_up(self, known: Position) -> None:
        """Read what was dropped since `known`, for `_purged`."""
        news = self._news(known)
        if not news.whole:
            self._purged.add(Purge(0), self._wall())
        for _, at, drop in news.drops:
            if drop.purge is not None:
                self._purged.add(drop.purge, at)
        with self._knowing:
            if self._known == known:
                self._known = news.last

    def remove(self, purge: Purge) -> tuple[str, ...]:
        now = self._wall()
        self._purged.add(checked(purge), now)
        self._tell(Drop(purge), now)
        below = purge.partition.rstrip("/") + "/" if purge.partition else ""
        wanted = [purge.entry, purge.model, purge.version, purge.tag, purge.source, purge.partition, below]
        gone: list[str] = []
        for page in self._pages(_SWEEP, wanted):
            gone += [one.decode() for one in page]
        return tuple(gone)

    def discard(self, entries: Sequence[str]) -> int:
        if not entries:
            return 0
        keys = [scripts.ANSWER + entry for entry in entries]
        self._tell(Drop(entries=tuple(entries)), self._wall())
        return int(self._changed(lambda client: client.delete(*keys)))

    def _tell(self, drop: Drop, at: float) -> None:
        args = [secrets.token_hex(8), self._me, at, msgspec.msgpack.encode(drop)]
        self._changed(lambda client: _DROP(client, [], args))

    def _pages(self, script: _Script, args: list[str]) -> Iterator[Any]:
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

    def dropped(self, wait: float) -> Sequence[Drop]:
        """Waits half of `change_wait` at most."""
        before = self.position
        if before is None:
            self.position = self._news(Position()).last
            return [Drop(Purge(0))]
        after = f"{before.n}-0"
        block = max(1, int(min(wait, self.client.change_wait / 2) * 1000))
        self._changed(lambda client: client.xread({scripts.DROPS: after}, count=1, block=block))
        news = self._news(before)
        if news.lost:  # and what was purged since is back, perhaps
            self.remove(Purge(0))
        self.position = news.last
        if not news.whole:
            return [Drop(Purge(0))]
        return [drop for by, _, drop in news.drops if by != self._me]

    def _news(self, known: Position) -> _News:
        n, word, that, items = self._changed(lambda client: _NEWS(client, [], [known.n]))
        last = Position(int(n), word.decode())
        follows = that.decode() == known.word
        lost = not follows and last.n < known.n + scripts.KEPT_DROPS
        try:
            drops = [(by.decode(), float(at), msgspec.msgpack.decode(drop, type=Drop)) for by, at, drop in items]
        except (msgspec.MsgspecError, ValueError):  # of another version of Forebay
            return _News(last, (), whole=False, lost=lost)
        return _News(last, drops, whole=follows and len(drops) == last.n - known.n, lost=lost)

    # --- people ------------------------------------------------------------------------------------------------------

    def stats(self) -> Stats:
        try:
            memory = self._changed(lambda client: client.info("memory"))
            entries = self._count()
        except StoreGone as e:
            return self._tally.stats(self.name, str(e), None, None, None)
        most = int(memory.get("maxmemory", 0))
        return self._tally.stats(self.name, "ok", entries, int(memory["used_memory"]), most or None)

    def _count(self) -> int | None:
        total = 0
        deadline = time.monotonic() + _COUNTING
        for page in self._pages(_COUNT, []):
            total += int(page)
            if time.monotonic() > deadline:
                return None
        return total

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

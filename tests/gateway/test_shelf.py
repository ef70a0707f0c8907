"""Answers on their way into memory: there for whoever asks, once each, and never past a purge."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, cast

import pytest

from forebay.cache.key import Asked, Facts
from forebay.cache.memory import Answers
from forebay.cache.messages import Drop, Purge
from forebay.config.cache import Cache
from forebay.gateway.cache_telemetry import CacheTelemetry
from forebay.gateway.feedback import Feedbacks
from forebay.gateway.shelf import Fresh, Shelf, entry_of
from forebay.ledger.tokens import NO_TOKENS

RULES = Cache(enabled=True)
FACTS = Facts(RULES, ("k", "key", "acme", "", "", ""), "m", "m")
BODY = (
    b'{"id":"x","object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":"%d"},'
    b'"finish_reason":"stop"}]}'
)


class Books:
    """A shelf, and what is counted of it."""

    def __init__(self) -> None:
        self.memory = Answers(64 << 20)
        self.telemetry = CacheTelemetry()
        self.feedbacks = Feedbacks(cast("Any", None))
        loop = asyncio.get_running_loop()
        self.shelf = Shelf(loop, RULES, self.memory, self.telemetry, self.feedbacks)

    def counted(self, result: str) -> int:
        return self.telemetry.kept.series(result).value


def exact(n: int) -> bytes:
    return n.to_bytes(16, "big")


def fresh(n: int, *, tags: tuple[str, ...] = (), body: bytes | None = None, stores: bool = True) -> Fresh:
    body = BODY % n if body is None else body
    asked = Asked(exact(n << 64), b"", f"question {n}?", "")
    return Fresh(
        asked, FACTS, body, None, len(body), b"", (tags, ()), NO_TOKENS, 0, 0.5, 1000.0 + n, stores, False, 0
    )  # fmt: skip


def test_they_are_put_away_by_themselves() -> None:
    async def play() -> None:
        books = Books()
        for n in range(100):
            books.shelf.put(fresh(n))
        assert len(books.memory) == 1  # the first came alone
        async with asyncio.timeout(10):
            while books.shelf.waiting:  # noqa: ASYNC110 - what is looked at is the shelf's own state
                await asyncio.sleep(0.001)
        assert len(books.memory) == books.counted("kept") == 100
        assert books.memory.get(exact(7 << 64), 1010.0).created == 1007.0  # type: ignore[union-attr]

    asyncio.run(play())


def test_one_is_there_for_who_asks_and_is_put_away_once() -> None:
    async def play() -> None:
        books = Books()
        books.shelf.put(fresh(0))
        books.shelf.put(fresh(1))
        books.shelf.put(fresh(2))
        books.shelf.settle(exact(1 << 64))
        books.shelf.settle(exact(1 << 64))
        assert (len(books.memory), len(books.shelf.waiting), books.counted("kept")) == (2, 1, 2)
        books.shelf.put(fresh(2))  # the one before it first
        assert (len(books.memory), len(books.shelf.waiting), books.counted("kept")) == (3, 1, 3)
        books.shelf.flush()
        books.shelf.flush()
        assert (len(books.memory), len(books.shelf.waiting), books.counted("kept")) == (3, 0, 4)

    asyncio.run(play())


def test_a_fault_in_reading_one_is_said_and_the_others_are_kept(caplog: pytest.LogCaptureFixture) -> None:
    async def play() -> None:
        books = Books()
        asked = Asked(exact(1), b"", "?", "")
        odd = Fresh(
            asked, FACTS, None, [cast("bytes", 7)], 1, b"", ((), ()), NO_TOKENS, 0, 0.5, 1000.0, True, False, 0
        )  # fmt: skip
        for one in (fresh(0), odd, fresh(1)):
            books.shelf.put(one)
        books.shelf.flush()
        assert books.shelf.keep(odd) is None
        assert (books.counted("kept"), books.counted("unreadable")) == (2, 2)

    with caplog.at_level(logging.ERROR, "forebay.worker"):
        asyncio.run(play())
    assert "could not be read to be kept" in caplog.text


@pytest.mark.parametrize(
    ("drop", "left"),
    [
        (Drop(Purge(0, tag="t")), [1]),
        (Drop(Purge(0, model="m")), []),
        (Drop(Purge(0)), []),
        (Drop(None, (entry_of(exact(1 << 64)),)), [2]),
        (Drop(Purge(0, tag="other")), [1, 2]),
    ],
)
def test_what_is_purged_while_it_waits_is_not_kept(drop: Drop, left: list[int]) -> None:
    async def play() -> None:
        books = Books()
        books.shelf.put(fresh(3))
        books.shelf.put(fresh(1))
        books.shelf.put(fresh(2, tags=("t",)))
        assert set(books.shelf.waiting) == {exact(1 << 64), exact(2 << 64)}
        books.shelf.dropped(drop)
        assert [n for n in (1, 2) if books.memory.get(exact(n << 64), 1010.0) is not None] == left
        assert not books.shelf.waiting

    asyncio.run(play())


def test_what_waits_is_bounded() -> None:
    async def play() -> None:
        books = Books()
        for n in range(1_000):
            books.shelf.put(fresh(n))
            assert len(books.shelf.waiting) <= 257
        books.shelf.flush()
        large = BODY % 1 + b" " * (3 << 20)
        books.shelf.put(fresh(2_001, body=large))
        books.shelf.put(fresh(2_002, body=large))
        assert not books.shelf.waiting
        assert books.counted("kept") + books.counted("large") == 1_002

    asyncio.run(play())


def test_what_is_unfit_is_counted_and_what_nobody_lets_be_stored_is_not_named() -> None:
    async def play() -> None:
        books = Books()
        books.shelf.put(fresh(1, body=b"{"))
        books.shelf.put(fresh(2, stores=False))
        books.shelf.flush()
        assert (len(books.memory), books.counted("unreadable"), books.counted("no-store")) == (0, 1, 1)
        assert repr(books.feedbacks) == "<Feedbacks on 1 answers>"
        assert repr(books.shelf) == "<Shelf 0 waiting, 0 B>"

    asyncio.run(play())

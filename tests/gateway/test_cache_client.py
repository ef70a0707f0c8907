"""A worker's line to the helper process, over a real socket: in time or a miss, never a wait and never an error."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from forebay.cache.messages import (
    Answered,
    Drop,
    Failed,
    Feedback,
    Find,
    Found,
    Heard,
    Kind,
    Purge,
    Said,
    Store,
    Unanswered,
)
from forebay.gateway import cache_client
from forebay.gateway.cache_client import CacheClient

_decode = msgspec.msgpack.Decoder(Said).decode
EXACT, SCOPE = b"e" * 16, b"s" * 16


class Helper:
    """Hears what is said, in order; answers what the test tells it to."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.heard: asyncio.Queue[Said] = asyncio.Queue()
        self.writer: asyncio.StreamWriter | None = None
        self.here = asyncio.Event()
        self.reads = asyncio.Event()
        self.reads.set()
        self.ended = asyncio.Event()

    async def start(self) -> None:
        self.server = await asyncio.start_unix_server(self._serve, str(self.path))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writer = writer
        self.ended.clear()
        self.here.set()
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                await self.reads.wait()
                length = int.from_bytes(await reader.readexactly(4), "big")
                self.heard.put_nowait(_decode(await reader.readexactly(length)))
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
        self.ended.set()

    def say(self, *messages: Answered) -> None:
        for message in messages:
            data = msgspec.msgpack.encode(message)
            self.raw(len(data).to_bytes(4, "big") + data)

    def raw(self, data: bytes) -> None:
        assert self.writer is not None
        self.writer.write(data)

    async def hang_up(self) -> None:
        self.server.close()
        assert self.writer is not None
        self.here.clear()
        self.writer.close()
        await self.ended.wait()


class Line:
    """A client, its helper, and what came of it all."""

    def __init__(self, client: CacheClient, helper: Helper) -> None:
        self.client, self.helper = client, helper
        self.found: list[tuple[Found | None, str]] = []
        self.dropped: list[Drop] = []
        self.again = 0

    def ask(self, budget: float = 5.0) -> str:
        return self.client.find(EXACT, SCOPE, "how?", "acme/m", budget, lambda f, why: self.found.append((f, why)))

    async def asked(self) -> Find:
        message = await asyncio.wait_for(self.helper.heard.get(), 5)
        assert isinstance(message, Find)
        return message

    def counted(self, result: str) -> int:
        return self.client.asked.series(result).value


@contextlib.asynccontextmanager
async def line() -> AsyncIterator[Line]:
    with tempfile.TemporaryDirectory(prefix="fb-") as folder:
        helper = Helper(Path(folder) / "cache.sock")
        await helper.start()
        made: list[Line] = []

        def again() -> None:
            made[0].again += 1

        client = CacheClient(helper.path, asyncio.get_running_loop(), lambda d: made[0].dropped.append(d), again)
        made.append(Line(client, helper))
        await until(lambda: client.connected)
        await helper.here.wait()
        try:
            yield made[0]
        finally:
            helper.reads.set()
            await client.close()
            await helper.ended.wait()
            helper.server.close()


async def until(look: Callable[[], Any]) -> None:
    async with asyncio.timeout(10):
        while not look():  # noqa: ASYNC110 - what is looked at is the client's own state
            await asyncio.sleep(0.002)


def run(test: Callable[[Line], Awaitable[None]]) -> None:
    async def play() -> None:
        async with line() as one:
            await test(one)

    asyncio.run(play())


def test_answers_come_in_any_order_and_in_pieces() -> None:
    async def play(line: Line) -> None:
        assert [line.ask(), line.ask()] == ["", ""]
        first, second = await line.asked(), await line.asked()
        assert (first.exact, first.scope, first.question, first.partition) == (EXACT, SCOPE, "how?", "acme/m")
        data = msgspec.msgpack.encode(Found(second.n, Kind.SEMANTIC, b"answer", "entry", 0.9))
        framed = len(data).to_bytes(4, "big") + data
        line.helper.raw(framed[:3])
        await asyncio.sleep(0)
        line.helper.raw(framed[3:])
        line.helper.say(Found(first.n, Kind.MISS, why="number"))
        await until(lambda: len(line.found) == 2)
        (semantic, _), (miss, _) = line.found
        assert semantic is not None
        assert miss is not None
        assert (semantic.kind, semantic.answer, miss.why) == (Kind.SEMANTIC, b"answer", "number")

    run(play)


def test_who_is_late_is_a_miss_and_its_ticket_is_handed_back() -> None:
    async def play(line: Line) -> None:
        line.ask(budget=0.01)
        find = await line.asked()
        await until(lambda: line.found)
        assert line.found == [(None, "budget")]
        line.helper.say(Found(find.n, Kind.MISS, ticket=7))
        assert await asyncio.wait_for(line.helper.heard.get(), 5) == Unanswered(7)
        assert len(line.found) == 1

    run(play)


def test_a_helper_that_is_always_late_is_left_alone_for_a_while() -> None:
    async def play(line: Line) -> None:
        for n in range(1, 17):
            assert line.ask(budget=0.001) == ""
            await until(lambda n=n: len(line.found) == n)
        assert line.ask() == "busy"
        assert line.counted("busy") == 1

    run(play)


def test_a_helper_that_has_too_much_to_do_is_asked_as_much_as_it_can() -> None:
    async def play(line: Line) -> None:
        """It answers four of those that are open at once, and says of the others that it came too late."""
        before = 0
        for _ in range(40):
            asked = 0
            while line.ask() == "":
                asked += 1
            for i in range(asked):
                find = await line.asked()
                line.helper.say(Found(find.n, Kind.MISS, why="number" if i < 4 else "budget"))
            before += asked
            await until(lambda before=before: len(line.found) == before)
        assert 2 <= asked <= 6
        assert line.ask() == ""

    run(play)


def test_more_than_it_may_ask_at_once_is_not_asked() -> None:
    async def play(line: Line) -> None:
        assert {line.ask() for _ in range(cache_client.MOST_ASKED)} == {""}
        assert line.ask() == "busy"

    run(play)


def test_a_helper_that_does_not_read_gets_no_more_than_is_bounded() -> None:
    async def play(line: Line) -> None:
        line.helper.reads.clear()
        store = Store(EXACT, SCOPE, "how?", "acme/m", b"x" * (1 << 20))
        sent = [line.client.store(store) for _ in range(20)]
        assert sent[0]
        assert not sent[-1]
        assert line.ask() == "busy"
        assert line.client.unsent.series().value == sent.count(False)

    run(play)


def test_a_helper_that_hangs_up_leaves_misses_and_is_found_again() -> None:
    async def play(line: Line) -> None:
        line.ask()
        await line.asked()
        await line.helper.hang_up()
        await until(lambda: line.found)
        assert line.found == [(None, "away")]
        assert line.ask() == "away"
        line.helper.path.unlink(missing_ok=True)
        await line.helper.start()
        await until(lambda: line.client.connected)
        assert line.again == 1
        await line.helper.here.wait()
        line.ask()
        line.helper.say(Found((await line.asked()).n, Kind.MISS))
        await until(lambda: len(line.found) == 2)

    run(play)


@pytest.mark.parametrize("data", [b"\xff\xff\xff\xff", b"\0\0\0\2\xc1\xc1", b"\0\0\0\3\x92\xa1F"])
def test_garbage_ends_the_connection(data: bytes) -> None:
    async def play(line: Line) -> None:
        line.ask()
        await line.asked()
        line.helper.raw(data)
        await until(lambda: line.found)
        assert line.found == [(None, "away")]

    run(play)


def test_what_must_go_is_passed_on_and_failures_are_misses() -> None:
    async def play(line: Line) -> None:
        drop = Drop(Purge(0, tag="prices"), ("a", "b"))
        line.ask()
        line.helper.say(drop, Failed((await line.asked()).n, "no disk"))
        await until(lambda: line.found)
        assert line.dropped == [drop]
        assert line.found == [(None, "failed")]

    run(play)


def test_feedback_is_answered_or_not() -> None:
    async def play(line: Line) -> None:
        heard: list[Heard | None] = []
        assert line.client.feedback("e" * 16, "acme/m", False, "how?", 5.0, heard.append)
        message = await asyncio.wait_for(line.helper.heard.get(), 5)
        assert isinstance(message, Feedback)
        assert (message.entry, message.partition, message.good) == ("e" * 16, "acme/m", False)
        line.helper.say(Heard(message.n, True))
        await until(lambda: heard)
        assert heard == [Heard(message.n, True)]
        assert line.client.feedback("e" * 16, "acme/m", True, "", 0.01, heard.append)
        await until(lambda: len(heard) == 2)
        assert heard[1] is None

    run(play)

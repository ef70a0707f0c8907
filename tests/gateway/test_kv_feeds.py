"""KV events over real ZMQ sockets: a publisher that counts, replays, drops and is started anew."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import uvloop
import zmq

import stack
from e2e.engine import RawEngine
from forebay.config.engine import Engine
from forebay.config.load import loads
from forebay.config.problems import ConfigError
from forebay.gateway.kv_events import KvFeeds
from forebay.policy.kv_blocks import KvBlocks
from forebay.wire.tasks import Tasks
from stack import KEYS, Forebay
from waiting import eventually

SIZE = 16
END = (-1).to_bytes(8, "big", signed=True)


def rows(kind: str, *values: Any) -> Any:
    return [kind, *values]


def maps(kind: str, *values: Any) -> Any:
    names = {
        "BlockStored": ("block_hashes", "parent_block_hash", "token_ids", "block_size"),
        "BlockRemoved": ("block_hashes",),
    }
    return {"type": kind, **dict(zip(names.get(kind, ()), values, strict=False))}


Shape = Callable[..., Any]


def bind(socket: zmq.Socket[Any], address: str) -> None:
    """Another socket that was closed gives its port up a moment later."""

    def bound() -> bool:
        try:
            socket.bind(address)
        except zmq.ZMQError as e:
            if e.errno != zmq.EADDRINUSE:
                raise
            return False
        return True

    eventually(bound)


class Publisher:
    """What an engine is to a subscriber: XPUB, for it is told of subscriptions; ROUTER for replays."""

    def __init__(self, context: zmq.Context[Any], port: int = 0, *, shape: Shape = maps, topics: bool = True) -> None:
        self.shape = shape
        self.topics = topics
        self.number = 0
        self.buffer: list[tuple[int, bytes]] = []
        self.asked: list[int] = []
        self.pub = context.socket(zmq.XPUB)
        self.router = context.socket(zmq.ROUTER)
        self.pub.set(zmq.SNDHWM, 0)  # drops nothing
        self.pub.set(zmq.XPUB_VERBOSE, 1)  # tell of the second subscriber, too
        for socket in (self.pub, self.router):
            socket.set(zmq.LINGER, 0)
        bind(self.pub, f"tcp://127.0.0.1:{port or '*'}")
        self.router.bind("tcp://127.0.0.1:*")
        self.endpoint = self.pub.get(zmq.LAST_ENDPOINT).decode().rstrip("\0")
        self.replay = self.router.get(zmq.LAST_ENDPOINT).decode().rstrip("\0")
        self.port = int(self.endpoint.rpartition(":")[2])

    async def subscribed(self) -> None:
        """Until a subscriber is there."""
        while True:
            assert await asyncio.to_thread(self.pub.poll, 10_000)
            if self.pub.recv()[:1] == b"\x01":
                return

    def say(self, *events: Any, lose: bool = False) -> None:
        """A batch; `lose`: the subscriber never gets it."""
        payload = msgspec.msgpack.encode([time.time(), [self.shape(*e) for e in events], 0])
        number = self.number.to_bytes(8, "big")
        self.buffer.append((self.number, payload))
        self.number += 1
        if not lose:
            self.pub.send_multipart([b"kv", number, payload])

    async def serve_replay(self) -> None:
        """Answer one."""
        assert await asyncio.to_thread(self.router.poll, 10_000)
        who, empty, start = self.router.recv_multipart()
        assert empty == b""
        self.asked.append(int.from_bytes(start, "big"))
        topic = [b"kv"] if self.topics else []
        for number, payload in self.buffer:
            if number >= self.asked[-1]:
                self.router.send_multipart([who, b"", *topic, number.to_bytes(8, "big"), payload])
        self.router.send_multipart([who, b"", *topic, END, b""])

    def close(self) -> None:
        self.pub.close(linger=0)
        self.router.close(linger=0)


class Told:
    def __init__(self) -> None:
        self.calls: asyncio.Queue[Any] = asyncio.Queue()

    def lost(self, name: str, numbers: Sequence[int], keep: int) -> None:
        self.calls.put_nowait((name, tuple(numbers), keep))

    def forget(self, name: str) -> None:
        self.calls.put_nowait((name, "forgotten"))

    async def next(self) -> Any:
        async with asyncio.timeout(10):
            return await self.calls.get()


class Stand:
    def __init__(self, context: zmq.Context[Any]) -> None:
        self.context = context
        self.told = Told()
        self.tasks = Tasks()
        self.now = 0.0
        self.feeds = KvFeeds(self.told, self.tasks, lambda: self.now, piece_bytes=64)

    def follow(self, *publishers: Publisher, replay: bool = False) -> None:
        self.feeds.sync(engine(f"e{i}", p, replay=replay) for i, p in enumerate(publishers))

    def blocks(self, name: str = "e0") -> KvBlocks:
        found = self.feeds.blocks(name)
        assert found is not None
        return found

    def ask(self, chain: list[int], key: str) -> None:
        """A request of 16 tokens a number, whose blocks the next batch stores."""
        self.now += 1
        self.blocks().sent(key, chain, (len(chain) * SIZE + 3) * 4, self.now)

    def answered(self, chain: list[int], key: str) -> None:
        self.blocks().first_token(key, self.now)
        self.now += 1
        self.blocks().ended(key, len(chain) * SIZE + 3, None, self.now)


def engine(name: str, publisher: Publisher, *, replay: bool = False) -> Engine:
    events = {"endpoint": publisher.endpoint, **({"replay": publisher.replay} if replay else {})}
    return Engine.model_validate({"name": name, "url": "http://127.0.0.1:1", "kv_events": events})


@asynccontextmanager
async def stand() -> AsyncIterator[Stand]:
    context: zmq.Context[Any] = zmq.Context()
    found = Stand(context)
    try:
        yield found
    finally:
        await found.feeds.close()
        await found.tasks.drain()
        context.destroy(linger=0)


async def until(done: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not done():  # noqa: ASYNC110 - what it waits for is pure, and tells nobody
            await asyncio.sleep(0.002)


def stored(hashes: list[int], parent: int | None = None) -> tuple[Any, ...]:
    return ("BlockStored", hashes, parent, [0] * SIZE * len(hashes), SIZE)


@pytest.mark.parametrize("shape", [rows, maps])
def test_a_removed_block_is_lost_to_the_index(shape: Shape) -> None:
    async def go() -> None:
        async with stand() as s:
            publisher = Publisher(s.context, shape=shape)
            s.follow(publisher)
            await publisher.subscribed()
            s.ask([1, 2, 3], "r")
            publisher.say(stored([11, 12, 13]))
            publisher.say(("AllBlocksCleared",))
            assert await s.told.next() == ("e0", "forgotten")  # so the first was read, too
            s.ask([1, 2, 3], "r")
            publisher.say(stored([11, 12, 13]))
            publisher.say(stored([21]), ("BlockRemoved", [21]))
            await until(lambda: "3 blocks" in repr(s.blocks()))
            s.answered([1, 2, 3], "r")
            publisher.say(("BlockRemoved", [13, 12]))
            assert await s.told.next() == ("e0", (1, 2, 3), 2)
            assert await s.told.next() == ("e0", (1, 2, 3), 1)
            publisher.close()

    uvloop.run(go())


@pytest.mark.parametrize("topics", [True, False], ids=["with topic", "without"])
def test_what_was_missed_is_asked_for_again(topics: bool) -> None:
    """Also what was published before there was a subscriber."""

    async def go() -> None:
        async with stand() as s:
            publisher = Publisher(s.context, topics=topics)
            publisher.say(stored([11, 12]), lose=True)
            s.follow(publisher, replay=True)
            await publisher.subscribed()
            publisher.say(stored([13], 12))
            await publisher.serve_replay()
            await until(lambda: "3 blocks" in repr(s.blocks()))
            publisher.say(("BlockRemoved", [13]), lose=True)
            publisher.say(stored([14, 15], 12))
            await publisher.serve_replay()
            await until(lambda: "4 blocks" in repr(s.blocks()))
            assert publisher.asked == [0, 2] and s.blocks().strays == 0
            publisher.close()

    uvloop.run(go())


@pytest.mark.parametrize("replay", [True, False], ids=["dropped by the publisher", "no replay"])
def test_what_cannot_be_had_again_makes_the_engine_unknown(replay: bool, caplog: pytest.LogCaptureFixture) -> None:
    async def go() -> None:
        async with stand() as s:
            publisher = Publisher(s.context)
            s.follow(publisher, replay=replay)
            await publisher.subscribed()
            publisher.say(stored([11, 12]))
            await until(lambda: "2 blocks" in repr(s.blocks()))
            publisher.say(stored([13], 12), lose=True)
            publisher.buffer.clear()
            publisher.say(stored([14], 13))
            if replay:
                await publisher.serve_replay()
            publisher.say(stored([21, 22, 23]))
            await until(lambda: "3 blocks" in repr(s.blocks()))
            assert s.blocks().strays == 1 and s.told.calls.empty()
            publisher.close()

    with caplog.at_level(logging.WARNING, "forebay.kv_events"):
        uvloop.run(go())
    assert [r.getMessage() for r in caplog.records] == ["engine e0: KV events: events 1 to 1 were missed"]


def test_an_engine_of_which_nothing_is_heard_is_named(caplog: pytest.LogCaptureFixture) -> None:
    async def go() -> None:
        async with stand() as s:
            publisher = Publisher(s.context)
            s.follow(publisher)
            await publisher.subscribed()

            def asked(tokens: int) -> None:
                s.feeds.ended("e0", 1, tokens, 0, s.now)

            for _ in range(20):
                asked(100)  # may not have filled a block
            for _ in range(7):
                asked(300)
            assert not caplog.records
            for _ in range(20):
                asked(300)
            publisher.say(stored([11, 12]))
            await until(lambda: "2 blocks" in repr(s.blocks()))
            publisher.close()

    with caplog.at_level(logging.INFO, "forebay.kv_events"):
        uvloop.run(go())
    silent, heard = [r.getMessage() for r in caplog.records]
    assert silent.startswith("engine e0: KV events: none came, and it has computed 8 prompts: look at the endpoint")
    assert heard == "engine e0: its KV events come"


def test_an_engine_started_anew_is_forgotten() -> None:
    """At the same address, by another process: ZMQ connects again, the numbers begin anew."""

    async def go() -> None:
        async with stand() as s:
            publisher = Publisher(s.context)
            s.follow(publisher)
            await publisher.subscribed()
            publisher.say(stored([11, 12]))
            publisher.say(stored([13], 12))
            await until(lambda: "3 blocks" in repr(s.blocks()))
            publisher.close()
            again = Publisher(s.context, publisher.port)
            await again.subscribed()
            again.say(stored([21]))
            assert await s.told.next() == ("e0", "forgotten")
            await until(lambda: "1 blocks" in repr(s.blocks()))
            again.close()

    uvloop.run(go())


def test_garbage_makes_it_unknown_and_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    async def go() -> None:
        async with stand() as s:
            publisher = Publisher(s.context)
            s.follow(publisher)
            await publisher.subscribed()
            publisher.say(stored([11, 12]))
            for _ in range(2):
                publisher.pub.send_multipart([b"kv", publisher.number.to_bytes(8, "big"), b"\xc1"])
                publisher.number += 1
            publisher.pub.send_multipart([b"kv", b"short", b""])
            publisher.pub.send(b"kv")
            publisher.say(("BlockEvicted", [1]), stored([21]))
            await until(lambda: "1 blocks" in repr(s.blocks()))
            publisher.close()

    with caplog.at_level(logging.WARNING, "forebay.kv_events"):
        uvloop.run(go())
    said = [r.getMessage() for r in caplog.records]
    assert len(said) == 3 and "cannot be read" in said[0] and "topic, number and payload" in said[1]
    assert said[2] == "engine e0: KV events: BlockEvicted is no event known here"


def test_a_flood_lets_the_loop_breathe() -> None:
    """While 5,000 batches wait, other callbacks run between portions of them."""

    async def go() -> None:
        async with stand() as s:
            publisher = Publisher(s.context)
            s.follow(publisher)
            await publisher.subscribed()
            turns: list[int] = []
            for i in range(5_000):
                publisher.say(stored([i + 1], i or None))

            def count() -> int:
                return int(repr(s.blocks()).split()[2].replace(",", ""))

            async with asyncio.timeout(60):
                while not turns or turns[-1] < 5_000:
                    await asyncio.sleep(0)
                    if not turns or count() != turns[-1]:
                        turns.append(count())
            steps = [b - a for a, b in zip([0, *turns], turns, strict=False)]
            assert max(steps) <= 32, max(steps)
            publisher.close()

    uvloop.run(go())


def test_feeds_follow_the_configuration() -> None:
    async def go() -> None:
        async with stand() as s:
            one, two = Publisher(s.context), Publisher(s.context)
            s.follow(one)
            await one.subscribed()
            one.say(stored([11]))
            await until(lambda: "1 blocks" in repr(s.blocks()))
            before = s.blocks()
            s.follow(one, two)
            await two.subscribed()
            assert s.blocks() is before
            s.feeds.sync([engine("e0", two), Engine(name="e1", url="http://127.0.0.1:1")])
            await two.subscribed()
            assert s.blocks() is not before and s.feeds.blocks("e1") is None
            two.say(stored([11, 12]))
            await until(lambda: "2 blocks" in repr(s.blocks()))
            s.feeds.sync([])
            await until(lambda: not len(s.tasks))
            one.close()
            two.close()

    uvloop.run(go())


def test_a_gateway_listens_and_names_its_requests() -> None:
    """The real thing: the engine hears a name of its own for every attempt, behind whatever the client sent."""

    async def go(folder: Path) -> None:
        context: zmq.Context[Any] = zmq.Context()
        publisher, raw = Publisher(context), RawEngine(["raw"])
        events = {"endpoint": publisher.endpoint, "replay": publisher.replay, "topic": "kv"}
        config = {
            "listeners": [{"address": "127.0.0.1:0"}],
            "admin": "127.0.0.1:0",
            "state_dir": str(folder / "state"),
            "engines": [{"name": "raw", "url": f"http://127.0.0.1:{raw.port}", "kv_events": events}],
            "callers": KEYS,
            "admission": {"enabled": True},
        }
        forebay = await asyncio.to_thread(Forebay, folder, config)
        await publisher.subscribed()
        for more in ({}, {}, {"X-Session-Id": "the client's"}):
            body = {"model": "raw", "messages": [{"role": "user", "content": "hi"}]}
            status, _, answer = await asyncio.to_thread(forebay.call, "POST", "/v1/chat/completions", body, **more)
            assert status == 200, answer
        names = [r.all("x-session-id") for r in raw.requests("-")]
        assert [len(n) for n in names] == [1, 1, 2] and names[2][0] == "the client's"
        assert len({n[-1] for n in names}) == 3 and all(
            re.fullmatch("forebay-[0-9a-f]{16}-[0-9]+", n[-1]) for n in names
        )
        assert await asyncio.to_thread(forebay.stop) == 0
        await asyncio.to_thread(forebay.close)
        raw.close()
        publisher.close()
        context.destroy(linger=0)

    with stack.folder() as folder:
        uvloop.run(go(folder))


@pytest.mark.parametrize("there", [True, False])
def test_a_configuration_without_the_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch, there: bool) -> None:
    text = "engines:\n- name: e\n  url: http://h\n  kv_events: {endpoint: 'tcp://h:5557'}\n"
    if there:
        assert loads(text, "f", {}).engines[0].kv_events is not None
        return
    monkeypatch.setattr("forebay.config.checks.importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"f:4: engines\[0\].kv_events: .*pip install 'forebay\[kv-events\]'"):
        loads(text, "f", {})


@pytest.mark.parametrize(
    "events",
    [
        {"endpoint": "tcp://*:5557"},
        {"endpoint": "http://host:5557"},
        {"endpoint": "tcp://host"},
        {"endpoint": "tcp://host:70000"},
        {"endpoint": "tcp://host:5557", "replay": "tcp://host:0"},
    ],
)
def test_an_address_that_cannot_be_listened_to_is_refused(events: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=r"tcp://host:port or ipc://path, and has no \*"):
        Engine.model_validate({"name": "e", "url": "http://host", "kv_events": events})


def test_an_address_of_one_engine_is_not_taken_for_many() -> None:
    events = {"endpoint": "tcp://h:5557"}
    with pytest.raises(ValueError, match="list the engines instead"):
        Engine.model_validate({"name": "e", "url": "http://engines.internal", "discover": "dns", "kv_events": events})

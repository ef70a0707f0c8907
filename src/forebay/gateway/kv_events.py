"""Listening to the KV events of engines (ZMQ, `engines[].kv_events`), for `policy.kv_blocks`.

One task an engine. A message is topic, sequence number (8 bytes, big endian), payload. Numbers begin at 0 with each
process of the engine and rise by one:

- a lower one than expected is a new process, with an empty cache;
- a higher one is a gap, since a publisher drops what a slow subscriber does not take. What is missing is asked of the
  replay endpoint, where there is one; else, or where that has not all of it, what is known of the blocks is dropped.

ZMQ connects again by itself, and pings, so that a peer that vanished is noticed. The socket is read from the event loop
in portions, so that a flood of events delays no stream.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from math import inf
from typing import TYPE_CHECKING, Any, Final

from forebay.config.engine import Engine, KvEvents
from forebay.engines.kv_events import BadBatch, Reader
from forebay.policy.admission import Admission
from forebay.policy.kv_blocks import Index, KvBlocks
from forebay.policy.prefix import BLOCK_BYTES, MOST_BLOCKS
from forebay.wire.tasks import Tasks

if TYPE_CHECKING:
    import zmq

log = logging.getLogger("forebay.kv_events")

PORTION: Final = 32
"""Messages read in one turn of the event loop."""
REPLAY_S: Final = 2.0
"""Seconds between two messages of a replay, at most."""
MOST_WAITING: Final = 10_000
"""Messages kept by ZMQ while we do not read; beyond, they are dropped, which makes a gap."""
LARGEST: Final = 16 << 20
"""Bytes of a message."""
SILENT: Final = 8
"""Prompts that an engine has computed without a word of their blocks, until that is said."""
TELLING: Final = 256
"""Tokens computed of a prompt that must have filled a block."""
_END: Final = (1 << 64) - 1  # vLLM's and SGLang's -1
_PING_MS: Final = 10_000
_LOST_MS: Final = 30_000
_AGAIN_MS: Final = 100
_AGAIN_MOST_MS: Final = 5_000
_SAY_EVERY: Final = 60.0
"""Seconds between two log lines on an engine that was started anew."""

Frames = Sequence[bytes]


class ToPolicy:
    """What is known of the engines' blocks, told to admission, which has the prefix index."""

    def __init__(self, policy: Admission, clock: Callable[[], float]) -> None:
        self._policy = policy
        self._clock = clock

    def lost(self, name: str, numbers: Sequence[int], keep: int) -> None:
        self._policy.cache_lost(name, numbers, keep, self._clock())

    def forget(self, name: str) -> None:
        self._policy.cache_cleared(name, self._clock())


class KvFeeds:
    """Every engine's feed. State: one a configured engine. pyzmq is imported with the first of them."""

    def __init__(
        self, index: Index, tasks: Tasks, clock: Callable[[], float], *, piece_bytes: int = BLOCK_BYTES
    ) -> None:
        self._index = index
        self._tasks = tasks
        self._clock = clock
        self._piece = piece_bytes
        self._prefix = f"forebay-{secrets.token_hex(8)}-"
        self._feeds: dict[str, Feed] = {}
        self._context: zmq.Context[Any] | None = None

    def sync(self, engines: Iterable[Engine]) -> None:
        """These are the engines now. Feeds of those that did not change go on."""
        wanted = {e.name: (e.url, e.kv_events) for e in engines if e.kv_events is not None}
        for name, feed in tuple(self._feeds.items()):
            if wanted.get(name) != (feed.url, feed.settings):
                del self._feeds[name]
                feed.close()
        for name, (url, settings) in wanted.items():
            if name not in self._feeds and settings is not None and (context := self._zmq(name)) is not None:
                blocks = KvBlocks(name, self._index, piece_bytes=self._piece)
                feed = self._feeds[name] = Feed(name, url, settings, blocks, context, self._clock)
                feed.task = self._tasks.spawn(feed.run())

    # --- requests: those to an engine whose events are not listened to are passed over --------------------------------

    def header(self, engine: str, key: int) -> bytes:
        """The header by which vLLM names the request in the events of the blocks that it fills. Of two it takes the
        first: a client's own session stands."""
        return b"x-session-id: %b\r\n" % self._session(key).encode() if engine in self._feeds else b""

    def sent(self, engine: str, key: int, chain: Sequence[int], now: float) -> None:
        """What the prompt has beyond its last full piece is reckoned at half a piece; a chain of full length may be of
        a prompt that is longer, and says nothing."""
        feed = self._feeds.get(engine)
        if feed is not None and 0 < len(chain) < MOST_BLOCKS:
            feed.blocks.sent(self._session(key), chain, len(chain) * self._piece + self._piece // 2, now)

    def first_token(self, engine: str, key: int, now: float) -> None:
        feed = self._feeds.get(engine)
        if feed is not None:
            feed.blocks.first_token(self._session(key), now)

    def ended(self, engine: str, key: int, tokens: int | None, cached: int | None, now: float) -> None:
        """`tokens` of its prompt, `cached` of them; None: its usage does not say."""
        feed = self._feeds.get(engine)
        if feed is not None:
            feed.blocks.ended(self._session(key), tokens, cached, now)
            if not feed.heard and (tokens or 0) - (cached or 0) >= TELLING:
                feed.silent()

    def _session(self, key: int) -> str:
        """Other workers and gateways hear of their requests' blocks and ours, and no client can guess these names."""
        return f"{self._prefix}{key}"

    def blocks(self, engine: str) -> KvBlocks | None:
        """What is known of an engine; None where its events are not listened to."""
        feed = self._feeds.get(engine)
        return feed.blocks if feed is not None else None

    def _zmq(self, engine: str) -> zmq.Context[Any] | None:
        if self._context is None:
            try:
                import zmq
            except ImportError:
                log.error("engine %s: its KV events are not listened to: pip install 'forebay[kv-events]'", engine)
                return None
            self._context = zmq.Context()
        return self._context

    async def close(self) -> None:
        for feed in self._feeds.values():
            feed.close()
        await asyncio.gather(*(f.task for f in self._feeds.values() if f.task is not None), return_exceptions=True)
        self._feeds.clear()
        if self._context is not None:
            self._context.destroy(linger=0)
            self._context = None

    def __repr__(self) -> str:
        return f"<KvFeeds {[feed.blocks for feed in self._feeds.values()]}>"


class Feed:
    """One engine's. State: the number expected next, and what was warned of."""

    def __init__(
        self,
        engine: str,
        url: str,
        settings: KvEvents,
        blocks: KvBlocks,
        context: zmq.Context[Any],
        clock: Callable[[], float],
    ) -> None:
        self.engine = engine
        self.url = url
        self.settings = settings
        self.blocks = blocks
        self.task: asyncio.Task[None] | None = None
        self.heard = False
        """Whether a message came."""
        self._silent = 0
        self._context = context
        self._clock = clock
        self._reader = Reader(blocks)
        self._next: int | None = None
        self._warned: set[str] = set()
        self._said_restart = -inf

    def close(self) -> None:
        if self.task is not None:
            self.task.cancel()

    def silent(self) -> None:
        """It has computed a prompt, and said nothing so far. ZMQ connects in the background and tells nobody that an
        endpoint is wrong."""
        self._silent += 1
        if self._silent == SILENT:
            self._warn(
                f"none came, and it has computed {SILENT} prompts: look at the endpoint ({self.settings.endpoint}) and "
                f"topic ('{self.settings.topic}') of its kv_events, and at the engine's --kv-events-config"
            )

    async def run(self) -> None:
        """Until cancelled, or where ZMQ cannot use the endpoint."""
        import zmq

        try:
            async with self._open(zmq.SUB, self.settings.endpoint) as source:
                while True:
                    await self._message(await source.get())
        except zmq.ZMQError as e:
            log.error("engine %s: its KV events at %s cannot be had: %s", self.engine, self.settings.endpoint, e)

    @asynccontextmanager
    async def _open(self, kind: int, endpoint: str) -> AsyncIterator[_Source]:
        import zmq

        loop = asyncio.get_running_loop()
        socket = self._context.socket(kind)
        try:
            socket.set(zmq.LINGER, 0)
            socket.set(zmq.RCVHWM, MOST_WAITING)
            socket.set(zmq.MAXMSGSIZE, LARGEST)
            socket.set(zmq.RECONNECT_IVL, _AGAIN_MS)
            socket.set(zmq.RECONNECT_IVL_MAX, _AGAIN_MOST_MS)
            socket.set(zmq.HEARTBEAT_IVL, _PING_MS)
            socket.set(zmq.HEARTBEAT_TIMEOUT, _LOST_MS)
            if kind == zmq.SUB:
                socket.set(zmq.SUBSCRIBE, self.settings.topic.encode())
            source = _Source(socket)
            descriptor = socket.get(zmq.FD)
            loop.add_reader(descriptor, source.readable.set)
            try:
                socket.connect(endpoint)
                yield source
            finally:
                loop.remove_reader(descriptor)
        finally:
            socket.close(linger=0)

    # --- sequence numbers --------------------------------------------------------------------------------------------

    async def _message(self, frames: Frames) -> None:
        if len(frames) != 3 or len(frames[1]) != 8:
            self._warn("a message is not topic, number and payload")
            return
        if not self.heard:
            self.heard = True
            log.info("engine %s: its KV events come", self.engine)
        number = int.from_bytes(frames[1], "big")
        expected = self._next
        if expected is not None and number < expected:
            self._say_restart()
            self.blocks.cleared()
            self._reader.restart()
            expected = 0
        if number != (expected or 0):
            await self._gap(expected, number)
            if self._next is not None and self._next > number:
                return  # the replay had it
        self._apply(number, frames[2])

    def _say_restart(self) -> None:
        now = self._clock()
        if now - self._said_restart >= _SAY_EVERY:  # numbers in no order at all are a restart each
            self._said_restart = now
            log.info("engine %s was started anew: its KV cache is empty", self.engine)

    async def _gap(self, expected: int | None, number: int) -> None:
        """Numbers before `number` are missing; at first (`expected` None) all of them."""
        self._next = expected or 0
        if self.settings.replay is not None and await self._replay(number):
            return
        if expected is not None:
            self._warn(f"events {self._next} to {number - 1} were missed")
        self.blocks.unknown()

    async def _replay(self, until: int) -> bool:
        """Ask for what is missing. True where everything before `until` has come; a publisher that does not answer, or
        has dropped the oldest, cannot give it."""
        import zmq

        assert self.settings.replay is not None and self._next is not None
        async with self._open(zmq.DEALER, self.settings.replay) as source:
            source.socket.send_multipart([b"", self._next.to_bytes(8, "big")], zmq.DONTWAIT)
            try:
                while True:
                    async with asyncio.timeout(REPLAY_S):
                        frames = await source.get()
                    if len(frames) < 3 or len(frames[-2]) != 8:  # [empty, topic (vLLM since 0.32), number, payload]
                        return False
                    number = int.from_bytes(frames[-2], "big")
                    if number == _END:
                        return self._next >= until
                    if number > self._next:
                        return False
                    if number == self._next:
                        self._apply(number, frames[-1])
            except TimeoutError:
                return False

    def _apply(self, number: int, payload: bytes) -> None:
        self._next = number + 1
        try:
            self._reader.batch(payload, self._clock())
        except BadBatch as e:
            self._warn(str(e))
            self.blocks.unknown()
        for kind in self._reader.unknown:
            self._warn(f"{kind} is no event known here")

    def _warn(self, what: str) -> None:
        """Once each, of the first few."""
        if len(self._warned) < 8 and what not in self._warned:
            self._warned.add(what)
            log.warning("engine %s: KV events: %s", self.engine, what)


class _Source:
    """Messages of a ZMQ socket, awaited on the event loop."""

    def __init__(self, socket: zmq.Socket[bytes]) -> None:
        self.socket = socket
        self.readable = asyncio.Event()
        self._in_turn = 0

    async def get(self) -> Frames:
        """The next message. Its descriptor tells changes only, so the socket is emptied before it is waited for."""
        import zmq

        self._in_turn += 1
        if self._in_turn >= PORTION:
            self._in_turn = 0
            await asyncio.sleep(0)
        while True:
            self.readable.clear()
            try:
                return self.socket.recv_multipart(zmq.DONTWAIT)
            except zmq.Again:
                self._in_turn = 0
                await self.readable.wait()

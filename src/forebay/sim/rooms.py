"""A prompt's KV from a prefill to a decode engine, as SGLang's two servers agree on it.

Both get the same request at once, with `bootstrap_host`, `bootstrap_port` and `bootstrap_room`. The decode engine asks
the prefill engine, which has the port, for the room; the prefill engine begins when it is asked, and answers its own
client when the KV has been taken (SGLang 0.5.23: disaggregation/prefill.py, decode.py, common/conn.py). Either fails
with a 500 where the other does not come, leaves, or is dead. What goes over ZeroMQ and RDMA there is one request here:
POST /control/kv/room, answered when the prompt is computed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

import msgspec

from forebay.sim.asks import Bootstrap
from forebay.sim.checks import Fields, Rejected, compact
from forebay.sim.driver import Driver
from forebay.sim.gates import Gate
from forebay.sim.jobs import Job
from forebay.sim.serving import Settings
from forebay.wire.reply import Reply
from forebay.wire.tasks import Tasks

log = logging.getLogger("forebay.sim")

ROOM: Final = b"/control/kv/room"
MAX_ASKED: Final = 4096
"""Rooms that decode engines wait in before the prefill's request has come."""
_JSON: Final = b"server: forebay\r\ncontent-type: application/json\r\n"
_DEAD: Final = "Failed to get kvcache from prefill instance, it might be dead"


class Rooms:
    """Mutable state, of a prefill engine: its requests by room, and the decode engines that wait for one."""

    def __init__(self, settings: Settings, driver: Driver, tasks: Tasks) -> None:
        self.settings = settings
        self.driver = driver
        self.tasks = tasks
        self.held: dict[int, PrefillGate] = {}
        self.asked: dict[int, Reply] = {}

    def gate(self, at: Bootstrap, rid: str) -> Gate:
        if self.settings.role == "prefill":
            return PrefillGate(self, at.room, rid)
        return DecodeGate(self, at, rid)

    def fetch(self, fields: Fields, reply: Reply) -> None:
        """A decode engine asks. Raises Rejected."""
        room = fields.integer("room")
        if room is None:
            fields.missing("room")
        fields.raise_errors()
        assert room is not None
        if room in self.asked:
            raise Rejected(f"room {room} is asked for already", status=409)
        if len(self.asked) >= MAX_ASKED:
            raise Rejected(f"{MAX_ASKED} rooms are waited in", status=503)
        self.asked[room] = reply
        reply.on_gone = lambda: self._asker_left(room)
        gate = self.held.get(room)
        if gate is not None:
            gate.asked()

    def _asker_left(self, room: int) -> None:
        self.asked.pop(room, None)
        gate = self.held.get(room)
        if gate is not None:
            gate.deserted()

    def answer(self, room: int, status: int, body: dict[str, object]) -> None:
        reply = self.asked.pop(room, None)
        if reply is not None:
            reply.on_gone = None
            reply.send(status, _JSON, compact(body))

    def close(self) -> None:
        """Nobody will be answered any more."""
        for reply in self.asked.values():
            reply.on_gone = None
            reply.abort()
        self.asked.clear()

    def __repr__(self) -> str:
        return f"<Rooms {len(self.held)} held, {len(self.asked)} asked for>"


class PrefillGate(Gate):
    hold = True

    def __init__(self, rooms: Rooms, room: int, rid: str) -> None:
        self._rooms = rooms
        self._room = room
        self._name = f"request rank=0 req.rid={rid!r} req.bootstrap_room={room}"
        self._ready: Callable[[], None] | None = None
        self._failed: Callable[[Rejected], None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._mine = False

    def start(self, ready: Callable[[], None], failed: Callable[[Rejected], None]) -> bool:
        rooms, room = self._rooms, self._room
        if room in rooms.held:
            text = f"Prefill bootstrap failed for {self._name} with exception Duplicate or cancelled bootstrap room"
            raise Rejected(text, status=500, kind="InternalServerError", late=True)
        rooms.held[room] = self
        self._mine = True
        self._failed = failed
        if room in rooms.asked:
            return True
        self._ready = ready
        seconds = rooms.settings.bootstrap_timeout
        self._timer = asyncio.get_running_loop().call_later(seconds, self._timed_out, seconds)
        return False

    def asked(self) -> None:
        ready, self._ready = self._ready, None
        self._stop_timer()
        if ready is not None:
            ready()

    def deserted(self) -> None:
        """The decode engine no longer wants it."""
        self._fail(f"Prefill transfer failed for {self._name}", "Aborted by decode")

    def _timed_out(self, seconds: float) -> None:
        why = f"Request {self._room} timed out after {seconds:.1f}s in KVPoll.Bootstrapping"
        self._fail(f"Prefill bootstrap failed for {self._name}", why)

    def _fail(self, what: str, why: str) -> None:
        failed, self._failed = self._failed, None
        if failed is not None:
            text = f"{what} with exception KVTransferError(bootstrap_room={self._room}): {why}"
            failed(Rejected(text, status=500, kind="InternalServerError", late=True))

    def finished(self, job: Job, done: Callable[[], None]) -> None:
        rooms, driver = self._rooms, self._rooms.driver
        settings = driver.engine.settings
        seconds = settings.transfer_latency + job.prompt_tokens * settings.transfer_seconds_per_token
        rooms.answer(self._room, 200, {"prompt_tokens": job.prompt_tokens})
        self._failed = None

        def taken() -> None:
            driver.release(job)
            done()

        self._timer = asyncio.get_running_loop().call_later(seconds / driver.speed, taken)

    def refused(self) -> None:
        self.leave()

    def leave(self) -> None:
        self._stop_timer()
        self._failed = self._ready = None
        if self._mine:
            self._rooms.held.pop(self._room, None)
            self._rooms.answer(self._room, 409, {"error": _DEAD})

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class DecodeGate(Gate):
    remote = True

    def __init__(self, rooms: Rooms, at: Bootstrap, rid: str) -> None:
        self._rooms = rooms
        self._at = at
        self._name = f"request rank=0 decode_req.req.rid={rid!r} decode_req.req.bootstrap_room={at.room}"
        self._task: asyncio.Task[None] | None = None

    def start(self, ready: Callable[[], None], failed: Callable[[Rejected], None]) -> bool:
        self._task = self._rooms.tasks.spawn(self._fetch(ready, failed))
        return False

    async def _fetch(self, ready: Callable[[], None], failed: Callable[[Rejected], None]) -> None:
        at = self._at
        port = at.port or self._rooms.settings.bootstrap_port or 8998
        what, why = "Decode handshake failed", None
        try:
            async with asyncio.timeout(self._rooms.settings.bootstrap_timeout):
                reader, writer = await asyncio.open_connection(at.host, port)
                what = "Decode transfer failed"
                try:
                    why = await self._ask(reader, writer)
                finally:
                    writer.close()
        except TimeoutError:
            seconds = self._rooms.settings.bootstrap_timeout
            why = f"Request {at.room} timed out after {seconds:.1f}s in KVPoll.WaitingForInput"
        except OSError:
            why = _DEAD
            if what == "Decode handshake failed":
                why = f"Could not fetch prefill parallel info from bootstrap_addr: {at.host}:{port}"
        self._task = None
        if why is None:
            ready()
            return
        text = f"{what} for {self._name} with exception KVTransferError(bootstrap_room={at.room}): {why}"
        failed(Rejected(text, status=500, kind="InternalServerError", late=True))

    async def _ask(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> str | None:
        """What went wrong; None: the KV is there."""
        body = compact({"room": self._at.room})
        head = b"POST %b HTTP/1.1\r\nhost: engine\r\nconnection: close\r\ncontent-type: application/json\r\n"
        writer.write(head % ROOM + b"content-length: %d\r\n\r\n%b" % (len(body), body))
        raw = await reader.read(65_536)
        status, _, rest = raw.partition(b"\r\n")
        if b" 200 " in status + b" ":
            return None
        try:
            told = msgspec.json.decode(rest.partition(b"\r\n\r\n")[2])
            return str(told["error"])
        except (msgspec.DecodeError, KeyError, TypeError):
            return _DEAD

    def leave(self) -> None:
        if self._task is not None:
            self._task.cancel()

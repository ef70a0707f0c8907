"""The emulated server: what is the same for every kind of engine. Its face (`faces/`) has the routes and the shapes;
here are the model behind it, the faults, the books and /control."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any, Final

import msgspec

from forebay.errors import Refusal
from forebay.sim.answers import Later, Prepared, Sent
from forebay.sim.asks import Generation
from forebay.sim.checks import Fields, Rejected, compact, read_body
from forebay.sim.driver import Driver
from forebay.sim.embed import EmbedFlow
from forebay.sim.faces.base import EMBEDDINGS, Face
from forebay.sim.faces.kinds import other_page, wear
from forebay.sim.faults import FAULT_HEADER, INSTANT, BadFault, Books, Fault, FaultBook, Kind, Record, from_json, parse
from forebay.sim.faulty import HugeBody, Out, close_when_idle, html_page, reset, speak_garbage
from forebay.sim.flow import Flow
from forebay.sim.handover import RELEASE, Handovers
from forebay.sim.jobs import Refused, TooLong
from forebay.sim.kv_events import KvEvents
from forebay.sim.rooms import ROOM, Rooms
from forebay.sim.script import write_scripts
from forebay.sim.serving import Settings
from forebay.sim.tally import LIMITS, Tally
from forebay.wire.message import Request
from forebay.wire.reply import Reply
from forebay.wire.server import Handler
from forebay.wire.tasks import Tasks

log = logging.getLogger("forebay.sim")

_MAX_ID: Final = 128
_TOOL_KINDS: Final = frozenset({Kind.TOOL_WHOLE, Kind.TOOL_NO_ID, Kind.TOOL_EMPTY, Kind.TOOL_FINISH})
_OTHER_MODEL: Final = "forebay-other"
_LOOKUP: Final[Mapping[str, Any]] = MappingProxyType(
    {
        "type": "function",
        "function": {
            "name": "lookup",
            "parameters": {"type": "object", "properties": {"place": {"type": "string"}, "day": {"type": "integer"}}},
        },
    }
)
_CONTROL: Final = b"server: forebay\r\ncontent-type: application/json\r\n"


@dataclass(slots=True)
class Outside:
    """What faults do to the listener and its connections. `refuse` raises BadFault where it cannot be done."""

    refuse: Callable[[float], None]
    hang_up: Callable[[], None]
    """Close every connection that is not in the middle of an answer."""


class EngineServer(Handler):
    """The handler of `forebay engine`, and the `House` of its face. Mutable state: the model and what it has counted
    since it last started, the requests in it, the books, the faults."""

    def __init__(
        self, settings: Settings, outside: Outside, tasks: Tasks, where: tuple[str, int] | None = None
    ) -> None:
        """`where`: host and port at which other engines reach this one."""
        self.settings = settings
        self.books = Books()
        self.faults = FaultBook(list(settings.faults))
        self.live: dict[Any, None] = {}
        self.tasks = tasks
        self.where = where
        self._outside = outside
        self.driver: Driver
        self.tally: Tally
        self.face: Face
        self._start_model()

    def _start_model(self) -> None:
        settings = self.settings
        self.created = int(time.time())
        self.driver = Driver(settings.engine, settings.steps, asyncio.get_running_loop(), speed=settings.speed)
        self.handovers: Handovers | None = None
        if settings.kv_transfer and self.where is not None:
            self.handovers = Handovers(self.driver, self.tasks, *self.where)
        self.rooms: Rooms | None = None
        if settings.role != "null":
            self.rooms = Rooms(settings, self.driver, self.tasks)
        self.events: KvEvents | None = None
        if settings.kv_events is not None:
            self.events = KvEvents(settings, self.driver.engine.pool)
        self.face = wear(settings.kind, self)
        self.tally = Tally(self.face.edges(settings.max_model_len), time.time())

    def restart(self, settings: Settings) -> None:
        """As a process that dies and comes back: everybody is cut off, nothing is remembered but the books."""
        for flow in tuple(self.live):
            flow.on_broken()
        if self.rooms is not None:
            self.rooms.close()
        self.driver.close()
        self.face.close()
        if self.events is not None:
            self.events.close()
        self.settings = settings
        self._start_model()
        asyncio.get_running_loop().call_soon(self._outside.hang_up)

    # --- wire.server.Handler -----------------------------------------------------------------------------------------

    def on_head(self, request: Request) -> Refusal | None:
        return None

    def on_refused(self, request: Request | None, refusal: Refusal) -> bytes:
        return b"server: forebay\r\n"

    def on_request(self, request: Request, reply: Reply) -> None:
        path, method, face = request.path, request.method, self.face
        if path.startswith(b"/control/"):
            self._control(request, reply)
            return
        if self.faults.faults and self.faults.holds(Kind.DEAF):
            return
        given = request.header(b"x-request-id")
        name = given.decode("latin-1")[:_MAX_ID] if given else ""
        extra = face.extra_headers(name)
        refused = face.refuses(request)
        if refused is not None:
            self._send(reply, refused, extra)
        elif path in face.generates:
            if method == b"POST":
                self._begin(request, reply, name or secrets.token_hex(8), extra)
            else:
                self._send(reply, face.wrong_method(b"POST"), extra)
        elif path == face.metrics_path and method in (b"GET", b"HEAD"):
            self._send(reply, self._metrics(), b"")
        elif path in face.get and method in (b"GET", b"HEAD"):
            self._route(partial(face.get[path], request), reply, extra)
        elif path in face.post and method == b"POST":
            self._route(partial(face.post[path], request), reply, extra)
        elif path in face.get or path in face.post:
            self._send(reply, face.wrong_method(b"GET" if path in face.get else b"POST"), extra)
        else:
            self._send(reply, face.not_found(), extra)

    def _route(self, route: Callable[[], Sent | Later], reply: Reply, extra: bytes) -> None:
        if not reply.open:
            return
        try:
            sent = route()
        except Rejected as e:
            sent = self.face.error(e)
        if isinstance(sent, Later):
            seconds = self.face.later(sent.seconds)
            asyncio.get_running_loop().call_later(seconds, self._route, sent.then, reply, extra)
        else:
            self._send(reply, sent, extra)

    @staticmethod
    def _send(reply: Reply, sent: Sent, extra: bytes) -> None:
        reply.send(sent.status, sent.headers + extra, sent.body)

    def _metrics(self) -> Sent:
        if self.faults.faults:
            if self.faults.holds(Kind.HTML_METRICS):
                return html_page(200)
            if self.faults.holds(Kind.OTHER_METRICS):
                return other_page(self.face, self)
        return self.face.metrics()

    # --- generating --------------------------------------------------------------------------------------------------

    def _begin(self, request: Request, reply: Reply, name: str, extra: bytes) -> None:
        header = request.header(FAULT_HEADER) if self.settings.allow_fault_header else None
        try:
            fault = parse(header.decode("latin-1")) if header is not None else self.faults.draw()
        except BadFault as e:
            rejected = Rejected(f"{FAULT_HEADER.decode()}: {e}", param=FAULT_HEADER.decode())
            self._send(reply, self.face.error(rejected), extra)
            return
        record = self.books.open(name, request.path.decode("latin-1"), fault, self.driver.now())
        self.tally.requests += 1
        if fault is not None and self._faulted(fault, request, reply, name, extra, record):
            return
        self._start(fault, request, reply, name, extra, record)

    def _start(
        self, fault: Fault | None, request: Request, reply: Reply, name: str, extra: bytes, record: Record
    ) -> None:
        """Every end is answered here, also where a timer calls."""
        try:
            self._serve(fault, request, reply, name, extra, record)
        except Rejected as e:
            self.books.close(record, "rejected", self.driver.now())
            if e.status == 503:
                request.keep_alive = False
            self._send(reply, self.face.error(e), extra)
        except Exception:
            log.exception("a request failed inside the engine")
            self.books.close(record, "faulted", self.driver.now())
            reply.on_gone = None
            if reply.started:
                reply.abort()
            else:
                self._send(reply, self.face.error(self.face.died()), extra)

    def _serve(
        self, fault: Fault | None, request: Request, reply: Reply, name: str, extra: bytes, record: Record
    ) -> None:
        """Raises Rejected."""
        face, settings = self.face, self.settings
        prepared = Prepared(name, extra, int(time.time()), settings.prompt_tokens_details)
        if request.path == EMBEDDINGS:
            embed = face.embed(request)
            out = Out(reply, fault, asyncio.get_running_loop())
            self._submit(EmbedFlow(face, embed, reply, out, record, prepared=prepared, books=self.books))
            return
        ask = face.read(request)
        if fault is not None and fault.kind in _TOOL_KINDS and ask.chat and not ask.tools:
            ask.tools, ask.tool_choice = [dict(_LOOKUP)], "required"
        try:
            face.admit(ask)
            strange = fault is not None and fault.kind is Kind.SPLIT_UTF8
            scripts = write_scripts(ask, settings.seed, strange=strange)
            if fault is not None and fault.kind is Kind.WRONG_MODEL:
                ask.model = _OTHER_MODEL
            flow = Flow(face, ask, scripts, reply, record, prepared=prepared, fault=fault, books=self.books)
            if fault is not None and fault.kind is Kind.CLOSE_IDLE:
                flow.then = close_when_idle(reply)
            self._submit(flow)
        except Rejected as e:
            if not (e.late and ask.stream):
                raise
            self._refuse_in_stream(e, ask, reply, prepared, record)

    def _refuse_in_stream(self, e: Rejected, ask: Generation, reply: Reply, prepared: Prepared, record: Record) -> None:
        self.books.close(record, "rejected", self.driver.now())
        answer = self.face.answer(ask, [], prepared)
        reply.start(200, answer.stream_head())
        reply.write(answer.error_event(e))
        reply.end()

    def _submit(self, flow: EmbedFlow | Flow) -> None:
        """Raises Rejected."""
        try:
            flow.begin()
        except TooLong as e:
            raise self.face.too_long(str(e)) from None
        except Refused as e:
            limits = [limit for limit in LIMITS if limit in str(e)]
            for limit in limits:
                self.tally.rejections[limit] += 1
            raise self.face.busy(limits[0]) from None

    def _faulted(self, fault: Fault, request: Request, reply: Reply, name: str, extra: bytes, record: Record) -> bool:
        """What a fault does instead of serving, or before. False where the request goes on at once."""
        kind, face = fault.kind, self.face
        books, driver = self.books, self.driver

        def done(how: str = "faulted") -> None:
            books.close(record, how, driver.now())

        if kind is Kind.ERROR:
            done()
            status = int(fault.arg)
            rejected = Rejected("Internal Server Error", status=status, kind="InternalServerError")
            body = fault.body.encode() or compact(face.error_body(rejected))
            reply.send(status, face.json + extra, body)
        elif kind is Kind.HTML:
            done()
            self._send(reply, html_page(int(fault.arg)), extra)
        elif kind is Kind.OVERLOAD_503:
            done()
            request.keep_alive = False
            overloaded = face.overloaded()
            overloaded.status = 503
            self._send(reply, face.error(overloaded), extra)
        elif kind is Kind.OVERLOAD_429:
            done()
            rejected = Rejected("Too many requests. Please try again later.", status=429, kind="RateLimitError")
            self._send(reply, face.error(rejected), extra + b"retry-after: %d\r\n" % fault.arg)
        elif kind is Kind.RESET:
            done()
            reset(reply)
        elif kind is Kind.GARBAGE:
            done()
            speak_garbage(reply)
        elif kind is Kind.HUGE_ERROR:
            reply.on_gone = lambda: done("aborted")
            HugeBody(reply, int(fault.arg) * 1_000_000, done)
        elif kind is Kind.STALL:
            timer: asyncio.TimerHandle | None = None
            if fault.arg != float("inf"):
                timer = asyncio.get_running_loop().call_later(
                    fault.arg, self._start, None, request, reply, name, extra, record
                )

            def gone() -> None:
                if timer is not None:
                    timer.cancel()
                done("aborted")

            reply.on_gone = gone
        else:
            return False
        return True

    # --- /control ----------------------------------------------------------------------------------------------------

    def _control(self, request: Request, reply: Reply) -> None:
        path, method = request.path, request.method
        get = method in (b"GET", b"HEAD")
        try:
            if path == b"/control/faults" and method in (b"PUT", b"DELETE"):
                self._set_faults(request)
                body = self._faults()
            elif path == b"/control/faults" and get:
                body = self._faults()
            elif path == b"/control/requests" and get:
                body = self._requests()
            elif path == RELEASE and method == b"POST":
                body = self._release_kv(read_body(request.body, request.header(b"content-type")))
            elif path == ROOM and method == b"POST" and self.rooms is not None:
                self.rooms.fetch(read_body(request.body, request.header(b"content-type")), reply)
                return
            elif path in (b"/control/faults", b"/control/requests", RELEASE):
                allowed = {b"/control/faults": b"GET, PUT, DELETE", b"/control/requests": b"GET"}.get(path, b"POST")
                reply.send(405, b"allow: %b\r\n%b" % (allowed, _CONTROL), b'{"detail":"Method Not Allowed"}')
                return
            else:
                reply.send(404, _CONTROL, b'{"detail":"Not Found"}')
                return
        except BadFault as e:
            reply.send(400, _CONTROL, Rejected(str(e), kind="Bad Request").body())
        except Rejected as e:
            reply.send(e.status, _CONTROL, e.body())
        else:
            reply.send(200, _CONTROL, body)

    def _faults(self) -> bytes:
        return compact([f.as_json() for f in self.faults.faults])

    def _requests(self) -> bytes:
        engine = self.driver.engine
        books = self.books
        return compact(
            {
                "now": self.driver.now(),
                "running": engine.running,
                "waiting": engine.waiting,
                "started": books.started,
                **books.ended,
                "open": books.busy,
                "records": [r.as_json() for r in books.records],
            }
        )

    def _set_faults(self, request: Request) -> None:
        """Raises BadFault."""
        faults: list[Fault] = []
        if request.method == b"PUT":
            faults = from_json(read_list(request.body or b"[]"))
        for fault in faults:
            if fault.kind is Kind.REFUSE:
                self._outside.refuse(fault.arg)
            elif fault.kind is Kind.RESTART:
                if fault.arg:
                    self._outside.refuse(fault.arg)
                self.restart(self.settings)
            elif fault.kind is Kind.KV_SIZE:
                self.restart(self._resized(int(fault.arg)))
            elif fault.kind is Kind.CLEAR_CACHE:
                if not self.driver.engine.pool.clear():
                    raise BadFault("fault 'clear-cache': requests hold KV blocks")
                if self.events is not None:
                    self.events.cleared()
        self.faults.replace([f for f in faults if f.kind not in INSTANT])

    def _resized(self, tokens: int) -> Settings:
        """Raises BadFault."""
        engine, limit = self.settings.engine, self.settings.max_model_len
        blocks = tokens // engine.block_size
        if blocks * engine.block_size < limit:
            raise BadFault(f"fault 'kv-size': {tokens} tokens do not hold max_model_len, {limit}")
        return replace(self.settings, engine=replace(engine, num_blocks=blocks))

    def _release_kv(self, fields: Fields) -> bytes:
        name = fields.string("request_id")
        if "request_id" not in fields:
            fields.missing("request_id")
        fields.raise_errors()
        return compact({"released": self.handovers is not None and self.handovers.release(name or "")})

    async def close(self) -> None:
        self.driver.close()
        self.face.close()
        if self.events is not None:
            self.events.close()
        await self.tasks.drain()


def read_list(raw: bytes) -> Any:
    """Any JSON. Raises BadFault for what is none."""
    try:
        return msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError) as e:
        raise BadFault(f"the body must be a JSON list of faults: {e}") from None

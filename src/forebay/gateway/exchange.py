"""One request from its reception to its settlement, driven by callbacks: no task a request.

`Exchange` is the sink of its engine's answer and the owner of the client's reply. It walks the states of
`lifecycle.py`; whoever ends it first decides how it ended (`_settle` runs once), and everything it holds (the engine's
connection, the slot on the engine, its place among the live) is given back there. `Unary` and `Stream` in `relay.py`
say what to do with the bytes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Final

from forebay import errors
from forebay.api import openai
from forebay.errors import Outcome, Refusal
from forebay.gateway.forwarding import downstream_block
from forebay.gateway.front import Front
from forebay.gateway.handles import Entry, Handle
from forebay.gateway.prompts import NOTHING
from forebay.lifecycle import Event, State, advance, walk
from forebay.wire.head import Header
from forebay.wire.inflate import CODINGS, InflateFailed, Inflater
from forebay.wire.memo import AnswerMemo
from forebay.wire.message import Request
from forebay.wire.reply import Reply
from forebay.wire.upstream import Call, Failure

if TYPE_CHECKING:
    from forebay.gateway.app import Gateway
    from forebay.gateway.tokens import Counted
    from forebay.policy.asks import Ask

_TIMEOUTS: Final = frozenset({Failure.CONNECT_TIMEOUT, Failure.FIRST_BYTE_TIMEOUT, Failure.IDLE_TIMEOUT})
_UNREACHED: Final = frozenset({Failure.CONNECT, Failure.CONNECT_TIMEOUT, Failure.TLS})
# Reading a member off an Enum class is slow.
_ADMIT: Final = Event.ADMIT
_DISPATCH: Final = Event.DISPATCH
_QUEUE: Final = Event.QUEUE
_FIRST_TOKEN: Final = Event.FIRST_TOKEN
_REFUSE: Final = Event.REFUSE
_SETTLE: Final = Event.SETTLE
_RECEIVED: Final = State.RECEIVED
_SETTLED: Final = State.SETTLED
_OK: Final = Outcome.OK
# The two stretches that most requests walk, looked up once.
_HELD: Final = advance(State.RECEIVED, Event.HOLD)
_DISPATCHED: Final = walk(_HELD, Event.ADMIT, Event.DISPATCH)
_DONE: Final = walk(_DISPATCHED, Event.COMPLETE, Event.SETTLE)
_ENDS: Final = {
    Outcome.OK: Event.COMPLETE,
    Outcome.ENGINE_REFUSED: Event.COMPLETE,
    Outcome.EXPIRED: Event.EXPIRE,
    Outcome.CLIENT_GONE: Event.CANCEL,
    Outcome.CANCELLED: Event.CANCEL,
    Outcome.ENGINE_ERROR: Event.FAIL,
    Outcome.ENGINE_TIMEOUT: Event.FAIL,
    Outcome.ENGINE_CUT: Event.FAIL,
    Outcome.DRAINED: Event.FAIL,
    Outcome.INTERNAL: Event.FAIL,
}


class Exchange(ABC):
    __slots__ = (
        "_error_body",
        "_failing",
        "_handle",
        "_headers",
        "_inflater",
        "_payload",
        "_tried",
        "ask",
        "attempts",
        "body",
        "call",
        "counted",
        "entry",
        "first_content_at",
        "front",
        "gateway",
        "outcome",
        "received_at",
        "refusal",
        "reply",
        "request",
        "request_id",
        "series",
        "shown",
        "state",
        "status",
        "usage",
    )

    stream = False
    repeats = True

    def __init__(
        self,
        gateway: Gateway,
        request: Request,
        reply: Reply,
        front: Front,
        request_id: bytes,
        body: openai.AnyBody,
        entry: Entry,
        payload: bytes,
        now: float,
    ) -> None:
        self.gateway = gateway
        self.request = request
        self.reply = reply
        self.front = front
        self.request_id = request_id
        self.body = body
        self.entry = entry
        self.received_at = now
        if front.entry is not entry or front.series is None:
            front.entry = entry
            front.series = gateway.telemetry.series(front.route, entry.name, front.class_)
        self.series = front.series
        self.state = _RECEIVED
        self.outcome = _OK
        self.status = 0
        self.attempts = 0
        self.first_content_at = 0.0
        self.usage: openai.Usage | None = None
        self.call: Call | None = None
        self.refusal: Refusal | None = None  # what it ended with, if not an answer of the engine's
        self.shown = b""  # the answer's beginning, where bodies are logged
        self._payload = payload
        self._headers: list[Header] = []
        self._handle: Handle | None = None
        self._tried: tuple[str, ...] = ()
        self._failing = False
        self._error_body = b""
        self._inflater: Inflater | None = None
        self.ask: Ask | None = None
        self.counted: Counted = NOTHING  # its prompt, as its tokens were estimated
        reply.on_gone = self.client_gone

    @property
    def engine(self) -> str:
        """The engine of the last attempt, or "" before the first."""
        return self._tried[-1] if self._tried else ""

    # --- the way to an engine ----------------------------------------------------------------------------------------

    def go(self) -> None:
        """Start: the caller is known and the limits are held."""
        self.state = _HELD
        self.gateway.live.add(self)
        self._place(None)

    def _place(self, last: Refusal | None) -> None:
        """Choose an engine and send; `last` is what to say where there is none to choose."""
        gateway = self.gateway
        candidates = self.entry.candidates
        if self._tried:
            self.entry = gateway.fleet.catalog.get(self.entry.name, self.entry)
            candidates = tuple(c for c in self.entry.candidates if c not in self._tried)
        if gateway.admitting is not None and candidates and self.front.route.streams:
            # One that is not healthy may be by the time the request goes.
            able = self.entry.able
            gateway.admitting.begin(self, tuple(c for c in able if c not in self._tried) if self._tried else able)
            return
        name = gateway.placement.choose(self.entry.name, candidates, self.received_at)
        if name is None:
            self.refuse(last or errors.no_engine(self.entry.name, "none of its engines is healthy"))
            return
        self.dispatch(name)

    def queued(self) -> None:
        """Admission lets it wait."""
        self._move(_QUEUE)

    def dispatch(self, name: str) -> None:
        """Send it to this engine."""
        gateway = self.gateway
        handle = gateway.fleet.handles.get(name)
        if handle is None:
            self.refuse(errors.no_engine(self.entry.name, "none of its engines is healthy"))
            return
        self.state = _DISPATCHED if self.state is _HELD else walk(self.state, _ADMIT, _DISPATCH)
        self._handle = handle
        self._tried = (*self._tried, handle.name)
        handle.in_flight += 1
        self.attempts += 1
        self._failing = False
        payload = self._payload
        block = self.front.block
        if self.ask is not None and gateway.admitting is not None and gateway.admitting.feeds is not None:
            block += gateway.admitting.feeds.header(handle.name, self.ask.key)
        handle.pool.request(
            b"%b%bx-request-id: %b\r\ncontent-length: %d\r\n\r\n"
            % (handle.head(b"POST", self.front.route.path), block, self.request_id, len(payload)),
            payload,
            self,
        )
        if self.stream and self.reply.paused:
            self.pause()

    def _retry(self, refusal: Refusal) -> None:
        """Before the first byte: another engine, if there is one and the budget allows; else the refusal."""
        gateway = self.gateway
        self._release()
        if self.ask is not None and gateway.admitting is not None:
            gateway.admitting.end(self)
        retries = gateway.config.retries
        others = any(c not in self._tried for c in self.entry.candidates)
        if not others or self.attempts >= retries.attempts or not gateway.retry_budget.take(gateway.ticker.now):
            self.refuse(refusal)
            return
        gateway.telemetry.retries.series(self.engine).add()
        self._move(Event.RETRY)
        self._place(refusal)

    # --- wire.upstream.Sink ------------------------------------------------------------------------------------------

    def on_head(self, status: int, headers: list[Header], length: int | None) -> None:
        self.status = status
        self._headers = headers
        self._inflater = None
        for name, value in headers:
            if name == b"content-encoding" and value.lower() != b"identity":
                if value.lower() not in CODINGS:
                    shown = errors.shown(value.decode("latin-1"))
                    self.broken(
                        errors.engine_failed(f"it answered in the Content-Encoding {shown}, which nobody asked for")
                    )
                    return
                self._inflater = Inflater(self.gateway.limits.response_bytes)
                length = None
        if status >= 300:
            self._failing = True
            self._error_body = b""
            return
        self.answer_begins(status, headers, length)

    def on_body(self, data: bytes) -> None:
        if self._inflater is not None:
            try:
                data = self._inflater.feed(data)
            except InflateFailed as e:
                self.broken(errors.engine_failed(f"its compressed answer cannot be read: {e}"))
                return
            if not data:
                return
        if not self._failing:
            self.answer_data(data)
            return
        self._error_body += data
        limit = self.gateway.limits.error_bytes
        if len(self._error_body) > limit:
            self._count_failure("error_too_large")
            self.broken(errors.engine_failed(f"it answered {self.status} with more than {limit:,} bytes"))

    def on_end(self) -> None:
        if self._failing:
            self._engine_refused(self.status, self._error_body)
        else:
            self.answer_ends()

    def on_whole(self, memo: AnswerMemo, body: bytes) -> None:
        attempt = self.attempts
        self.on_head(200, memo.headers, len(body))
        if self.state is _DISPATCHED and self.attempts == attempt:
            self.on_body(body)
        if self.state is not _SETTLED and self.attempts == attempt:
            self.on_end()

    def on_fail(self, failure: Failure, detail: str) -> None:
        self._count_failure(failure.value)
        handle = self._handle
        if handle is not None and failure in _UNREACHED:
            self.gateway.fleet.passive_failure(handle, detail)
        if failure is Failure.FULL:
            refusal = errors.overloaded("engine_connections", "All connections to the engine are in use.", 1.0)
        elif failure in _TIMEOUTS:
            refusal = Refusal(
                504, "engine_timeout", f"The engine is too slow: {detail}.", outcome=Outcome.ENGINE_TIMEOUT
            )
        else:
            refusal = errors.engine_failed(detail or failure.value)
        if failure is Failure.FIRST_BYTE_TIMEOUT and not self.reply.started:
            self.refuse(refusal)  # another engine would start the client's wait anew
        else:
            self.broken(refusal)

    # --- for relays: what an answer is made of -----------------------------------------------------------------------

    @abstractmethod
    def answer_begins(self, status: int, headers: list[Header], length: int | None) -> None: ...

    @abstractmethod
    def answer_data(self, data: bytes) -> None: ...

    @abstractmethod
    def answer_ends(self) -> None: ...

    @property
    @abstractmethod
    def heard_at(self) -> float: ...

    @property
    def events(self) -> int:
        """Content events the client was sent; 0 where they are not seen."""
        return 0

    @abstractmethod
    def account(self) -> None:
        """Add to the reply's count of bytes what went past it."""

    def first_content(self, now: float) -> None:
        """The answer's first content is here."""
        self.first_content_at = now
        self._move(_FIRST_TOKEN)
        if self.ask is not None and self.gateway.admitting is not None:
            self.gateway.admitting.first_content(self, now)

    def downstream_head(self) -> bytes:
        return downstream_block(self._headers)

    # --- ends --------------------------------------------------------------------------------------------------------

    def complete(self) -> None:
        """The client has the whole answer."""
        self._settle(_OK)

    def broken(self, refusal: Refusal) -> None:
        """The engine's answer cannot be used: retry where nothing was sent, else say so and cut."""
        self._drop_call()
        if self.reply.started:
            self.cut(Refusal(502, "engine_cut", refusal.message, outcome=Outcome.ENGINE_CUT))
        else:
            self._retry(refusal)

    def refuse(self, refusal: Refusal) -> None:
        """The whole answer is a refusal; nothing was sent before."""
        self._drop_call()
        if self.state is _SETTLED:
            return
        self.status = refusal.status
        self.refusal = refusal
        self.reply.refuse(refusal)
        self._settle(refusal.outcome)

    def cut(self, refusal: Refusal) -> None:
        """End an answer that has begun, so that it cannot be taken for whole."""
        self._drop_call()
        if self.state is _SETTLED:
            return
        self.refusal = refusal
        if self.stream:
            self.reply.write(refusal.sse())
        self.account()
        self.reply.abort()
        self._settle(refusal.outcome)

    def end_with(self, refusal: Refusal) -> None:
        """From outside: "stop generating", or the drain's deadline."""
        self._count_cancel(refusal.outcome)
        if self.reply.started:
            self.cut(refusal)
        else:
            self.refuse(refusal)

    def client_gone(self) -> None:
        self._drop_call()
        self.account()
        if self.state is not _SETTLED:
            self._count_cancel(Outcome.CLIENT_GONE)
            self._settle(Outcome.CLIENT_GONE)

    def _engine_refused(self, status: int, body: bytes) -> None:
        """An error status with a body that is whole."""
        handle = self._handle
        meaning = handle.adapter.refused(status, body) if handle is not None else None
        if meaning is Outcome.OVERLOADED:
            self._count_failure("overloaded")
            seconds = _retry_after(self._headers)
            self._retry(errors.overloaded("engine_overloaded", "Every engine for this model is full.", seconds))
        elif meaning is Outcome.ENGINE_ERROR:
            self._count_failure(f"status_{status // 100}xx")
            # What an engine says of credentials may hold ours.
            said = "" if status in (401, 403, 407) else _said(body)
            self._retry(errors.engine_failed(f"it answered {status}{said}"))
        else:
            self._pass_refusal(status, body)

    def _pass_refusal(self, status: int, body: bytes) -> None:
        self.status = status
        self.reply.send(status, self.downstream_head(), body)
        self._settle(Outcome.ENGINE_REFUSED)

    def _settle(self, outcome: Outcome) -> None:
        """The one way out: first come, first served; the rest finds SETTLED."""
        if self.state is _SETTLED:
            return
        self.outcome = outcome
        if outcome is _OK and self.state is _DISPATCHED:
            self.state = _DONE
        else:
            self.state = walk(self.state, _ENDS.get(outcome, _REFUSE), _SETTLE)
        if self.call is not None:
            self.call.cancel()
        handle, self._handle = self._handle, None
        if handle is not None:
            handle.in_flight -= 1
        if self.ask is not None and self.gateway.admitting is not None:
            self.gateway.admitting.end(self)
        self.gateway.live.discard(self)
        self.gateway.settled(self)
        reply = self.reply
        reply.on_gone = reply.on_pause = reply.on_resume = None

    # --- small things ------------------------------------------------------------------------------------------------

    def pause(self) -> None:
        if self.call is not None:
            self.call.pause()

    def resume(self) -> None:
        if self.call is not None:
            self.call.resume()

    def _move(self, event: Event) -> None:
        self.state = advance(self.state, event)

    def _drop_call(self) -> None:
        if self.call is not None:
            self.call.cancel()

    def _release(self) -> None:
        handle, self._handle = self._handle, None
        if handle is not None:
            handle.in_flight -= 1

    def _count_failure(self, kind: str) -> None:
        self.gateway.telemetry.upstream_errors.series(self.engine, kind).add()

    def _count_cancel(self, outcome: Outcome) -> None:
        if outcome in (Outcome.CLIENT_GONE, Outcome.CANCELLED):
            self.gateway.telemetry.cancels.series(self.state.value).add()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.request_id.decode()} {self.state.value} on {self.engine or 'no engine'}>"


def _retry_after(headers: list[Header]) -> float:
    """An engine's own Retry-After in seconds; 1 where it has none that can be read."""
    for name, value in headers:
        if name == b"retry-after" and value.isdigit() and len(value) < 6:
            return float(value)
    return 1.0


def _said(body: bytes) -> str:
    """The message of an engine's error body, for the refusal's text."""
    found = openai.chunk(body)
    if found is None:
        return ""
    message = found.error.get("message") if isinstance(found.error, dict) else found.error
    return f": {errors.shown(message, 200)}" if isinstance(message, str) else ""

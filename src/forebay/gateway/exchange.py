"""One request from its reception to its settlement, driven by callbacks: no task a request.

`Exchange` is the sink of its engine's answer and the owner of the client's reply. It walks the states of
`lifecycle.py`; whoever ends it first decides how it ended (`_settle` runs once), and everything it holds (the engine's
connection, the slot on the engine, its place among the live) is given back there. `Unary` and `Stream` in `relay.py`
say what to do with the bytes.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Final

from forebay import errors
from forebay.api import openai
from forebay.engines.handover import handover_of
from forebay.errors import Outcome, Refusal
from forebay.gateway.dialects import Abort
from forebay.gateway.dispatching import send_in
from forebay.gateway.engine_errors import TIMEOUTS, refusal_of, retry_after, said
from forebay.gateway.forwarding import downstream_block
from forebay.gateway.front import Front
from forebay.gateway.handles import Entry, Handle
from forebay.gateway.prompts import NOTHING
from forebay.gateway.verdicts import judge
from forebay.lifecycle import Event, State, advance, walk
from forebay.wire.head import Header
from forebay.wire.inflate import CODINGS, InflateFailed, Inflater
from forebay.wire.memo import AnswerMemo
from forebay.wire.message import Request
from forebay.wire.reply import Reply
from forebay.wire.upstream import Call, Failure

if TYPE_CHECKING:
    from forebay.gateway.app import Gateway
    from forebay.gateway.legs import Legs
    from forebay.gateway.tokens import Counted
    from forebay.policy.asks import Ask

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
        "_leaving",
        "_probe",
        "_tried",
        "abort",
        "ask",
        "attempts",
        "body",
        "call",
        "counted",
        "entry",
        "exact",
        "first_content_at",
        "free",
        "front",
        "gateway",
        "legs",
        "outcome",
        "payload",
        "received_at",
        "refusal",
        "reply",
        "request",
        "request_id",
        "resumed_at",
        "sent_at",
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
        self.exact = False  # `usage` is the engine's last word
        self.free = True  # the last attempt cost the engine nothing: it never had it, or refused it
        self.call: Call | None = None
        self.legs: Legs | None = None  # its attempt's, where its model has prefill engines
        self.refusal: Refusal | None = None  # what it ended with, if not an answer of the engine's
        self.shown = b""  # the answer's beginning, where bodies are logged
        self.payload = payload
        self._headers: list[Header] = []
        self._handle: Handle | None = None
        self._probe = 0
        self.sent_at = 0.0
        self.resumed_at = 0.0
        self._tried: tuple[str, ...] = ()
        self._failing = False
        self._error_body = b""
        self._inflater: Inflater | None = None
        self.abort: Abort | None = None
        # Its outcome and its client's status, where that has left, and the engine is read on for its usage.
        self._leaving: tuple[Outcome, int] | None = None
        self.ask: Ask | None = None
        self.counted: Counted = NOTHING  # its prompt, as its tokens were estimated
        reply.on_gone = self.client_gone

    @property
    def engine(self) -> str:
        """The engine of the last attempt, or "" before the first."""
        return self._tried[-1] if self._tried else ""

    @property
    def ended(self) -> bool:
        return self.state is _SETTLED

    @property
    def handle(self) -> Handle | None:
        """The engine that works for it now."""
        return self._handle

    # --- the way to an engine ----------------------------------------------------------------------------------------

    def go(self) -> None:
        """Start: the caller is known and the limits are held."""
        self.state = _HELD
        self.gateway.live.add(self)
        self._place(None)

    def _place(self, last: Refusal | None) -> None:
        """Choose an engine and send; `last` is what to say where there is none to choose."""
        gateway = self.gateway
        candidates, able = self.entry.candidates, self.entry.able
        if self._tried:
            self.entry = gateway.fleet.catalog.get(self.entry.name, self.entry)
            candidates, able = self.entry.left(self._tried)
        admitting = gateway.admitting
        if admitting is not None and candidates and self.front.route.streams:
            if admitting.gated:
                # One that is not healthy may be by the time the request goes.
                admitting.begin(self, able)
                return
            if admitting.places and len(candidates) > 1:
                admitting.begin(self, candidates)
                return
        name = gateway.placement.choose(self.entry.name, candidates, self.received_at)
        if name is None:
            self.refuse(last or errors.no_engine(self.entry.name, "none of its engines is healthy"))
            return
        if name in gateway.fleet.eased:
            name = gateway.fleet.instead(gateway.placement, self.entry.name, candidates, name)
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
        self.legs = None
        apart = self.entry.apart and handover_of(handle.adapter.kind) is not None
        if apart:
            self.begin_attempt(handle)
            if gateway.disaggregating.begin(self, handle, self.payload):
                return
        if handle.dialect is not None:
            send_in(handle.dialect, handle, self, begun=apart)
            return
        if not apart:
            self.begin_attempt(handle)
        self.send(handle, self.payload)

    def has_tried(self, name: str) -> bool:
        return name in self._tried

    def now_at(self, name: str) -> None:
        """The attempt is with another of its engines."""
        self._tried = (*self._tried[:-1], name)

    def send(self, handle: Handle, payload: bytes) -> None:
        """To the engine whose answer the client gets."""
        block = self.front.block
        if self.ask is not None and self.gateway.admitting is not None and self.gateway.admitting.feeds is not None:
            block += self.gateway.admitting.feeds.header(handle.name, self.ask.key)
        handle.pool.request(
            b"%b%bx-request-id: %b\r\ncontent-length: %d\r\n\r\n"
            % (handle.head(b"POST", self.front.route.path), block, self.request_id, len(payload)),
            payload,
            self,
        )
        if self.stream and self.reply.paused:
            self.pause()

    def begin_attempt(self, handle: Handle) -> None:
        """From now on the engine may have it."""
        self.state = _DISPATCHED if self.state is _HELD else walk(self.state, _ADMIT, _DISPATCH)
        self._handle = handle
        self._tried = (*self._tried, handle.name)
        handle.in_flight += 1
        self.sent_at = self.gateway.ticker.now
        if handle.breaker.tender and (probe := handle.breaker.sent()):
            self._probe = probe
            self.gateway.fleet.probed(handle)
        self.attempts += 1
        self._failing = self.free = False
        self.abort = None

    def _retry(self, refusal: Refusal) -> None:
        """Before the first byte: another engine, if there is one and the budget allows; else the refusal."""
        if self._leaving is not None:
            self._settle(self._leaving[0])
            return
        self._release(refusal.outcome, refusal.message)
        if self._may_retry():
            self._again(refusal)
        else:
            self.refuse(refusal)

    def _may_retry(self) -> bool:
        """Takes of the budget where it is so."""
        gateway = self.gateway
        retries = gateway.config.retries
        self.entry = gateway.fleet.catalog.get(self.entry.name, self.entry)
        others, _ = self.entry.left(self._tried)
        return bool(others) and self.attempts < retries.attempts and gateway.retry_budget.take(gateway.ticker.now)

    def _again(self, refusal: Refusal) -> None:
        """`refusal` is what to say where it comes to nothing."""
        gateway = self.gateway
        if self.ask is not None and gateway.admitting is not None:
            gateway.admitting.end(self)
        gateway.telemetry.retries.series(self.engine).add()
        self._move(Event.RETRY)
        queued = gateway.admitting is not None and gateway.admitting.gated  # which spreads them itself
        delay = 0.0 if queued else gateway.spread.delay(gateway.ticker.now)
        if delay:
            asyncio.get_running_loop().call_later(delay, self._place_late, refusal)
        else:
            self._place(refusal)

    def _place_late(self, refusal: Refusal) -> None:
        if self.state is _HELD:  # it may have been ended meanwhile
            self._place(refusal)

    def move(self, refusal: Refusal) -> None:
        """Its engine has fallen silent: before the first byte it goes to another, where it may; else it waits on."""
        if self._handle is None or self.reply.started or not self._may_retry():
            return
        self._drop_call()
        self.count_failure("stalled")
        self._release(Outcome.ENGINE_TIMEOUT, refusal.message)
        self._again(refusal)

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
            self.count_failure("error_too_large")
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
        self.count_failure(failure.value)
        if self.legs is not None:
            self.legs.decode_failed(failure)
        handle = self._handle
        if failure in _UNREACHED:
            self.free = True
            if handle is not None:
                self.gateway.fleet.passive_failure(handle, detail)
        if failure is Failure.FULL:
            self.free = True
        elif failure in TIMEOUTS:
            self._tell_abort()
        refusal = refusal_of(failure, detail)
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
        if self.legs is not None:
            self.legs.first_content(now)
        handle = self._handle
        if handle is not None:
            handle.began(self.gateway.ticker.now - self.sent_at)
            if self._probe:  # a stream may last; that it began says enough
                self.gateway.fleet.went_well(handle, self._probe)
                self._probe = 0
        if self.ask is not None and self.gateway.admitting is not None:
            self.gateway.admitting.first_content(self, now)

    def answered_by(self, model: str | None) -> None:
        """Not by the model asked for, or by a version of it, as vendors name them: the client is told the truth, and
        the operator that something is served under a wrong name."""
        if model and not model.startswith(self.entry.target):
            self.count_failure("other_model")

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
        reply = self.reply
        shown = self.status if reply.started else refusal.status
        if refusal.outcome is Outcome.CANCELLED and self._read_on(Outcome.CANCELLED, shown):
            self.refusal = refusal
            if reply.started:
                if self.stream:
                    reply.write(refusal.sse())
                self.account()
                reply.abort()
            else:
                reply.refuse(refusal)
        elif reply.started:
            self.cut(refusal)
        else:
            self.refuse(refusal)

    def client_gone(self) -> None:
        self._count_cancel(Outcome.CLIENT_GONE)
        if self._read_on(Outcome.CLIENT_GONE, self.status):
            self.account()
            return
        self._drop_call()
        self.account()
        self._settle(Outcome.CLIENT_GONE)

    def _read_on(self, outcome: Outcome, status: int) -> bool:
        """Nobody wants the answer any more, but its engine will bill all of it: read it to its end for the usage, where
        that is configured and there is room. It settles then, or when a bound is reached."""
        handle = self._handle
        if handle is None or not self.gateway.drains.begin(self, handle):
            return False
        self._leaving = outcome, status
        reply = self.reply
        reply.on_gone = reply.on_pause = reply.on_resume = None
        self.gateway.live.discard(self)
        return True

    def give_up(self) -> None:
        """Read on no more: settle by what came."""
        self._drop_call()
        if self._leaving is not None:
            self._settle(self._leaving[0])

    def _engine_refused(self, status: int, body: bytes) -> None:
        """An error status with a body that is whole."""
        handle = self._handle
        self.free = True
        meaning = handle.adapter.refused(status, body) if handle is not None else None
        if meaning is Outcome.OVERLOADED:
            self.count_failure("overloaded")
            seconds = retry_after(self._headers)
            if handle is not None:
                self.gateway.fleet.rests(handle, seconds)
            refusal = errors.overloaded("engine_overloaded", "Every engine for this model is full.", seconds or 1.0)
            self._retry(refusal)
        elif meaning is Outcome.ENGINE_ERROR:
            self.count_failure(f"status_{status // 100}xx")
            # What an engine says of credentials may hold ours.
            words = "" if status in (401, 403, 407) else said(body)
            self._retry(errors.engine_failed(f"it answered {status}{words}"))
        else:
            self._pass_refusal(status, body)

    def said_elsewhere(self, status: int, body: bytes) -> None:
        """The client's to read, from an engine that has a part in its answer."""
        self._headers = [(b"content-type", b"application/json")]
        self._pass_refusal(status, body)

    def _pass_refusal(self, status: int, body: bytes) -> None:
        self.status = status
        self.reply.send(status, self.downstream_head(), body)
        self._settle(Outcome.ENGINE_REFUSED)

    def _settle(self, outcome: Outcome) -> None:
        """The one way out: first come, first served; the rest finds SETTLED."""
        if self.state is _SETTLED:
            return
        if self._leaving is not None:
            outcome, self.status = self._leaving
            self.gateway.drains.end(self)
        self.outcome = outcome
        if outcome is _OK and self.state is _DISPATCHED:
            self.state = _DONE
        else:
            self.state = walk(self.state, _ENDS.get(outcome, _REFUSE), _SETTLE)
        self._drop_call()
        self._release(outcome, self.refusal.message if self.refusal is not None else "its answer was cut")
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
            self.resumed_at = self.gateway.ticker.now
            self.call.resume()

    def _move(self, event: Event) -> None:
        self.state = advance(self.state, event)

    def _drop_call(self) -> None:
        """The engine is to stop, if it works on it."""
        if self.legs is not None:
            self.legs.dropping()
        call = self.call
        if call is None:
            return
        if call.sent:
            self._tell_abort()
        else:
            self.free = True
        call.cancel()

    def _tell_abort(self) -> None:
        abort, self.abort = self.abort, None
        if abort is not None and self._handle is not None:
            self.gateway.aborts.tell(self._handle, abort)

    def _release(self, outcome: Outcome, why: str) -> None:
        """The engine has done what it does for this attempt: what that says of it."""
        if self.legs is not None:
            self.legs.end()
        handle, self._handle = self._handle, None
        if handle is None:
            return
        handle.in_flight -= 1
        probe, self._probe = self._probe, 0
        now = self.gateway.ticker.now
        if outcome is _OK and not self.first_content_at:
            handle.began(now - self.sent_at)
        judge(self.gateway.fleet, handle, outcome, probe, why, now)

    def count_failure(self, kind: str) -> None:
        self.gateway.telemetry.upstream_errors.series(self.engine, kind).add()

    def _count_cancel(self, outcome: Outcome) -> None:
        if outcome in (Outcome.CLIENT_GONE, Outcome.CANCELLED):
            self.gateway.telemetry.cancels.series(self.state.value).add()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.request_id.decode()} {self.state.value} on {self.engine or 'no engine'}>"

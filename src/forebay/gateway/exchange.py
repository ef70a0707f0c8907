"""One request from its reception to its settlement, driven by callbacks: no task a request.

`Exchange` is the sink of its engine's answer and the owner of the client's reply. It walks the states of
`lifecycle.py`; whoever ends it first decides how it ended (`_settle` runs once), and everything it holds (the engine's
connection, the slot on the engine, its place among the live) is given back there. What it holds stands in
`attempts.py`; `Unary` and `Stream` in `relay.py` say what to do with the bytes.
"""

from __future__ import annotations

import asyncio
import logging
from abc import abstractmethod
from time import monotonic
from types import MappingProxyType
from typing import Final

from forebay import errors
from forebay.engines.handover import handover_of
from forebay.errors import Outcome, Refusal
from forebay.gateway.accounting import NOTHING as NOTHING_SPENT
from forebay.gateway.attempts import DISPATCHED, HELD, Attempts
from forebay.gateway.dispatching import send_in
from forebay.gateway.engine_errors import TIMEOUTS, refusal_of, retry_after, said
from forebay.gateway.forwarding import downstream_block
from forebay.gateway.handles import Handle
from forebay.lifecycle import Event, State, walk
from forebay.wire.head import Header
from forebay.wire.inflate import CODINGS, InflateFailed, Inflater
from forebay.wire.memo import AnswerMemo
from forebay.wire.reply import Reply
from forebay.wire.upstream import Failure

log = logging.getLogger("forebay.worker")
_UNREACHED: Final = frozenset({Failure.CONNECT, Failure.CONNECT_TIMEOUT, Failure.TLS})
# Reading a member off an Enum class is slow.
_QUEUE: Final = Event.QUEUE
_FIRST_TOKEN: Final = Event.FIRST_TOKEN
_REFUSE: Final = Event.REFUSE
_SETTLE: Final = Event.SETTLE
_QUEUED: Final = State.QUEUED
_RECEIVED: Final = State.RECEIVED
_SETTLED: Final = State.SETTLED
_OK: Final = Outcome.OK
# The stretch that most requests walk last, looked up once.
_DONE: Final = walk(DISPATCHED, Event.COMPLETE, Event.SETTLE)
_ENDS: Final = MappingProxyType(
    {
        Outcome.OK: Event.COMPLETE,
        Outcome.HIT: Event.HIT,
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
)


class Exchange(Attempts):
    __slots__ = ()

    # --- the way to an engine ----------------------------------------------------------------------------------------

    def go(self) -> None:
        """Start: the caller is known and the limits are held."""
        self.enter()
        self._place(None)

    def enter(self) -> None:
        """From now on it is live; where it gets its answer is not decided."""
        self.state = HELD
        self.gateway.live.add(self)

    def start(self) -> None:
        """An engine is to answer it."""
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
                admitting.begin(self, gateway.fleet.probes_first(candidates))
                return
        name = gateway.placement.choose(self.entry.name, candidates, self.received_at)
        if name is None:
            self.refuse(last or errors.no_engine(self.entry.name, self.entry.why_none))
            return
        if name in gateway.fleet.eased:
            name = gateway.fleet.instead(gateway.placement, self.entry.name, candidates, name)
        self.dispatch(name)

    def queued(self) -> None:
        """Admission lets it wait."""
        if self.state is not _QUEUED:  # where another led for a while
            self._move(_QUEUE)

    @property
    def waits(self) -> bool:
        """For its admission."""
        return self.ask is not None and self.state is _QUEUED

    def withdraw(self) -> None:
        """It waits for no admission any more: another asks for both."""
        if self.gateway.admitting is not None:
            self.gateway.admitting.end(self)

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

    def _again(self, refusal: Refusal) -> None:
        """`refusal` is what to say where it comes to nothing."""
        gateway = self.gateway
        if self.ask is not None and gateway.admitting is not None:
            gateway.admitting.end(self)
        if gateway.booking is not None:
            gateway.booking.settle(self, refusal.outcome, NOTHING_SPENT)
        gateway.telemetry.retries.series(self.engine).add()
        self._move(Event.RETRY)
        queued = gateway.admitting is not None and gateway.admitting.gated  # which spreads them itself
        delay = 0.0 if queued else gateway.spread.delay(gateway.ticker.now)
        if delay:
            asyncio.get_running_loop().call_later(delay, self._place_late, refusal)
        else:
            self._place(refusal)

    def _place_late(self, refusal: Refusal) -> None:
        if self.state is not HELD:  # it was ended meanwhile
            return
        try:
            self._place(refusal)
        except Exception as e:
            self.fell(e)

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
        if self.state is DISPATCHED and self.attempts == attempt:
            self.on_body(body)
        # HELD: it is to be tried again in a moment, and has no part in this answer any more.
        if self.state is not _SETTLED and self.state is not HELD and self.attempts == attempt:
            self.on_end()

    def on_fail(self, failure: Failure, detail: str) -> None:
        try:
            self._failed(failure, detail)
        except Exception as e:
            self.fell(e)

    def _failed(self, failure: Failure, detail: str) -> None:
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

    def writes_to(self, reply: Reply) -> None:
        """From now on, what it has begun included."""
        self.reply = reply

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

    @abstractmethod
    def account(self) -> None:
        """Add to the reply's count of bytes what went past it."""

    def first_content(self, now: float) -> None:
        """The answer's first content is here."""
        self.first_content_at = now
        self._move(_FIRST_TOKEN)
        if self.gateway.booking is not None:
            self.gateway.booking.first_byte(self)
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
            self.cut(errors.engine_cut(refusal.message))
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

    def fell(self, error: Exception) -> None:
        """A fault of ours, where nobody else would end it."""
        shown = self.request_id.decode("latin-1")
        log.error("request %s could not be handled", shown, exc_info=error)
        if self.state is _RECEIVED:
            self.enter()
        end = self.cut if self.reply.started else self.refuse
        end(errors.internal(shown))

    def end_with(self, refusal: Refusal) -> None:
        """From outside: "stop generating", or the drain's deadline."""
        flight = self.part.flight if self.part is not None else None
        if refusal.outcome is Outcome.CANCELLED and flight is not None and flight.put_out(self, refusal):
            return
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
        self.abandoned()

    def abandoned(self) -> None:
        """Nobody hears it any more."""
        if self._read_on(Outcome.CLIENT_GONE, self.status):
            self.account()
            return
        self._drop_call()
        self.account()
        self._settle(Outcome.CLIENT_GONE)

    def left_behind(self, outcome: Outcome) -> None:
        """Its client is gone; the engine goes on for others who share its answer."""
        self._count_cancel(outcome)
        if self.part is not None:
            self.part.left = True

    def first_bytes(self, status: int) -> None:
        """The answer that it shares begins."""
        if self.reply.started and not self.status:
            self.status = status
            if self.stream:
                self.first_content_at = monotonic()

    def shared(self, outcome: Outcome, status: int) -> None:
        """The answer that it shares, or was kept, has ended for it."""
        self.status = status
        self._settle(outcome)

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
        if outcome is _OK and self.state is DISPATCHED:
            self.state = _DONE
        else:
            self.state = walk(self.state, _ENDS.get(outcome, _REFUSE), _SETTLE)
        self._drop_call()
        self._release(outcome, self.refusal.message if self.refusal is not None else "its answer was cut")
        if self.ask is not None and self.gateway.admitting is not None:
            self.gateway.admitting.end(self)
        self.gateway.live.discard(self)
        if self.part is not None and self.part.flight is not None:
            self.part.flight.ends(self, outcome)
        self.gateway.settling.settled(self)
        reply = self.reply
        reply.on_gone = reply.on_pause = reply.on_resume = None

    def _count_cancel(self, outcome: Outcome) -> None:
        if outcome in (Outcome.CLIENT_GONE, Outcome.CANCELLED):
            self.gateway.telemetry.cancels.series(self.state.value).add()

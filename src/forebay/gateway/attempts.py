"""What a request holds from its reception to its settlement, and its attempts at engines: one after another, each
begun, and in the end released."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Final

from forebay.api import openai
from forebay.errors import Outcome, Refusal
from forebay.gateway.accounting import streamed
from forebay.gateway.dialects import Abort
from forebay.gateway.front import Front
from forebay.gateway.handles import Entry, Handle
from forebay.gateway.prompts import NOTHING
from forebay.gateway.verdicts import judge
from forebay.lifecycle import Event, State, advance, walk
from forebay.wire.head import Header
from forebay.wire.inflate import Inflater
from forebay.wire.message import Request
from forebay.wire.reply import Reply
from forebay.wire.upstream import Call

if TYPE_CHECKING:
    from forebay.gateway.app import Gateway
    from forebay.gateway.cached import Part
    from forebay.gateway.legs import Legs
    from forebay.gateway.tokens import Counted
    from forebay.ledger.enginepricing import EnginePrices
    from forebay.ledger.limits import Held
    from forebay.ledger.pricing import Price
    from forebay.policy.asks import Ask

# Reading a member off an Enum class is slow.
_ADMIT: Final = Event.ADMIT
_DISPATCH: Final = Event.DISPATCH
_RECEIVED: Final = State.RECEIVED
_SETTLED: Final = State.SETTLED
_OK: Final = Outcome.OK
# The stretch that most requests walk first, looked up once.
HELD: Final = advance(State.RECEIVED, Event.HOLD)
DISPATCHED: Final = walk(HELD, Event.ADMIT, Event.DISPATCH)


MOST_OF_TOKEN: Final = 256
"""Bytes of words that a token has at most: runs of one sign are the longest, at 128."""


class Attempts(ABC):
    """`Exchange` says what begins and ends them."""

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
        "believed",
        "body",
        "booked_at",
        "call",
        "counted",
        "entry",
        "exact",
        "first_content_at",
        "first_seq",
        "free",
        "front",
        "gateway",
        "held",
        "legs",
        "outcome",
        "part",
        "payload",
        "position",
        "price",
        "prices",
        "prompt_tokens",
        "received_at",
        "refusal",
        "reply",
        "request",
        "request_id",
        "reserved_at",
        "resumed_at",
        "sent_at",
        "seq",
        "series",
        "service_tier",
        "shown",
        "state",
        "status",
        "text_in",
        "usage",
    )

    stream = False
    repeats = True
    hides_usage = False
    """Its client did not ask for the usage that its engine is asked for."""

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
        self.part: Part | None = None  # in what caches do
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
        self.believed = 0
        """Prompt tokens that placement took to be cached on the last engine."""
        self.counted: Counted = NOTHING  # its prompt, as its tokens were estimated
        self.prompt_tokens = -1
        self.text_in = b""
        """A whole answer, for its text where its usage is missing or cannot be."""
        self.held: Held | None = None
        """Of its caller's limits."""
        self.seq = 0
        """The attempt's number in the journal, until it is settled."""
        self.first_seq = 0
        self.position = 0
        self.booked_at = 0.0
        self.price: Price | None = None
        self.prices: EnginePrices | None = None
        """Of its engine."""
        self.reserved_at = 0.0
        """Unix time."""
        self.service_tier = ""
        """The maker's tier that answers, as it says."""
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

    @abstractmethod
    def client_gone(self) -> None: ...

    def begin_attempt(self, handle: Handle) -> None:
        """From now on the engine may have it."""
        self.state = DISPATCHED if self.state is HELD else walk(self.state, _ADMIT, _DISPATCH)
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
        self.service_tier = ""
        if self.gateway.booking is not None:
            self.gateway.booking.reserve(self, handle)

    def prompt(self) -> int:
        """Its prompt's tokens, as they are estimated."""
        if self.prompt_tokens < 0:
            self.prompt_tokens, self.counted = self.gateway.tokens.of(self.entry.target, self.body)
        return self.prompt_tokens

    @property
    def events(self) -> int:
        """Content events the client was sent; 0 where they are not seen."""
        return 0

    @property
    def words(self) -> int:
        """About how many bytes of words those have; 0 where that is not known."""
        return 0

    def passed(self) -> int:
        """About how many tokens an answer had that was passed on unread."""
        return 0

    def says_more(self, tokens: int) -> bool:
        """Whether its answer says more than so many tokens can."""
        return self.words > MOST_OF_TOKEN * tokens + MOST_OF_TOKEN

    def delivered(self) -> int:
        """About how many tokens the client was sent."""
        handle = self.gateway.fleet.handles.get(self.engine)
        if handle is None:
            return streamed(self.events, self.words) or self.passed()
        return streamed(self.events, self.words, handle.per_event, handle.per_byte) or self.passed()

    def answer_text(self) -> str:
        """What was said in an answer, for it to be counted; "" where that was not kept."""
        return openai.text_of_answer(self.text_in)

    def let_go(self) -> None:
        """The reservation is safe, or has been waited for long enough."""
        self.reply.release()

    def has_tried(self, name: str) -> bool:
        return name in self._tried

    def now_at(self, name: str) -> None:
        """The attempt is with another of its engines."""
        self._tried = (*self._tried[:-1], name)

    def _may_retry(self) -> bool:
        """Takes of the budget where it is so."""
        gateway = self.gateway
        retries = gateway.config.retries
        self.entry = gateway.fleet.catalog.get(self.entry.name, self.entry)
        others, _ = self.entry.left(self._tried)
        return bool(others) and self.attempts < retries.attempts and gateway.retry_budget.take(gateway.ticker.now)

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

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.request_id.decode()} {self.state.value} on {self.engine or 'no engine'}>"

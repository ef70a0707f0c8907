"""How an engine's answer reaches the client: whole, or event by event as it comes."""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING, Final

from forebay import errors
from forebay.api import openai, reading, stream_errors
from forebay.errors import Outcome, Refusal
from forebay.gateway.attempts import MOST_OF_TOKEN
from forebay.gateway.exchange import Exchange
from forebay.gateway.forwarding import downstream_block
from forebay.gateway.front import Front
from forebay.gateway.handles import Entry
from forebay.gateway.passing import UsageHunt
from forebay.gateway.said import Said
from forebay.gateway.tap import Tap, suffix_of, words_of
from forebay.wire import sse
from forebay.wire.head import Header, media_type
from forebay.wire.memo import AnswerMemo
from forebay.wire.message import Request
from forebay.wire.reply import Reply

if TYPE_CHECKING:
    from forebay.gateway.app import Gateway

PASS_THROUGH: Final = 1 << 20
"""Unary answers over this size are passed on as they come instead of being read whole first."""
TOKEN_BYTES: Final = 5
"""Of a token in an answer's JSON, about."""
TOLD_BYTES: Final = 64
"""The same, at least, where its log probability stands beside it."""
CHUNK: Final = 6
"""Of the framing of an HTTP chunk, about, which the tap counts too."""
_OK: Final = Outcome.OK
DONE: Final = b"[DONE]"
SHOWN: Final = 4_096
"""Bytes of a request and of an answer that are logged, where bodies are."""


class Unary(Exchange):
    """An answer read whole, so that an engine's failure up to its last byte can still be retried."""

    __slots__ = ("_hunt", "_parts", "_passing", "_size")

    heard_at = 0.0

    def passed(self) -> int:
        if not self.first_content_at or not self.front.route.streams:
            return 0
        return self._size // (TOLD_BYTES if b'"logprobs"' in self.request.body else TOKEN_BYTES)

    def says_more(self, tokens: int) -> bool:
        if tokens and len(self.text_in) < MOST_OF_TOKEN * tokens + TOLD_BYTES * MOST_OF_TOKEN:
            return False
        if not self.front.route.streams:  # embeddings
            return False
        words = len(openai.text_of_answer(self.text_in).encode("utf-8", "surrogatepass"))
        return words > MOST_OF_TOKEN * tokens

    def answer_begins(self, status: int, headers: list[Header], length: int | None) -> None:
        self._parts = bytearray()
        self._size = 0
        self._passing = False
        limit = self.gateway.limits.response_bytes
        if length is not None and length > limit:
            self.broken(_too_large(limit))
        elif self.call is not None:
            self.call.begin()

    def answer_data(self, data: bytes) -> None:
        self._size += len(data)
        if self._passing:
            if self._size > self.gateway.limits.response_bytes:
                self.broken(_too_large(self.gateway.limits.response_bytes))
                return
            self._hunt.feed(data)
            self.reply.write(data)
            return
        self._parts += data
        if self._size > PASS_THROUGH and not self.entry.renames:
            self._pass()
        elif self._size > self.gateway.limits.response_bytes:
            self.broken(_too_large(self.gateway.limits.response_bytes))

    def account(self) -> None:
        if self.first_content_at:
            self.usage = self._hunt.usage()
            self.exact = self.usage is not None

    def _pass(self) -> None:
        held = bytes(self._parts)
        self._parts.clear()
        self._passing = True
        self._hunt = UsageHunt()
        self._hunt.feed(held)
        self.reply.on_pause, self.reply.on_resume = self.pause, self.resume
        self.first_content(monotonic())
        self.reply.start(self.status, self.downstream_head())
        self.reply.write(held)

    def answer_ends(self) -> None:
        if self._inflater is not None and not self._inflater.whole:
            self.broken(errors.engine_failed("its compressed answer is cut short"))
            return
        if self._passing:
            self.account()
            self.reply.end()
            self.complete()
            return
        self._deliver(bytes(self._parts), self.downstream_head())

    def on_whole(self, memo: AnswerMemo, body: bytes) -> None:
        self.status = 200
        block = memo.rendered
        if block is None:
            block = memo.rendered = downstream_block(memo.headers)
        self._deliver(body, block)

    def _deliver(self, body: bytes, block: bytes) -> None:
        """Send a whole answer, if it is one."""
        found = reading.answer(body)
        if found is None:
            self.count_failure("not_json")
            self.broken(errors.engine_failed("its answer is not JSON"))
            return
        if found.usage is not None:
            self.usage, self.exact = found.usage, True
        self.text_in = body
        if found.service_tier is not None:
            self.service_tier = openai.tier_of(found.service_tier)
        if found.model != self.entry.target:
            self.answered_by(found.model)
        if self.gateway.shows_bodies:
            self.shown = body[:SHOWN]
        if self.entry.renames:
            body = self.entry.renamed(body)
        if self.gateway.booking is not None:
            self.gateway.booking.first_byte(self)
        if self.part is not None and self.part.flight is not None and self.part.flight.solo is self:
            self.part.flight.brings(self.status, block, body)
        self.reply.send(self.status, block, body)
        self._settle(_OK)


class Stream(Exchange):
    """Events passed on byte for byte.

    Until the first content the events are held, so that retry and refusal stay possible. From then on most reads go by
    the tap (`tap.py`). The rest is framed, and taken apart where it may hold usage, an end or an error.
    """

    __slots__ = (
        "_bytes",
        "_done",
        "_events",
        "_finished",
        "_framer",
        "_framing",
        "_held",
        "_late_lf",
        "_said",
        "_tap",
        "_taps",
        "hides_usage",
    )

    stream = True

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
        *,
        hide_usage: bool,
    ) -> None:
        super().__init__(gateway, request, reply, front, request_id, body, entry, payload, now)
        self._events = 0
        self._bytes = 0  # of those events, but for what the tap counts
        self._framing = 0  # bytes of one beside its words; 0: not known yet
        self._said: Said | None = None  # where the model's tokenizer is known
        self._done = False
        self._finished = False
        self._late_lf = False
        self.hides_usage = hide_usage
        self._held: list[bytes] = []
        self._tap: Tap | None = None
        self._taps = False
        reply.on_pause = self.pause
        reply.on_resume = self.resume

    @property
    def events(self) -> int:
        """Content events the client was sent."""
        return self._events + (self._tap.events if self._tap is not None else 0)

    @property
    def words(self) -> int:
        tap = self._tap
        if tap is None or not self._framing or b'"logprobs"' in self.request.body:
            return 0
        return max(0, self._bytes + tap.sent - self._events * self._framing - tap.events * (self._framing + CHUNK))

    def answer_text(self) -> str:
        said, self._said = self._said, None
        return said.text() if said is not None else ""

    @property
    def heard_at(self) -> float:
        return self._tap.heard_at if self._tap is not None else 0.0

    def let_go(self) -> None:
        super().let_go()
        if self._taps:
            self._tap_to_client()

    def _tap_to_client(self) -> None:
        """Have the tap write by itself; not while the reply is held."""
        write, tap = self.reply.raw_writer(), self._tap
        if write is not None and tap is not None and not self._done:
            tap.write_to(self._said.heard(write) if self._said is not None else write, self.reply.log)

    def writes_to(self, reply: Reply) -> None:
        self.account()
        self.reply = reply
        if self._tap is not None:
            self._tap.forget()
            if self._taps:
                self._tap_to_client()

    def account(self) -> None:
        if self._tap is not None:
            self._bytes += self._tap.sent
            self.reply.sent += self._tap.sent
            self._tap.sent = 0

    def answer_begins(self, status: int, headers: list[Header], length: int | None) -> None:
        self._framer = sse.Framer(self.gateway.limits.event_bytes)
        self._held.clear()
        self.usage, self.exact = None, False
        kind = next((media_type(v) for n, v in headers if n == b"content-type"), b"")
        if kind != b"text/event-stream":
            shown = errors.shown(kind.decode("latin-1"))
            self.broken(errors.engine_failed(f"it answered a stream with the Content-Type '{shown}'"))

    def answer_data(self, data: bytes) -> None:
        if self._done and data.strip():  # it goes on after [DONE]: it may never stop
            self._drop_call()
            self._complete()
            return
        try:
            block = self._framer.feed(data)
        except sse.EventTooLarge as e:
            self.broken(errors.engine_failed(str(e)))
            return
        tap = self._tap
        if not block:
            pass
        elif tap is None:
            self._before_content(block)
        elif self._done or self._late_lf or b'"usage"' in block or DONE in block or b'"error"' in block:
            self._look_into(block, tap)
        else:
            self._pass(block, tap)
        if self._framer.carries and self._tap is not None:
            self._tap.forget_for_now()  # the next read goes on within an event

    def _pass(self, block: bytes, tap: Tap) -> None:
        """Pass on events that hold nothing to act on."""
        tap.arrived()
        self.exact = False
        self._events += sse.count(block)
        self._bytes += len(block)
        if self._said is not None:
            self._said.add(block)
        self._finished = b'"finish_reason":"' in block or b'"finish_reason": "' in block
        if self.gateway.shows_bodies:
            self.shown = (self.shown + block)[:SHOWN]
        if not tap.learned and not self._finished and block.find(b"\n") == len(block) - 2:
            self._learn(block, tap)
        self.reply.write(self.entry.renamed(block) if self.entry.renames else block)

    def _learn(self, event: bytes, tap: Tap) -> None:
        suffix = suffix_of(event) if not self._framer.carries else None
        if suffix is not None:
            tap.learn(self.entry.shared(suffix))

    def _before_content(self, block: bytes) -> None:
        """Hold what has no content yet; begin with the first that has."""
        events = sse.split(block)
        for i, event in enumerate(events):
            data = sse.data_of(event)
            if data is not None:
                found = reading.chunk(data)
                if found is not None and found.is_error:
                    self._error_before_content(data, found)
                    return
                if found is not None and found.service_tier is not None:
                    self.service_tier = openai.tier_of(found.service_tier)
                if found is None or found.has_content:
                    if found is not None and found.model != self.entry.target:
                        self.answered_by(found.model)
                    self._begin(b"".join(events[i:]))
                    return
                if found.usage is not None and self._uses(found):
                    continue
            self._held.append(event)
        if sum(map(len, self._held)) > self.gateway.limits.event_bytes:
            self._begin(b"")

    def _begin(self, block: bytes) -> None:
        now = monotonic()
        tap = self._tap = Tap(self.series.itl, now)
        exact = self.gateway.tokens.exact
        if exact is not None and exact.knows(self.entry.target):
            self._said = Said()
        self.series.ttft.observe(now - self.received_at)
        self.first_content(now)
        held = b"".join(self._held)
        self._held.clear()
        self.reply.start(self.status, self.downstream_head())
        plain = self._inflater is None and not self.entry.renames and not self.gateway.shows_bodies
        taps = plain and self.reply.chunked
        if taps:
            self._tap_to_client()
        if self.call is not None:
            self.call.begin(tap if taps else None)
        self._taps = taps
        if held:
            self.reply.write(self.entry.renamed(held))
        if block:
            self._look_into(block, tap, first=True)

    def _look_into(self, block: bytes, tap: Tap, *, first: bool = False) -> None:
        """Take a block apart: the hidden usage event, the end, an error event."""
        keep: list[bytes] = []
        if self._late_lf and block.startswith(b"\n"):
            block = block[1:]  # the second half of a hidden event's last CRLF
        self._late_lf = False
        for event in sse.split(block):
            data = sse.data_of(event)
            if self._done and data is not None:
                break  # nothing follows [DONE]
            if data is None:
                keep.append(event)
                continue
            if data == DONE:
                self._done = True
                tap.forget()
                keep.append(event)
                continue
            found = reading.chunk(data)
            if found is not None:
                if found.is_error:
                    keep.append(event)
                    self._error_within(keep)
                    return
                if found.service_tier is not None:
                    self.service_tier = openai.tier_of(found.service_tier)
                if found.usage is not None:
                    if self._uses(found):
                        self._late_lf = event.endswith(b"\r")
                        continue
                else:
                    self.exact = False
                if found.is_last:
                    self._finished = True
                elif found.usage is None:
                    self._learn(event, tap)
            self._events += 1
            self._bytes += len(event)
            if not self._framing and (words := words_of(event)):
                self._framing = len(event) - len(words)
            if self._said is not None:
                self._said.add(event)
            keep.append(event)
        if keep:
            if not first:
                tap.arrived()
            passed = self.entry.renamed(b"".join(keep))
            if self.gateway.shows_bodies:
                self.shown = (self.shown + passed)[:SHOWN]
            self.reply.write(passed)

    def _uses(self, found: openai.Chunk) -> bool:
        """An event with usage: the engine's last word, where no choice is in it and no content comes after it. True:
        the client did not ask for it."""
        self.usage = found.usage
        self.exact = not found.choices
        if self._tap is not None:
            self._tap.forget_for_now()  # what comes next passes by here
        return self.hides_usage and not found.choices

    def _error_before_content(self, data: bytes, found: openai.Chunk) -> None:
        """An error event in a 200 stream of which the client has seen nothing: it becomes an error status."""
        self._drop_call()
        self._headers = [(b"content-type", b"application/json")]
        self._engine_refused(
            stream_errors.status_of({"error": found.error, "code": found.code, "error_type": found.error_type}), data
        )

    def _error_within(self, keep: list[bytes]) -> None:
        """The client gets the engine's own error event, and no [DONE] after it."""
        self._drop_call()
        self.count_failure("error_event")
        self.reply.write(self.entry.renamed(b"".join(keep)))
        self.account()
        self.reply.abort()
        self._settle(Outcome.ENGINE_CUT)

    def broken(self, refusal: Refusal) -> None:
        """After [DONE] the answer is whole, however its engine ends it."""
        if self._done and not self.ended:
            self._drop_call()
            self._complete()
        else:
            super().broken(refusal)

    def client_gone(self) -> None:
        """After [DONE] it has the whole answer: SDKs close there, and need not wait for the body's last chunk."""
        if self._done and not self.ended:
            self._drop_call()
            self.account()
            self.exact = self.usage is not None
            self.complete()
        else:
            super().client_gone()

    def answer_ends(self) -> None:
        if self._tap is None:
            if self._held and self._done_without_content():
                return
            self.count_failure("empty_stream")
            self.broken(errors.engine_failed("its stream ended without an answer"))
            return
        if self._framer.tail.strip() or not (self._done or self._finished):
            self.count_failure("cut")
            self.broken(errors.engine_failed("its stream ended too early"))
            return
        self._complete()

    def _complete(self) -> None:
        self.account()
        self.reply.end()
        self.exact = self.usage is not None
        self.complete()

    def _done_without_content(self) -> bool:
        """A stream that is whole and says nothing (max_tokens spent on nothing, say) is passed as it is."""
        if not any(sse.data_of(e) == DONE for e in self._held):
            return False
        self._begin(b"")
        self._complete()
        return True


def _too_large(limit: int) -> Refusal:
    return errors.engine_failed(f"its answer is over the limit of {limit:,} bytes (limits.response_bytes)")

"""The end of a request: what it came to is counted, booked and logged here, once, and nowhere else."""

from __future__ import annotations

from bisect import bisect_left
from time import monotonic, time
from typing import TYPE_CHECKING, Final

import msgspec

from forebay import errors
from forebay.api.openai import Usage
from forebay.errors import Outcome, Refusal
from forebay.gateway.accounting import Count, count_of
from forebay.gateway.front import Front
from forebay.gateway.logs import RequestLog, Stamp
from forebay.gateway.prompts import NOTHING as UNCOUNTED
from forebay.gateway.relay import SHOWN
from forebay.gateway.telemetry import Telemetry
from forebay.wire.message import Request

if TYPE_CHECKING:
    from forebay.gateway.app import Gateway
    from forebay.gateway.exchange import Exchange

_NOBODY: Final = b'"key":"-","org":"-"'
_OK: Final = Outcome.OK
_OK_WORD: Final = Outcome.OK.value.encode()
_TELLING: Final = 8
"""Events of a stream from which on its usage says how many tokens one has."""
_SAYING: Final = 64
"""Likewise bytes of its words, how many one of those has."""
_LEARNS: Final = 0.1


class Settling:
    def __init__(self, gateway: Gateway, telemetry: Telemetry, log: RequestLog) -> None:
        self.log = log
        self._gateway = gateway
        self._telemetry = telemetry
        self._stamp = Stamp()

    def settled(self, x: Exchange) -> None:
        """One exchange has ended. Where its engine says nothing of its answer's tokens, or what cannot be, and what it
        said was kept, these are counted first: by the model's tokenizer, off the loop, or else estimated."""
        count = self._count(x, 0)
        text = x.answer_text() if not count.exact else ""
        if not text:
            x.text_in = b""
            self._finish(x, count)
            return
        self._count_text(x, text)

    def _count_text(self, x: Exchange, text: str) -> None:
        model = x.entry.target

        def counted(found: int) -> None:
            count = self._count(x, found or self._gateway.tokens.text(model, text))
            x.text_in = b""
            self._finish(x, count)

        exact = self._gateway.tokens.exact
        if exact is None or not exact.count(model, text, counted):
            counted(0)

    def _finish(self, x: Exchange, count: Count) -> None:
        """Book it, log it."""
        gateway = self._gateway
        seconds = monotonic() - x.received_at
        series, outcome, usage = x.series, x.outcome, x.usage
        series.ended(outcome)
        total = series.total
        total.counts[bisect_left(total.edges, seconds)] += 1
        total.total += seconds
        if x.heard_at:
            series.itl.total += x.heard_at - x.first_content_at
        if gateway.watching is not None and count.exact:
            gateway.watching.settled(x, count.tokens)
        prompt, completion = count.prompt, count.completion
        spent = b""
        if count.exact:
            series.exact.value += 1
            series.prompt.value += prompt
            series.completion.value += completion
            settled = b"exact"
        else:
            settled = b"estimated"
            series.estimated(prompt, completion)
        if prompt or completion or usage is not None:
            spent = b',"tokens_in":%d,"tokens_out":%d' % (prompt, completion)
            if usage is not None and _says_cached(usage) and (cached := usage.cached_tokens) is not None:
                spent += b',"tokens_cached":%d' % cached
        cost: int | None = None
        if gateway.booking is not None:
            booked = gateway.booking.settle(x, outcome, count)
            cost = booked.cost
            if cost is not None:
                spent += b',"cost_nano":%d' % cost
        if x.held is not None and gateway.holding is not None:
            gateway.holding.end(x, prompt + completion, cost)
        if x.part is not None and gateway.caching is not None:
            gateway.caching.settled(x, count, cost)
            spent += x.part.logged()
        if not self.log.enabled:
            return
        if x.first_content_at:
            spent += b',"ttft_ms":%b' % _milliseconds(x.first_content_at - x.received_at)
        if gateway.shows_bodies:
            shown = (x.request.body[:SHOWN], x.shown)
            asked, answered = (msgspec.json.encode(text.decode("utf-8", "replace")) for text in shown)
            spent += b',"body":%b,"answer":%b' % (asked, answered)
        if x.believed:
            spent += b',"believed_cached":%d' % x.believed
        if x.legs is not None and x.legs.prefill is not None:
            spent += b',"prefill":"%b"' % x.legs.prefill.name.encode()
        if x.refusal is not None:
            spent += b',"code":%b,"why":%b' % (
                msgspec.json.encode(x.refusal.code),
                msgspec.json.encode(errors.shown(x.refusal.message, 300)),
            )
        caller = x.front.caller
        self.log.add(
            b'{"ts":"%b","level":"info","msg":"request","id":"%b",%b,%b,"status":%d,"outcome":"%b","engine":"%b",'
            b'"stream":%b,"attempts":%d,"settled":"%b","ms":%b,"bytes_in":%d,"bytes_out":%d,"peer":"%b"%b}'
            % (
                self._stamp.at(time()),
                x.request_id,
                series.logged,
                caller.logged if caller is not None else _NOBODY,
                x.status,
                _OK_WORD if outcome is _OK else outcome.encode(),
                x.engine.encode(),
                b"true" if x.stream else b"false",
                x.attempts,
                settled,
                _milliseconds(seconds),
                len(x.request.body),
                x.reply.sent,
                x.request.peer.address.encode(),
                spent,
            )
        )

    def _count(self, x: Exchange, said: int) -> Count:
        """What its last attempt came to; what that says of estimates is learned."""
        handle = self._gateway.fleet.handles.get(x.engine)
        count = count_of(x, x.outcome, said)
        if count.exact:
            events = x.events
            if events > _TELLING and handle is not None and x.outcome is _OK:
                handle.per_event += _LEARNS * (count.completion / events - handle.per_event)
                if (words := x.words) > _SAYING and not count.tokens.reasoning:  # thoughts may not be in the stream
                    handle.per_byte += _LEARNS * (count.completion / words - handle.per_byte)
            if x.counted is not UNCOUNTED and count.prompt > 0:
                self._gateway.tokens.learn(x.entry.target, x.counted, count.prompt)
        return count

    def plain(
        self,
        request: Request,
        front: Front | None,
        request_id: bytes,
        status: int,
        refusal: Refusal | None,
        began: float,
    ) -> None:
        """A request that never became an exchange."""
        route = "-" if front is None else front.route.name if front.goes_on else "other"
        class_ = front.class_.value if front is not None else "-"
        outcome = refusal.outcome if refusal is not None else _OK
        self._telemetry.requests.series(route, "-", class_, outcome.value).add()
        if not self.log.enabled:
            return
        caller = front.caller if front is not None else None
        who = caller.logged if caller is not None else _NOBODY
        if refusal is not None and refusal.key_id:
            who = b'"key":%b,"org":"-"' % msgspec.json.encode(refusal.key_id)
        code = b',"code":%b' % msgspec.json.encode(refusal.code) if refusal is not None else b""
        self.log.add(
            b'{"ts":"%b","level":"info","msg":"request","id":"%b","method":"%b","path":%b,%b,"status":%d,"outcome":"%b",'
            b'"ms":%.1f,"peer":"%b"%b}'
            % (
                self._stamp.at(time()),
                request_id,
                request.method,
                msgspec.json.encode(errors.shown(request.path.decode("latin-1"), 200)),
                who,
                status,
                outcome.encode(),
                (monotonic() - began) * 1000,
                request.peer.address.encode(),
                code,
            )
        )

    def __repr__(self) -> str:
        return f"<Settling into {self.log!r}>"


def _says_cached(usage: Usage) -> bool:
    """Whether it may say how many tokens were cached: most say nothing of it."""
    return (
        usage.prompt_tokens_details is not None
        or usage.prompt_cache_hit_tokens is not None
        or usage.cached_beside is not None
    )


def _milliseconds(seconds: float) -> bytes:
    """With one digit behind the point."""
    tenths = int(seconds * 10_000 + 0.5)
    return b"%d.%d" % (tenths // 10, tenths % 10)

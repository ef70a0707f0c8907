"""Caches in front of the engines: what a request is looked up in before an engine is asked, and what is kept after.

A request whose limits are held comes here, and then: its key (`cache.key`), the answers that this worker has in memory,
a flight that is under way for the same key, the helper process within its budget, an engine. What an engine answered
for a flight is kept when its books are closed, if it is whole and fit (`cache.answers`).

Mutable state: the answers in memory, the flights by exact key and bound on max_tokens, and the keys of what is asked
for nobody.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from time import monotonic, time
from typing import TYPE_CHECKING, Final

import msgspec

from forebay import errors
from forebay.api.openai import ChatBody, CompletionBody
from forebay.cache import answers, key
from forebay.cache.answers import Answer
from forebay.cache.key import KNOWLEDGE, Asked, Bypassed, Facts
from forebay.cache.memory import Answers
from forebay.cache.messages import Drop, Found, Kind, Purge, cache_socket
from forebay.config.models import Class, Config
from forebay.errors import Outcome
from forebay.gateway import forwarding
from forebay.gateway.accounting import Count
from forebay.gateway.cache_client import CacheClient
from forebay.gateway.cache_telemetry import CacheTelemetry
from forebay.gateway.cached import Part, Replay, in_pieces
from forebay.gateway.feedback import Feedbacks
from forebay.gateway.flight_seats import End, Shared, usage_fields
from forebay.gateway.flights import Flight, Host
from forebay.gateway.handles import Entry
from forebay.gateway.shelf import Fresh, Shelf, entry_of
from forebay.ledger.tokens import NO_TOKENS
from forebay.state.messages import Forget
from forebay.wire.tasks import Tasks

if TYPE_CHECKING:
    from forebay.gateway.app import Gateway
    from forebay.gateway.exchange import Exchange
    from forebay.gateway.front import Front

log = logging.getLogger("forebay.worker")

_JSON: Final = b"content-type: application/json\r\n"
_EVENTS: Final = b"content-type: text/event-stream; charset=utf-8\r\ncache-control: no-cache\r\n"
_AT_ONCE: Final = 256
"""Followers that are settled before the event loop goes on."""
_MOST_BEHIND: Final = 256
"""Engines asked for nobody at once."""


class Caching(Host):
    def __init__(self, gateway: Gateway, config: Config, loop: asyncio.AbstractEventLoop) -> None:
        self.telemetry = CacheTelemetry()
        self.flights: dict[bytes, Flight] = {}
        self.behind: set[bytes] = set()
        self.feedbacks = Feedbacks(self)
        self._gateway = gateway
        self._loop = loop
        self._socket = cache_socket(config.state_dir)
        self._closing = Tasks()
        self.rules = config.cache
        self.memory = Answers(config.cache.memory_bytes)
        self.shelf = Shelf(loop, self.rules, self.memory, self.telemetry, self.feedbacks)
        self.configure(config)

    @property
    def on(self) -> bool:
        return self.rules.enabled

    @property
    def client(self) -> CacheClient | None:
        return self.shelf.client

    def configure(self, config: Config) -> None:
        """A reload: what is under way goes on as it began; what is known stays, as far as its keys still fit."""
        self.shelf.flush()
        rules = self.rules = self.shelf.rules = config.cache
        session = config.placement.session_header
        self._ignored = (*rules.ignored_headers, session.lower()) if session else rules.ignored_headers
        self.memory.configure(rules.memory_bytes, time())
        if not rules.enabled:
            self.memory.clear()
        self.shelf.sweep()
        client = self.client
        if rules.helped and client is None:
            self.shelf.client = CacheClient(self._socket, self._loop, self.shelf.dropped, self.shelf.forget)
        elif not rules.helped and client is not None:
            self.shelf.client = None
            self._closing.spawn(client.close())

    async def close(self) -> None:
        self.shelf.close()
        await self._closing.drain()
        if self.client is not None:
            await self.client.close()

    # --- a request ---------------------------------------------------------------------------------------------------

    def begin(self, x: Exchange, payload: bytes) -> None:
        """Its limits are held. `payload`: as it was asked, its model's defaults in it, without what limits lowered."""
        x.enter()
        rules = self.rules
        wish = x.front.wish
        part = x.part = Part(Kind.MISS, wish=wish)
        asked = self._read(x, payload)
        if isinstance(asked, Bypassed):
            self._bypass(x, part, asked.why)
            return
        part.asked = asked
        part.most = (x.held.max_tokens if x.held is not None else None) or 0
        exact = asked.exact
        if wish.looks:
            now = time()
            if exact in self.shelf.waiting:
                self.shelf.settle(exact)
            answer = self.memory.get(exact, now)
            if answer is not None and now - answer.created <= wish.most_age and answer.open_to(_writer(part)):
                answer = self.memory.in_form(exact, answer, now, streamed=x.stream)
                if answer is not None:
                    self._known(x, answer, now)
                    return
            flight = self._joined(part, exact)
            if flight is not None and not wish.only:  # it may come to lead it
                if flight.takes(rules.followers):
                    self._join(x, part, flight)
                    return
                if flight.past:
                    self.over(flight)
        self._fly(x, part, asked)

    def _known(self, x: Exchange, answer: Answer, now: float) -> None:
        """An answer to the very request."""
        if answer.fresh(now):
            self._hit(x, answer, Kind.EXACT, now)
            return
        part = x.part
        assert part is not None
        assert part.asked is not None
        if part.shares not in self.flights and not part.wish.only:
            self._behind(x, 0)
        self._hit(x, answer, Kind.STALE, now)

    def _read(self, x: Exchange, payload: bytes) -> Asked | Bypassed:
        front, body, entry = x.front, x.body, x.entry
        if not front.wish.looks and not front.wish.stores:
            return Bypassed(front.wish.why)
        if not isinstance(body, ChatBody | CompletionBody):
            return Bypassed("route")
        if x.stream and body.stream_options is not None and body.stream_options.continuous_usage_stats:
            return Bypassed("usage")
        part = x.part
        assert part is not None
        part.facts = facts = self._facts(front, entry, x)
        return key.read(body, payload, facts, self.rules)

    def _facts(self, front: Front, entry: Entry, x: Exchange) -> Facts:
        known = front.facts
        if known is not None and known[0] is entry and known[1] is self.rules:
            return known[2]
        caller, fields = front.caller, x.request.fields
        assert caller is not None
        facts = Facts(
            self.rules,
            caller.account,
            entry.name,
            entry.target,
            fields.get(b"accept-language", b"").decode("latin-1"),
            fields.get(KNOWLEDGE, b"").decode("latin-1"),
            key.counted(forwarding.passed(x.request), self._ignored),
        )
        front.facts = (entry, self.rules, facts)
        return facts

    def _bypass(self, x: Exchange, part: Part, why: str) -> None:
        part.kind, part.why = Kind.BYPASS, why
        self.telemetry.bypassed(x.entry.name, why)
        part.say(x.reply, why=x.front.explains_cache)
        if part.wish.only:
            x.refuse(errors.not_cached(why))
        else:
            x.start()

    def _joined(self, part: Part, exact: bytes) -> Flight | None:
        """The flight that it may share: of those with its bound on max_tokens, since it may come to lead it; or one
        without, where another leads for good."""
        flight = self.flights.get(part.shares)
        if flight is None and part.most:
            flight = self.flights.get(exact)
            return flight if flight is not None and flight.status else None
        return flight

    def _join(self, x: Exchange, part: Part, flight: Flight) -> None:
        part.flight = flight
        self.follows(flight, x)
        self.telemetry.followers.value += 1
        flight.sit(x)

    def _fly(self, x: Exchange, part: Part, asked: Asked) -> None:
        """Ask the helper process, where there is something to ask, and an engine."""
        rules, wish, exact = self.rules, part.wish, asked.exact
        flight = part.flight = Flight(self, part.shares, exact, rules.answer_bytes)
        if rules.single_flight and not wish.only:
            self.flights.setdefault(flight.key, flight)
        flight.sit(x)
        client = self.shelf.client
        why = ""
        if client is not None and wish.looks and (asked.scope or rules.disk_bytes or rules.redis):
            why = self._helped(client, flight, part, asked)
            if not why:
                return
        self._missed(flight, part, why)

    def _helped(self, client: CacheClient, flight: Flight, part: Part, asked: Asked) -> str:
        """Ask the helper process. Returns why it cannot be, or ""."""
        facts = part.facts
        assert facts is not None
        return client.find(
            asked.exact,
            asked.scope,
            asked.question if asked.scope else "",
            facts.partition,
            self.rules.semantic.budget,
            lambda answer, why: self._found(flight, part, answer, why),
            facts.writer,
        )

    def _found(self, flight: Flight, part: Part, found: Found | None, why: str) -> None:
        """The helper process has answered, or has not in time. Nobody else would answer those who wait for it."""
        waiting = tuple(flight.sharing)
        try:
            self._heard(flight, part, found, why)
        except Exception as e:
            log.error("what the cache's helper process said could not be handled", exc_info=e)
            for x in waiting:
                end = x.cut if x.reply.started else x.refuse
                end(errors.internal(x.request_id.decode("latin-1")))

    def _heard(self, flight: Flight, part: Part, found: Found | None, why: str) -> None:
        sharing = flight.sharing
        if not sharing:  # all have left meanwhile
            self.over(flight)
            if found is not None and found.ticket and self.client is not None:
                self.client.unanswered(found.ticket)
            return
        if found is None:
            self._missed(flight, part, why)
            return
        self.telemetry.helper_seconds += found.seconds
        answer, now = answers.decode(found.answer) if found.answer else None, time()
        age = now - answer.created if answer is not None else 0.0
        other = None
        if answer is not None and any(x.stream != answer.streamed for x in sharing):
            other = answers.in_form(answer, streamed=not answer.streamed)
        without = [
            x
            for x in sharing
            if (x.part is not None and age > x.part.wish.most_age)
            or (other is None and answer is not None and x.stream != answer.streamed)
        ]
        if answer is None or found.kind is Kind.MISS or len(without) == len(sharing):
            flight.ticket = found.ticket
            part.similarity = found.similarity
            self._missed(flight, part, found.why)
            return
        exchanges = flight.dissolve()
        if without:
            exchanges = [x for x in exchanges if x not in without]
            self._anew(without)
        if found.kind is not Kind.SEMANTIC:
            self.memory.put(flight.exact, answer, now)
        if found.ticket or found.kind is Kind.STALE:
            self._behind(exchanges[0], found.ticket)
        for x in exchanges:
            if x.part is not None and found.kind is Kind.SEMANTIC:
                x.part.similarity = found.similarity
            self._hit(x, answer if other is None or x.stream == answer.streamed else other, found.kind, now)

    def _missed(self, flight: Flight, part: Part, why: str) -> None:
        part.why = why
        if not part.wish.only:
            flight.depart()
            first = next(iter(flight.seats), None)
            if first is not None and first is not flight.leader:  # one of a better class leads, who came behind it
                self.follows(flight, first)
            return
        for x in flight.dissolve():
            self.telemetry.asked(x.entry.name, Kind.MISS)
            part.say(x.reply, why=x.front.explains_cache)
            x.refuse(errors.not_cached(why or "no request like it was answered before"))

    # --- an answer that is known -------------------------------------------------------------------------------------

    def _hit(self, x: Exchange, answer: Answer, kind: Kind, now: float) -> None:
        part = x.part
        assert part is not None
        part.kind, part.why, part.entry, part.answer, part.flight = kind, "", answer.id, answer, None
        part.say(x.reply, why=False, age=max(0.0, now - answer.created))
        self.feedbacks.gave(answer.id, answer.partition, _compared(part))
        self.telemetry.hit(x.entry.name, kind, monotonic() - x.received_at)
        answer_id = f"chatcmpl-{self._gateway.new_id()[4:].decode()}"
        if not x.stream:
            x.reply.send(200, _JSON, answers.as_json(answer, answer_id))
            x.shared(Outcome.HIT, 200)
            return
        pace = self.rules.pace
        usage = not x.hides_usage
        if pace:
            events = answers.as_events(answer, answer_id, usage)
        else:
            events = in_pieces(answers.as_stream(answer, answer_id, usage))
        x.reply.start(200, _EVENTS)
        x.first_bytes(200)
        Replay(x, events, pace).go_on()

    def _behind(self, x: Exchange, ticket: int) -> None:
        """Ask an engine all the same, for nobody, where none is asked the same yet: for a fresh answer, or for one that
        is to be compared."""
        part = x.part
        assert part is not None
        if not part.wish.only and part.shares not in self.behind and len(self.behind) < _MOST_BEHIND:
            self._fetch(x, part, ticket)
        elif ticket and self.client is not None:
            self.client.unanswered(ticket)

    def _fetch(self, x: Exchange, old: Part, ticket: int) -> None:
        """What was held for it is what `x` held. One who asks the same meanwhile shares a fresh answer; an answer that
        is compared is not waited for, since there is one to give."""
        assert old.asked is not None
        self.behind.add(old.shares)
        flight = Flight(self, old.shares, old.asked.exact, self.rules.answer_bytes, silent=True)
        flight.ticket = ticket
        shared = Shared(flight, request=x.request)
        front = x.front if x.front.class_ is Class.LOW else x.front.lowered(Class.LOW)
        request_id = x.request_id[:118] + b"-refresh"
        y = self._gateway.made(x.request, shared, front, request_id, x.body, x.entry, x.payload, monotonic())
        y.held, x.held = x.held, None
        y.prompt_tokens, y.counted = x.prompt_tokens, x.counted
        part = y.part = Part(Kind.MISS, "refresh" if not ticket else "sampled")
        part.asked, part.facts, part.most, part.background = old.asked, old.facts, old.most, True
        part.flight = flight
        if not ticket:
            self.flights.setdefault(flight.key, flight)
        self.telemetry.background.series(part.why).value += 1
        y.enter()
        flight.lead(y, shared)

    # --- flights.Host ------------------------------------------------------------------------------------------------

    def leads(self, flight: Flight, x: Exchange) -> None:
        part = x.part
        assert part is not None
        part.kind = Kind.MISS
        if part.wish.stores:
            part.entry = entry_of(flight.exact)
            if (
                x is not flight.solo or x.stream
            ):  # whose client hears of it with the answer, which is said to be given then
                self._gave(part)
        if part.background:
            return
        self.telemetry.missed(x.entry.name)
        part.say(x.reply, why=x.front.explains_cache)

    def follows(self, flight: Flight, x: Exchange) -> None:
        part = x.part
        assert part is not None
        part.kind, part.why = Kind.FLIGHT, ""
        part.entry = entry_of(flight.exact)
        self._gave(part)
        part.say(x.reply, why=False)

    def _gave(self, part: Part) -> None:
        if part.asked is not None and part.facts is not None:
            self.feedbacks.gave(part.entry, part.facts.partition, _compared(part))

    def heard(self, flight: Flight, x: Exchange) -> None:
        if flight.settled:
            self._shared(flight, x)
        else:
            flight.heard.append(x)

    def too_large(self, flight: Flight, waiting: list[Exchange]) -> None:
        self.over(flight)
        self._anew(waiting)

    def over(self, flight: Flight) -> None:
        if self.flights.get(flight.key) is flight:
            del self.flights[flight.key]

    def soon(self, what: Callable[[], None]) -> None:
        self._loop.call_soon(what)

    def _anew(self, waiting: list[Exchange]) -> None:
        """What they waited for cannot be given to them: those who may share one get one of their own."""
        by_key: dict[bytes, Flight] = {}
        for x in waiting:
            part = x.part
            assert part is not None
            assert part.asked is not None
            flight = by_key.get(part.shares)
            if flight is None:
                flight = by_key[part.shares] = Flight(self, part.shares, part.asked.exact, self.rules.answer_bytes)
                if self.rules.single_flight:
                    self.flights.setdefault(flight.key, flight)
                self.soon(flight.depart)
            part.flight = flight
            flight.sit(x)

    # --- when books are closed ---------------------------------------------------------------------------------------

    def settled(self, x: Exchange, count: Count, cost: int | None) -> None:
        """Called once for each request that was looked up."""
        part = x.part
        if part is None:
            return
        if part.background:
            self.behind.discard(part.shares)
            self.telemetry.spent(part.why, cost)
        if x.outcome is Outcome.HIT:
            answer = part.answer
            tokens = answer.tokens if answer is not None else NO_TOKENS
            avoided = answer.avoided if answer is not None else 0
            self.telemetry.saved(x.entry.name, tokens, avoided, answer.seconds if answer is not None else 0.0)
            if self._gateway.booking is not None:
                self._gateway.booking.hit(x, tokens, avoided)
            return
        flight = part.flight
        if flight is None or not flight.led_by(x):
            return
        part.flight = None
        if flight.end is End.NOT:  # another leads
            return
        ticket, flight.ticket = flight.ticket, 0
        if flight.end is End.CUT:
            if ticket and self.client is not None:
                self.client.unanswered(ticket)
            flight.close()
            return
        fresh = self._keep(x, part, flight, count, cost, ticket) if flight.status == 200 else None
        self.over(flight)
        if not flight.seats and not flight.heard:
            if fresh is not None:
                self.shelf.put(fresh)
            flight.close()
            return
        kept = self.shelf.keep(fresh) if fresh is not None else None
        waiting = [seat.x for seat in flight.seats.values() if seat.x.stream != flight.streams]
        given = answers.in_form(kept, streamed=not flight.streams) if kept is not None and waiting else None
        if given is not None:
            now = time()
            for other in waiting:
                seat = flight.seats.pop(other)
                seat.let_go()
                self._hit(other, given, Kind.FLIGHT, now)
        elif waiting:
            for other in waiting:
                flight.seats.pop(other).let_go()
            self._anew(waiting)
        flight.answer = kept
        flight.close()
        if flight.heard:
            self._all_heard(flight)

    def _all_heard(self, flight: Flight) -> None:
        now, flight.heard = flight.heard[:_AT_ONCE], flight.heard[_AT_ONCE:]
        for x in now:
            self._shared(flight, x)
        if flight.heard:
            self.soon(lambda: self._all_heard(flight))

    def _shared(self, flight: Flight, x: Exchange) -> None:
        if x.ended:
            return
        if x.part is not None:
            x.part.answer, x.part.flight = flight.answer, None
        self.telemetry.hit(x.entry.name, Kind.FLIGHT, monotonic() - x.received_at)
        x.shared(Outcome.HIT, 200)

    def _keep(self, x: Exchange, part: Part, flight: Flight, count: Count, cost: int | None, ticket: int) -> Fresh:
        asked, facts, chunks, usage = part.asked, part.facts, None, b""
        assert asked is not None
        assert facts is not None
        body, size = flight.body, flight.bytes
        if body is not None:
            size = len(body)
        elif flight.keeps and flight.streams:
            chunks = flight.chunks
            if x.usage is not None:
                usage = msgspec.json.encode(usage_fields(x.usage))
        return Fresh(
            asked,
            facts,
            body,
            chunks,
            size,
            usage,
            x.front.kept_as,
            count.tokens,
            cost or 0,
            monotonic() - (x.booked_at or x.received_at),
            time(),
            part.wish.stores,
            part.most > 0,
            ticket,
        )

    # --- what must go ------------------------------------------------------------------------------------------------

    def forget(self, message: Forget) -> None:
        """The admin process says so, where there is no helper process."""
        entries = (message.entry,) if message.entry else ()
        self.shelf.dropped(Drop(Purge(0, **msgspec.structs.asdict(message)), entries))

    def __repr__(self) -> str:
        return f"<Caching {self.memory!r}, {len(self.flights)} flights, {self.client!r}>"


def _writer(part: Part) -> bytes:
    return part.facts.writer if part.facts is not None else b""


def _compared(part: Part) -> str:
    """The question, where its meaning is compared: no other teaches anything."""
    return part.asked.question if part.asked is not None and part.asked.scope else ""

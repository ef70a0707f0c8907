"""Now, later or not at all: the decision over every request, and on which engine.

A request goes to an engine when four things hold there: its concurrency cap has a place; the predicted peak of the KV
cache with it stays under its class's ceiling (`kv`); the bound on its time to first token keeps its promise (`ttft`);
and the engine has little prefill ahead of what it computes, so that what waits is waiting here, where classes and
tenants are told apart. `vip` need not heed the last. Otherwise it waits (`queue`), if the promise can still be kept;
and if it cannot, it is refused at once, with its own place in the drain as Retry-After.

Pure: time is an argument, equal calls give equal decisions. The gateway and the simulator use the same objects.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from typing import Final

from mypy_extensions import mypyc_attr

from forebay.policy.asks import Ask, Class, Stage
from forebay.policy.decisions import Admit, Decision, Quote, Refuse, Wait
from forebay.policy.engine_books import EngineBooks
from forebay.policy.facts import Facts, Report
from forebay.policy.lengths import LONGEST
from forebay.policy.lines import ADMITTED, ADMITTED_LATE, BATCH, TOO_LONG, Lines, asks_for
from forebay.policy.placement import FEW, SAMPLED, Candidates, Placer
from forebay.policy.queue import WaitingRoom
from forebay.policy.rules import Rules
from forebay.policy.scale import Scaling

MOST_ASIDE: Final = 256
"""Engines that are gone, and whose books are kept."""
_new: Final = tuple.__new__
"""Makes a named tuple of a tuple, at a quarter of what calling its class costs."""
_LOW: Final = Class.LOW  # reading a member off an Enum class is slow
_ADMITTED: Final = Stage.ADMITTED
_ANSWERING: Final = Stage.ANSWERING
_WAITING: Final = Stage.WAITING
_ENDED: Final = Stage.ENDED
FEW_MORE: Final = 8
"""Tokens of an answer, or an eighth of those that were there, that are not told to the books by themselves."""
RECHARGE: Final = 0.05
"""Of what a tenant was charged for a request, by how much that must be wrong to be changed before its end."""
DEADLINE: Final = "deadline"
"""As `TOO_LONG`, why some are refused: they have waited for as long as their class may."""
SAMPLE_AFTER: Final = 0.02
"""Seconds until others of many engines are asked, where nothing else happens."""
LOOK_AFTER: Final = 0.001
"""Seconds between two looks at those who wait, at least, where nothing else happens."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Admission(Lines):
    """Mutable state, beside that of `Lines`: what placement knows, the books of engines that are gone, how many engines
    would do."""

    def __init__(self, rules: Rules, engines: Mapping[str, Facts]) -> None:
        super().__init__(rules)
        self.placer = Placer(rules.placement)
        self.scaling = Scaling(rules.scale)
        self._aside: dict[str, EngineBooks] = {}
        self._look_at = inf
        self._put_out: list[tuple[Ask, Decision]] = []
        for name, facts in engines.items():
            self._join(EngineBooks(name, facts, rules, self.lengths))

    # --- asking ------------------------------------------------------------------------------------------------------

    def quote(self, ask: Ask, now: float) -> Quote:
        self._book()
        candidates = self._candidates(ask)
        if not candidates:
            return Quote("", inf, False)
        if ask.prefix:
            self.placer.look(ask)
        books = self.placer.near(candidates, ask, now)
        found = self.placer.best(ask, books, now, ask.cls if self.rules.gated else None)
        if found is not None:
            return Quote(found[0].name, found[1], True)
        room = self._room(ask)
        wait = self._tokens_ahead(ask, room) / self.drains[ask.model].prefill(self._prefill_rate(candidates.books))
        best = min(books[:FEW], key=lambda b: b.bound(ask, now))
        return Quote(best.name, wait + best.bound(ask, now), False)

    def offer(self, ask: Ask, now: float) -> Decision:
        """The decision over a new request. Whoever had to leave the room for it is told of by `due`."""
        candidates = self._candidates(ask)
        if ask.prefix:
            self.placer.look(ask)
        books = candidates.books if len(candidates) <= FEW else self.placer.near(candidates, ask, now)
        if not books:
            ask.stage = _ENDED
            return Refuse("no_engine", 1.0)
        if not self._gated:
            return self._admit(ask, *self._freely(ask, books, now), now)
        room = self._room(ask)
        again = inf
        if not room or not self._ahead(ask, room):
            cls = ask.cls
            if cls is not _LOW or any(b.idle(now) for b in books):
                if len(books) == 1:
                    best = books[0]
                    bound = best.takes(ask, cls, now)
                    if bound < inf:
                        return self._admit(ask, best, bound, now)
                elif (found := self.placer.best(ask, books, now, cls)) is not None:
                    return self._admit(ask, *found, now)
            again = self._again(candidates, books, now)
        self._book()
        room = self._room(ask)  # booking may have forgotten it, as one that nobody waits in
        self._drain(ask, room, now).came(asks_for(ask))
        reason = TOO_LONG if all(b.never_takes(ask) for b in books) else self._shed(ask, books)
        ahead, expected = None, inf
        if reason is None:
            best = self._soonest_of(books, ask, now)
            due = ask.arrival + best.promise(ask)
            ask.deadline = self._deadline(ask, best)
            position, ahead = room.ahead_of_new(ask)
            if ask.cls is _LOW:
                ahead = room.tokens
            expected = self._soonest(candidates.books, ahead) + best.expects(ask, now)
            if now + (best.ideal(ask) if ask.cls is _LOW else expected) > due:
                reason = "slo"
            else:
                put = room.put(ask, now)
                for gone in put.evicted:
                    self._put_out.append((gone, self._refuse(gone, "evicted", now, waited=True)))
                if put.accepted:
                    ask.stage = _WAITING
                    self._look_at = now if put.evicted else min(self._look_at, self._next_look(room, again, now))
                    return Wait(room.position(ask) if put.evicted else position, expected)
                reason = put.reason or "queue_full"
        return self._refuse(ask, reason, now, ahead=ahead, expected=expected)

    def due(self, now: float) -> list[tuple[Ask, Decision]]:
        """Those who waited and may go now, or must be refused."""
        self._book()
        out, self._put_out = self._put_out, []
        look_at = inf
        for room in self.rooms.values():
            if len(room):
                again = self._serve(room, now, out)
                if len(room):
                    look_at = min(look_at, self._next_look(room, again, now))
        self._look_at = look_at
        return out

    def _serve(self, room: WaitingRoom, now: float, out: list[tuple[Ask, Decision]]) -> float:
        """When it may be worth another look if nothing else happens."""
        for ask in room.expire(now):
            reason = DEADLINE if now >= ask.arrival + self.rules.wait[ask.cls] else "slo"
            out.append((ask, self._refuse(ask, reason, now, waited=True)))
        while len(room):
            head = room.head(now, idle=True)
            if head is None:
                return inf
            candidates = self._candidates(head)
            if head.prefix:
                self.placer.look(head)
            books = self.placer.near(candidates, head, now) if candidates else []
            if not books:
                if not any(self._candidates(ask) for ask in room):
                    return inf
                room.drop(head, now)  # it has tried the engines that there are, and keeps those from them who have not
                out.append((head, self._refuse(head, "no_engine", now, waited=True)))
                continue
            turn = room.turn(head)
            if turn is _LOW and not any(b.idle(now) for b in books):
                return self._again(candidates, books, now)
            found = self.placer.best(head, books, now, turn)
            if found is not None:
                out.append((head, self._admit(head, *found, now)))
                continue
            waited = now - head.arrival
            if any(b.needs(head, now) <= b.promise(head) - waited for b in books[:FEW]):
                return self._again(candidates, books, now)
            room.drop(head, now)
            out.append((head, self._refuse(head, "slo", now, waited=True)))
        return inf

    @staticmethod
    def _next_look(room: WaitingRoom, again: float, now: float) -> float:
        """When the first may go (`again`), has to leave, or counts as better, if nothing else happens."""
        for moment in (room.next_deadline(), room.next_starving()):
            if moment is not None and moment < again:
                again = moment
        return max(again, now + LOOK_AFTER)

    def next_due(self) -> float:
        """When to call `due` if nothing else happens; infinity: never."""
        if self._put_out:
            return -inf
        return self._look_at

    # --- telling -----------------------------------------------------------------------------------------------------

    def on_first_token(self, ask: Ask, now: float) -> None:
        """Of an answer that is not streamed it is presumed, and says nothing: what is seen of it comes at its end."""
        books = ask.holder
        if books is None or ask.stage is not _ADMITTED or not ask.streams:
            return
        books.first_token(ask, now)
        ask.stage = _ANSWERING
        self._stir(now)

    def on_split(self, ask: Ask, prefill: str, now: float) -> None:
        """The engine `prefill` computes the prompt of one just admitted: its own only holds and decodes it. Both will
        have it cached."""
        if ask.holder is None or ask.stage is not _ADMITTED:
            return
        ask.prefill = prefill
        ask.holder.handed_over(ask)
        if ask.prefix:
            self.placer.prefixes.sent(prefill, ask.prefix)
        self._stir(now)

    def on_tokens(self, counts: Mapping[int, int], now: float) -> None:
        """Tokens so far of each answer of the asks by key: coalesced, not per chunk."""
        for books in self.books.values():
            for key, ask in books.asks.items():
                tokens = counts.get(key)
                if tokens is not None:
                    self.produced(ask, tokens, now)

    def produced(self, ask: Ask, tokens: int, now: float) -> None:
        """`tokens` of each of its answers are there. What its tenant was charged follows what is now expected of it, so
        that answers longer than predicted are paid for while they run."""
        before = ask.produced
        if ask.holder is None or tokens - before < (FEW_MORE if before < 8 * FEW_MORE else before // 8):
            return  # so little changes next to nothing, and costs as much as a decision
        expected = ask.holder.produced(ask, tokens)
        if not self._gated:
            return
        self._book()
        service = self._service(float(ask.prompt_tokens), expected)
        if abs(service - ask.charged) > RECHARGE * ask.charged:
            self._room(ask).settle(ask.tenant, ask.charged_as, ask.charged, service, ask.admitted_at)
            ask.charged = service

    def on_end(
        self, ask: Ask, now: float, *, tokens: int = 0, whole: bool = True, cached_tokens: int | None = None
    ) -> None:
        """It is over, in whatever way: `tokens` of each answer came; `whole`: the answer came to its own end. Says
        nothing of one that was never taken. `cached_tokens`: of its prompt, as the engine said; None: it did not."""
        stage = ask.stage
        if cached_tokens is not None and stage is not _WAITING and not ask.prefill:  # what was handed over counts, too
            self.placer.answered(ask, cached_tokens)
        if stage is _WAITING:
            self._book()
            self._room(ask).drop(ask, now)
        elif stage is _ADMITTED or stage is _ANSWERING:
            most = LONGEST if ask.max_tokens is None else min(ask.max_tokens, LONGEST)
            if tokens > ask.produced:
                ask.produced = max(ask.produced, min(tokens, most))  # an engine that says more is not believed
            prompt: float = float(ask.prompt_tokens)
            if ask.holder is not None:
                if ask.prefix:
                    self.placer.left(ask)
                if stage is _ADMITTED and not whole:
                    prompt *= ask.holder.prefilled(ask, now)
                ask.holder.end(ask, now, whole=whole)
            if self._gated:
                took = self._service(prompt, float(ask.produced * ask.n))
                self._unbooked.append((now, ask, took))
                if len(self._unbooked) >= BATCH:
                    self._book()
        ask.stage = _ENDED
        if self._look_at < inf:
            self._stir(now)

    def on_report(self, engine: str, report: Report, now: float) -> None:
        """A scrape corrects the books, never replaces them."""
        self._book()
        books = self.books.get(engine)
        if books is not None:
            known = books.kv_tokens
            books.report(report, now)
            if books.kv_tokens != known:
                self.placer.prefixes.engine(engine, books.kv_tokens)
            self.placer.reported(books)
            if report.adapters is not None:
                self.placer.adapters(engine, report.adapters)
            self.scaling.reported(books, self.books, self.rooms, self.drains, now)
            self._stir(now)

    def engine_gone(self, engine: str, now: float) -> list[Ask]:
        """An engine takes no more for now; returns those that are on it, whose ends are still to be told. Its books are
        kept aside, for it may come back still working on them."""
        books = self.books.pop(engine, None)
        self.placer.gone(engine)
        self._lists.clear()
        if books is not None:
            if len(self._aside) >= MOST_ASIDE:
                self._aside = {name: b for name, b in self._aside.items() if b.asks}
            self._aside[engine] = books
        self._stir(now)
        return list(books.asks.values()) if books is not None else []

    def engine_here(self, engine: str, facts: Facts, now: float) -> None:
        """A new engine, or one that came back: with the books it had, where it is the same. Where it has changed, what
        is still on it counts in the new ones."""
        books = self._aside.pop(engine, None)
        if books is None or books.facts != facts:
            before, books = books, EngineBooks(engine, facts, self.rules, self.lengths)
            if before is not None and before.asks:
                books.take_over(before, now)
        else:
            books.configure(self.rules, now)
        self._join(books)
        self._stir(now)

    def _join(self, books: EngineBooks) -> None:
        self.books[books.name] = books
        self.placer.here(books)
        self._lists.clear()

    def ease(self, engine: str, share: float, now: float) -> None:
        """How much of its share an engine is to be given, over 0 to 1, until its next report says otherwise."""
        books = self.books.get(engine)
        if books is not None:
            books.ease(share)

    def cache_lost(self, engine: str, numbers: Sequence[int], keep: int, now: float) -> None:
        """Of a chain of blocks, an engine holds the first `keep` only."""
        self.placer.prefixes.lost(engine, numbers, keep)

    def cache_cleared(self, engine: str, now: float) -> None:
        """An engine's prefix cache is empty: it was started anew, or says so."""
        self.placer.prefixes.forget(engine)

    def configure(self, rules: Rules, now: float) -> list[tuple[Ask, Decision]]:
        """A reload. Those who wait stay in their order and are judged anew; returns what it does to them."""
        self._book()
        self._follow(rules)
        self.placer.configure(rules.placement)
        self._lists.clear()
        for books in self.books.values():
            books.configure(rules, now)
        self.scaling.configure(rules.scale)
        for room in self.rooms.values():
            for ask in room:
                able = self.placer.near(self._candidates(ask), ask, now)
                ask.deadline = self._deadline(ask, self._soonest_of(able, ask, now) if able else None)
            for ask in room.rejudge(rules.queue, now):
                self._put_out.append((ask, self._refuse(ask, "reload", now, waited=True)))
        return self.due(now)

    # --- inside ------------------------------------------------------------------------------------------------------

    def _stir(self, now: float) -> None:
        if self._look_at < inf:  # somebody waits
            self._look_at = now

    def _freely(self, ask: Ask, books: list[EngineBooks], now: float) -> tuple[EngineBooks, float]:
        """The best engine, where nothing is refused."""
        found = self.placer.best(ask, books, now, None)
        if found is None:
            raise AssertionError("an engine that is asked whatever was promised has a bound")
        return found

    @staticmethod
    def _again(candidates: Candidates, books: list[EngineBooks], now: float) -> float:
        """When it may be worth to ask again, of engines that took nothing."""
        again = min([b.again for b in books])
        return again if len(candidates) <= SAMPLED else min(again, now + SAMPLE_AFTER)

    def _deadline(self, ask: Ask, best: EngineBooks | None) -> float:
        """`best`: the engine that its promise goes by, where it has one."""
        waits = ask.arrival + self.rules.wait[ask.cls]
        return min(ask.latest, waits, ask.arrival + best.promise(ask) if best is not None else inf)

    @staticmethod
    def _soonest_of(books: list[EngineBooks], ask: Ask, now: float) -> EngineBooks:
        """`books` as of `Placer.near`."""
        return min(books[:FEW], key=lambda b: b.expects(ask, now))

    def _admit(self, ask: Ask, books: EngineBooks, bound: float, now: float) -> Admit:
        waited = ask.stage is _WAITING
        cls = self._room(ask).take(ask, now) if waited else ask.cls
        ask.stage = _ADMITTED
        ask.engine = books.name
        ask.admitted_at = now
        ask.bound = bound
        books.admit(ask, now)
        self.placer.admitted(ask, books, now)
        admit = _new(Admit, (books.name, bound))
        if not self._gated:
            return admit
        ask.charged_as = cls
        ask.charged = self._service(float(ask.prompt_tokens), ask.expected)
        self._unbooked.append((now, ask, ADMITTED_LATE if waited else ADMITTED))
        if waited or len(self._unbooked) >= BATCH:
            self._book()
        return admit

    @staticmethod
    def _shed(ask: Ask, books: list[EngineBooks]) -> str | None:
        """Why every engine it could go to refuses its class; None where one does not."""
        reason = None
        for one in books:
            reason = one.shed.refuses(ask.cls, ask.anonymous)
            if reason is None:
                return None
        return reason

    @staticmethod
    def _prefill_rate(books: list[EngineBooks]) -> float:
        return sum([b.ttft.prefill_rate for b in books]) or 1.0

    @classmethod
    def _soonest(cls, books: list[EngineBooks], tokens: float) -> float:
        """Seconds until so many are prefilled where nothing but prefill holds them up: a request is refused on arrival
        only for what is certain, and later when its promise is out of reach."""
        return tokens / cls._prefill_rate(books)

    def waiting(self, cls: Class) -> tuple[int, int]:
        """How many of the class wait, and their prompt tokens."""
        rooms = self.rooms.values()
        return sum(r.count(cls) for r in rooms), sum(r.tokens_of(cls) for r in rooms)

    def __repr__(self) -> str:
        return f"<Admission {[r for r in self.rooms.values() if len(r)]} {list(self.books.values())}>"

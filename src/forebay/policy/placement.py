"""Which engine gets a request.

`Placer` is for engines whose books are kept (`engine_books`). Of the engines that could take a request it chooses the
one with the least score, in seconds:

    score  = T + late · max(0, T − promise) + recompute / k · Q + interference · n · (P + o · s) + balance · W
             + price · (c − 1) + far + adapter − sticks

    T        bound on the time to its first token there: the prefill ahead of it, what of its own prompt is not cached,
             and what the steps cost (`ttft`); divided by the share of itself that a new engine is given (slow start)
    P        seconds that the idle engine would need for what of its prompt is not cached, as the prefix index believes
    Q        the same on the first of the engines: what is computed twice, whoever is slow at it
    k        engines that have (nearly) as much of the prefix as any: what is popular is soon needed everywhere, so that
             one more copy is paid for once and used by many
    n        sequences that decode there: each is held up for P, and by s seconds (one more sequence in its steps) for
             each of the o tokens that the answer is expected to have
    W        engine-seconds of work that it was given lately, each second counting 1/e after `BALANCE_FOR` s, and while
             it starts slowly more by as much as it is to be given less:
             P + (KV tokens held, on average, as a share of its capacity) · (seconds of decoding)
    c        its relative price (`cost`)
    far      `zone_penalty` where it is in another zone than the gateway
    adapter  `adapter_load` where the model asked for is a LoRA adapter that it has not loaded
    sticks   `affinity` where it is the engine of the request's session

Q counts so much more than T because what is computed twice is taken from everybody: its seconds, and the blocks that it
pushes out. That an engine is slow counts in T and W only: its seconds are its own, and it gets work in proportion to
its speed. So a request goes where its prefix is, until that engine was given much more work than another (of a typical
prompt, by 1 / balance of the mean), or would be late: then it goes elsewhere, and takes the prefix there. What has no
prefix anywhere evens the work out. With admission an engine that would be late is none at all.

Where a signal is missing: without metrics, what is ahead and n are what was sent from here; what prefill and steps take
begins at the configuration's figures and follows the first tokens; what is cached is what was sent where, believed as
far as `cached_tokens` in usage confirm it, and in full where the engine never says; without a KV capacity W has only P,
and the KV test passes; where nobody says which adapters are loaded, all have them.

Up to `SAMPLED` engines all are scored in a short form, with (tokens ahead + own) / rate for T and own / rate for P and
Q, and the best `FEW` of these in full. Of more, those with most of the prefix and some by chance are (the best of two
random choices is nearly as good as the best of all, Mitzenmacher 2001).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import exp, inf
from typing import TYPE_CHECKING, Final, Protocol

from forebay.policy.prefix import PrefixIndex, salted
from forebay.policy.rules import PlacementRules

if TYPE_CHECKING:
    from forebay.policy.asks import Ask, Class
    from forebay.policy.engine_books import EngineBooks

FEW: Final = 8
"""Engines that are asked in full, and no more of them once one takes a request: each costs some microseconds."""
SAMPLED: Final = 64
"""Engines up to which all are looked at."""
BY_CHANCE: Final = 8
WITH_PREFIX: Final = 8
BALANCE_FOR: Final = 60.0
FLOOR: Final = 4.0
"""Typical requests that every engine is taken to have had: after few, nobody is far from the mean."""
TYPICAL: Final = 0.02
"""What one request moves the typical one by."""
ALMOST: Final = 0.9
"""Of the longest match, from which on an engine counts as one that has the prefix."""
ALIKE: Final = 1.33
"""Times the rate of another engine's prefill up to which it is taken to be as fast."""
LEAST_SHARE: Final = 0.1
"""Of itself that an engine is given, down to which its work counts more by as much."""
_REBASE: Final = 1_200.0
"""Seconds after which sums that grow with time are brought down."""
MOST_ADAPTERS: Final = 4_096
_FULL: Final = 1e6
"""Seconds: more than any wait."""
_MIX: Final = 0x9E3779B97F4A7C15
"""2^64 over the golden ratio: multiplying by it spreads what differs in low bits over the high ones (Knuth)."""
_BITS: Final = (1 << 64) - 1
_NOBODY: Final[Mapping[str, int]] = {}


class Placement(Protocol):
    """The interface of a placement that knows names only."""

    def choose(self, model: str, candidates: Sequence[str], now: float) -> str | None:
        """One of `candidates` (engine names, healthy, able to serve `model`, not yet tried for this request), or None
        where none should be used. `now` is monotonic seconds."""
        ...


class RoundRobin:
    """Each model's engines in turn. Mutable state: a turn count a model, at most `bound` of them."""

    def __init__(self, bound: int = 4096) -> None:
        self._bound = bound
        self._turns: dict[str, int] = {}

    def choose(self, model: str, candidates: Sequence[str], now: float) -> str | None:
        if len(candidates) < 2:
            return candidates[0] if candidates else None
        turns = self._turns
        turn = turns.get(model, 0)
        if turn == 0 and len(turns) >= self._bound:
            turns.clear()
        turns[model] = turn + 1
        return candidates[turn % len(candidates)]

    def __repr__(self) -> str:
        return f"<RoundRobin {self._turns}>"


class Candidates:
    """The engines that one kind of request can go to, as long as they stay the same."""

    __slots__ = ("books", "by_name", "differ")

    def __init__(self, books: list[EngineBooks]) -> None:
        self.books = books
        self.by_name = {b.name: b for b in books}
        self.differ = len({b.bias for b in books}) > 1

    def __len__(self) -> int:
        return len(self.books)


class Placer:
    """Mutable state: the prefix index, whose turn it is among equals, the dice, who has which adapter, who was
    spared at its last report, and since when work is summed up."""

    def __init__(self, rules: PlacementRules) -> None:
        self.rules = rules
        self.prefixes = PrefixIndex(rules.index_bytes)
        self._turn = 0
        self._dice = 1
        self._adapters: dict[str, set[str]] = {}
        self._here: dict[str, EngineBooks] = {}
        self._spared: set[str] = set()
        self._since = 0.0
        self._typical = 0.0
        self._like: EngineBooks | None = None

    def configure(self, rules: PlacementRules) -> None:
        self.rules = rules
        self.prefixes.resize(rules.index_bytes)
        for one in self._here.values():
            self._set_bias(one)

    # --- engines -----------------------------------------------------------------------------------------------------

    def here(self, one: EngineBooks) -> None:
        """A new engine is taken to have had its share of work, so that it is not flooded."""
        one.worked = self._mean()
        self._here[one.name] = one
        self._measure(one)
        one.mark = salted(one.name.encode())
        self._set_bias(one)
        self.prefixes.engine(one.name, one.kv_tokens)

    def _mean(self) -> float:
        worked = [b.worked for b in self._here.values()]
        return sum(worked) / len(worked) if worked else 0.0

    def gone(self, name: str) -> None:
        """Whatever comes back under that name begins with an empty cache."""
        if self._here.pop(name, None) is self._like:
            self._like = next(iter(self._here.values()), None)
            for one in self._here.values():
                self._measure(one)
        self._spared.discard(name)
        self.prefixes.gone(name)
        self.adapters(name, ())

    def adapters(self, engine: str, names: Iterable[str]) -> None:
        """The LoRA adapters that an engine has loaded, all of them."""
        loaded = set(names)
        for name in [n for n, engines in self._adapters.items() if engine in engines and n not in loaded]:
            self._adapters[name].discard(engine)
            if not self._adapters[name]:
                del self._adapters[name]
        for name in loaded:
            if name in self._adapters or len(self._adapters) < MOST_ADAPTERS:
                self._adapters.setdefault(name, set()).add(engine)

    def reported(self, one: EngineBooks) -> None:
        """Its metrics were looked at. One that is not spared any more is taken to have had its share of work, as a new
        one is: it would be flooded to make up for that."""
        self._measure(one)
        if one.share < 1:
            self._spared.add(one.name)
        elif one.name in self._spared:
            self._spared.discard(one.name)
            one.worked = max(one.worked, self._mean())

    def _measure(self, one: EngineBooks) -> None:
        """How slow it is as against the first of all. Where they are about as fast, that is noise, and would send all
        work to who happened to be timed well."""
        like = self._like
        if like is None:
            like = self._like = one
        slow = like.ttft.rate / one.ttft.rate
        one.slow = 1.0 if 1 / ALIKE < slow < ALIKE else slow

    def _seconds(self, ask: Ask, one: EngineBooks) -> float:
        """Q of the formula."""
        cached = ask.cached.get(one.name, 0) if ask.cached else 0
        return (self._like or one).ttft.ideal(ask.prompt_tokens - cached, context_tokens=cached)

    def _set_bias(self, one: EngineBooks) -> None:
        rules, facts = self.rules, one.facts
        far = rules.zone_penalty if rules.zone and facts.zone and facts.zone != rules.zone else 0.0
        one.bias = rules.price * (facts.cost - 1) + far

    # --- a request's prompt ------------------------------------------------------------------------------------------

    def look(self, ask: Ask) -> None:
        """Fill in what of its prompt is cached where."""
        ask.matched = found = self.prefixes.match(ask.prefix)
        if not found:
            ask.cached, ask.work, ask.copies = _NOBODY, ask.prompt_tokens, 1
            return
        most = ask.prompt_tokens - 1  # the last token is always computed
        tokens, trust = ask.block_tokens, self.prefixes.trust
        ask.cached = cached = {name: min(most, int(trust(name) * blocks * tokens)) for name, blocks in found.items()}
        best = max(cached.values())
        ask.work = ask.prompt_tokens - best
        alike = ALMOST * best
        ask.copies = sum([tokens >= alike for tokens in cached.values()])

    def admitted(self, ask: Ask, one: EngineBooks, now: float) -> None:
        """It goes there: what the engine has to do for it, and what it will have cached."""
        self._turn += 1
        if now - self._since > _REBASE:
            faded = exp((self._since - now) / BALANCE_FOR)
            for other in self._here.values():
                other.worked *= faded
            self._since = now
        ttft = one.ttft
        coefficients = ttft.coefficients
        prefill = self._seconds(ask, one) * one.slow
        decode = ask.expected * ttft.pace * (coefficients[0] + one.decoding * coefficients[1])
        size = one.kv_tokens
        held = (ask.prompt_tokens + ask.expected / 2) / size if size else 0.0
        whole = ttft.ideal(ask.prompt_tokens) + decode * held
        self._typical += (whole - self._typical) * TYPICAL
        work = prefill + decode * held
        if one.share < 1:  # so that it comes to have its share of it
            work /= max(one.share, LEAST_SHARE)
        one.worked += work * exp((now - self._since) / BALANCE_FOR)
        if ask.prefix:
            self.prefixes.sent(one.name, ask.prefix)

    def left(self, ask: Ask) -> None:
        """Its blocks were held until now: only from now on are they free for others."""
        self.prefixes.sent(ask.engine, ask.prefix)

    def answered(self, ask: Ask, cached_tokens: int) -> None:
        """The engine said how many of its prompt's tokens were cached."""
        if ask.prefix and ask.engine and ask.block_tokens > 0:
            self.prefixes.observe(ask.engine, ask.matched.get(ask.engine, 0), cached_tokens / ask.block_tokens)

    # --- choosing ----------------------------------------------------------------------------------------------------

    def near(self, candidates: Candidates, ask: Ask, now: float) -> list[EngineBooks]:
        """Those worth asking, best first by the short form of the score; all of them, in their order, where they are
        not more than `FEW`."""
        books = candidates.books
        count = len(books)
        if count <= FEW:
            return books
        if count <= SAMPLED:
            turn = self._turn % count
            books = books[turn:] + books[:turn]
        else:
            some = {books[self._throw() % count] for _ in range(BY_CHANCE)}
            if ask.cached:
                known, here = ask.cached, candidates.by_name
                for name in sorted(known, key=known.__getitem__, reverse=True)[:WITH_PREFIX]:
                    if (one := here.get(name)) is not None:
                        some.add(one)
            if ask.session:
                some.add(self._favourite(books, ask))
            books = sorted(some, key=_name)
        return self._sorted(books, ask, now, differ=candidates.differ)

    def _throw(self) -> int:
        """31 bits that look like chance (Lehmer's generator with the multiplier of Park and Miller)."""
        self._dice = self._dice * 48_271 % 0x7FFFFFFF
        return self._dice

    def _sorted(self, books: list[EngineBooks], ask: Ask, now: float, *, differ: bool) -> list[EngineBooks]:
        rules, prompt = self.rules, ask.prompt_tokens
        each, again = rules.interference, rules.recompute / ask.copies
        fade = self._weight(books, now)
        second = 1 / (self._like or books[0]).ttft.rate
        if ask.cached:
            cached = ask.cached.get
            scores = [
                (t := b.ttft).tokens / (t.rate * b.share)
                + (prompt - cached(b.name, 0)) * (again + (1 + each * b.decoding) * b.slow) * second
                + fade * b.worked
                for b in books
            ]
        else:
            scores = [
                (t := b.ttft).tokens / (t.rate * b.share)
                + prompt * (again + (1 + each * b.decoding) * b.slow) * second
                + fade * b.worked
                for b in books
            ]
        if differ or ask.session or ask.model in self._adapters:
            favourite = self._favourite(books, ask) if ask.session else None
            scores = [score + b.bias + self._special(ask, b, favourite) for score, b in zip(scores, books, strict=True)]
        return [books[i] for i in sorted(range(len(books)), key=scores.__getitem__)]

    def best(
        self, ask: Ask, books: list[EngineBooks], now: float, cls: Class | None
    ) -> tuple[EngineBooks, float] | None:
        """The engine with the least score of those that take it in the turn of `cls`, and the bound on its first token;
        None where none does. Without a class: whatever their promises, but rather one that has room. `books` as of
        `near`."""
        count = len(books)
        favourite = self._favourite(books, ask) if ask.session else None
        special = favourite is not None or ask.model in self._adapters
        rules = self.rules
        each, again, late = rules.interference, rules.recompute / ask.copies, rules.late
        fade = self._weight(books, now)
        turn = self._turn % count if count <= FEW else 0
        promise = books[0].promise(ask) if cls is None else inf
        found: EngineBooks | None = None
        least = best = inf
        for i in range(count):
            if i >= FEW and found is not None:
                break
            one = books[i - turn]
            promised = one.takes(ask, cls, now) if cls is not None else one.reckons(ask, now)
            if promised == inf:
                continue
            ttft = one.ttft
            own = self._seconds(ask, one)
            bound = promised / one.share
            score = bound + again * own + fade * one.worked + one.bias
            if one.decoding:
                score += each * one.decoding * (own * one.slow + one.length * ttft.coefficients[1])
            if bound > promise:
                score += late * (bound - promise)
            if special:
                score += self._special(ask, one, favourite)
            if cls is None and not one.has_room(ask):
                score += _FULL
            if score < least:
                found, least, best = one, score, promised
        return None if found is None else (found, best)

    def _weight(self, books: list[EngineBooks], now: float) -> float:
        """What an engine's work counts, in the units that it is summed up in."""
        mean = sum([b.worked for b in books]) / len(books)
        rules, typical = self.rules, self._typical
        if not typical:
            return 0.0
        floor = FLOOR * typical * exp((now - self._since) / BALANCE_FOR)
        return rules.recompute * rules.balance * typical / (mean + floor)

    @staticmethod
    def _favourite(books: list[EngineBooks], ask: Ask) -> EngineBooks:
        """The engine of the request's session, the same for as long as it is there: rendezvous hashing."""
        session = ask.session
        return max(books, key=lambda b: ((session ^ b.mark) * _MIX) & _BITS)

    def _special(self, ask: Ask, one: EngineBooks, favourite: EngineBooks | None) -> float:
        loaded = self._adapters.get(ask.model)
        more = self.rules.adapter_load if loaded is not None and one.name not in loaded else 0.0
        return more - self.rules.affinity if one is favourite else more

    def __repr__(self) -> str:
        return f"<Placer {self.prefixes!r}>"


def _name(one: EngineBooks) -> str:
    return one.name

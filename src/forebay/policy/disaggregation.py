"""Whether another engine computes a request's prompt: prefill and decode apart, decided request by request.

A request has an engine already, the one whose KV cache is to hold it (`decode`). Its prompt goes to a prefill engine p,
and its KV from there to `decode`, where

    T_p + X + step  <  T_d + weight · n · S

    T_p     s    expected TTFT on p of the tokens that p has not cached, those ahead of it there included; the p with
                 the least is taken
    X       s    the handover: latency + u · per_token
    u       -    prompt tokens that `decode` has not cached: those whose KV has to move
    step    s    one decode step: `decode` computes the prompt's last token again
    T_d     s    expected TTFT on `decode`, were the prompt computed there, what is ahead of it included
    n       -    sequences that decode there
    S       s    what the prompt's prefill takes there: about as long does each of the n wait for tokens in all
    weight  -    seconds of one request's TTFT that a second is worth by which one other's tokens come late

Both sides are seconds of waiting, of this request and of those it disturbs. Who is behind it in a queue of prefill
waits for it on either engine, so that cancels out. It stays whole where u < `least_tokens`, where T_p is more than
`longest`, and where p is being rested after a failure.

What stands in for a missing signal: nothing cached; `per_token` and `latency` as configured until handovers were seen;
step times as configured until first tokens were (`ttft`).

Pure: time is an argument. The gateway and the simulator use the same object.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from math import inf
from typing import Final, NamedTuple

from forebay.policy.prior import PrefillPrior
from forebay.policy.ttft import TtftBook

LEARN: Final = 0.1
"""Of what one handover says of the seconds a token."""
FAR: Final = 4.0
"""Times what was known that one handover may say, either way."""
LEAST_PER_TOKEN: Final = 1e-9
MOST_PER_TOKEN: Final = 1e-2
FIRST_REST: Final = 1.0
LONGEST_REST: Final = 60.0
"""Seconds for which a prefill engine that failed gets nothing; twice as long with each failure in a row."""


class SplitRules(NamedTuple):
    least_tokens: int = 256
    weight: float = 8.0
    longest: float = 30.0
    """Seconds."""
    latency: float = 0.01
    """Seconds of a handover, however small."""
    per_token: float = 1e-5
    """Seconds, until handovers were seen."""


class Whole(NamedTuple):
    """What it is to compute the prompt on the engine that decodes it."""

    ttft: float
    """Expected, seconds."""
    prefill: float
    """Seconds that computing it takes there by itself."""
    decoding: int
    """Sequences that decode there."""


class Split(NamedTuple):
    prefill: str
    """The engine that computes the prompt."""
    ttft: float
    """Expected, the handover included; seconds."""


class _Rest:
    __slots__ = ("seconds", "until")

    def __init__(self) -> None:
        self.seconds = 0.0
        self.until = -inf


class Disaggregation:
    """Mutable state, by engine: a book of first tokens, seconds a token of handovers to it, and how it is rested."""

    def __init__(self, rules: SplitRules) -> None:
        self.rules = rules
        self.books: dict[str, TtftBook] = {}
        """Of prefill engines; and of those that decode, where nobody else keeps such books."""
        self._per_token: dict[str, float] = {}
        self._rests: dict[str, _Rest] = {}

    # --- engines -----------------------------------------------------------------------------------------------------

    def engine_here(self, name: str, prior: PrefillPrior) -> None:
        """Known before: nothing changes."""
        if name not in self.books:
            self.books[name] = TtftBook(prior)

    def engine_gone(self, name: str) -> None:
        self.books.pop(name, None)
        self._per_token.pop(name, None)
        self._rests.pop(name, None)

    # --- asking ------------------------------------------------------------------------------------------------------

    def whole(self, engine: str, tokens: int, now: float, *, cached: int = 0, decoding: int = 0) -> Whole:
        """By the book kept here. `tokens` of the prompt, `cached` of them in the engine's cache."""
        book = self.books[engine]
        own = max(1, tokens - cached)
        expected = book.predict(own, cached, now, decoding)[0]
        return Whole(expected, book.ideal(own, context_tokens=cached) * book.pace, decoding)

    def decide(
        self,
        decode: str,
        tokens: int,
        whole: Whole,
        prefills: Sequence[str],
        now: float,
        *,
        cached: int = 0,
        cached_at: Mapping[str, int] | None = None,
        step: float = 0.0,
    ) -> Split | None:
        """Where the prompt is to be computed instead; None: on `decode`, whole. `cached`: of its `tokens`, those in the
        cache of `decode`; `cached_at`: the same by prefill engine."""
        rules = self.rules
        moved = tokens - cached
        if moved < rules.least_tokens:
            return None
        found = self.soonest(tokens, prefills, now, cached_at=cached_at)
        if found is None or found.ttft > rules.longest:
            return None
        ttft = found.ttft + self.handover(decode, moved) + step
        return Split(found.prefill, ttft) if ttft < whole.ttft + rules.weight * whole.decoding * whole.prefill else None

    def soonest(
        self,
        tokens: int,
        prefills: Sequence[str],
        now: float,
        *,
        cached_at: Mapping[str, int] | None = None,
        resting: bool = False,
    ) -> Split | None:
        """The prefill engine that would have computed it first, and when, without the handover. `resting`: those, too,
        that are being rested."""
        best, least = "", inf
        for name in prefills:
            rest = self._rests.get(name)
            if rest is not None and now < rest.until and not resting:
                continue
            cached = cached_at.get(name, 0) if cached_at is not None else 0
            expected = self.books[name].predict(max(1, tokens - cached), cached, now, 0)[0]
            if expected < least:
                best, least = name, expected
        return Split(best, least) if best else None

    def handover(self, decode: str, tokens: int) -> float:
        """Seconds until so many tokens' KV is in the cache of `decode`."""
        return self.rules.latency + tokens * self._per_token.get(decode, self.rules.per_token)

    # --- telling -----------------------------------------------------------------------------------------------------

    def began(self, key: Hashable, engine: str, tokens: int, now: float, *, cached: int = 0, decoding: int = 0) -> None:
        """A prompt was sent to an engine. Raises ValueError where `key` is on it already."""
        self.books[engine].dispatched(key, max(1, tokens - cached), cached, now, decoding=decoding)

    def computed(self, key: Hashable, engine: str, now: float) -> None:
        """Its first token is there."""
        if (book := self.books.get(engine)) is not None:
            book.first_token(key, now)
            self._rests.pop(engine, None)

    def gone(self, key: Hashable, engine: str, now: float) -> None:
        """It left before its first token, or was refused."""
        if (book := self.books.get(engine)) is not None:
            book.gone(key, now)

    def unseen(self, key: Hashable, engine: str) -> None:
        """Nobody will see its first token."""
        if (book := self.books.get(engine)) is not None:
            book.forget(key)

    def failed(self, engine: str, now: float) -> None:
        """A prefill engine did not do its part: it is rested. Those under way there when it failed fail with it, and
        count once."""
        rest = self._rests.setdefault(engine, _Rest())
        if now >= rest.until:
            rest.seconds = min(LONGEST_REST, rest.seconds * 2 or FIRST_REST)
            rest.until = now + rest.seconds

    def fetched(self, decode: str, tokens: int, seconds: float, *, step: float = 0.0) -> None:
        """An answer began `seconds` after `decode` was told where the KV of `tokens` is; its wait there counts as the
        handover's."""
        known = self._per_token.get(decode, self.rules.per_token)
        seen = (seconds - self.rules.latency - step) / max(1, tokens)
        seen = min(max(seen, known / FAR), known * FAR)
        self._per_token[decode] = min(max(known + LEARN * (seen - known), LEAST_PER_TOKEN), MOST_PER_TOKEN)

    def __repr__(self) -> str:
        return f"<Disaggregation {self.books}>"

"""When an engine will give a request its first token: what to expect, and what it stays within 99 times of 100.

An engine with continuous batching and chunked prefill works through prompts in order of arrival, at most a budget of M
tokens a step, the n sequences that decode among them. A request with `own` uncached prompt tokens behind `ahead` others
waits for

    TTFT = pace · (S (step + n · sequence) + P · prefill + tokens · token + pairs · pair)

    P       steps with prefill: ceil((ahead + own) / (M - n))
    S       steps in all: P where the engine is idle; else (ahead + own) / (M - n) + 1, or if the prompts ahead are few
            2.5: half of the step that runs, the one scheduled behind it, its own (with vLLM's asynchronous scheduling
            who arrives in step k is first in step k + 2)
    tokens  ahead + own, but for those that a step takes along in the time in which it reads the weights
    pairs   Σ uncached · (context + uncached / 2): products of query and key in attention

The five coefficients begin at a prior and are learned from every first token (`LeastSquares`). The pace is the
geometric mean of the last first tokens' actual / predicted, faster than the coefficients. The bound is

    TTFT + margin · (full step + doubt · TTFT)

since what is not known is where in its step the engine is, and the coefficients to a few per cent: one unit for what is
far ahead and for what is near. Where no prefill is ahead, the expectation takes the full step's place if it is less.
The margin is kept by adaptive conformal inference, one for each level of load (`Residuals`); a level that has seen too
few takes the margin of all. The doubt falls from a half to a twentieth with the first hundred first tokens.

Not in the model: waiting for a slot or for KV blocks inside of the engine. Whoever dispatches only what the engine can
run at once never sees it; else it is learned as if prefill were slower.

Who is refused teaches nothing, so a bound that refuses everyone would stand for ever: where a level of load is quoted
for a minute and nobody dispatched at it, its margin is relaxed; an idle engine without a first token for a minute goes
back to its usual pace.

Who leaves without a first token is censored: `Residuals.censored` says what the margin makes of it. The coefficients
and the pace learn from it only where it had waited longer than predicted, as if the token had come then.
"""

from __future__ import annotations

from collections.abc import Hashable
from math import exp, inf, log, sqrt
from typing import Final, NamedTuple

from forebay.policy.conformal import Residuals
from forebay.policy.leastsquares import Five, LeastSquares
from forebay.policy.prior import KV, PrefillPrior

LEVELS: Final = ("idle", "decoding", "short", "middle", "long", "flood")
"""Of load: nothing ahead, only decodes, then by full steps of prefill ahead."""
_SHORT: Final = 1.0
_MIDDLE: Final = 3.0
_LONG: Final = 8.0
"""Full steps at which these levels end."""
_WAIT: Final = 1.5
"""Steps before the first one that a request can be in, where others decode."""
_PACE: Final = 0.1
_FAST_PACE: Final = 0.3
_FAR: Final = 0.5
_IN_A_ROW: Final = 4
"""How many first tokens must be further than `_FAR` (in log) from the pace, on one side, until it goes fast. Before
that each counts as no further than twice `_FAR`."""
_LEAST_RATIO: Final = 0.05
_MOST_RATIO: Final = 20.0
"""What one first token may say of the pace."""
_EXPLAINED: Final = 1.5
"""A change of pace by more than this between dispatch and first token is taken out of the score: the margin need not
cover what the expectation has learned by now. A miss stays a miss."""
_ENOUGH: Final = 500
"""First tokens after which the coefficients learn from every other one, and the margin of all from every fourth: each
costs as much as a decision."""
_STALE: Final = 60.0
"""Seconds after which what the last first tokens said of pace and margin is no longer held against an engine."""
_PRIOR: Final = 1.0
"""Margin before a hundred first tokens were seen, in scales."""
_LEAST_SCALE: Final = 1e-9
"""Seconds: of an engine that answers at once, again and again, nothing else is left."""
_DOUBT: Final = 0.05
"""The part of an expectation that is as uncertain as a full step, once the coefficients are learned."""
_AT_FIRST: Final = 0.5
"""The same before the first outcome; it falls with their number."""


class _Flight:
    """A request that is on the engine without a first token, between those dispatched right before and after it."""

    __slots__ = (
        "after",
        "at",
        "before",
        "begin",
        "bound",
        "context",
        "expected",
        "factor",
        "level",
        "pairs",
        "scale",
        "seen",
        "tokens",
    )

    def __init__(
        self,
        at: float,
        begin: float,
        tokens: int,
        context: int,
        pairs: float,
        quote: Quoted,
        factor: float,
    ) -> None:
        self.at = at
        self.begin = begin
        self.tokens = tokens
        self.context = context
        self.pairs = pairs
        self.expected, self.bound, self.scale, self.level, self.seen = quote
        self.factor = factor
        self.before: _Flight | None = None
        self.after: _Flight | None = None

    def score(self, took: float) -> float:
        """How far beyond what was expected, in its scale."""
        return (took - self.expected) / self.scale


Quoted = tuple[float, float, float, int, Five]
"""A `Quote` as a plain tuple, which is made four times as fast."""


class Quote(NamedTuple):
    """Of one request, were it dispatched now. Seconds."""

    expected: float
    bound: float
    """What its TTFT stays within 99 times of 100."""
    scale: float
    """The unit of the margin: what a full step takes, and a part of what is expected."""
    level: int
    seen: Five
    """What the coefficients are multiplied with."""


class TtftBook:
    """One engine's. Seconds throughout; `now` is monotonic.

    Mutable state: requests without a first token in order of dispatch, their tokens and pairs in sum; the coefficients
    in units of their prior and the covariance of those; the pace; the scores, a level of load.

    `decoding`: how many sequences decode on the engine; `decoding_tokens`: what they have in the KV cache, in sum.
    `context_tokens`: of the prompt, those that are in the KV cache.
    """

    __slots__ = (
        "_asked",
        "_back",
        "_batch",
        "_budget",
        "_decoding",
        "_doubt",
        "_factor",
        "_far",
        "_fit",
        "_flights",
        "_free",
        "_front",
        "_kv_share",
        "_last",
        "_least_room",
        "_outcomes",
        "_pace",
        "_pair",
        "_pairs",
        "_step",
        "levels",
        "overall",
        "prior",
        "rate",
        "tokens",
    )

    def __init__(self, prior: PrefillPrior, *, target: float = 0.99) -> None:
        self.prior = prior
        self.levels = tuple(Residuals(target, prior=_PRIOR) for _ in LEVELS)
        """By `LEVELS`."""
        self.overall = Residuals(target, prior=_PRIOR)
        """Of all levels together: for one that has seen too few."""
        self._flights: dict[Hashable, _Flight] = {}
        self._front: _Flight | None = None
        self._back: _Flight | None = None
        self.tokens = 0
        """Uncached prompt tokens of all without a first token, whatever the engine has done of them."""
        self._pairs = 0.0
        self._budget = prior.budget_tokens
        self._least_room = 1 + self._budget // 8
        self._free = prior.free_tokens
        self._kv_share = prior.kv_share / KV
        step, more = prior.decode_step_s, max(0.0, prior.base_s - prior.decode_step_s)
        priors: Five = (step, prior.per_sequence_s, more, prior.per_token_s, prior.per_token_context_s)
        # a unit for what the prior takes to be nothing, so that it can be learned
        units = (
            step,
            max(prior.per_sequence_s, step / 1000),
            max(more, step / 10),
            prior.per_token_s,
            max(prior.per_token_context_s, prior.per_token_s / 1e6),
        )
        self._fit = LeastSquares(priors, units)
        self._pace = 0.0
        self._factor = 1.0
        self._far = 0
        self._decoding = 0
        self._batch = 0.0  # the same, longer contexts counted as more sequences
        self._last = -inf
        self._asked = [inf] * len(LEVELS)  # since when each level is quoted without a dispatch
        self._doubt = _AT_FIRST
        self._outcomes = 0
        self.rate = 0.0
        """As `prefill_rate`, quicker to read."""
        self._step = self._pair = 0.0
        self._draw()

    # --- what it says ------------------------------------------------------------------------------------------------

    @property
    def prefill_rate(self) -> float:
        """Prompt tokens a second in full steps, beside as many decodes as there last were."""
        return self.rate

    @property
    def full_step(self) -> float:
        """Seconds of a full step with prefill, beside as many decodes as there last were."""
        return self._step

    @property
    def coefficients(self) -> Five:
        """Seconds: step, sequence, prefill, token, pair of the module's formula."""
        return self._fit.coefficients

    @property
    def learned(self) -> int:
        """First tokens, and waits that were cut off late."""
        return self._fit.learned

    @property
    def pace(self) -> float:
        return self._factor

    def margin(self, level: int) -> float:
        own = self.levels[level]
        return own.margin if len(own) >= own.enough else self.overall.margin

    def __len__(self) -> int:
        """Requests without a first token."""
        return len(self._flights)

    def backlog(self, now: float) -> float:
        """Uncached prompt tokens ahead of who is dispatched now: all without a first token, less what the engine has
        done of the oldest (or of a step) since the last one."""
        return self.tokens - self._done(now) if self._front is not None else 0.0

    def _done(self, now: float) -> float:
        """Tokens computed of the oldest since the last first token: of a long prompt the fewer a second, the more of it
        is in the cache already."""
        front = self._front
        if front is None:
            return 0.0
        since = front.begin if front.begin > self._last else self._last
        passed = now - since
        if passed <= 0:
            return 0.0
        rate, pair = self.rate, self._pair
        done = passed * rate
        if done * (front.context + done) * pair > 0.01 * passed:  # a t + pair t² / 2 = passed, a: seconds a token
            a = 1 / rate + pair * front.context
            done = 2 * passed / (a + sqrt(a * a + 2 * pair * passed))
        most = front.tokens if front.tokens > self._budget else self._budget
        if done > most:
            done = float(most)
        return done if done < self.tokens else self.tokens

    def until(self, tokens: float, now: float) -> float:
        """When `backlog` will be down to so many tokens if no first token comes; infinity: not without one."""
        front = self._front
        if front is None:
            return now
        done = self.tokens - tokens
        if done > (front.tokens if front.tokens > self._budget else self._budget):
            return inf
        since = front.begin if front.begin > self._last else self._last
        linear = done / self.rate
        return since + max(linear, linear + self._pair * done * (front.context + done / 2))

    def quote(
        self,
        uncached_tokens: int,
        now: float,
        *,
        context_tokens: int = 0,
        decoding: int = 0,
        decoding_tokens: int | None = None,
    ) -> Quote:
        """What to expect of its TTFT, were it dispatched now."""
        return Quote(*self.predict(uncached_tokens, context_tokens, now, decoding, decoding_tokens))

    def ideal(self, uncached_tokens: int, *, context_tokens: int = 0) -> float:
        """Expected TTFT on the idle engine at its usual pace: what no admission can better."""
        tokens = max(1, uncached_tokens)
        steps = -(-tokens // self._budget)
        step, _, prefill, token, pair = self._fit.coefficients
        pairs = tokens * (context_tokens + tokens / 2)
        return steps * (step + prefill) + max(0.0, tokens - steps * self._free) * token + pairs * pair

    def predict(self, uncached: int, context: int, now: float, n: int, kv: int | None = None) -> Quoted:
        """As `quote`, of `n` that decode with `kv` tokens in the cache."""
        own = uncached if uncached > 0 else 1  # the last prompt token is always computed
        batch = n + len(self._flights) / 2  # those ahead decode once they are prefilled: half of them, on average
        room = self._budget - int(batch)
        if room < self._least_room:
            room = self._least_room
        pairs = own * (context + own / 2)
        front = self._front
        late = 0.0
        if front is None:
            tokens: float = float(own)
            level = 1 if n else 0
            if self._pace and now - self._last > _STALE:
                self._pace, self._factor, self._far = 0.0, 1.0, 0
                self._draw()
        else:
            done = self._done(now)
            ahead = self.tokens - done
            tokens = ahead + own
            of_front = done if done < front.tokens else front.tokens
            pairs += self._pairs - of_front * (front.context + of_front / 2)
            queue = ahead / room
            level = 2 if queue < _SHORT else 3 if queue < _MIDDLE else 4 if queue < _LONG else 5
            late = now - front.at - front.bound
            if late > 0 and now - self._last < late:
                late = now - self._last
        full = tokens / room
        prefills = -(-tokens // room)
        if level == 0:
            steps = prefills
        else:
            steps = full + 1 if full > _WAIT else _WAIT + 1
        work = tokens - self._free * prefills
        if work < 0:
            work = 0.0
        if kv is not None:
            batch += (kv - n * KV) * self._kv_share
        seen = (steps, steps * batch, prefills, work, pairs)
        step, sequence, prefill, token, pair = self._fit.coefficients
        expected = self._factor * (steps * (step + batch * sequence) + prefills * prefill + work * token + pairs * pair)
        if late > 0:  # an engine that has been silent for too long will be so for as long again
            expected += late
        scale = (self._step if level > 1 or expected > self._step else expected) + self._doubt * expected
        if scale < _LEAST_SCALE:
            scale = _LEAST_SCALE
        margins = self.levels[level]
        if now - self._asked[level] > _STALE:
            margins.relax()
            self.overall.relax()
            self._asked[level] = now
        elif now < self._asked[level]:
            self._asked[level] = now
        margin = margins.margin if len(margins) >= margins.enough else self.overall.margin
        bound = expected + margin * scale
        return expected, bound if bound > 0.0 else 0.0, scale, level, seen

    # --- what it is told ---------------------------------------------------------------------------------------------

    def dispatched(
        self,
        key: Hashable,
        uncached_tokens: int,
        context_tokens: int,
        now: float,
        *,
        decoding: int = 0,
        decoding_tokens: int | None = None,
        quoted: Quoted | None = None,
    ) -> None:
        """`quoted`: what `predict` has just said of it. Raises ValueError where `key` is on the engine already."""
        if quoted is None:
            quoted = self.predict(uncached_tokens, context_tokens, now, decoding, decoding_tokens)
        self.sent(key, uncached_tokens, context_tokens, now, decoding, quoted)

    def sent(self, key: Hashable, uncached_tokens: int, context_tokens: int, now: float, n: int, quote: Quoted) -> None:
        """As `dispatched`, beside `n` that decode; a quote that may be missing would be boxed."""
        if key in self._flights:
            raise ValueError(f"{key!r} was dispatched already and has no first token yet")
        tokens = uncached_tokens if uncached_tokens > 0 else 1
        pairs = tokens * (context_tokens + tokens / 2)
        self._decoding = n
        level, seen = quote[3], quote[4]
        self._batch = batch = seen[1] / seen[0]
        wait = 0.0
        if n:
            coefficients = self._fit.coefficients
            wait = _WAIT * self._factor * (coefficients[0] + batch * coefficients[1])
        self._asked[level] = inf
        flight = _Flight(now, now + wait, tokens, context_tokens, pairs, quote, self._factor)
        self._flights[key] = flight
        last = self._back
        self._back = flight
        if last is None:
            self._front = flight
        else:
            last.after, flight.before = flight, last
        self.tokens += tokens
        self._pairs += pairs

    def first_token(self, key: Hashable, now: float) -> None:
        """Learns from it. A key that is not waited for, as after `gone`, changes nothing."""
        flight = self._flights.pop(key, None)
        if flight is None:
            return
        self._remove(flight)
        self._last = now
        took = max(now - flight.at, 1e-6)
        self._learn(flight.seen, took)
        change = self._factor / (flight.factor * _EXPLAINED)
        score = flight.score(took / change if change > 1 else took)
        self.levels[flight.level].observe(score, took > flight.bound)
        overall = self.overall
        if len(overall) < _ENOUGH or self._outcomes % 4 == 0:
            overall.observe(score, score > overall.margin)

    def expected(self, key: Hashable) -> float:
        """TTFT as it was expected at its dispatch; 0 where nobody waits for its first token."""
        flight = self._flights.get(key)
        return 0.0 if flight is None else flight.expected

    def gone(self, key: Hashable, now: float) -> None:
        """It was cancelled, refused or lost before its first token; see the module's last paragraph. A key that is not
        waited for changes nothing."""
        flight = self._flights.pop(key, None)
        if flight is None:
            return
        self._remove(flight)
        waited = now - flight.at
        if waited <= 0:
            return
        if waited > self._factor * sum(a * b for a, b in zip(flight.seen, self._fit.coefficients, strict=True)):
            self._learn(flight.seen, waited)
        score = flight.score(waited)
        self.levels[flight.level].censored(score, flight.score(flight.bound))
        self.overall.censored(score, self.overall.margin)

    def forget(self, key: Hashable) -> None:
        """Its first token cannot be seen: nothing is learned from it. A key that is not waited for changes nothing."""
        flight = self._flights.pop(key, None)
        if flight is not None:
            self._remove(flight)

    def _remove(self, flight: _Flight) -> None:
        self.tokens -= flight.tokens
        self._pairs -= flight.pairs
        before, after = flight.before, flight.after
        flight.before = flight.after = None
        if after is not None:
            after.before = before
        else:
            self._back = before
        if before is not None:
            before.after = after
        else:
            self._front = after
            if after is None:
                self._pairs = 0.0  # no rounding is carried on

    # --- learning ----------------------------------------------------------------------------------------------------

    def _learn(self, seen: Five, took: float) -> None:
        x0, x1, x2, x3, x4 = seen
        c0, c1, c2, c3, c4 = self._fit.coefficients
        plain = max(x0 * c0 + x1 * c1 + x2 * c2 + x3 * c3 + x4 * c4, 1e-9)
        ratio = took / plain
        self._follow(ratio)
        self._outcomes += 1
        if self._fit.learned >= _ENOUGH and self._outcomes % 2:
            self._draw()
            return
        self._fit.learn(seen, ratio, plain)
        self._doubt = max(_DOUBT, _AT_FIRST / (1 + self._fit.learned / 10))
        self._draw()

    def _follow(self, ratio: float) -> None:
        """The pace, after a first token that took `ratio` times what the coefficients alone say."""
        off = log(min(max(ratio, _LEAST_RATIO), _MOST_RATIO)) - self._pace
        if off > _FAR:
            self._far = self._far + 1 if self._far > 0 else 1
        elif off < -_FAR:
            self._far = self._far - 1 if self._far < 0 else -1
        else:
            self._far = 0
        if abs(self._far) >= _IN_A_ROW:
            self._pace += _FAST_PACE * off
        else:
            self._pace += _PACE * min(max(off, -2 * _FAR), 2 * _FAR)
        self._factor = exp(self._pace)

    def _draw(self) -> None:
        """A full step, its rate and what a pair costs, at the present pace."""
        room = max(self._budget - self._decoding, self._least_room)
        step, sequence, prefill, token, pair = self._fit.coefficients
        seconds = step + self._batch * sequence + prefill + max(0.0, room - self._free) * token + room * room / 2 * pair
        self._step = max(seconds, 1e-9) * self._factor
        self.rate = room / self._step
        self._pair = pair * self._factor

    def __repr__(self) -> str:
        return (
            f"<TtftBook {len(self)} without a first token, {self.tokens:,} tokens | {self.rate:,.0f} tokens/s, "
            f"pace {self._factor:.2f}, {self.learned:,} learned>"
        )

"""What admission keeps for one engine: KV, time to first token, shedding, concurrency and the pace of prefill."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from math import exp, inf
from typing import Final

from forebay.policy.asks import Ask, Class, Stage
from forebay.policy.drain import Supply
from forebay.policy.facts import Facts, Report
from forebay.policy.kv import KvBook
from forebay.policy.lengths import Lengths
from forebay.policy.rules import Rules
from forebay.policy.scale import Factor
from forebay.policy.shed import Shedder
from forebay.policy.ttft import Quoted, TtftBook

LEARN_EVERY: Final = 0.02
"""Seconds between two answers of an engine that the length statistics take in: more would cost more than they teach."""
SLACK: Final = 0.25
"""Seconds of prefill that go ahead of what decoding has made up for."""
_VIP: Final = Class.VIP  # reading a member off an Enum class is slow
_ADMITTED: Final = Stage.ADMITTED
_ANSWERING: Final = Stage.ANSWERING
UNDER_WAY: Final = 0.4
"""Of the time to the first token, when all of a prompt is computed or under way."""
KEPT_TPOT: Final = 0.9
"""Of the TPOT that is promised: what prefill is paced by, to begin with."""
LEAST_TPOT: Final = 0.6
MOST_TPOT: Final = 0.95
"""How far that goes."""
TPOT_MISSES: Final = 0.003
"""The share of answers that may miss their TPOT."""
TPOT_RATE: Final = 0.02
"""How much one of them moves what prefill is paced by."""
FEWEST: Final = 8
"""Tokens of an answer whose TPOT says something."""
BUSY_FOR: Final = 10.0
"""Seconds after which the share of time spent on prefill counts 1/e."""
MOST_MADE_UP: Final = 20.0
"""Times a prefill's own time that decoding may be given to make up for it."""
CALM: Final = 8
"""Answers in flight up to which KV use is looked at when a report comes only."""
LEAST_SHARE: Final = 0.01
_UNBOUNDED: Final = 1 << 40
"""Blocks of an engine that does not say how many it has."""


class EngineBooks:
    """Mutable state: the books named above, the requests on the engine, and how much prefill it was handed lately."""

    def __init__(self, name: str, facts: Facts, rules: Rules, lengths: Lengths) -> None:
        self.name = name
        self.facts = facts
        self._follow(rules)
        self.lengths = lengths
        self.kv = KvBook(facts.block_size, self._blocks(facts.kv_tokens), z=rules.z)
        self._known = facts.kv_tokens is not None
        self.factor = Factor(rules.scale)
        self.cap = facts.max_num_seqs
        """Answers that it may have in flight; one request alone may have `max_num_seqs`."""
        self._set_cap()
        self._checked_at = -inf
        self._budget = facts.prefill.budget_tokens
        self.ttft = TtftBook(facts.prefill)
        self.shed = Shedder(rules.shed, rules.ceilings)
        self.asks: dict[int, Ask] = {}
        self.unseen: dict[int, tuple[float, Ask]] = {}
        """Answers read whole, in order of dispatch, and when the first token of each is presumed: nobody sees it."""
        self.load = 0.0
        """Share of it that is in use: KV as predicted, time spent on prefill or places, whichever is more."""
        self._handed = 0  # prompt tokens since the last report
        self._busy = 0.0  # share of time spent on prefill
        self._reported_at = -inf
        self._shares: dict[str, float] = {}
        self.sequences = 0
        """Answers in flight: the sum of `n`."""
        self.decoding = 0
        self.again = inf
        self.share = 1.0
        """Of itself that it is to be given: less while a new engine starts slowly."""
        self.bias = 0.0
        """Seconds that placement adds, whatever the request."""
        self.mark = 0
        self.slow = 1.0
        """How many times as long its prefill takes as that of the engine it is compared with."""
        self.worked = 0.0
        """Engine-seconds of work given lately, in the placement's units."""
        self._learned_at = -inf
        self._length = (0.0, 0.0)  # mean and variance for the ask that was last looked at
        self._quoted: Quoted = (0.0, 0.0, 0.0, 0, (0.0, 0.0, 0.0, 0.0, 0.0))  # the same of its first token
        self._quotes = False  # there is one
        self._paced_until = -inf
        self._kept_tpot = KEPT_TPOT

    def _follow(self, rules: Rules) -> None:
        """Rules are no compiled class: what each decision asks of them is read out once."""
        self.rules = rules
        self._steps = float(rules.backlog_steps)
        self._cached_steps = float(rules.backlog_cached)
        self._multiple = float(rules.ttft_multiple)
        self._tpot = float(rules.tpot)
        self._promises: dict[Class, float] = {cls: float(seconds) for cls, seconds in rules.ttft.items()}
        self._ceilings: dict[Class, float] = {cls: float(share) for cls, share in rules.ceilings.items()}

    # --- asking ------------------------------------------------------------------------------------------------------

    def bound(self, ask: Ask, now: float) -> float:
        """Seconds within which it would have its first token, were it handed over now."""
        return self._quote(ask, now)[1]

    def expects(self, ask: Ask, now: float) -> float:
        return self._quote(ask, now)[0]

    def _quote(self, ask: Ask, now: float) -> Quoted:
        cached = ask.cached.get(self.name, 0)
        return self.ttft.predict(ask.prompt_tokens - cached, cached, now, self.decoding)

    def reckons(self, ask: Ask, now: float) -> float:
        """The bound on its first token, whatever was promised."""
        if self.unseen:
            self.presume(now)
        self._length = self.lengths.residual((ask.model, ask.tenant), 0, ask.max_tokens)
        self._quoted = quoted = self._quote(ask, now)
        self._quotes = True
        return quoted[1]

    def has_room(self, ask: Ask) -> bool:
        """Right after `reckons`: whether it need not wait for a place or for KV there."""
        if self.sequences + ask.n > self.cap:
            return False
        mean, var = self._length
        return self.kv.fits(ask.prompt_tokens, mean, var, ask.n, ceiling_share=self.rules.ceilings[ask.cls])

    @property
    def length(self) -> float:
        """Tokens that the answer last asked for is expected to have."""
        return self._length[0]

    def ideal(self, ask: Ask) -> float:
        """Seconds to its first token were the engine idle."""
        cached = ask.cached.get(self.name, 0)
        return self.ttft.ideal(ask.prompt_tokens - cached, context_tokens=cached) * self.ttft.pace

    def needs(self, ask: Ask, now: float) -> float:
        """Seconds that its first token is taken to need where its promise is judged. Of a `vip` it is the expectation:
        refused, it misses for certain, so it goes unless it would more likely miss than not."""
        quote = self._quote(ask, now)
        return quote[0] if ask.cls is _VIP else quote[1]

    def promise(self, ask: Ask) -> float:
        """Seconds after its arrival within which it is to have its first token."""
        slo = self._promises[ask.cls]
        if ask.ttft_slo < slo:
            slo = ask.ttft_slo
        if self._multiple:
            cached = ask.cached.get(self.name, 0)
            ideal = self.ttft.ideal(ask.prompt_tokens - cached, context_tokens=cached)
            if ideal > slo:
                return ideal * self._multiple
        return slo

    def takes(self, ask: Ask, cls: Class, now: float) -> float:
        """The bound on its first token where it may go there now, else infinity; then `again` says when to ask anew if
        nothing else happens. `cls`: in whose turn it goes."""
        ttft = self.ttft
        self.again = inf
        if self.unseen:
            self.presume(now)
        if self.sequences + ask.n > self.cap and (self.sequences or ask.n > self.facts.max_num_seqs):
            return inf
        shed = self.shed
        shedding = shed.over or shed.level > 0
        if shedding and shed.refuses(cls, ask.anonymous) is not None:
            return inf
        prompt, decoding = ask.prompt_tokens, self.decoding
        cached = ask.cached.get(self.name, 0) if ask.cached else 0
        own = prompt - cached
        vip = cls is _VIP
        if not vip:
            if ttft.tokens:
                room = self._budget - decoding
                if room < 1:
                    room = 1
                most = self._steps * room
                if cached:
                    most *= 1 + self._cached_steps * cached / prompt
                most -= own if own < 1.5 * room else 1.5 * room
                if ttft.tokens > most and ttft.backlog(now) > most:
                    self.again = ttft.until(most, now)
                    return inf
            if decoding and self._paced_until - now > SLACK:
                self.again = self._paced_until - SLACK
                return inf
        mean, var = self._length = self.lengths.residual((ask.model, ask.tenant), 0, ask.max_tokens)
        if not self.kv.fits(
            prompt,
            mean,
            var,
            ask.n,
            ceiling_share=shed.ceiling(cls) if shedding else self._ceilings[cls],
            shared_tokens=cached,
            prefix=self._prefix(ask) if cached else None,
        ) and (self.sequences or self.kv.foreign_blocks or self.never_takes(ask)):
            return inf  # alone it goes: what it is feared to grow to will not be less later
        self._quoted = quoted = ttft.predict(own, cached, now, decoding)
        self._quotes = True
        bound = quoted[1]
        promise = self._promises[ask.cls]
        if self._multiple or ask.ttft_slo < promise:
            promise = self.promise(ask)
        return bound if (quoted[0] if vip else bound) <= promise - (now - ask.arrival) else inf

    def never_takes(self, ask: Ask) -> bool:
        """Whether it would not fit onto the empty engine either, by its prompt alone."""
        kv = self.kv
        blocks = ask.n * -(-(ask.prompt_tokens + 1) // kv.block_size)
        return ask.n > self.facts.max_num_seqs or blocks > self.rules.ceilings[ask.cls] * kv.capacity_blocks

    @staticmethod
    def group(ask: Ask) -> Hashable:
        return (ask.model, ask.tenant)

    def idle(self, now: float) -> bool:
        """Whether work that can wait may go to it: it has at most a step of prefill ahead, and KV to spare. Else
        `again` says when to ask anew if nothing else happens."""
        self.again = inf
        if self.unseen:
            self.presume(now)
        step = self.facts.prefill.budget_tokens
        if self.ttft.backlog(now) > step:
            self.again = self.ttft.until(step, now)
            return False
        return self.kv.peak() <= self.shed.ceiling(Class.LOW) * self.kv.capacity_blocks

    @property
    def kv_tokens(self) -> int | None:
        """What its KV cache holds; None: not known."""
        return self.kv.capacity_blocks * self.kv.block_size if self._known else None

    def use(self) -> float:
        """Predicted peak as a share of the capacity."""
        return self.kv.peak() / self.kv.capacity_blocks

    # --- telling -----------------------------------------------------------------------------------------------------

    def admit(self, ask: Ask, now: float) -> None:
        """Right after `takes`."""
        key, n, prompt = ask.key, ask.n, ask.prompt_tokens
        mean, var = self._length
        ask.expected = mean * n
        cached = ask.cached.get(self.name, 0) if ask.cached else 0
        own = prompt - cached
        prefix = self._prefix(ask) if cached else None
        self.kv.hold(key, prompt, mean, var, n=n, shared_tokens=cached, prefix=prefix)
        if self._quotes:
            self.ttft.sent(key, own, cached, now, self.decoding, self._quoted)
        else:
            self.ttft.dispatched(key, own, cached, now, decoding=self.decoding)
        self.asks[key] = ask
        ask.holder = self
        if not ask.streams:
            self.unseen[key] = (now + ask.bound, ask)
        self.sequences += n
        self._handed += own
        shed = self.shed
        if self._tpot < inf:
            self._pace(ask, now)
        if self.sequences > CALM and self.kv.may_reach(self.rules.shed.resume_at * shed.scale):
            shed.on_use(self.use(), now)

    def _prefix(self, ask: Ask) -> int | None:
        """What names the part of its prompt that is cached here: those whose part ends alike hold it together."""
        blocks = ask.matched.get(self.name, 0)
        return ask.prefix[blocks - 1] if blocks else None

    def first_token(self, ask: Ask, now: float) -> None:
        self.ttft.first_token(ask.key, now)
        ask.first_at = now
        self.decoding += ask.n

    def handed_over(self, ask: Ask) -> None:
        """Another engine computes its prompt; what it will hold here stays booked."""
        self.ttft.forget(ask.key)
        self._handed -= ask.prompt_tokens - ask.cached.get(self.name, 0)

    def presume(self, now: float) -> None:
        """First tokens that nobody sees and that would be there by now: nothing is learned from them."""
        unseen = self.unseen
        while unseen:
            key = next(iter(unseen))
            at, ask = unseen[key]
            if at > now:
                return
            del unseen[key]
            self.ttft.forget(key)
            self.decoding += ask.n
            ask.stage = _ANSWERING

    def produced(self, ask: Ask, tokens: int) -> float:
        """`tokens` of each of its answers are there. Returns what all of them are expected to come to."""
        ask.produced = tokens
        mean, var = self.lengths.residual(self.group(ask), tokens, ask.max_tokens)
        self.kv.progress(ask.key, tokens * ask.n, mean, var)
        return ask.n * (tokens + mean)

    def prefilled(self, ask: Ask, now: float) -> float:
        """The share of its prompt that is computed or under way, of one without a first token, at a guess: little was
        ahead of it, and its last step is scheduled a step before it runs."""
        expected = self.ttft.expected(ask.key)
        return min(1.0, max(0.0, (now - ask.admitted_at) / (UNDER_WAY * expected))) if expected > 0 else 1.0

    def end(self, ask: Ask, now: float, *, whole: bool) -> None:
        """`whole`: the answer came to its own end; else it was cancelled, cut or refused."""
        if self.asks.pop(ask.key, None) is None:
            return
        ask.holder = None
        self.kv.drop(ask.key)
        self.sequences -= ask.n
        if ask.stage is _ANSWERING:
            self.decoding -= ask.n
            if whole and self._tpot < inf:
                self._judge(ask, now)
        elif ask.streams:
            self.ttft.gone(ask.key, now)
        else:
            self.ttft.forget(ask.key)
            self.unseen.pop(ask.key, None)
        if ask.produced and now - self._learned_at >= LEARN_EVERY:
            self._learned_at = now
            self.lengths.observe((ask.model, ask.tenant), ask.produced, censored=not whole)
        if self.shed.over:
            self.shed.on_use(self.use(), now)

    def ease(self, share: float) -> None:
        self.share = min(1.0, max(LEAST_SHARE, share))

    def report(self, report: Report, now: float) -> None:
        self.ease(report.share)
        blocks = None
        if report.kv_tokens is not None and report.kv_tokens > 0:
            blocks = self._blocks(report.kv_tokens)
            if not self._known:
                self._known = True
                self.kv.capacity_blocks = blocks
        share = report.kv_used
        used = round(share * self.kv.capacity_blocks) if share is not None and 0 <= share <= 1 else None
        self.kv.correct(used, blocks, now)
        self.shed.on_report(report.preemptions, report.swapped, now)
        use = self.use()
        self.shed.on_use(use, now)
        passed = now - self._reported_at
        if passed > 0:
            if passed < inf:
                busy = self._handed / (self.ttft.prefill_rate * passed)
                self._busy += (1 - exp(-passed / BUSY_FOR)) * (min(1.0, busy) - self._busy)
            self._handed = 0
            self._reported_at = now
        self.load = min(1.0, max(use, self._busy, self.sequences / self.cap))

    def shares(self) -> dict[str, float]:
        """Of what it has in flight, the part of each model by tokens; of what it had last where it has nothing."""
        tokens: dict[str, float] = {}
        for ask in self.asks.values():
            tokens[ask.model] = tokens.get(ask.model, 0.0) + (ask.prompt_tokens + ask.produced) * ask.n
        total = sum(tokens.values())
        if total:
            self._shares = {model: of_it / total for model, of_it in tokens.items()}
        return self._shares

    def check_cap(self, waiting: float, now: float) -> None:
        """`waiting`: how many wait for it."""
        cap, shed = self.facts.concurrency, self.shed
        if cap is not None:
            self.factor.check(waiting, cap, now, preempted=shed.rose_at > self._checked_at, full=shed.reason != "")
            self._checked_at = now
            self._set_cap()

    def _set_cap(self) -> None:
        most, cap = self.facts.max_num_seqs, self.facts.concurrency
        self.cap = most if cap is None else max(1, min(most, round(cap * self.factor.value)))

    def take_over(self, before: EngineBooks, now: float) -> None:
        """What is on the engine by other books of it, which are then done with; and what those say of preemptions."""
        self.shed = before.shed
        self.shed.configure(self.rules.shed, self.rules.ceilings, now)
        for ask in before.asks.values():
            key, n = ask.key, ask.n
            mean, var = self.lengths.residual(self.group(ask), ask.produced, ask.max_tokens)
            self.kv.hold(key, ask.prompt_tokens, mean, var, n=n)
            self.kv.progress(key, ask.produced * n, mean, var)
            if ask.stage is _ANSWERING:
                self.decoding += n
            else:
                cached = ask.cached.get(self.name, 0)
                self.ttft.dispatched(key, ask.prompt_tokens - cached, cached, ask.admitted_at, decoding=self.decoding)
                if not ask.streams:
                    self.unseen[key] = before.unseen[key]
            self.asks[key] = ask
            ask.holder = self
            self.sequences += n

    def configure(self, rules: Rules, now: float) -> None:
        self._follow(rules)
        self.kv.z = rules.z
        self.shed.configure(rules.shed, rules.ceilings, now)
        self.factor.configure(rules.scale)
        self._set_cap()

    def _blocks(self, kv_tokens: int | None) -> int:
        """vLLM sets one block aside."""
        return _UNBOUNDED if kv_tokens is None else max(1, kv_tokens // self.facts.block_size - 1)

    # --- the pace of prefill -----------------------------------------------------------------------------------------

    def _judge(self, ask: Ask, now: float) -> None:
        """An answer came to its end: whether it had its TPOT. What prefill is paced by follows, so that all but
        `TPOT_MISSES` of the answers have it: adaptive conformal inference, as for the bound on the first token."""
        tokens = ask.produced - 1
        if tokens < FEWEST or ask.first_at < 0:
            return
        missed = now - ask.first_at > self.rules.tpot * tokens
        moved = self._kept_tpot + TPOT_RATE * (TPOT_MISSES - 1 if missed else TPOT_MISSES)
        self._kept_tpot = min(MOST_TPOT, max(LEAST_TPOT, moved))

    def _pace(self, ask: Ask, now: float) -> None:
        """A prefill of s seconds in k steps gives each sequence that decodes k tokens. Where that is less than
        s / TPOT, steps without prefill, of d seconds, are to make up for it, at 1 / d − 1 / TPOT tokens a second."""
        if not self.decoding:
            return
        ttft, tpot = self.ttft, self._kept_tpot * self.rules.tpot
        room = max(1, self.facts.prefill.budget_tokens - self.decoding)
        own = ask.prompt_tokens - ask.cached.get(self.name, 0)
        seconds = ttft.ideal(own) * ttft.pace
        steps = own / room
        if steps > 1:
            seconds = max(seconds, steps * ttft.full_step)
        else:
            seconds = steps * ttft.full_step
        missing = seconds / tpot - steps
        if missing <= 0:
            return
        step, sequence, *_ = ttft.coefficients
        spare = 1 / max((step + self.decoding * sequence) * ttft.pace, 1e-6) - 1 / tpot
        made_up = min(missing / spare, MOST_MADE_UP * seconds) if spare > 0 else MOST_MADE_UP * seconds
        self._paced_until = max(now, self._paced_until) + seconds + made_up

    def __repr__(self) -> str:
        return f"<EngineBooks {self.name} {self.sequences} in flight, {self.decoding} decoding | {self.kv!r}>"


def supply_of(engines: Iterable[EngineBooks], now: float) -> Supply:
    """What they could give together, and what is under way on them."""
    kv = seconds = backlog = held = prefill = 0.0
    places = running = 0
    for b in engines:
        most = b.cap
        size = b.kv.capacity_blocks * b.kv.block_size
        step, sequence, *_ = b.ttft.coefficients
        prefill += b.ttft.prefill_rate
        places += most
        kv += b.rules.shed.resume_at * b.shed.scale * size
        seconds += most * b.ttft.pace * (step + min(b.sequences + 1, most) * sequence)
        backlog += b.ttft.backlog(now)
        running += b.sequences
        held += b.shed.use * size
    speed = places / seconds if seconds else 1.0
    return Supply(prefill or 1.0, places or 1.0, kv or 1.0, speed, backlog, running, held)

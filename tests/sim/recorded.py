"""Runs of a recorded admission, made up: what a gateway with real engines would tell it, and when."""

from __future__ import annotations

import random
import zlib
from dataclasses import replace
from pathlib import Path

import msgspec

from forebay.config.models import Class
from forebay.policy.asks import Ask
from forebay.policy.decisions import Admit, Decision, Wait
from forebay.policy.facts import Facts, Report
from forebay.policy.prior import PrefillPrior
from forebay.policy.recording import Call, Recording, Stop
from forebay.policy.rules import QueueRules, Rules, ScaleRules

PRIOR = PrefillPrior(
    base_s=0.02, per_token_s=1e-4, per_token_context_s=1e-9, decode_step_s=0.02, per_sequence_s=1e-4, budget_tokens=2048
)
FACTS = Facts(kv_tokens=30_000, block_size=16, max_num_seqs=24, prefill=PRIOR)
SCALE = ScaleRules(every_s=0.5, up_over=0.2, down_under=0.1)
RULES = Rules(scale=SCALE, queue=QueueRules(requests=20, low_starvation_s=0.8), wait=dict.fromkeys(Class, 2.0))


class Lines:
    """A sink that keeps lines."""

    open = True

    def __init__(self) -> None:
        self.calls: list[Call] = []

    def write(self, call: Call) -> None:
        self.calls.append(msgspec.json.decode(msgspec.json.encode(call), type=type(call)))

    def save(self, path: Path, why: str = "the run is over") -> Path:
        text = b"".join(msgspec.json.encode(call) + b"\n" for call in self.calls)
        stop = Stop(why, len(self.calls), zlib.crc32(text))
        path.write_bytes(text + msgspec.json.encode(stop) + b"\n")
        return path


class Run:
    """A gateway's part, with clients and two engines that are made up by `seed`: bursts, cancels at every stage,
    an engine that goes and comes back, reloads, quotes, engines that preempt."""

    def __init__(self, seed: int, rules: Rules = RULES) -> None:
        self.dice = random.Random(seed)
        self.rules = rules
        self.sink = Lines()
        self.now = 1000.0 + self.dice.random()
        self.policy = Recording(
            rules, {}, self.sink, str, at=self.now, time="2025-01-01T00:00:00.000+00:00", version="0"
        )
        self.waiting: dict[int, Ask] = {}
        self.started: dict[int, tuple[Ask, float, float]] = {}
        """On an engine: when the first token comes, when the end."""
        self.answering: dict[int, tuple[Ask, float, float]] = {}
        self.keys = 0
        self.preemptions = 0

    def go(self, seconds: float) -> Lines:
        dice, policy = self.dice, self.policy
        policy.engine_here("a", replace(FACTS, concurrency=8), self.now)
        policy.engine_here("b", replace(FACTS, kv_tokens=None), self.now)
        end = self.now + seconds
        report_at, fault_at, gone = self.now, self.now + seconds / 5, False
        while self.now < end:
            self.now += dice.expovariate(120.0)
            for _ in range(dice.choice((0, 0, 0, 1, 1, 2, 40 if dice.random() < 0.02 else 0))):
                self.arrive()
            self.progress()
            if policy.next_due() <= self.now:
                self.told(policy.due(self.now))
            if self.now >= report_at:
                report_at += 0.1
                self.report()
            if self.now >= fault_at:
                fault_at += seconds / 5
                if gone:
                    policy.engine_here("b", replace(FACTS, kv_tokens=None), self.now)
                else:
                    for ask in policy.engine_gone("b", self.now):
                        if dice.random() < 0.5:  # the others come to their end
                            self.leave(ask)
                gone = not gone
                changed = dice.randrange(2, 20), dice.choice((0.04, float("inf")))
                rules = replace(self.rules, queue=replace(self.rules.queue, requests=changed[0]), tpot=changed[1])
                self.told(policy.configure(rules, self.now))
        return self.sink

    def arrive(self) -> None:
        dice = self.dice
        self.keys += 1
        ask = Ask(
            self.keys,
            prompt_tokens=int(dice.lognormvariate(5.5, 1.2)) + 1,
            arrival=self.now - dice.random() * 0.01,
            cls=dice.choices(tuple(Class), (1, 6, 3))[0],
            tenant=dice.choice(("", "one", "two", "three")),
            model=dice.choice(("m", "m", "n")),
            max_tokens=dice.choice((None, 50, 400)),
            n=dice.choice((1, 1, 1, 2)),
            engines=dice.choice((("a", "b"), ("a", "b"), ("b",), ("gone",))),
            anonymous=dice.random() < 0.1,
            streams=dice.random() < 0.8,
            **self.more(),  # type: ignore[arg-type]
        )
        if dice.random() < 0.1:
            self.policy.quote(ask, self.now)
        self.told([(ask, self.policy.offer(ask, self.now))])

    def more(self) -> dict[str, object]:
        """What else is said of a request."""
        return {}

    def cached(self, ask: Ask) -> int | None:
        """What its engine says was cached."""
        return None

    def told(self, found: list[tuple[Ask, Decision]]) -> None:
        for ask, decision in found:
            if self.waiting.pop(ask.key, None) is None and ask.key != self.keys:
                continue  # it left before it was told
            if isinstance(decision, Admit):
                first = self.now + decision.bound * self.dice.uniform(0.3, 1.1)
                self.started[ask.key] = (ask, first, first + self.dice.expovariate(1.0))
                if ask.key % 16 == 0:
                    self.policy.on_split(ask, "b", self.now)
            elif isinstance(decision, Wait):
                self.waiting[ask.key] = ask
            else:
                self.policy.on_end(ask, self.now)

    def progress(self) -> None:
        for key, (ask, first, end) in tuple(self.started.items()):
            if first <= self.now:
                del self.started[key]
                self.answering[key] = (ask, first, end)
                if ask.streams:
                    self.policy.on_first_token(ask, self.now)
        for ask, _, end in tuple(self.answering.values()):
            if end <= self.now:
                self.leave(ask, whole=True)
        for ask in [*self.waiting.values(), *(ask for ask, _, _ in self.started.values())]:
            if self.dice.random() < 0.002:
                self.leave(ask)

    def leave(self, ask: Ask, *, whole: bool = False) -> None:
        self.waiting.pop(ask.key, None)
        self.started.pop(ask.key, None)
        found = self.answering.pop(ask.key, None)
        tokens = round((self.now - found[1]) * 50) + 1 if found is not None else 0
        self.policy.on_end(ask, self.now, tokens=tokens, whole=whole, cached_tokens=self.cached(ask))

    def report(self) -> None:
        counts = {
            key: int((self.now - first) * 50) + 1 for key, (ask, first, _) in self.answering.items() if ask.streams
        }
        self.policy.on_tokens(counts, self.now)
        self.preemptions += self.dice.random() < 0.02
        for engine in ("a", "b"):
            use = self.dice.choice((None, self.dice.random()))
            self.policy.on_report(engine, Report(kv_used=use, kv_tokens=30_000, preemptions=self.preemptions), self.now)


class Placed(Run):
    """With prompts that begin alike, sessions, adapters, spared engines, and caches that lose what they had."""

    def more(self) -> dict[str, object]:
        dice = self.dice
        talk, turns = dice.randrange(30), dice.randrange(12)
        return {
            "prefix": tuple(1000 * talk + i for i in range(turns)),
            "block_tokens": 40.0,
            "session": talk if dice.random() < 0.3 else 0,
        }

    def cached(self, ask: Ask) -> int | None:
        return self.dice.choice((None, 0, int(ask.prompt_tokens * self.dice.random())))

    def report(self) -> None:
        super().report()
        dice, policy = self.dice, self.policy
        for engine in ("a", "b"):
            adapters = dice.choice((None, ("m",), ("m", "n"), ()))
            policy.on_report(engine, Report(adapters=adapters, share=dice.choice((1.0, 1.0, 0.3))), self.now)
        if dice.random() < 0.2:
            policy.ease("b", dice.choice((0.05, 0.5)), self.now)
        if dice.random() < 0.3:
            talk = 1000 * dice.randrange(30)
            policy.cache_lost("a", tuple(talk + i for i in range(12)), dice.randrange(6), self.now)
        if dice.random() < 0.05:
            policy.cache_cleared("b", self.now)

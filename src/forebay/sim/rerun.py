"""The requests of a recorded run before modelled engines: what other rules would have made of them.

A live run's engines answered to the decisions that were made; under other rules they would have answered otherwise, so
they are modelled. What remains of the recording are the requests: when each came, what is known of it, and how long its
answer got. Of a refused one nobody knows that: it gets the length of an answered one of its class, each in turn.

The engines are those of the recording, there from begin to end, with step times as the admission had learned them by
the end of it: the coefficients of `policy.ttft`. Each request has one answer, whatever its `n`, and its client stays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import cycle
from math import inf

from forebay.config.models import Class
from forebay.hardware.steptime import Chunk
from forebay.policy.asks import Ask
from forebay.policy.facts import Facts
from forebay.policy.leastsquares import Five
from forebay.policy.recording import Asked, Call, End, EngineHere, Offer, Recording, Reported, Sink, typed
from forebay.policy.rules import Rules
from forebay.policy.ttft import TtftBook
from forebay.sim.admitted import Admitted
from forebay.sim.cluster import Cluster
from forebay.sim.engine import EngineModel
from forebay.sim.jobs import Listener
from forebay.sim.settings import EngineSettings
from forebay.sim.workload import Ask as Arrival

LEAST_STEP = 1e-5
"""Seconds."""


@dataclass(frozen=True, slots=True)
class LearnedStepTime:
    """A `StepTime` by the formula of `policy.ttft`; `free_tokens`: of each step, at no cost."""

    coefficients: Five
    free_tokens: float = 0.0

    @classmethod
    def of(cls, book: TtftBook) -> LearnedStepTime:
        step, sequence, prefill, token, pair = (book.pace * c for c in book.coefficients)
        return cls((step, sequence, prefill, token, pair), book.prior.free_tokens)

    @property
    def warnings(self) -> Sequence[str]:
        return ()

    def decode(self, n: int, context: int, longest: int) -> float:
        step, sequence, _, _, _ = self.coefficients
        return max(LEAST_STEP, step + n * sequence)

    def mixed(self, chunks: Sequence[Chunk], n: int, context: int, longest: int) -> float:
        _, _, prefill, token, pair = self.coefficients
        tokens = sum(chunk.tokens for chunk in chunks)
        pairs = sum(chunk.tokens * (chunk.context + chunk.tokens / 2) for chunk in chunks)
        work = max(0.0, tokens - self.free_tokens)
        return self.decode(n, context, longest) + prefill + work * token + pairs * pair


class Requests:
    """What a recording says of requests and engines. Mutable state: all of it, as `add` is told the calls in order."""

    def __init__(self, engines: Mapping[str, Facts]) -> None:
        self.facts: dict[str, Facts] = dict(engines)
        """As each engine was last introduced; with the KV capacity that it reports, where nobody else knew it."""
        self._offers: list[Offer] = []
        self._tokens: dict[int, int] = {}

    def add(self, call: Call) -> None:
        if isinstance(call, Offer):
            self._offers.append(call)
        elif isinstance(call, End):
            if call.tokens > 0:
                self._tokens[call.key] = call.tokens
        elif isinstance(call, EngineHere):
            self.facts[call.engine] = typed(call.facts, Facts)
        elif isinstance(call, Reported) and call.engine in self.facts and call.report.get("kv_tokens"):
            known = self.facts[call.engine]
            if known.kv_tokens is None:
                self.facts[call.engine] = replace(known, kv_tokens=call.report["kv_tokens"])

    @property
    def asked(self) -> list[Asked]:
        """In order of arrival."""
        return [offer.ask for offer in self._offers]

    def arrivals(self) -> list[Arrival]:
        """In the same order, from the first one on. Raises ValueError where no request was answered."""
        answered: dict[Class, list[int]] = {}
        for offer in self._offers:
            if (tokens := self._tokens.get(offer.ask.key)) is not None:
                answered.setdefault(offer.ask.cls, []).append(tokens)
        if not answered:
            raise ValueError("no request was answered, so nobody knows how long answers get")
        all_classes = [tokens for lengths in answered.values() for tokens in lengths]
        guesses = {cls: cycle(answered.get(cls, all_classes)) for cls in Class}
        begin = self._offers[0].at
        found = []
        at = 0.0
        for offer in self._offers:
            ask = offer.ask
            at = max(at, offer.at - begin)
            tokens = self._tokens.get(ask.key) or next(guesses[ask.cls])
            prefix = _pieces(ask)
            found.append(Arrival(at, max(1, ask.prompt_tokens), tokens, prefix, tenant=ask.tenant, cls=ask.cls.value))
        return found


def _pieces(ask: Asked) -> tuple[tuple[int, int], ...]:
    """What of its prompt can be shared, as an engine would find it."""
    ends = [min(ask.prompt_tokens, int(i * ask.block_tokens)) for i in range(len(ask.prefix) + 1)]
    return tuple((number, b - a) for number, a, b in zip(ask.prefix, ends, ends[1:], strict=False) if b > a)


class _Rerun(Admitted):
    """As `Admitted`, of requests of which all is known that the gateway knew."""

    def __init__(self, rules: Rules, facts: Mapping[str, Facts], asked: Sequence[Asked], sink: Sink) -> None:
        super().__init__(rules, tuple(facts.values()))
        named = {str(i): known for i, known in enumerate(facts.values())}
        self.admission = Recording(rules, named, sink, str, at=0.0, time="", version="")
        self._known = asked
        self._index = {name: str(i) for i, name in enumerate(facts)}

    def _asked(self, ask: Arrival, row: int, now: float) -> Ask:
        found = self._known[row].ask()
        found.key = row
        found.arrival = now
        found.deadline = found.ttft_slo = inf
        found.n = 1
        found.engines = tuple(self._index.get(name, name) for name in found.engines)
        return found

    def on_first_token(self, row: int, engine: int, now: float) -> None:
        if self._asks[row].streams:
            super().on_first_token(row, engine, now)


def rerun(requests: Requests, steps: Mapping[str, LearnedStepTime], rules: Rules, sink: Sink) -> Cluster:
    """Simulates it; `sink` is told every call of the admission, with requests' keys from 0 in order of arrival. Raises
    ValueError."""
    arrivals, asked = requests.arrivals(), requests.asked
    longest = max(a.prompt_tokens + a.output_tokens for a in arrivals)
    facts = requests.facts
    models = [_settings(known, longest) for known in facts.values()]
    times = [steps[name] for name in facts]

    def make(listener: Listener, i: int) -> EngineModel:
        return EngineModel(models[i], times[i], listener, name=i)

    cluster = Cluster(make, len(models), _Rerun(rules, facts, asked, sink), max_model_len=longest)
    cluster.run(arrivals)
    return cluster


def _settings(facts: Facts, longest: int) -> EngineSettings:
    """Where nobody knows an engine's KV capacity it is one that does not bind."""
    tokens = facts.kv_tokens or facts.max_num_seqs * longest
    return EngineSettings(
        num_blocks=max(2, tokens // facts.block_size),
        block_size=facts.block_size,
        max_num_seqs=facts.max_num_seqs,
        max_num_batched_tokens=max(facts.prefill.budget_tokens, facts.max_num_seqs),
        max_model_len=longest,
    )

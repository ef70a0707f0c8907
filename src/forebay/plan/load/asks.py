"""The requests of a plan, one after the other: when, how long, with what in common, by whom. And a look at all of them
before the first is sent, so that a trace with holes is refused before it does harm."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from random import Random
from typing import Final

from forebay.plan.load.plan import MAX_TOKENS, Plan
from forebay.plan.target import LoadError
from forebay.sim.workload import Ask
from forebay.sim.workloads.arrivals import Arrivals, AtOnce, Even, Gamma, Poisson
from forebay.sim.workloads.dice import dice
from forebay.sim.workloads.distributions import Constant
from forebay.sim.workloads.errors import WorkloadError
from forebay.sim.workloads.lengths import Independent
from forebay.sim.workloads.mix import Assigned, Who
from forebay.sim.workloads.source import Size, Source, Tally
from forebay.sim.workloads.synthetic import Single
from forebay.sim.workloads.transforms import Sped

MOST_SEEN: Final = 1_000_000
"""Requests of a plan that are looked at before it starts."""
MOST_TENANTS: Final = 100_000
"""Tenants told apart in that look."""


def asks(plan: Plan, tally: Tally | None = None) -> Iterator[Ask]:
    """In order of arrival, up to the plan's requests and seconds; of a closed loop the arrivals mean nothing. Raises
    WorkloadError."""
    tally = Tally() if tally is None else tally
    found = _source(plan).stream(tally)
    if plan.workload is not None and (plan.rate is not None or plan.concurrency is not None):
        found = _retimed(found, _arrivals(plan), dice(f"{plan.seed}", "arrivals"))
    most = math.inf if plan.requests is None else plan.requests
    end = math.inf if plan.seconds is None or not plan.open else plan.seconds
    for n, ask in enumerate(found):
        if n >= most or ask.arrival > end:
            return
        yield ask


def _source(plan: Plan) -> Source:
    who = Who(plan.tenants, plan.classes)
    if plan.workload is not None:
        source = plan.workload.source
        if plan.speed != 1.0:
            source = Sped(source, plan.speed)
        return Assigned(source, who, f"{plan.seed}") if who != Who() else source
    prompt, output = plan.lengths or (Constant(plan.prompt_tokens), Constant(plan.max_tokens or MAX_TOKENS))
    single = Single(_arrivals(plan), Independent(prompt, output), who=who, seed=f"{plan.seed}")
    return _Grouped(single, plan.shared_prefix, plan.prefix_groups, f"{plan.seed}") if plan.shared_prefix else single


def _arrivals(plan: Plan) -> Arrivals:
    if plan.rate is None:
        return AtOnce()
    try:
        if plan.arrivals == "uniform":
            return Even(plan.rate)
        return Gamma(plan.rate, plan.cv) if plan.arrivals == "gamma" else Poisson(plan.rate)
    except ValueError as e:
        raise LoadError(str(e)) from None


def _retimed(found: Iterator[Ask], arrivals: Arrivals, rng: Random) -> Iterator[Ask]:
    for at, ask in zip(arrivals.times(rng), found, strict=False):
        yield ask._replace(arrival=at)


@dataclass(frozen=True, slots=True)
class _Grouped:
    """Each request begins with the words of one of `groups`, drawn evenly."""

    source: Single
    tokens: int
    groups: int
    seed: str

    def stream(self, tally: Tally) -> Iterator[Ask]:
        rng = dice(self.seed, "groups")
        for ask in self.source.stream(tally):
            piece = (f"group-{rng.randrange(self.groups)}", self.tokens)
            yield ask._replace(prompt_tokens=ask.prompt_tokens + self.tokens, prefix=(piece,))

    @property
    def size(self) -> Size:
        return self.source.size


@dataclass
class Survey:
    """What a plan will send."""

    requests: int = 0
    whole: bool = True
    """False: looked at are only the first MOST_SEEN, or the plan has no end but a time."""
    last: float = 0.0
    """Seconds until the last arrival."""
    prompt_tokens: int = 0
    output_tokens: int = 0
    tenants: set[str] = field(default_factory=set)
    classes: set[str] = field(default_factory=set)
    fingerprint: str = ""
    """Of arrivals, lengths, prefixes, tenants and classes: equal ones are the same load."""
    notes: list[str] = field(default_factory=list)

    @property
    def rate(self) -> float | None:
        return self.requests / self.last if self.last > 0 else None


def survey(plan: Plan) -> Survey:
    """Look at every request. Raises LoadError for a workload that is none, or that has no request."""
    found, tally, digest = Survey(), Tally(), blake2b(digest_size=8)
    # A closed loop with only a duration sends as many as there is time for.
    bounded = plan if plan.open or plan.requests is not None else replace(plan, requests=1_000)
    try:
        for ask in asks(bounded, tally):
            if found.requests >= MOST_SEEN:
                found.whole = False
                break
            found.requests += 1
            found.last = ask.arrival
            found.prompt_tokens += ask.prompt_tokens
            found.output_tokens += ask.output_tokens
            if len(found.tenants) < MOST_TENANTS:
                found.tenants.add(ask.tenant)
            found.classes.add(ask.cls)
            digest.update(repr(ask).encode("utf-8", "replace"))
    except WorkloadError as e:
        raise LoadError(str(e)) from None
    if not found.requests:
        within = "" if plan.seconds is None else f" within {plan.seconds:g} s"
        raise LoadError(f"there is no request to send{within}: give a higher rate, more seconds or --requests")
    if bounded is not plan:
        found.whole = False
    found.fingerprint = digest.hexdigest()
    found.notes = tally.notes()
    return found

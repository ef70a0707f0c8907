"""A whole measurement: the plan looked at, keys matched, the server warmed, the load run, the cost asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from forebay.ledger.pricing import Price
from forebay.plan.load import knee
from forebay.plan.load.asks import Survey, survey
from forebay.plan.load.bodies import check_texts
from forebay.plan.load.callers import Callers, matched
from forebay.plan.load.document import Facts, as_json
from forebay.plan.load.money import Books, by_tokens, statement
from forebay.plan.load.plan import Plan, Slo
from forebay.plan.load.probe import tokens_of_words, warm_up
from forebay.plan.load.result import Result
from forebay.plan.load.run import Load
from forebay.plan.load.sample import share_interval
from forebay.plan.target import LoadError, Target
from forebay.sim.workloads.mix import Mix

STEP_SECONDS = 30.0
"""Of a step of the search for the knee, where neither requests nor seconds are given."""


@dataclass(frozen=True)
class Around:
    """What surrounds the load."""

    key: str | None = None
    keys: Mapping[str, str] = field(default_factory=dict)
    """By tenant."""
    keys_file: str = ""
    warmup: int = 0
    """Requests that are sent first and not counted."""
    fit_lengths: bool = False
    price: Price | None = None
    gpu_hour: float | None = None
    """US dollars for an hour of all the GPUs behind the server."""
    gateway_cost: bool = False


@dataclass
class Watch:
    """Who looks on."""

    on_load: Callable[[Load], None] | None = None
    """Each load before it runs, so that it can be interrupted."""
    on_progress: Callable[[Load], None] | None = None
    on_record: Callable[[dict[str, Any]], None] | None = None
    on_step: Callable[[knee.Step], None] = lambda step: None


@dataclass(frozen=True)
class Ready:
    """A plan that has been looked at."""

    plan: Plan
    survey: Survey
    callers: Callers
    books: Books | None


def prepared(target: Target, plan: Plan, around: Around) -> Ready:
    """Everything that can be wrong without the server. Raises LoadError."""
    check_texts(plan)
    found = survey(plan)
    if around.keys and found.tenants == {""}:
        plan = replace(plan, tenants=Mix(tuple(around.keys), (1.0,) * len(around.keys)))
        found = survey(plan)
    keys = matched(around.keys, found.tenants, around.keys_file) if around.keys else {}
    callers = Callers(around.key, keys, say_class=found.classes != {"normal"})
    books = None
    if around.gateway_cost:
        books = Books(target, list(keys.values()) or [key for key in (around.key,) if key])
    return Ready(plan, found, callers, books)


async def measure(target: Target, url: str, ready: Ready, around: Around, watch: Watch) -> dict[str, Any]:
    """One run as JSON. Raises LoadError."""
    ready = await _warmed(target, ready, around)
    result, facts = await _run(target, url, ready, around, watch, None)
    return as_json(facts, ready.plan, result)


async def find_knee(
    target: Target, url: str, ready: Ready, around: Around, watch: Watch, search: Callable[[float], knee.Search]
) -> dict[str, Any]:
    """The knee as JSON: the run at it, with all steps in `knee`. `search` is told the plan's own rate. Raises
    LoadError."""
    if not ready.plan.open:
        raise LoadError("the knee is a rate: it is searched for with an open loop, not with a concurrency")
    if ready.plan.seconds is None and ready.plan.requests is None:
        ready = replace(ready, plan=replace(ready.plan, seconds=STEP_SECONDS))
    ready = await _warmed(target, ready, around)
    plan = ready.plan
    own = plan.rate if plan.rate is not None else ready.survey.rate
    if own is None:
        raise LoadError("all requests of this workload come at once, which is no rate; give --rate")
    settings = search(own)
    runs: dict[float, tuple[Ready, Result, Facts]] = {}

    def at(rate: float, slo: Slo) -> Plan:
        if plan.rate is not None:
            return replace(ready.plan, rate=rate, slo=slo)
        return replace(ready.plan, speed=plan.speed * rate / own, slo=slo)

    async def run(rate: float, slo: Slo, hopeless: Callable[[Load], str] | None) -> Result:
        chosen = at(rate, slo)
        one = Ready(chosen, survey(chosen), ready.callers, ready.books)
        result, facts = await _run(target, url, one, around, watch, hopeless)
        runs[rate] = (one, result, facts)
        return result

    def expected(rate: float) -> int:
        if plan.seconds is None:
            return plan.requests or 0
        return min(round(rate * plan.seconds), plan.requests or round(rate * plan.seconds))

    found = await knee.find(run, plan.slo, settings, expected, watch.on_step)
    shown = found.best or found.steps[0]
    one, result, facts = runs[shown.rate]
    if found.interrupted:
        facts.notes.append("The search was interrupted: the knee is only as well known as the steps that ended say.")
    elif found.best is None:
        facts.notes.append("No rate was kept; the figures are those of the first.")
    elif (sure := share_interval(shown.result.good, shown.result.completed + shown.result.failed)) is not None and (
        sure.low < settings.least_share
    ):
        facts.notes.append(
            f"The step at the knee had few requests: {sure.low:.1%} to {sure.high or 1.0:.1%} of many more would be "
            f"good, where {settings.least_share:.1%} are to be. Longer steps (--duration) are surer."
        )
    if not found.interrupted and found.best is not None and found.worst is None:
        facts.notes.append("Every rate was kept: the knee is above the highest.")
    document = as_json(facts, one.plan, result)
    document["interrupted"] = found.interrupted
    document["knee"] = found.as_json() | {"least_share": settings.least_share, "precision": settings.precision}
    return document


async def _warmed(target: Target, ready: Ready, around: Around) -> Ready:
    plan = ready.plan
    if around.fit_lengths:
        plan = replace(plan, words=await tokens_of_words(target, plan, ready.callers))
    if around.warmup:
        await warm_up(target, plan, ready.callers, around.warmup)
    return replace(ready, plan=plan)


async def _run(
    target: Target,
    url: str,
    ready: Ready,
    around: Around,
    watch: Watch,
    hopeless: Callable[[Load], str] | None,
) -> tuple[Result, Facts]:
    facts = Facts(url, ready.survey, notes=list(ready.survey.notes), warmup=around.warmup, started=_now())
    texts = ready.plan.texts
    if texts is not None and (texts.skipped or texts.cut):
        facts.notes.append(
            f"{texts.name}: {texts.skipped:,} entries had nothing to ask"
            f"{f', and only the first {len(texts.prompts):,} were read' if texts.cut else ''}."
        )
    if ready.books is not None:
        await ready.books.open()
    load = Load(
        target,
        ready.plan,
        around.key,
        watch.on_progress,
        callers=ready.callers,
        cost=None if around.price is None else by_tokens(around.price),
        on_record=watch.on_record,
        hopeless=hopeless,
    )
    if watch.on_load is not None:
        watch.on_load(load)
    result = await load.run()
    booked = None if ready.books is None else await ready.books.close(result.completed)
    facts.cost = statement(result, around.price, around.gpu_hour, booked)
    return result, facts


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")

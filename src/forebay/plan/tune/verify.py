"""What was predicted of a setting, beside what a live server does with the same requests."""

from __future__ import annotations

from typing import Any, Final

from forebay.plan.load.callers import Callers
from forebay.plan.load.measure import Around, Watch, measure, prepared
from forebay.plan.load.plan import Plan
from forebay.plan.load.plan import Slo as Promise
from forebay.plan.load.probe import tokens_of_words
from forebay.plan.target import LoadError, Target, models
from forebay.plan.tune.result import as_point, tidied
from forebay.plan.tune.space import Setting, TuneError
from forebay.plan.tune.trial import Lab, Point, Problem
from forebay.sim.workloads.source import Listed, Workload

WARM: Final = 4
"""Requests that are sent first and not counted: a server's first ones compile and load."""
KINDS: Final = ("ttft", "tpot", "e2e")
PERCENTS: Final = ("p50", "p95")
OPTIONS: Final = {"ignore_eos": True}
"""Of each request's body: an answer ends at its length, as the simulated one does (vLLM, SGLang; others leave it)."""


async def verify(
    url: str, problem: Problem, setting: Setting, requests: int, key: str | None, watch: Watch
) -> dict[str, Any]:
    """`url`: of one engine, or of whatever is in front of all of them. The traffic is the problem's, as it is. Raises
    TuneError where the server is not there, is none of OpenAI's kind, or answers nothing."""
    try:
        target = Target.parse(url)
        names = await models(target, key)
        if not names:
            raise LoadError(f"{target.origin} lists no models")
        lab = Lab(problem)
        speed, slo = problem.base.speed, problem.base.slo
        asks = lab.asks(requests, 0)
        callers = Callers(key, {}, say_class=False)
        words = await tokens_of_words(target, Plan(model=names[0], concurrency=1, requests=1), callers)
        plan = Plan(
            model=names[0],
            workload=Workload(problem.base.workload, Listed(asks)),
            speed=speed,
            requests=len(asks),
            max_tokens=None,
            slo=Promise(slo.ttft, None if slo.tpot == float("inf") else slo.tpot, ttft_per_1k=slo.per_1k),
            extra=OPTIONS,
            words=words,
        )
        around = Around(key=key, warmup=WARM)
        found = await measure(target, url, prepared(target, plan, around), around, watch)
    except LoadError as e:
        raise TuneError(f"--verify: {e}") from None
    if not found["completed"]:
        errors = ", ".join(f"{n} × {kind}" for kind, n in found["errors"].items())
        raise TuneError(f"--verify: no request was answered by {url}: {errors or 'interrupted'}")
    predicted = lab.measure(setting, speed, len(asks))
    return tidied_result(url, names[0], setting, predicted, found)


def tidied_result(url: str, model: str, setting: Setting, predicted: Point, measured: dict[str, Any]) -> dict[str, Any]:
    """`rows`: of each figure what was predicted, what was measured and by how much the prediction is over it."""
    rows = []
    for kind in KINDS:
        for percent in PERCENTS:
            got = measured[f"{kind}_ms"][percent]
            rows.append(
                _row(f"{kind}_{percent}_s", getattr(predicted, kind)[percent], None if got is None else got / 1e3)
            )
    rows.append(
        _row("output_tokens_per_s", predicted.output_tokens / predicted.seconds, measured["output_tokens_per_s"])
    )
    rows.append(_row("within_slo", predicted.attainment, measured["goodput"]["share"]))
    notes = list(measured["notes"])
    if setting.gpus > setting.tp:
        notes.append(
            f"The prediction is of all {setting.engines + setting.decode_engines} engines: {url} must lead to them."
        )
    if measured["failed"]:
        notes.append(f"{measured['failed']:,} of {measured['sent']:,} requests failed.")
    found: dict[str, Any] = tidied(
        {
            "url": url,
            "model": model,
            "requests": measured["sent"],
            "completed": measured["completed"],
            "rows": rows,
            "predicted": as_point(predicted),
            "notes": notes,
            "interrupted": measured["interrupted"],
        }
    )
    return found


def _row(name: str, predicted: float, measured: float | None) -> dict[str, Any]:
    off = None if not measured else predicted / measured - 1
    return {"name": name, "predicted": predicted, "measured": measured, "off": off}

"""A search as its JSON result. What the keys mean: docs/tuning.md."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

import forebay
from forebay.plan.simulate_hardware import Hardware
from forebay.plan.tune.frontier import frontier, knee
from forebay.plan.tune.search import Found, Wish
from forebay.plan.tune.space import LAYOUT, Layout, Setting, layout_words
from forebay.plan.tune.trial import Point, Trial

FORMAT: Final = 1
"""Of the JSON result; goes up when a key changes its meaning or goes."""
_T: Final = (12.71, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
"""Student's t of 97.5 % for 1 to 9 degrees of freedom."""
MOST_SEEDS: Final = len(_T) + 1
MOST_TRIALS: Final = 1_000


def document(wish: Wish, found: Found, hardware: Hardware, *, interrupted: bool = False) -> dict[str, Any]:
    """Of what was found by now."""
    base, slo = wish.problem.base, wish.problem.base.slo
    best = None if found.winner is None else _setting(wish, found, found.winner)
    if best is not None and found.fewest is not None:
        setting, point = found.fewest
        best["fewest"] = {"setting": as_dict(setting), "point": as_point(point)}
    drawn = _frontier(wish, found)
    return {
        "forebay": forebay.__version__,
        "kind": "tuning",
        "format": FORMAT,
        "interrupted": interrupted,
        "model": hardware.model,
        "gpu": hardware.gpu,
        "gpus": wish.gpus,
        "workload": {
            "name": base.workload,
            "seed": base.seed,
            "speed": base.speed,
            "rate_per_s": found.mix.rate * base.speed,
            "prompt_tokens": found.mix.prompt,
            "output_tokens": found.mix.output,
            "longest": found.mix.longest,
            "shared_prefix": found.mix.shared,
        },
        "slo": {
            "ttft_s": slo.ttft,
            "per_1k_s": slo.per_1k,
            "tpot_s": slo.tpot if math.isfinite(slo.tpot) else None,
            "attainment": wish.problem.attainment,
        },
        "latency": wish.latency,
        "step_time": {"source": hardware.source, "note": hardware.note},
        "search": {
            "combinations": found.combinations,
            "unfit": found.unfit,
            "settings": len({t.setting for t in found.screened} | set(found.final)),
            "simulations": found.simulated,
            "requests": list(found.requests),
            "seeds": wish.seeds,
        },
        "best": best,
        "compared": [_setting(wish, found, s) for s in found.final] if wish.compare and found.winner else [],
        "choices": [] if found.winner is None else _choices(wish, found, found.winner),
        "layouts": [] if found.winner is None else _layouts(wish, found, found.winner),
        "current": None
        if wish.current is None or wish.current not in found.final
        else _setting(wish, found, wish.current),
        "frontier": drawn,
        "curves": [
            {"setting": as_dict(s), "name": str(s), "points": [as_point(p) for p in points]}
            for s, points in found.curves.items()
        ],
        "trials": [_trial(t) for t in sorted(found.screened, key=lambda t: -t.capacity)[:MOST_TRIALS]],
        "warnings": found.notes,
    }


def as_dict(setting: Setting) -> dict[str, Any]:
    return asdict(setting) | {"gpus": setting.gpus}


def as_point(point: Point) -> dict[str, Any]:
    found: dict[str, Any] = tidied(asdict(point))
    return found


def tidied(value: Any) -> Any:
    """Numbers of 6 digits; None where there is none."""
    if isinstance(value, dict):
        return {k: tidied(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [tidied(v) for v in value]
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    return value


def interval(values: Sequence[float]) -> dict[str, float | None]:
    """Mean and its 95 % interval (Student's t over the values); without bounds where there is one value."""
    n = len(values)
    mean = sum(values) / n
    if n < 2:
        return {"mean": mean, "low": None, "high": None}
    spread = math.sqrt(sum((x - mean) ** 2 for x in values) / (n - 1))
    half = _T[min(n - 2, len(_T) - 1)] * spread / math.sqrt(n)
    return {"mean": mean, "low": mean - half, "high": mean + half}


def loss(best: Sequence[Trial], other: Sequence[Trial]) -> dict[str, Any]:
    """How much less the other bears, as a share of the best's, of the same seeds one by one; and what can be said.
    `verdict`: worse or better where the interval leaves 0 out, even where it does not or the difference is 0; null
    where one seed tells nothing."""
    parts = [1 - o.capacity / b.capacity for b, o in zip(best, other, strict=True) if b.capacity > 0]
    found: dict[str, Any] = interval(parts) if parts else {"mean": None, "low": None, "high": None}
    low, high = found["low"], found["high"]
    if low is None:
        return found | {"verdict": "even" if found["mean"] == 0 else None}
    return found | {"verdict": "worse" if low > 1e-9 else "better" if high < -1e-9 else "even"}


def _setting(wish: Wish, found: Found, setting: Setting) -> dict[str, Any]:
    trials = found.final[setting]
    at = [t.at for t in trials if t.at is not None]
    assert found.winner is not None
    row: dict[str, Any] = tidied(
        {
            "setting": as_dict(setting),
            "name": str(setting),
            "capacity_per_s": interval([t.capacity for t in trials]),
            "loss": loss(found.final[found.winner], trials),
            "at_capacity": as_point(at[0]) if at else None,
            "full": as_point(found.full[setting]) if setting in found.full else None,
            "here": as_point(found.here[setting]) if setting in found.here else None,
        }
    )
    return row


def _choices(wish: Wish, found: Found, winner: Setting) -> list[dict[str, Any]]:
    """What differs from the winner in one field (and what follows from it)."""
    rows = []
    for setting in found.final:
        changed = setting.differs(winner)
        names = [name for name in changed if name not in LAYOUT]
        if len(names) != len(changed) or not names:
            continue
        if len(names) > 1 and set(names) != {"enable_chunked_prefill", "max_num_batched_tokens"}:
            continue
        name = "enable_chunked_prefill" if len(names) > 1 else names[0]
        rows.append(
            {"field": name, "value": changed[name], "instead_of": getattr(winner, name)}
            | _setting(wish, found, setting)
        )
    order = list(as_dict(winner))
    return sorted(rows, key=lambda row: (order.index(row["field"]), _sortable(row["value"])))


def _sortable(value: Any) -> tuple[str, float, str]:
    number = float(value) if isinstance(value, int | float) else 0.0
    return type(value).__name__, number, str(value)


def _layouts(wish: Wish, found: Found, winner: Setting) -> list[dict[str, Any]]:
    """The best of each way to share the GPUs out, of those that were looked at to the end."""
    best: dict[Layout, Setting] = {}
    for setting in found.final:
        known = best.get(setting.layout)
        if known is None or found.mean(setting) > found.mean(known):
            best[setting.layout] = setting
    best[winner.layout] = winner
    rows = sorted(best.values(), key=lambda s: -found.mean(s))
    return [{"layout": layout_words(s)} | _setting(wish, found, s) for s in rows]


def _trial(trial: Trial) -> dict[str, Any]:
    row: dict[str, Any] = tidied(
        {
            "setting": as_dict(trial.setting),
            "name": str(trial.setting),
            "capacity_per_s": trial.capacity,
            "at_capacity": None if trial.at is None else as_point(trial.at),
        }
    )
    return row


def _frontier(wish: Wish, found: Found) -> list[dict[str, Any]]:
    """Points of all settings and loads in the longer rounds at which the engines keep up and that no other beats in
    latency, throughput and cost at once; one of them may be the knee of latency and throughput."""
    seen: dict[tuple[Setting, float], Point] = {}
    for trial in [*found.better, *(t for trials in found.final.values() for t in trials if t.seed == 0)]:
        seen |= {(trial.setting, p.speed): p for p in trial.points}
    for setting, points in found.curves.items():
        seen |= {(setting, p.speed): p for p in points}
    pairs = [(s, p) for (s, _), p in seen.items() if p.keeps_up and p.output > 0]

    def costs(pair: tuple[Setting, Point]) -> tuple[float, ...]:
        late, _, dollars = measures(wish.latency)(as_point(pair[1]))
        return late, -pair[1].output, dollars

    best = frontier(pairs, costs)
    flat = frontier(best, lambda pair: costs(pair)[:2])
    at = knee([(costs(pair)[0], pair[1].output) for pair in flat])
    bend = None if at is None else flat[at]
    return [{"setting": as_dict(s), "name": str(s), "point": as_point(p), "knee": (s, p) == bend} for s, p in best]


def measures(latency: str) -> Callable[[Mapping[str, Any]], tuple[float, float, float]]:
    """Of a point as in the result: its latency (P95), output tokens a second, and USD a million of them (0 where there
    is no price)."""

    def of(point: Mapping[str, Any]) -> tuple[float, float, float]:
        late = point[latency]["p95"]
        return (
            math.nan if late is None else late,
            point["output"] or 0.0,
            point["dollars_per_million"] or 0.0,
        )

    return of

"""From rows, gaps and samples to the numbers and curves of a run's JSON result. What the keys mean: docs/simulator.md.

A percentile is the smallest observation that so many percent of all do not exceed (nearest rank).
"""

from __future__ import annotations

from math import isfinite
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from forebay.sim.result_gaps import Gaps
from forebay.sim.results import Outcome, Requests, Slo

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

PERCENTS: Final = (50, 90, 95, 99)
TOP: Final = 10
"""Tenants that a result shows one by one; the others are one line."""
BINS: Final = 120
"""Most points of a curve by time of arrival."""
CURVE: Final = 400
"""About as many points of a distribution's curve."""
_FIRST_CLASSES: Final = ("vip", "normal", "low")


class Rows:
    """The columns as numpy arrays, with what follows from them. Holds views: no row may arrive while it lives."""

    def __init__(self, requests: Requests, slo: Slo) -> None:
        self.arrival: Floats = np.frombuffer(requests.arrival)
        self.prompt = np.frombuffer(requests.prompt, dtype=np.int64)
        self.output = np.frombuffer(requests.output, dtype=np.int64)
        self.tenant = np.frombuffer(requests.tenant, dtype=np.int32)
        self.cls = np.frombuffer(requests.cls, dtype=np.uint16)
        self.outcome = np.frombuffer(requests.outcome, dtype=np.uint8)
        self.preemptions = np.frombuffer(requests.preemptions, dtype=np.int32)
        first, end = np.frombuffer(requests.first), np.frombuffer(requests.end)
        self.finished: Flags = self.outcome == Outcome.FINISHED
        self.ttft: Floats = first - self.arrival
        """NaN where no first token came."""
        self.queue: Floats = np.frombuffer(requests.scheduled) - self.arrival
        with np.errstate(divide="ignore", invalid="ignore"):
            tpot = (end - first) / (self.output - 1)
        self.tpot: Floats = np.where(self.finished & (self.output > 1), tpot, np.nan)
        self.e2e: Floats = np.where(self.finished, end - self.arrival, np.nan)
        in_time = self.ttft <= slo.ttft + slo.per_1k * self.prompt / 1e3
        self.met: Flags = self.finished & in_time & ~(self.tpot > slo.tpot)


def summary(requests: Requests, gaps: Gaps, slo: Slo, seconds: float) -> dict[str, Any]:
    """The requests' numbers over `seconds` of simulated time."""
    rows = Rows(requests, slo)
    everyone = np.ones(len(requests), dtype=np.bool_)
    per_s = 1 / seconds if seconds > 0 else 0.0
    found = _group(rows, everyone)
    found |= {
        "seconds": tidy(seconds),
        "goodput_per_s": tidy(found["met_slo"] * per_s),
        "requests_per_s": tidy(found["requests"]["finished"] * per_s),
        "prompt_tokens_per_s": tidy(float(rows.prompt[rows.finished].sum()) * per_s),
        "output_tokens_per_s": tidy(float(rows.output[rows.finished].sum()) * per_s),
        "goodput_output_tokens_per_s": tidy(float(rows.output[rows.met].sum()) * per_s),
        "itl_s": _gap_stats(gaps),
        "fairness_jain": _jain(rows, len(requests.tenants.names)),
        "classes": _classes(rows, requests),
        "tenants": _tenants(rows, requests),
    }
    return found


def curves(requests: Requests, gaps: Gaps, slo: Slo) -> dict[str, Any]:
    """`distributions`: each a curve of seconds and the fraction of observations that do not exceed them. `arrivals`:
    rates and TTFT by time of arrival."""
    rows = Rows(requests, slo)
    xs, ys = gaps.cdf()
    thin = max(1, len(xs) // CURVE)
    return {
        "distributions": {
            "ttft": _curve(rows.ttft),
            "tpot": _curve(rows.tpot),
            "itl": {
                "seconds": [tidy(x) for x in xs[::thin] + xs[-1:]],
                "fraction": [tidy(y) for y in ys[::thin] + ys[-1:]],
            },
            "e2e": _curve(rows.e2e),
        },
        "arrivals": _by_arrival(rows),
    }


def tidy(x: float) -> float | None:
    """Six significant digits; None for what is no finite number, since JSON has no word for it."""
    return float(f"{x:.6g}") if isfinite(x) else None


def _group(rows: Rows, of: Flags) -> dict[str, Any]:
    n = int(of.sum())
    outcomes = np.bincount(rows.outcome[of], minlength=len(Outcome))
    met = int(rows.met[of].sum())
    return {
        "requests": {"arrived": n} | {o.name.lower(): int(outcomes[o]) for o in Outcome},
        "met_slo": met,
        "slo_attainment": tidy(met / n) if n else None,
        "prompt_tokens": int(rows.prompt[of].sum()),
        "output_tokens": int(rows.output[of & rows.finished].sum()),
        "preemptions": int(rows.preemptions[of].sum()),
        "ttft_s": _stats(rows.ttft[of]),
        "tpot_s": _stats(rows.tpot[of]),
        "e2e_s": _stats(rows.e2e[of]),
        "queue_s": _stats(rows.queue[of]),
    }


def _stats(values: Floats) -> dict[str, Any]:
    known = values[~np.isnan(values)]
    if not known.size:
        return {"count": 0, "mean": None} | {f"p{p}": None for p in PERCENTS} | {"max": None}
    at = np.percentile(known, PERCENTS, method="inverted_cdf")
    return (
        {"count": int(known.size), "mean": tidy(float(known.mean()))}
        | {f"p{p}": tidy(float(x)) for p, x in zip(PERCENTS, at, strict=True)}
        | {"max": tidy(float(known.max()))}
    )


def _gap_stats(gaps: Gaps) -> dict[str, Any]:
    at = {"mean": gaps.mean} | {f"p{p}": gaps.percentile(p) for p in PERCENTS}
    at["max"] = gaps.largest if gaps.count else None
    return {"count": gaps.count} | {name: None if x is None else tidy(x) for name, x in at.items()}


def _classes(rows: Rows, requests: Requests) -> list[dict[str, Any]]:
    names = requests.classes.names
    first = {name: i for i, name in enumerate(_FIRST_CLASSES)}
    order = sorted(range(len(names)), key=lambda i: (first.get(names[i], len(first)), names[i]))
    return [{"name": names[i]} | _group(rows, rows.cls == i) for i in order]


def _tenants(rows: Rows, requests: Requests) -> list[dict[str, Any]]:
    """The TOP by tokens asked for, the largest first, then all others as one with `tenants` to say how many."""
    names = requests.tenants.names
    if not names:
        return []
    tokens = np.bincount(rows.tenant, weights=rows.prompt + rows.output, minlength=len(names))
    order = sorted(range(len(names)), key=lambda i: (-tokens[i], names[i]))
    found = [{"name": names[i], "tenants": 1} | _group(rows, rows.tenant == i) for i in order[:TOP]]
    if rest := order[TOP:]:
        flags = np.zeros(len(names), dtype=np.bool_)
        flags[rest] = True
        found.append({"name": None, "tenants": len(rest)} | _group(rows, flags[rows.tenant]))
    return found


def _jain(rows: Rows, tenants: int) -> float | None:
    """Jain's index (Jain, Chiu, Hawe, DEC-TR-301, 1984) of the fraction of its requests that met the SLO, over tenants:
    1 where all fare alike, 1/n where one gets everything. None for a single tenant, or where no one gets anything."""
    if tenants < 2:
        return None
    asked = np.bincount(rows.tenant, minlength=tenants)
    share = np.bincount(rows.tenant[rows.met], minlength=tenants) / asked
    squares = float((share**2).sum())
    return tidy(float(share.sum()) ** 2 / (tenants * squares)) if squares else None


def _curve(values: Floats) -> dict[str, Any]:
    known = np.sort(values[~np.isnan(values)])
    n = known.size
    if not n:
        return {"seconds": [], "fraction": []}
    if n <= CURVE:
        ranks = np.arange(n)
    else:
        grid = np.concatenate([np.linspace(a, b, k) for a, b, k in ((0, 0.9, 181), (0.9, 0.99, 91), (0.99, 1, 121))])
        ranks = np.unique(np.minimum((grid * n).astype(np.int64), n - 1))
    fractions = (ranks + 1) / n
    return {
        "seconds": [tidy(float(x)) for x in known[ranks]],
        "fraction": [tidy(float(x)) for x in fractions],
    }


def _by_arrival(rows: Rows) -> dict[str, Any]:
    span = float(rows.arrival[-1]) if rows.arrival.size else 0.0
    bins = max(1, min(BINS, rows.arrival.size // 4))
    width = max(span, 1e-9) / bins
    at = np.minimum((rows.arrival / width).astype(np.int64), bins - 1)

    def rate(of: Flags) -> list[float | None]:
        return [tidy(float(n) / width) for n in np.bincount(at[of], minlength=bins)]

    order = np.argsort(at, kind="stable")
    parts = np.split(rows.ttft[order], np.searchsorted(at[order], np.arange(1, bins)))
    ttfts = [_stats(part) for part in parts]
    refused = np.isin(rows.outcome, (Outcome.QUEUE_FULL, Outcome.REFUSED, Outcome.TOO_LONG))
    return {
        "width": tidy(width),
        "time": [tidy((i + 0.5) * width) for i in range(bins)],
        "offered_per_s": rate(np.ones(rows.arrival.size, dtype=np.bool_)),
        "goodput_per_s": rate(rows.met),
        "refused_per_s": rate(refused),
        "abandoned_per_s": rate(rows.outcome == Outcome.ABANDONED),
        "ttft_p50_s": [t["p50"] for t in ttfts],
        "ttft_p99_s": [t["p99"] for t in ttfts],
    }

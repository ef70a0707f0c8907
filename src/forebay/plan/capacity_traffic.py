"""Traffic of a plan: from 24 numbers, or from the arrivals of a trace."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from forebay.plan.capacity_lengths import Floats
from forebay.plan.capacity_question import PlanError, Traffic

HOUR: Final = 3_600.0
DAY: Final = 86_400.0
WINDOW: Final = 300.0
"""Seconds: a peak that lasts as long is planned for."""
SHORT: Final = 10.0
"""Seconds over which bursts are looked at."""
BURSTY: Final = 2.0
"""Times a Poisson process's variance."""
FEW: Final = 100
"""Requests; a rate of fewer is off by more than 10 %."""
HOLE: Final = 20.0
"""Mean gaps, and at least a window: so long without a request is a hole in a trace, and no night."""


def hours(text: str) -> tuple[float, ...]:
    """24 rates, with commas or semicolons. Raises PlanError."""
    parts = [part.strip() for part in text.replace(";", ",").split(",")]
    if len(parts) != 24:
        raise PlanError(f"--hours needs 24 numbers, requests a second from midnight, not {len(parts)}")
    found = []
    for i, part in enumerate(parts):
        try:
            value = float(part)
        except ValueError:
            value = math.nan
        if not 0 <= value < 1e9:
            raise PlanError(
                f"--hours: hour {i} is '{part[:40]}' where a number of requests a second, at least 0, is needed"
            )
        found.append(value)
    return tuple(found)


@dataclass(frozen=True)
class Seen:
    traffic: Traffic
    notes: tuple[str, ...]


def of_arrivals(arrivals: Floats, name: str, growth: float = 1.0) -> Seen:
    """Of a trace's times in seconds, in order. A day or more becomes 24 hours, each with the highest rate it had; less
    becomes its busiest five minutes. Raises PlanError for a trace without a span."""
    span = float(arrivals[-1] - arrivals[0]) if len(arrivals) > 1 else 0.0
    if span <= 0:
        raise PlanError(f"{name} has {len(arrivals):,} requests at one moment, which is no rate: give --qps or --users")
    notes = []
    if span < WINDOW or len(arrivals) < FEW:
        notes.append(
            f"{name} has {len(arrivals):,} requests in {span:,.3g} s, which is little to tell a rate by; give --qps or "
            "--users, or a longer trace"
        )
    gaps = np.diff(arrivals)
    mean_gap = span / len(gaps)
    empty = gaps[gaps > max(WINDOW, HOLE * mean_gap)]
    covered = span
    if len(empty):
        longest = int(np.argmax(gaps))
        covered = span - float(empty.sum())
        notes.append(
            f"{name} has {len(empty)} hole{'s' if len(empty) > 1 else ''} of {float(empty.sum()) / 60:,.0f} minutes in "
            f"all, the longest from minute {float(arrivals[longest]) / 60:,.0f} to "
            f"{float(arrivals[longest + 1]) / 60:,.0f}: they are not counted as quiet"
        )
    begin = float(arrivals[0])
    window = min(WINDOW, span)
    in_window = np.searchsorted(arrivals, arrivals + window) - np.arange(len(arrivals))
    peak = float(in_window.max()) / window * growth
    mean = len(arrivals) / covered * growth
    few = np.bincount(((arrivals - begin) / SHORT).astype(np.int64))
    near = _variance_over_mean(few)
    if near > BURSTY:
        notes.append(
            f"{name} comes in bursts: the variance of its requests in {SHORT:g} s is {near:.1f} times that of "
            "independent ones, which the plan assumes; plan for a higher --qps, or simulate it (forebay simulate)"
        )
    grown = f" × {growth:g}" if growth != 1 else ""
    if span < DAY:
        text = f"{name}{grown}: {mean:.3g} requests/s in the mean, {peak:.3g} in its busiest {window / 60:g} minutes"
        return Seen(Traffic(hours=(mean,) * 24, peak=peak, text=text), tuple(notes))
    rates = np.bincount(((arrivals - begin) / HOUR).astype(np.int64)) / HOUR * growth
    day = tuple(float(rates[hour::24].max()) for hour in range(24))
    text = f"{name}{grown}: each hour's highest of {span / DAY:.1f} days, from its first request on"
    return Seen(Traffic(hours=day, peak=max(peak, max(day)), text=text), tuple(notes))


def _variance_over_mean(counts: np.ndarray) -> float:
    """Of counts in short windows, against windows near them, so that a day's rise and fall is no burst."""
    if len(counts) < 20:
        return 1.0
    steps = np.diff(counts.astype(np.float64))
    mean = float(counts.mean())
    return float((steps**2).mean()) / 2 / mean if mean > 0 else 1.0

"""From timed steps of a live engine to the coefficients of `forebay.hardware.fitted`: non-negative least squares on
relative errors, with outliers weighted down.

Each sample is a time that was measured and the steps it is made of; the formula is linear in its coefficients, so is a
sum of steps. A time to first token has the host's cost in it, a gap between two tokens has not: that is what tells them
apart.
"""

from __future__ import annotations

import statistics
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from forebay.hardware.fitted import Coefficients, FitError, Host
from forebay.hardware.steptime import Chunk

if TYPE_CHECKING:
    import numpy as np

    Vector = np.ndarray[Any, np.dtype[np.float64]]

AXES: Final = ("prefill", "decode", "mixed")
KNOTS: Final = (16, 64, 256)
"""Tokens of a step at which the curve may bend beyond the batches that decode; from the last one on it is straight up
to the largest step."""
HUBER: Final = 0.03
"""Relative error from which on a sample counts by its distance instead of the square of it."""
ROUNDS: Final = 20


@dataclass(frozen=True, slots=True)
class Step:
    chunks: tuple[Chunk, ...]
    n: int
    context: int

    @property
    def tokens(self) -> int:
        return self.n + sum(c.tokens for c in self.chunks)


@dataclass(frozen=True, slots=True)
class Sample:
    """`seconds` were measured for `steps` and, where `prompt_tokens` is given, for the host's part of a request of so
    many. Samples of one `point` were meant to be the same."""

    axis: str
    point: str
    steps: tuple[Step, ...]
    seconds: float
    prompt_tokens: int | None = None
    waited: float | None = None
    """Of a prompt that came in while others decoded: seconds from its sending to the begin of its steps."""
    arrived: int = 0
    """That prompt's tokens."""


@dataclass(frozen=True, slots=True)
class Fit:
    coefficients: Coefficients
    host: Host
    error: FitError
    points: tuple[Point, ...]


@dataclass(frozen=True, slots=True)
class Point:
    """Medians."""

    axis: str
    name: str
    samples: int
    measured: float
    fitted: float

    @property
    def error(self) -> float:
        return self.fitted / self.measured - 1.0


class CannotFit(Exception):
    """The samples do not say enough."""


def knots_of(samples: Sequence[Sample]) -> list[int]:
    """Where the curve has its points: at each batch that decodes, then at those of `KNOTS` with samples between them,
    and at the largest step."""
    steps = [step for sample in samples for step in sample.steps]
    found = sorted({step.n for step in steps if not step.chunks})
    sizes = sorted({step.tokens for step in steps if step.chunks})
    least = found[-1] if found else 0
    for knot in KNOTS:
        if sizes and least * 2 <= knot < sizes[-1] / 2 and any(least < size <= knot * 1.5 for size in sizes):
            found.append(knot)
            least = knot
    if sizes and sizes[-1] > least:
        found.append(sizes[-1])
    return found


def fit(samples: Sequence[Sample]) -> Fit:
    """Raises CannotFit where there are no samples, or none that can tell a coefficient."""
    import numpy as np

    if not samples:
        raise CannotFit("nothing was measured")
    knots = knots_of(samples)
    rows = np.array([_row(s, knots) for s in samples])
    seconds = np.array([s.seconds for s in samples])
    if not np.all(seconds > 0):
        raise CannotFit("a measured time is not more than 0 s")
    groups: dict[tuple[str, str], list[float]] = {}
    for sample in samples:
        groups.setdefault((sample.axis, sample.point), []).append(sample.seconds)
    usual = np.array([statistics.median(groups[s.axis, s.point]) for s in samples])
    rows /= usual[:, None]
    wanted = seconds / usual
    weights = np.ones(len(samples))
    found = np.zeros(rows.shape[1])
    for _ in range(ROUNDS):
        root = np.sqrt(weights)
        found = nnls(rows * root[:, None], wanted * root)
        errors = np.abs(rows @ found - wanted)
        weights = np.where(errors > HUBER, HUBER / np.maximum(errors, 1e-12), 1.0)
    n = len(knots)
    values = [float(x) for x in found]
    coefficients = Coefficients(tuple(zip(knots, values[:n], strict=True)), *values[n : n + 4])
    return _scored(samples, coefficients, Host(*values[n + 4 :]), rows @ found / wanted)


def _row(sample: Sample, knots: Sequence[int]) -> list[float]:
    """The sample's features, in the order of the curve's points and of the fields of `Coefficients` and `Host`."""
    row = [0.0] * (len(knots) + 6)
    n = len(knots)
    for step in sample.steps:
        tokens = step.tokens
        i = bisect_left(knots, tokens)
        if i == n or knots[i] == tokens or i == 0:
            row[min(i, n - 1)] += 1.0
        else:
            share = (tokens - knots[i - 1]) / (knots[i] - knots[i - 1])
            row[i - 1] += 1.0 - share
            row[i] += share
        row[n] += step.n + sum(c.last for c in step.chunks)
        row[n + 1] += len(step.chunks)
        row[n + 2] += step.context
        row[n + 3] += sum(c.tokens * (c.context + 0.5 * c.tokens) for c in step.chunks)
    if sample.prompt_tokens is not None:
        row[n + 4] = 1.0
        row[n + 5] = sample.prompt_tokens
    return row


def nnls(a: Vector, b: Vector) -> Vector:
    """x ≥ 0 with the least |a·x - b| (Lawson and Hanson, Solving Least Squares Problems, 1974, algorithm NNLS). `a` is
    (rows, columns); columns may depend on each other."""
    import numpy as np

    scale = np.linalg.norm(a, axis=0)
    used = scale > 0
    a = a / np.where(used, scale, 1.0)
    x = np.zeros(a.shape[1])
    passive = np.zeros(a.shape[1], dtype=bool)
    spoilt = np.zeros(a.shape[1], dtype=bool)  # would turn negative at once, as things are
    tolerance = 1e-9 * max(1.0, float(np.abs(a.T @ b).max()))
    for _ in range(30 * a.shape[1]):
        gain = np.where(used & ~passive & ~spoilt, a.T @ (b - a @ x), -np.inf)
        best = int(gain.argmax())
        if gain[best] <= tolerance:
            break
        passive[best] = True
        z = _least(a, b, passive)
        if z[best] <= 0:
            passive[best] = False
            spoilt[best] = True
            continue
        spoilt[:] = False
        while (low := passive & (z <= 0)).any():
            x = x + float((x[low] / (x[low] - z[low])).min()) * (z - x)
            passive &= x > 1e-14
            x[~passive] = 0.0
            z = _least(a, b, passive)
        x = z
    return np.where(used, x / np.where(used, scale, 1.0), 0.0)


def _least(a: Vector, b: Vector, columns: Vector) -> Vector:
    """The least squares of those columns, 0 elsewhere."""
    import numpy as np

    z = np.zeros(a.shape[1])
    z[columns] = np.linalg.lstsq(a[:, columns], b, rcond=1e-10)[0]
    return z


def _scored(samples: Sequence[Sample], coefficients: Coefficients, host: Host, ratios: Vector) -> Fit:
    """`ratios`: fitted / measured, a sample."""
    groups: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for sample, ratio in zip(samples, ratios, strict=True):
        groups.setdefault((sample.axis, sample.point), []).append((sample.seconds, float(ratio)))
    points = []
    for (axis, name), members in groups.items():
        measured = statistics.median(s for s, _ in members)
        points.append(Point(axis, name, len(members), measured, measured * statistics.median(r for _, r in members)))
    mape = {
        axis: statistics.fmean(abs(p.error) for p in points if p.axis == axis)
        for axis in AXES
        if any(p.axis == axis for p in points)
    }
    mean = statistics.fmean(p.measured for p in points)
    spread = sum((p.measured - mean) ** 2 for p in points)
    left = sum((p.measured - p.fitted) ** 2 for p in points)
    r2 = 1.0 - left / spread if spread > 0 else (1.0 if left == 0 else 0.0)
    return Fit(coefficients, host, FitError(r2, mape, len(points), len(samples)), tuple(points))

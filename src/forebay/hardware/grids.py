"""Linear interpolation on measured grids, in plain Python: what a step's lookup costs is a few bisections."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence

from .steptime import OutOfProfile

Axis = list[float]


class Range:
    """Remembers, once an axis, how far lookups went beyond what was measured; refuses them where strict."""

    __slots__ = ("_far", "_strict", "_title")

    def __init__(self, title: str, *, strict: bool) -> None:
        self._title = title
        self._strict = strict
        self._far: dict[str, tuple[float, float]] = {}

    def beyond(self, axis: str, value: float, edge: float) -> None:
        """Raises `OutOfProfile` where strict."""
        if self._strict:
            raise OutOfProfile(f"{self._title}: {self._line(axis, value, edge)}")
        known = self._far.get(axis)
        if known is None or value > known[0]:
            self._far[axis] = (value, edge)

    @staticmethod
    def _line(axis: str, value: float, edge: float) -> str:
        far = f", {100 * (value / edge - 1):,.0f} % beyond" if edge > 0 else ""
        return f"{axis} {value:,.0f} where {edge:,.0f} is the most that was measured{far}"

    @property
    def warnings(self) -> Sequence[str]:
        return [f"{self._title}: {self._line(a, v, e)}; extrapolated" for a, (v, e) in self._far.items()]


def bracket(axis: Axis, x: float) -> tuple[int, float]:
    """(i, w): x = axis[i] + w · (axis[i + 1] - axis[i]). Below the axis w is 0; above it w is over 1."""
    last = len(axis) - 1
    if last == 0:
        return 0, 0.0
    i = min(max(bisect_right(axis, x) - 1, 0), last - 1)
    low = axis[i]
    return i, max(0.0, (x - low) / (axis[i + 1] - low))


def at(axis: Axis, values: Sequence[float], x: float) -> float:
    """A curve at x: linear between points, level below the first. Above the last along the line from the point at half
    of it, since two close points differ by noise and by tiles; never falling there."""
    last = axis[-1]
    if x > last and len(axis) > 1:
        i = min(bisect_right(axis, last / 2) - 1, len(axis) - 2) if axis[0] <= last / 2 else 0
        return values[-1] + max(0.0, (values[-1] - values[i]) / (last - axis[i])) * (x - last)
    i, w = bracket(axis, x)
    return values[i] + (values[i + 1] - values[i]) * w if w else values[i]


def resample(known: Mapping[float, Sequence[float]], axis: Axis) -> list[list[float]]:
    """Rows at every point of `axis`, from rows that are known at some points of it, value by value."""
    points = sorted(known)
    if points == axis:
        return [list(known[p]) for p in points]
    rows = []
    for x in axis:
        row = known.get(x)
        if row is None:
            rows.append([at(points, [known[p][k] for p in points], x) for k in range(len(known[points[0]]))])
        else:
            rows.append(list(row))
    return rows


def plane(points: Mapping[tuple[float, float], float]) -> tuple[Axis, Axis, list[list[float]]]:
    """A full grid over (x, y) from points that may be ragged: gaps are filled along y first, then along x."""
    xs = sorted({p[0] for p in points})
    ys = sorted({p[1] for p in points})
    rows: dict[float, dict[float, float]] = {}
    for (x, y), value in points.items():
        rows.setdefault(x, {})[y] = value
    full = {x: [r[0] for r in resample({y: [v] for y, v in row.items()}, ys)] for x, row in rows.items()}
    return xs, ys, [full[x] for x in xs]


Cube = list[list[list[list[float]]]]


def cube(points: Mapping[tuple[float, ...], float]) -> tuple[tuple[Axis, Axis, Axis, Axis], Cube]:
    """A full grid over four axes from points that may be ragged (two interleaved sweeps, say): gaps are filled along
    the last axis first. What was measured stays as it was."""
    axes = tuple(sorted({p[k] for p in points}) for k in range(4))
    tree: dict[float, dict[float, dict[float, dict[float, float]]]] = {}
    for (a, b, c, d), value in points.items():
        tree.setdefault(a, {}).setdefault(b, {}).setdefault(c, {})[d] = value
    grid: Cube = []
    for a in axes[0]:
        flat: dict[float, list[float]] = {}
        for b, by_c in tree[a].items():
            rows = {c: [r[0] for r in resample({d: [v] for d, v in by_d.items()}, axes[3])] for c, by_d in by_c.items()}
            flat[b] = [v for row in resample(rows, axes[2]) for v in row]
        width = len(axes[3])
        grid.append([[r[i : i + width] for i in range(0, len(r), width)] for r in resample(flat, axes[1])])
    return (axes[0], axes[1], axes[2], axes[3]), grid

"""A metrics page in Prometheus' text format, as the exporters of the emulated engines lay it out."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate

from forebay.counters import Histogram

Row = tuple[str, float]
"""Labels as they stand between the braces ('' for none), and the value."""


def escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def as_python(value: float) -> str:
    """As prometheus_client writes numbers: 3 is 3.0."""
    return repr(float(value))


def as_rust(value: float) -> str:
    """As metrics-exporter-prometheus does: 3 is 3."""
    return repr(int(value)) if value == int(value) else repr(float(value))


class Page:
    """Families in the order they are added."""

    def __init__(
        self, number: Callable[[float], str] = as_python, *, end: str = "", created: float | None = None
    ) -> None:
        """`end` follows each family. `created`: Unix seconds, for `_created` series; None: there are none."""
        self._out: list[str] = []
        self._number = number
        self._end = end
        self._created = created

    def _family(self, name: str, text: str, kind: str) -> None:
        if text:
            self._out.append(f"# HELP {name} {text}\n")
        self._out.append(f"# TYPE {name} {kind}\n")

    def _row(self, name: str, labels: str, value: float) -> None:
        self._out.append(f"{name}{{{labels}}} {self._number(value)}\n" if labels else f"{name} {self._number(value)}\n")

    def gauge(self, name: str, text: str, *rows: Row, kind: str = "gauge") -> None:
        self._family(name, text, kind)
        for labels, value in rows:
            self._row(name, labels, value)
        self._out.append(self._end)

    def counter(self, name: str, text: str, *rows: Row) -> None:
        """`name` as it stands on the page, `_total` included where the engine has it."""
        self.gauge(name, text, *rows, kind="counter")
        if self._created is not None:
            created = self._created
            self.gauge(f"{name.removesuffix('_total')}_created", text, *((labels, created) for labels, _ in rows))

    def histogram(self, name: str, text: str, h: Histogram, *, before: str = "", after: str = "") -> None:
        """`before` and `after`: the labels on either side of `le`, as the exporters sort them."""
        self._family(name, text, "histogram")
        bounds = [*(self._number(float(e)) for e in h.edges), "+Inf"]
        for bound, total in zip(bounds, accumulate(h.counts), strict=True):
            self._row(f"{name}_bucket", _joined(before, f'le="{bound}"', after), total)
        labels = _joined(before, after)
        self._row(f"{name}_count", labels, sum(h.counts))
        self._row(f"{name}_sum", labels, h.total)
        self._out.append(self._end)
        if self._created is not None:
            self.gauge(f"{name}_created", text, (labels, self._created))

    def render(self) -> bytes:
        return "".join(self._out).encode()


def _joined(*labels: str) -> str:
    return ",".join(filter(None, labels))

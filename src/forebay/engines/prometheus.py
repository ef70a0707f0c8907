"""Prometheus' text format, as far as an adapter needs it: a few names out of a page that holds hundreds.

A page is searched once for all names of an adapter (about 0.2 ms for 50 KB), since it is read several times a second.
Format: github.com/prometheus/docs, content/docs/instrumenting/exposition_formats.md.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Final

_SAMPLE: Final = re.compile(r'(?:\{((?:[^"}]++|"(?:[^"\\]++|\\.)*+")*+)\})?[ \t]*([^ \t\r]++)')
_LABEL: Final = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)\s*=\s*"((?:[^"\\]++|\\.)*+)"')
_ESCAPE: Final = re.compile(r"\\(.)")
_PREFIX: Final = re.compile(r"^(vllm:|sglang:|tgi_|llamacpp:|trtllm_)", re.MULTILINE)

MAX_SAMPLES: Final = 4_096
"""Samples believed of one name."""


@dataclass(frozen=True, slots=True)
class Sample:
    labels: Mapping[str, str]
    value: float


Samples = Mapping[str, tuple[Sample, ...]]


class Reader:
    """Finds the samples of these names."""

    def __init__(self, names: Iterable[str]) -> None:
        any_of = "|".join(map(re.escape, sorted(names, key=len, reverse=True)))
        # The newline is the anchor: a literal first byte is searched for at memchr's speed, which ^ is not.
        self._find = re.compile(rf"\n({any_of})([{{ \t].*)")

    def read(self, page: str) -> dict[str, tuple[Sample, ...]]:
        """The samples by name; values that are no finite number are left out."""
        found: dict[str, list[Sample]] = {}
        for name, rest in self._find.findall("\n" + page):
            samples = found.setdefault(name, [])
            sample = _SAMPLE.match(rest) if len(samples) < MAX_SAMPLES else None
            if sample is None or len(sample[2]) > 64:
                continue
            try:
                value = float(sample[2])
            except ValueError:
                continue
            if isfinite(value):
                samples.append(Sample(_labels(sample[1]), value))
        return {name: tuple(samples) for name, samples in found.items() if samples}


def _labels(text: str | None) -> dict[str, str]:
    if not text:
        return {}
    found = _LABEL.findall(text)
    return {name: _ESCAPE.sub(_unescaped, value) if "\\" in value else value for name, value in found}


def _unescaped(match: re.Match[str]) -> str:
    return "\n" if match[1] == "n" else match[1]


@dataclass(frozen=True, slots=True)
class Metric:
    """Where a field of the report stands: its names, today's first; the first that is on the page counts."""

    field: str
    names: tuple[str, ...]
    how: Callable[[Iterable[float]], float | None]
    old: bool = False
    """Today's versions do not have it."""


def total(values: Iterable[float]) -> float | None:
    """Of all ranks."""
    kept = [v for v in values if v >= 0]
    return sum(kept) if kept else None


def mean(values: Iterable[float]) -> float | None:
    kept = [v for v in values if v >= 0]
    return sum(kept) / len(kept) if kept else None


def least(values: Iterable[float]) -> float | None:
    return min((v for v in values if v > 0), default=None)


def pick(samples: Samples, metric: Metric) -> float | None:
    for name in metric.names:
        found = samples.get(name)
        if found:
            return metric.how(s.value for s in found)
    return None


def count(value: float | None) -> int | None:
    """A number of things; None where it cannot be one."""
    return int(value) if value is not None and 0 <= value < 1e18 else None


def size(value: float | None) -> int | None:
    """A capacity: one of 0 is none."""
    return count(value) or None


def share(value: float | None) -> float | None:
    """0 to 1. Just above 1 is an engine's rounding; more is not a share."""
    return min(value, 1.0) if value is not None and 0.0 <= value <= 1.01 else None


def whose(page: str) -> str:
    """The prefix of the engine whose metrics these are; "" where none is known."""
    found = _PREFIX.search(page)
    return found[1] if found is not None else ""

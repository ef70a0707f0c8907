"""What is compared, and what is good enough."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from benchmarks.fidelity.runs import Request

METRICS: Final = ("TTFT", "TPOT", "E2E")
STATISTICS: Final = ("mean", "P50", "P90", "P99")

GIVEN: Final[Mapping[str, str]] = {  # SHA-256 of requests.jsonl
    "5a6f2a0b09d5eb84bd75b30ed625d883c22b4bcc0a839cd1128ae42f74ecc90d": "RTX4090-Llama-3.1-8B",
    "0175b31b0ddc02b97eb6da1410dc80fc5900b8785c988e90cacee1021d644682": "RTXPRO6000-Llama-3.1-8B",
}
GIVEN_BARS: Final[Mapping[str, float]] = {"TTFT": 0.03, "TPOT": 0.02, "E2E": 0.02}
BARS: Final[Mapping[str, float]] = {"tables": 0.05, "aiconfigurator": 0.15}


@dataclass(frozen=True, slots=True)
class Figure:
    metric: str
    statistic: str
    real: float
    """Seconds."""
    simulated: float
    bar: float

    @property
    def error(self) -> float:
        """Relative; positive where the simulator is slower."""
        return self.simulated / self.real - 1

    @property
    def met(self) -> bool:
        return abs(self.error) <= self.bar

    @property
    def name(self) -> str:
        return f"{self.metric} {self.statistic}"


def samples(requests: Sequence[Request]) -> dict[str, list[float]]:
    """Seconds by metric: TTFT = first token - arrival; TPOT = (last - first token) / (output tokens - 1), of requests
    with more than one; E2E = last token - arrival."""
    return {
        "TTFT": [r.first - r.arrival for r in requests],
        "TPOT": [(r.last - r.first) / (r.output_tokens - 1) for r in requests if r.output_tokens > 1],
        "E2E": [r.last - r.arrival for r in requests],
    }


def bars(digest: str, source: str) -> dict[str, float]:
    """By metric, for a run with these requests."""
    if digest in GIVEN and source == "tables":
        return dict(GIVEN_BARS)
    return dict.fromkeys(METRICS, BARS[source])


def compare(real: Sequence[Request], simulated: Sequence[Request], bar: Mapping[str, float]) -> list[Figure]:
    """Mean, median and upper percentiles (linear between neighbours) of each metric."""
    mine, theirs = samples(simulated), samples(real)
    return [
        Figure(
            metric, statistic, _statistic(theirs[metric], statistic), _statistic(mine[metric], statistic), bar[metric]
        )
        for metric in METRICS
        if theirs[metric]
        for statistic in STATISTICS
    ]


def _statistic(values: Sequence[float], name: str) -> float:
    if name == "mean":
        return float(np.mean(values))
    return float(np.percentile(values, int(name[1:])))

"""Step times for a recorded run's engine, by source."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.common import BenchError
from benchmarks.fidelity.runs import Run
from benchmarks.fidelity.setup import Setup, step_options, tables_folder
from forebay.hardware import aiconf
from forebay.hardware.bundle import load_tables
from forebay.hardware.catalogue import UnknownGpu, UnknownModel, find_gpu, find_model
from forebay.hardware.comm import Ranks, step_seconds
from forebay.hardware.csvtable import BadProfile
from forebay.hardware.grids import at
from forebay.hardware.profiles import resolve
from forebay.hardware.steptime import StepTime

SOURCES = ("tables", "aiconfigurator")
_TOGETHER = tuple(1 << i for i in range(14))


class Skipped(Exception):
    """The source has nothing for this run. The message says why."""


@dataclass(frozen=True, slots=True)
class Source:
    steps: StepTime
    note: str
    """What it is."""
    together: Callable[[float], float] | None = None
    """Of ranks that share experts: seconds, up to a constant, that go with the tokens of all of them together (experts
    and the exchange), where `steps` takes every rank to have as many as the one that asks."""


def step_times(source: str, run: Run, setup: Setup, profiles: Path, *, skew: bool) -> Source:
    """Raises Skipped, and BenchError for tables that cannot be read."""
    if source == "aiconfigurator":
        return _aiconfigurator(setup)
    try:
        folder = tables_folder(run, profiles, setup.gpu)
    except BenchError as e:
        raise Skipped(str(e)) from e
    try:
        steps = load_tables(folder, pad=setup.pad, skew=None if skew else False, **step_options(setup))
        together = _together(folder, setup) if setup.lockstep else None
    except (BadProfile, UnknownGpu, UnknownModel) as e:
        raise BenchError(str(e.args[0])) from e
    return Source(steps, f"measured kernels in {folder}{', skew_fit.csv applied' if skew else ''}", together)


def _together(folder: Path, setup: Setup) -> Callable[[float], float]:
    """One token beside those of k - 1 other replicas costs what k tokens together do, and a constant."""
    model, gpu = find_model(setup.model), find_gpu(setup.gpu)
    axis: list[float] = list(_TOGETHER)
    experts = []
    for k in _TOGETHER:
        steps = load_tables(folder, tp=setup.tp, dp=k, ep=setup.ep, pad=(), skew=False)
        experts.append(steps.decode(1, 1, 1) - step_seconds(model, gpu, Ranks(setup.tp, k, setup.ep), 1))
    ranks = Ranks(setup.tp, setup.dp, setup.ep)

    def seconds(tokens: float) -> float:
        return at(axis, experts, tokens) + step_seconds(model, gpu, ranks, tokens / setup.dp)

    return seconds


def _aiconfigurator(setup: Setup) -> Source:
    try:
        found = resolve(
            setup.gpu,
            setup.model,
            dtype=setup.dtype,
            kv_dtype=setup.kv_dtype,
            source="aiconfigurator",
            **step_options(setup),
        )
    except (aiconf.MissingPackage, aiconf.Unavailable, UnknownGpu, UnknownModel, BadProfile) as e:
        raise Skipped(str(e.args[0] if e.args else e)) from e
    return Source(found.step_time, found.note)

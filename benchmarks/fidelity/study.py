"""One run under one source of step times: every row that is shown, and the one that is judged.

Rows differ in the host's constants, and in whether shared prefixes are known:

- none: nothing is added to the step times; scored on all requests;
- first third: fitted on the first third of the requests by arrival, scored on the others (and, beside it, on all);
- other runs: the mean of what fits other whole runs, those on the same GPU where there are such; scored on all.

Judged is `none` where it meets every bar, else `first third` on the requests it was not fitted on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from benchmarks.fidelity.fit import NONE, Constants, Fitted, fit
from benchmarks.fidelity.prefixes import Prefix
from benchmarks.fidelity.runs import Run, Tick
from benchmarks.fidelity.score import Figure, bars, compare
from benchmarks.fidelity.setup import Setup
from benchmarks.fidelity.simulate import Replay, replay
from benchmarks.fidelity.sources import Source

Host = Literal["none", "first third", "other runs"]
Scored = Literal["all", "others"]


@dataclass(frozen=True, slots=True)
class Row:
    host: Host
    constants: Constants
    prefixes: bool
    scored: Scored
    figures: list[Figure]
    replay: Replay = field(repr=False)

    @property
    def met(self) -> bool:
        return all(f.met for f in self.figures)

    @property
    def title(self) -> str:
        known = "" if self.prefixes else ", no prefixes"
        added = f"{self.constants[0] * 1e3:.2f} + {self.constants[1] * 1e3:.2f}"
        return f"{self.host} {added}{known}: {self.scored}"


@dataclass(frozen=True, slots=True)
class Study:
    run: Run
    setup: Setup
    source: str
    note: str
    rows: list[Row]
    judged: Row
    notes: list[str]
    first_third: Fitted


class Case:
    """A run that can be simulated with one source. Fits of the whole run are kept, as other runs want them."""

    def __init__(
        self, run: Run, setup: Setup, name: str, source: Source, prefixes: Mapping[int, Prefix] | None
    ) -> None:
        self.run = run
        self.setup = setup
        self.name = name
        self.source = source
        self.prefixes = prefixes
        """None where they are not known."""
        self._whole: Fitted | None = None

    def replay(self, host: Constants, prefixes: bool, first: int | None = None, ticks: Sequence[Tick] = ()) -> Replay:
        found = self.prefixes if prefixes and self.prefixes is not None else {}
        moments = [tick.t for tick in ticks]
        return replay(self.run, self.setup, self.source, found, host=host, first=first, ticks=moments)

    def fit(self, prefixes: bool, first: int) -> Fitted:
        """On the first requests by arrival; nothing of the others is looked at but when they came and their sizes."""
        return fit(self.run.requests[:first], lambda host: self.replay(host, prefixes, first).requests)

    def whole(self) -> Fitted:
        if self._whole is None:
            self._whole = self.fit(self.prefixes is not None, len(self.run.requests))
        return self._whole


def study(case: Case, others: Sequence[Case], say: Callable[[str], None]) -> Study:
    """`others`: with the same source; the case itself may be among them."""
    run, requests = case.run, case.run.requests
    bar = bars(run.digest, case.name)
    third = max(1, len(requests) // 3)
    rows: list[Row] = []
    best = case.prefixes is not None
    judged: dict[Host, Row] = {}
    fits: dict[bool, Fitted] = {}

    def add(host: Host, constants: Constants, prefixes: bool, skip: int = 0) -> None:
        found = case.replay(constants, prefixes, ticks=run.ticks)
        scored: list[tuple[Scored, int]] = [("others", skip), ("all", 0)] if skip else [("all", 0)]
        for which, start in scored:
            figures = compare(requests[start:], found.requests[start:], bar)
            rows.append(Row(host, constants, prefixes, which, figures, found))
        if prefixes == best:
            judged[host] = rows[-len(scored)]

    for prefixes in (True, False) if best else (False,):
        add("none", NONE, prefixes)
        say(f"{run.name}: fitting the host on {third} requests")
        fits[prefixes] = case.fit(prefixes, third)
        if third < len(requests):
            add("first third", fits[prefixes].constants, prefixes, third)
    apart = [c for c in others if c.run.digest != run.digest]
    near = [c for c in apart if c.setup.gpu == case.setup.gpu] or apart
    if near:
        say(f"{run.name}: fitting the host on {', '.join(c.run.name for c in near)}")
        found = [c.whole().constants for c in near]
        mean = (sum(c[0] for c in found) / len(found), sum(c[1] for c in found) / len(found))
        add("other runs", mean, best)

    notes = list(case.setup.notes)
    if not best:
        notes.append(
            "which prompts share prefixes is not known (dataset_hash): simulated as if none did; WORKLOAD=path"
        )
    if near:
        notes.append(f"other runs: {', '.join(c.run.name for c in near)}")
    if case.setup.lockstep and case.source.together is None:
        notes.append("ranks share experts, of which this source takes every rank to have the slowest one's tokens")
    notes += case.source.steps.warnings
    chosen = judged["none"] if judged["none"].met or "first third" not in judged else judged["first third"]
    return Study(run, case.setup, case.name, case.source.note, rows, chosen, notes, fits[best])


def shortfalls(studies: Sequence[Study]) -> list[str]:
    return [
        f"{s.run.name}, {s.source}: {f.name} is {f.error:+.1%} off ({f.simulated:.4g} s for {f.real:.4g} s), the bar "
        f"is {f.bar:.0%} (host: {s.judged.host}, scored on {s.judged.scored})"
        for s in studies
        for f in s.judged.figures
        if not f.met
    ]

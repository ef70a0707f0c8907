"""Metrics of several processes as one: a counter never goes down when one of them restarts.

Each source (a process, by its role) reports cumulative families under the identity of its present life (`boot`). What
a life had counted when it ended is folded into the base; the total is the base plus the last report of every source.
Gauges are not cumulative: their total is over the sources that live. Pure but for `Store`, which keeps the state over a
restart of the admin process.
"""

from __future__ import annotations

import contextlib
import os
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from forebay.counters import OVERFLOW
from forebay.state.messages import FamilySnapshot

MAX_SERIES = 8_192
"""Most series a family's sum holds; what is beyond goes into the series `_other`."""

Labels = tuple[str, ...]
_FamilyId = tuple[str, str, Labels]


class Source(msgspec.Struct):
    boot: str
    families: tuple[FamilySnapshot, ...]


class State(msgspec.Struct):
    """What is kept over a restart of the admin process. `supervisor` is the boot of the supervisor."""

    supervisor: str
    base: tuple[FamilySnapshot, ...] = ()
    sources: dict[str, Source] = {}


class _Sum:
    """One family, added up."""

    def __init__(self, like: FamilySnapshot) -> None:
        self.like = like
        self.edges = like.edges
        self.values: dict[Labels, float] = {}
        self.histograms: dict[Labels, tuple[list[int], float]] = {}

    def add(self, family: FamilySnapshot) -> None:
        for labels, value in family.values:
            key = self._key(labels, self.values)
            self.values[key] = self.values.get(key, 0.0) + value
        if not family.histograms:
            return
        if family.edges != self.edges:
            self._take_edges(family)
        for labels, counts, total in family.histograms:
            key = self._key(labels, self.histograms)
            found = self.histograms.get(key)
            if found is None:
                self.histograms[key] = (list(counts), total)
            else:
                self.histograms[key] = ([a + b for a, b in zip(found[0], counts, strict=True)], found[1] + total)

    def _take_edges(self, family: FamilySnapshot) -> None:
        """The newest report decides the edges: those of a reloaded configuration."""
        self.histograms = {
            labels: (rebucket(counts, self.edges, family.edges), total)
            for labels, (counts, total) in self.histograms.items()
        }
        self.edges = family.edges

    def _key(self, labels: Labels, known: dict[Labels, float] | dict[Labels, tuple[list[int], float]]) -> Labels:
        if labels in known or len(known) < MAX_SERIES:
            return labels
        return (OVERFLOW,) * len(labels)

    def snapshot(self) -> FamilySnapshot:
        return FamilySnapshot(
            name=self.like.name,
            help=self.like.help,
            kind=self.like.kind,
            labels=self.like.labels,
            edges=self.edges,
            values=tuple(self.values.items()),
            histograms=tuple((labels, tuple(counts), total) for labels, (counts, total) in self.histograms.items()),
        )


def rebucket(counts: Sequence[int], old: Sequence[float], new: Sequence[float]) -> list[int]:
    """Counts by other edges. An observation goes into the first new bucket that certainly holds it, so count and sum
    stay, and a quantile read from the result is never too low."""
    out = [0] * (len(new) + 1)
    for i, count in enumerate(counts):
        out[bisect_left(new, old[i]) if i < len(old) else len(new)] += count
    return out


def add_up(groups: Iterable[Sequence[FamilySnapshot]]) -> tuple[FamilySnapshot, ...]:
    sums: dict[_FamilyId, _Sum] = {}
    for group in groups:
        for family in group:
            key = (family.name, family.kind, family.labels)
            found = sums.get(key)
            if found is None:
                found = sums[key] = _Sum(family)
            found.add(family)
    return tuple(s.snapshot() for s in sums.values())


def _of_kind(
    families: Iterable[FamilySnapshot], *kinds: Literal["counter", "gauge", "histogram"]
) -> list[FamilySnapshot]:
    return [f for f in families if f.kind in kinds]


class Sums:
    """The base, and the last report of every source."""

    def __init__(self, state: State) -> None:
        self._state = state
        self.changed = False
        """True where `state` holds something that was not there at the last `take_state`."""

    def report(self, source: str, boot: str, families: tuple[FamilySnapshot, ...]) -> None:
        """Families of the life `boot` of `source`, as they stand now."""
        last = self._state.sources.get(source)
        if last is not None and last.boot == boot and last.families == families:
            return
        if last is not None and last.boot != boot:
            self._state.base = add_up([self._state.base, _of_kind(last.families, "counter", "histogram")])
        self._state.sources[source] = Source(boot, families)
        self.changed = True

    def total(self, living: Iterable[str]) -> tuple[FamilySnapshot, ...]:
        """Counters and histograms of all time, gauges of the sources in `living`."""
        alive = set(living)
        groups: list[Sequence[FamilySnapshot]] = [self._state.base]
        for name, source in self._state.sources.items():
            groups.append(source.families if name in alive else _of_kind(source.families, "counter", "histogram"))
        return add_up(groups)

    def take_state(self) -> bytes:
        """What `Store.save` should write."""
        self.changed = False
        return msgspec.json.encode(self._state)

    def __repr__(self) -> str:
        return f"<Sums base {len(self._state.base)} families, sources {sorted(self._state.sources)}>"


class Store:
    """The state on disk. Written without fsync: it must outlive this process, not the machine."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def load(self, supervisor: str) -> State:
        """The state of the same boot of the supervisor; an empty one where there is none or it cannot be read."""
        with contextlib.suppress(OSError, msgspec.MsgspecError):
            state = msgspec.json.decode(self.path.read_bytes(), type=State)
            if state.supervisor == supervisor:
                return state
        return State(supervisor)

    def save(self, content: bytes) -> None:
        """Raises OSError."""
        write_private(self.path, content, durable=False)


def write_private(path: Path, content: bytes, *, durable: bool) -> None:
    """Replace a file at once, mode 0600; `durable` also survives a crash of the machine. Raises OSError."""
    new = path.with_name(path.name + ".new")
    fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "wb") as file:
        file.write(content)
        if durable:
            file.flush()
            os.fsync(file.fileno())
    new.replace(path)
    if durable:
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

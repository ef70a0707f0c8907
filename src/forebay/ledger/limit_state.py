"""What was used, said to others and heard from them: how limits stand, over a restart, and what other hosts have used.

`snapshot` and `Carried` carry use over a worker's planned restart; what was held by requests that never ended counts as
used. Requests at once begin at none. Where a snapshot is missing (the worker was killed), or others share a rule, the
database knows: `others` takes for each scope what all have used in its window but for what this process counted itself,
which is what this owner made since `Scopes.since` of that rule (`limit_books`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from forebay.ledger.gates import Gate, Group, Path, Scopes
from forebay.ledger.limits import Limits
from forebay.ledger.meters import Budget, Meter, Rate, Sliding
from forebay.ledger.rules import Measure


class Standing(msgspec.Struct, frozen=True):
    """How one limit stands."""

    rule: str
    """Its name."""
    scope: str
    path: Path
    measure: Measure
    used: int
    limit: int
    start: float
    """Unix time: when the window began; 0: it has none."""
    resets: float
    """Unix time: when all of it will be there again, if nothing more is used."""


class Use(msgspec.Struct, frozen=True):
    """What others have used in a scope's window."""

    rule: str
    """`Rule.id`."""
    path: Path
    measure: Measure
    start: float
    """When the window began: Unix time; of a sliding one: 0."""
    used: int


class Kept(msgspec.Struct, frozen=True, array_like=True):
    rule: str
    path: Path
    measure: Measure
    used: float
    until: float = 0.0
    """Of a calendar window: Unix time."""
    parts: tuple[tuple[float, int], ...] = ()
    """Of a sliding one."""
    elsewhere: int = 0
    """What others had used, as far as that was known."""


class Snapshot(msgspec.Struct, frozen=True, array_like=True):
    at: float
    """Unix time."""
    since: dict[str, float]
    meters: tuple[Kept, ...]


class BadSnapshot(Exception):
    """It cannot be read. The message says why."""


_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder(Snapshot)


def standing(limits: Limits, now: float, wall: float) -> Iterator[Standing]:
    """Of every scope that was seen."""
    for group in limits.scopes.each():
        yield from _standing(limits.scopes, group, now, wall)


def standing_of(limits: Limits, gate: Gate, now: float, wall: float) -> Iterator[Standing]:
    """Of one caller, but for end users."""
    if gate.generation != limits.scopes.generation:
        limits.scopes.fill(gate, now, wall)
    for group in gate.groups:
        yield from _standing(limits.scopes, group, now, wall)


def _standing(scopes: Scopes, group: Group, now: float, wall: float) -> Iterator[Standing]:
    for m in group.meters.values():
        _advance(scopes, m, now, wall)
        start = m.start if isinstance(m, Budget) else 0.0
        resets = wall + m.resets(now) if isinstance(m, Rate) else wall
        if isinstance(m, Budget | Sliding):
            resets = m.resets(wall)
        used = int(m.used + m.elsewhere)
        yield Standing(group.rule.name, group.scope, group.path, m.measure, used, m.limit, start, resets)


def snapshot(limits: Limits, now: float, wall: float) -> bytes:
    kept: list[Kept] = []
    for group in limits.scopes.each():
        for m in group.meters.values():
            _advance(limits.scopes, m, now, wall)
            if isinstance(m, Rate) and m.used > 0:
                kept.append(Kept(group.rule.id, group.path, m.measure, m.used))
            elif isinstance(m, Budget) and (m.used or m.elsewhere):
                kept.append(Kept(group.rule.id, group.path, m.measure, m.used, m.until, elsewhere=m.elsewhere))
            elif isinstance(m, Sliding) and (m.used or m.elsewhere):
                parts = tuple(m.parts())
                kept.append(Kept(group.rule.id, group.path, m.measure, m.used, parts=parts, elsewhere=m.elsewhere))
    return _ENCODER.encode(Snapshot(wall, limits.scopes.since, tuple(kept)))


class Carried:
    """A snapshot that is being taken up: what it has of a rule counts when that rule is in force, and before its first
    hold. Rules of the database come later than those of the configuration."""

    def __init__(self, data: bytes) -> None:
        """Raises BadSnapshot."""
        try:
            self._found = _DECODER.decode(data)
        except msgspec.DecodeError as e:
            raise BadSnapshot(f"the snapshot of limits cannot be read: {e}") from e
        self._left = self._found.meters

    def take(self, limits: Limits, now: float, wall: float) -> int:
        """What is left of it of the rules that are in force now. Returns how many meters that were."""
        scopes, at, taken = limits.scopes, self._found.at, 0
        mine = [kept for kept in self._left if kept.rule in scopes.rules]
        self._left = tuple(kept for kept in self._left if kept.rule not in scopes.rules)
        for rule, since in self._found.since.items():
            if rule in scopes.since:
                scopes.since[rule] = min(scopes.since[rule], since)
        for kept in mine:
            m = _meter(scopes, kept, now, wall)
            if isinstance(m, Rate):
                m.used += max(0.0, kept.used - max(0.0, wall - at) * m.rate)
            elif isinstance(m, Budget) and wall < kept.until:
                m.used += int(kept.used)
                m.elsewhere = kept.elsewhere
            elif isinstance(m, Sliding) and kept.parts:
                m.put(kept.parts)
                m.elsewhere, m.told = kept.elsewhere, at
            else:
                continue
            taken += 1
        return taken


def others(limits: Limits, uses: Iterable[Use], now: float, wall: float) -> None:
    """What others have used, of the scopes that changed. A window that is over here counts no more."""
    scopes = limits.scopes
    for use in uses:
        m = _meter(scopes, use, now, wall)
        if isinstance(m, Budget):
            _advance(scopes, m, now, wall)
            if m.start == use.start:
                m.elsewhere = use.used
        elif isinstance(m, Sliding):
            _advance(scopes, m, now, wall)
            m.elsewhere = use.used
            m.told = wall


def _meter(scopes: Scopes, of: Kept | Use, now: float, wall: float) -> Meter | None:
    group = scopes.group(of.rule, of.path, now, wall)
    return None if group is None else group.meters.get(of.measure)


def _advance(scopes: Scopes, m: Meter, now: float, wall: float) -> None:
    if isinstance(m, Rate):
        m.advance(now, scopes.next)
    elif isinstance(m, Budget | Sliding) and not m.start <= wall < m.until:
        m.roll(wall, scopes.next)

"""What is wrong with the books just now, and since when: asked of whoever knows at each look."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from forebay.admin.keys import Keys
from forebay.admin.view import GatewayState
from forebay.admin.workers import Workers
from forebay.clock import Clock
from forebay.ledger.alerts import Trouble, TroubleKind

JOURNAL_STATE: Final = "forebay_ledger_journal_state"
"""A worker's gauge with the label `state`: 1 for the state its journal is in (`ledger.journal.State`)."""
UNBOOKED: Final = "forebay_ledger_unbooked"
"""A worker's counter of attempts that its journal had no room for."""


class Seen(NamedTuple):
    kind: TroubleKind
    where: str
    why: str


Source = Callable[[], Iterable[Seen]]


class Troubles:
    """Mutable state: since when each trouble is seen at every look."""

    def __init__(self, sources: Sequence[Source], clock: Clock) -> None:
        self._sources = sources
        self._clock = clock
        self._since: dict[tuple[TroubleKind, str], float] = {}

    def __call__(self) -> list[Trouble]:
        now = self._clock.wall()
        seen = {(s.kind, s.where): s.why for source in self._sources for s in source()}
        self._since = {key: min(self._since.get(key, now), now) for key in seen}
        return [Trouble(kind, where, why, self._since[kind, where]) for (kind, where), why in seen.items()]

    def __repr__(self) -> str:
        return f"<Troubles {sorted(f'{kind} {where}' for kind, where in self._since)}>"


def database_trouble(keys: Keys) -> Source:
    """The database of keys is that of the books."""

    def look() -> list[Seen]:
        return [] if keys.up or keys.pending else [Seen(TroubleKind.DATABASE_DOWN, "this host", keys.status)]

    return look


def intake_trouble(state: GatewayState, keys: Keys) -> Source:
    """What keeps the books from being up to date, but for a database that is away, which is told by itself."""

    def look() -> list[Seen]:
        if state.ledger is None or not keys.up:
            return []
        found = []
        for alarm in state.ledger.alarms():
            name, colon, why = alarm.partition(": ")
            where = (name, why) if colon and name.startswith("worker-") else ("this host", alarm)
            found.append(Seen(TroubleKind.INGEST_LAG, *where))
        return found

    return look


class JournalTrouble:
    """From what workers say of their journals. Mutable state: attempts that each had no room for, at the last look."""

    def __init__(self, workers: Workers) -> None:
        self._workers = workers
        self._unbooked: dict[tuple[int, str], float] = {}

    def __call__(self) -> list[Seen]:
        found: list[Seen] = []
        unbooked: dict[tuple[int, str], float] = {}
        for link in self._workers.links:
            snapshot = link.snapshot
            if not link.up or snapshot is None:
                continue
            where = f"worker {link.index}"
            for family in snapshot.families:
                if family.name == JOURNAL_STATE:
                    states = {labels[0] for labels, value in family.values if value}
                    if "full" in states:
                        found.append(Seen(TroubleKind.JOURNAL_FULL, where, "it has the size that it may have"))
                    if "failing" in states:
                        found.append(Seen(TroubleKind.JOURNAL_FAILING, where, "its log says why"))
                elif family.name == UNBOOKED:
                    now = sum(value for _, value in family.values)
                    life = (link.index, snapshot.boot)
                    unbooked[life] = now
                    if now > (before := self._unbooked.get(life, 0.0)):
                        why = f"{int(now - before):,} attempts were not booked"
                        found.append(Seen(TroubleKind.JOURNAL_FULL, where, why))
        self._unbooked = unbooked
        return found

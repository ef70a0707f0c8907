"""What the books must have of what an engine counted, given when gateways were killed, and what those had on disk.

Each call of the engine has exactly one entry, exact, with exactly the engine's counts, but for these:

- one that a dead worker had reserved on disk, and not settled (`Death.unsettled`), has one that is estimated;
- one whose reservation was in memory only (`Death.unsaved`) has none, and its client has got nothing of an answer;
- one whose client gave up (`Told.gave_up`), which is the campaign's doing, may be estimated.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from sqlalchemy import select

from crash_load import Call, Told
from forebay.ledger.database import Database
from forebay.ledger.schema import entries, reservations
from forebay.ledger.tokens import KINDS


@dataclass(frozen=True)
class Death:
    """A worker's last words; times in monotonic seconds, but for `wall`. Requests are named once for each attempt."""

    at: float
    wall: float = 0.0
    call: str = ""
    when: str = ""
    unsaved: list[tuple[str, float]] = field(default_factory=list)
    """Reserved in memory only, and since when."""
    unsettled: list[str] = field(default_factory=list)
    """Reserved, those too, without a settlement on disk."""

    def __repr__(self) -> str:
        return f"<died at {self.at:.3f} ({self.wall:.3f}), {self.when} {self.call}>"


def deaths_of_workers(folder: Path) -> list[Death]:
    """In order."""
    file = folder / "memory"
    return [Death(**json.loads(line)) for line in file.read_text().splitlines()] if file.exists() else []


@dataclass
class Found:
    """Of one gateway and database."""

    requests: int = 0
    calls: int = 0
    entries: int = 0
    exact: int = 0
    estimated: int = 0
    at_risk: int = 0
    """Calls that were not settled on disk when their worker died."""
    lost: list[str] = field(default_factory=list)
    double: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    """Not exactly the engine's counts, or estimated without need."""
    open: int = 0
    window: float = 0.0
    """Seconds: the longest from an engine's last byte to a kill that its settlement did not survive."""
    gave_up: int = 0
    """Clients that did."""
    gone: int = 0
    """Calls at risk that left no trace; their clients had got nothing."""
    unsaved: list[float] = field(default_factory=list)
    """Seconds that reservations had been in memory only when their worker died."""
    no_trace: list[tuple[str, float, float, float]] = field(default_factory=list)
    """Of those in `gone`: request, when the engine received and ended it, when the worker died, which may be before."""
    traces: dict[str, object] = field(default_factory=dict)
    """Of the first that are lost, double or wrong (`crash_trace`)."""

    def failing(self) -> list[str]:
        """Those requests."""
        return [one.partition(":")[0] for one in (*self.lost, *self.double, *self.wrong)]


@dataclass(slots=True, frozen=True)
class Entry:
    how: str
    outcome: str
    counts: tuple[int, int]
    at: float


def booked(database: Database, stem: str) -> tuple[dict[str, list[Entry]], int]:
    """The entries by request, and how many attempts are open."""
    found: dict[str, list[Entry]] = defaultdict(list)
    kinds = [entries.c[kind] for kind in KINDS]
    output = [i for i, kind in enumerate(KINDS) if kind in ("output", "reasoning", "audio_output")]
    with database.read() as connection:
        query = select(entries.c.request_id, entries.c.how, entries.c.outcome, entries.c.at, *kinds)
        for id_, how, outcome, at, *counts in connection.execute(query):
            if id_.startswith(f"{stem}-"):
                answer = sum(counts[i] for i in output)
                found[id_].append(Entry(how, outcome, (sum(counts) - answer, answer), at))
        still = len(connection.execute(select(reservations.c.seq)).all())
    return found, still


def compare(
    told: list[Told], calls: dict[str, list[Call]], database: Database, stem: str, deaths: list[Death]
) -> Found:
    books, still = booked(database, stem)
    found = compared(told, calls, books, deaths)
    found.open = still
    return found


def compared(
    told: list[Told], calls: dict[str, list[Call]], books: dict[str, list[Entry]], deaths: list[Death]
) -> Found:
    found = Found(requests=len(told))
    named: dict[str, list[Death]] = defaultdict(list)
    for death in deaths:
        found.unsaved += [death.at - since for _, since in death.unsaved]
        for id_ in death.unsettled:
            named[id_].append(death)
    clients = {one.id: one for one in told}
    for id_ in clients.keys() | books.keys():
        _one(found, id_, clients.get(id_), calls.get(id_, []), books.get(id_, []), named.get(id_, []))
    return found


def _one(
    found: Found, id_: str, client: Told | None, calls: list[Call], books: list[Entry], deaths: list[Death]
) -> None:
    """`deaths`: one for each attempt that was not settled on disk."""
    if client is None:
        found.wrong.append(f"{id_}: an entry for a request that nobody sent: {books}")
        return
    found.calls += len(calls)
    found.gave_up += client.gave_up
    found.entries += len(books)
    exact = Counter(entry.counts for entry in books if entry.how == "exact")
    estimated = sum(entry.how != "exact" for entry in books)
    found.exact += exact.total()
    found.estimated += estimated
    unsaved = sum(name == id_ for death in {d.at: d for d in deaths}.values() for name, _ in death.unsaved)
    what = f"{id_}: {calls}, books {books}, content {client.content}, {deaths}, {unsaved} in memory only"
    due = len(deaths) - unsaved
    if estimated < due:
        found.lost.append(f"{what}: was reserved on disk")
        return
    for call in calls:
        counts = (call.prompt, call.completion) if call.how == "whole" else (0, 0)
        if call.how != "cut" and exact[counts]:
            exact[counts] -= 1
            continue
        found.at_risk += bool(deaths)
        if estimated and (due > 0 or client.gave_up):
            estimated -= 1
            due -= 1
            if deaths and call.how == "whole":
                found.window = max(found.window, deaths[-1].at - call.ended)
        elif call.how == "cut" and exact[0, 0] and client.gave_up:
            exact[0, 0] -= 1
        elif unsaved and not client.content:
            unsaved -= 1
            found.gone += 1
            found.no_trace.append((id_, call.began, call.ended, deaths[-1].at))
        else:
            (found.lost if len(books) < len(calls) else found.wrong).append(what)
            return
    left = exact.total() + estimated
    # One that was reserved and not sent at the kill has an estimate and no call. After a whole answer nothing is tried.
    unsent = (due > 0 or client.gave_up) and all(call.how != "whole" for call in calls)
    if left > (1 if unsent and (estimated or (client.gave_up and exact[0, 0])) else 0):
        (found.double if len(books) > len(calls) else found.wrong).append(what)

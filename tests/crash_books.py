"""What the books must have of what an engine counted, given when gateways were killed.

A call of the engine is *at risk* where a kill falls between its client's sending and `MARGIN` after the call's end:
its settlement may not be on disk. So is one whose client gave up (`Told.gave_up`), which is the campaign's
doing. All others have exactly one entry, exact, with exactly the engine's counts. One at risk may be estimated; it
may be absent only where it had begun less than MARGIN before the kill and its client had got nothing of an answer.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from dataclasses import dataclass, field

from sqlalchemy import select

from crash_load import Call, Told
from forebay.ledger.database import Database
from forebay.ledger.schema import entries, reservations
from forebay.ledger.tokens import KINDS

MARGIN = 0.5
"""Seconds in which whatever an engine has said is on disk, on a machine that is busy with other things."""


@dataclass
class Found:
    """Of one gateway and database."""

    requests: int = 0
    calls: int = 0
    entries: int = 0
    exact: int = 0
    estimated: int = 0
    at_risk: int = 0
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


def compare(told: list[Told], calls: dict[str, list[Call]], database: Database, stem: str, kills: list[float]) -> Found:
    """`kills` in monotonic seconds, in order."""
    books, still = booked(database, stem)
    found = compared(told, calls, books, kills)
    found.open = still
    return found


def compared(
    told: list[Told], calls: dict[str, list[Call]], books: dict[str, list[Entry]], kills: list[float]
) -> Found:
    found = Found(requests=len(told))
    clients = {one.id: one for one in told}
    for id_ in clients.keys() | books.keys():
        _one(found, clients.get(id_), calls.get(id_, []), books.get(id_, []), kills)
    return found


def _killed(kills: list[float], since: float, until: float) -> float | None:
    """The first kill in between."""
    i = bisect_left(kills, since)
    return kills[i] if i < len(kills) and kills[i] <= until else None


def _one(found: Found, client: Told | None, calls: list[Call], books: list[Entry], kills: list[float]) -> None:
    id_ = client.id if client is not None else "?"
    if client is None:
        found.wrong.append(f"an entry for a request that nobody sent: {books}")
        return
    found.calls += len(calls)
    found.gave_up += client.gave_up
    found.entries += len(books)
    exact = Counter(entry.counts for entry in books if entry.how == "exact")
    estimated = sum(entry.how != "exact" for entry in books)
    found.exact += exact.total()
    found.estimated += estimated
    risky = 0
    for call in calls:
        ended = call.ended or float("inf")
        kill = _killed(kills, client.sent, ended + MARGIN)
        counts = (call.prompt, call.completion) if call.how == "whole" else (0, 0)
        if call.how != "cut" and exact[counts]:
            exact[counts] -= 1
        elif kill is None and not client.gave_up:
            if len(books) < len(calls):
                found.lost.append(f"{id_}: {call}, books {books}")
            else:
                found.wrong.append(f"{id_}: {call}, books {books}")
            continue
        else:
            risky += 1
            if estimated:
                estimated -= 1
                found.window = max(found.window, kill - ended if kill is not None and call.how == "whole" else 0.0)
            elif exact[0, 0] and call.how == "cut":
                exact[0, 0] -= 1  # the engine was gone for the gateway before it was killed
            elif client.content or _began_before(kills, call):
                found.lost.append(f"{id_}: {call}, content {client.content}")
            else:
                found.gone += 1
    found.at_risk += risky
    left = exact.total() + estimated
    # One that was reserved and not sent at the kill has an estimate and no call. After a whole answer nothing is tried.
    killed = _killed(kills, client.sent, (client.end or float("inf")) + MARGIN) is not None
    unsent = (killed or client.gave_up) and all(call.how != "whole" for call in calls)
    if left > (1 if unsent and (estimated or (client.gave_up and exact[0, 0])) else 0):
        where = found.double if len(books) > len(calls) else found.wrong
        where.append(f"{id_}: {calls}, books {books}")


def _began_before(kills: list[float], call: Call) -> bool:
    """It was under way for so long at the kill that its reservation was on disk."""
    kill = _killed(kills, call.began, (call.ended or float("inf")) + MARGIN)
    return kill is not None and kill - call.began > MARGIN

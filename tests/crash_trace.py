"""What there is to explain a call with that the books have not as they should."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from crash_books import Death
from crash_load import Call, Told
from forebay.ledger.entries import Progress, Reserved, Settled
from forebay.ledger.journal_format import JournalError, position, segments
from forebay.ledger.journal_read import Reader

AROUND = 2.0
"""Seconds before its client's sending and after its end in which deaths are told."""


def trace(folder: Path, journal: Path, id_: str, told: list[Told], calls: list[Call], deaths: list[Death]) -> object:
    """`folder` has what `crash_children` left, `journal` what the last life did. Times in monotonic seconds, those of
    records in seconds since 1970; each death has both."""
    client = next((one for one in told if one.id == id_), None)
    times = [client.sent, client.end] if client is not None else []
    times += [t for call in calls for t in (call.began, call.ended) if t]
    since, until = (min(times) - AROUND, max(times) + AROUND) if times else (0.0, 0.0)
    return {
        "client": asdict(client) if client is not None else None,
        "calls": [asdict(call) for call in calls],
        "deaths": [_death(folder, i, death, id_) for i, death in enumerate(deaths) if since <= death.at <= until],
        "records": {
            place.name: found for place in (*_kept(folder), journal) if (found := _records(place, id_)) is not None
        },
    }


def _kept(folder: Path) -> list[Path]:
    return sorted((folder / "kept").glob("before-*"), key=lambda place: int(place.name.partition("-")[2]))


def _death(folder: Path, life: int, death: Death, id_: str) -> dict[str, Any]:
    """`last`: the last record that this life left on disk, with its time."""
    found: dict[str, Any] = {
        "at": death.at,
        "wall": death.wall,
        "point": f"{death.when} {death.call}",
        "in_memory_only_for": [death.at - at for name, at in death.unsaved if name == id_],
        "unsettled": death.unsettled.count(id_),
        "oldest_in_memory_only": max((death.at - at for _, at in death.unsaved), default=0.0),
    }
    place = folder / "kept" / f"before-{life + 1}"
    if place.exists():
        reader = Reader(place, position(segments(place)[-1], 0), sync=False)
        try:
            timed = [r for _, r in reader.records() if isinstance(r, Reserved | Settled | Progress)]
        except JournalError as e:
            return {**found, "last": str(e)}
        found["end"] = reader.position
        found["last"] = [type(timed[-1]).__name__, timed[-1].at] if timed else None
    return found


def _records(place: Path, id_: str) -> object:
    """Of this request: (position, what, its time). None: there are none."""
    found: list[tuple[int, str, float]] = []
    seqs: set[int] = set()
    try:
        for where, record in Reader(place, sync=False).records():
            if isinstance(record, Reserved) and record.id == id_:
                seqs.add(record.seq)
                found.append((where, f"reserved {record.seq}", record.at))
            elif isinstance(record, Settled) and record.seq in seqs:
                found.append((where, f"settled {record.seq} {record.outcome}", record.at))
    except JournalError as e:
        return [*found, str(e)]
    return found or None

"""Alerts in the database: whose each is, for hosts that share it, and which there were."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
from sqlalchemy import Connection, delete, select
from sqlalchemy.dialects import postgresql, sqlite

from forebay.ledger.alerts import Alert
from forebay.ledger.schema import alerts

KEEP: Final = 400 * 86_400.0
"""Seconds that alerts are kept: over a year of months."""


def known(connection: Connection, ids: Sequence[str]) -> dict[str, str]:
    """Id → owner, of those that there are."""
    found: dict[str, str] = {}
    for at in range(0, len(ids), 500):
        query = select(alerts.c.id, alerts.c.owner).where(alerts.c.id.in_(ids[at : at + 500]))
        found.update((row.id, row.owner) for row in connection.execute(query))
    return found


def claim(connection: Connection, found: Sequence[Alert], owner: str) -> None:
    """Write those down that nobody has yet, as this owner's. In a transaction that writes."""
    make = sqlite.insert if connection.dialect.name == "sqlite" else postgresql.insert
    rows = [
        {
            "id": alert.id,
            "owner": owner,
            "fired": alert.at,
            "rule": str(alert.rule),
            "body": msgspec.json.encode(alert).decode(),
        }
        for alert in found
    ]
    if rows:
        connection.execute(make(alerts).on_conflict_do_nothing(), rows)


def of_owner(connection: Connection, owner: str, since: float) -> list[Alert]:
    """What it claimed from then on, oldest first."""
    query = select(alerts.c.body).where(alerts.c.owner == owner, alerts.c.fired >= since)
    return [_read(body) for body in connection.execute(query.order_by(alerts.c.fired, alerts.c.id)).scalars()]


def newest(connection: Connection, most: int) -> list[Alert]:
    query = select(alerts.c.body).order_by(alerts.c.fired.desc(), alerts.c.id).limit(most)
    return [_read(body) for body in connection.execute(query).scalars()]


def prune(connection: Connection, before: float) -> int:
    """Forget what was fired before; returns how many."""
    return connection.execute(delete(alerts).where(alerts.c.fired < before)).rowcount


def _read(body: str) -> Alert:
    return msgspec.json.decode(body, type=Alert)

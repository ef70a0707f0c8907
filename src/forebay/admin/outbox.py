"""Alerts on their way: what each receiver has still to get, in a file of the state directory.

It works whatever becomes of the database. What is in it survives a kill: an alert is on the disk before the first try,
and is taken out once it was delivered. A kill between those two sends it again, with the same id.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec

from forebay.config.alerts import Receiver, Severity
from forebay.ledger.alerts import Alert, alert_id

TOLD: Final = 10_000
"""Ids of past alerts that are remembered."""
MOST_BYTES: Final = 64 << 20
_SEVERITIES: Final = tuple(Severity)

_log = logging.getLogger("forebay.alerts")


class Dropped(msgspec.Struct):
    """What a receiver was not told and will not be. Times are Unix times."""

    rules: dict[str, int] = {}
    first: float = 0.0
    last: float = 0.0

    def add(self, alert: Alert) -> None:
        self.first = self.first or alert.at
        self.last = alert.at
        self.rules[alert.rule] = self.rules.get(alert.rule, 0) + 1


class Waiting(msgspec.Struct, frozen=True):
    id: str
    since: float


class State(msgspec.Struct):
    owner: str
    """16 hexadecimal digits: this state directory's, in the database."""
    alerts: dict[str, Alert] = {}
    """Those that somebody waits for."""
    queues: dict[str, list[Waiting]] = {}
    dropped: dict[str, Dropped] = {}
    told: dict[str, float] = {}
    """Id → end of its window, oldest first."""


class Outbox:
    """Mutable state: `state`, and whether it is on the disk as it is (`changed`)."""

    def __init__(self, state: State, bound: int) -> None:
        self.state = state
        self.bound = bound
        self.changed = False

    @classmethod
    def load(cls, path: Path, owner: str, bound: int) -> Outbox:
        """The file's, or an empty one of `owner` where there is none. One that cannot be read is moved aside."""
        try:
            with path.open("rb") as file:
                return cls(msgspec.json.decode(file.read(MOST_BYTES), type=State), bound)
        except FileNotFoundError:
            pass
        except msgspec.MsgspecError as e:
            aside = path.with_name(path.name + ".bad")
            _log.error(
                "%s cannot be read (%s) and is moved to %s: alerts that waited are not sent", path, e, aside.name
            )
            path.replace(aside)
        made = cls(State(owner), bound)
        made.changed = True
        return made

    def known(self, id_: str) -> bool:
        return id_ in self.state.told

    def put(self, alert: Alert, receivers: Iterable[Receiver], now: float) -> list[tuple[str, Alert]]:
        """Queue it for those that want it; returns (receiver, alert) of what was dropped for it. Nothing happens where
        it was put before."""
        if self.known(alert.id):
            return []
        self.state.told[alert.id] = alert.window.until if alert.window else now
        self._forget(now)
        self.changed = True
        lost: list[tuple[str, Alert]] = []
        for receiver in receivers:
            if not wants(receiver, alert):
                continue
            queue = self.state.queues.setdefault(receiver.name, [])
            if len(queue) >= self.bound:
                lost.append((receiver.name, self.drop(receiver.name, 1)))  # the first is being tried
            queue.append(Waiting(alert.id, now))
            self.state.alerts[alert.id] = alert
        return lost

    def _forget(self, now: float) -> None:
        told = self.state.told
        if len(told) <= TOLD:
            return
        for id_ in [i for i, until in told.items() if until <= now]:
            del told[id_]
        while len(told) > TOLD:
            del told[next(iter(told))]

    def head(self, receiver: str) -> tuple[Alert, float] | None:
        """What is next for it, and since when that waits."""
        queue = self.state.queues.get(receiver)
        return (self.state.alerts[queue[0].id], queue[0].since) if queue else None

    def waiting(self, receiver: str) -> int:
        return len(self.state.queues.get(receiver, ()))

    def waits_for(self, id_: str) -> list[str]:
        """Receivers that have not got it yet."""
        return [name for name, queue in self.state.queues.items() if any(w.id == id_ for w in queue)]

    def take(self, receiver: str, index: int = 0) -> Alert:
        """It has got this one, or never will."""
        queue = self.state.queues[receiver]
        id_ = queue.pop(index).id
        alert = self.state.alerts[id_]
        if not queue:
            del self.state.queues[receiver]
        if not self.waits_for(id_):
            del self.state.alerts[id_]
        self.changed = True
        return alert

    def drop(self, receiver: str, index: int = 0) -> Alert:
        """Give one up, and remember that it was."""
        alert = self.take(receiver, index)
        self.state.dropped.setdefault(receiver, Dropped()).add(alert)
        return alert

    def confess(self, receiver: str, now: float) -> Alert | None:
        """What to tell a receiver that is back of what it missed; from then on it is forgotten."""
        dropped = self.state.dropped.pop(receiver, None)
        if dropped is None:
            return None
        self.changed = True
        count = sum(dropped.rules.values())
        data: dict[str, int | float | str | bool] = {"receiver": receiver, "dropped": count}
        data |= {"first": round(dropped.first), "last": round(dropped.last)}
        kinds = ", ".join(f"{n:,} {rule}" for rule, n in Counter(dropped.rules).most_common())
        alert = Alert(
            id=alert_id("alerts_dropped", receiver, dropped.first, dropped.last, count),
            rule="alerts_dropped",
            severity=Severity.WARNING,
            title=f"{count:,} alert{'s were' if count != 1 else ' was'} dropped",
            text=f"While {receiver} could not be reached, {count:,} alert{'s were' if count != 1 else ' was'} dropped: "
            f"{kinds}. `forebay alerts list` shows them.",
            at=now,
            data=data | {f"dropped_{rule}": n for rule, n in dropped.rules.items()},
        )
        queue = self.state.queues.setdefault(receiver, [])
        queue.insert(0, Waiting(alert.id, now))
        self.state.alerts[alert.id] = alert
        return alert

    def keep_only(self, receivers: Iterable[str]) -> dict[str, int]:
        """Forget those that are not configured any more; returns how many alerts waited for each."""
        names = set(receivers)
        gone = {name: len(queue) for name, queue in self.state.queues.items() if name not in names}
        for name, count in gone.items():
            for _ in range(count):
                self.take(name)
        for name in self.state.dropped.keys() - names:
            del self.state.dropped[name]
            self.changed = True
        return gone

    def content(self) -> bytes:
        """What should be on the disk."""
        self.changed = False
        return msgspec.json.encode(self.state)

    def __repr__(self) -> str:
        return f"<Outbox {', '.join(f'{n} {len(q)}' for n, q in self.state.queues.items()) or 'empty'}>"


def wants(receiver: Receiver, alert: Alert) -> bool:
    if receiver.rules and alert.rule not in receiver.rules:
        return False
    if _SEVERITIES.index(alert.severity) < _SEVERITIES.index(receiver.least):
        return False
    return not receiver.organisations or alert.organisation in receiver.organisations

"""The task of alerts in the admin process: it looks at the books, claims what is new, and hands it to `Delivery`.

Theory of operation. Every `alerts.every` seconds the rules (`ledger.alerts`) are asked, on a thread. What they find has
an id made of its matter and window. Hosts that share a database claim ids there (`ledger.alert_book`): one of them gets
each. A claimed alert goes into the outbox, a file, and from there to the receivers. A kill between claim and outbox is
made good at the next look: the id is still this host's, and its outbox does not know it. Trouble with the books is a
host's own and needs no database to be told.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

from forebay.admin.delivery import Delivery, Line
from forebay.admin.keys import OPENING
from forebay.admin.outbox import Outbox
from forebay.admin.payloads import Fate, generic
from forebay.clock import Clock
from forebay.config.alerts import Alerts, Receiver, Severity
from forebay.errors import shown
from forebay.ledger.alerts import Alert, Rules, Trouble, Usage, alert_id
from forebay.state.messages import FamilySnapshot

MOST: Final = 200
"""Alerts that one look raises at most; the rest comes with the next."""
SHARE: Final = 10.0
"""A look that took long is followed by a rest of so many times as long, so that looking never takes more than a tenth
of a database's time,"""
LONGEST: Final = 600.0
"""but by no longer one than this, in seconds."""
REMEMBERED: Final = 50_000
"""Ids of other hosts' alerts that are not asked for again."""
LISTED: Final = 200
"""Past alerts that are listed at most."""

_log = logging.getLogger("forebay.alerts")


class Unreadable(Exception):
    """The books cannot be read now. The message says why."""


class Books(Protocol):
    """The database, as the task uses it. Raises Unreadable."""

    async def look(
        self, find: Callable[[Usage], list[Alert]], owner: str, now: float, since: float | None
    ) -> list[Alert]:
        """What `find` finds and nobody has yet becomes `owner`'s, and is returned; with `since`, after all that was its
        from then on."""
        ...

    async def history(self, most: int) -> list[Alert]:
        """Alerts of every host, newest first."""
        ...

    async def close(self) -> None: ...


class Alerting:
    """Mutable state: the rules, and why the last look failed."""

    def __init__(
        self,
        rules: Rules,
        books: Books,
        troubles: Callable[[], Sequence[Trouble]],
        path: Path,
        owner: str,
        clock: Clock,
    ) -> None:
        """`path`: the outbox's file. `owner`: 16 hexadecimal digits, for an outbox that has none yet."""
        self._rules = rules
        self._books = books
        self._troubles = troubles
        self._clock = clock
        self._path = path
        outbox = Outbox.load(path, owner, rules.rules.queue)
        self.delivery = Delivery(rules.rules, outbox, path, clock)
        self._why = ""
        self._lost = True
        """What was claimed before may not be in the outbox."""
        self._others: dict[str, None] = {}
        """Ids that another host has, oldest first."""
        self._changed = asyncio.Event()

    def configure(self, rules: Rules) -> None:
        """Go by other rules from now on."""
        self._rules = rules
        self.delivery.start(rules.rules)
        self._changed.set()

    async def run(self) -> None:
        """Runs until it is cancelled."""
        self.delivery.start(self._rules.rules)
        while True:
            self._changed.clear()
            began = self._clock.now()
            try:
                await self.look()
            except Exception:  # a defect here must not end the process that serves keys and metrics
                _log.exception("alerts: a look failed")
            rest = max(self._rules.rules.every, min(SHARE * (self._clock.now() - began), LONGEST))
            try:
                async with asyncio.timeout(rest):
                    await self._changed.wait()
            except TimeoutError:
                continue

    async def look(self) -> int:
        """Ask the rules once; returns how many alerts are new."""
        rules, now, outbox = self._rules, self._clock.wall(), self.delivery.outbox
        owner = outbox.state.owner
        new = 0
        for alert in rules.troubles(self._troubles(), now, owner):
            new += await self.delivery.put(alert)

        found: dict[str, Alert] = {}

        def find(usage: Usage) -> list[Alert]:
            for alert in rules.look(usage, now):
                if alert.id not in self._others and not outbox.known(alert.id):
                    found.setdefault(alert.id, alert)
                if len(found) >= MOST:
                    rules.again()
                    break
            return list(found.values())

        try:
            since = now - rules.rules.keep_trying if self._lost else None
            ours = await self._books.look(find, owner, now, since)
        except Unreadable as e:
            if str(e) not in (self._why, OPENING):
                _log.warning("alerts: the books cannot be looked at: %s", e)
            self._why, self._lost = str(e), True
            rules.again()
            return new
        self._why, self._lost = "", False
        for alert in ours:
            new += await self.delivery.put(alert)
        self._others |= dict.fromkeys(found.keys() - {alert.id for alert in ours})
        while len(self._others) > REMEMBERED:
            del self._others[next(iter(self._others))]
        return new

    async def test(self, names: Sequence[str]) -> list[dict[str, Any]]:
        """Send a test to these receivers, or to all; what came back. Raises as `pick`."""
        rules = self._rules.rules
        return await send_tests(pick(rules.receivers, names), rules, self._clock)

    async def rows(self) -> dict[str, Any]:
        """What `forebay alerts list` shows."""
        outbox = self.delivery.outbox
        why = ""
        try:
            found = await self._books.history(LISTED)
        except Unreadable as e:
            found, why = [], str(e)
        known = {alert.id for alert in found}
        found += [alert for alert in outbox.state.alerts.values() if alert.id not in known]
        found.sort(key=lambda alert: alert.at, reverse=True)
        receivers = []
        for receiver in self._rules.rules.receivers:
            waiting, last = self.delivery.state_of(receiver.name)
            row = {"name": receiver.name, "kind": receiver.kind.value, "host": receiver.host, "waiting": waiting}
            receivers.append(row | {"why": last})
        return {
            "alerts": [{**generic(a), "waits_for": outbox.waits_for(a.id)} for a in found[:LISTED]],
            "receivers": receivers,
            "why": why,
        }

    def families(self) -> tuple[FamilySnapshot, ...]:
        return self.delivery.families()

    async def close(self) -> None:
        await self.delivery.close()
        await self._books.close()

    def __repr__(self) -> str:
        return f"<Alerting {self.delivery!r}{' ' + self._why if self._why else ''}>"


def pick(receivers: Sequence[Receiver], names: Sequence[str]) -> list[Receiver]:
    """Those of these names; all where none is given. Raises KeyError, which says what there is."""
    by_name = {receiver.name: receiver for receiver in receivers}
    for name in names:
        if name not in by_name:
            raise KeyError(f"there is no receiver '{shown(name)}'; there are {', '.join(by_name) or 'none'}")
    return [by_name[name] for name in dict.fromkeys(names)] if names else list(receivers)


async def send_tests(receivers: Sequence[Receiver], rules: Alerts, clock: Clock) -> list[dict[str, Any]]:
    """One try each, at the same time; past queues, so that what waits is not moved."""
    now = clock.wall()

    async def one(receiver: Receiver) -> dict[str, Any]:
        alert = Alert(
            id=alert_id("test", receiver.name, now),
            rule="test",
            severity=Severity.INFO,
            title="This is a test",
            text=f"This is a test of the receiver {receiver.name}, sent by `forebay alerts test`. Nothing is wrong.",
            at=now,
            data={"receiver": receiver.name},
        )
        began = clock.now()
        line = Line(receiver, clock.wall)
        try:
            verdict = await line.send(alert, rules.timeout)
        finally:
            line.close()
        return {
            "receiver": receiver.name,
            "kind": receiver.kind.value,
            "host": receiver.host,
            "delivered": verdict.fate is Fate.DELIVERED,
            "answer": verdict.said,
            "seconds": round(clock.now() - began, 3),
        }

    return list(await asyncio.gather(*map(one, receivers)))

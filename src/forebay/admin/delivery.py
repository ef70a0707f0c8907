"""Alerts to their receivers: one queue, one task and one thread a receiver, so that one that hangs delays no other.

A receiver gets its alerts one by one in the order in which they were raised. A try that fails (not reached, no answer
in time, 408, 425, 429, 5xx) is made again after a back-off; what is refused otherwise is given up, for it would be
refused again. While a receiver is away its queue is bounded in number and age, and once it is back it is told what was
dropped.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from pathlib import Path
from types import MappingProxyType
from typing import Final

from forebay.admin.outbox import Outbox
from forebay.admin.payloads import PACE, Fate, Verdict, post_of
from forebay.admin.posting import Poster
from forebay.admin.sums import write_private
from forebay.admin.threads import Busy, Threads
from forebay.clock import Clock
from forebay.config.alerts import Alerts, Receiver, Severity
from forebay.counters import counters
from forebay.ledger.alerts import Alert
from forebay.state.messages import FamilySnapshot
from forebay.wire.tasks import Tasks

WRITE: Final = 8.0
"""Seconds that writing the outbox may take."""
LONGEST_REST: Final = 3_600.0
"""Most seconds that a receiver's Retry-After is followed."""
_LEVELS: Final = MappingProxyType(
    {Severity.INFO: logging.INFO, Severity.WARNING: logging.WARNING, Severity.CRITICAL: logging.ERROR}
)

_log = logging.getLogger("forebay.alerts")


class Delivery:
    """Mutable state: the outbox, and a sender a receiver."""

    def __init__(self, rules: Alerts, outbox: Outbox, path: Path, clock: Clock) -> None:
        self.rules = rules
        self.outbox = outbox
        self.path = path
        self.clock = clock
        self._files = Threads("alerts", count=1, bound=8)
        self._saving = asyncio.Lock()
        self._unsaved = ""
        self._senders: dict[str, _Sender] = {}
        self._tasks = Tasks()
        self.raised = counters("forebay_alerts", "Alerts raised.", "rule")
        self.deliveries = counters(
            "forebay_alert_deliveries", "Tries to deliver an alert, by how they ended.", "receiver", "result"
        )

    def start(self, rules: Alerts) -> None:
        """Deliver by these rules from now on: to begin with, and again after a change."""
        self.rules, self.outbox.bound = rules, rules.queue
        wanted = {r.name: r for r in rules.receivers}
        for name, sender in list(self._senders.items()):
            if wanted.get(name) != sender.receiver:
                self._senders.pop(name).stop()
        for name, count in self.outbox.keep_only(wanted).items():
            _log.warning("alerts: %s is no receiver any more; %d alerts that waited for it are dropped", name, count)
        for name, receiver in wanted.items():
            if name not in self._senders:
                sender = _Sender(self, receiver)
                self._senders[name] = sender
                sender.task = self._tasks.spawn(sender.run())

    async def put(self, alert: Alert) -> bool:
        """Log, count, and queue on disk. False where it was told of before."""
        if self.outbox.known(alert.id):
            return False
        lost = self.outbox.put(alert, self.rules.receivers, self.clock.wall())
        self.raised.series(alert.rule).add()
        _log.log(_LEVELS[alert.severity], "alert %s %s: %s", alert.rule, alert.id, alert.text)
        for name, dropped in lost:
            self.dropped(name, dropped, f"{self.outbox.bound:,} others wait already")
        await self.save()
        for sender in self._senders.values():
            sender.wake.set()
        return True

    def dropped(self, receiver: str, alert: Alert, why: str) -> None:
        self.deliveries.series(receiver, "dropped").add()
        _log.error("alerts: %s %s is not delivered to %s: %s", alert.rule, alert.id, receiver, why)

    async def save(self) -> None:
        """Bring the outbox to the disk, where it changed. Where it cannot be, it is tried again at the next change."""
        async with self._saving:
            if not self.outbox.changed:
                return
            content = self.outbox.content()
            try:
                await self._files.run(lambda: write_private(self.path, content, durable=True), WRITE)
            except (OSError, TimeoutError, Busy) as e:
                self.outbox.changed = True
                why = str(e) or "no answer from the disk"
                if why != self._unsaved:
                    _log.error("%s cannot be written, so a restart may repeat or lose alerts: %s", self.path, why)
                self._unsaved = why
            else:
                self._unsaved = ""

    def families(self) -> tuple[FamilySnapshot, ...]:
        """Counters, and what waits."""
        waiting = tuple(((n,), float(self.outbox.waiting(n))) for n in self._senders)
        failing = tuple(((n,), float(s.failures > 0)) for n, s in self._senders.items())
        label = ("receiver",)
        return (
            *(
                FamilySnapshot(
                    f.name, f.help, "counter", f.labels, (), tuple((k, float(c.value)) for k, c in f.items())
                )
                for f in (self.raised, self.deliveries)
            ),
            FamilySnapshot(
                "forebay_alerts_waiting", "Alerts a receiver has still to get.", "gauge", label, (), waiting
            ),
            FamilySnapshot(
                "forebay_alert_receiver_failing", "1 where the last try failed.", "gauge", label, (), failing
            ),
        )

    def state_of(self, receiver: str) -> tuple[int, str]:
        """(alerts that wait, why the last try failed)."""
        sender = self._senders.get(receiver)
        return self.outbox.waiting(receiver), sender.why if sender else ""

    async def close(self) -> None:
        """Stop sending; what waits is on the disk."""
        await self._tasks.drain()
        await self.save()

    def __repr__(self) -> str:
        return f"<Delivery {self.outbox!r}>"


class _Sender:
    """One receiver's. `failures`: tries in a row that failed, the last `why`."""

    def __init__(self, delivery: Delivery, receiver: Receiver) -> None:
        self.receiver = receiver
        self.wake = asyncio.Event()
        self.failures = 0
        self.why = ""
        self.task: asyncio.Task[None] | None = None
        self._delivery = delivery
        self._line = Line(receiver, delivery.clock.wall)

    def stop(self) -> None:
        if self.task is not None:
            self.task.cancel()
        self._line.close()

    async def run(self) -> None:
        """Runs until it is cancelled."""
        delivery, name = self._delivery, self.receiver.name
        while True:
            self.wake.clear()
            found = delivery.outbox.head(name)
            if found is None:
                await self.wake.wait()
                continue
            alert, since = found
            rules = delivery.rules
            if delivery.clock.wall() - since > rules.keep_trying:
                delivery.outbox.drop(name)
                delivery.dropped(name, alert, f"it waited for {rules.keep_trying:g} s; the last try: {self.why}")
                await delivery.save()
                continue
            verdict = await self._line.send(alert, rules.timeout)
            counted = delivery.deliveries.series(name, verdict.fate.value)
            match verdict.fate:
                case Fate.AGAIN:
                    counted.add()
                    await self._rest(alert, verdict)
                    continue
                case Fate.REFUSED:
                    _log.error("alerts: %s refused %s %s: %s", name, alert.rule, alert.id, verdict.said)
                    delivery.outbox.take(name)
                case Fate.DELIVERED:
                    delivery.outbox.take(name)
                    delivery.outbox.confess(name, delivery.clock.wall())
            if self.failures and verdict.fate is Fate.DELIVERED:
                _log.info("alerts: %s takes alerts again", name)
            self.failures, self.why = 0, verdict.said if verdict.fate is Fate.REFUSED else ""
            await delivery.save()
            counted.add()  # what is counted is not sent again
            await asyncio.sleep(PACE[self.receiver.kind])

    async def _rest(self, alert: Alert, verdict: Verdict) -> None:
        rules = self._delivery.rules
        if not self.failures:
            _log.warning(
                "alerts: %s did not take %s %s (%s); it is tried again",
                self.receiver.name,
                alert.rule,
                alert.id,
                verdict.said,
            )
        delay = min(rules.back_off * 2.0 ** min(self.failures, 30), rules.back_off_most)
        delay *= random.uniform(0.5, 1.0)  # noqa: S311 - spreads retries, hides nothing
        self.failures, self.why = self.failures + 1, verdict.said
        await asyncio.sleep(max(delay, min(verdict.after or 0.0, LONGEST_REST)))

    def __repr__(self) -> str:
        return f"<Sender {self.receiver.name} {self.why or 'fine'}>"


class Line:
    """A thread to one receiver."""

    def __init__(self, receiver: Receiver, wall: Callable[[], float]) -> None:
        self._receiver = receiver
        self._wall = wall
        self._threads = Threads(f"alerts-{receiver.name}", count=1, bound=1)
        self._poster: Poster | None = None

    async def send(self, alert: Alert, within: float) -> Verdict:
        """One try, of at most `within` seconds."""
        try:
            return await self._threads.run(lambda: self._send(alert, within), within)
        except TimeoutError:
            return Verdict(Fate.AGAIN, f"no answer within {within:g} s")
        except Busy:
            return Verdict(Fate.AGAIN, "earlier tries hang")

    def close(self) -> None:
        """A try that runs is left behind."""
        self._threads.close()

    def _send(self, alert: Alert, within: float) -> Verdict:
        try:
            poster = self._poster = self._poster or Poster(self._receiver)
        except OSError as e:
            return Verdict(Fate.AGAIN, f"ca: {self._receiver.ca} cannot be used: {e.strerror or e}")
        return poster.send(post_of(self._receiver, alert, self._wall()), within)

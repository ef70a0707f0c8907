"""What others than a worker have used of its budgets, told to it: its own lives before it was killed, other hosts.

A worker that comes up is asked for its budgets at once, and told when all that it wrote before is booked; then every
few seconds, only what changed. Reading the books takes one part in twenty of the time at most. A worker without budgets
costs a message.
"""

from __future__ import annotations

import asyncio
import logging
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from forebay.admin.following import keep_talking
from forebay.admin.ingest import Ingest
from forebay.admin.opened import Opened
from forebay.admin.threads import Busy, Threads
from forebay.admin.workers import ANSWER
from forebay.clock import Clock
from forebay.ledger.limit_state import Use
from forebay.ledger.rules import Measure
from forebay.state.channel import Channel, ChannelBroken
from forebay.state.messages import Budgets, Done, GetBudgets, Message, SetUse

if TYPE_CHECKING:
    from forebay.ledger.limit_books import Elsewhere

EVERY: Final = 2.0
"""Seconds between two looks, where others go on,"""
SELDOM: Final = 10.0
"""and where they do not: a look takes 15 ms of CPU."""
SHARE: Final = 20.0
"""Times as long as a look took is waited before the next; of two, the shorter counts: one may have been held up."""
WAIT: Final = 2.0
"""Seconds that a look waits until all is booked that a worker's earlier lives wrote."""
CALL: Final = 30.0
"""Seconds a look may take."""
MOST_USES: Final = 200
"""In one message: a worker takes about 3 µs for each."""

_At = tuple[str, tuple[str, ...], Measure]
M = TypeVar("M", bound=Message)
_log = logging.getLogger("forebay.admin")


class Telling:
    """Of one worker."""

    def __init__(self, index: int, path: Path, ingest: Ingest, books: Opened, clock: Clock) -> None:
        self.index = index
        self._path = path
        self._ingest = ingest
        self._books = books
        self._clock = clock
        self._threads = Threads("budgets", count=1, bound=1)
        self._why = ""

    async def run(self) -> None:
        """Runs until it is cancelled."""
        await keep_talking(self._path, self._talk, f"worker {self.index}: it is not told what others have used")

    async def _talk(self, channel: Channel) -> None:
        budgets = await _ask(channel, GetBudgets(-1), Budgets)
        first, told = budgets.position, False
        version, since = -1, budgets.since
        sent: dict[_At, Use] = {}
        elsewhere: Elsewhere | None = None
        before = 0.0
        looked = float("-inf")
        while True:
            if budgets.version != version:
                version = budgets.version
                sent = {at: use for at, use in sent.items() if since.get(at[0]) == budgets.since.get(at[0])}
                since = budgets.since
                elsewhere = await self._elsewhere(budgets) if budgets.rules else None
                looked = float("-inf")
            if not told:  # what an earlier life wrote counts, and what was under way then
                self._ingest.nudge()
                told = await self._ingest.booked(self.index, budgets.owner, first, WAIT) >= first
            began = self._clock.now()
            if elsewhere is not None:
                due = not told or began - looked >= SELDOM
                found = await self._look(elsewhere, due=due)
                if found is not None:
                    looked = began
                    await _push(channel, _changes(sent, found), complete=told)
                elif due:
                    told = False
            took = self._clock.now() - began
            await asyncio.sleep(max(EVERY, SHARE * min(took, before)))
            before = took
            budgets = await _ask(channel, GetBudgets(version), Budgets)

    async def _elsewhere(self, budgets: Budgets) -> Elsewhere:
        def make() -> Elsewhere:
            from forebay.ledger.limit_books import Elsewhere

            return Elsewhere(budgets.owner, budgets.rules, budgets.since)

        return await self._threads.run(make, CALL)

    async def _look(self, elsewhere: Elsewhere, *, due: bool) -> list[Use] | None:
        """None where the books cannot be read, or, unless it is `due`, where others have booked nothing."""

        def read() -> tuple[list[Use], list[str]] | Exception | None:
            from forebay.ledger.database import DatabaseError

            try:
                with self._books.get().read() as connection:
                    if due or elsewhere.moved(connection):
                        return elsewhere.read(connection, self._clock.wall())
                    return None
            except DatabaseError as e:
                return e

        try:
            found = await self._threads.run(read, CALL)
        except (TimeoutError, Busy):
            found = TimeoutError(f"the database did not answer within {CALL:g} s")
        if isinstance(found, Exception):
            self._say(f"what others have used of budgets is not known anew: {found}")
            return None
        if found is None:
            return None
        uses, left_out = found
        self._say(f"use before a restart or of other hosts does not count in {', '.join(left_out)}: too many scopes"
                  if left_out else "")  # fmt: skip
        return uses

    def _say(self, why: str) -> None:
        if why and why != self._why:
            _log.warning("worker %d: %s", self.index, why)
        self._why = why

    def __repr__(self) -> str:
        return f"<Telling {self.index} {self._why}>"


def _changes(sent: dict[_At, Use], uses: list[Use]) -> list[Use]:
    """What is not as it was `sent`, which follows."""
    now: dict[_At, Use] = {(use.rule, use.path, use.measure): use for use in uses}
    changed = [use for at, use in now.items() if sent.get(at) != use]
    changed += [Use(use.rule, use.path, use.measure, use.start, 0) for at, use in sent.items() if at not in now]
    sent.clear()
    sent.update(now)
    return changed


async def _push(channel: Channel, uses: list[Use], *, complete: bool) -> None:
    rest = iter(uses)
    while some := tuple(islice(rest, MOST_USES)):
        await _ask(channel, SetUse(some, complete=False), Done)
    if complete:
        await _ask(channel, SetUse((), complete=True), Done)


async def _ask(channel: Channel, message: Message, kind: type[M]) -> M:
    async with asyncio.timeout(ANSWER):
        answer = await channel.ask(message)
    if not isinstance(answer, kind):
        raise ChannelBroken(f"answered {type(answer).__name__}, not {kind.__name__}")
    return answer

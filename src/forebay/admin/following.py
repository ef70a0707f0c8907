"""What a worker and this process tell each other of the books.

One long poll a worker: it says when more of its journal is on disk, which is booked then, and hears how far that is:
with `ledger.durability: database` first bytes of answers wait for it, so it is booked at once; else in a moment, so
that a transaction takes what came meanwhile too.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from forebay.admin.ingest import Ingest
from forebay.admin.workers import ANSWER, why_not
from forebay.config.ledger import Durability
from forebay.state.channel import Channel, ChannelBroken
from forebay.state.messages import Committed, Follow

RETRY: Final = 0.1
"""Seconds between two tries to reach a worker: a new one may wait for what it is told."""
STUCK: Final = 1.0
"""Seconds after which a worker is told how far the books are, though that is not as far as it is itself."""

_log = logging.getLogger("forebay.admin")


class Following:
    """The long poll of one worker."""

    def __init__(self, index: int, path: Path, ingest: Ingest, durability: Callable[[], Durability]) -> None:
        self.index = index
        self._path = path
        self._ingest = ingest
        self._durability = durability

    async def run(self) -> None:
        """Runs until it is cancelled."""
        await keep_talking(self._path, self._talk, f"worker {self.index}: its journal is not followed")

    async def _talk(self, channel: Channel) -> None:
        ingest, owner, booked = self._ingest, "", 0
        try:
            while True:
                async with asyncio.timeout(ANSWER):
                    said = await channel.ask(Follow(owner, booked))
                if not isinstance(said, Committed):
                    raise ChannelBroken(f"answered {type(said).__name__}, not Committed")
                ingest.heard.add(self.index)
                if said.owner == owner and said.position <= booked:
                    continue
                if self._durability() is not Durability.DATABASE:
                    await asyncio.sleep(ingest.gather)
                ingest.nudge()
                owner = said.owner
                booked = await ingest.booked(self.index, owner, said.position, STUCK)
        finally:
            ingest.heard.discard(self.index)

    def __repr__(self) -> str:
        return f"<Following {self.index}>"


async def keep_talking(path: Path, talk: Callable[[Channel], Awaitable[None]], broken: str) -> None:
    """Over a channel to a worker, connected anew whenever that ends. Runs until it is cancelled. The links of
    `workers` say that a worker is gone; this only logs, behind `broken`, for whoever debugs."""
    while True:
        try:
            async with asyncio.timeout(ANSWER):
                channel = await Channel.connect(str(path))
            try:
                await talk(channel)
            finally:
                await channel.close()
        except (OSError, ChannelBroken, TimeoutError) as e:
            _log.debug("%s: %s", broken, why_not(e))
        await asyncio.sleep(RETRY)

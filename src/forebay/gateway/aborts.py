"""Telling engines that a request is not wanted any more, where they listen to more than a closed connection."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from forebay.counters import counters
from forebay.gateway.fetch import FetchFailed, fetch
from forebay.wire.tasks import Tasks

if TYPE_CHECKING:
    from forebay.gateway.dialects import Abort
    from forebay.gateway.handles import Handle

log = logging.getLogger("forebay.engines")

AT_ONCE: Final = 64
"""Aborts on their way; what is over that is left to the closed connection, and counted."""
SECONDS: Final = 2.0


class Aborts:
    """Fire and forget, in a group of its own."""

    def __init__(self) -> None:
        self._tasks = Tasks()
        self.counted = counters("forebay_engine_aborts", "Aborts sent to engines, by what came of it.", "engine", "how")

    def tell(self, handle: Handle, abort: Abort) -> None:
        if len(self._tasks) >= AT_ONCE:
            self.counted.series(handle.name, "left_out").add()
        else:
            self._tasks.spawn(self._tell(handle, abort))

    async def _tell(self, handle: Handle, abort: Abort) -> None:
        try:
            await fetch(handle, abort.path, SECONDS, abort.body)
        except FetchFailed as e:
            self.counted.series(handle.name, "failed").add()
            log.info("engine %s was not told of an abort: %s", handle.name, e)
        else:
            self.counted.series(handle.name, "told").add()

    async def close(self) -> None:
        await self._tasks.drain()

    def __repr__(self) -> str:
        return f"<Aborts {len(self._tasks)} on their way>"

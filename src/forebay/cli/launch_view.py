"""What `forebay launch` shows while engines start: on a terminal a table that moves, elsewhere log lines only."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Protocol

from forebay.cli.launched import Launched, Phase

if TYPE_CHECKING:  # only where there is a terminal
    from rich.console import Console
    from rich.live import Live
    from rich.table import Table

log = logging.getLogger("forebay.launch")

EVERY = 0.25
"""Seconds between two looks."""
_COLOURS: Final = MappingProxyType(
    {Phase.HEALTHY: "green", Phase.FAILED: "red", Phase.RESTARTING: "yellow", Phase.STOPPING: "yellow"}
)


class View(Protocol):
    def say(self, text: str, level: int = logging.INFO) -> None:
        """Something that people should know."""
        ...

    async def follow(self, engines: Sequence[Launched]) -> None:
        """Until each is healthy for the first time, or given up."""
        ...


class Lines:
    def say(self, text: str, level: int = logging.INFO) -> None:
        log.log(level, "%s", text)

    async def follow(self, engines: Sequence[Launched]) -> None:
        await asyncio.gather(*(engine.settled.wait() for engine in engines))


class Moving(Lines):
    """Mutable state: the table on the terminal, while there is one."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live: Live | None = None

    def say(self, text: str, level: int = logging.INFO) -> None:
        if self._live is None:
            super().say(text, level)
        else:
            self._live.console.print(text, markup=False, highlight=False)

    async def follow(self, engines: Sequence[Launched]) -> None:
        from rich.live import Live

        with Live(table(engines), console=self._console, auto_refresh=False) as live:
            self._live = live
            try:
                while not all(engine.settled.is_set() for engine in engines):
                    live.update(table(engines), refresh=True)
                    await asyncio.sleep(EVERY)
            finally:
                live.update(table(engines), refresh=True)
                self._live = None


def table(engines: Sequence[Launched]) -> Table:
    """Name, phase, seconds in it, last line of the log."""
    from rich.table import Table
    from rich.text import Text

    rows = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    rows.add_column("engine", no_wrap=True)
    rows.add_column("phase", no_wrap=True)
    rows.add_column("s", justify="right", no_wrap=True)
    rows.add_column("last line", no_wrap=True, overflow="ellipsis", ratio=1)
    for engine in engines:
        seconds = f"{time.monotonic() - engine.since:.0f}"
        rows.add_row(
            engine.name, Text(engine.phase, _COLOURS.get(engine.phase, "")), seconds, Text(engine.log.last, "dim")
        )
    return rows

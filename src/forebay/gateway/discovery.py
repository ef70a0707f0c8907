"""Engines behind a DNS name with many addresses: one engine an address, looked up again and again.

What a name has once answered is kept while DNS is away. An address is given up only when several answers in a row came
without it, so that a flapping name takes no engine from those it serves.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import random
import socket
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Final
from urllib.parse import urlsplit

from forebay.config.engine import Discover, Engine
from forebay.gateway.handles import Source, Wanted
from forebay.wire.tasks import Tasks

log = logging.getLogger("forebay.engines")

LOOK_UP: Final = 10.0
"""Seconds an answer may take."""
_FAMILIES: Final = MappingProxyType(
    {
        Discover.DNS: socket.AF_UNSPEC,
        Discover.DNS4: socket.AF_INET,
        Discover.DNS6: socket.AF_INET6,
    }
)

Resolve = Callable[[str, int], Awaitable[Iterable[str]]]
"""The addresses of a host in an address family; raises OSError."""


async def resolve(host: str, family: int) -> list[str]:
    """As the system resolves names: its hosts file, its search domains, its servers."""
    found = await asyncio.get_running_loop().getaddrinfo(host, None, family=family, type=socket.SOCK_STREAM)
    return [str(where[0]) for *_, where in found]


class Addresses:
    """What is known of one name. Pure. Mutable state: each address with the number of answers in a row without it."""

    def __init__(self, most: int, missing: int) -> None:
        self.most = most
        self.missing = missing
        self.left_out = 0
        """Addresses of the last answer that are beyond `most`."""
        self._absent: dict[str, int] = {}

    def heard(self, answer: Iterable[str]) -> bool:
        """An answer came. True where the addresses are others now. An empty one says nothing."""
        said = {a for a in answer if _is_address(a)}
        if not said:
            return False
        before = tuple(self)
        for address in before:
            absent = 0 if address in said else self._absent[address] + 1
            if absent >= self.missing:
                del self._absent[address]
            else:
                self._absent[address] = absent
        new = sorted(said.difference(self._absent))
        room = max(0, self.most - len(self._absent))
        self._absent.update(dict.fromkeys(new[:room], 0))
        self.left_out = len(new[room:])
        return tuple(self) != before

    def __iter__(self) -> Iterator[str]:
        return iter(self._absent)

    def __len__(self) -> int:
        return len(self._absent)

    def __repr__(self) -> str:
        return f"<Addresses {self._absent}>"


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


class _Name:
    """One engine entry with `discover`."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.addresses = Addresses(engine.discover_most, engine.discover_missing)
        self.why = "not looked up yet"
        self.looked_at = asyncio.Event()
        self.task: asyncio.Task[None] | None = None


class Names:
    """Every name that is followed. Mutable state: the names, each with a task that looks it up."""

    def __init__(self, tasks: Tasks, changed: Callable[[], None], ask: Resolve = resolve) -> None:
        self._tasks = tasks
        self._changed = changed
        self._ask = ask
        self._names: dict[str, _Name] = {}

    def configure(self, wanted: Mapping[str, Engine]) -> None:
        """Follow these entries and no others. What is known of an entry that stays, stays."""
        for name in [n for n in self._names if n not in wanted]:
            self._stop(self._names.pop(name))
        for name, engine in wanted.items():
            known = self._names.get(name)
            if known is not None and known.engine == engine:
                continue
            made = self._names[name] = _Name(engine)
            if known is not None:
                self._stop(known)
                if urlsplit(known.engine.url).hostname == urlsplit(engine.url).hostname:
                    made.addresses.heard(known.addresses)
            made.task = self._tasks.spawn(self._follow(made))

    def expanded(self, name: str) -> dict[str, Wanted]:
        """An engine an address, named NAME@ADDRESS."""
        known = self._names[name]
        found = {}
        for address in known.addresses:
            label = f"{name}@{address.partition('%')[0]}"
            found[label] = Wanted(known.engine.model_copy(update={"name": label}), Source.DNS, address)
        return found

    def unresolved(self) -> Iterable[tuple[Engine, str]]:
        """Entries without an address, and why."""
        return [(n.engine, n.why) for n in self._names.values() if not len(n.addresses)]

    async def first_answers(self) -> None:
        """Until every name was asked for once."""
        for name in tuple(self._names.values()):
            await name.looked_at.wait()

    async def _follow(self, name: _Name) -> None:
        engine = name.engine
        rng = random.Random(engine.name)  # noqa: S311 - spreads questions, guards nothing
        while True:
            await self._look_up(name)
            name.looked_at.set()
            await asyncio.sleep(engine.discover_every * rng.uniform(0.9, 1.1))

    async def _look_up(self, name: _Name) -> None:
        engine = name.engine
        host = urlsplit(engine.url).hostname or ""
        addresses = name.addresses
        left_out = addresses.left_out
        try:
            async with asyncio.timeout(LOOK_UP):
                answer = list(await self._ask(host, _FAMILIES[engine.discover]))
        except (OSError, UnicodeError, TimeoutError) as e:
            why = f"no answer within {LOOK_UP:g} s" if isinstance(e, TimeoutError) else f"{e.__class__.__name__}: {e}"
            self._trouble(name, why)
            return
        changed = addresses.heard(answer)
        if not answer:
            self._trouble(name, "the answer is empty")
            return
        if name.why and len(addresses):
            log.info("engine %s: %s has %d addresses", engine.name, host, len(addresses))
            name.why = ""
        if addresses.left_out and not left_out:
            log.warning(
                "engine %s: %s has more addresses than discover_most (%d): %d are left out",
                *(engine.name, host, engine.discover_most, addresses.left_out),
            )
        if changed:
            self._changed()

    def _trouble(self, name: _Name, why: str) -> None:
        """Said once, until it is another."""
        if why != name.why:
            kept = f"; its {len(name.addresses)} addresses stay" if len(name.addresses) else ""
            log.warning("engine %s: its name cannot be looked up: %s%s", name.engine.name, why, kept)
            name.why = why

    def _stop(self, name: _Name) -> None:
        if name.task is not None:
            name.task.cancel()

    def close(self) -> None:
        for name in self._names.values():
            self._stop(name)

    def __repr__(self) -> str:
        return f"<Names {[(n.engine.name, len(n.addresses)) for n in self._names.values()]}>"

"""Engines added, drained and removed while the gateway runs: what the admin process keeps of them.

`engines.json` in the state directory holds them over restarts; the workers are told over their control sockets, as of
keys. A change answers when every worker has confirmed it, or says that one has not.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from forebay import errors
from forebay.admin.sums import write_private
from forebay.admin.threads import Busy, Threads
from forebay.admin.view import GatewayState
from forebay.config.problems import ConfigError, Problem
from forebay.errors import Outcome, Refusal
from forebay.state.live import MOST, Live, LiveUnusable, entry_of, message_of, read
from forebay.state.messages import live_engines

WRITE: Final = 8.0
"""Seconds that writing the file may take."""
TELL: Final = 2.0
"""Seconds a change waits for the workers before it is answered as pending."""
SAID: Final = 5
"""Most problems of an entry that are named at once."""

_log = logging.getLogger("forebay.admin")


class Engines:
    """Mutable state: `live`, as it is on the disk."""

    def __init__(self, state: GatewayState) -> None:
        self._state = state
        self._files = Threads("engines", count=1, bound=16)
        self._changing = asyncio.Lock()
        self._broken = ""
        try:
            self.live = read(state.config.state_dir)
        except LiveUnusable as e:
            self._broken = str(e)
            _log.error("%s; engines cannot be added or drained until it is mended or moved away", e)
            self.live = Live()
        self._tell()

    async def add(self, fields: Mapping[str, Any], *, replace: bool) -> bool:
        """Whether every worker knows. Raises Refusal."""
        try:
            name = entry_of(fields, os.environ).name
        except ConfigError as e:
            said = [_of_one(problem) for problem in e.problems[:SAID]]
            raise errors.bad_request(f"{'; '.join(words for _, words in said)}.", param=said[0][0] or None) from e
        secret = fields.get("api_key")
        if secret is not None and "${" not in str(secret):
            raise errors.bad_request(
                "api_key: write ${VAR}, a variable in the environment of `forebay serve`: it is kept on disk.",
                param="api_key",
            )
        async with self._changing:
            if name in self._configured():
                if self._listed(name):
                    raise _conflict(f"engines_file has an engine called {name}; change it there")
                raise _conflict(f"The configuration has an engine called {name}; change it there and reload")
            if name in self.live.engines and not replace:
                raise _conflict(f"An engine called {name} was added already; remove it first, or say --replace")
            if name not in self.live.engines and len(self.live.engines) >= MOST:
                raise _conflict(f"There are {MOST:,} engines added live already; put more into engines_file")
            await self._change(
                engines={**self.live.engines, name: dict(fields)},
                draining=tuple(d for d in self.live.draining if d != name),
            )
            _log.info("engine %s is added: %s", name, fields.get("url"))
        return await self._told()

    async def remove(self, name: str) -> bool:
        """What runs there finishes. Raises Refusal."""
        async with self._changing:
            if name not in self.live.engines:
                raise self._not_ours(name)
            await self._change(
                engines={n: fields for n, fields in self.live.engines.items() if n != name},
                draining=tuple(d for d in self.live.draining if d != name),
            )
            _log.info("engine %s is removed", name)
        return await self._told()

    async def drain(self, name: str) -> bool:
        """No new requests from now on. Raises Refusal."""
        async with self._changing:
            if name not in self._known():
                raise self._unknown(name)
            if len(self.live.draining) >= MOST:
                raise _conflict(f"{MOST:,} engines drain already; resume those that are gone")
            await self._change(draining=tuple(sorted({*self.live.draining, name})))
        return await self._told()

    async def resume(self, name: str) -> bool:
        """Raises Refusal."""
        async with self._changing:
            if name not in self.live.draining:
                if name in self._known():
                    return True
                raise self._unknown(name)
            await self._change(draining=tuple(d for d in self.live.draining if d != name))
        return await self._told()

    async def rows(self) -> list[dict[str, Any]]:
        """As fresh as the workers answer."""
        await self._state.workers.fresh(TELL)
        return [e.as_json() for e in self._state.engines()]

    # --- inside ------------------------------------------------------------------------------------------------------

    def _configured(self) -> set[str]:
        return {e.name for e in self._state.config.engines}

    def _listed(self, name: str) -> bool:
        return any(e.name == name and e.source == "list" for e in self._state.engines())

    def _known(self) -> set[str]:
        return self._configured() | self.live.engines.keys() | {e.name for e in self._state.engines()}

    def _not_ours(self, name: str) -> Refusal:
        """Why it cannot be removed."""
        if self._listed(name):
            return _conflict(f"{name} is in engines_file; take it out there, or drain it")
        if name in self._configured():
            return _conflict(f"{name} is in the configuration; take it out there and reload, or drain it")
        entry = name.rpartition("@")[0]
        if name in self._known() and entry in self._known():
            return _conflict(f"{name} is an address of {entry}; drain it, or remove {entry}")
        return self._unknown(name)

    def _unknown(self, name: str) -> Refusal:
        return Refusal(
            404,
            "engine_not_found",
            f"There is no engine '{errors.shown(name)}'; `forebay engines list` shows them.",
            outcome=Outcome.NOT_FOUND,
            param="name",
        )

    async def _change(
        self, engines: dict[str, dict[str, Any]] | None = None, draining: tuple[str, ...] | None = None
    ) -> None:
        """On the disk first, then in force. Raises Refusal."""
        if self._broken:
            raise _cannot(self._broken)
        changed = Live(
            self.live.version + 1,
            self.live.engines if engines is None else engines,
            self.live.draining if draining is None else draining,
        )
        path = live_engines(self._state.config.state_dir)
        content = msgspec.json.format(msgspec.json.encode(changed), indent=2)
        try:
            await self._files.run(lambda: write_private(path, content, durable=True), WRITE)
        except (OSError, TimeoutError, Busy) as e:
            raise _cannot(f"{path} cannot be written: {e or 'no answer from the disk'}") from e
        self.live = changed
        self._tell()

    def _tell(self) -> None:
        message, wrong = message_of(self.live, os.environ)
        for problem in wrong:
            _log.error("%s", problem)
        self._state.workers.set_engines(message)

    async def _told(self) -> bool:
        return await self._state.workers.told(TELL)

    def __repr__(self) -> str:
        return f"<Engines {len(self.live.engines)} added, {len(self.live.draining)} draining>"


def _of_one(problem: Problem) -> tuple[str, str]:
    """The field of the entry, and what is wrong with it."""
    key = problem.key.removeprefix("engines[0]").removeprefix(".")
    detail = f" (allowed: {problem.allowed})" if problem.allowed else ""
    return key, f"{key}: {problem.message}{detail}" if key else f"{problem.message}{detail}"


def _conflict(why: str) -> Refusal:
    return Refusal(409, "engine_conflict", f"{why}.", outcome=Outcome.BAD_REQUEST, param="name")


def _cannot(why: str) -> Refusal:
    return Refusal(503, "engines_unavailable", f"{why}.", outcome=Outcome.INTERNAL, headers=errors.retry_headers(1))

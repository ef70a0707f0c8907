"""The watched file of engines, `engines_file`: read by the supervisor, as forebay.yaml is.

Looked at once a second: modification time, size and inode first (a file that was moved into place is another inode),
its content only where those changed and have stood still for a look, so that a file being written is not taken for a
bad one. What cannot be used is said once, and what was in force stays.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from forebay.config.engine import Engine
from forebay.config.enginelist import load_list
from forebay.config.fit import impossible
from forebay.config.models import Config
from forebay.config.problems import ConfigError

log = logging.getLogger("forebay.supervisor")

EVERY: Final = 1.0
"""Seconds between looks."""
SAID: Final = 20
"""Problems of one file that are said."""

_Stamp = tuple[int, int, int] | None


class EngineFile:
    """`engines` are those of the last file that could be used."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self._env = env
        self._path: Path | None = None
        self._stamp: _Stamp = None
        self._seen: _Stamp = None
        self._digest = b""
        self._trouble = ""
        self._twice: list[str] = []
        self.engines: tuple[Engine, ...] = ()

    def merged(self, config: Config) -> Config:
        """`config` with these engines behind its own. A name that the configuration has is left out here."""
        own = {e.name for e in config.engines}
        twice = [e.name for e in self.engines if e.name in own]
        if twice and twice != self._twice:
            log.error("%s: left out, for the configuration has the name: %s", self._path, ", ".join(twice[:SAID]))
        self._twice = twice
        listed = tuple(e for e in self.engines if e.name not in own)
        return config.model_copy(update={"engines": (*config.engines, *listed)}) if listed else config

    def read(self, config: Config) -> None:
        """Now, whatever was seen before: at the start, and when the configuration was read again."""
        if config.engines_file != self._path:
            self._path, self.engines, self._digest, self._trouble = config.engines_file, (), b"", ""
        self._stamp = self._seen = self._look()
        if self._path is not None:
            self._take(config)

    async def changed(self, config: Config) -> bool:
        """One look; True where other engines are there now."""
        if self._path is None:
            return False
        stamp, before = self._look(), self._seen
        self._seen = stamp
        if stamp == self._stamp or stamp != before:
            return False
        self._stamp = stamp
        return await asyncio.to_thread(self._take, config)

    def _look(self) -> _Stamp:
        try:
            found = os.stat(self._path) if self._path is not None else None  # noqa: PTH116 - None is no path
        except OSError:
            return None
        return (found.st_mtime_ns, found.st_size, found.st_ino) if found is not None else None

    def _take(self, config: Config) -> bool:
        path = self._path
        assert path is not None
        try:
            engines = load_list(path, self._env)
            if config.admission.enabled and (why := next(iter(impossible(config.admission, engines)), "")):
                raise ValueError(f"{path}: {why}")
        except (ConfigError, ValueError) as e:
            self._say(str(e))
            return False
        self._trouble = ""
        digest = hashlib.sha256(repr(engines).encode() + repr([e.api_key for e in engines]).encode()).digest()
        if digest == self._digest:
            return False
        self._digest, self.engines = digest, engines
        log.info("%s: %d engines", path, len(engines))
        return True

    def _say(self, trouble: str) -> None:
        """Once, until it is another."""
        if trouble == self._trouble:
            return
        self._trouble = trouble
        lines = trouble.splitlines()
        for line in lines[:SAID]:
            log.error("%s", line)
        more = f" ({len(lines) - SAID} more problems)" if len(lines) > SAID else ""
        log.error("engines_file cannot be used%s; the %d engines that it had stay", more, len(self.engines))

    def __repr__(self) -> str:
        return f"<EngineFile {self._path} {len(self.engines)} engines>"

"""What `forebay engines` has added and drained: how it is kept, and how a worker starts with it.

`engines.json` in the state directory holds the entries as they were given: an api_key in them is `${VAR}`, and is
looked up in the environment of the process that reads it, so that no secret is on disk.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
from pydantic import ValidationError

from forebay.config.engine import Engine
from forebay.config.enginelist import read_list
from forebay.config.problems import ConfigError
from forebay.state.messages import SetEngines, live_engines

MOST: Final = 4_096
"""Engines added live, and names drained."""


class Live(msgspec.Struct, frozen=True):
    """`engines`: entries as they stand under `engines` in forebay.yaml, variables not filled in."""

    version: int = 0
    engines: dict[str, dict[str, Any]] = {}
    draining: tuple[str, ...] = ()


class LiveUnusable(Exception):
    """The file cannot be read, or an entry in it cannot be used any more; says why."""


def entry_of(fields: Mapping[str, Any], env: Mapping[str, str]) -> Engine:
    """An entry as it was given, checked and with its variables filled in. Raises ConfigError."""
    return read_list(json.dumps([fields]), "engines", env)[0]


def read(state_dir: Path) -> Live:
    """Raises LiveUnusable; without a file there is nothing live."""
    path = live_engines(state_dir)
    try:
        return msgspec.json.decode(path.read_bytes(), type=Live)
    except FileNotFoundError:
        return Live()
    except (OSError, msgspec.MsgspecError) as e:
        raise LiveUnusable(f"{path} cannot be read: {e}") from e


def message_of(live: Live, env: Mapping[str, str]) -> tuple[SetEngines, list[str]]:
    """What the workers are told, and what is wrong with entries that are left out."""
    found, wrong = [], []
    for name, fields in live.engines.items():
        try:
            found.append(entry_of(fields, env).model_dump_json())
        except ConfigError as e:
            wrong.append(f"engine {name}, added live, cannot be used: {'; '.join(p.message for p in e.problems)}")
    return SetEngines(live.version, tuple(found), live.draining), wrong


def live_of(message: SetEngines) -> tuple[list[Engine], tuple[str, ...]]:
    """Engines and drained names. Raises ValidationError for what the admin process would not have sent."""
    return [Engine.model_validate_json(text) for text in message.engines], message.draining


def at_start(state_dir: Path, env: Mapping[str, str]) -> tuple[list[Engine], tuple[str, ...], list[str]]:
    """As `live_of`, from the file, for a worker that the admin process has not told yet; and what is wrong with it."""
    try:
        message, wrong = message_of(read(state_dir), env)
        return *live_of(message), wrong
    except (LiveUnusable, ValidationError) as e:
        return [], (), [str(e)]

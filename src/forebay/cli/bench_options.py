"""The values of `forebay bench`'s options, as they are typed."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TextIO

from forebay.plan.target import LoadError

if TYPE_CHECKING:
    from forebay.sim.workloads.distributions import Distribution
    from forebay.sim.workloads.mix import Mix

_OWN: Final = MappingProxyType(
    {
        "model": "--model names it",
        "messages": "--prompts gives them",
        "prompt": "--prompts gives it",
        "max_tokens": "--max-tokens gives it",
        "stream": "only a stream has a time to its first token",
    }
)
"""Fields of a body that are the load's own, and what sets them."""


def tokens(option: str, text: str | None, default: int) -> tuple[int, Distribution | None]:
    """A number, and a distribution where it is one of more than one number."""
    from forebay.sim.workloads.bounds import MAX_TOKENS
    from forebay.sim.workloads.distributions import Constant
    from forebay.sim.workloads.errors import WorkloadError
    from forebay.sim.workloads.values import counts

    if text is None:
        return default, None
    if text.startswith("-"):
        raise LoadError(f"{option} must be more than 0, not {text}")
    try:
        found = counts(text)
    except (ValueError, WorkloadError) as e:
        raise LoadError(f"{option}: {e}") from None
    if isinstance(found, Constant):
        if not found.value >= 1 or found.value != int(found.value):
            raise LoadError(f"{option} must be more than 0, not {found.value:g}, and whole")
        if found.value > MAX_TOKENS:
            raise LoadError(f"{option} must be at most {MAX_TOKENS:,}, not {found.value:,.0f}")
        return int(found.value), None
    return default, found


def constant(found: Distribution | None, value: int) -> Distribution:
    from forebay.sim.workloads.distributions import Constant

    return Constant(value) if found is None else found


def mix(text: str) -> Mix:
    from forebay.sim.workloads.bounds import CLASSES
    from forebay.sim.workloads.mix import Mix, one
    from forebay.sim.workloads.values import weights

    if text in CLASSES:
        return one(text)
    try:
        shares = weights(text.replace(",", ";"))
        unknown = [name for name in shares if name not in CLASSES]
        if unknown:
            raise ValueError(f"'{unknown[0]}' is unknown; allowed are {', '.join(CLASSES)}")
        return Mix(tuple(shares), tuple(shares.values()))
    except ValueError as e:
        raise LoadError(f"--classes: {e}") from None


def fields(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
        json.dumps(found, allow_nan=False)  # Python reads NaN and 1e999, which no server and no result file takes
    except (ValueError, RecursionError) as e:
        raise LoadError(f"--extra is not JSON: {e}") from None
    if not isinstance(found, dict):
        raise LoadError("--extra must be a JSON object")
    for name in found.keys() & _OWN.keys():
        raise LoadError(f"--extra has '{name}', which the load sets itself: {_OWN[name]}")
    return found


def writable(option: str, path: str | None) -> None:
    """Raises LoadError where nothing can be written there: better before the run than behind it."""
    if path is None or (path == "-" and option == "--json"):
        return
    if path == "-":
        raise LoadError(f"{option} takes a file; standard output has the table, or with --format json the result")
    folder = Path(path).resolve().parent
    if not folder.is_dir() or Path(path).is_dir():
        raise LoadError(
            f"{path} cannot be written: {'it is' if Path(path).is_dir() else 'there is no'} folder {folder}"
        )
    if not os.access(Path(path) if Path(path).exists() else folder, os.W_OK):
        raise LoadError(f"{path} cannot be written: permission denied")


def is_terminal(stream: TextIO | None) -> bool:
    """Python has None for one that was closed before it began."""
    return stream is not None and stream.isatty()

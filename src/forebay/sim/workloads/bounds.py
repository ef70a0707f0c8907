"""How much is believable, and how a reader says that something is not."""

from __future__ import annotations

from typing import Final, NoReturn

from forebay.errors import shown
from forebay.sim.workloads.errors import BadRow, WorkloadError

MAX_TOKENS: Final = 20_000_000
"""Tokens of one prompt, and of one answer."""
MAX_SECONDS: Final = 366 * 86_400 * 10
"""Length of a workload: ten years."""
MAX_PRIORITY: Final = 1 << 31
MAX_PIECES: Final = 1_000_000
"""Pieces of one prompt's prefix."""
MAX_KEY: Final = 256
"""Characters of a prefix key, a tenant's name or a conversation's."""
MAX_UNFIT: Final = 100_000
"""Requests in a row that are longer than the context, before the rest is given up: a source may have no end."""
CLASSES: Final = ("vip", "normal", "low")


def bad_tokens(name: str, found: object) -> NoReturn:
    raise BadRow(f"{name} is {shown(found)}; allowed are whole numbers from 1 to {MAX_TOKENS:,}")


def bad_seconds(name: str, found: object, unit: str = "seconds") -> NoReturn:
    most = MAX_SECONDS * 1000 if unit == "milliseconds" else MAX_SECONDS
    raise BadRow(f"{name} is {shown(found)}; allowed are 0 to {most:,} {unit} after the workload's begin")


def check_class(found: str) -> str:
    if found not in CLASSES:
        raise BadRow(f"class is '{shown(found)}'; allowed are {', '.join(CLASSES)}")
    return found


def none_fits(context: int) -> WorkloadError:
    return WorkloadError(f"none of {MAX_UNFIT:,} requests in a row fits into a context of {context:,} tokens")

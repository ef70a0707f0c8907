"""The books: what is booked, in which currency, and how safely."""

from __future__ import annotations

import re
from enum import StrEnum
from pathlib import Path
from typing import Annotated

from pydantic import Field, field_validator

from forebay.config.section import Seconds, Section, Zone

__all__ = ["Durability", "Ledger", "WhenFull"]

_LABEL = re.compile(r"[A-Za-z0-9_.-]{1,64}")


class Durability(StrEnum):
    """What a reservation is safe in before the first byte of its answer goes out."""

    JOURNAL = "journal"
    DATABASE = "database"


class WhenFull(StrEnum):
    SERVE = "serve"
    REFUSE = "refuse"


class Ledger(Section):
    enabled: bool = True
    """Books tokens and money of every request; False: only metrics and logs tell of them, and quotas need it."""
    currency: Annotated[str, Field(pattern=r"^[A-Z]{3}$")] = "USD"
    """ISO 4217 code of the one currency of the books; prices in others are converted. Never change it over books that
    have entries: take another database."""
    prices: Path | None = None
    """A price file in YAML (docs/prices.md), read with the configuration and at each reload; it overrides and extends
    the prices of commercial models that are known."""
    zone: Zone = "UTC"
    """Time zone of days and months, as in Asia/Shanghai, where a quota does not name its own."""
    durability: Durability = Durability.JOURNAL
    """`journal`: a reservation is on this host's disk (fsync). `database`: in the database, for hosts whose disks do
    not outlive them."""
    first_byte_wait: Annotated[Seconds, Field(le=10)] = 0.05
    """Most seconds that the first byte of an answer waits for its reservation to be safe; then it goes, and is counted
    as degraded."""
    journal_bytes: Annotated[int, Field(ge=16 << 20, le=1 << 40)] = 1 << 30
    """Most bytes a worker's journal takes while the database is away: about 500 a request. A tenth of it is kept for
    settlements."""
    when_full: WhenFull = WhenFull.SERVE
    """What becomes of requests then. `serve`: they go on without being booked, counted and with an alarm. `refuse`:
    503, so that nothing is ever served unbooked."""
    labels: tuple[str, ...] = ()
    """Names in a request's `metadata`, or in the header X-Forebay-Tags (name=value, …), that costs are allocated by.
    Values of others are not kept."""

    @field_validator("labels")
    @classmethod
    def _labels(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if len(value) > 16:
            raise ValueError("at most 16 labels")
        for name in value:
            if not _LABEL.fullmatch(name):
                raise ValueError("a label's name has at most 64 letters, digits, dots, dashes or underscores")
        if len(set(value)) != len(value):
            raise ValueError("a label is named twice")
        return value

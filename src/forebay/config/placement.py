"""The section `placement`: which engine of a model gets a request."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Annotated

from pydantic import Field, field_validator

from forebay.config.section import Name, Seconds, Section

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,128}")
Weight = Annotated[float, Field(ge=0, le=1e6)]


class PlacementKind(StrEnum):
    BEST = "best"
    ROUND_ROBIN = "round_robin"


class Placement(Section):
    """The weights are explained in docs/placement.md; the defaults were measured on production traces."""

    policy: PlacementKind = PlacementKind.BEST
    """best: where the answer comes soonest for the least work, by cached prefixes and load; round_robin: in turn.
    With admission it is always best."""
    recompute: Weight = 50.0
    """Seconds that a second of a prompt's own prefill counts against a second of its waiting: more keeps prefixes
    where they are, less lets prompts wait less."""
    balance: Weight = 1.0
    """Of the seconds that recompute makes of a typical request, how many times them an engine counts that was given
    twice the mean of work in the last minute."""
    late: Weight = 3.0
    """Seconds that a second beyond the promised time to first token counts (admission.ttft)."""
    interference: Weight = 0.01
    """Seconds that a second counts by which another answer on the engine is delayed."""
    price: Weight = 1.0
    """Seconds that a request may wait longer for an engine whose cost is less by 1."""
    zone: Name | None = None
    """The gateway's zone; none: no engine is far."""
    zone_penalty: Weight = 0.05
    """Seconds that an engine of another zone counts."""
    adapter_load: Weight = 0.5
    """Seconds that loading a LoRA adapter counts, where the engine has not loaded the one asked for."""
    session_header: str | None = None
    """A request header whose value names a session; its requests go to one engine as long as that is not worse by
    session_weight."""
    session_cookie: str | None = None
    """A cookie that does the same."""
    session_weight: Weight = 100.0
    """Seconds that the session's engine is ahead of others."""
    share_prefixes: bool = False
    """Whether what one organisation has cached counts for another. False: nobody can find out by timing what others
    asked, as far as placement goes."""
    index_bytes: Annotated[int, Field(ge=1 << 20, le=1 << 36)] = 256 << 20
    """Memory for what is known of cached prefixes; the least recently used are forgotten first."""
    report_interval: Seconds = 1.0
    """Seconds between two looks at an engine's metrics, where admission is off."""

    @field_validator("session_header", "session_cookie")
    @classmethod
    def _names(cls, value: str | None) -> str | None:
        if value is not None and not _TOKEN.fullmatch(value):
            raise ValueError("a header's or cookie's name has letters, digits and !#$%&'*+-.^_`|~ only, without blanks")
        return value

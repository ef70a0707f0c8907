"""The section `cache.prefix`, and `prompt_cache` of an engine: the caches of prompts that engines and vendors keep."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from forebay.config.section import Seconds, Section

__all__ = ["CacheControl", "Prefix", "PromptCache", "Reorder", "Whose"]


class Whose(StrEnum):
    """Who shares a prompt cache, from the widest to the narrowest."""

    ORGANISATION = "organisation"
    DEPARTMENT = "department"
    PROJECT = "project"
    USER = "user"
    KEY = "key"
    END_USER = "end_user"


class CacheControl(StrEnum):
    """How long Anthropic keeps what a breakpoint marks."""

    NO = "no"
    MINUTES = "5m"
    HOUR = "1h"


class Reorder(StrEnum):
    NOTHING = "nothing"
    TOOLS = "tools"


class Prefix(Section):
    """What of prompts is the same from request to request, and what breaks it (docs/prompt-caching.md)."""

    watch: bool = False
    """Compare requests of one model and organisation: how much of their prompts engines report as cached, how much
    could be, and what stands in the way. It keeps some prompts in memory, never on disk, and shows none."""
    interval: Seconds = 1.0
    """Seconds between two requests of one model and organisation that are compared, once 32 were; all are counted."""
    window: Annotated[Seconds, Field(ge=1)] = 600.0
    """Figures are of the last one to two windows of so many seconds, so that a change is seen in them."""
    memory_bytes: Annotated[int, Field(ge=1 << 20, le=1 << 30)] = 16 << 20
    """Prompts kept to compare with; those of whoever asked longest ago go first."""
    reorder: Reorder = Reorder.NOTHING
    """`tools`: send the tools of a chat sorted by name, and the keys of their objects sorted. For clients that list
    them in another order each time; a model may read parameters in the order they stand in."""


class PromptCache(Section):
    """What is said to this engine about its prompt cache. A client's own word stands, but for `cache_salt`."""

    cache_control: CacheControl = CacheControl.NO
    """anthropic: mark the ends of the tools, of the system prompt and of the last turn, for so long. Writing to that
    cache costs more than not caching: 1.25 times a token's price, 2 times for 1h."""
    prompt_cache_key: Whose | None = None
    """OpenAI's API: send a `prompt_cache_key`, a digest of the caller at this level: requests of one key go where the
    others went, which serves about 15 a minute. None: none is sent."""
    cache_salt: Whose | None = None
    """vllm, sglang: send a `cache_salt`, a digest of the caller at this level and of its own salt: nobody can find out
    by timing what others asked. None: a client's own passes."""

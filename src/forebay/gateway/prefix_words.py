"""What is said of a prompt cache that finds less than it could: for the log, the admin page and the command line."""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

from forebay.state.messages import PrefixBreak, PrefixGroup

SILENT: Final = "silent"
UNMARKED: Final = "unmarked"
IN_TURN: Final = "in_turn"
HINTS: Final = MappingProxyType(
    {
        SILENT: "no engine says how many tokens were cached (vLLM: --enable-prompt-tokens-details, SGLang: "
        "--enable-cache-report)",
        UNMARKED: "Anthropic's API caches only what is marked: engines[].prompt_cache.cache_control",
        IN_TURN: "placement.policy is round_robin over several engines: each has a part of the prompts",
    }
)
ENOUGH: Final = 32
"""Requests compared, before anything is said."""
GAP: Final = 0.2
"""Share of prompt tokens that could be cached and are not, from which on something is said."""
_SHORT: Final = 3
"""Breaks that are named."""
_KINDS: Final = MappingProxyType(
    {
        "time": "holds a time",
        "date": "holds a date",
        "epoch": "holds a time in seconds",
        "uuid": "holds a UUID",
        "id": "holds an id",
        "address": "holds an address",
        "number": "holds a number",
        "words": "holds words, a name maybe, that change",
        "text": "holds text that changes",
        "order": "are in another order from request to request",
        "keys": "have their keys in another order from request to request",
    }
)
_FIXES: Final = MappingProxyType(
    {
        "date": "put it behind what stays the same",
        "order": "send them in one order, or set cache.prefix.reorder: tools",
        "keys": "write them in one order, or set cache.prefix.reorder: tools",
        "text": "put what stays the same before it",
        "words": "put it behind what stays the same, for example into the last message",
    }
)
_FIX: Final = "leave it out, or put it behind what stays the same, for example into the last message"


def share(part: int, whole: int) -> float | None:
    """None: nothing is known."""
    return part / whole if whole else None


def finds(group: PrefixGroup) -> float | None:
    """The share that its cache finds: as engines report it; where none does, as prompts are sent."""
    reported = share(group.cached_tokens, group.reported_tokens)
    return reported if reported is not None else share(group.as_sent_tokens, group.compared_tokens)


def advice(group: PrefixGroup) -> str:
    """ "" where there is nothing to say, or too little is known."""
    could, found = share(group.could_be_tokens, group.compared_tokens), finds(group)
    if group.compared < ENOUGH or could is None or found is None or could - found < GAP:
        return ""
    reported = "is" if group.reported_tokens else "is, as prompts are sent,"
    said = f"the prefix hit could be {could:.0%}, {reported} {found:.0%}"
    sent = share(group.as_sent_tokens, group.compared_tokens) or 0.0
    breaks = [one for one in group.breaks if one.lost_tokens >= 0.05 * group.compared_tokens][:_SHORT]
    if breaks and could - sent >= GAP / 2:
        return f"{said}, because {'; '.join(map(because, breaks))}: {_fix(breaks[0])}"
    hints = [HINTS[one] for one in group.engines if one in HINTS and one != SILENT]
    if hints:
        return f"{said}: {'; '.join(hints)}"
    return f"{said}, and prompts are sent alike: the engines forget them too soon, or others took their place"


def because(one: PrefixBreak) -> str:
    at = "" if one.kind in ("order", "keys") else f" at character {one.at:,}"
    shape = f" ({one.shape})" if one.shape else ""
    return f"{_where(one.where)} {_KINDS.get(one.kind, one.kind)}{at}{shape}"


def _where(where: str) -> str:
    index, _, role = where.partition(" ")
    match role:
        case "(system)" | "(developer)":
            return f"the {role[1:-1]} prompt ({index})"
        case "":
            return f"the {where}"
        case _:
            return f"the message {index} {role}"


def _fix(one: PrefixBreak) -> str:
    return _FIXES.get(one.kind, _FIX)

"""What prompt caches find of prompts, and could: as each worker says, added up."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, Final

from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from forebay.admin.public import Endpoint
from forebay.admin.workers import WorkerLink, Workers, why_not
from forebay.gateway.prefix_words import HINTS, advice, because, finds, share
from forebay.state.channel import Channel, ChannelBroken
from forebay.state.messages import GetPrefix, PrefixBreak, PrefixGroup, PrefixState

WITHIN: Final = 2.0
"""Seconds that a worker has to answer."""


def prefix_routes(workers: Workers) -> dict[str, dict[str, Endpoint]]:
    async def prefix(request: Request) -> Response:
        return JSONResponse(await prefix_page(workers))

    return {"/cache/prefix": {"GET": prefix}}


async def prefix_page(workers: Workers) -> dict[str, Any]:
    found = await asyncio.gather(*(_asked(link) for link in workers.links))
    states = [state for state in found if isinstance(state, PrefixState)]
    groups: dict[tuple[str, str], PrefixGroup] = {}
    for group in (group for state in states for group in state.groups):
        key = group.model, group.organisation
        groups[key] = _sum(groups[key], group) if key in groups else group
    rows = sorted(groups.values(), key=lambda g: (-_missed(g), g.model, g.organisation))
    return {
        "watched": any(state.watched for state in states),
        "groups": [_shown(group) for group in rows],
        "silent": [why for why in found if isinstance(why, str)],
    }


async def _asked(link: WorkerLink) -> PrefixState | str:
    """Its state, or why there is none."""
    try:
        async with asyncio.timeout(WITHIN):
            channel = await Channel.connect(str(link.path))
            try:
                answer = await channel.ask(GetPrefix())
            finally:
                await channel.close()
        if not isinstance(answer, PrefixState):
            raise ChannelBroken(f"answered {type(answer).__name__}, not PrefixState")
    except (OSError, ChannelBroken, TimeoutError) as e:
        return f"worker {link.index}: {why_not(e, WITHIN)}"
    return answer


def _missed(group: PrefixGroup) -> float:
    """Prompt tokens that could have been found and were not, about."""
    could, found = share(group.could_be_tokens, group.compared_tokens), finds(group)
    return (could - found) * group.prompt_tokens if could is not None and found is not None else 0.0


def _sum(a: PrefixGroup, b: PrefixGroup) -> PrefixGroup:
    breaks: dict[tuple[str, str], PrefixBreak] = {}
    for one in (*a.breaks, *b.breaks):
        before = breaks.get((one.where, one.kind))
        if before is not None:
            requests, lost = before.requests + one.requests, before.lost_tokens + one.lost_tokens
            one = replace(one, requests=requests, lost_tokens=lost, ago=min(before.ago, one.ago))
        breaks[one.where, one.kind] = one
    return PrefixGroup(
        a.model,
        a.organisation,
        a.requests + b.requests,
        a.prompt_tokens + b.prompt_tokens,
        a.reported_tokens + b.reported_tokens,
        a.cached_tokens + b.cached_tokens,
        a.compared + b.compared,
        a.compared_tokens + b.compared_tokens,
        a.as_sent_tokens + b.as_sent_tokens,
        a.could_be_tokens + b.could_be_tokens,
        tuple(sorted(breaks.values(), key=lambda one: -one.lost_tokens)),
        tuple(sorted({*a.engines, *b.engines})),
    )


def _shown(group: PrefixGroup) -> dict[str, Any]:
    return {
        "model": group.model,
        "organisation": group.organisation,
        "requests": group.requests,
        "prompt_tokens": group.prompt_tokens,
        "reported": _rounded(share(group.cached_tokens, group.reported_tokens)),
        "as_sent": _rounded(share(group.as_sent_tokens, group.compared_tokens)),
        "could_be": _rounded(share(group.could_be_tokens, group.compared_tokens)),
        "compared": group.compared,
        "advice": advice(group),
        "breaks": list(_breaks(group)),
        "notes": [HINTS[one] for one in group.engines if one in HINTS],
    }


def _breaks(group: PrefixGroup) -> Iterable[dict[str, Any]]:
    for one in group.breaks:
        yield {
            "where": one.where,
            "at": one.at,
            "kind": one.kind,
            "shape": one.shape,
            "requests": _rounded(share(one.requests, group.compared)),
            "lost": _rounded(share(one.lost_tokens, group.compared_tokens)),
            "seconds_ago": round(one.ago),
            "words": because(one),
        }


def _rounded(found: float | None) -> float | None:
    return None if found is None else round(found, 4)

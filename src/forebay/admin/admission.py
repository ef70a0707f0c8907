"""The page about admission: what each worker says of it, and what they come to together."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from forebay.admin.workers import WorkerLink, Workers, why_not
from forebay.config.models import Class
from forebay.state.channel import ChannelBroken
from forebay.state.messages import AdmissionState, ModelAdmission

WITHIN: Final = 1.0
"""Seconds that a worker has to answer."""


async def admission_page(workers: Workers, now: float) -> dict[str, Any]:
    """`now`: seconds since 1970."""
    found = await asyncio.gather(*(_asked(link) for link in workers.links))
    models = [model for state, _ in found if state is not None for model in state.models]
    return {
        "time": _iso(now),
        "enabled": any(state is not None for state, _ in found),
        "waiting": _waiting(models),
        "models": [
            {
                "name": name,
                "desired_replicas": sum(m.desired_replicas for m in models if m.name == name),
                "demand": sum(m.demand for m in models if m.name == name),
                "waiting": _waiting(m for m in models if m.name == name),
            }
            for name in sorted({m.name for m in models})
        ],
        "workers": [shown for _, shown in found],
    }


async def _asked(link: WorkerLink) -> tuple[AdmissionState | None, dict[str, Any]]:
    try:
        state = await link.admission(WITHIN)
    except (OSError, ChannelBroken, TimeoutError) as e:
        return None, {"worker": link.index, "up": False, "why": why_not(e, WITHIN)}
    if not isinstance(state, AdmissionState):
        return None, {"worker": link.index, "up": True, "enabled": False}
    engines = msgspec.to_builtins(state.engines)
    for engine in engines:
        for change in engine["history"]:
            change["time"] = _iso(change["time"])
    return state, {"worker": link.index, "up": True, "enabled": True, "engines": engines}


def _waiting(models: Iterable[ModelAdmission]) -> dict[str, dict[str, int]]:
    found = {cls.value: {"requests": 0, "tokens": 0} for cls in Class}
    for model in models:
        for name, waiting in model.waiting.items():
            found[name]["requests"] += waiting.requests
            found[name]["tokens"] += waiting.tokens
    return found


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")

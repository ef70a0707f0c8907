"""Which of a model's engines get whole requests, and which compute prompts for others."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from forebay.config.engine import Role
from forebay.engines.handover import Handover, handover_of

if TYPE_CHECKING:
    from forebay.gateway.handles import Handle

Names = tuple[str, ...]


class Roles(NamedTuple):
    able: Names
    """Engines that may be sent a request, now or once they take requests."""
    candidates: Names
    """Those of them that take requests."""
    spares: Names
    """Prefill engines that take requests and can serve whole requests, for when no candidate is left."""
    prefills: tuple[Handle, ...]
    """Those that take requests."""
    apart: bool
    """Whether any engine has a role of its own."""


def roles_of(engines: tuple[Handle, ...]) -> Roles:
    serving = tuple([e for e in engines if e.config.role is not Role.PREFILL])
    able = tuple([e.name for e in serving])
    if all(e.config.role is Role.BOTH for e in engines):
        return Roles(able, tuple([e.name for e in engines if e.usable]), (), (), False)
    prefills = tuple([e for e in engines if e.config.role is Role.PREFILL and e.usable])
    kinds = {e.adapter.kind for e in prefills}
    candidates = tuple([e.name for e in serving if e.usable and (serves_alone(e) or e.adapter.kind in kinds)])
    spares = tuple([e.name for e in prefills if serves_alone(e)])
    if not candidates and spares:
        able = candidates = spares
    return Roles(able, candidates, spares, prefills, True)


def serves_alone(engine: Handle) -> bool:
    """Whether it can answer a whole request."""
    return engine.config.role is Role.BOTH or handover_of(engine.adapter.kind) is not Handover.BOOTSTRAP

"""What a caller's limits are at, as GET /v1/usage shows them: this worker's own count, and what others told it."""

from __future__ import annotations

from math import ceil

import msgspec

from forebay.ledger.gates import Gate
from forebay.ledger.limits import Limits
from forebay.ledger.meters import AnyMeter, Budget, Rate, Sliding
from forebay.ledger.rules import MONEY
from forebay.ledger.usage import exact
from forebay.ledger.windows import iso


class LimitUse(msgspec.Struct, frozen=True):
    """One limit. Amounts are counts; of money, units of the ledger's currency as text."""

    name: str
    scope: str
    """What it counts together."""
    measure: str
    used: int | str
    """Requests under way hold theirs of it."""
    limit: int | str
    remaining: int | str
    reset: str | None
    """When its use is forgotten, all of it or the oldest part; None: requests at once end, they are not forgotten."""
    models: tuple[str, ...] = ()
    """By the engine's own names; none: of any model."""


def limits_of(limits: Limits, gate: Gate, now: float, wall: float) -> list[LimitUse]:
    """All of the caller's but those of its end users, of whom there are many. `now`: monotonic; `wall`: Unix time."""
    if gate.generation != limits.scopes.generation:
        limits.scopes.fill(gate, now, wall)
    return [
        _use(meter, limits.scopes.next, now, wall) for group in gate.groups for meter in group.meters.values()
    ]  # fmt: skip


def _use(meter: AnyMeter, n: int, now: float, wall: float) -> LimitUse:
    reset: str | None = None
    if isinstance(meter, Rate):
        seconds = meter.resets(now)
        used = ceil(seconds * meter.rate - 1e-6) + meter.elsewhere
        reset = iso(wall + seconds)
    else:
        if isinstance(meter, Budget | Sliding):
            if not meter.start <= wall < meter.until:
                meter.roll(wall, n)
            reset = iso(ceil(meter.resets(wall)))
        used = int(meter.used) + meter.elsewhere
    amounts = (used, meter.limit, max(0, meter.limit - used))
    shown = [exact(amount) for amount in amounts] if meter.measure in MONEY else amounts
    return LimitUse(
        meter.rule.name, meter.scope, meter.measure.value, shown[0], shown[1], shown[2], reset, meter.rule.models
    )

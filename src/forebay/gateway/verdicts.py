"""What the end of an attempt says of the engine, and when that is too much."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from forebay.config.health import Health
from forebay.errors import Outcome
from forebay.policy.breaker import BreakerRules

if TYPE_CHECKING:
    from forebay.gateway.fleet import Fleet
    from forebay.gateway.handles import Handle

# Reading a member off an Enum class is slow, and so is its hash.
_OK: Final = Outcome.OK
_ENGINE_REFUSED: Final = Outcome.ENGINE_REFUSED
_BADLY: Final = frozenset({Outcome.ENGINE_ERROR, Outcome.ENGINE_TIMEOUT, Outcome.ENGINE_CUT})


def judge(fleet: Fleet, handle: Handle, outcome: Outcome, probe: int, why: str, now: float) -> None:
    """An attempt at `handle` ended; `probe` is its number as one of the breaker's probes, 0 where it was none. `now` is
    the ticker's."""
    if outcome is _OK or outcome is _ENGINE_REFUSED:
        handle.answered_at = now
        breaker = handle.breaker
        breaker.good += 1
        if handle.stalled and not probe:
            fleet.heard_again(handle)  # sent before it fell silent, and answered after all
        elif breaker.tender:
            fleet.went_well(handle, probe)
    elif outcome in _BADLY:
        fleet.went_badly(handle, probe, why)
    elif probe:
        fleet.said_nothing(handle, probe)


def breaker_rules(health: Health) -> BreakerRules:
    """What the configuration says, as the policy has it."""
    return BreakerRules(
        failures=health.failures,
        error_share=health.error_share,
        error_least=health.error_least,
        window_s=health.error_window,
        open_s=health.open,
        open_most_s=health.open_most,
        probes=health.probes,
        slow_start_s=health.slow_start,
    )

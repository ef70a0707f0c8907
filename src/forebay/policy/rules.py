"""What admission is told to keep: promises by class, and how far engines may be filled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf, isfinite

from forebay.config.models import Class
from forebay.policy.placement import PlacementRules
from forebay.policy.queue import QueueRules
from forebay.policy.scale import ScaleRules
from forebay.policy.shed import ShedRules


def _each(vip: float, normal: float, low: float) -> dict[Class, float]:
    return {Class.VIP: vip, Class.NORMAL: normal, Class.LOW: low}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Raises ValueError, with the field's name, for rules that contradict themselves."""

    ttft: Mapping[Class, float] = field(default_factory=lambda: _each(1.5, 1.5, 30.0))
    """Seconds from a request's arrival to its first token, by class: what is promised."""
    ttft_multiple: float = 0.0
    """Where over 0: a prompt whose own prefill exceeds the promise is held to this multiple of that prefill instead."""
    tpot: float = inf
    """Seconds a token that decoding keeps; infinite: nothing is promised."""
    wait: Mapping[Class, float] = field(default_factory=lambda: _each(3.0, 3.0, 30.0))
    """Seconds that a request may wait for its admission, by class."""
    ceilings: Mapping[Class, float] = field(default_factory=lambda: _each(0.97, 0.92, 0.75))
    """Share of the KV cache that the predicted peak may reach with a request of a class."""
    backlog_steps: float = 2.3
    """Prefill handed to an engine ahead of what it computes, in its steps; what exceeds it waits here, where classes
    and tenants are told apart. `vip` is handed over at once."""
    backlog_cached: float = 4.0
    """How many times that more where all of a prompt is cached: it is better to wait there than to compute it anew, and
    it holds nobody up for long."""
    z: float = 2.8
    """Standard deviations of the sum of predicted lengths kept free. 2.33 would be 99 % were traffic always the same;
    where it drifts (the Azure conversation trace), that covers 96 %."""
    gated: bool = True
    """False: every request goes at once, to the best engine that there is."""
    placement: PlacementRules = field(default_factory=PlacementRules)
    queue: QueueRules = field(default_factory=QueueRules)
    shed: ShedRules = field(default_factory=ShedRules)
    scale: ScaleRules = field(default_factory=ScaleRules)

    def __post_init__(self) -> None:
        for name in ("ttft", "ceilings", "wait"):
            given: Mapping[Class, float] = getattr(self, name)
            for cls in Class:
                if not (cls in given and given[cls] > 0):
                    raise ValueError(f"{name} needs a number greater than 0 for {cls.value}")
        for cls in Class:
            if self.ceilings[cls] > 1:
                raise ValueError(f"ceilings.{cls.value} must be at most 1, not {self.ceilings[cls]}")
        if not (self.backlog_steps > 0 and isfinite(self.backlog_steps)):
            raise ValueError(f"backlog_steps must be greater than 0, not {self.backlog_steps}")
        if not (self.backlog_cached >= 0 and isfinite(self.backlog_cached)):
            raise ValueError(f"backlog_cached must be at least 0, not {self.backlog_cached}")
        if not self.tpot > 0:
            raise ValueError(f"tpot must be greater than 0, not {self.tpot}")
        if not (self.z >= 0 and isfinite(self.z)):
            raise ValueError(f"z must be at least 0, not {self.z}")
        if self.ttft_multiple < 0:
            raise ValueError(f"ttft_multiple must be at least 0, not {self.ttft_multiple}")

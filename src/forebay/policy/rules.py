"""What admission is told to keep: promises by class, and how far engines may be filled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf, isfinite

from forebay.config.models import Class
from forebay.policy.prefix import BYTES_A_BLOCK, MOST_BYTES


def _each(vip: float, normal: float, low: float) -> dict[Class, float]:
    return {Class.VIP: vip, Class.NORMAL: normal, Class.LOW: low}


@dataclass(frozen=True, slots=True)
class Bounds:
    """How many may wait, and how many prompt tokens they may bring."""

    requests: int
    tokens: int

    def __post_init__(self) -> None:
        for name in ("requests", "tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueRules:
    """Raises ValueError, with the field's name, for rules that contradict themselves."""

    requests: int = 2_000
    tokens: int = 8_000_000
    """Prompt tokens of all who wait. An empty room takes an ask of any length."""
    normal_share: float = 0.8
    """The share of the room, filled by whomever, from which on `normal` is refused."""
    low_share: float = 0.5
    """The same for `low`, which moreover gives way to the others."""
    vip: Bounds | None = None
    """A bound of one class's own, on top."""
    normal: Bounds | None = None
    low: Bounds | None = None
    low_starvation_s: float = 20.0
    """Seconds after which a `low` ask counts as `normal`; infinite: never."""
    starved_share: float = 0.1
    """Of the turns of `normal`, at most, go to such asks while others wait; 1: they are all `normal`."""
    locality_tokens: float = 0.0
    """Weighted tokens of service by which a tenant with a warm prefix may go before its turn."""
    input_weight: float = 1.0
    output_weight: float = 2.0
    idle_tenants: int = 4_096
    """Tenants a class whose counters are remembered while they do not wait."""

    def __post_init__(self) -> None:
        Bounds(self.requests, self.tokens)
        if not 0 < self.low_share <= self.normal_share <= 1:
            raise ValueError(
                f"low_share and normal_share must be greater than 0, at most 1 and in this order, not {self.low_share} "
                f"and {self.normal_share}"
            )
        if not self.low_starvation_s > 0:
            raise ValueError(f"low_starvation_s must be greater than 0, not {self.low_starvation_s}")
        if not 0 < self.starved_share <= 1:
            raise ValueError(f"starved_share must be greater than 0 and at most 1, not {self.starved_share}")
        for name in ("locality_tokens", "input_weight", "output_weight"):
            value = getattr(self, name)
            if not (value >= 0 and isfinite(value)):
                raise ValueError(f"{name} must be finite and at least 0, not {value}")
        if self.input_weight + self.output_weight == 0:
            raise ValueError("input_weight and output_weight must not both be 0")
        if self.idle_tenants < 1:
            raise ValueError(f"idle_tenants must be at least 1, not {self.idle_tenants}")

    def service(self, prompt_tokens: float, output_tokens: float) -> float:
        """Weighted tokens: what is charged and settled."""
        return self.input_weight * prompt_tokens + self.output_weight * output_tokens

    def share(self, cls: Class) -> float:
        return 1.0 if cls is Class.VIP else self.normal_share if cls is Class.NORMAL else self.low_share

    def own(self, cls: Class) -> Bounds | None:
        return self.vip if cls is Class.VIP else self.normal if cls is Class.NORMAL else self.low


@dataclass(frozen=True, slots=True, kw_only=True)
class ShedRules:
    """Raises ValueError, with the field's name, for rules that contradict themselves."""

    shed_at: float = 0.85
    """Share of the KV cache whose predicted use begins the shedding."""
    resume_at: float = 0.80
    """The share under which it ends."""
    first: float = 0.25
    """The level after the first rise of a counter."""
    rise: float = 2.0
    """What each further one multiplies it by, up to 1."""
    fall_per_s: float = 0.02
    """By how much the level falls each second without a rise."""
    normal_at: float = 0.5
    """The level from which on `normal` and anonymous asks are refused too; `low` is at any."""
    depth: float = 0.3
    """The part of ceilings and thresholds that level 1 takes away."""
    history: int = 256

    def __post_init__(self) -> None:
        if not 0 < self.resume_at <= self.shed_at <= 1:
            raise ValueError(
                f"resume_at and shed_at must be greater than 0, at most 1 and in this order, not {self.resume_at} and "
                f"{self.shed_at}"
            )
        for name in ("first", "normal_at"):
            value = getattr(self, name)
            if not 0 < value <= 1:
                raise ValueError(f"{name} must be greater than 0 and at most 1, not {value}")
        if not (self.rise > 1 and isfinite(self.rise)):
            raise ValueError(f"rise must be greater than 1, not {self.rise}")
        if not (self.fall_per_s > 0 and isfinite(self.fall_per_s)):
            raise ValueError(f"fall_per_s must be greater than 0, not {self.fall_per_s}")
        if not 0 <= self.depth < 1:
            raise ValueError(f"depth must be at least 0 and less than 1, not {self.depth}")
        if self.history < 1:
            raise ValueError(f"history must be at least 1, not {self.history}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleRules:
    """Raises ValueError, with the field's name, for rules that contradict themselves."""

    every_s: float = 60.0
    up: float = 0.2
    down: float = 0.1
    least: float = 0.5
    most: float = 2.0
    up_over: float = 5.0
    """Requests waiting for each place of the cap over which the factor rises."""
    down_under: float = 1.0
    """The same under which it falls."""
    target: float = 0.8
    """The share of an engine's capacity that is meant to be used."""
    settle_s: float = 300.0
    """Seconds for which fewer replicas must do before fewer are desired."""
    least_replicas: int = 1
    most_replicas: int = 256

    def __post_init__(self) -> None:
        for name in ("every_s", "up", "down", "target"):
            value = getattr(self, name)
            if not (value > 0 and isfinite(value)):
                raise ValueError(f"{name} must be greater than 0, not {value}")
        if not 0 < self.least <= 1 <= self.most < inf:
            raise ValueError(f"least must be greater than 0, with 1 between it and most, not {self.least}, {self.most}")
        if not 0 <= self.down_under <= self.up_over < inf:
            raise ValueError(f"down_under must be from 0 to up_over, not {self.down_under} and {self.up_over}")
        if not self.settle_s >= 0:
            raise ValueError(f"settle_s must be at least 0, not {self.settle_s}")
        if not 0 <= self.least_replicas <= self.most_replicas:
            raise ValueError(
                f"least_replicas must be from 0 to most_replicas, not {self.least_replicas} and {self.most_replicas}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementRules:
    """The weights of the score. Raises ValueError, with the field's name, for one that is none."""

    interference: float = 0.01
    """Seconds that one of another request's decoding counts."""
    balance: float = 1.0
    """Of the seconds that `recompute` makes of a typical request, how many times them an engine counts that was given
    twice the mean of work lately."""
    recompute: float = 50.0
    """Seconds that one of its prefill counts."""
    late: float = 3.0
    """Seconds that one beyond the promised time to first token counts."""
    price: float = 1.0
    """Seconds that a request may wait longer for an engine whose cost is less by 1."""
    zone: str = ""
    """The gateway's; empty: none is far."""
    zone_penalty: float = 0.05
    adapter_load: float = 0.5
    affinity: float = 2.0
    index_bytes: int = MOST_BYTES
    """What the prefix index may take."""

    def __post_init__(self) -> None:
        for name in (
            "interference",
            "balance",
            "recompute",
            "late",
            "price",
            "zone_penalty",
            "adapter_load",
            "affinity",
        ):
            value: float = getattr(self, name)
            if not (value >= 0 and isfinite(value)):
                raise ValueError(f"{name} must be at least 0, not {value}")
        if self.index_bytes < BYTES_A_BLOCK:
            raise ValueError(f"index_bytes must be at least {BYTES_A_BLOCK}, not {self.index_bytes}")


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

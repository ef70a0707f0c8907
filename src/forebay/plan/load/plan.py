"""What a load is made of: when requests leave, what they ask for, and what counts as a good answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from forebay.plan.load.prompts import Texts
from forebay.plan.target import LoadError
from forebay.sim.workloads.distributions import Distribution
from forebay.sim.workloads.mix import Mix
from forebay.sim.workloads.source import Workload

CHAT: Final = "/v1/chat/completions"
COMPLETIONS: Final = "/v1/completions"
MAX_RETRIES: Final = 100
MAX_TOKENS: Final = 128
"""Of an answer, where nothing says how long it is to be."""


@dataclass(frozen=True)
class Slo:
    """What an answer must keep to be good, in seconds; None: anything goes. Raises LoadError for what is not over 0."""

    ttft: float | None = None
    tpot: float | None = None
    e2e: float | None = None
    ttft_per_1k: float = 0.0
    """Added to `ttft` for each 1,000 tokens of the prompt."""

    def __post_init__(self) -> None:
        for name in ("ttft", "tpot", "e2e"):
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                raise LoadError(f"slo-{name} must be more than 0 seconds, not {value:g}")
        if not 0 <= self.ttft_per_1k < float("inf"):
            raise LoadError(f"slo-ttft-per-1k must be at least 0 seconds, not {self.ttft_per_1k:g}")
        if self.ttft_per_1k and self.ttft is None:
            raise LoadError("slo-ttft-per-1k is added to slo-ttft; give that too")

    def __bool__(self) -> bool:
        return self.ttft is not None or self.tpot is not None or self.e2e is not None

    def keeps(self, prompt_tokens: int, ttft: float, tpot: float | None, e2e: float) -> bool:
        """`tpot` is None for answers of one token, which have none."""
        if self.ttft is not None and ttft > self.ttft + self.ttft_per_1k * prompt_tokens / 1_000:
            return False
        if self.tpot is not None and tpot is not None and tpot > self.tpot:
            return False
        return self.e2e is None or e2e <= self.e2e

    def __str__(self) -> str:
        parts = []
        if self.ttft is not None:
            more = f" + {self.ttft_per_1k:g} s per 1,000 prompt tokens" if self.ttft_per_1k else ""
            parts.append(f"TTFT ≤ {self.ttft:g} s{more}")
        parts += [f"{k.upper()} ≤ {v:g} s" for k, v in (("tpot", self.tpot), ("e2e", self.e2e)) if v is not None]
        return ", ".join(parts) or "none"


@dataclass(frozen=True)
class Plan:
    """What to send. One of `rate` (open loop), `concurrency` (closed loop) and a `workload` with times of its own; a
    workload beside one of them gives lengths, prefixes, tenants and classes, and not the times. At least one of
    `requests` and `seconds`, unless the workload ends by itself. Raises LoadError for what makes no sense."""

    model: str
    rate: float | None = None
    """Arrivals a second."""
    arrivals: Literal["poisson", "uniform", "gamma"] = "poisson"
    cv: float = 1.0
    """Coefficient of variation of the gaps of `gamma` arrivals: over 1 in bursts."""
    concurrency: int | None = None
    requests: int | None = None
    seconds: float | None = None
    """For how long new requests are sent; those under way are waited for."""
    prompt_tokens: int = 64
    """About: the prompt is that many short English words, unless `words` says how many words it takes."""
    max_tokens: int | None = MAX_TOKENS
    """Bound of an answer. None with texts that say how long each answer is."""
    timeout: float = 300.0
    """Seconds from a request's arrival to its end."""
    connect_timeout: float = 5.0
    max_in_flight: int = 8_192
    """Requests open at once; an arrival over it is an error of the kind `client_full`."""
    seed: int = 0
    """Of arrival times, lengths, tenants and classes."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of each request's body."""
    path: str = CHAT
    workload: Workload | None = None
    speed: float = 1.0
    """The workload's own times run so many times as fast."""
    texts: Texts | None = None
    """Prompts of a file instead of words."""
    lengths: tuple[Distribution, Distribution] | None = None
    """Of prompt and answer, instead of `prompt_tokens` and `max_tokens`."""
    shared_prefix: int = 0
    """Leading tokens of a prompt, besides `prompt_tokens`, that others have too."""
    prefix_groups: int = 1
    """Different shared prefixes, each as likely."""
    classes: Mix | None = None
    tenants: Mix | None = None
    slo: Slo = field(default_factory=Slo)
    retries: int = 0
    """Further tries of a request that was refused with a `Retry-After`, each when that says."""
    same_words: bool = False
    """The seed gives the words too: a second run repeats the prompts of the first, which a prefix cache then knows."""
    words: tuple[float, float] = (1.0, 0.0)
    """Tokens of a word, and tokens of a prompt without any, as the server counts them."""

    def __post_init__(self) -> None:
        if self.rate is not None and self.concurrency is not None:
            raise LoadError("give either a rate (open loop) or a concurrency (closed loop), not both")
        if self.workload is None and self.rate is None and self.concurrency is None:
            raise LoadError("give either a rate (open loop) or a concurrency (closed loop)")
        if self.workload is None and self.requests is None and self.seconds is None:
            raise LoadError("give a number of requests, a duration, or both")
        for name in (
            "rate",
            "cv",
            "concurrency",
            "requests",
            "seconds",
            "prompt_tokens",
            "max_tokens",
            "timeout",
            "max_in_flight",
            "speed",
            "prefix_groups",
        ):
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                raise LoadError(f"{name.replace('_', '-')} must be more than 0, not {value:g}")
        if self.concurrency is not None and self.concurrency > self.max_in_flight:
            raise LoadError(
                f"a concurrency of {self.concurrency} is over the {self.max_in_flight} connections that this process "
                "may open (ulimit -n)"
            )
        if not 0 <= self.retries <= MAX_RETRIES:
            raise LoadError(f"retries must be from 0 to {MAX_RETRIES}, not {self.retries}")
        if self.shared_prefix < 0:
            raise LoadError(f"shared-prefix must be at least 0, not {self.shared_prefix}")
        if self.cv > 30:
            raise LoadError(f"cv must be at most 30, not {self.cv:g}")
        if self.speed != 1.0 and (self.workload is None or self.rate is not None or self.concurrency is not None):
            raise LoadError("speed is that of a workload's own times; with a rate or a concurrency it has none")

    @property
    def open(self) -> bool:
        """Whether requests leave at times of their own."""
        return self.concurrency is None

    def __str__(self) -> str:
        if self.concurrency is not None:
            return f"closed loop, {self.concurrency} at once"
        if self.rate is not None:
            kind = f"gamma (CV {self.cv:g})" if self.arrivals == "gamma" else self.arrivals
            return f"open loop, {self.rate:g} requests/s, {kind} arrivals"
        assert self.workload is not None
        at = "" if self.speed == 1.0 else f" at {self.speed:g} times its speed"
        return f"open loop, the times of {self.workload.name}{at}"

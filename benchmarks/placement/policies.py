"""Every policy by its name. A builder is given the number of engines and what is known of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from benchmarks.placement.ours import build as forebay
from benchmarks.placement.rivals.plain import LeastRequests, Random, RoundRobin
from benchmarks.placement.rivals.sglang import CacheAware
from forebay.plan.simulate import Ready
from forebay.sim.cluster import Policy

Builder = Callable[[int, Ready], Policy]
RIVALS: Mapping[str, Builder] = {
    "random": lambda n, ready: Random(n),
    "round robin": lambda n, ready: RoundRobin(n),
    "least requests": lambda n, ready: LeastRequests(n),
    "sglang": lambda n, ready: CacheAware(n),
}
BUILDERS: Mapping[str, Builder] = {**RIVALS, "forebay": forebay}

"""Every policy by its name. A builder is given the number of engines and what is known of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from math import inf

from benchmarks.placement.ours import build as forebay
from benchmarks.placement.rivals.aibrix import PrefixCache
from benchmarks.placement.rivals.dynamo import KvCost
from benchmarks.placement.rivals.llmd import Scorers
from benchmarks.placement.rivals.plain import LeastRequests, Random, RoundRobin
from benchmarks.placement.rivals.sglang import CacheAware
from benchmarks.placement.rivals.vllm import PrefixAware
from benchmarks.placement.yardstick import Yardstick
from forebay.plan.simulate import Ready
from forebay.sim.cluster import Policy

Builder = Callable[[int, Ready], Policy]
RIVALS: Mapping[str, Builder] = {
    "random": lambda n, ready: Random(n),
    "round robin": lambda n, ready: RoundRobin(n),
    "least requests": lambda n, ready: LeastRequests(n),
    "sglang": lambda n, ready: CacheAware(n),
    "vllm": lambda n, ready: PrefixAware(n),
    "aibrix": lambda n, ready: PrefixCache(n),
    "dynamo": lambda n, ready: KvCost(n, block=ready.settings.block_size),
    "llm-d": lambda n, ready: Scorers(n, ready.settings.kv_tokens, block=ready.settings.block_size),
    "llm-d long": lambda n, ready: Scorers(
        n, ready.settings.kv_tokens, block=ready.settings.block_size, most_blocks=inf
    ),
}
BUILDERS: Mapping[str, Builder] = {
    **RIVALS,
    "forebay": forebay,
    "forebay waiting": partial(forebay, gated=True),
    "yardstick": Yardstick,
}

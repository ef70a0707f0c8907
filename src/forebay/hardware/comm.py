"""How long collectives between the GPUs of a node take.

Cost model α + β: R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of Collective Communication Operations in MPICH"
(2005), ring algorithm: an all-reduce moves 2 (p - 1) / p of the message through every link, an all-gather or a
reduce-scatter half of that. Over NVLink a small message goes to all ranks at once (vLLM's and TensorRT-LLM's one-shot
kernels), so its latency does not grow with the ranks; through PCIe it passes from rank to rank.
"""

from __future__ import annotations

from typing import NamedTuple

from .shapes import Gpu, ModelShape

ACTIVATION_BYTES = 2


def allreduce_seconds(size: float, ranks: int, bandwidth: float, latency: float, *, switched: bool = False) -> float:
    """Seconds to sum `size` bytes over `ranks` GPUs. `bandwidth`: bytes a second that a link reaches in one
    direction; `latency`: seconds of a small message between two; `switched`: all ranks reach each other at once."""
    if ranks <= 1 or size <= 0:
        return 0.0
    hops = 1 if switched else ranks - 1
    return latency * hops + 2 * (ranks - 1) / ranks * size / bandwidth


def allgather_seconds(size: float, ranks: int, bandwidth: float, latency: float, *, switched: bool = False) -> float:
    """Seconds until each of `ranks` GPUs holds all `size` bytes and not only its share; a reduce-scatter the same."""
    if ranks <= 1 or size <= 0:
        return 0.0
    hops = 1 if switched else ranks - 1
    return latency * hops + (ranks - 1) / ranks * size / bandwidth


class Ranks(NamedTuple):
    """How one engine is spread over GPUs."""

    tp: int = 1
    """GPUs that split every matrix."""
    dp: int = 1
    """Replicas that share the experts."""
    ep: int = 1
    """Ranks that the experts are spread over; 1 where the `tp` ranks split each of them."""


def step_seconds(model: ModelShape, gpu: Gpu, ranks: Ranks, tokens: float) -> float:
    """Seconds of the collectives of a step of `tokens` in one replica, without the logits: an all-reduce after the
    embedding, after each attention and after each MLP. Where replicas share experts, their tokens are gathered before
    and scattered after each expert layer in place of the latter (vLLM's `allgather_reducescatter`)."""
    size = tokens * model.hidden * ACTIVATION_BYTES
    reduce = allreduce_seconds(size, ranks.tp, gpu.link, gpu.link_latency, switched=gpu.switched)
    if ranks.dp == 1 or not model.moe:
        return (1 + 2 * model.layers) * reduce
    spread = max(ranks.ep, ranks.dp)
    gather = 2 * allgather_seconds(size * ranks.dp, spread, gpu.link, gpu.link_latency, switched=gpu.switched)
    return (1 + 2 * model.layers - model.moe_layers) * reduce + model.moe_layers * gather


def logits_seconds(model: ModelShape, gpu: Gpu, tp: int, sequences: float) -> float:
    """Seconds to gather the logits of `sequences`, of which each rank has its part of the vocabulary."""
    size = sequences * model.vocab * ACTIVATION_BYTES
    return allgather_seconds(size, tp, gpu.link, gpu.link_latency, switched=gpu.switched)

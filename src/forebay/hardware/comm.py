"""How long collectives between the GPUs of a node take.

Cost model α + β: R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of Collective Communication Operations in MPICH"
(2005), ring algorithm: an all-reduce moves 2 (p - 1) / p of the message through every link, an all-gather or a
reduce-scatter half of that. Over NVLink a small message goes to all ranks at once (vLLM's and TensorRT-LLM's one-shot
kernels), so its latency does not grow with the ranks; through PCIe it passes from rank to rank.
"""

from __future__ import annotations


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

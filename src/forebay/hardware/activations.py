"""Memory of a GPU that neither weights nor KV cache can have: what an engine's profiling run finds.

vLLM 0.19 (v1/worker/gpu_worker.py `determine_available_memory`, gpu_model_runner.py `profile_run`): the allocator's
peak over a forward pass of `max_num_batched_tokens` and a sampling of `max_num_seqs`, and what is taken outside of it.
The constants are of start-up logs of vLLM 0.19.0 with Llama-3.1-8B, Qwen2.5-7B and Mixtral-8x7B on H100s
(llm-d-planner, pull request 205) and with Llama-3.1-8B on an RTX 4090 (LLMServingSim); docs/capacity.md says how near
other models come.
"""

from __future__ import annotations

from typing import NamedTuple

from .shapes import Gpu, ModelShape
from .tables import CAPTURE_SIZES, capture_sizes

_GIB = 1 << 30
_SAMPLER = 12
"""Bytes an entry of the logits beside the logits themselves: their copy in 32 bits, probabilities, random numbers."""
_FORWARD = 4
"""Tensors of the hidden size that are alive at the peak of a layer."""
_FIXED = int(0.1 * _GIB)
_COLLECTIVES_FAST = int(1.85 * _GIB)
"""Buffers of NCCL, symmetric memory and custom all-reduces between GPUs that have both NVLink and fp8 units."""
_COLLECTIVES = int(0.3 * _GIB)
_GRAPHS_FIXED = 0.375 * _GIB
_GRAPHS_LAYER = 0.0167 * _GIB


class Peak(NamedTuple):
    """Parts of the peak of one rank's allocator beside weights, in bytes."""

    forward: int
    """The MLP of all tokens."""
    sampler: int
    kept: int
    """Beside either."""

    @property
    def total(self) -> int:
        return max(self.forward, self.sampler) + self.kept


def activation_peak(
    model: ModelShape,
    *,
    max_num_batched_tokens: int,
    max_num_seqs: int,
    tp: int = 1,
    pp: int = 1,
    ep: int = 1,
    last: bool = True,
    each: float = 2.0,
) -> Peak:
    """With activations of `each` bytes, the larger of

    - the MLP: gate, up and their product of all tokens, beside 4 tensors of the hidden size;
    - on the `last` stage the sampler: logits of `max_num_seqs` as they come, in 32 bits, as probabilities and as random
      numbers, beside the hidden states.

    A model with experts keeps a workspace for the chosen experts of all tokens beside both, a pipeline stage the hidden
    states that it was sent.
    """
    tokens = max_num_batched_tokens
    hidden = tokens * model.hidden * each
    mlp = tokens * 3 * model.intermediate / tp * each if model.intermediate and not model.moe else 0.0
    sampler = max_num_seqs * model.vocab * (_SAMPLER + each) + 1.2 * hidden if last else 0.0
    kept = 2 * hidden if pp > 1 else 0.0
    if model.moe and not model.bias:  # gpt-oss has kernels of its own, without the workspace
        width = model.moe_intermediate / (1 if ep > tp else tp)
        kept += tokens * model.experts_per_token * (max(2 * width, model.hidden) + width) * each
    return Peak(int(mlp + _FORWARD * hidden), int(sampler), int(kept) + _FIXED)


def overhead_bytes(gpu: Gpu, *, tp: int = 1, pp: int = 1) -> int:
    """What one rank takes outside of PyTorch's allocator: loaded kernels, workspaces of cuBLAS, and between the GPUs of
    `tp` the buffers of collectives."""
    if tp == 1:
        return gpu.reserve if pp == 1 else gpu.reserve // 4
    fast = gpu.switched and gpu.fp8 is not None
    return gpu.reserve + (_COLLECTIVES_FAST if fast else _COLLECTIVES)


def graph_bytes(layers: int, *, max_num_seqs: int, max_num_batched_tokens: int) -> int:
    """CUDA graphs of one rank with `layers` of the model, for all sizes that are captured."""
    sizes = capture_sizes(max_num_seqs, max_num_batched_tokens)
    if not sizes:
        return 0
    share = len(sizes) / len(CAPTURE_SIZES)
    return int(_GRAPHS_FIXED * sizes[-1] / CAPTURE_SIZES[-1] + _GRAPHS_LAYER * layers * share)

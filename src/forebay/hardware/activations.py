"""Memory of a GPU that neither weights nor KV cache can have: estimates of what an engine's profiling run finds."""

from __future__ import annotations

from .shapes import ModelShape
from .tables import capture_sizes


def activation_bytes(
    model: ModelShape, *, max_num_batched_tokens: int, max_num_seqs: int, tp: int = 1, last: bool = True
) -> int:
    """The peak of one rank's allocator beside weights, as vLLM's profiling run finds it before it sizes the cache
    (vLLM 0.19, vllm/v1/worker/gpu_worker.py `determine_available_memory`, gpu_model_runner.py `profile_run`).

    The larger of two peaks, beside two hidden states of `max_num_batched_tokens`: the MLP's gate, up and product; or,
    on the `last` pipeline stage, the sampler over `max_num_seqs` rows of the vocabulary, with logits in 16 and 32 bits,
    and 32-bit sorted logits, probabilities and their sum and 64-bit indices of top-p: 26 bytes an entry.
    """
    hidden = 2 * max_num_batched_tokens * model.hidden * 2
    width = model.experts_per_token * model.moe_intermediate if model.experts else model.intermediate
    mlp = max_num_batched_tokens * 3 * max(width, 1) * 2 // tp
    sampler = max_num_seqs * model.vocab * 26 if last else 0
    return hidden + max(mlp, sampler)


def overhead_bytes(ranks: int) -> int:
    """What one rank of `ranks` takes outside of PyTorch's allocator: cuBLAS workspaces and loaded kernels, and with
    more than one NCCL's buffers. Within 1 % of the KV cache of Llama-3.1-8B on an RTX 4090."""
    return 300_000_000 if ranks == 1 else 500_000_000


def graph_bytes(model: ModelShape, layers: int, *, max_num_seqs: int, max_num_batched_tokens: int) -> int:
    """CUDA graphs of one rank with `layers` of the model: 9 KB a layer and captured size for its kernels' nodes, beside
    outputs of the largest that all of them share."""
    sizes = capture_sizes(max_num_seqs, max_num_batched_tokens)
    return len(sizes) * layers * 250_000 + (sizes[-1] if sizes else 0) * model.hidden * 4

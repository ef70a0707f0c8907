"""Bytes of a model's weights on one GPU of a deployment, part by part."""

from __future__ import annotations

from .shapes import DTYPE_BYTES, VOCAB_PADDING, ModelShape

SIXTEEN = 2.0
"""Bytes a weight that no quantisation touches."""


def stage_layers(layers: int, pp: int) -> list[int]:
    """Layers of each pipeline stage as vLLM spreads them (distributed/utils.py, `get_pp_indices`): what is left over
    goes to the stages before the last, which has the LM head."""
    each, over = divmod(layers, pp)
    counts = [each] * pp
    for i in range(2, over + 2):
        counts[-i] += 1
    return counts


def element_bytes(dtype: str, group_size: int = 128) -> float:
    """Bytes of one weight with its share of scales. int4: `group_size` weights share an fp16 scale and a 4-bit zero
    (AutoAWQ, AutoGPTQ)."""
    if dtype == "int4" and group_size:
        return (4 + 20 / group_size) / 8
    return DTYPE_BYTES[dtype]


def _padded(model: ModelShape, split: int) -> float:
    """Weights of an expert in mxfp4, whose parts on `split` ranks Marlin's kernels want to be multiples of 128 and the
    hidden size of 256 (vLLM 0.19, model_executor/layers/quantization/mxfp4.py)."""
    width = -(-model.moe_intermediate // split // 128) * 128 * split
    hidden = -(-model.hidden // 256) * 256
    return model.matrices * hidden * width


def rank_weights(
    model: ModelShape,
    dtype: str,
    *,
    tp: int = 1,
    ep: int = 1,
    layers: int | None = None,
    group_size: int = 128,
    first: bool = True,
    last: bool = True,
) -> dict[str, int]:
    """Bytes by part of one rank: of `tp` that split the matrices, and of `ep` that share the experts, with `layers` of
    the model's; `first`, `last`: whether it has embedding and LM head. KV heads that are fewer than the ranks, latent
    projections of MLA, routers and norms are on every rank; mxfp4 is of routed experts alone."""
    each = element_bytes(dtype, group_size)
    plain = min(each, SIXTEEN) if dtype != "fp32" else each
    # what no quantisation touches
    high = max(each, SIXTEEN)
    linear = high if dtype == "mxfp4" and model.moe else plain
    count = model.layers if layers is None else layers
    share = count / model.layers
    parts = {
        "attention": model.all_attention_parameters(tp) * share * linear,
        "linear attention": model.linear_layers * share * model.linear_each / tp * linear,
        "MLP": (model.layers - model.moe_layers) * share * model.mlp_parameters(model.intermediate) / tp * linear,
    }
    if model.moe:
        ranks = max(tp, ep)
        one: float = model.mlp_parameters(model.moe_intermediate)
        split = tp if ranks == tp else 1
        padded_one = _padded(model, split) if dtype == "mxfp4" else one
        parts["experts"] = model.moe_layers * share * model.experts * padded_one / ranks * plain
        parts["shared experts"] = model.moe_layers * share * model.shared_experts * one / tp * linear
        parts["router"] = model.moe_layers * share * model.router_parameters() * high
    padded = -(-model.vocab // VOCAB_PADDING) * VOCAB_PADDING * model.hidden / tp * high
    if first or (last and model.tied):
        parts["embedding"] = padded
    if last and not model.tied:
        parts["LM head"] = padded
    parts["norms"] = model.norm_parameters() * share * high
    # sines and cosines of every position
    parts["rotary table"] = model.max_context * (model.rope_head_dim or model.head_dim) * SIXTEEN
    if model.kv_lora_rank:
        # MLA keeps the projection from the latent a second time, as its decode multiplies by it (`W_UK_T`, `W_UV`)
        absorbed = model.kv_lora_rank * model.heads / tp * (model.head_dim + model.v_head_dim)
        parts["absorbed projections"] = count * absorbed * high
    parts["other"] = model.extra / tp * high if first else 0.0
    return {name: int(size) for name, size in parts.items() if size}

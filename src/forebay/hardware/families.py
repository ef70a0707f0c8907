"""What is particular to a family of models in its `config.json`: which layers look back how far, which have a state in
place of a KV cache, where the experts are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import ceil
from types import MappingProxyType
from typing import Any, Final, Protocol

from .states import Mixer, delta_net, mamba1, mamba2


class Keys(Protocol):
    """A `config.json` that is read key by key (`configs.Config`); its methods raise `configs.BadConfig`."""

    raw: dict[str, Any]
    vision: dict[str, Any]

    def number(self, *keys: str, default: int | None = None) -> int: ...

    def positive(self, *keys: str, default: int | None = None) -> int: ...

    def flag(self, key: str, default: bool = False) -> bool: ...

    def texts(self, key: str) -> list[str]: ...

    def bad(self, text: str) -> Exception: ...


Fields = Mapping[str, Any]


def of_family(kind: str, c: Keys, fields: Fields) -> dict[str, Any]:
    """Fields of `ModelShape` that are not what their names say in every family."""
    found = _windows(kind, c, fields)
    make = _OWN.get(kind.removesuffix("_text"))
    return found | (make(c, fields) if make is not None else {})


def _windows(kind: str, c: Keys, fields: Fields) -> dict[str, Any]:
    layers = fields["layers"]
    types = c.texts("layer_types")
    window = c.number("sliding_window", default=0)
    if kind.startswith("llama4"):
        window = c.number("attention_chunk_size", default=0)
        count = layers - layers // 4
    elif types:
        count = sum(t in ("sliding_attention", "chunked_attention") for t in types)
    elif kind.startswith(("gemma2", "gpt_oss")):
        count = ceil(layers / 2)
    elif kind.startswith("gemma3"):
        count = layers - layers // c.positive("sliding_window_pattern", default=6)
    elif kind.startswith(("qwen", "mimo")):
        count = layers - c.number("max_window_layers", default=0) if c.flag("use_sliding_window") else 0
    else:
        count = layers
    if not window or window >= fields["max_context"] or count < 1:
        return {}
    return {"window": window, "window_layers": count, "chunked": kind.startswith("llama4")}


def vision_weights(c: Keys) -> int:
    """Of a vision transformer, by its sizes: 4 h² and 2 h · i a layer, beside the projection to the text model."""
    numbers = {}
    for name, keys in _VISION.items():
        found = next((c.vision[k] for k in keys if isinstance(c.vision.get(k), int)), 0)
        numbers[name] = max(0, int(found))
    hidden, width, layers = numbers["hidden"], numbers["width"], numbers["layers"]
    return layers * (4 * hidden * hidden + 2 * hidden * width) + hidden * c.positive("hidden_size")


_VISION: Final = MappingProxyType(
    {
        "hidden": ("hidden_size", "embed_dim"),
        "width": ("intermediate_size",),
        "layers": ("num_hidden_layers", "depth", "num_layers"),
    }
)


def _linear(layers: int, mixer: Mixer) -> dict[str, Any]:
    return {"linear_layers": layers, "linear_each": mixer.weights, "state_bytes": mixer.state}


def _state_dtype(c: Keys, default: str) -> int:
    stated = str(c.raw.get("mamba_ssm_cache_dtype") or c.raw.get("mamba_ssm_dtype") or default)
    return 4 if stated == "float32" else 2


def _delta(c: Keys, fields: Fields) -> dict[str, Any]:
    types = c.texts("layer_types")
    layers = fields["layers"]
    every = c.positive("full_attention_interval", default=4)
    count = sum(t == "linear_attention" for t in types) if types else layers - layers // every
    mixer = delta_net(
        fields["hidden"],
        c.positive("linear_num_key_heads"),
        c.positive("linear_num_value_heads"),
        c.positive("linear_key_head_dim"),
        c.positive("linear_value_head_dim"),
        kernel=c.positive("linear_conv_kernel_dim", default=4),
        state=_state_dtype(c, "float32"),
    )
    gates = layers * fields["hidden"] if fields["experts"] else 0
    return _linear(count, mixer) | {"attention_gate": True, "extra": fields["extra"] + gates}


def _jamba(c: Keys, fields: Fields) -> dict[str, Any]:
    layers, hidden = fields["layers"], fields["hidden"]
    period, offset = c.positive("attn_layer_period", default=8), c.number("attn_layer_offset", default=4)
    every, first = c.positive("expert_layer_period", default=2), c.number("expert_layer_offset", default=1)
    rank = c.raw.get("mamba_dt_rank")
    mixer = mamba1(
        hidden,
        c.positive("mamba_d_state", default=16),
        ceil(hidden / 16) if rank in (None, "auto") else c.positive("mamba_dt_rank"),
        expand=c.positive("mamba_expand", default=2),
        kernel=c.positive("mamba_d_conv", default=4),
        state=_state_dtype(c, "auto"),
    )
    with_experts = sum(i % every == first for i in range(layers))
    with_attention = sum(i % period == offset for i in range(layers))
    return _linear(layers - with_attention, mixer) | {"dense_layers": layers - with_experts}


def _nemotron(c: Keys, fields: Fields) -> dict[str, Any]:
    """Mixers, attention, MLPs and experts are layers of their own, in the order of a pattern. MLPs are counted as if
    every layer without experts had an equal part of them."""
    pattern = str(c.raw.get("hybrid_override_pattern") or "")
    mixers, attention, experts = pattern.count("M"), pattern.count("*"), pattern.count("E")
    layers = mixers + attention
    if not mixers or not attention:
        raise c.bad(f"hybrid_override_pattern is {pattern[:40]!r} where M and * for mixers and attention are needed")
    if c.number("moe_latent_size", default=0):
        raise c.bad("moe_latent_size: experts that work on a latent are not known here")
    mixer = mamba2(
        fields["hidden"],
        c.positive("mamba_num_heads"),
        c.positive("mamba_head_dim"),
        c.positive("ssm_state_size"),
        c.positive("n_groups"),
        kernel=c.positive("conv_kernel", default=4),
        state=_state_dtype(c, "auto"),
    )
    dense = max(0, layers - experts)
    width = fields["intermediate"] * pattern.count("-") // max(1, dense)
    found = _linear(mixers, mixer) | {"layers": layers, "intermediate": width, "dense_layers": dense, "matrices": 2}
    return found if experts else found | {"experts": 0, "dense_layers": 0}


def _llama4(c: Keys, fields: Fields) -> dict[str, Any]:
    step = c.positive("interleave_moe_layer_step", default=1)
    layers = fields["layers"]
    return {
        "moe_intermediate": fields["intermediate"],
        "intermediate": c.positive("intermediate_size_mlp"),
        "shared_experts": 1,
        "dense_layers": layers - layers // step,
    }


def _gemma4(c: Keys, fields: Fields) -> dict[str, Any]:
    """Layers with full attention have heads of another size, an MLP beside the experts is a shared expert."""
    found: dict[str, Any] = {
        "window_kv_heads": fields["kv_heads"],
        "window_head_dim": fields["head_dim"],
        "kv_heads": c.positive("num_global_key_value_heads", default=fields["kv_heads"]),
        "head_dim": c.positive("global_head_dim", default=fields["head_dim"]),
    }
    if fields["experts"]:
        found["shared_experts"] = round(fields["intermediate"] / fields["moe_intermediate"])
    return found


def _gated_shared(c: Keys, fields: Fields) -> dict[str, Any]:
    return {"extra": fields["extra"] + fields["layers"] * fields["hidden"]}


def _minimax(c: Keys, fields: Fields) -> dict[str, Any]:
    """Its norms of queries and keys are as wide as all heads together."""
    norms = fields["layers"] * (fields["heads"] + fields["kv_heads"]) * fields["head_dim"]
    return {"extra": fields["extra"] + (norms if c.flag("use_qk_norm") else 0)}


_OWN: Final[Mapping[str, Callable[[Keys, Fields], dict[str, Any]]]] = MappingProxyType(
    {
        "qwen3_next": _delta,
        "qwen3_5": _delta,
        "qwen3_5_moe": _delta,
        "qwen2_moe": _gated_shared,
        "jamba": _jamba,
        "nemotron_h": _nemotron,
        "llama4": _llama4,
        "gemma4": _gemma4,
        "minimax_m2": _minimax,
    }
)

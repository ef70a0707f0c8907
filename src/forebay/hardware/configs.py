"""Reading a model's shape from the `config.json` of a Hugging Face repository."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from .files import read
from .shapes import ModelShape, dtype_name

_MAX_CONFIG = 16 << 20
"""Bytes of a config.json."""

FAMILIES = frozenset(
    {"llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe", "qwen3_vl", "qwen3_vl_text", "qwen3_vl_moe"}
    | {"qwen3_vl_moe_text", "deepseek_v2", "deepseek_v3", "deepseek_v32", "kimi_k2", "gpt_oss", "phi3", "smollm3"}
    | {"granite", "olmo2", "olmoe", "minimax_m2", "glm4_moe"}
)
"""`model_type`s whose layers are attention and a gated MLP, or experts of one."""


class BadConfig(ValueError):
    """A `config.json` that does not describe a model known here. The message names the file and the key."""


class _Config:
    """One `config.json`, read key by key so that an error can name the key."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            raw = json.loads(read(path, _MAX_CONFIG))
        except OSError as e:
            raise BadConfig(f"{path}: cannot be read: {e.strerror or e}") from e
        except RecursionError:
            raise BadConfig(f"{path}: is nested too deeply") from None
        except ValueError as e:
            raise BadConfig(f"{path}: is not JSON: {e}") from e
        if not isinstance(raw, dict):
            raise BadConfig(f"{path}: holds {type(raw).__name__} where an object is needed")
        text = raw.get("text_config")
        self.raw: dict[str, Any] = {**raw, **text} if isinstance(text, dict) else raw

    def number(self, *keys: str, default: int | None = None) -> int:
        for key in keys:
            value = self.raw.get(key)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 40:
                raise BadConfig(f"{self.path}: {key} is {value!r} where a whole number, 0 or more, is needed")
            return value
        if default is None:
            raise BadConfig(f"{self.path}: the key {' or '.join(keys)} is missing")
        return default

    def positive(self, *keys: str, default: int | None = None) -> int:
        value = self.number(*keys, default=default)
        if value < 1:
            raise BadConfig(f"{self.path}: {' or '.join(keys)} is {value} where 1 or more is needed")
        return value

    def flag(self, key: str, default: bool = False) -> bool:
        value = self.raw.get(key)
        if value is not None and not isinstance(value, bool):
            raise BadConfig(f"{self.path}: {key} is {_brief(value)} where true or false is needed")
        return default if value is None else value

    def weights(self) -> str:
        quantised = self.raw.get("quantization_config")
        if quantised is not None:
            if not isinstance(quantised, dict):
                raise BadConfig(f"{self.path}: quantization_config is {_brief(quantised)} where an object is needed")
            return self._quantised(quantised)
        try:
            return dtype_name(str(self.raw.get("torch_dtype") or self.raw.get("dtype") or "bf16"))
        except ValueError as e:
            raise BadConfig(f"{self.path}: torch_dtype: {e}") from e

    def _quantised(self, config: dict[str, Any]) -> str:
        at = f"{self.path}: quantization_config"
        method = config.get("quant_method")
        by_bits: dict[str, dict[int, str]] = {"awq": {4: "int4"}, "gptq": {4: "int4", 8: "int8"}}
        if method in ("fp8", "mxfp4"):
            return str(method)
        if not isinstance(method, str) or method not in by_bits:
            raise BadConfig(f"{at}.quant_method is {_brief(method)}, none of fp8, mxfp4, {', '.join(by_bits)}")
        bits, known = config.get("bits", 4), by_bits[method]
        if isinstance(bits, bool) or not isinstance(bits, int) or bits not in known:
            raise BadConfig(f"{at}.bits is {_brief(bits)}; known of {method} are {', '.join(map(str, known))}")
        return known[bits]


def _brief(value: object) -> str:
    """What a key holds, for a message."""
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "a list"
    return repr(value)[:80]


def from_config(path: Path) -> ModelShape:
    """The shape that a Hugging Face `config.json` describes, of a model in `FAMILIES`. Raises `BadConfig`."""
    file = path / "config.json" if path.is_dir() else path
    c = _Config(file)
    kind = str(c.raw.get("model_type", "")).lower()
    if kind not in FAMILIES:
        raise BadConfig(f"{file}: model_type {kind!r} is not one whose layers are known: {', '.join(sorted(FAMILIES))}")
    heads = c.positive("num_attention_heads")
    hidden = c.positive("hidden_size")
    experts = c.number("num_local_experts", "num_experts", "n_routed_experts", default=0)
    kv_heads = c.positive("num_key_value_heads", default=heads)
    latent = c.number("kv_lora_rank", default=0)
    if heads % kv_heads and not latent:
        raise BadConfig(f"{file}: num_key_value_heads {kv_heads} does not divide num_attention_heads {heads}")
    width = c.positive("intermediate_size") if not experts else c.number("intermediate_size", default=0)
    head_dim = c.positive("qk_nope_head_dim") if latent else c.positive("head_dim", default=max(1, hidden // heads))
    return ModelShape(
        name=str(c.raw.get("_name_or_path") or file.parent.name or file.stem),
        layers=c.positive("num_hidden_layers"),
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        intermediate=width,
        vocab=c.positive("vocab_size"),
        tied=c.flag("tie_word_embeddings"),
        qk_norm=kind.startswith("qwen3"),
        qkv_bias=c.flag("attention_bias", kind.startswith("qwen2")),
        bias=kind == "gpt_oss",
        experts=experts,
        experts_per_token=c.positive("num_experts_per_tok", "experts_per_token") if experts else 0,
        moe_intermediate=c.positive("moe_intermediate_size", default=width) if experts else 0,
        shared_experts=c.number("n_shared_experts", default=0) if experts else 0,
        dense_layers=c.number("first_k_dense_replace", default=0) if experts else 0,
        kv_lora_rank=latent,
        q_lora_rank=c.number("q_lora_rank", default=0),
        rope_head_dim=c.number("qk_rope_head_dim", default=0),
        v_head_dim=c.number("v_head_dim", default=0),
        max_context=c.positive("max_position_embeddings", default=131_072),
        dtype=c.weights(),
    )

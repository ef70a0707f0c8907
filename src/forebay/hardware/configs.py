"""Reading a model's shape from the `config.json` of a Hugging Face repository."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from .families import of_family, vision_weights
from .files import read
from .shapes import ModelShape, dtype_name

_MAX_CONFIG = 16 << 20
"""Bytes of a config.json."""

FAMILIES = frozenset(
    {"llama", "mistral", "mistral3", "ministral", "mixtral", "phi3", "smollm3", "granite", "olmo2", "olmoe", "mimo"}
    | {"qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "qwen3_vl", "qwen3_vl_text", "qwen3_vl_moe", "qwen3_vl_moe_text"}
    | {"qwen3_next", "qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text", "jamba", "nemotron_h"}
    | {"deepseek_v2", "deepseek_v3", "deepseek_v32", "kimi_k2", "glm_moe_dsa", "glm", "glm4", "glm4_moe", "minimax_m2"}
    | {"gpt_oss", "gemma", "gemma2", "gemma3", "gemma3_text", "gemma4", "gemma4_text", "llama4", "llama4_text"}
)
"""`model_type`s whose layers are known here: attention, or a mixer with a state, and an MLP or experts."""


class BadConfig(ValueError):
    """A `config.json` that does not describe a model known here. The message names the file and the key."""


class Config:
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
        vision = raw.get("vision_config")
        self.vision: dict[str, Any] = vision if isinstance(vision, dict) else {}

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

    def bad(self, text: str) -> BadConfig:
        return BadConfig(f"{self.path}: {text}")

    def weights(self) -> str:
        beside = self._beside()
        if beside is not None:
            return beside
        quantised = self.raw.get("quantization_config")
        if quantised is not None:
            if not isinstance(quantised, dict):
                raise BadConfig(f"{self.path}: quantization_config is {_brief(quantised)} where an object is needed")
            return self._quantised(quantised)
        try:
            return dtype_name(str(self.raw.get("torch_dtype") or self.raw.get("dtype") or "bf16"))
        except ValueError as e:
            raise BadConfig(f"{self.path}: torch_dtype: {e}") from e

    def _beside(self) -> str | None:
        """The dtype that NVIDIA's Model Optimizer writes into a file of its own, beside config.json."""
        path = self.path.with_name(self.path.name.replace("config.json", "hf_quant_config.json"))
        if path == self.path or not path.exists():
            return None
        try:
            document = json.loads(read(path, _MAX_CONFIG))
        except (OSError, ValueError, RecursionError) as e:
            raise BadConfig(f"{path}: cannot be read: {e}") from e
        found = document.get("quantization") if isinstance(document, dict) else None
        return self._quantised({"quant_method": "modelopt", **found}) if isinstance(found, dict) else None

    def texts(self, key: str) -> list[str]:
        """A list of words; empty where there is none."""
        value = self.raw.get(key)
        if value is None:
            return []
        if not isinstance(value, list) or not all(isinstance(word, str) for word in value):
            raise BadConfig(f"{self.path}: {key} is {_brief(value)} where a list of words is needed")
        return value

    def _quantised(self, config: dict[str, Any]) -> str:
        at = f"{self.path}: quantization_config"
        method = config.get("quant_method")
        by_bits: dict[str, dict[int, str]] = {"awq": {4: "int4"}, "gptq": {4: "int4", 8: "int8"}}
        if method in ("fp8", "mxfp4"):
            return str(method)
        if method == "compressed-tensors":
            return self._compressed(config, at)
        if method == "modelopt":
            algorithm = str(config.get("quant_algo") or "").lower()
            if algorithm in ("fp8", "nvfp4"):
                return algorithm
            raise BadConfig(f"{at}.quant_algo is {_brief(config.get('quant_algo'))}, none of FP8, NVFP4")
        if not isinstance(method, str) or method not in by_bits:
            known = ", ".join([*by_bits, "compressed-tensors", "modelopt"])
            raise BadConfig(f"{at}.quant_method is {_brief(method)}, none of fp8, mxfp4, {known}")
        bits, known_bits = config.get("bits", 4), by_bits[method]
        if isinstance(bits, bool) or not isinstance(bits, int) or bits not in known_bits:
            raise BadConfig(f"{at}.bits is {_brief(bits)}; known of {method} are {', '.join(map(str, known_bits))}")
        return known_bits[bits]

    @staticmethod
    def _compressed(config: dict[str, Any], at: str) -> str:
        """Of the first group of layers, which is all of them where one dtype is used."""
        groups = config.get("config_groups")
        first = next(iter(groups.values()), None) if isinstance(groups, dict) else None
        weights = first.get("weights") if isinstance(first, dict) else None
        if not isinstance(weights, dict):
            raise BadConfig(f"{at}.config_groups has no group with weights")
        kind = (weights.get("type"), weights.get("num_bits"))
        known = {("float", 8): "fp8", ("int", 8): "int8", ("int", 4): "int4", ("float", 4): "nvfp4"}
        if kind not in known:
            raise BadConfig(
                f"{at}.config_groups: weights of type {_brief(kind[0])} with {_brief(kind[1])} bits are unknown"
            )
        return known[kind]


def _brief(value: object) -> str:
    """What a key holds, for a message."""
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "a list"
    return repr(value)[:80]


def from_config(path: Path) -> ModelShape:
    """The shape that a Hugging Face `config.json` describes, of a model in `FAMILIES`; a vision tower by the sizes it
    gives. Raises `BadConfig`."""
    file = path / "config.json" if path.is_dir() else path
    c = Config(file)
    kind = str(c.raw.get("model_type", "")).lower()
    if kind not in FAMILIES:
        raise BadConfig(f"{file}: model_type {kind!r} is not one whose layers are known: {', '.join(sorted(FAMILIES))}")
    layers = c.positive("num_hidden_layers")
    heads = c.positive("num_attention_heads")
    hidden = c.positive("hidden_size")
    experts = c.number("num_local_experts", "num_experts", "n_routed_experts", default=0)
    kv_heads = c.positive("num_key_value_heads", default=heads)
    latent = c.number("kv_lora_rank", default=0)
    if heads % kv_heads and not latent:
        raise BadConfig(f"{file}: num_key_value_heads {kv_heads} does not divide num_attention_heads {heads}")
    width = c.positive("intermediate_size") if not experts else c.number("intermediate_size", default=0)
    gemma = kind.startswith("gemma")
    head_dim = (
        c.positive("qk_nope_head_dim")
        if latent
        else c.positive("head_dim", "attention_head_dim", default=256 if gemma else max(1, hidden // heads))
    )
    fields: dict[str, Any] = {
        "name": str(c.raw.get("_name_or_path") or file.parent.name or file.stem),
        "layers": layers,
        "hidden": hidden,
        "heads": heads,
        "kv_heads": kv_heads,
        "head_dim": head_dim,
        "intermediate": width,
        "vocab": c.positive("vocab_size"),
        "tied": c.flag("tie_word_embeddings", gemma),
        "qk_norm": kind.startswith(("qwen3", "gemma3", "gemma4")) or (kind == "glm4_moe" and c.flag("use_qk_norm")),
        "qkv_bias": c.flag("attention_bias", kind.startswith("qwen2")),
        "bias": kind == "gpt_oss",
        "norms": 4 if (gemma and kind != "gemma") or kind == "glm4" else 2,
        "experts": experts,
        "experts_per_token": c.positive(*_CHOSEN) if experts else 0,
        "moe_intermediate": c.positive("moe_intermediate_size", default=width) if experts else 0,
        "shared_experts": _shared(c) if experts else 0,
        "dense_layers": c.number("first_k_dense_replace", default=0) if experts else 0,
        "kv_lora_rank": latent,
        "q_lora_rank": c.number("q_lora_rank", default=0),
        "rope_head_dim": c.number("qk_rope_head_dim", default=0),
        "v_head_dim": c.number("v_head_dim", default=0),
        "index_heads": c.number("index_n_heads", default=0),
        "index_head_dim": c.number("index_head_dim", default=0),
        "max_context": c.positive("max_position_embeddings", default=131_072),
        "dtype": c.weights(),
        "extra": vision_weights(c),
    }
    fields |= of_family(kind, c, fields)
    return ModelShape(**fields)


_CHOSEN = ("num_experts_per_tok", "experts_per_token", "num_experts_per_token", "top_k_experts")


def _shared(c: Config) -> int:
    """Shared experts, counted in widths of a routed one."""
    wide = c.number("shared_expert_intermediate_size", "moe_shared_expert_intermediate_size", default=0)
    if wide:
        return max(1, round(wide / c.positive("moe_intermediate_size")))
    return c.number("n_shared_experts", default=0)

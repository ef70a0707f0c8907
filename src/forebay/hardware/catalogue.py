"""Finding a model or a GPU by name, reading a model's shape from its `config.json`, and how much KV cache fits."""

from __future__ import annotations

import json
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from .files import read
from .gpus import ALIASES as GPU_ALIASES
from .gpus import GPUS
from .models import ALIASES as MODEL_ALIASES
from .models import MODELS
from .shapes import Gpu, ModelShape, dtype_name

_SIBLINGS = ("-instruct", "-chat", "-base", "-hf", "-2507", "-fp8", "-awq", "-gptq", "-v0.1", "-v0.2", "-v0.3")
"""Parts of names that leave the shape as it is."""
_MAX_CONFIG = 16 << 20
"""Bytes of a config.json."""

FAMILIES = frozenset(
    {"llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe", "qwen3_vl", "qwen3_vl_text", "qwen3_vl_moe"}
    | {"qwen3_vl_moe_text", "deepseek_v2", "deepseek_v3", "deepseek_v32", "kimi_k2", "gpt_oss", "phi3", "smollm3"}
    | {"granite", "olmo2", "olmoe", "minimax_m2", "glm4_moe"}
)
"""`model_type`s whose layers are attention and a gated MLP, or experts of one."""


class UnknownModel(LookupError):
    """No model of that name. The message names the nearest."""


class UnknownGpu(LookupError):
    """No GPU of that name. The message names the nearest."""


class BadConfig(ValueError):
    """A `config.json` that does not describe a model known here. The message names the file and the key."""


def _nearest(what: str, asked: str, known: Mapping[str, str]) -> str:
    near = get_close_matches(asked, list(known), n=4, cutoff=0.4)
    names = list(dict.fromkeys(known[n] for n in near))
    if names:
        return f"{what} {asked!r} is unknown; the nearest are {', '.join(names)}"
    return f"{what} {asked!r} is unknown; known are {', '.join(dict.fromkeys(known.values()))}"


def _plain_model(name: str) -> str:
    plain = name.strip().lower().replace("_", "-")
    for part in _SIBLINGS:
        plain = plain.replace(part, "")
    return plain


def _model_names() -> dict[str, str]:
    names: dict[str, str] = {}
    for shape in MODELS:
        plain = _plain_model(shape.name)
        names[plain] = shape.name
        names.setdefault(plain.rpartition("/")[2], shape.name)
        names.setdefault(plain.replace("meta-llama-", "llama-"), shape.name)
    for alias, name in MODEL_ALIASES.items():
        names[_plain_model(alias)] = name
        names.setdefault(_plain_model(alias).rpartition("/")[2], name)
    return names


def find_model(name: str) -> ModelShape:
    """The shape of a model by its hub name, a part of it, or the path of a `config.json` (or of the folder with one).
    Upper and lower case are one. Raises `UnknownModel`, or `BadConfig` for a file that does not say enough."""
    path = Path(name)
    if path.suffix == ".json" or (path.is_dir() and (path / "config.json").exists()):
        return from_config(path)
    return find_named(name)


def find_named(name: str) -> ModelShape:
    """The shape of a model of the catalogue. Raises `UnknownModel`."""
    names = _model_names()
    plain = _plain_model(name)
    found = names.get(plain) or names.get(plain.rpartition("/")[2])
    if found is None:
        raise UnknownModel(_nearest("model", name.lower(), names) + ", or the path of a config.json")
    return next(shape for shape in MODELS if shape.name == found)


def find_gpu(name: str) -> Gpu:
    """A GPU by its name, such as `h100_sxm` or `RTX 4090`. Raises `UnknownGpu`."""
    names = {gpu.name: gpu.name for gpu in GPUS} | dict(GPU_ALIASES)
    plain = "_".join(name.lower().replace("-", " ").replace("_", " ").split())
    for brand in ("nvidia_", "amd_", "instinct_", "geforce_", "tesla_"):
        plain = plain.removeprefix(brand)
    found = names.get(plain) or names.get(plain.replace("_", ""))
    if found is None:
        raise UnknownGpu(_nearest("GPU", name.lower(), names))
    return next(gpu for gpu in GPUS if gpu.name == found)


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


def activation_bytes(model: ModelShape, *, max_num_batched_tokens: int, max_num_seqs: int, tp: int = 1) -> int:
    """Memory on one rank that weights and KV cache cannot have, as vLLM's profiling run finds it before it sizes the
    cache (vLLM 0.19, vllm/v1/worker/gpu_worker.py `determine_available_memory`, gpu_model_runner.py `profile_run`).

    The larger of two peaks, beside two hidden states of `max_num_batched_tokens`: the MLP's gate, up and product; or
    the sampler over `max_num_seqs` rows of the vocabulary, with logits in 16 and 32 bits, and 32-bit sorted logits,
    probabilities and their sum and 64-bit indices of top-p: 26 bytes an entry. Beside it 0.3 GB outside of PyTorch
    (cuBLAS workspaces, loaded kernels; more with NCCL, 0.5 GB). An estimate: it comes within 1 % of the KV cache of
    Llama-3.1-8B on an RTX 4090.
    """
    hidden = 2 * max_num_batched_tokens * model.hidden * 2
    width = model.experts_per_token * model.moe_intermediate if model.experts else model.intermediate
    mlp = max_num_batched_tokens * 3 * max(width, 1) * 2 // tp
    sampler = max_num_seqs * model.vocab * 26
    return hidden + max(mlp, sampler) + (300_000_000 if tp == 1 else 500_000_000)


def kv_capacity_tokens(
    model: ModelShape,
    gpu: Gpu,
    *,
    tp: int = 1,
    ep: int = 1,
    dtype: str | None = None,
    kv_dtype: str = "auto",
    utilisation: float = 0.9,
    max_num_batched_tokens: int = 2048,
    max_num_seqs: int = 256,
    block_size: int = 16,
) -> int:
    """Tokens of KV cache that fit, in whole blocks: (memory · utilisation - weights / tp - activations) / KV bytes a
    token of one rank. `ep`: ranks that share the experts, where they are more than `tp`. Raises ValueError where the
    weights leave no room for one block, and says by how much."""
    model.check_tp(tp)
    if block_size < 1:
        raise ValueError(f"block_size must be at least 1, not {block_size}")
    if not 0 < utilisation <= 1:
        raise ValueError(f"the share of the GPU's memory must be more than 0 and at most 1, not {utilisation:g}")
    name = dtype_name(dtype or model.dtype)
    kv = (
        dtype_name(kv_dtype)
        if kv_dtype != "auto"
        else ("fp16" if name == "fp16" else "fp32" if name == "fp32" else "bf16")
    )
    weights = model.weight_bytes(name) / tp
    if ep > tp and model.moe:
        routed = model.expert_parameters() * model.weight_bytes(name) / model.parameters()
        weights -= routed / tp - routed / ep
    activations = activation_bytes(
        model, max_num_batched_tokens=max_num_batched_tokens, max_num_seqs=max_num_seqs, tp=tp
    )
    free = gpu.memory * utilisation - weights - activations
    each = model.kv_bytes_per_token(kv, tp) * block_size
    if free < each:
        raise ValueError(
            f"{model.name} in {name} on {tp} × {gpu.name} leaves no room for KV cache: a rank has "
            f"{gpu.memory * utilisation / 1e9:.1f} GB, weights take {weights / 1e9:.1f} and activations "
            f"{activations / 1e9:.1f}; use more GPUs, a smaller dtype or a GPU with more memory"
        )
    return int(free // each) * block_size

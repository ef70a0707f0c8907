"""Finding a model or a GPU by whatever somebody calls it, and how much KV cache fits."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from types import MappingProxyType
from typing import Final

from .configs import from_config
from .described import described
from .gpus import ALIASES as GPU_ALIASES
from .gpus import GPUS
from .memory import Deployment, budget
from .models import ALIASES as MODEL_ALIASES
from .models import MODELS
from .numbers import gpu_from_file, gpu_of, model_of
from .shapes import Gpu, ModelShape

_STORED: Final = MappingProxyType(
    {
        "fp8-dynamic": "fp8",
        "fp8-static": "fp8",
        "fp8": "fp8",
        "nvfp4": "nvfp4",
        "quantized.w8a8": "int8",
        "quantized.w4a16": "int4",
        "gptq-int8": "int8",
        "gptq-int4": "int4",
        "awq-int4": "int4",
        "autoround-int4": "int4",
        "gptq": "int4",
        "awq": "int4",
        "int8": "int8",
        "int4": "int4",
    }
)
"""Ends of names of quantised models, and the dtype of their weights."""
_TUNED = ("-instruct", "-chat", "-base", "-hf", "-it")
_SIBLINGS = (*_TUNED, "-2507", "-v0.1", "-v0.2", "-v0.3")
"""Parts of names that leave the shape as it is."""


class UnknownModel(LookupError):
    """No model of that name. The message names the nearest."""


class UnknownGpu(LookupError):
    """No GPU of that name. The message names the nearest."""


def _nearest(what: str, asked: str, known: Mapping[str, str]) -> str:
    near = get_close_matches(asked, list(known), n=4, cutoff=0.4)
    names = list(dict.fromkeys(known[n] for n in near))
    if names:
        return f"{what} {asked!r} is unknown; the nearest are {', '.join(names)}"
    return f"{what} {asked!r} is unknown; known are {', '.join(dict.fromkeys(known.values()))}"


def _plain_model(name: str, parts: Sequence[str] = _SIBLINGS) -> str:
    plain = _lower(name)
    for part in parts:
        plain = re.sub(rf"{re.escape(part)}(?=-|$)", "", plain)
    return plain


def _lower(name: str) -> str:
    return name.strip().lower().replace("_", "-")


def _model_names() -> dict[str, str]:
    """Names in lower case, whole ones before those with their owner or their siblings' endings left out."""
    names = {_lower(shape.name): shape.name for shape in MODELS} | {
        _lower(a): name for a, name in MODEL_ALIASES.items()
    }
    for name, target in list(names.items()):
        names.setdefault(name.rpartition("/")[2], target)
    for parts in (_TUNED, _SIBLINGS):
        for name, target in list(names.items()):
            plain = _plain_model(name, parts)
            names.setdefault(plain, target)
            names.setdefault(plain.replace("meta-llama-", "llama-"), target)
    return names


def find_model(name: str) -> ModelShape:
    """The shape of a model by its hub name, a part of it, or the path of a `config.json` (or of the folder with one).
    Upper and lower case are one. Raises `UnknownModel`, or `BadConfig` for a file that does not say enough."""
    path = Path(name)
    if path.suffix == ".json" or (path.is_dir() and (path / "config.json").exists()):
        return from_config(path)
    if path.is_absolute() or name.startswith(("./", "../", "~")):
        there = "is a folder without a config.json" if path.is_dir() else "is no config.json, nor a folder with one"
        raise UnknownModel(f"model {name!r} {there if path.exists() else 'is a path that does not exist'}")
    return find_named(name)


def find_named(name: str) -> ModelShape:
    """The shape of a model of the catalogue; of one that is called `…-FP8`, `…-AWQ` and the like, with its weights in
    that dtype. Raises `UnknownModel`."""
    names = _model_names()
    lower = _lower(name)
    ending = next((end for end in _STORED if lower.endswith("-" + end)), None)
    whole = lower if ending is None else lower.removesuffix("-" + ending)
    for asked in dict.fromkeys((whole, _plain_model(whole, _TUNED), _plain_model(whole))):
        found = names.get(asked) or names.get(asked.rpartition("/")[2])
        if found is not None:
            shape = next(shape for shape in MODELS if shape.name == found)
            return shape if ending is None else replace(shape, dtype=_STORED[ending])
    raise UnknownModel(_nearest("model", name.lower(), names) + ", or the path of a config.json")


def find_any(text: str) -> ModelShape:
    """A model by numbers (`params=70e9,layers=80,kv_heads=8,head_dim=128`, see `numbers.model_of`), by the path of its
    config.json or of the folder with it, by its name in the catalogue, or by the name of a model that PyPI
    `aiconfigurator-core` describes, where that is installed. Raises `UnknownModel`, `configs.BadConfig`,
    `numbers.BadNumbers`."""
    if "=" in text and not Path(text).exists():
        return model_of(text)
    try:
        return find_model(text)
    except UnknownModel:
        path = described(text)
        if path is None:
            raise
        return replace(from_config(path), name=text.strip())


def find_any_gpu(text: str) -> Gpu:
    """A GPU by numbers (`vram=80GB,bandwidth=2TB/s,flops=312e12,price=2.5`, see `numbers.gpu_of`), by the path of a
    YAML or JSON file with those (`FILE#NAME` where it has several), or by its name in the catalogue. Raises
    `UnknownGpu`, `numbers.BadNumbers`."""
    file, _, name = text.partition("#")
    if Path(file).suffix in (".yaml", ".yml", ".json"):
        return gpu_from_file(Path(file), name or None)
    if "=" in text:
        return gpu_of(text)
    return find_gpu(text)


_BRANDS = frozenset({"nvidia", "amd", "instinct", "geforce", "tesla", "gpu", "hbm2", "hbm2e", "hbm3", "hbm3e"})
_SIZE = re.compile(r"([0-9]+)(?:g|gb|gib)?")
_LABEL = 0.12
"""Part of a label's memory that a driver may keep back (GDDR with error correction keeps 8 %)."""


def find_gpu(name: str) -> Gpu:
    """A GPU by its name, such as `h100_sxm`, `RTX 4090`, `A100-80G` or what a driver calls it (`NVIDIA
    A100-SXM4-80GB`). A size must be that of the GPU. Raises `UnknownGpu`."""
    names = {gpu.name: gpu.name for gpu in GPUS} | dict(GPU_ALIASES)
    words = [w for w in re.split(r"[-_ ]+", name.strip().lower()) if w and w not in _BRANDS]
    plain = "_".join(re.sub(r"^(sxm|pcie)[0-9]$", r"\1", w) for w in words)
    found = names.get(plain) or names.get(plain.replace("_", ""))
    if found is None:
        whole, _, last = plain.rpartition("_")
        size = _SIZE.fullmatch(last)
        if size is None:
            return _gpu_or_nearest(name, None, names)
        found = names.get(f"{whole}_{size[1]}")
        if found is None and whole in names:
            gpu = _gpu_or_nearest(name, names[whole], names)
            if not (1 - _LABEL) * int(size[1]) <= gpu.memory / 2**30 <= int(size[1]):
                alike = ", ".join(g.title for g in GPUS if g.name.startswith(gpu.name.split("_")[0]))
                raise UnknownGpu(f"no GPU {name!r} is known; there are {alike}")
            return gpu
    return _gpu_or_nearest(name, found, names)


def _gpu_or_nearest(asked: str, found: str | None, names: Mapping[str, str]) -> Gpu:
    if found is None:
        raise UnknownGpu(
            _nearest("GPU", asked.lower(), names) + ", or numbers such as vram=80GB,bandwidth=2TB/s,flops=312T"
        )
    return next(gpu for gpu in GPUS if gpu.name == found)


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
    """Tokens of KV cache that fit beside CUDA graphs that are not counted (vLLM 0.19), in whole blocks; see `memory`.
    `ep`: ranks that share the experts, where they are more than `tp`. Raises ValueError where the weights leave no room
    for one block, and says by how much."""
    return budget(
        Deployment(
            model,
            gpu,
            tp=tp,
            ep=ep,
            dtype=dtype or "auto",
            kv_dtype=kv_dtype,
            gpu_memory_utilization=utilisation,
            max_num_batched_tokens=max_num_batched_tokens,
            max_num_seqs=max_num_seqs,
            block_size=block_size,
            graphs_counted=False,
        )
    ).kv_tokens

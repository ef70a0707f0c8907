"""Finding a model or a GPU by whatever somebody calls it, and how much KV cache fits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path

from .configs import from_config
from .described import described
from .gpus import ALIASES as GPU_ALIASES
from .gpus import GPUS
from .memory import Deployment, budget
from .models import ALIASES as MODEL_ALIASES
from .models import MODELS
from .numbers import gpu_from_file, gpu_of, model_of
from .shapes import Gpu, ModelShape

_SIBLINGS = ("-instruct", "-chat", "-base", "-hf", "-2507", "-fp8", "-awq", "-gptq", "-v0.1", "-v0.2", "-v0.3")
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

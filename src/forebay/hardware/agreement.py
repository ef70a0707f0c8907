"""What a profile was measured on, beside what is asked of it: another model or GPU, other precision, other GPUs in
parallel have other step times."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from .shapes import Gpu, ModelShape, dtype_name


@dataclass(frozen=True, slots=True)
class Made:
    """What a profile is of. None: it does not say, or the catalogue does not know it."""

    model: str | None
    """As the profile writes it."""
    shape: ModelShape | None
    gpu: str | None
    card: Gpu | None
    dtype: str | None
    kv_dtype: str | None
    """`auto`: as the weights, in 16 bits where those have fewer."""
    tp: int | None


@dataclass(frozen=True, slots=True)
class Asked:
    """What is to be simulated with it. None, `auto`: nothing was said."""

    shape: ModelShape | None = None
    card: Gpu | None = None
    dtype: str = "auto"
    kv_dtype: str = "auto"
    tp: int = 1


def differences(made: Made, asked: Asked) -> list[str]:
    """What is asked for and the profile contradicts or cannot tell: half a sentence each, about the profile. Raises
    ValueError for a dtype that does not exist."""
    return [*_models(made, asked), *_gpus(made, asked), *_dtypes(made, asked), *_ranks(made, asked)]


def unconfirmed(made: Made, asked: Asked) -> list[str]:
    """What somebody has to say because the profile's own words are in no catalogue, and nobody can check."""
    found = []
    if asked.shape is not None and made.shape is None:
        found.append(f"is of the model {made.model!r}, taken to be {asked.shape.name}")
    if asked.card is not None and made.card is None and made.gpu is not None:
        found.append(f"is of the GPU {made.gpu!r}, whose memory, link and price are taken from {asked.card.name}")
    return found


def _models(made: Made, asked: Asked) -> Iterator[str]:
    if asked.shape is not None and made.shape is not None and _layers(asked.shape) != _layers(made.shape):
        yield f"is of the model {made.shape.name}, not {asked.shape.name}"


def _gpus(made: Made, asked: Asked) -> Iterator[str]:
    if asked.card is None:
        return
    if made.card is not None and made.card.name != asked.card.name:
        yield f"is of the GPU {made.card.name}, not {asked.card.name}"
    elif made.gpu is None:
        yield f"does not say of which GPU it is, so not that it is of {asked.card.name}"


def _dtypes(made: Made, asked: Asked) -> Iterator[str]:
    if asked.dtype != "auto":
        if made.dtype is None:
            yield f"does not say the dtype of its weights, so not that it is {dtype_name(asked.dtype)}"
        elif _alike(made.dtype) != _alike(asked.dtype):
            yield f"is of weights in {made.dtype}, not {dtype_name(asked.dtype)}"
    if asked.kv_dtype != "auto":
        wanted = dtype_name(asked.kv_dtype)
        have = None if made.kv_dtype is None else kv_dtype_of(made.kv_dtype, made.dtype)
        if have is None:
            yield f"does not say the dtype of its KV cache, so not that it is {wanted}"
        elif _alike(have) != _alike(wanted):
            yield f"is of a KV cache in {have}, not {wanted}"


def _ranks(made: Made, asked: Asked) -> Iterator[str]:
    if made.tp is not None and made.tp != asked.tp:
        yield f"is of tp {made.tp}, not {asked.tp}"
    elif made.tp is None and asked.tp != 1:
        yield f"is of an engine as it ran, which tp {asked.tp} does not change"


def kv_dtype_of(kv_dtype: str, dtype: str | None) -> str:
    """The dtype of the KV cache beside weights in `dtype`: vLLM's `auto` is the dtype of the model's activations."""
    if kv_dtype != "auto":
        return dtype_name(kv_dtype)
    return dtype if dtype in ("fp16", "fp32") else "bf16"


def _alike(dtype: str) -> str:
    """The two of 16 bits take the same time and space."""
    name = dtype_name(dtype)
    return "bf16" if name == "fp16" else name


def _layers(shape: ModelShape) -> ModelShape:
    """What step times depend on: neither name nor the longest context; the dtype is compared by itself."""
    return replace(shape, name="", max_context=0, dtype="bf16")

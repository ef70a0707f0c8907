"""From the names of a GPU and a model, or a profile, to what an engine needs: step times, KV blocks, a price."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from forebay.errors import shown
from forebay.hardware.agreement import kv_dtype_of
from forebay.hardware.catalogue import kv_capacity_tokens
from forebay.hardware.csvtable import BadProfile
from forebay.hardware.fitted import FittedError, FittedProfile, FittedStepTime
from forebay.hardware.profiles import Resolved, resolve
from forebay.hardware.steptime import StepTime, WithHost
from forebay.hardware.tables import CAPTURE_SIZES
from forebay.sim.settings import EngineSettings

GPU: Final = "h100_sxm"
MODEL: Final = "llama-3.1-8b"
"""What is simulated where neither a profile nor anything else says."""
_DEFAULTS: Final[Mapping[str, Any]] = MappingProxyType({f.name: f.default for f in fields(EngineSettings)})


_OF_THE_ENGINE: Final = ("enforce_eager", "gpu_memory_utilization")
"""Of `Wanted`, what a calibrated profile has in it."""


class HardwareError(Exception):
    """A GPU, a model or a profile that cannot be used, in one sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What a run asks for. `gpu` and `model`: None for what the profile says, or else GPU and MODEL."""

    gpu: str | None = None
    model: str | None = None
    tp: int = 1
    dtype: str = "auto"
    kv_dtype: str = "auto"
    profile: str | None = None
    host: float = 0.0
    """Seconds that the host adds to each step."""
    host_prefill: float = 0.0
    """Further seconds for a step with prefill in it."""
    enforce_eager: bool = False
    """No CUDA graphs: decode batches are not padded to their sizes."""
    kv_bandwidth: float = 25e9
    """Bytes a second of the link over which a decode engine fetches KV."""
    gpu_memory_utilization: float = 0.9
    strict: bool = False


@dataclass(frozen=True, slots=True)
class Hardware:
    """What engines run on."""

    steps: StepTime
    source: str
    """measured, aiconfigurator, calibrated or roofline."""
    note: str
    """What the step times were made from, and what is not in them."""
    gpu: str | None
    model: str | None
    engine: Mapping[str, Any]
    """Fields of `EngineSettings` that follow from it."""
    price: float | None = None
    """USD an hour of one engine, all its GPUs: an example price of the catalogue."""
    notes: tuple[str, ...] = ()
    """What a reader of the result should know."""
    delay: tuple[float, float] = (0.0, 0.0)
    """Seconds that the server needs before its engine has a request: each, and for each prompt token."""
    transfer_seconds_per_token: float | None = None
    """Of KV from a prefill to a decode engine; None where the model's shape is not known."""


Resolve = Callable[..., Resolved]
"""`profiles.resolve`, or what does the same."""


def find_hardware(wanted: Wanted, given: Mapping[str, Any], look_up: Resolve = resolve) -> Hardware:
    """`given`: fields of `EngineSettings` that were set by hand; KV capacity depends on them. Raises HardwareError."""
    try:
        named = wanted.profile is None
        found = look_up(
            wanted.gpu or (GPU if named else None),
            wanted.model or (MODEL if named else None),
            tp=wanted.tp,
            dtype=wanted.dtype,
            kv_dtype=wanted.kv_dtype,
            profile=None if wanted.profile is None else Path(wanted.profile),
            pad=() if wanted.enforce_eager else CAPTURE_SIZES,
            strict=wanted.strict,
        )
        if isinstance(found.step_time, FittedStepTime):
            return _calibrated(found, found.step_time.profile, wanted, given)
        return _resolved(found, wanted, given)
    except (LookupError, ValueError, ImportError, OSError, BadProfile, FittedError) as e:
        # str() of a LookupError may quote its message.
        raise HardwareError(shown(e.args[0] if len(e.args) == 1 else e, 400)) from None


def _resolved(found: Resolved, wanted: Wanted, given: Mapping[str, Any]) -> Hardware:
    model, card = found.model, found.gpu
    if model is None:  # of a calibrated profile only
        raise HardwareError(f"{shown(wanted.profile)}: is of a model that is not in the catalogue")
    engine: dict[str, Any] = {"max_model_len": model.max_context}
    if "num_blocks" not in given:
        if card is None:
            raise HardwareError(
                f"{shown(wanted.profile)}: is of a GPU that is not in the catalogue, so its memory is not known; give "
                "--gpu or --num-gpu-blocks"
            )
        sizes = {
            name: given.get(name, _DEFAULTS[name]) for name in ("block_size", "max_num_batched_tokens", "max_num_seqs")
        }
        tokens = kv_capacity_tokens(
            model,
            card,
            tp=wanted.tp,
            dtype=found.dtype,
            kv_dtype=found.kv_dtype,
            utilisation=wanted.gpu_memory_utilization,
            **sizes,
        )
        engine["num_blocks"] = tokens // sizes["block_size"]
    price = None if card is None or card.example_price is None else card.example_price * wanted.tp
    notes = (f"step times are a {found.note}",) if found.source == "roofline" else ()
    kv_dtype = kv_dtype_of(found.kv_dtype, found.dtype or model.dtype)
    return Hardware(
        _with_host(found.step_time, wanted),
        found.source,
        found.note,
        None if card is None else card.name,
        model.name,
        engine,
        price,
        (*found.notes, *notes),
        transfer_seconds_per_token=model.kv_bytes_per_token(kv_dtype, 1) / wanted.kv_bandwidth,
    )


def _with_host(steps: StepTime, wanted: Wanted) -> StepTime:
    return WithHost(steps, wanted.host, wanted.host_prefill) if wanted.host or wanted.host_prefill else steps


def _calibrated(found: Resolved, profile: FittedProfile, wanted: Wanted, given: Mapping[str, Any]) -> Hardware:
    """A fit to a live engine brings that engine's own sizes."""
    facts, path = profile.engine, shown(wanted.profile, 300)
    ignored = [f.name for f in fields(Wanted) if f.name in _OF_THE_ENGINE and getattr(wanted, f.name) != f.default]
    notes = [f"{path}: is of an engine as it ran, which {name} does not change" for name in ignored]
    if notes and wanted.strict:
        raise HardwareError(notes[0])
    size = given.get("block_size") or facts.block_size or _DEFAULTS["block_size"]
    said = {
        "block_size": size,
        "num_blocks": None if facts.kv_tokens is None else facts.kv_tokens // size,
        "max_num_seqs": facts.max_num_seqs,
        "max_num_batched_tokens": facts.max_num_batched_tokens,
        "max_model_len": facts.max_model_len,
        "async_scheduling": facts.async_scheduling,
    }
    known = {name: value for name, value in said.items() if value is not None}
    if "num_blocks" not in known and "num_blocks" not in given:
        raise HardwareError(f"{path}: does not say how much KV cache the engine has; give --num-gpu-blocks")
    if known.get("num_blocks") == 0 and "num_blocks" not in given:
        raise HardwareError(f"{path}: engine.kv_tokens is {facts.kv_tokens}, less than a block of {size} tokens")
    host = profile.host
    return Hardware(
        _with_host(found.step_time, wanted),
        "calibrated",
        found.note,
        None,
        facts.model or None,
        known,
        notes=(*found.notes, *notes, *profile.notes),
        delay=(host.per_request, host.per_prompt_token),
    )

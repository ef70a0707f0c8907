"""Where step times come from: an explicit profile, NVIDIA's measured kernels, or published numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from .agreement import Asked, Made, differences, unconfirmed
from .catalogue import UnknownGpu, UnknownModel, find_gpu, find_model, find_named
from .csvtable import BadProfile
from .shapes import Gpu, ModelShape, dtype_name
from .steptime import StepTime
from .tables import CAPTURE_SIZES

Source = Literal["measured", "aiconfigurator", "calibrated", "roofline"]
Choice = Literal["auto", "measured", "aiconfigurator", "calibrated", "roofline"]


@dataclass(frozen=True, slots=True)
class Resolved:
    """A source of step times, and what it is."""

    step_time: StepTime
    source: Source
    note: str
    """One line for people: what it was made from and what is not in it."""
    model: ModelShape | None
    """None where a calibrated profile's is not in the catalogue."""
    gpu: Gpu | None
    """None where a profile was calibrated on hardware that is not in the catalogue."""
    dtype: str | None = None
    """Of the weights; None where a profile does not say."""
    kv_dtype: str = "auto"
    notes: tuple[str, ...] = ()
    """What was asked of a profile that it is not of, or does not say."""


def resolve(
    gpu: str | None = None,
    model: str | None = None,
    *,
    tp: int = 1,
    dp: int = 1,
    ep: int = 1,
    dtype: str = "auto",
    kv_dtype: str = "auto",
    source: Choice = "auto",
    profile: Path | None = None,
    host: float = 0.0,
    pad: Sequence[int] = CAPTURE_SIZES,
    strict: bool = False,
) -> Resolved:
    """The step times of `model` on `tp` GPUs, from the first of: `profile` (a folder of tables, a YAML made by `forebay
    calibrate`, a compiled JSON); NVIDIA's kernels, compiled before or now, where the package knows the GPU; a roofline.
    `source` other than `auto` allows only that one. `dtype` `auto`: as the weights are published.

    What a profile says of itself need not be given; what is given must be in the catalogue, and where it is not what
    the profile says, that is one of the `notes`, with `strict` a `BadProfile`. `host`: seconds added to
    each step (a calibrated profile has its own); `pad`: CUDA graph sizes (`tables.capture_sizes`), `()` for eager
    execution; a calibrated profile and a roofline know none. Raises `UnknownModel`, `UnknownGpu`, `BadProfile`,
    `FittedError`, `aiconf.MissingPackage`, `aiconf.Unavailable`, ValueError.
    """
    shape = find_model(model) if model is not None else None
    card = find_gpu(gpu) if gpu is not None else None
    if profile is not None:
        return _from_profile(profile, Asked(shape, card, dtype, kv_dtype, tp), dp, ep, source, host, pad, strict)
    if source in ("measured", "calibrated"):
        raise BadProfile(f"step times that are {source} need the path of a profile")
    if shape is None:
        raise UnknownModel("a model must be named where no profile is given")
    if card is None:
        raise UnknownGpu("a GPU must be named where no profile is given")
    weights = shape.dtype if dtype == "auto" else dtype_name(dtype)
    cache = kv_dtype if kv_dtype == "auto" else dtype_name(kv_dtype)
    shape.check_tp(tp)
    if source in ("auto", "aiconfigurator"):
        found = _from_kernels(shape, card, tp, dp, ep, weights, cache, source, host, pad, strict)
        if found is not None:
            return found
    from .roofline import BANDWIDTH_EFFICIENCY, FLOPS_EFFICIENCY, RooflineSteps

    steps = RooflineSteps(shape, card, tp=tp, dtype=weights, kv_dtype=cache, host=host)
    note = (
        f"roofline of {card.title} with {shape.name} in {weights}: published numbers at {FLOPS_EFFICIENCY:.0%} of the "
        f"FLOP/s and {BANDWIDTH_EFFICIENCY:.0%} of the bandwidth, not measured"
    )
    return Resolved(steps, "roofline", note, shape, card, weights, cache)


def _from_kernels(
    shape: ModelShape,
    card: Gpu,
    tp: int,
    dp: int,
    ep: int,
    dtype: str,
    kv_dtype: str,
    source: Choice,
    host: float,
    pad: Sequence[int],
    strict: bool,
) -> Resolved | None:
    """None where `auto` goes on to the next source."""
    from . import aiconf

    wanted = aiconf.Wanted(shape, card, tp, dp, ep, dtype, kv_dtype)
    path = aiconf.find_cached(wanted)
    if path is None:
        if source == "auto" and aiconf.installed_version() is None:
            return None
        try:
            path = aiconf.compile_profile(wanted)
        except aiconf.Unavailable:
            if source == "aiconfigurator":
                raise
            return None
    steps = aiconf.load_profile(path, gpu=card, host=host, pad=pad, strict=strict)
    note = f"NVIDIA's measured kernels ({path}); not in it: {', '.join(aiconf.MISSING)}"
    return Resolved(steps, "aiconfigurator", note, shape, card, dtype, kv_dtype)


def _from_profile(
    profile: Path, asked: Asked, dp: int, ep: int, source: Choice, host: float, pad: Sequence[int], strict: bool
) -> Resolved:
    kind = profile_kind(profile)
    if source not in ("auto", kind):
        raise BadProfile(f"{profile}: is {kind} where {source} was asked for")
    steps: StepTime
    if kind == "measured":
        from .bundle import load_tables, read_meta

        meta = read_meta(profile)
        made = _of_tables(meta, asked.tp)
        steps = load_tables(
            profile, tp=asked.tp, dp=dp, ep=ep, model=asked.shape, gpu=asked.card, host=host, pad=pad, strict=strict
        )
        device = meta.get("gpu") or meta.get("hardware")
        note = f"measured kernels in {profile} ({device}, vLLM {meta.get('vllm_version')})"
    elif kind == "aiconfigurator":
        from . import aiconf

        document = aiconf.read_document(profile)
        steps = aiconf.load_profile(profile, gpu=asked.card, host=host, pad=pad, strict=strict)
        made = _of_kernels(document, profile)
        note = f"NVIDIA's measured kernels ({profile}); not in it: {', '.join(aiconf.MISSING)}"
    else:
        from .fitted import load_fitted

        steps = load_fitted(profile, strict=strict)
        model = steps.profile.engine.model
        made = Made(model, _maybe_model(model), None, None, None, None, None)
        note = f"fitted to a live engine ({profile}, {steps.profile.date})"
    found = [f"{profile}: {text}" for text in differences(made, asked)]
    if found and strict:
        raise BadProfile("; ".join(found))
    return Resolved(
        steps,
        kind,
        note,
        asked.shape or made.shape,
        asked.card or made.card,
        asked.dtype if asked.dtype != "auto" else made.dtype,
        asked.kv_dtype if asked.kv_dtype != "auto" else made.kv_dtype or "auto",
        (*found, *(f"{profile}: {text}" for text in unconfirmed(made, asked))),
    )


def _of_tables(meta: Mapping[str, Any], tp: int) -> Made:
    engine = meta.get("engine_effective") or {}
    gpus = [str(meta[key]) for key in ("gpu", "hardware") if meta.get(key)]
    model = str(meta.get("model"))
    variant = _maybe_dtype(meta.get("variant"))
    kv = str(engine.get("kv_cache_dtype") or "auto")
    return Made(
        model,
        _maybe_model(model),
        gpus[0] if gpus else None,
        _maybe_gpu(meta.get("hardware"), meta.get("gpu")),
        variant,
        "auto" if kv == "auto" else _maybe_dtype(kv),
        tp,  # there is a folder for each
    )


def _of_kernels(document: dict[str, Any], path: Path) -> Made:
    from .aiconf import shape_of

    gpu, dtype = document.get("gpu"), _maybe_dtype(document.get("dtype"))
    kv = document.get("kv_dtype", "auto")
    return Made(
        str(document.get("model")),
        shape_of(document, path),
        str(gpu),
        _maybe_gpu(gpu),
        dtype,
        "auto" if kv == "auto" else _maybe_dtype(kv),
        int(document["engine"]["tp"]),
    )


def _maybe_dtype(name: object) -> str | None:
    try:
        return dtype_name(str(name))
    except ValueError:
        return None


def _maybe_model(name: str) -> ModelShape | None:
    """By its name alone: what a profile says is no path of this machine."""
    try:
        return find_named(name)
    except UnknownModel:
        return None


def _maybe_gpu(*names: object) -> Gpu | None:
    for name in names:
        try:
            return find_gpu(str(name))
        except UnknownGpu:
            continue
    return None


def profile_kind(profile: Path) -> Literal["measured", "aiconfigurator", "calibrated"]:
    """What a path holds, by its form: a folder with meta.yaml, a JSON, a YAML. Raises `BadProfile`."""
    if profile.is_dir():
        if (profile / "meta.yaml").exists():
            return "measured"
        inside = sorted(p.parent.name for p in profile.glob("*/meta.yaml"))
        hint = f"; it holds the profiles {', '.join(inside)[:200]}" if inside else ""
        raise BadProfile(f"{profile}: has no meta.yaml, so it is no folder of tables{hint}")
    if not profile.exists():
        raise BadProfile(f"{profile}: does not exist")
    if profile.suffix == ".json":
        return "aiconfigurator"
    if profile.suffix in (".yaml", ".yml"):
        if profile.name == "meta.yaml":
            return profile_kind(profile.parent)
        return "calibrated"
    raise BadProfile(f"{profile}: a profile is a folder of tables, a calibrated .yaml or a compiled .json")

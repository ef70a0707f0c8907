"""Where step times come from: an explicit profile, NVIDIA's measured kernels, or published numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from .catalogue import UnknownGpu, UnknownModel, find_gpu, find_model
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
    model: ModelShape
    gpu: Gpu | None
    """None where a profile was calibrated on hardware that is not in the catalogue."""


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

    What a profile says of itself need not be given; what is given must be in the catalogue. `host`: seconds added to
    each step (a calibrated profile has its own); `pad`: CUDA graph sizes (`tables.capture_sizes`), `()` for eager
    execution; a calibrated profile and a roofline know none. Raises `UnknownModel`, `UnknownGpu`, `BadProfile`,
    `FittedError`, `aiconf.MissingPackage`, `aiconf.Unavailable`, ValueError.
    """
    shape = find_model(model) if model is not None else None
    card = find_gpu(gpu) if gpu is not None else None
    if profile is not None:
        return _from_profile(profile, shape, card, tp, dp, ep, source, host, pad, strict)
    if source in ("measured", "calibrated"):
        raise BadProfile(f"step times that are {source} need the path of a profile")
    if shape is None:
        raise UnknownModel("a model must be named where no profile is given")
    if card is None:
        raise UnknownGpu("a GPU must be named where no profile is given")
    weights = shape.dtype if dtype == "auto" else dtype_name(dtype)
    cache = kv_dtype if kv_dtype == "auto" else dtype_name(kv_dtype)
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
    return Resolved(steps, "roofline", note, shape, card)


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
    return Resolved(steps, "aiconfigurator", note, shape, card)


def _from_profile(
    profile: Path,
    shape: ModelShape | None,
    card: Gpu | None,
    tp: int,
    dp: int,
    ep: int,
    source: Choice,
    host: float,
    pad: Sequence[int],
    strict: bool,
) -> Resolved:
    kind = profile_kind(profile)
    if source not in ("auto", kind):
        raise BadProfile(f"{profile}: is {kind} where {source} was asked for")
    if kind == "measured":
        from .bundle import load_tables, read_meta

        meta = read_meta(profile)
        steps = load_tables(profile, tp=tp, dp=dp, ep=ep, model=shape, gpu=card, host=host, pad=pad, strict=strict)
        device = meta.get("gpu") or meta.get("hardware")
        note = f"measured kernels in {profile} ({device}, vLLM {meta.get('vllm_version')})"
        model = shape or find_model(str(meta.get("model")))
        return Resolved(steps, kind, note, model, card or _maybe_gpu(meta.get("hardware"), meta.get("gpu")))
    if kind == "aiconfigurator":
        from . import aiconf

        document = aiconf.read_document(profile)
        steps = aiconf.load_profile(profile, gpu=card, host=host, pad=pad, strict=strict)
        note = f"NVIDIA's measured kernels ({profile}); not in it: {', '.join(aiconf.MISSING)}"
        model = aiconf.shape_of(document, profile)
        return Resolved(steps, kind, note, model, card or _maybe_gpu(document.get("gpu")))
    from .fitted import load_fitted

    fitted = load_fitted(profile, strict=strict)
    if shape is None:
        try:
            shape = find_model(fitted.profile.engine.model)
        except UnknownModel as e:
            raise UnknownModel(f"{profile}: engine.model: {e}; or name the model beside the profile") from e
    return Resolved(fitted, kind, f"fitted to a live engine ({profile})", shape, card)


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

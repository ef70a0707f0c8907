"""Reading a folder of measured tables (see `tables`) into a `StepTime`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from .catalogue import UnknownGpu, UnknownModel, find_gpu, find_model
from .comm import Ranks, logits_seconds, step_seconds
from .csvtable import BadProfile, read_curves, read_points
from .files import read
from .grids import at, cube, plane
from .shapes import Gpu, ModelShape
from .skew import load_skew
from .tables import CAPTURE_SIZES, Curve, Decode, MeasuredSteps, Mixed, Prefill

_ONCE = ("embedding", "final_layernorm")
_EACH: Final = MappingProxyType({"layernorm": 2, "qkv_proj": 1, "qk_norm": 1, "rotary_emb": 1, "o_proj": 1})
"""Layers of every block, and how often (LLMServingSim, profiler/models/*.yaml, `sequence`)."""
_MLP: Final = MappingProxyType({"gate_up_proj": 1, "act_fn": 1, "down_proj": 1})
_ATTENTION = ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode")
_US = 1e-6
_MAX_META = 1 << 20
"""Bytes of meta.yaml."""


def read_meta(folder: Path) -> dict[str, Any]:
    """meta.yaml of a folder of tables. Raises `BadProfile`."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    path = folder / "meta.yaml"
    try:
        meta = YAML(typ="safe", pure=True).load(read(path, _MAX_META))
    except OSError as e:
        raise BadProfile(f"{path}: cannot be read: {e.strerror or e}") from e
    except RecursionError:
        raise BadProfile(f"{path}: is nested too deeply") from None
    except (YAMLError, ValueError) as e:
        raise BadProfile(f"{path}: is not YAML: {' '.join(str(e).split())[:200]}") from e
    if not isinstance(meta, dict):
        raise BadProfile(f"{path}: holds {type(meta).__name__} where keys such as model and hardware are needed")
    for key in ("skew_fit", "engine_effective"):
        if not isinstance(meta.get(key) or {}, dict):
            raise BadProfile(f"{path}: {key} holds {type(meta[key]).__name__} where keys are needed")
    return meta


def _model(meta: Mapping[str, Any], path: Path, given: ModelShape | None) -> ModelShape:
    if given is not None:
        return given
    name = meta.get("model")
    if not isinstance(name, str):
        raise BadProfile(f"{path}: model is missing, and with it the number of layers")
    try:
        return find_model(name)
    except UnknownModel as e:
        raise BadProfile(f"{path}: model: {e}; the tables are of one layer, so its shape must be given") from e


def _link(meta: Mapping[str, Any], path: Path, gpu: Gpu | None) -> Gpu:
    if gpu is not None:
        return gpu
    for key in ("hardware", "gpu"):
        try:
            return find_gpu(str(meta.get(key)))
        except UnknownGpu:
            continue
    raise BadProfile(
        f"{path}: hardware {meta.get('hardware')!r} is not in the catalogue; more than one GPU needs its link's speed"
    )


def _experts(
    folder: Path, model: ModelShape, ranks: int, split: int, replicas: int, tokens: Sequence[float]
) -> list[float]:
    """Seconds of one expert layer at each count of tokens of one replica. Tokens choose experts uniformly: of e experts
    on a rank, e · (1 - (1 - k / E)^T) are touched by T tokens."""
    points = read_points(folder / "moe.csv", ("tokens", "activated_experts"), "time_us")
    rows: dict[float, dict[float, float]] = {}
    for (count, touched), value in points.items():
        rows.setdefault(count, {})[touched] = value * _US
    counts = sorted(rows)
    curves = {c: (sorted(rows[c]), [rows[c][t] for t in sorted(rows[c])]) for c in counts}
    seconds = []
    for t in tokens:
        together = t * replicas
        here = model.experts / ranks * (1 - (1 - model.experts_per_token / model.experts) ** together)
        # the table counts tokens that choose k experts on this rank; with R ranks one in R of the choices is here
        local = max(1.0, together / ranks)
        seconds.append(at(counts, [at(*curves[c], here) for c in counts], local) / split)
    return seconds


def load_tables(
    folder: Path,
    *,
    tp: int = 1,
    dp: int = 1,
    ep: int = 1,
    model: ModelShape | None = None,
    gpu: Gpu | None = None,
    host: float = 0.0,
    pad: Sequence[int] = CAPTURE_SIZES,
    skew: bool | None = None,
    strict: bool = False,
) -> MeasuredSteps:
    """Step times of one engine from GPU/MODEL with meta.yaml and tpN. Raises `BadProfile`.

    `tp`: GPUs of tensor parallelism, of which there is a folder; `dp`: replicas that share the experts; `ep`: ranks the
    experts are spread over (1: each expert is split over the `tp` ranks). `model`, `gpu`: in place of those that
    meta.yaml names. `host`: seconds added to each step. `pad`: CUDA graph sizes, `()` for eager execution. `skew`:
    whether skew_fit.csv is applied; None for what meta.yaml says.
    """
    if tp < 1 or dp < 1 or ep < 1:
        raise BadProfile(f"{folder}: tp, dp and ep must be 1 or more: {tp}, {dp}, {ep}")
    meta = read_meta(folder)
    meta_path = folder / "meta.yaml"
    here = folder / f"tp{tp}"
    if not here.is_dir():
        found = sorted(p.name for p in folder.glob("tp*") if p.is_dir())
        raise BadProfile(f"{folder}: has no tp{tp}; found {', '.join(found) or 'none'}")
    shape = _model(meta, meta_path, model)
    try:
        shape.check_tp(tp)
    except ValueError as e:
        raise BadProfile(f"{folder}: {e}") from None
    title = f"{meta.get('hardware', folder.parent.name)}/{shape.name.rpartition('/')[2]}/tp{tp}"

    dense = _dense(here, folder, shape, tp=tp, dp=dp, ep=ep)
    sequences = _curve_sum(here / "per_sequence.csv", "sequences", {"lm_head": 1, "sampler": 1}, required=("lm_head",))
    if tp * dp > 1:
        card = _link(meta, meta_path, gpu)
        ranks = Ranks(tp, dp, ep)
        dense = Curve(dense.axis, [v + step_seconds(shape, card, ranks, t) for t, v in zip(*dense, strict=True)])
        summed = [v + logits_seconds(shape, card, tp, s) for s, v in zip(*sequences, strict=True)]
        sequences = Curve(sequences.axis, summed)

    prefill, decode, mixed = _attention(here / "attention.csv", shape.layers)
    fitted = (meta.get("skew_fit") or {}).get("enabled", False) if skew is None else skew
    return MeasuredSteps(
        title,
        dense=dense,
        sequences=sequences,
        prefill=prefill,
        decode=decode,
        mixed=mixed,
        skew=load_skew(here / "skew_fit.csv", meta, meta_path, tp) if fitted else None,
        pad=pad,
        host=host,
        strict=strict,
    )


def _curve_sum(path: Path, x: str, times: Mapping[str, int], *, required: Sequence[str]) -> Curve:
    """The sum of the curves in a file, each as often as `times` says, at every point that one of them has."""
    curves = read_curves(path, "layer", x, "time_us")
    for name in required:
        if name not in curves:
            raise BadProfile(f"{path}: layer {name} is missing; found {', '.join(sorted(curves))}")
    for name in curves:
        if name not in times:
            raise BadProfile(f"{path}: layer {name} is unknown; known are {', '.join(times)}")
    axis = sorted({p for curve in curves.values() for p, _ in curve})
    values = [0.0] * len(axis)
    for name, curve in curves.items():
        points, heights = [p for p, _ in curve], [v for _, v in curve]
        for i, p in enumerate(axis):
            values[i] += times[name] * _US * at(points, heights, p)
    return Curve(axis, values)


def _dense(here: Path, folder: Path, shape: ModelShape, *, tp: int, dp: int, ep: int) -> Curve:
    """Seconds of all that acts on single tokens, experts included, by tokens."""
    plain = shape.layers - shape.moe_layers
    times = dict.fromkeys(_ONCE, 1)
    times |= {name: often * shape.layers for name, often in _EACH.items()}
    times |= {name: often * plain for name, often in _MLP.items()}
    needed = ["embedding", "layernorm", "qkv_proj", "o_proj", "final_layernorm", *(_MLP if plain else ())]
    curve = _curve_sum(here / "dense.csv", "tokens", times, required=needed)
    if not shape.moe:
        return curve
    at_tp = here if (here / "moe.csv").exists() else folder / "tp1"
    split = 1 if ep > 1 else tp
    experts = _experts(at_tp, shape, ep, split, dp, curve.axis)
    return Curve(curve.axis, [v + shape.moe_layers * e for v, e in zip(curve.values, experts, strict=True)])


def _attention(path: Path, layers: int) -> tuple[Prefill, Decode, Mixed | None]:
    points = {p: v * layers * _US for p, v in read_points(path, _ATTENTION, "time_us").items()}
    alone = {(p[0], p[1]): v for p, v in points.items() if p[0] > 0 and p[2] == 0}
    decodes = {(p[2], p[3]): v for p, v in points.items() if p[0] == 0 and p[2] > 0}
    both = {p: v for p, v in points.items() if p[0] > 0 and p[2] > 0}
    if not alone or not decodes:
        what = "prefill alone (n_decode 0)" if not alone else "decode alone (prefill_chunk 0)"
        raise BadProfile(f"{path}: has no line of {what}")
    return Prefill(*plane(alone)), Decode(*plane(decodes)), Mixed(*cube(both)) if both else None

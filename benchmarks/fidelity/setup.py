"""The engine of a recorded run, as its meta.json describes it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.common import BenchError
from benchmarks.fidelity.runs import Run, whole
from forebay.hardware.bundle import read_meta
from forebay.hardware.catalogue import UnknownGpu, UnknownModel, find_gpu, find_model, kv_capacity_tokens
from forebay.hardware.csvtable import BadProfile
from forebay.hardware.shapes import Gpu, ModelShape, dtype_name
from forebay.sim.settings import EngineSettings

_CACHE = "resolved_config.cache_config"
_SCHEDULER = "resolved_config.scheduler_config"
_PARALLEL = "resolved_config.parallel_config"
_MODEL = "resolved_config.model_config"
_COMPILE = "resolved_config.compilation_config"


@dataclass(frozen=True, slots=True)
class Setup:
    settings: EngineSettings
    """Of one engine (one data-parallel rank)."""
    model: str
    gpu: str
    """As the tables' folder, or the catalogue, calls it."""
    tp: int
    dp: int
    ep: int
    dtype: str
    kv_dtype: str
    pad: tuple[int, ...]
    """CUDA graph sizes."""
    lockstep: bool
    """Its ranks step together: they share experts."""
    notes: tuple[str, ...]
    """What meta.json does not say, and what was taken in its place."""


def plain(name: str) -> str:
    return "".join(c for c in name.lower() if c.isalnum())


def gpu_name(run: Run, profiles: Path | None) -> str:
    """The GPU of a run: meta.json's hardware.device_name, else the folder that it lies in is named for it (as
    RTX4090-Llama-3.1-8B, or RTX4090/Llama-3.1-8B/vllm). The name is that of a folder of tables where one fits. Raises
    BenchError."""
    folders = [] if profiles is None or not profiles.is_dir() else sorted(p.name for p in profiles.iterdir())
    hardware = run.meta.get("hardware")
    device = hardware.get("device_name") if isinstance(hardware, dict) else None
    if isinstance(device, str):
        fits = [f for f in folders if plain(f) in plain(device)]
        return max(fits, key=len) if fits else device
    for part in (p.name for p in (run.folder, *run.folder.parents[:2])):
        fits = [f for f in folders if plain(part).startswith(plain(f))]
        if fits:
            return max(fits, key=len)
        words = part.split("-")
        for end in range(len(words), 0, -1):
            try:
                return find_gpu("-".join(words[:end])).name
            except UnknownGpu:
                continue
    raise BenchError(
        f"{run.folder / 'meta.json'}: hardware.device_name is missing, and no folder on the way to it is named for a "
        f"GPU; name the run's folder GPU-MODEL, as RTX4090-Llama-3.1-8B is"
    )


def tables_folder(run: Run, profiles: Path, gpu: str) -> Path:
    """The folder of tables of the run's GPU and model: PROFILES/GPU/…/meta.yaml whose model is the run's. Raises
    BenchError with what there is."""
    root = profiles / gpu
    if not root.is_dir():
        there = (
            ", ".join(sorted(p.name for p in profiles.iterdir() if p.is_dir())) if profiles.is_dir() else "no folder"
        )
        raise BenchError(f"{profiles}: has no tables of {gpu}; found {there}")
    wanted = str(run.meta["model"])
    dtype, kv_dtype = _dtypes(run)
    variant = dtype if kv_dtype == "auto" else f"{dtype}-kv{kv_dtype}"
    found: list[tuple[bool, bool, Path, str]] = []
    for path in sorted(root.rglob("meta.yaml")):
        try:
            meta = read_meta(path.parent)
        except BadProfile as e:
            raise BenchError(str(e)) from e
        model = str(meta.get("model"))
        found.append((model != wanted, meta.get("variant") != variant, path.parent, model))
    short = plain(wanted.rpartition("/")[2])
    fits = [row for row in found if plain(row[3].rpartition("/")[2]) == short]
    if not fits:
        there = ", ".join(sorted({model for *_, model in found})) or "none"
        raise BenchError(f"{root}: has no tables of {wanted}; found {there}")
    return min(fits)[2]


def _dtypes(run: Run) -> tuple[str, str]:
    """Of the weights, as the model is published where the run does not say, and of the KV cache ("auto": the same)."""
    shape = _shape(run)
    given = str(run.option("dtype", _MODEL) or "auto")
    kv_dtype = str(run.option("cache_dtype", _CACHE) or run.option("kv_cache_dtype") or "auto")
    try:
        dtype = dtype_name(given) if given != "auto" else shape.dtype if shape else "bf16"
        return dtype, kv_dtype if kv_dtype == "auto" else dtype_name(kv_dtype)
    except ValueError as e:
        raise BenchError(f"{run.folder / 'meta.json'}: {e}") from e


def _shape(run: Run) -> ModelShape | None:
    try:
        return find_model(str(run.meta["model"]))
    except UnknownModel:
        return None


def _capture_sizes(run: Run, max_num_seqs: int) -> tuple[int, ...]:
    """vLLM's cudagraph_capture_sizes; its default rule (vllm/config/vllm.py, `_set_cudagraph_sizes`) where the run does
    not say."""
    if run.option("enforce_eager", _MODEL):
        return ()
    sizes = run.option("cudagraph_capture_sizes", _COMPILE)
    if isinstance(sizes, Sequence) and not isinstance(sizes, str) and all(isinstance(s, int) for s in sizes):
        return tuple(sizes)
    most = min(max_num_seqs * 2, 512)
    return tuple(s for s in (1, 2, 4, *range(8, 256, 8), *range(256, most + 1, 16)) if s <= most)


def describe(run: Run, gpu: str) -> Setup:
    """Raises BenchError for what no engine could be."""
    where = str(run.folder / "meta.json")
    notes = []

    def number(name: str, default: int, *sections: str) -> int:
        value = run.option(name, *sections)
        return default if value is None else whole(value, name, where)

    shape = _shape(run)
    tp = number("tensor_parallel_size", 1, _PARALLEL)
    dp = number("data_parallel_size", 1, _PARALLEL)
    spread = bool(run.option("enable_expert_parallel", _PARALLEL))
    experts = shape is not None and shape.moe
    ep = tp * dp if spread and experts else 1
    seqs = number("max_num_seqs", 256, _SCHEDULER)
    budget = number("max_num_batched_tokens", 2048, _SCHEDULER)
    size = number("block_size", 16, "kv_cache", _CACHE)
    dtype, kv_dtype = _dtypes(run)
    blocks = run.option("num_gpu_blocks", "kv_cache", _CACHE)
    if blocks is None:
        utilisation = run.option("gpu_memory_utilization", "kv_cache", _CACHE) or 0.9
        blocks = _blocks(run, gpu, shape, tp, ep, dtype, kv_dtype, float(utilisation), seqs, budget, size)
        notes.append(f"KV blocks are not recorded: {blocks:,} by forebay.hardware.catalogue.kv_capacity_tokens")
    if run.meta.get("resolved_config") is None:
        notes.append("resolved_config is not recorded: vLLM's defaults stand for what engine_kwargs leaves out")
    longest = max(r.prompt_tokens + r.output_tokens for r in run.requests)
    context = number("max_model_len", max(shape.max_context if shape else 0, longest), _MODEL)

    def flag(name: str, *sections: str) -> bool:
        value = run.option(name, *sections)
        return True if value is None else bool(value)

    threshold = run.option("long_prefill_token_threshold", _SCHEDULER) or 0
    try:
        settings = EngineSettings(
            num_blocks=whole(blocks, "num_gpu_blocks", where),
            block_size=size,
            max_num_seqs=seqs,
            max_num_batched_tokens=budget,
            max_model_len=context,
            long_prefill_token_threshold=whole(threshold, "long_prefill_token_threshold", where, least=0),
            enable_prefix_caching=flag("enable_prefix_caching", "kv_cache", _CACHE),
            reserve_full_isl=flag("scheduler_reserve_full_isl", _SCHEDULER),
            async_scheduling=flag("async_scheduling", _SCHEDULER),
        )
    except ValueError as e:
        raise BenchError(f"{where}: {e}") from e
    pad = _capture_sizes(run, seqs)
    lockstep = dp > 1 and experts
    return Setup(settings, str(run.meta["model"]), gpu, tp, dp, ep, dtype, kv_dtype, pad, lockstep, tuple(notes))


def _blocks(
    run: Run,
    gpu: str,
    shape: ModelShape | None,
    tp: int,
    ep: int,
    dtype: str,
    kv_dtype: str,
    utilisation: float,
    seqs: int,
    budget: int,
    size: int,
) -> int:
    where = run.folder / "meta.json"
    card = _card(gpu)
    if card is None or shape is None:
        what = f"GPU {gpu}" if card is None else f"model {run.meta['model']}"
        raise BenchError(
            f"{where}: kv_cache.num_gpu_blocks is missing, and {what} is not in the catalogue to derive it"
        )
    try:
        tokens = kv_capacity_tokens(
            shape,
            card,
            tp=tp,
            ep=ep,
            dtype=dtype,
            kv_dtype=kv_dtype,
            utilisation=utilisation,
            max_num_batched_tokens=budget,
            max_num_seqs=seqs,
            block_size=size,
        )
    except ValueError as e:
        raise BenchError(f"{where}: kv_cache.num_gpu_blocks is missing, and it cannot be derived: {e}") from e
    return tokens // size


def _card(gpu: str) -> Gpu | None:
    try:
        return find_gpu(gpu)
    except UnknownGpu:
        return None


def step_options(setup: Setup) -> dict[str, Any]:
    """What every source of step times is asked with."""
    return {"tp": setup.tp, "dp": setup.dp if setup.lockstep else 1, "ep": setup.ep}

"""From the options of `forebay tune` to what is searched. What is wrong with one is said with its name."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Final

from forebay.errors import shown
from forebay.plan.simulate import PLACEMENTS, Setup
from forebay.plan.simulate_hardware import GPU, MODEL, Wanted
from forebay.plan.tune.launch import read_vllm
from forebay.plan.tune.result import MOST_SEEDS
from forebay.plan.tune.search import Wish
from forebay.plan.tune.space import Setting, TuneError, parse_axes, why_not
from forebay.plan.tune.trial import Problem
from forebay.sim.results import Slo
from forebay.sim.workloads import WorkloadError, open_workload

LATENCIES: Final = ("e2e", "ttft", "tpot")
SLO_TTFT: Final = 1.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The options. None: not given."""

    workload: str | None = None
    model: str | None = None
    gpu: str | None = None
    gpus: int | None = None
    profile: str | None = None
    slo_ttft: float | None = None
    slo_ttft_per_1k: float | None = None
    slo_tpot: float | None = None
    attainment: float = 0.95
    tries: tuple[str, ...] = ()
    current: str | None = None
    replicas: int | None = None
    compare: bool = False
    preset: str | None = None
    split: bool = True
    acceptance: float | None = None
    draft_model: str | None = None
    draft_seconds: float = 0.0
    host: float = 0.0
    placement: str = "least_requests"
    latency: str = "e2e"
    price: float | None = None
    speed: float = 1.0
    settings: int = 240
    requests: int = 1_000
    seeds: int = 4
    seed: int = 0
    strict: bool = False
    jobs: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """Options that stand where none are given."""

    workload: str
    options: Mapping[str, Any]


PRESETS: Final[Mapping[str, Preset]] = MappingProxyType(
    {
        "classic": Preset(
            workload=(
                "poisson:rate=4,requests=20000,tenants=8,system=1200,prompt=lognormal(300;0.9;4000),"
                "output=lognormal(250;0.7;1500)"
            ),
            options=MappingProxyType(
                {
                    "current": (
                        "vllm serve Qwen/Qwen2.5-72B-Instruct --tensor-parallel-size 4 --gpu-memory-utilization 0.90 "
                        "--max-model-len 8192 --enable-prefix-caching"
                    ),
                    "gpu": "a100_sxm",
                    "gpus": 4,
                    "slo_ttft": 2.0,
                    "slo_tpot": 0.1,
                    "tries": ("max_num_seqs=1,64,128,256", "enable_prefix_caching=true,false"),
                    "compare": True,
                }
            ),
        )
    }
)
"""classic: chats with a system prompt a tenant, on four A100: max_num_seqs 1, 64, 128, 256, with prefix caching and
without."""


def wish_of(asked: Asked) -> Wish:
    """Raises TuneError."""
    asked = _with_preset(asked)
    if asked.workload is None:
        raise TuneError("a workload is needed: a trace file, or KIND:key=value,… such as poisson:rate=5,requests=10000")
    _check(asked)
    given = parse_axes(asked.tries)
    model, today = asked.model, dict[str, Any]()
    if asked.current is not None:
        try:
            named, today = read_vllm(asked.current)
        except ValueError as e:
            raise TuneError(f"--current: {e}") from None
        model = model or named
    base = Setup(
        workload=asked.workload,
        speed=asked.speed,
        seed=asked.seed,
        placement=asked.placement,
        hardware=Wanted(
            gpu=asked.gpu or (None if asked.profile else GPU),
            model=model or (None if asked.profile else MODEL),
            profile=asked.profile,
            strict=asked.strict,
            host=asked.host,
        ),
        slo=Slo(
            SLO_TTFT if asked.slo_ttft is None else asked.slo_ttft,
            asked.slo_ttft_per_1k or 0.0,
            math.inf if asked.slo_tpot is None else asked.slo_tpot,
        ),
    )
    windows = _is_trace(base)
    problem = Problem(
        base=base,
        attainment=asked.attainment,
        acceptance=asked.acceptance or 0.0,
        draft_seconds=asked.draft_seconds,
        price=asked.price,
        windows=windows,
    )
    gpus = asked.gpus or today.get("tp", 1 if asked.profile else 8)
    if asked.profile is not None:  # what it was measured with holds for it alone
        given.setdefault("tp", (int(today.get("tp", 1)),))
        given.setdefault("gpu_memory_utilization", (Wanted().gpu_memory_utilization,))
    if asked.compare:
        for name, value in today.items():
            given.setdefault(name, (value,))
        for name, value in _USUAL.items():
            given.setdefault(name, value)
    wish = Wish(
        problem=problem,
        gpus=gpus,
        given=given,
        settings=asked.settings,
        requests=asked.requests,
        seeds=asked.seeds,
        split=asked.split and not asked.compare and asked.profile is None,
        current=None,
        latency=asked.latency,
        jobs=asked.jobs,
        compare=asked.compare,
    )
    if asked.current is not None and not asked.compare:
        wish = replace(wish, current=_current(asked, today, gpus))
    return wish


_USUAL: Final[Mapping[str, tuple[Any, ...]]] = MappingProxyType(
    {
        name: (getattr(Setting(), name),)
        for name in (
            "max_num_seqs", "max_num_batched_tokens", "gpu_memory_utilization", "enable_prefix_caching",
            "enable_chunked_prefill", "speculative_tokens",
        )
    }
)  # fmt: skip
"""What a comparison takes of a field that nobody named."""


def _with_preset(asked: Asked) -> Asked:
    if asked.preset is None:
        return asked
    if (preset := PRESETS.get(asked.preset)) is None:
        raise TuneError(f"--preset: there is no '{shown(asked.preset, 80)}'; known are {', '.join(PRESETS)}")
    fresh = Asked()
    missing = {name: value for name, value in preset.options.items() if getattr(asked, name) == getattr(fresh, name)}
    return replace(asked, workload=asked.workload or preset.workload, **missing)


def _check(asked: Asked) -> None:
    def need(option: str, value: float | None, least: float, most: float = math.inf, *, over: bool = False) -> None:
        if value is None:
            return
        if not (least < value if over else least <= value) or not value <= most:
            what = "more than" if over else "at least"
            upper = f" and at most {most:,g}" if most < math.inf else ""
            raise TuneError(f"{option} must be {what} {least:g}{upper}, not {value:g}")

    need("--slo-ttft", asked.slo_ttft, 0, 1e6, over=True)
    need("--slo-ttft-per-1k", asked.slo_ttft_per_1k, 0, 1e6)
    need("--slo-tpot", asked.slo_tpot, 0, 1e6, over=True)
    need("--attainment", asked.attainment, 0, 1, over=True)
    need("--gpus", asked.gpus, 1, 1024)
    need("--replicas", asked.replicas, 1, 1024)
    need("--acceptance", asked.acceptance, 0, 1)
    need("--draft-seconds", asked.draft_seconds, 0, 10)
    need("--host", asked.host, 0, 10)
    need("--price", asked.price, 0, 1e6)
    need("--speed", asked.speed, 1e-6, 1e6)
    need("--settings", asked.settings, 1, 5_000)
    need("--requests", asked.requests, 50, 1_000_000)
    need("--seeds", asked.seeds, 1, MOST_SEEDS)
    need("--jobs", asked.jobs, 1, 256)
    for option, value, known in (("--latency", asked.latency, LATENCIES), ("--placement", asked.placement, PLACEMENTS)):
        if value not in known:
            raise TuneError(f"{option} must be one of {', '.join(known)}, not '{shown(value, 80)}'")
    if asked.replicas is not None and asked.current is None:
        raise TuneError("--replicas says how many engines --current starts, which is not given")


def _current(asked: Asked, today: Mapping[str, Any], gpus: int) -> Setting:
    """As the command says it, vLLM's defaults for what it does not say."""
    tp = int(today.get("tp", 1))
    if tp > gpus:
        raise TuneError(f"--current: tp {tp} is more than the {gpus} GPUs of --gpus")
    fields: dict[str, Any] = {"tp": tp, "engines": asked.replicas or today.get("engines") or gpus // tp} | {
        name: value for name, value in today.items() if name not in ("tp", "engines")
    }
    setting = Setting(**fields)
    if setting.gpus > gpus:
        raise TuneError(f"--current: {setting.engines} engines of tp {tp} are more than the {gpus} GPUs of --gpus")
    if (why := why_not(setting)) is not None:
        raise TuneError(f"--current: {why}")
    return setting


def _is_trace(base: Setup) -> bool:
    """Whether another seed gives the same requests."""
    try:
        first, second = (
            [ask for ask, _ in zip(open_workload(base.workload, seed=base.seed + k), range(20), strict=False)]
            for k in (0, 1)
        )
    except WorkloadError as e:
        raise TuneError(str(e)) from None
    return first == second

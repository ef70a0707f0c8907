"""The command line of `forebay engine`: vLLM's flags under vLLM's names where it has them, SGLang's, and ours."""

from __future__ import annotations

import argparse
import json
import sys
from argparse import BooleanOptionalAction
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from forebay.errors import shown
from forebay.hardware.steptime import StepTime
from forebay.sim.faces.kinds import KINDS
from forebay.sim.faults import INSTANT, BadFault, parse
from forebay.sim.rates import RateStepTime
from forebay.sim.serving import Role, Settings
from forebay.sim.settings import EngineSettings

NEVER: Final = 86_400.0
MODEL_LEN: Final = 8192
KV_TOKENS: Final = 262_144
SPEEDS: Final = (1e-6, 1e6)
BATCHED_TOKENS: Final = 2048
_RATES: Final = ("prefill_rate", "decode_rate", "batch_slowdown")


@dataclass(frozen=True, slots=True)
class Options:
    """The command line, unchecked. None: not given."""

    kind: str = "vllm"
    host: str = "127.0.0.1"
    port: int = 8100
    unix: str | None = None
    fd: int | None = None
    parent_fd: int | None = None
    model: list[str] | None = None
    seed: int = 0
    api_key: str | None = field(default=None, repr=False)
    keep_alive: float = 5.0
    speed: float = 1.0
    enable_prompt_tokens_details: bool = False
    metrics: bool = True
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    max_num_queued_reqs: int | None = None
    max_num_queued_tokens: int | None = None
    long_prefill_token_threshold: int = 0
    scheduling_policy: str = "priority"
    enable_priority_scheduling: bool = False
    schedule_low_priority_values_first: bool = False
    async_scheduling: bool = True
    scheduler_reserve_full_isl: bool = True
    watermark: float = 0.0
    kv_tokens: int | None = None
    block_size: int | None = None
    num_gpu_blocks_override: int | None = None
    enable_prefix_caching: bool = True
    preemption_mode: str = "recompute"
    swap_blocks: int = 0
    swap_seconds_per_block: float = 0.0
    spec_tokens: int = 0
    spec_acceptance: float = 0.0
    spec_draft_seconds: float = 0.0
    kv_events: str | None = None
    kv_events_shape: str = "map"
    kv_transfer_config: str | None = None
    kv_transfer_rate: float = 400_000.0
    kv_transfer_latency: float = 0.001
    disaggregation_mode: str = "null"
    disaggregation_bootstrap_port: int | None = None
    disaggregation_timeout: float = 300.0
    prefill_rate: float | None = None
    decode_rate: float | None = None
    batch_slowdown: float | None = None
    gpu: str | None = None
    model_shape: str | None = None
    profile: str | None = None
    tp: int = 1
    gpu_memory_utilization: float = 0.9
    fault: list[str] = field(default_factory=list)
    allow_fault_header: bool = False


def parser() -> argparse.ArgumentParser:
    default = Options()
    out = argparse.ArgumentParser(prog="forebay engine", description="An emulated engine.")
    group = out.add_argument_group("where")

    def add(name: str, kind: type, metavar: str | None = None, text: str | None = None, **more: Any) -> None:
        what = getattr(default, name.replace("-", "_"))
        group.add_argument(f"--{name}", type=kind, default=what, metavar=metavar, help=text, **more)

    def flag(name: str, text: str) -> None:
        what = getattr(default, name.replace("-", "_"))
        group.add_argument(f"--{name}", action=BooleanOptionalAction, default=what, help=text)

    add("kind", str, text="whose API, metrics and errors (default vllm)", choices=tuple(KINDS))
    add("host", str)
    add("port", int, text="0: any free port")
    add("unix", str, "PATH", "listen on a Unix socket instead")
    add("fd", int, "N", "serve this inherited listening socket instead")
    add("parent-fd", int, "N", "leave when this descriptor reaches end of file")

    def add_flag(name: str, text: str) -> None:
        group.add_argument(f"--{name}", action="store_true", help=text)

    group = out.add_argument_group("what")
    group.add_argument("--model", action="append", metavar="NAME", help="served model; repeatable")
    add("max-model-len", int, "TOKENS", "prompt and answer; default 8192, or what the KV cache holds")
    add("seed", int)
    add("api-key", str, "KEY", "ask for it on /v1")
    add("keep-alive", float, "SECONDS", "idle connections (vLLM: 5)")
    add("speed", float, "FACTOR", "so many times as fast as real time")
    flag("enable-prompt-tokens-details", "cached_tokens in usage (SGLang: --enable-cache-report)")
    flag("metrics", "the metrics pages that SGLang, TensorRT-LLM and llama.cpp have only when told to")
    group = out.add_argument_group("scheduler")
    add("max-num-seqs", int, "N", "sequences that run at once; default 256, llamacpp 4, ollama 1")
    add("max-num-batched-tokens", int, "TOKENS", "of a step; default 2048, or max-num-seqs where that is more")
    add("max-num-queued-reqs", int, "N", "running and waiting (sglang, ollama: waiting); over it the engine refuses")
    add("max-num-queued-tokens", int, "TOKENS", "of prompts not prefilled; over it 503")
    add("long-prefill-token-threshold", int, "TOKENS", "the most of one prompt in a step; 0: no limit")
    add("scheduling-policy", str, text="priority: lowest number first (vLLM: fcfs)", choices=("fcfs", "priority"))
    add_flag("enable-priority-scheduling", "sglang: obey priority, the highest number first")
    add_flag("schedule-low-priority-values-first", "sglang: the lowest number first")
    flag("async-scheduling", "a step is put together while the one before it runs")
    flag("scheduler-reserve-full-isl", "admit a prompt only where all of it fits")
    add("watermark", float, "SHARE", "of the KV blocks, kept free on admission")
    add("spec-tokens", int, "N", "draft tokens a step")
    add("spec-acceptance", float, "SHARE", "chance that a draft token is accepted")
    add("spec-draft-seconds", float, "SECONDS", "of drafting for a step")
    group = out.add_argument_group("KV cache")
    add("kv-tokens", int, "TOKENS", "default 262144, or what fits on the GPU")
    add("block-size", int, "TOKENS", "default 16, trtllm 32")
    add("num-gpu-blocks-override", int, "N", "instead of --kv-tokens")
    flag("enable-prefix-caching", "find the blocks of equal prompts again")
    add("preemption-mode", str, text="swap: to CPU memory (older engines)", choices=("recompute", "swap"))
    add("swap-blocks", int, "N", "of CPU memory")
    add("swap-seconds-per-block", float, "SECONDS")
    add("kv-events", str, "ENDPOINT", "vllm: publish KV cache events there, tcp://*:5557 say; needs pyzmq")
    add("kv-events-shape", str, text="array: as vLLM published them earlier", choices=("map", "array"))
    add("kv-transfer-config", str, "JSON", "vLLM's, of the NixlConnector; with it kv_transfer_params are obeyed")
    add("disaggregation-mode", str, text="sglang: half of a pair", choices=("null", "prefill", "decode"))
    add("disaggregation-bootstrap-port", int, "PORT", "where decode engines ask; default: the port itself")
    add("disaggregation-timeout", float, "SECONDS", "that one half waits for the other")
    add("kv-transfer-rate", float, "TOKENS/S", "KV that a decode engine fetches")
    add("kv-transfer-latency", float, "SECONDS", "of each transfer")
    group = out.add_argument_group("step time: rates, or a GPU")
    add("prefill-rate", float, "TOKENS/S", "default 8000")
    add("decode-rate", float, "TOKENS/S", "of each sequence, alone; default 50")
    add("batch-slowdown", float, "FRACTION", "per other sequence; default 0")
    add("gpu", str, "NAME")
    add("model-shape", str, "NAME", "a model of the catalogue, or a config.json")
    add("profile", str, "PATH", "measured tables, a calibrated YAML or a compiled JSON")
    add("tp", int, "N", "GPUs, tensor parallel")
    add("gpu-memory-utilization", float, "SHARE", "of its memory, for the KV cache's size")
    group = out.add_argument_group("faults")
    group.add_argument("--fault", action="append", default=[], metavar="KIND[=ARG][@SHARE]", help="repeatable")
    group.add_argument("--allow-fault-header", action="store_true", help="obey x-forebay-fault in a request")
    return out


def settings_of(args: Options) -> Settings:
    """Raises ValueError that names the option."""
    try:
        faults = tuple(parse(text) for text in args.fault)
    except BadFault as e:
        raise BadFault(f"--fault: {e}") from None
    for fault in faults:
        if fault.kind in INSTANT:
            word = fault.kind.value
            raise BadFault(f"--fault: '{word}' happens when it is set, so it is set over HTTP: PUT /control/faults")
    args = _complete(args)
    for name in ("max_num_seqs", "block_size", "num_gpu_blocks_override", "kv_tokens", "tp"):
        value = getattr(args, name)
        if value is not None and not value > 0:
            raise ValueError(f"{_option(name)} must be greater than 0, not {value}")
    if not SPEEDS[0] <= args.speed <= SPEEDS[1]:
        raise ValueError(f"--speed must be from {SPEEDS[0]:g} to {SPEEDS[1]:,.0f}, not {args.speed:g}")
    if not 0 < args.keep_alive <= NEVER:
        raise ValueError(f"--keep-alive must be over 0 and at most {NEVER:g} seconds, not {args.keep_alive:g}")
    if not 0 <= args.port <= 65_535:
        raise ValueError(f"--port must be 0 to 65535, not {args.port}")
    if not args.disaggregation_timeout > 0:
        raise ValueError(f"--disaggregation-timeout must be greater than 0, not {args.disaggregation_timeout:g}")
    models = tuple(args.model or Settings().models)
    if not all(models) or len(set(models)) != len(models):
        raise ValueError(f"--model must be given a different name each time, not {', '.join(map(repr, models))}")
    batched = args.max_num_batched_tokens
    if batched is None:
        batched = max(BATCHED_TOKENS, (args.max_num_seqs or 1) * (1 + max(0, args.spec_tokens)))
    steps, room = _steps(args, batched)
    engine = _engine(args, batched, room)
    most = engine.max_model_len - 1
    return Settings(
        kind=args.kind,
        models=models,
        max_model_len=most,
        seed=args.seed,
        engine=engine,
        steps=steps,
        speed=args.speed,
        prompt_tokens_details=args.enable_prompt_tokens_details,
        kv_transfer=args.kv_transfer_config is not None,
        kv_events=args.kv_events,
        kv_events_shape="array" if args.kv_events_shape == "array" else "map",
        queue_limit=args.max_num_queued_reqs if KINDS[args.kind].limits_queue else None,
        metrics=args.metrics,
        low_first=args.schedule_low_priority_values_first,
        role=_ROLES[args.disaggregation_mode],
        bootstrap_port=args.disaggregation_bootstrap_port,
        bootstrap_timeout=args.disaggregation_timeout,
        api_key=args.api_key,
        allow_fault_header=args.allow_fault_header,
        faults=faults,
    )


_ROLES: Final[Mapping[str, Role]] = MappingProxyType({"null": "null", "prefill": "prefill", "decode": "decode"})
_OF_SGLANG: Final = (
    "enable_priority_scheduling",
    "schedule_low_priority_values_first",
    "disaggregation_bootstrap_port",
)


def _complete(args: Options) -> Options:
    """With the kind's own defaults. Raises ValueError for what that kind of engine does not have."""
    if args.kind not in KINDS:
        raise ValueError(f"--kind must be one of {', '.join(KINDS)}, not {args.kind!r}")
    if args.disaggregation_mode not in _ROLES:
        raise ValueError(f"--disaggregation-mode must be one of {', '.join(_ROLES)}, not {args.disaggregation_mode!r}")
    face = KINDS[args.kind]
    given = [name for name in _OF_SGLANG if getattr(args, name)]
    given += ["disaggregation_mode"] if args.disaggregation_mode != "null" else []
    if args.kind != "sglang" and given:
        raise ValueError(f"{_option(given[0])} is of --kind sglang, not {args.kind}")
    for name in ("kv_transfer_config", "kv_events"):
        if args.kind != "vllm" and getattr(args, name) is not None:
            raise ValueError(f"{_option(name)} is of --kind vllm, not {args.kind}")
    if args.kv_events_shape not in ("map", "array"):
        raise ValueError(f"--kv-events-shape must be map or array, not {args.kv_events_shape!r}")
    if args.kv_events is not None and find_spec("zmq") is None:
        raise ValueError("--kv-events needs pyzmq: pip install 'forebay[kv-events]'")
    if not face.can_limit and args.max_num_queued_reqs is not None:
        raise ValueError(f"--max-num-queued-reqs: {args.kind} queues without a limit")
    policy = args.scheduling_policy
    if args.kind == "sglang":
        policy = "priority" if args.enable_priority_scheduling else "fcfs"
    elif args.kind not in ("vllm", "trtllm"):
        policy = "fcfs"
    defaults = face.defaults
    return replace(
        args,
        scheduling_policy=policy,
        max_num_seqs=args.max_num_seqs if args.max_num_seqs is not None else defaults.max_num_seqs,
        block_size=args.block_size if args.block_size is not None else defaults.block_size,
        max_num_queued_reqs=(
            args.max_num_queued_reqs if args.max_num_queued_reqs is not None else defaults.queue_limit
        ),
    )


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


_FIELDS: Final = MappingProxyType(
    {
        "num_blocks": "num_gpu_blocks_override",
        "policy": "scheduling_policy",
        "preemption": "preemption_mode",
        "speculative_tokens": "spec_tokens",
        "acceptance": "spec_acceptance",
        "draft_seconds": "spec_draft_seconds",
        "transfer_latency": "kv_transfer_latency",
    }
)
"""EngineSettings' fields that have another name on the command line."""


def _engine(args: Options, batched: int, room: int) -> EngineSettings:
    """`room`: tokens of KV cache where none are given. Raises ValueError that names the option."""
    assert args.block_size is not None and args.max_num_seqs is not None
    blocks = args.num_gpu_blocks_override or max(1, (args.kv_tokens or room) // args.block_size)
    kv_tokens = blocks * args.block_size
    length = min(MODEL_LEN, kv_tokens) if args.max_model_len is None else args.max_model_len
    if length < 1:
        raise ValueError(f"--max-model-len must be at least 1, not {length}")
    if length > kv_tokens:
        raise ValueError(f"--max-model-len {length} is more than the KV cache holds, {kv_tokens} tokens")
    if not args.kv_transfer_rate > 0:
        raise ValueError(f"--kv-transfer-rate must be greater than 0, not {args.kv_transfer_rate}")
    for name, allowed in (("scheduling_policy", ("fcfs", "priority")), ("preemption_mode", ("recompute", "swap"))):
        if getattr(args, name) not in allowed:
            raise ValueError(f"{_option(name)} must be {' or '.join(allowed)}, not {getattr(args, name)!r}")
    try:
        return EngineSettings(
            num_blocks=blocks,
            block_size=args.block_size,
            max_num_seqs=args.max_num_seqs,
            max_num_batched_tokens=batched,
            max_model_len=length + 1,  # the server holds requests to the length; an embedding may fill it
            long_prefill_token_threshold=args.long_prefill_token_threshold,
            enable_prefix_caching=args.enable_prefix_caching,
            reserve_full_isl=args.scheduler_reserve_full_isl,
            watermark=args.watermark,
            policy="priority" if args.scheduling_policy == "priority" else "fcfs",
            async_scheduling=args.async_scheduling,
            max_num_queued_reqs=None if KINDS[args.kind].limits_queue else args.max_num_queued_reqs,
            max_num_queued_tokens=args.max_num_queued_tokens,
            preemption="swap" if args.preemption_mode == "swap" else "recompute",
            swap_blocks=args.swap_blocks,
            swap_seconds_per_block=args.swap_seconds_per_block,
            speculative_tokens=args.spec_tokens,
            acceptance=args.spec_acceptance,
            draft_seconds=args.spec_draft_seconds,
            transfer_seconds_per_token=1 / args.kv_transfer_rate,
            transfer_latency=args.kv_transfer_latency,
            lease_seconds=_lease(args.kv_transfer_config),
        )
    except ValueError as e:
        name, space, rest = str(e).partition(" ")
        raise ValueError(f"{_option(_FIELDS.get(name, name))}{space}{rest}") from None


def _lease(config: str | None) -> float:
    """Raises ValueError for what is no `--kv-transfer-config` of vLLM's NixlConnector."""
    if config is None:
        return 30.0
    try:
        data = json.loads(config)
    except (ValueError, RecursionError) as e:
        raise ValueError(f"kv_transfer_config must be JSON: {e}") from None
    if not isinstance(data, dict) or data.get("kv_connector") != "NixlConnector":
        raise ValueError('kv_transfer_config must be an object with "kv_connector": "NixlConnector"')
    extra = data.get("kv_connector_extra_config") or {}
    lease = extra.get("kv_lease_duration", 30) if isinstance(extra, dict) else None
    if isinstance(lease, bool) or not isinstance(lease, (int, float)):
        raise ValueError(f"kv_transfer_config: kv_lease_duration must be a number of seconds, not {lease!r}")
    return float(lease)


def _steps(args: Options, batched: int) -> tuple[StepTime, int]:
    """The step times, and how many tokens of KV cache there are where none are given. Raises ValueError that names the
    option."""
    assert args.block_size is not None and args.max_num_seqs is not None
    rates = {name: getattr(args, name) for name in _RATES if getattr(args, name) is not None}
    if args.gpu is None and args.profile is None:
        if args.model_shape is not None:
            raise ValueError("--model-shape needs a --gpu or a --profile")
        try:
            return RateStepTime(**rates), KV_TOKENS
        except ValueError as e:
            name, _, rest = str(e).partition(" ")
            raise ValueError(f"{_option(name)} {rest}") from None
    if rates:
        raise ValueError(
            f"{_option(next(iter(rates)))} does not go with --gpu or --profile, which say how long steps take"
        )
    from forebay.hardware.catalogue import kv_capacity_tokens
    from forebay.hardware.fitted import FittedError, FittedStepTime
    from forebay.hardware.profiles import resolve

    try:
        found = resolve(
            args.gpu, args.model_shape, tp=args.tp, profile=Path(args.profile) if args.profile is not None else None
        )
        for note in found.notes:
            print(f"forebay engine: note: {shown(note, 400)}", file=sys.stderr)  # noqa: T201
        if args.kv_tokens or args.num_gpu_blocks_override:
            return found.step_time, KV_TOKENS
        if isinstance(found.step_time, FittedStepTime) and found.step_time.profile.engine.kv_tokens:
            return found.step_time, found.step_time.profile.engine.kv_tokens
        if found.gpu is None or found.model is None:
            raise ValueError("the profile does not say how large the KV cache is: give --kv-tokens")
        room = kv_capacity_tokens(
            found.model,
            found.gpu,
            tp=args.tp,
            dtype=found.dtype,
            kv_dtype=found.kv_dtype,
            utilisation=args.gpu_memory_utilization,
            max_num_batched_tokens=batched,
            max_num_seqs=args.max_num_seqs,
            block_size=args.block_size,
        )
    except (FittedError, ImportError, LookupError, OSError, ValueError) as e:
        where = "--profile" if args.profile is not None else "--gpu"
        # str() of a LookupError may quote its message.
        raise ValueError(f"{where}: {shown(e.args[0] if len(e.args) == 1 else e, 400)}") from None
    return found.step_time, room

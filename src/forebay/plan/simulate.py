"""One simulation from its settings to its JSON result, and several laid side by side.

A result holds no time of day and nothing random: equal settings give equal bytes.
"""

from __future__ import annotations

import itertools
import types
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from math import inf, isfinite
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Literal, Union, get_args, get_origin, get_type_hints

import forebay
from forebay.config.models import Class
from forebay.errors import shown
from forebay.hardware.profiles import resolve
from forebay.hardware.steptime import OutOfProfile, StepTime
from forebay.plan.simulate_hardware import GPU, MODEL, Hardware, HardwareError, Resolve, Wanted, find_hardware
from forebay.policy.disaggregation import SplitRules
from forebay.policy.placement import RoundRobin
from forebay.policy.prior import PrefillPrior
from forebay.policy.rules import Rules
from forebay.sim.admitted import Admitted, facts_of
from forebay.sim.cluster import Cluster, LeastRequests, Monitor, PassThrough, Policy
from forebay.sim.disaggregated import Disaggregated
from forebay.sim.engine import EngineModel
from forebay.sim.jobs import Listener
from forebay.sim.results import Slo
from forebay.sim.settings import EngineSettings
from forebay.sim.workload import Ask
from forebay.sim.workloads import Tally, Workload, WorkloadError, open_workload
from forebay.sim.workloads.transforms import SPEEDS, Limited, Sped

FORMAT: Final = 1
"""Of the JSON result; goes up when a key changes its meaning or goes."""
POLICIES: Final = ("none", "admission", "disaggregation")
PLACEMENTS: Final = ("round_robin", "least_requests", "best")
LOOKS_EVERY: Final = 1.0
"""Seconds between two looks at an engine of `best`: the gateway's default (placement.report_interval)."""
MOST_RUNS: Final = 64
"""Side by side."""
MOST_ENGINES: Final = 100_000
MOST_SECONDS: Final = 1e6
"""Of anything that an engine waits for."""


class SimulateError(Exception):
    """Settings or a workload that cannot be simulated, in one sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What one run is made of."""

    workload: str
    """A path or a specification."""
    name: str = ""
    speed: float = 1.0
    """How many times as fast the workload arrives."""
    limit: int | None = None
    seed: int = 0
    engines: int = 1
    decode_engines: int = 0
    """Where there are some, the engines prefill and these decode."""
    decode_tp: int | None = None
    """GPUs of each of these; None: as many as of those that prefill."""
    hardware: Wanted = field(default_factory=Wanted)
    policy: str = "none"
    placement: str = "round_robin"
    engine: Mapping[str, Any] = field(default_factory=dict)
    """Fields of `EngineSettings` that were given."""
    slo: Slo = field(default_factory=Slo)
    patience: float = inf
    duration: float = inf
    rows: str | None = None
    """A CSV file to write with a line a request."""


@dataclass(frozen=True, slots=True)
class Ready:
    """A setup whose every part was found."""

    workload: Workload
    steps: StepTime
    hardware: Hardware
    """Its price is the mean of all engines."""
    settings: EngineSettings
    decode: tuple[StepTime, EngineSettings] | None = None
    """Of decode engines that are not as the others."""


def prepare(setup: Setup, *, scan: bool = False, look_up: Resolve = resolve) -> Ready:
    """Find and check all that a run needs, without running it. `scan`: look how large trace files are. `look_up`: finds
    step times, as `profiles.resolve` does; one that remembers them saves many runs on the same hardware the loading.
    Raises SimulateError."""
    _check(setup)
    try:
        workload = open_workload(setup.workload, seed=setup.seed, scan=scan)
        source = workload.source
        if setup.speed != 1.0:
            source = Sped(source, setup.speed)
        if setup.limit is not None:
            source = Limited(source, most=setup.limit)
        hardware = find_hardware(setup.hardware, setup.engine, look_up)
        fetching = {} if setup.decode_engines == 0 else {"transfer_seconds_per_token": _transfer(setup, hardware)}
        settings = EngineSettings(**dict(hardware.engine) | fetching | dict(setup.engine))
        decode = None
        if setup.decode_engines and setup.decode_tp not in (None, setup.hardware.tp):
            other = find_hardware(replace(setup.hardware, tp=setup.decode_tp), setup.engine, look_up)
            decode = other.steps, EngineSettings(**dict(other.engine) | fetching | dict(setup.engine))
            hardware = replace(hardware, price=_mean_price(setup, hardware, other))
    except (WorkloadError, HardwareError) as e:
        raise SimulateError(str(e)) from None
    except ValueError as e:
        raise SimulateError(shown(_of_profile(setup, hardware, str(e)), 400)) from None
    return Ready(Workload(workload.name, source), hardware.steps, hardware, settings, decode)


def _mean_price(setup: Setup, prefill: Hardware, decode: Hardware) -> float | None:
    if prefill.price is None or decode.price is None:
        return None
    whole = prefill.price * setup.engines + decode.price * setup.decode_engines
    return whole / (setup.engines + setup.decode_engines)


def _of_profile(setup: Setup, hardware: Hardware, problem: str) -> str:
    """With the profile's path, where the field at the problem's begin comes from it."""
    name = problem.partition(" ")[0]
    profile = setup.hardware.profile
    return f"{profile}: {problem}" if profile and name in hardware.engine and name not in setup.engine else problem


def _transfer(setup: Setup, hardware: Hardware) -> float:
    if hardware.transfer_seconds_per_token is not None:
        return hardware.transfer_seconds_per_token
    if (given := setup.engine.get("transfer_seconds_per_token")) is None:
        raise SimulateError(
            "a calibrated profile does not say how large KV is; give --vary transfer_seconds_per_token=X"
        )
    return float(given)


def _check(setup: Setup) -> None:
    def need(option: str, value: float, least: float, most: float = inf) -> None:
        if not least <= value <= most:
            upper = f" and at most {most:,.0f}" if most < inf else ""
            raise SimulateError(f"{option} must be at least {least:g}{upper}, not {value:g}")

    need("engines", setup.engines, 1, MOST_ENGINES)
    need("tp", setup.hardware.tp, 1)
    need("decode_engines", setup.decode_engines, 0, MOST_ENGINES)
    if setup.decode_tp is not None:
        need("decode_tp", setup.decode_tp, 1)
        if not setup.decode_engines:
            raise SimulateError("decode_tp is of decode engines; give --vary decode_engines=N")
    need("host", setup.hardware.host, 0, 10)
    need("host_prefill", setup.hardware.host_prefill, 0, 10)
    need("kv_bandwidth", setup.hardware.kv_bandwidth, 1, 1e15)
    need("speed", setup.speed, *SPEEDS)
    if not 0 < (share := setup.hardware.gpu_memory_utilization) <= 1:
        raise SimulateError(f"gpu_memory_utilization must be more than 0 and at most 1, not {share:g}")
    for option, value in (("patience", setup.patience), ("duration", setup.duration)):
        if not value > 0:
            raise SimulateError(f"{option} must be more than 0, not {value:g}")
    for name, given in setup.engine.items():
        if isinstance(given, float) and given > MOST_SECONDS:
            raise SimulateError(f"{name} must be at most {MOST_SECONDS:,.0f}, not {given:g}")
    if setup.limit is not None:
        need("limit", setup.limit, 1)
    if setup.policy == "admission" and setup.decode_engines:
        raise SimulateError("policy admission does not know prefill and decode engines apart; leave decode_engines out")
    if setup.policy == "none" and setup.placement == "best" and setup.decode_engines:
        raise SimulateError("placement best does not know prefill and decode engines apart; leave decode_engines out")
    if setup.policy == "disaggregation" and not setup.decode_engines:
        raise SimulateError("policy disaggregation is for prefill and decode engines; give --vary decode_engines=N")
    slo = setup.slo
    for option, value in (("slo-ttft", slo.ttft), ("slo-ttft-per-1k", slo.per_1k), ("slo-tpot", slo.tpot)):
        if not value >= 0 or (option != "slo-tpot" and not isfinite(value)):
            raise SimulateError(f"{option} must be a number of seconds, at least 0, not {value:g}")
    for option, chosen, promises in (("policy", setup.policy, "admission"), ("placement", setup.placement, "best")):
        if chosen == promises and not slo.ttft > 0:
            raise SimulateError(f"slo-ttft must be more than 0 for {option} {promises}, which promises it")
    for option, chosen, known in (("policy", setup.policy, POLICIES), ("placement", setup.placement, PLACEMENTS)):
        if chosen not in known:
            raise SimulateError(f"there is no {option} '{shown(chosen)}'; known are {', '.join(known)}")


def simulate(setup: Setup, monitor: Monitor = lambda now, arrived, ended: False) -> dict[str, Any]:
    """Run it; returns its entry in `runs` of the result. Raises SimulateError, also for what the workload or a strict
    profile turns up on the way."""
    from forebay.plan.simulate_result import entry, write_rows

    ready = prepare(setup)
    tally = Tally()
    cluster = run(setup, ready, ready.workload.asks(tally), monitor)
    if setup.rows is not None:
        try:
            write_rows(cluster.record.requests, Path(setup.rows))
        except OSError as e:
            raise SimulateError(f"{e.filename}: cannot be written: {e.strerror}") from None
    return entry(setup.name, _settings(setup, ready), ready.hardware, cluster, setup.slo, tally.notes())


def run(
    setup: Setup, ready: Ready, asks: Iterable[Ask], monitor: Monitor = lambda now, arrived, ended: False
) -> Cluster:
    """The engines of `setup` after `asks`. Raises SimulateError."""
    decode_steps, decode_settings = ready.decode or (ready.steps, ready.settings)
    roles = {
        "both": (ready.steps, replace(ready.settings, role="both")),
        "prefill": (ready.steps, replace(ready.settings, role="prefill")),
        "decode": (decode_steps, replace(decode_settings, role="decode")),
    }
    each, per_token = ready.hardware.delay

    def make(listener: Listener, i: int) -> EngineModel:
        role = "both" if not setup.decode_engines else "prefill" if i < setup.engines else "decode"
        steps, settings = roles[role]
        return EngineModel(settings, steps, listener, name=i)

    engines = setup.engines + setup.decode_engines
    policy = _policy(setup, ready)
    cluster = Cluster(
        make,
        engines,
        policy,
        max_model_len=ready.settings.max_model_len,
        patience=setup.patience,
        until=setup.duration,
        interval=max(1.0, engines / 200),
        decoders=setup.decode_engines,
        splitter=policy if isinstance(policy, Disaggregated) else None,
        delay=(lambda prompt: each + prompt * per_token) if each or per_token else None,
        monitor=monitor,
    )
    try:
        cluster.run(asks)
    except WorkloadError as e:
        raise SimulateError(str(e)) from None
    except OutOfProfile as e:
        raise SimulateError(f"{setup.name or 'the profile'}: {e}") from None
    return cluster


def document(setups: Sequence[Setup], runs: Sequence[dict[str, Any]], *, interrupted: bool = False) -> dict[str, Any]:
    """The JSON result of runs of one workload."""
    first = setups[0]
    return {
        "forebay": forebay.__version__,
        "kind": "simulation",
        "format": FORMAT,
        "interrupted": interrupted,
        "workload": {"name": first.workload, "seed": first.seed, "speed": first.speed, "limit": first.limit},
        "slo": {
            "ttft_s": first.slo.ttft,
            "per_1k_s": first.slo.per_1k,
            "tpot_s": first.slo.tpot if isfinite(first.slo.tpot) else None,
        },
        "runs": list(runs),
    }


def _policy(setup: Setup, ready: Ready) -> Policy:
    if setup.policy == "admission":
        slo, facts = setup.slo, facts_of(ready.settings, ready.steps)
        return Admitted(Rules(ttft=dict.fromkeys(Class, slo.ttft), tpot=slo.tpot), [facts] * setup.engines)
    if setup.policy == "disaggregation":
        settings = ready.settings
        split = SplitRules(latency=settings.transfer_latency, per_token=settings.transfer_seconds_per_token)
        prior = PrefillPrior.of(ready.steps, settings.max_num_batched_tokens)
        return Disaggregated(split, setup.engines, setup.decode_engines, prior)
    if setup.placement == "best":
        rules = Rules(ttft=dict.fromkeys(Class, setup.slo.ttft), gated=False)
        facts = facts_of(ready.settings, ready.steps)
        return Admitted(rules, [facts] * setup.engines, report_every=LOOKS_EVERY)
    if setup.placement == "least_requests":
        return LeastRequests(setup.engines)
    return PassThrough(RoundRobin(), setup.engines)


def _settings(setup: Setup, ready: Ready) -> dict[str, Any]:
    """All of them, in the order of the report."""
    hardware = ready.hardware
    return {
        "engines": setup.engines,
        "decode_engines": setup.decode_engines,
        "decode_tp": setup.decode_tp,
        "gpu": hardware.gpu,
        "model": hardware.model,
        "tp": setup.hardware.tp,
        "dtype": setup.hardware.dtype,
        "kv_dtype": setup.hardware.kv_dtype,
        "profile": setup.hardware.profile,
        "host": setup.hardware.host,
        "host_prefill": setup.hardware.host_prefill,
        "enforce_eager": setup.hardware.enforce_eager,
        "kv_bandwidth": setup.hardware.kv_bandwidth,
        "gpu_memory_utilization": setup.hardware.gpu_memory_utilization,
        "strict": setup.hardware.strict,
        "policy": setup.policy,
        "placement": setup.placement,
        "speed": setup.speed,
        "seed": setup.seed,
        "patience": setup.patience if isfinite(setup.patience) else None,
        "duration": setup.duration if isfinite(setup.duration) else None,
        **{name: getattr(ready.settings, key) for name, key in _ENGINE.items()},
        "batch_wait": None if ready.settings.batching == "continuous" else ready.settings.wait_for_batch,
    }


# --- variations ------------------------------------------------------------------------------------------------------

_OF_SETUP: Final = ("engines", "decode_engines", "decode_tp", "policy", "placement", "speed", "seed", "patience")
_OF_HARDWARE: Final = tuple(f.name for f in fields(Wanted) if f.name != "strict")
_PLAIN: Final = frozenset({"gpu", "model", "placement", "batching", "preemption", "profile", "dtype"})
"""Their values say by themselves what they are."""
_OVER: Final = ("model", "gpu", "dtype", "kv_dtype")
"""Of `Wanted`, what a profile says by itself; given beside one, it is a part of the run's name."""
_ALIASES: Final = MappingProxyType({"num_gpu_blocks": "num_blocks", "tensor_parallel_size": "tp"})
_ENGINE: Final = MappingProxyType(
    {"scheduling_policy" if f.name == "policy" else f.name: f.name for f in fields(EngineSettings) if f.name != "role"}
)
"""Names of the engine's fields here. Its `policy` is not the gateway's (vLLM: --scheduling-policy); its role follows
from decode_engines."""


def variable() -> list[str]:
    """Names of what may differ between runs."""
    return [*_OF_SETUP, *_OF_HARDWARE, *_ENGINE]


def canonical(name: str) -> str:
    """A field's name here, of how it was typed."""
    plain = name.strip().replace("-", "_")
    return _ALIASES.get(plain, plain)


def set_field(setup: Setup, name: str, text: str) -> Setup:
    """`setup` with a field of its own or of its engines set to what was typed. Raises SimulateError."""
    name = canonical(name)
    if name in _OF_SETUP:
        return replace(setup, **{name: _typed(name, text, get_type_hints(Setup)[name])})
    if name in _OF_HARDWARE:
        value = _typed(name, text, get_type_hints(Wanted)[name])
        return replace(setup, hardware=replace(setup.hardware, **{name: value}))
    if name not in _ENGINE:
        from difflib import get_close_matches

        near = get_close_matches(name, variable(), n=3, cutoff=0.5)
        advice = f"the nearest are {', '.join(near)}" if near else f"known are {', '.join(variable())}"
        raise SimulateError(f"there is no field '{shown(name)}' to vary; {advice}")
    key = _ENGINE[name]
    value = _typed(name, text, get_type_hints(EngineSettings)[key])
    return replace(setup, engine={**setup.engine, key: value})


def expand(base: Setup, varied: Mapping[str, Sequence[str]]) -> list[Setup]:
    """A setup for each combination of values, named for what differs. Raises SimulateError."""
    for name, values in varied.items():
        if not values or any(not value for value in values):
            raise SimulateError(f"{name} has an empty value among '{shown(','.join(values))}'")
        if len(set(values)) < len(values):
            raise SimulateError(f"{name} has a value twice in '{shown(','.join(values))}'")
    count = 1
    for values in varied.values():
        count *= len(values)
    if count > MOST_RUNS:
        raise SimulateError(f"that would be {count:,} runs side by side; at most {MOST_RUNS} are drawn")
    found = []
    for combination in itertools.product(*varied.values()):
        setup, parts = base, []
        for name, value in zip(varied, combination, strict=True):
            setup = set_field(setup, name, value)
            if len(varied[name]) > 1:
                parts.append(value if name in _PLAIN else f"{name} {value}")
        found.append(replace(setup, name=", ".join(parts) or _name(setup)))
    return found


def _name(setup: Setup) -> str:
    hardware = setup.hardware
    if hardware.profile is not None:
        over = [f"{name} {getattr(hardware, name)}" for name in _OVER if getattr(hardware, name) not in (None, "auto")]
        over += [f"tp {hardware.tp}"] if hardware.tp > 1 else []
        return ", ".join([f"{setup.engines} × {'/'.join(Path(hardware.profile).parts[-2:])}", *over])
    gpu = hardware.gpu or GPU
    gpus = f"{hardware.tp} × {gpu}" if hardware.tp > 1 else gpu
    return f"{setup.engines} × {hardware.model or MODEL} on {gpus}"


def _typed(name: str, text: str, hint: Any) -> Any:
    """What was typed as a value of the field's type."""
    kinds = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    if type(None) in kinds and text.lower() == "none":
        return None
    kind = next(k for k in kinds if k is not type(None))
    if get_origin(kind) is Literal:
        if text not in get_args(kind):
            raise SimulateError(f"{name} must be one of {', '.join(get_args(kind))}, not '{shown(text)}'")
        return text
    if kind is bool:
        if text.lower() not in ("true", "false"):
            raise SimulateError(f"{name} must be true or false, not '{shown(text)}'")
        return text.lower() == "true"
    try:
        return kind(text)
    except ValueError:
        what = "a whole number" if kind is int else "a number"
        raise SimulateError(f"{name} must be {what}, not '{shown(text)}'") from None

"""`forebay simulate`: a workload against modelled engines, in simulated time."""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

if TYPE_CHECKING:
    from forebay.plan.simulate import Setup
    from forebay.plan.simulate_pool import State


def command(
    context: typer.Context,
    workload: Annotated[
        str,
        typer.Argument(
            metavar="WORKLOAD", help="A trace file, or KIND:key=value,… such as poisson:rate=5,duration=600."
        ),
    ],
    engines: Annotated[int, typer.Option(metavar="N", help="How many engines.")] = 1,
    gpu: Annotated[
        str | None, typer.Option(metavar="NAME", help="Of the catalogue. [default: the profile's, or h100_sxm]")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Of the catalogue, or the path of a config.json. [default: the profile's, or llama-3.1-8b]",
        ),
    ] = None,
    tp: Annotated[int, typer.Option(metavar="N", help="GPUs of an engine (tensor parallelism).")] = 1,
    dtype: Annotated[str, typer.Option(metavar="NAME", help="Of the weights: bf16, fp8, int4, …")] = "auto",
    kv_dtype: Annotated[str, typer.Option(metavar="NAME", help="Of the KV cache.")] = "auto",
    profile: Annotated[
        str | None,
        typer.Option(metavar="PATH", help="Step times: a folder of measured tables, or what calibrate wrote."),
    ] = None,
    policy: Annotated[
        str,
        typer.Option(
            metavar="NAME[,…]",
            help="none: pass every request on at once; admission: keep promises; disaggregation: split by request.",
        ),
    ] = "none",
    placement: Annotated[
        str, typer.Option(metavar="NAME[,…]", help="round_robin, least_requests or best: the gateway's own.")
    ] = "round_robin",
    batching: Annotated[
        str | None, typer.Option(metavar="NAME[,…]", help="continuous, dynamic or static. [default: continuous]")
    ] = None,
    max_num_seqs: Annotated[int | None, typer.Option(metavar="N", help="Sequences that run at once.")] = None,
    max_num_batched_tokens: Annotated[int | None, typer.Option(metavar="N", help="Tokens of a step.")] = None,
    max_model_len: Annotated[
        int | None, typer.Option(metavar="N", help="Tokens of prompt and answer. [default: the model's]")
    ] = None,
    num_gpu_blocks: Annotated[
        int | None, typer.Option(metavar="N", help="KV blocks of an engine. [default: what fits]")
    ] = None,
    vary: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FIELD=A[,B,…]",
            help="A run for each value of a field of the run or its engines; repeatable.",
        ),
    ] = None,
    speed: Annotated[float, typer.Option(metavar="X", help="The workload arrives X times as fast.")] = 1.0,
    limit: Annotated[int | None, typer.Option(metavar="N", help="The first N requests only.")] = None,
    duration: Annotated[float | None, typer.Option(metavar="SECONDS", help="Stop at this simulated time.")] = None,
    patience: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="Clients leave who have no first token by then.")
    ] = None,
    slo_ttft: Annotated[float, typer.Option(metavar="SECONDS", help="Goodput: TTFT is at most this …")] = 1.5,
    slo_ttft_per_1k: Annotated[
        float, typer.Option("--slo-ttft-per-1k", metavar="SECONDS", help="… and this for each 1,000 prompt tokens …")
    ] = 0.0,
    slo_tpot: Annotated[float | None, typer.Option(metavar="SECONDS", help="… and TPOT at most this.")] = None,
    seed: Annotated[int, typer.Option(help="Other draws of a made-up workload.")] = 0,
    strict: Annotated[bool, typer.Option("--strict", help="Refuse what the profile does not cover.")] = False,
    out: Annotated[
        str | None, typer.Option(metavar="DIR", help="Write result.json, report.html and requests-N.csv there.")
    ] = None,
    json_file: Annotated[
        str | None, typer.Option("--json", metavar="FILE", help="Write the result; -: to standard output.")
    ] = None,
    html_file: Annotated[str | None, typer.Option("--html", metavar="FILE", help="Write the report.")] = None,
    jobs: Annotated[int | None, typer.Option(metavar="N", help="Runs at once. [default: the machine's cores]")] = None,
) -> None:
    """Simulate a workload on modelled engines, and compare settings.

    Prints a summary and writes one self-contained HTML report. Several policies, kinds of batching or --vary values are
    runs laid side by side in it. Without --out, --json or --html the report goes to forebay-simulation.html. Equal
    settings give an equal JSON result, byte for byte.

    Exits with 0; 2 where the workload or a setting cannot be used, or a result cannot be written; 130 interrupted,
    after a report of what was done.
    """
    from forebay.plan.simulate import Setup, SimulateError, document, expand, prepare
    from forebay.plan.simulate_files import Outputs
    from forebay.plan.simulate_hardware import Wanted
    from forebay.plan.simulate_pool import Pool
    from forebay.sim.results import Slo

    try:
        given = {
            "max_num_seqs": max_num_seqs,
            "max_num_batched_tokens": max_num_batched_tokens,
            "max_model_len": max_model_len,
            "num_blocks": num_gpu_blocks,
        }
        base = Setup(
            workload=workload,
            speed=speed,
            limit=limit,
            seed=seed,
            engines=engines,
            hardware=Wanted(
                gpu=gpu, model=model, tp=tp, dtype=dtype, kv_dtype=kv_dtype, profile=profile, strict=strict
            ),
            engine={name: value for name, value in given.items() if value is not None},
            slo=Slo(slo_ttft, slo_ttft_per_1k, math.inf if slo_tpot is None else slo_tpot),
            patience=math.inf if patience is None else patience,
            duration=math.inf if duration is None else duration,
        )
        lists = {"policy": policy, "placement": placement, "batching": batching}
        varied = {name: text.split(",") for name, text in lists.items() if text is not None}
        setups = expand(base, varied | _varied(vary or (), _given(context)))
        if jobs is not None and jobs < 1:
            raise SimulateError(f"--jobs must be at least 1, not {jobs}")
        files = Outputs(out, json_file, html_file, len(setups), _read(workload, setups))
        setups = files.rows(setups)
        sizes = [_size(prepare(setup, scan=True)) for setup in setups]
        pool = Pool(setups, jobs or os.cpu_count() or 1)
        with ExitStack() as stack:
            if sys.stderr is not None and sys.stderr.isatty():
                pool.show = _progress(stack, sizes)
            pool.run()
    except (SimulateError, OSError) as e:
        _complain(e)
        raise typer.Exit(2) from None
    done = [state for state in pool.states if state.result is not None]
    if not done:
        raise typer.Exit(130)
    written: list[Path] = []
    result = document(
        [state.setup for state in done], [s.result for s in done if s.result], interrupted=pool.interrupted
    )
    failed = False
    try:
        for path in files.write(result):
            written.append(path)  # noqa: PERF402 - those before the one that fails
    except BrokenPipeError:
        raise
    except OSError as e:
        failed = True
        _complain(e)
    failed |= not _said(result, done, written, sys.stderr if json_file == "-" else sys.stdout)
    if failed:
        raise typer.Exit(2)
    if pool.interrupted:
        missing = len(pool.states) - len(done)
        also = f"; {missing} of {len(pool.states)} runs had not begun" if missing else ""
        print(f"forebay simulate: interrupted, the numbers cover what was simulated by then{also}", file=sys.stderr)
        raise typer.Exit(130)


def _given(context: typer.Context) -> dict[str, str]:
    """Fields that an option set, and the option."""
    from forebay.plan.simulate import canonical, variable

    known = variable()
    found = {}
    for parameter in context.command.params:
        name = parameter.name or ""
        if canonical(name) in known and getattr(context.get_parameter_source(name), "name", "") == "COMMANDLINE":
            found[canonical(name)] = parameter.opts[0]
    return found


def _varied(vary: Sequence[str], given: Mapping[str, str]) -> dict[str, list[str]]:
    """--vary as fields and their values. Raises SimulateError for what is none, or sets a field that is set already."""
    from forebay.plan.simulate import SimulateError, canonical

    varied: dict[str, list[str]] = {}
    for text in vary:
        name, equals, values = text.partition("=")
        name = name.strip().replace("-", "_")
        if not equals or not name:
            raise SimulateError(f"--vary must be FIELD=A[,B,…], not '{text[:80]}'")
        if canonical(name) in map(canonical, varied):
            raise SimulateError(f"--vary names {name} twice")
        if canonical(name) in given:
            raise SimulateError(f"{given[canonical(name)]} and --vary {name} set the same; give one of them")
        varied[name] = [value.strip() for value in values.split(",")]
    return varied


def _read(workload: str, setups: Sequence[Setup]) -> list[str]:
    """Files and folders that are read."""
    from forebay.sim.workloads.spec import inputs

    models = {setup.hardware.model for setup in setups} - {None}
    profiles = {setup.hardware.profile for setup in setups} - {None}
    files = [*inputs(workload), *(f"{name}{end}" for name in models for end in ("", "/config.json"))]
    return [name for name in files if "\0" not in name and Path(name).is_file()] + [str(name) for name in profiles]


def _complain(error: Exception) -> None:
    from forebay.errors import shown

    said = str(error)
    if isinstance(error, OSError) and error.filename:
        said = f"{error.filename}: {error.strerror}"
    if sys.stderr is not None:
        print(f"forebay simulate: {shown(said, 2000)}", file=sys.stderr)


def _said(result: dict[str, Any], done: Sequence[State], written: Sequence[Path], stream: TextIO | None) -> bool:
    """Whether the summary was taken, by whoever wants one."""
    from forebay.plan.written import silence

    if stream is None:
        return True
    try:
        _say(result, done, written, stream)
        stream.flush()
    except BrokenPipeError:
        raise
    except OSError as e:
        silence(stream)
        _complain(OSError(e.errno, e.strerror, "standard output"))
        return False
    return True


def _size(ready: Any) -> tuple[float | None, int | None]:
    """The workload's seconds and requests, where they are known."""
    return ready.workload.duration, ready.workload.requests


def _say(result: dict[str, Any], done: Sequence[State], written: Sequence[Path], stream: Any) -> None:
    from rich.console import Console

    from forebay.errors import shown
    from forebay.plan.report import print_summary

    console = Console(file=stream, width=None if stream.isatty() else 120)
    print_summary(result, console)
    for state in done:
        wall = max(state.seconds, 1e-9)
        console.print(
            f"{shown(state.setup.name, 400)}: {_span(state.now)} in {wall:.1f} s ({state.now / wall:,.0f} × real time)",
            markup=False,
            highlight=False,
            style="dim",
        )
    for path in written:
        console.print(f"written: {shown(path, 4096)}", markup=False, highlight=False, soft_wrap=True)


def _span(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.1f} s simulated"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02} simulated"


def _progress(stack: ExitStack, sizes: Sequence[tuple[float | None, int | None]]) -> Callable[[Sequence[State]], None]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    from forebay.errors import shown

    bar = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        TextColumn("{task.percentage:>3.0f}%"),
        TextColumn("{task.fields[what]}", markup=False),
        console=Console(stderr=True),
        transient=True,
        auto_refresh=False,
    )
    stack.enter_context(bar)
    tasks: list[Any] = []

    def show(states: Sequence[State]) -> None:
        if not tasks:
            tasks.extend(bar.add_task(shown(state.setup.name, 40), total=1.0, what="waits") for state in states)
        for task, state, (seconds, requests) in zip(tasks, states, sizes, strict=True):
            if state.began is None:
                continue
            wall = state.seconds or time.monotonic() - state.began
            done = _done(state, seconds, requests)
            left = f", {wall * (1 - done) / done:,.0f} s left" if 0.01 < done < 1 else ""
            what = f"{_span(state.now)}, {state.now / wall:,.0f} ×, {state.ended:,} done{left}"
            bar.update(task, completed=done, what=what)
        bar.refresh()

    return show


def _done(state: State, seconds: float | None, requests: int | None) -> float:
    """How much of a run is done, 0 to 1."""
    if state.result is not None:
        return 1.0
    found = 0.0
    limit = min(seconds or math.inf, state.setup.duration)
    if limit < math.inf:
        found = state.now / limit
    elif requests:
        found = state.ended / requests
    return min(found, 0.99)

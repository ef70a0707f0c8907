"""`forebay simulate`: a workload against modelled engines, in simulated time."""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

if TYPE_CHECKING:
    from forebay.plan.simulate import Setup
    from forebay.plan.simulate_pool import State

REPORT: Final = "forebay-simulation.html"
"""Where the report goes if nothing else is said."""
LISTS: Final = ("policy", "placement", "batching")
"""Options that take several values."""


def command(
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
        str, typer.Option(metavar="NAME[,…]", help="none: pass every request on at once; admission: keep promises.")
    ] = "none",
    placement: Annotated[str, typer.Option(metavar="NAME[,…]", help="round_robin or least_requests.")] = "round_robin",
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
        Path | None, typer.Option(metavar="DIR", help="Write result.json, report.html and requests-N.csv there.")
    ] = None,
    json_file: Annotated[
        str | None, typer.Option("--json", metavar="FILE", help="Write the result; -: to standard output.")
    ] = None,
    html_file: Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Write the report.")] = None,
    jobs: Annotated[int | None, typer.Option(metavar="N", help="Runs at once. [default: the machine's cores]")] = None,
) -> None:
    """Simulate a workload on modelled engines, and compare settings.

    Prints a summary and writes one self-contained HTML report. Several policies, kinds of batching or --vary values are
    runs laid side by side in it. Without --out, --json or --html the report goes to forebay-simulation.html. Equal
    settings give an equal JSON result, byte for byte.

    Exits with 0; 2 where the workload or a setting cannot be used; 130 interrupted, after a report of what was done.
    """
    from forebay.plan.simulate import Setup, SimulateError, document, expand, prepare
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
        for text in vary or ():
            name, equals, values = text.partition("=")
            if not equals or not name:
                raise SimulateError(f"--vary must be FIELD=A[,B,…], not '{text[:80]}'")
            name = name.strip().replace("-", "_")
            if name in varied and name not in LISTS:
                raise SimulateError(f"--vary names {name} twice")
            varied[name] = [value.strip() for value in values.split(",")]
        setups = expand(base, varied)
        if jobs is not None and jobs < 1:
            raise SimulateError(f"--jobs must be at least 1, not {jobs}")
        files = _Files(out, json_file, html_file)
        setups = files.rows(setups)
        sizes = [_size(prepare(setup, scan=True)) for setup in setups]
        to_stdout = json_file == "-"
        pool = Pool(setups, jobs or os.cpu_count() or 1)
        with ExitStack() as stack:
            if sys.stderr.isatty():
                pool.show = _progress(stack, sizes)
            pool.run()
    except (SimulateError, OSError) as e:
        said = f"{e.filename}: {e.strerror}" if isinstance(e, OSError) and e.filename else str(e)
        print(f"forebay simulate: {said}", file=sys.stderr)
        raise typer.Exit(2) from None
    done = [state for state in pool.states if state.result is not None]
    if not done:
        raise typer.Exit(130)
    result = document(
        [state.setup for state in done], [s.result for s in done if s.result], interrupted=pool.interrupted
    )
    written = files.write(result)
    _say(result, done, written, sys.stderr if to_stdout else sys.stdout)
    if pool.interrupted:
        missing = len(pool.states) - len(done)
        also = f"; {missing} of {len(pool.states)} runs had not begun" if missing else ""
        print(f"forebay simulate: interrupted, the numbers cover what was simulated by then{also}", file=sys.stderr)
        raise typer.Exit(130)


class _Files:
    """Where results go. Folders are made and checked before anything runs."""

    def __init__(self, out: Path | None, json_file: str | None, html_file: Path | None) -> None:
        from forebay.plan.simulate import SimulateError

        self.out = out
        self.json: str | None = json_file
        self.html = html_file
        if out is None and json_file is None and html_file is None:
            self.html = Path(REPORT)
        if out is not None:
            out.mkdir(parents=True, exist_ok=True)
        for path in (None if json_file in (None, "-") else Path(json_file), self.html):
            if path is None:
                continue
            if path.is_dir():
                raise SimulateError(f"{path}: is a folder, a file is needed")
            if not path.parent.is_dir():
                raise SimulateError(f"{path}: there is no folder {path.parent}")
            if not os.access(path if path.exists() else path.parent, os.W_OK):
                raise SimulateError(f"{path}: cannot be written")

    def rows(self, setups: Sequence[Setup]) -> list[Setup]:
        from dataclasses import replace

        if self.out is None:
            return list(setups)
        return [replace(setup, rows=str(self.out / f"requests-{i}.csv")) for i, setup in enumerate(setups, 1)]

    def write(self, result: dict[str, Any]) -> list[Path]:
        from forebay.plan.report import write_html

        written = []
        text = json.dumps(result, indent=1, allow_nan=False, ensure_ascii=False) + "\n"
        if self.json == "-":
            print(text, end="")
        for path in (self.out and self.out / "result.json", Path(self.json) if self.json not in (None, "-") else None):
            if path is not None:
                path.write_text(text, encoding="utf-8")
                written.append(path)
        for path in (self.out and self.out / "report.html", self.html):
            if path is not None:
                write_html(result, path)
                written.append(path)
        return written


def _size(ready: Any) -> tuple[float | None, int | None]:
    """The workload's seconds and requests, where they are known."""
    return ready.workload.duration, ready.workload.requests


def _say(result: dict[str, Any], done: Sequence[State], written: Sequence[Path], stream: Any) -> None:
    from rich.console import Console

    from forebay.plan.report import print_summary

    console = Console(file=stream, width=None if stream.isatty() else 120)
    print_summary(result, console)
    for state in done:
        wall = max(state.seconds, 1e-9)
        console.print(
            f"{state.setup.name}: {_span(state.now)} in {wall:.1f} s ({state.now / wall:,.0f} × real time)",
            markup=False,
            highlight=False,
            style="dim",
        )
    for path in written:
        console.print(f"written: {path}", markup=False, highlight=False, soft_wrap=True)


def _span(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.1f} s simulated"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02} simulated"


def _progress(stack: ExitStack, sizes: Sequence[tuple[float | None, int | None]]) -> Callable[[Sequence[State]], None]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

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
            tasks.extend(bar.add_task(state.setup.name[:40], total=1.0, what="waits") for state in states)
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

"""`forebay tune`: which flags, how many GPUs each, how many replicas, for a workload and an SLO."""

from __future__ import annotations

import json
import os
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

if TYPE_CHECKING:
    from forebay.plan.simulate_files import Outputs
    from forebay.plan.tune.search import Progress
    from forebay.plan.tune.trial import Problem

REPORT = "forebay-tuning.html"


def command(
    workload: Annotated[
        str | None,
        typer.Argument(
            metavar="[WORKLOAD]",
            help="A trace file, or KIND:key=value,… such as poisson:rate=5,requests=10000. Not with --preset.",
        ),
    ] = None,
    model: Annotated[
        str | None, typer.Option(metavar="NAME", help="Of the catalogue, or the path of a config.json.")
    ] = None,
    gpu: Annotated[str | None, typer.Option(metavar="NAME", help="Of the catalogue. [default: h100_sxm]")] = None,
    gpus: Annotated[
        int | None, typer.Option(metavar="N", help="GPUs there are, shared out among the engines. [default: 8]")
    ] = None,
    profile: Annotated[
        str | None, typer.Option(metavar="PATH", help="Step times: measured tables, or what calibrate wrote.")
    ] = None,
    slo_ttft: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="TTFT is at most this … [default: 1.5]")
    ] = None,
    slo_ttft_per_1k: Annotated[
        float | None, typer.Option("--slo-ttft-per-1k", metavar="SECONDS", help="… and this per 1,000 prompt tokens …")
    ] = None,
    slo_tpot: Annotated[float | None, typer.Option(metavar="SECONDS", help="… and TPOT at most this.")] = None,
    attainment: Annotated[float, typer.Option(metavar="SHARE", help="Of all requests that must meet both.")] = 0.95,
    tries: Annotated[
        list[str] | None,
        typer.Option("--try", metavar="FIELD=A[,B,…]", help="Values to try of a field, instead of ours; repeatable."),
    ] = None,
    current: Annotated[
        str | None,
        typer.Option(metavar="COMMAND", help="Today's 'vllm serve …': measured beside the best; names the model, too."),
    ] = None,
    replicas: Annotated[
        int | None, typer.Option(metavar="N", help="Engines that --current starts. [default: all GPUs]")
    ] = None,
    compare: Annotated[
        bool, typer.Option("--compare", help="No search: each combination of the --try values, side by side.")
    ] = False,
    preset: Annotated[str | None, typer.Option(metavar="NAME", help="A question that is asked often: classic.")] = None,
    split: Annotated[bool, typer.Option(help="Also try engines that only prefill or only decode.")] = True,
    acceptance: Annotated[
        float | None,
        typer.Option(metavar="SHARE", help="Chance that a draft token is accepted: with it speculation is tried."),
    ] = None,
    draft_model: Annotated[
        str | None, typer.Option(metavar="NAME", help="What drafts; n-grams of the prompt where there is none.")
    ] = None,
    draft_seconds: Annotated[float, typer.Option(metavar="SECONDS", help="Of drafting one token.")] = 0.0,
    host: Annotated[float, typer.Option(metavar="SECONDS", help="That the host adds to each step.")] = 0.0,
    placement: Annotated[
        str, typer.Option(metavar="NAME", help="Among replicas: round_robin, least_requests or best.")
    ] = "least_requests",
    latency: Annotated[str, typer.Option(metavar="KIND", help="Of the frontier, P95: e2e, ttft or tpot.")] = "e2e",
    price: Annotated[
        float | None, typer.Option(metavar="USD", help="Of a GPU an hour. [default: the catalogue's example]")
    ] = None,
    speed: Annotated[
        float, typer.Option(metavar="X", help="The traffic as it is: the workload X times as fast.")
    ] = 1.0,
    settings: Annotated[
        int, typer.Option(metavar="N", help="Settings that are simulated, of the best by formula.")
    ] = 240,
    requests: Annotated[int, typer.Option(metavar="N", help="Of the longest simulations, at least.")] = 1_000,
    seeds: Annotated[
        int, typer.Option(metavar="N", help="Draws (of a trace: parts) that the last rounds are made with.")
    ] = 4,
    seed: Annotated[int, typer.Option(help="Other draws of a made-up workload.")] = 0,
    verify: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Send the traffic as it is to a server that runs the best setting: predicted beside measured.",
        ),
    ] = None,
    verify_requests: Annotated[int, typer.Option(metavar="N", help="Requests that --verify sends.")] = 200,
    strict: Annotated[bool, typer.Option("--strict", help="Refuse what the profile does not cover.")] = False,
    out: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="Write result.json, report.html, launch commands and manifests there."),
    ] = None,
    json_file: Annotated[
        str | None, typer.Option("--json", metavar="FILE", help="Write the result; -: to standard output.")
    ] = None,
    html_file: Annotated[str | None, typer.Option("--html", metavar="FILE", help="Write the report.")] = None,
    jobs: Annotated[
        int | None, typer.Option(metavar="N", help="Simulations at once. [default: the machine's cores]")
    ] = None,
) -> None:
    """Search engine flags for a workload and an SLO, by simulation.

    Prints the best setting, what each choice costs against it and how sure that is, the knee of the
    latency-throughput-cost frontier, and the commands that start it with vLLM, SGLang, TensorRT-LLM and TGI; and writes
    one self-contained HTML report. Without --out, --json or --html it goes to forebay-tuning.html.

    Exits with 0; 2 where nothing can be tuned, or a result cannot be written; 130 interrupted, after a report of what
    was found by then.
    """
    from forebay.plan.tune.asked import Asked, wish_of
    from forebay.plan.tune.run import run
    from forebay.plan.tune.space import TuneError

    failed = False
    try:
        if verify is not None:
            _reachable(verify, verify_requests)
        asked = Asked(
            workload=workload, model=model, gpu=gpu, gpus=gpus, profile=profile, slo_ttft=slo_ttft,
            slo_ttft_per_1k=slo_ttft_per_1k, slo_tpot=slo_tpot, attainment=attainment, tries=tuple(tries or ()),
            current=current, replicas=replicas, compare=compare, preset=preset, split=split, acceptance=acceptance,
            draft_model=draft_model, draft_seconds=draft_seconds, host=host, placement=placement, latency=latency,
            price=price, speed=speed, settings=settings, requests=requests, seeds=seeds, seed=seed, strict=strict,
            jobs=os.cpu_count() or 1 if jobs is None else jobs,
        )  # fmt: skip
        wish = wish_of(asked)
        files = _outputs(out, json_file, html_file, wish.problem.base.workload, profile)
        with ExitStack() as stack:
            document = run(wish, draft_model, _progress(stack))
    except (TuneError, OSError) as e:
        _complain(e)
        raise typer.Exit(2) from None
    if document is None:
        if sys.stderr is not None:
            print("forebay tune: interrupted before there was anything to report", file=sys.stderr)
        raise typer.Exit(130)
    if verify is not None and not document["interrupted"]:
        try:
            document["verified"] = _verify(verify, wish.problem, document["best"]["setting"], verify_requests)
        except TuneError as e:
            _complain(e)
            failed = True
    written = []
    try:
        for path in _write(document, files):
            written.append(path)  # noqa: PERF402 - those before the one that fails
    except BrokenPipeError:
        raise
    except OSError as e:
        failed = True
        _complain(e)
    _say(document, written, sys.stderr if json_file == "-" else sys.stdout)
    if failed:
        raise typer.Exit(2)
    if document["interrupted"]:
        raise typer.Exit(130)


def _reachable(url: str, requests: int) -> None:
    """What is wrong with --verify is said before the search. Raises TuneError."""
    from forebay.plan.target import LoadError, Target
    from forebay.plan.tune.space import TuneError

    if not 1 <= requests <= 100_000:
        raise TuneError(f"--verify-requests must be at least 1 and at most 100,000, not {requests}")
    try:
        Target.parse(url)
    except LoadError as e:
        raise TuneError(f"--verify: {e}") from None


def _verify(url: str, problem: Problem, best: dict[str, Any], requests: int) -> dict[str, Any]:
    import uvloop

    from forebay.plan.load.measure import Watch
    from forebay.plan.tune.space import Setting
    from forebay.plan.tune.verify import verify

    setting = Setting(**{name: value for name, value in best.items() if name != "gpus"})
    key = os.environ.get("FOREBAY_API_KEY") or None
    return uvloop.run(verify(url, problem, setting, requests, key, Watch()))


def _outputs(
    out: str | None, json_file: str | None, html_file: str | None, workload: str, profile: str | None
) -> Outputs:
    from forebay.plan.simulate import SimulateError
    from forebay.plan.simulate_files import Outputs
    from forebay.plan.tune.space import TuneError
    from forebay.sim.workloads.spec import inputs

    if out is None and json_file is None and html_file is None:
        html_file = REPORT
    read = [name for name in inputs(workload) if "\0" not in name and Path(name).is_file()]
    try:
        return Outputs(out, json_file, html_file, 0, [*read, *([profile] if profile else [])])
    except SimulateError as e:
        raise TuneError(str(e)) from None


def _write(document: dict[str, Any], files: Outputs) -> Any:
    from forebay.plan.tune.report import write_html
    from forebay.plan.tune.run import extra_files
    from forebay.plan.written import replacing, to_stdout

    text = json.dumps(document, indent=1, allow_nan=False, ensure_ascii=False) + "\n"
    for path in files.json:
        with replacing(path, errors="backslashreplace") as file:
            file.write(text)
        yield path
    for path in files.html:
        write_html(document, path)
        yield path
    if files.out is not None:
        for name, content in extra_files(document).items():
            with replacing(files.out / name) as file:
                file.write(content)
            yield files.out / name
    if files.to_stdout:
        to_stdout(text)


def _complain(error: Exception) -> None:
    from forebay.errors import shown

    said = str(error)
    if isinstance(error, OSError) and error.filename:
        said = f"{error.filename}: {error.strerror}"
    if sys.stderr is not None:
        print(f"forebay tune: {shown(said, 2000)}", file=sys.stderr)


def _say(document: dict[str, Any], written: list[Path], stream: TextIO | None) -> None:
    from rich.console import Console

    from forebay.errors import shown
    from forebay.plan.tune.report import print_summary

    if stream is None:
        return
    console = Console(file=stream, width=None if stream.isatty() else 140)
    if document["interrupted"]:
        console.print("interrupted: what follows is what had been found by then", style="yellow")
    print_summary(document, console)
    for path in written:
        console.print(f"written: {shown(path, 4096)}", markup=False, highlight=False, soft_wrap=True)


def _progress(stack: ExitStack) -> Progress:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    if sys.stderr is None or not sys.stderr.isatty():
        return lambda name, done, of: None
    bar = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=32),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    stack.enter_context(bar)
    tasks: dict[str, Any] = {}

    def show(name: str, done: int, of: int) -> None:
        if name not in tasks or done == 0:
            tasks[name] = bar.add_task(name, total=max(1, of))
        bar.update(tasks[name], completed=done)

    return show

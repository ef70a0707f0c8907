"""`forebay plan`: how many GPUs, what they carry, what it costs."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from forebay.cli.main import USAGE

if TYPE_CHECKING:
    from forebay.plan.capacity_question import Question


def command(
    model: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Of the catalogue or the hub, the path of a config.json, or numbers such as params=70e9,layers=80,….",
        ),
    ] = None,
    gpu: Annotated[
        str | None, typer.Option(metavar="NAME", help="Of the catalogue, or numbers: vram=80GB,bandwidth=2TB/s,….")
    ] = None,
    tp: Annotated[int, typer.Option(metavar="N", help="Tensor parallelism.")] = 1,
    pp: Annotated[int, typer.Option(metavar="N", help="Pipeline stages.")] = 1,
    dp: Annotated[int, typer.Option(metavar="N", help="Data-parallel ranks of one replica.")] = 1,
    dtype: Annotated[
        str,
        typer.Option("--dtype", "--quantization", metavar="NAME", help="Of the weights: bf16, fp8, int8, int4, awq, …"),
    ] = "auto",
    kv_dtype: Annotated[
        str, typer.Option("--kv-dtype", "--kv-cache-dtype", metavar="NAME", help="Of the KV cache.")
    ] = "auto",
    prompt: Annotated[
        str | None,
        typer.Option(
            metavar="LENGTHS",
            help="Tokens of a prompt: N, mean=N,p95=N, uniform:LOW:HIGH, lognormal(MEDIAN;SIGMA), cdf(FILE), …",
        ),
    ] = None,
    output: Annotated[str | None, typer.Option(metavar="LENGTHS", help="Tokens of an answer, likewise.")] = None,
    lengths: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="Prompt and answer together: a trace, or a JSON with the distribution of their sum."
        ),
    ] = None,
    cache_hit: Annotated[
        float | None,
        typer.Option(metavar="SHARE", help="Of prompt tokens, in the prefix cache. [default: 0, or the ledger's]"),
    ] = None,
    slo_ttft: Annotated[float, typer.Option(metavar="SECONDS", help="Promise: so long to the first token …")] = 1.5,
    slo_tpot: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="… and so long for each further one …")
    ] = None,
    percentile: Annotated[float, typer.Option(metavar="P", help="… of so many percent of requests.")] = 95.0,
    users: Annotated[
        float | None, typer.Option(metavar="N", help="People at once, each with one request at a time.")
    ] = None,
    think: Annotated[
        float, typer.Option(metavar="SECONDS", help="Between an answer and the next request of a user.")
    ] = 60.0,
    qps: Annotated[float | None, typer.Option(metavar="N", help="Requests a second at the peak.")] = None,
    hours: Annotated[str | None, typer.Option(metavar="N,N,…", help="Requests a second in each of 24 hours.")] = None,
    traffic: Annotated[
        str | None,
        typer.Option(metavar="WORKLOAD", help="A trace or what forebay simulate takes: its rates and its lengths."),
    ] = None,
    from_ledger: Annotated[
        bool, typer.Option("--from-ledger", help="Rates, lengths and cache hits that the ledger has recorded.")
    ] = False,
    since: Annotated[str, typer.Option(metavar="WHEN", help="Of the ledger: a date, a time, or a time ago.")] = "7d",
    until: Annotated[str | None, typer.Option(metavar="WHEN", help="Not included. [default: now]")] = None,
    zone: Annotated[str | None, typer.Option(metavar="NAME", help="Of the hours. [default: ledger.zone]")] = None,
    where: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="Only these of the ledger, model=NAME say; repeatable."),
    ] = None,
    tier: Annotated[
        list[str] | None, typer.Option(metavar="NAME=X", help="So many times as many requests of a tier; repeatable.")
    ] = None,
    growth: Annotated[float, typer.Option(metavar="X", help="So many times the traffic.")] = 1.0,
    max_model_len: Annotated[
        int | None, typer.Option(metavar="N", help="Tokens of prompt and answer. [default: what fits]")
    ] = None,
    max_num_seqs: Annotated[int, typer.Option(metavar="N", help="Sequences that run at once.")] = 256,
    max_num_batched_tokens: Annotated[int, typer.Option(metavar="N", help="Tokens of a step.")] = 2048,
    gpu_memory_utilization: Annotated[float, typer.Option(metavar="SHARE", help="Of the GPU's memory.")] = 0.9,
    enforce_eager: Annotated[bool, typer.Option("--enforce-eager", help="No CUDA graphs.")] = False,
    profile: Annotated[
        str | None, typer.Option(metavar="PATH", help="Step times: measured tables, or what calibrate wrote.")
    ] = None,
    host: Annotated[float, typer.Option(metavar="SECONDS", help="That the host adds to each step.")] = 0.0,
    price: Annotated[
        float | None, typer.Option(metavar="USD", help="An hour of one GPU. [default: the catalogue's example]")
    ] = None,
    gpus_per_node: Annotated[int, typer.Option(metavar="N", help="GPUs that die together.")] = 8,
    spare_nodes: Annotated[int, typer.Option(metavar="N", help="Nodes more than the peak needs (1: N+1).")] = 0,
    simulate: Annotated[
        bool, typer.Option("--simulate/--no-simulate", help="Whether formulas are held against the simulator.")
    ] = True,
    seed: Annotated[int, typer.Option(help="Other draws of the simulation.")] = 0,
    rules: Annotated[
        bool, typer.Option("--rules", help="Work out numbers that go from slide to slide, and leave.")
    ] = False,
    config: Annotated[
        Path | None,
        typer.Option("--config", "-c", metavar="FILE", envvar="FOREBAY_CONFIG", help="For --from-ledger."),
    ] = None,
    state_dir: Annotated[Path | None, typer.Option("--state-dir", metavar="DIR", help="For --from-ledger.")] = None,
    json_file: Annotated[
        str | None, typer.Option("--json", metavar="FILE", help="Write the plan; -: to standard output.")
    ] = None,
    html_file: Annotated[str | None, typer.Option("--html", metavar="FILE", help="Write a page with charts.")] = None,
) -> None:
    """Plan capacity: memory, slots, rates, replicas, GPUs and cost of a model under a promise.

    Says the number, the formula with its values, what is short, and what to change first. Formulas come first; a short
    simulation corrects them. docs/capacity.md has the formulas and their sources.

    Exits with 0; 2 where a question cannot be answered: the model does not fit, a promise below what the hardware can
    do, names and numbers that are none.
    """
    from forebay.cli.plan_given import Books, Given
    from forebay.plan.capacity_question import PlanError, Traffic
    from forebay.sim.workloads import WorkloadError

    given = Given(model, gpu, prompt, output, lengths, traffic, growth)
    try:
        if rules:
            _rules(json_file)
            return
        deployment = given.deployment(
            tp=tp, pp=pp, dp=dp, dtype=dtype, kv_dtype=kv_dtype, max_model_len=max_model_len, max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens, gpu_memory_utilization=gpu_memory_utilization,
            enforce_eager=enforce_eager,
        )  # fmt: skip
        if from_ledger:
            books = Books(config, state_dir, since, until, zone, where or [], tier or [])
            given.recorded = books.read(growth)
        elif where or tier:
            raise PlanError("--where and --tier are of --from-ledger")
        question = given.question(
            deployment,
            Traffic(users=users, think=think, peak=qps),
            hours,
            slo=(slo_ttft, math.inf if slo_tpot is None else slo_tpot, percentile),
            cache_hit=given.hits(cache_hit), profile=profile, host=host, price=price, gpus_per_node=gpus_per_node,
            spare_nodes=spare_nodes, simulate=simulate, seed=seed,
        )  # fmt: skip
        _answer(question, json_file, html_file)
    except (PlanError, WorkloadError, LookupError, ValueError) as e:
        _fail(str(e.args[0]) if isinstance(e, LookupError) and e.args else str(e))
    except OSError as e:
        _fail(f"{e.filename}: {e.strerror}" if e.filename else str(e))


def _answer(question: Question, json_file: str | None, html_file: str | None) -> None:
    """Raises PlanError, OSError, ValueError."""
    from forebay.plan.capacity import plan
    from forebay.plan.written import replacing, to_stdout

    document = plan(question, curves=html_file is not None or json_file is not None)
    text = json.dumps(document, indent=1, allow_nan=False, ensure_ascii=False) + "\n"
    if html_file is not None:
        from forebay.plan.capacity_page import write_html

        write_html(document, Path(html_file))
    if json_file is not None and json_file != "-":
        with replacing(Path(json_file), errors="backslashreplace") as file:
            file.write(text)
    if json_file == "-":
        to_stdout(text)
        return
    from rich.console import Console

    from forebay.plan.capacity_view import show

    console = Console(width=None if sys.stdout.isatty() else 120, highlight=False, emoji=False)
    show(document, console)
    for path in (json_file, html_file):
        if path is not None:
            console.print(f"written: {path}", markup=False, soft_wrap=True)


def _rules(json_file: str | None) -> None:
    from forebay.plan.capacity_known import known
    from forebay.plan.written import replacing, to_stdout

    found = known()
    text = json.dumps(found, indent=1, ensure_ascii=False) + "\n"
    if json_file == "-":
        to_stdout(text)
        return
    if json_file is not None:
        with replacing(Path(json_file)) as file:
            file.write(text)
    for rule in found:
        print(f"“{rule['claim']}”", *(f"    {line}" for line in rule["lines"]), sep="\n")


def _fail(message: str) -> NoReturn:
    from forebay.errors import shown

    print(f"forebay plan: {shown(message, 2000)}", file=sys.stderr)
    raise typer.Exit(USAGE)

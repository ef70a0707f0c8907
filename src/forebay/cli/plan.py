"""`forebay plan`: how many GPUs, what they carry, what it costs."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from forebay.cli.main import USAGE

if TYPE_CHECKING:
    from forebay.hardware.memory import Deployment
    from forebay.plan.capacity_lengths import Floats, Lengths
    from forebay.plan.capacity_question import Question, Traffic


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
        float, typer.Option(metavar="SHARE", help="Of prompt tokens, found in the prefix cache (0 to 1).")
    ] = 0.0,
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
        question = given.question(
            deployment,
            Traffic(users=users, think=think, peak=qps),
            hours,
            slo=(slo_ttft, math.inf if slo_tpot is None else slo_tpot, percentile),
            cache_hit=cache_hit, profile=profile, host=host, price=price, gpus_per_node=gpus_per_node,
            spare_nodes=spare_nodes, simulate=simulate, seed=seed,
        )  # fmt: skip
        _answer(question, json_file, html_file)
    except (PlanError, WorkloadError, LookupError, ValueError) as e:
        _fail(str(e.args[0]) if isinstance(e, LookupError) and e.args else str(e))
    except OSError as e:
        _fail(f"{e.filename}: {e.strerror}" if e.filename else str(e))


class Given:
    """What was typed that files or the catalogue have to be asked about."""

    def __init__(
        self,
        model: str | None,
        gpu: str | None,
        prompt: str | None,
        output: str | None,
        lengths: str | None,
        workload: str | None,
        growth: float,
    ) -> None:
        self.model, self.gpu = model, gpu
        self.prompt, self.output, self.lengths = prompt, output, lengths
        self.workload, self.growth = workload, growth

    def deployment(self, **settings: Any) -> Deployment:
        """Raises PlanError, LookupError and ValueError of the catalogue."""
        from forebay.hardware.catalogue import find_any, find_any_gpu
        from forebay.hardware.memory import Deployment
        from forebay.plan.capacity_question import PlanError

        for option, value in (("--model", self.model), ("--gpu", self.gpu)):
            if not value:
                raise PlanError(f"{option} is missing: name the {option[2:]} that is planned for")
        assert self.model and self.gpu
        return Deployment(find_any(self.model), find_any_gpu(self.gpu), **settings)

    def question(
        self,
        deployment: Deployment,
        traffic: Traffic,
        hours: str | None,
        slo: tuple[float, float, float],
        **more: Any,
    ) -> Question:
        """Raises PlanError, WorkloadError, LengthError."""
        from dataclasses import replace

        from forebay.plan.capacity_question import PlanError, Promise, Question
        from forebay.plan.capacity_traffic import hours as read_hours
        from forebay.plan.capacity_traffic import of_arrivals

        if not 0 < self.growth <= 1e6:
            raise PlanError(f"--growth must be more than 0 and at most 1,000,000, not {self.growth:g}")
        ways = {"--users": traffic.users, "--qps": traffic.peak, "--hours": hours, "--traffic": self.workload}
        named = [option for option, value in ways.items() if value is not None]
        if len(named) != 1 and named != ["--qps", "--traffic"]:
            what = " and ".join(named) + " say the same twice" if named else "there is no traffic to plan for"
            raise PlanError(f"{what}: give one of {', '.join(ways)}")
        found, arrivals, notes = self._lengths()
        if hours is not None:
            traffic = replace(traffic, hours=tuple(rate * self.growth for rate in read_hours(hours)), text="by hour")
        elif arrivals is not None and traffic.peak is None:
            seen = of_arrivals(arrivals, found.text, self.growth)
            traffic, notes = replace(seen.traffic, think=traffic.think), [*notes, *seen.notes]
        else:
            users, peak = traffic.users, traffic.peak
            traffic = replace(
                traffic,
                users=None if users is None else users * self.growth,
                peak=None if peak is None else peak * self.growth,
            )
        return Question(
            deployment=deployment, lengths=found, promise=Promise(*slo), traffic=traffic, notes=tuple(notes), **more
        )

    def _lengths(self) -> tuple[Lengths, Floats | None, list[str]]:
        """(lengths, arrivals where a workload was given, notes)."""
        from forebay.plan.capacity_lengths import independent, of_workload, together
        from forebay.plan.capacity_question import PlanError
        from forebay.sim.workloads import open_workload

        marginal = self.prompt is not None or self.output is not None
        if marginal and self.lengths is not None:
            raise PlanError("--lengths stands for both --prompt and --output; give it or these")
        arrivals = None
        of_trace = None
        if self.workload is not None:
            of_trace, arrivals = of_workload(open_workload(self.workload))
        if self.lengths is not None:
            found = (
                together(self.lengths)
                if self.lengths.endswith(".json")
                else of_workload(open_workload(self.lengths))[0]
            )
            return found, arrivals, []
        if of_trace is not None and not marginal:
            return of_trace, arrivals, []
        notes = [
            f"{option} was not given: {default} tokens are assumed"
            for option, value, default in (("--prompt", self.prompt, PROMPT), ("--output", self.output, OUTPUT))
            if value is None
        ]
        return independent(self.prompt or PROMPT, self.output or OUTPUT), arrivals, notes


PROMPT = "lognormal(512;1.0;131072)"
OUTPUT = "lognormal(200;0.8;16384)"
"""What made-up workloads have, too (docs/workloads.md)."""


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

"""`forebay bench`: load an OpenAI-compatible server and measure its latencies."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import resource
import signal
import sys
from collections.abc import Callable
from enum import StrEnum
from typing import Annotated, Any

import typer

from forebay.plan.load import Load, Plan, Result
from forebay.plan.target import LoadError, Target, models

KEY_VARIABLE = "FOREBAY_API_KEY"
SPARE_FILES = 64
"""Descriptors left for everything but connections."""


class Arrivals(StrEnum):
    POISSON = "poisson"
    UNIFORM = "uniform"


class Format(StrEnum):
    TABLE = "table"
    JSON = "json"


def command(
    url: Annotated[str, typer.Argument(metavar="URL", help="The server: http://host:port, with or without /v1.")],
    rate: Annotated[
        float | None, typer.Option(metavar="N", help="Arrivals a second, whether or not earlier ones are answered.")
    ] = None,
    arrivals: Annotated[Arrivals, typer.Option(help="Spacing of the arrivals.")] = Arrivals.POISSON,
    concurrency: Annotated[
        int | None, typer.Option(metavar="N", help="Instead of a rate: N at once. [default: 8]", show_default=False)
    ] = None,
    requests: Annotated[
        int | None,
        typer.Option(metavar="N", help="Send N. [default: 100 where no duration is given]", show_default=False),
    ] = None,
    duration: Annotated[float | None, typer.Option(metavar="SECONDS", help="Send for so long.")] = None,
    model: Annotated[
        str | None, typer.Option(metavar="NAME", help="[default: the first the server lists]", show_default=False)
    ] = None,
    prompt_tokens: Annotated[int, typer.Option(help="About as many tokens in a prompt.")] = 64,
    max_tokens: Annotated[int, typer.Option(help="Most tokens of an answer.")] = 128,
    timeout: Annotated[float, typer.Option(help="Seconds a request may take.")] = 300.0,
    seed: Annotated[int, typer.Option(help="Other arrival times and words.")] = 0,
    extra: Annotated[
        str, typer.Option(metavar="JSON", help="More fields of the body, such as '{\"ignore_eos\": true}'.")
    ] = "{}",
    output: Annotated[Format, typer.Option("--format", help="What to print.")] = Format.TABLE,
) -> None:
    """Load an OpenAI-compatible server and measure its latencies.

    Sends streaming chat completions and reports time to first token, time between tokens and the whole request's time,
    with errors by kind. A stream without [DONE] or with an error event is a failure. The API key is read from
    FOREBAY_API_KEY. This loads the server as hard as it is told to: point it at servers that are yours.

    Exits with 0 where a request completed, 1 where none did, 2 where the load could not be made.
    """
    try:
        if rate is None and concurrency is None:
            concurrency = 8
        if requests is None and duration is None:
            requests = 100
        _check(
            {
                "--rate": rate,
                "--concurrency": concurrency,
                "--requests": requests,
                "--duration": duration,
                "--prompt-tokens": prompt_tokens,
                "--max-tokens": max_tokens,
                "--timeout": timeout,
            }
        )
        target = Target.parse(url)

        def plan(name: str) -> Plan:
            return Plan(
                model=name,
                rate=rate,
                arrivals=arrivals.value,
                concurrency=concurrency,
                requests=requests,
                seconds=duration,
                prompt_tokens=prompt_tokens,
                max_tokens=max_tokens,
                timeout=timeout,
                max_in_flight=_most_connections(),
                seed=seed,
                extra=_fields(extra),
            )

        plan(model or "-")  # what is wrong with the options is said before the network is touched
        import uvloop

        done, result = uvloop.run(_run(target, plan, model))
    except LoadError as e:
        print(f"forebay bench: {e}", file=sys.stderr)
        raise typer.Exit(2) from None
    from forebay.plan import load_report

    if output is Format.JSON:
        print(json.dumps(load_report.as_json(url, done, result), indent=2))
    else:
        from rich.console import Console

        load_report.print_table(url, done, result, Console(width=None if sys.stdout.isatty() else 120))
    if result.interrupted:
        raise typer.Exit(130)
    raise typer.Exit(0 if result.completed else 1)


def _check(options: dict[str, float | None]) -> None:
    """Raises LoadError that names the option as it is typed."""
    if options["--rate"] is not None and options["--concurrency"] is not None:
        raise LoadError("give either --rate (open loop) or --concurrency (closed loop)")
    for option, value in options.items():
        if value is not None and not 0 < value < float("inf"):
            raise LoadError(f"{option} must be more than 0, not {value:g}")


def _most_connections() -> int:
    """As many as the process may open: its soft limit is raised to the hard one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
    return min(max(soft - SPARE_FILES, 1), 60_000)


def _fields(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as e:
        raise LoadError(f"--extra is not JSON: {e}") from None
    if not isinstance(found, dict):
        raise LoadError("--extra must be a JSON object")
    return found


async def _run(target: Target, plan: Callable[[str], Plan], model: str | None) -> tuple[Plan, Result]:
    key = os.environ.get(KEY_VARIABLE) or None
    if key is not None and not (key.isascii() and key.isprintable() and " " not in key):
        raise LoadError(f"{KEY_VARIABLE} holds characters that a key cannot have")
    known = await models(target, key)
    if model is None:
        if not known:
            raise LoadError(f"{target.origin} lists no models; name one with --model")
        model = known[0]
    elif known and model not in known:
        print(f"forebay bench: note: {target.origin} lists {', '.join(known[:20])}, not {model}", file=sys.stderr)
    chosen = plan(model)
    with contextlib.ExitStack() as stack:
        load = Load(target, chosen, key, _progress(stack, chosen) if sys.stderr.isatty() else None)
        loop = asyncio.get_running_loop()
        for s in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(s, load.interrupt)
        return chosen, await load.run()


def _progress(stack: contextlib.ExitStack, plan: Plan) -> Callable[[Load], None]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    bar = Progress(
        TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), console=Console(stderr=True), transient=True
    )
    stack.enter_context(bar)
    task = bar.add_task("", total=1.0)

    def show(load: Load) -> None:
        r = load.result
        by_count = (r.completed + r.failed) / plan.requests if plan.requests else 0.0
        by_time = min(1.0, r.seconds / plan.seconds) if plan.seconds else 0.0
        text = f"{r.completed:,} done, {r.failed:,} failed, {load.in_flight:,} in flight"
        bar.update(task, completed=max(by_count, by_time), description=text)

    return show

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
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from forebay.cli.bench_options import constant, fields, is_terminal, mix, tokens, writable
from forebay.plan.target import LoadError, Target, models

if TYPE_CHECKING:
    from forebay.plan.load import Load
    from forebay.plan.load.knee import Search, Step
    from forebay.plan.load.measure import Around, Ready, Watch

KEY_VARIABLE = "FOREBAY_API_KEY"
SPARE_FILES = 64
"""Descriptors left for everything but connections."""
DRAWN_SECONDS = 600.0
"""Of the bar, where only the workload knows when it ends."""


class Arrivals(StrEnum):
    POISSON = "poisson"
    UNIFORM = "uniform"
    GAMMA = "gamma"


class Endpoint(StrEnum):
    CHAT = "chat"
    COMPLETIONS = "completions"


class Format(StrEnum):
    TABLE = "table"
    JSON = "json"


def command(
    url: Annotated[str, typer.Argument(metavar="URL", help="The server: http://host:port, with or without /v1.")],
    rate: Annotated[
        float | None, typer.Option(metavar="N", help="Arrivals a second, whether or not earlier ones are answered.")
    ] = None,
    arrivals: Annotated[Arrivals, typer.Option(help="Spacing of the arrivals.")] = Arrivals.POISSON,
    cv: Annotated[
        float | None,
        typer.Option(metavar="X", help="Of gamma arrivals: coefficient of variation of the gaps; over 1 in bursts."),
    ] = None,
    concurrency: Annotated[
        int | None, typer.Option(metavar="N", help="Instead of a rate: N at once. [default: 8]", show_default=False)
    ] = None,
    requests: Annotated[
        int | None,
        typer.Option(metavar="N", help="Send N. [default: 100 where no duration is given]", show_default=False),
    ] = None,
    duration: Annotated[float | None, typer.Option(metavar="SECONDS", help="Send for so long.")] = None,
    workload: Annotated[
        str | None,
        typer.Option(
            metavar="WORKLOAD",
            help="A trace file or KIND:key=value,…, as forebay simulate takes: arrivals, lengths, prefixes, tenants "
            "and classes. With --rate or --concurrency all but the arrivals.",
        ),
    ] = None,
    speed: Annotated[float, typer.Option(metavar="X", help="The workload's times run X times as fast.")] = 1.0,
    prompts: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Prompts to send: lines of text, JSONL, a batch file, or ShareGPT's JSON."),
    ] = None,
    endpoint: Annotated[Endpoint, typer.Option(help="What is asked for.")] = Endpoint.CHAT,
    model: Annotated[
        str | None, typer.Option(metavar="NAME", help="[default: the first the server lists]", show_default=False)
    ] = None,
    prompt_tokens: Annotated[
        str | None,
        typer.Option(
            metavar="N", help="About as many tokens in a prompt, or a distribution. [default: 64]", show_default=False
        ),
    ] = None,
    max_tokens: Annotated[
        str | None,
        typer.Option(
            metavar="N", help="Most tokens of an answer, or a distribution. [default: 128]", show_default=False
        ),
    ] = None,
    shared_prefix: Annotated[
        int, typer.Option(metavar="N", help="Tokens at the start of each prompt that others have too.")
    ] = 0,
    prefix_groups: Annotated[int, typer.Option(metavar="N", help="So many different ones, each as likely.")] = 1,
    fit_lengths: Annotated[
        bool, typer.Option("--fit-lengths", help="Ask the server first how many tokens a word has.")
    ] = False,
    same_words: Annotated[
        bool, typer.Option("--same-words", help="The words, too, come from the seed: a prefix cache may know them.")
    ] = False,
    keys: Annotated[
        str | None, typer.Option(metavar="FILE", help="Keys by tenant: lines of TENANT KEY, or of KEY alone.")
    ] = None,
    classes: Annotated[
        str | None,
        typer.Option(metavar="MIX", help="A class for each request, as X-Priority: vip, or vip=1;normal=7;low=2."),
    ] = None,
    slo_ttft: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="A good answer: TTFT at most this …")
    ] = None,
    slo_ttft_per_1k: Annotated[
        float, typer.Option("--slo-ttft-per-1k", metavar="SECONDS", help="… and this for each 1,000 prompt tokens …")
    ] = 0.0,
    slo_tpot: Annotated[float | None, typer.Option(metavar="SECONDS", help="… TPOT at most this …")] = None,
    slo_e2e: Annotated[float | None, typer.Option(metavar="SECONDS", help="… and the whole at most this.")] = None,
    retries: Annotated[
        int, typer.Option(metavar="N", help="Obey Retry-After up to N times a request. [default: 0, never]")
    ] = 0,
    price: Annotated[
        str | None,
        typer.Option(metavar="IN/OUT", help="US dollars a million tokens of prompts and answers (/of cached ones)."),
    ] = None,
    prices: Annotated[str | None, typer.Option(metavar="FILE", help="A price file that has the model.")] = None,
    gpu_hour: Annotated[
        float | None, typer.Option(metavar="USD", help="What an hour of all the GPUs behind it costs.")
    ] = None,
    gateway_cost: Annotated[
        bool, typer.Option("--gateway-cost", help="What the gateway booked meanwhile for the keys in use.")
    ] = False,
    find_knee: Annotated[
        bool, typer.Option("--find-knee", help="Search for the highest rate that is kept. [from --rate, or 1]")
    ] = False,
    knee_share: Annotated[float, typer.Option(metavar="X", help="Of the requests that must be good.")] = 0.95,
    knee_precision: Annotated[float, typer.Option(metavar="X", help="End when the knee is known to this.")] = 0.1,
    knee_steps: Annotated[int, typer.Option(metavar="N", help="Rates that are tried at most.")] = 12,
    warmup: Annotated[int, typer.Option(metavar="N", help="Requests sent first and not counted.")] = 0,
    timeout: Annotated[float, typer.Option(help="Seconds a request may take.")] = 300.0,
    seed: Annotated[int, typer.Option(help="Other arrival times, lengths and classes.")] = 0,
    extra: Annotated[
        str, typer.Option(metavar="JSON", help="More fields of the body, such as '{\"ignore_eos\": true}'.")
    ] = "{}",
    json_file: Annotated[
        str | None, typer.Option("--json", metavar="FILE", help="Write the result, for forebay bench compare.")
    ] = None,
    html_file: Annotated[str | None, typer.Option("--html", metavar="FILE", help="Write the report.")] = None,
    records: Annotated[str | None, typer.Option(metavar="FILE", help="Write each request as a line of JSON.")] = None,
    output: Annotated[Format, typer.Option("--format", help="What to print.")] = Format.TABLE,
) -> None:
    """Load an OpenAI-compatible server and measure its latencies.

    Sends streams at arrival times that do not wait for answers, and reports time to first token, time between tokens
    and the whole request's time, counted from when each was to leave, with 95 % intervals; goodput, errors by kind, and
    what a valid request costs. A stream without [DONE] or with an error event is a failure. The API key is read from
    FOREBAY_API_KEY. This loads the server as hard as it is told to: point it at servers that are yours.

    `forebay bench compare A.json B.json` lays two results side by side.

    Exits with 0 where a request completed, 1 where none did, 2 where the load could not be made.
    """
    try:
        if rate is None and concurrency is None and workload is None:
            rate, concurrency = (1.0, None) if find_knee else (None, 8)
        if requests is None and duration is None and workload is None and not find_knee:
            requests = 100
        if find_knee and requests is None and duration is None:
            from forebay.plan.load.measure import STEP_SECONDS

            duration = STEP_SECONDS
        _check(
            {
                "--rate": rate,
                "--concurrency": concurrency,
                "--requests": requests,
                "--duration": duration,
                "--timeout": timeout,
                "--speed": speed,
                "--gpu-hour": gpu_hour,
                "--prefix-groups": prefix_groups,
            }
        )
        if find_knee and concurrency is not None:
            raise LoadError("the knee is a rate: it is searched for with an open loop, not with --concurrency")
        if cv is not None and arrivals is not Arrivals.GAMMA:
            raise LoadError("--cv is of gamma arrivals: add --arrivals gamma")
        if (prompt_tokens or shared_prefix) and (workload or prompts):
            raise LoadError("--prompt-tokens and --shared-prefix make prompts up, and the workload or file has its own")
        if price is not None and prices is not None:
            raise LoadError("give --price or --prices, not both")
        if warmup < 0:
            raise LoadError(f"--warmup must be at least 0, not {warmup}")
        target = Target.parse(url)
        from forebay.plan.load import CHAT, COMPLETIONS, Plan, Slo
        from forebay.plan.load.measure import prepared
        from forebay.plan.load.plan import MAX_TOKENS
        from forebay.plan.load.prompts import read_prompts

        prompt, prompt_drawn = tokens("--prompt-tokens", prompt_tokens, 64)
        answer, answer_drawn = tokens("--max-tokens", max_tokens, MAX_TOKENS)
        drawn = prompt_drawn is not None or answer_drawn is not None
        if workload and max_tokens and not prompts:
            raise LoadError("--max-tokens makes answers up, and the workload has its own lengths")
        if drawn and prompts:
            raise LoadError("--max-tokens takes a number where prompts come from a file")
        base = Plan(
            model=model or "-",
            rate=rate,
            arrivals=_spacing(arrivals),
            cv=1.0 if cv is None else cv,
            concurrency=concurrency,
            requests=requests,
            seconds=duration,
            prompt_tokens=prompt,
            max_tokens=None if prompts and max_tokens is None else answer,
            timeout=timeout,
            max_in_flight=_most_connections(),
            seed=seed,
            extra=fields(extra),
            path=CHAT if endpoint is Endpoint.CHAT else COMPLETIONS,
            workload=None if workload is None else _workload(workload, seed),
            speed=speed,
            texts=None if prompts is None else read_prompts(prompts),
            lengths=(constant(prompt_drawn, prompt), constant(answer_drawn, answer)) if drawn else None,
            shared_prefix=shared_prefix,
            prefix_groups=prefix_groups,
            classes=None if classes is None else mix(classes),
            slo=Slo(slo_ttft, slo_tpot, slo_e2e, slo_ttft_per_1k),
            retries=retries,
            same_words=same_words,
        )
        around = _around(keys, warmup, fit_lengths, gpu_hour, gateway_cost)
        ready = prepared(target, base, around)  # what is wrong is said before the network is touched
        search = _search(find_knee, knee_share, knee_precision, knee_steps)
        for option, path in (("--json", json_file), ("--html", html_file), ("--records", records)):
            writable(option, path)
        done, unwritten = _run(
            target, url, ready, around, search, records, lambda name: _price(price, prices, name), model
        )
    except LoadError as e:
        print(f"forebay bench: {e}", file=sys.stderr)
        raise typer.Exit(2) from None
    except OSError as e:
        print(f"forebay bench: {e.filename}: {e.strerror or e}", file=sys.stderr)
        raise typer.Exit(2) from None
    if not _said(done, output, json_file, html_file, unwritten):
        raise typer.Exit(2)
    if done["interrupted"]:
        raise typer.Exit(130)
    raise typer.Exit(0 if done["completed"] else 1)


# --- options ----------------------------------------------------------------------------------------------------------


def _check(options: dict[str, float | None]) -> None:
    """Raises LoadError that names the option as it is typed."""
    if options["--rate"] is not None and options["--concurrency"] is not None:
        raise LoadError("give either --rate (open loop) or --concurrency (closed loop)")
    for option, value in options.items():
        if value is not None and not 0 < value < float("inf"):
            raise LoadError(f"{option} must be more than 0, not {value:g}")


def _spacing(arrivals: Arrivals) -> Literal["poisson", "uniform", "gamma"]:
    return "gamma" if arrivals is Arrivals.GAMMA else "uniform" if arrivals is Arrivals.UNIFORM else "poisson"


def _workload(spec: str, seed: int) -> Any:
    from forebay.sim.workloads import WorkloadError, open_workload

    try:
        return open_workload(spec, seed=seed)
    except WorkloadError as e:
        raise LoadError(str(e)) from None


def _around(keys: str | None, warmup: int, fit: bool, gpu_hour: float | None, gateway_cost: bool) -> Around:
    from forebay.plan.load.callers import key_of, read_keys
    from forebay.plan.load.measure import Around

    key = os.environ.get(KEY_VARIABLE) or None
    return Around(
        key=None if key is None else key_of(key, KEY_VARIABLE),
        keys=read_keys(keys) if keys is not None else {},
        keys_file=keys or "",
        warmup=warmup,
        fit_lengths=fit,
        gpu_hour=gpu_hour,
        gateway_cost=gateway_cost,
    )


def _price(price: str | None, prices: str | None, model: str) -> Any:
    from forebay.plan.load.money import price_from, price_of

    if price is not None:
        return price_from(price, model)
    return None if prices is None else price_of(prices, model)


def _search(wanted: bool, share: float, precision: float, steps: int) -> Callable[[float], Search] | None:
    from forebay.plan.load.knee import Search

    Search(1.0, share, precision, steps)  # raises LoadError for what makes no sense
    return (lambda rate: Search(rate, share, precision, steps)) if wanted else None


def _most_connections() -> int:
    """As many as the process may open: its soft limit is raised to the hard one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
    return min(max(soft - SPARE_FILES, 1), 60_000)


# --- the run ----------------------------------------------------------------------------------------------------------


def _run(
    target: Target,
    url: str,
    ready: Ready,
    around: Around,
    search: Callable[[float], Search] | None,
    records: str | None,
    price: Callable[[str], Any],
    model: str | None,
) -> tuple[dict[str, Any], OSError | None]:
    """The result, and why its records could not be written, where they could not."""
    import uvloop

    async def whole() -> tuple[dict[str, Any], OSError | None]:
        from forebay.plan.load import measure
        from forebay.plan.load.records import records as recording

        key = next(iter(around.keys.values()), around.key)
        known = await models(target, key)
        name = _model(target, model, known)
        chosen = replace(ready, plan=replace(ready.plan, model=name))
        paid = replace(around, price=price(name))
        done: dict[str, Any] | None = None
        try:
            with contextlib.ExitStack() as stack:
                watch = _watch(stack)
                if records is not None:
                    watch.on_record = stack.enter_context(recording(records))
                if search is not None:
                    done = await measure.find_knee(target, url, chosen, paid, watch, search)
                else:
                    done = await measure.measure(target, url, chosen, paid, watch)
        except OSError as e:
            if done is None:
                raise
            return done, e
        return done, None

    return uvloop.run(whole())


def _model(target: Target, model: str | None, known: list[str]) -> str:
    if model is None:
        if not known:
            raise LoadError(f"{target.origin} lists no models; name one with --model")
        return known[0]
    if known and model not in known:
        print(f"forebay bench: note: {target.origin} lists {', '.join(known[:20])}, not {model}", file=sys.stderr)
    return model


def _watch(stack: contextlib.ExitStack) -> Watch:
    from forebay.plan.load.measure import Watch

    loop, stop = asyncio.get_running_loop(), asyncio.Event()

    def on_load(load: Load) -> None:
        def interrupt() -> None:
            stop.set()
            load.interrupt()

        for s in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(s, interrupt)
        if stop.is_set():  # it came between two steps
            load.interrupt()

    drawn = is_terminal(sys.stderr)
    return Watch(on_load, _progress(stack) if drawn else None, None, (lambda step: None) if drawn else _told)


def _told(step: Step) -> None:
    kept = "kept" if step.kept else f"not kept: {step.why}"
    print(f"forebay bench: {step.rate:.4g} requests/s: {kept}", file=sys.stderr)


def _progress(stack: contextlib.ExitStack) -> Callable[[Load], None]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    bar = Progress(
        TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), console=Console(stderr=True), transient=True
    )
    stack.enter_context(bar)
    task = bar.add_task("", total=1.0)

    def show(load: Load) -> None:
        r, own = load.result, load.plan
        by_count = (r.completed + r.failed) / own.requests if own.requests else 0.0
        by_time = min(1.0, r.seconds / (own.seconds or DRAWN_SECONDS)) if own.seconds or not own.requests else 0.0
        p50 = r.ttft.percentile(50)
        text = (
            f"{f'{own.rate:.3g}/s: ' if own.rate else ''}{r.completed:,} done, {r.failed:,} failed, "
            f"{load.in_flight:,} in flight{f', {load.waiting:,} waiting to try again' if load.waiting else ''}"
            f"{'' if p50 is None else f', TTFT P50 {p50 * 1e3:,.0f} ms'}"
        )
        bar.update(task, completed=max(by_count, by_time), description=text)

    return show


def _said(
    done: dict[str, Any], output: Format, json_file: str | None, html_file: str | None, unwritten: OSError | None
) -> bool:
    """Whether all of it could be written; what can be is, whatever becomes of the rest."""
    from forebay.plan.load.page import write_html
    from forebay.plan.load.table import print_table
    from forebay.plan.written import replacing, to_stdout

    text = json.dumps(done, indent=2, allow_nan=False) + "\n"
    failed = [] if unwritten is None else [unwritten]
    if json_file == "-":
        output = Format.JSON
    elif json_file is not None:
        try:
            with replacing(Path(json_file), errors="backslashreplace") as file:
                file.write(text)
        except OSError as e:
            failed.append(e)
    if html_file is not None:
        try:
            write_html([done], Path(html_file))
        except OSError as e:
            failed.append(e)
    if output is Format.JSON:
        try:
            to_stdout(text)
        except OSError as e:
            failed.append(e)
    else:
        from rich.console import Console

        print_table(done, Console(width=None if is_terminal(sys.stdout) else 120))
    for why in failed:
        print(f"forebay bench: {why.filename}: {why.strerror or why}", file=sys.stderr)
    return not failed

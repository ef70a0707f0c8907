"""`forebay calibrate`: time a live engine's steps and write a profile for the simulator."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

KEY_VARIABLE = "FOREBAY_API_KEY"


def command(
    url: Annotated[str, typer.Argument(metavar="URL", help="The engine: http://host:port, with or without /v1.")],
    model: Annotated[
        str | None, typer.Option(metavar="NAME", help="[default: the first the server lists]", show_default=False)
    ] = None,
    out: Annotated[Path, typer.Option(metavar="FILE", help="Where to write the profile.")] = Path("profile.yaml"),
    seconds: Annotated[float, typer.Option(help="How long to measure.")] = 120.0,
    max_prompt: Annotated[int, typer.Option(help="The longest prompt to send, in tokens.")] = 2048,
    max_concurrency: Annotated[int, typer.Option(help="The most requests to send at once.")] = 64,
    timeout: Annotated[float, typer.Option(help="Seconds a request may take.")] = 60.0,
    block_size: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Tokens of a KV block.", show_default=False)
    ] = None,
    kv_tokens: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Tokens the KV cache holds.", show_default=False)
    ] = None,
    max_num_seqs: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Sequences the engine runs at once.", show_default=False)
    ] = None,
    max_num_batched_tokens: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="The engine's token budget a step.", show_default=False)
    ] = None,
    max_model_len: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Tokens of prompt and answer together.", show_default=False)
    ] = None,
) -> None:
    """Time a live engine's steps and write a profile for the simulator.

    Sends prompts alone, batches that decode, and prompts beside others that decode, each prompt unlike any other; fits
    the time of a step to them and prints how far the fit is off. What the engine says about itself (vLLM, llama.cpp) is
    taken from it, what it does not say is measured; the options after --timeout are for what you know better. Nothing
    else should use the engine meanwhile. The API key is read from FOREBAY_API_KEY.

    Exits with 0 once the profile is written, with 2 where the engine could not be calibrated.
    """
    from forebay.errors import shown
    from forebay.hardware.fitted import EngineFacts, save
    from forebay.plan.calibrate import CalibrateError, Settings, calibrate
    from forebay.plan.target import LoadError, Target

    try:
        for option, value, most in (
            ("--seconds", seconds, 86_400),
            ("--timeout", timeout, 86_400),
            ("--max-prompt", max_prompt, 1_000_000),
            ("--max-concurrency", max_concurrency, 4_096),
        ):
            if not 0 < value <= most:
                raise CalibrateError(f"{option} must be more than 0 and at most {most:,}, not {value:g}")
        if not out.parent.is_dir():
            raise CalibrateError(f"--out: there is no directory {out.parent}")
        key = os.environ.get(KEY_VARIABLE) or None
        if key is not None and not (key.isascii() and key.isprintable() and " " not in key):
            raise CalibrateError(f"{KEY_VARIABLE} holds characters that a key cannot have")
        settings = Settings(
            model=model,
            seconds=seconds,
            max_prompt=max_prompt,
            max_batch=max_concurrency,
            timeout=timeout,
            given=EngineFacts(
                block_size=block_size,
                kv_tokens=kv_tokens,
                max_num_seqs=max_num_seqs,
                max_num_batched_tokens=max_num_batched_tokens,
                max_model_len=max_model_len,
            ),
        )
        target = Target.parse(url)
        import uvloop

        with _progress() as show:
            found = uvloop.run(calibrate(target, settings, key, show))
        save(found.profile, out)
    except (CalibrateError, LoadError) as e:
        print(f"forebay calibrate: {shown(e, 2000)}", file=sys.stderr)
        raise typer.Exit(2) from None
    except OSError as e:
        print(f"forebay calibrate: {shown(out, 400)} cannot be written: {e.strerror or e}", file=sys.stderr)
        raise typer.Exit(2) from None
    from rich.console import Console

    from forebay.plan.calibrate_report import print_report

    print_report(url, found, Console(width=None if sys.stdout.isatty() else 120))
    print(shown(out, 4096))


@contextmanager
def _progress() -> Iterator[Callable[[float, str], None]]:
    """A bar on a terminal, else nothing."""
    if not sys.stderr.isatty():
        yield lambda share, text: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    bar = Progress(
        BarColumn(), TimeElapsedColumn(), TextColumn("{task.description}"), console=Console(stderr=True), transient=True
    )
    with bar:
        task = bar.add_task("", total=1.0)
        yield lambda share, text: bar.update(task, completed=share, description=text)

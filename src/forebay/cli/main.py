"""`forebay …`: looks at the first word and imports only that command's module."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module
from io import TextIOWrapper
from types import MappingProxyType
from typing import NoReturn

from forebay import __version__

USAGE = 2
"""Exit code for a command line that cannot be understood."""
EX_CONFIG = 78
"""Exit code (sysexits.h) for a configuration that cannot be used; systemd's RestartPreventExitStatus knows it."""


@dataclass(frozen=True, slots=True)
class Command:
    """Where a command is: a plain function that typer reads, or a typer app with commands of its own."""

    module: str
    attribute: str
    summary: str


COMMANDS = MappingProxyType(
    {
        "serve": Command("forebay.cli.serve", "command", "Run the gateway."),
        "check": Command("forebay.cli.check", "command", "Check a configuration file and name every problem in it."),
        "schema": Command("forebay.cli.schema", "command", "Print the JSON Schema of the configuration, for editors."),
        "key": Command("forebay.cli.key", "app", "Create, list, rotate, expire, suspend and revoke API keys."),
        "account": Command(
            "forebay.cli.account",
            "app",
            "Organisations, departments, projects and users: list, create, rename, label and suspend them.",
        ),
        "limit": Command(
            "forebay.cli.limit",
            "app",
            "Limits of requests, tokens and money, kept in the database: set, list and remove them.",
        ),
        "usage": Command("forebay.cli.usage", "app", "Show who used what, and what it cost."),
        "ledger": Command(
            "forebay.cli.ledger", "app", "Verify the ledger's books, see how far they are, and correct them."
        ),
        "cache": Command(
            "forebay.cli.cache",
            "app",
            "Caches: what they save, what they hold, how often they are wrong; forget some; prompt caches.",
        ),
        "alerts": Command("forebay.cli.alerts", "app", "List alerts, and test the receivers of alerts."),
        "launch": Command(
            "forebay.cli.launch",
            "command",
            "Start the engines that the configuration describes, and keep them running.",
        ),
        "engines": Command("forebay.cli.engines", "app", "List, add, drain and remove engines of the running gateway."),
        "prices": Command("forebay.cli.prices", "app", "Show and check what models cost."),
        "tune": Command("forebay.cli.tune", "command", "Search engine flags for a workload and an SLO, by simulation."),
        "engine": Command("forebay.cli.engine", "command", "Run an emulated engine, for machines without a GPU."),
        "calibrate": Command(
            "forebay.cli.calibrate", "command", "Time a live engine's steps and write a profile for the simulator."
        ),
        "bench": Command("forebay.cli.bench", "command", "Load an OpenAI-compatible server and measure its latencies."),
        "bench compare": Command(
            "forebay.cli.bench_compare", "command", "Compare two results of forebay bench --json."
        ),
        "plan": Command("forebay.cli.plan", "command", "Plan capacity: GPUs, what they carry, what it costs."),
        "simulate": Command("forebay.cli.simulate", "command", "Simulate a workload on modelled engines."),
        "replay": Command("forebay.cli.replay", "command", "Decide a recorded run again, and compare."),
    }
)


def _have_standard_descriptors() -> None:
    """A socket must not become number 0, 1 or 2 because the parent had closed it: what is printed would go there."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # takes the lowest free number


def main() -> NoReturn:
    """The entry point of the `forebay` program."""
    code = 0
    _have_standard_descriptors()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(
                errors="backslashreplace"
            )  # a terminal that cannot show a character still shows the rest
    try:
        try:
            code = run(sys.argv[1:])
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()
    except BrokenPipeError:
        # What is still buffered would be flushed, and fail again, when the interpreter leaves.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = code or 1
    sys.exit(code)


def run(arguments: list[str]) -> int:
    """Run one command line; returns its exit code."""
    first, rest = (arguments[0], arguments[1:]) if arguments else ("", [])
    if first == "help":
        first, rest = (rest[0], ["--help"]) if rest else ("--help", [])
    if first in ("--help", "-h"):
        print(overview())
        return 0
    if first in ("--version", "-V"):
        print(f"forebay {__version__}")
        return 0
    if rest and (both := f"{first} {rest[0]}") in COMMANDS:
        return _dispatch(both, rest[1:])
    if first in COMMANDS:
        return _dispatch(first, rest)
    if not first:
        print(overview(), file=sys.stderr)
        return USAGE
    print(_unknown(first), file=sys.stderr)
    return USAGE


def overview() -> str:
    width = max(map(len, COMMANDS))
    return "\n".join(
        (
            "Usage: forebay COMMAND [OPTIONS]",
            "",
            "An LLM gateway that knows what the engines can bear, what each tenant may spend,",
            "and what each answer costs.",
            "",
            "Commands:",
            *(f"  {name:<{width}}  {command.summary}" for name, command in COMMANDS.items()),
            "",
            "Options:",
            "  --version  Print the version.",
            "  --help     Print this text; 'forebay COMMAND --help' prints a command's.",
        )
    )


def _unknown(word: str) -> str:
    shown = "".join(ch if ch.isprintable() else "�" for ch in word[:80])
    kind = "option" if word.startswith("-") else "command"
    near = get_close_matches(word, COMMANDS if kind == "command" else ("--help", "--version"), n=1)
    advice = f"did you mean '{near[0]}'?" if near else "'forebay --help' lists them."
    return f"forebay: there is no {kind} '{shown}'; {advice}"


def _dispatch(name: str, arguments: list[str]) -> int:
    entry = COMMANDS[name]
    target = getattr(import_module(entry.module), entry.attribute)
    import typer

    if not isinstance(target, typer.Typer):
        app = typer.Typer(add_completion=False)
        app.command(name, help=target.__doc__ or entry.summary)(target)
    else:
        app = target
        app.info.help = app.info.help if isinstance(app.info.help, str) else entry.summary
    app.rich_markup_mode = None
    app.pretty_exceptions_enable = False
    try:
        # Not standalone, so that what is wrong with the arguments is said below.
        code = app(args=arguments, prog_name=f"forebay {name}", standalone_mode=False)
    except SystemExit as e:
        return e.code if isinstance(e.code, int) else int(e.code is not None)
    except KeyboardInterrupt:
        return 130
    except Exception as e:
        if _is_config_error(e):
            print(e, file=sys.stderr)
            return EX_CONFIG
        if (code := _say_usage_error(e)) is not None:
            return code
        raise
    return code if isinstance(code, int) else 0


def _say_usage_error(error: Exception) -> int | None:
    """The exit code for arguments that cannot be understood, once that is said; None for another error. typer exports
    no class for these: what they have is an exit code and a way to show themselves."""
    show, code = getattr(error, "show", None), getattr(error, "exit_code", None)
    if not callable(show) or not isinstance(code, int):
        return None
    if isinstance(message := getattr(error, "message", None), str):
        error.message = message.removeprefix("Value error, ")  # type: ignore[attr-defined] # pydantic's, through typer
    show()
    return code


def _is_config_error(error: Exception) -> bool:
    """Without importing the configuration room for commands that do not use it."""
    problems = sys.modules.get("forebay.config.problems")
    return problems is not None and isinstance(error, problems.ConfigError)

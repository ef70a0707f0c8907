"""`forebay check`: what is wrong with a configuration file, all of it."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

import typer

from forebay.cli.launch_config import launch_problems
from forebay.cli.main import EX_CONFIG
from forebay.config.load import Source, advise, read
from forebay.config.problems import ConfigError, Problem, Severity
from forebay.ledger.pricebuild import CONFIGURATION, build_book

_STEP: Final = re.compile(r"[^.\[\]]+")


class Format(StrEnum):
    TEXT = "text"
    JSON = "json"


def command(
    file: Annotated[Path, typer.Argument(help="The configuration, forebay.yaml.", metavar="FILE")],
    output: Annotated[Format, typer.Option("--format", help="How problems are printed.")] = Format.TEXT,
) -> None:
    """Check a configuration file and the price file that it names, and say every problem in them.

    Exits with 0 when the file can be used (warnings are shown) and with 78 when it cannot.
    """
    try:
        source = read(file, os.environ)
        problems = sorted([*advise(source.config, source), *launch_problems(source)], key=lambda problem: problem.line)
        problems += _prices(source)
    except ConfigError as e:
        problems = e.problems
    wrong = any(problem.severity is Severity.ERROR for problem in problems)
    with suppress(BrokenPipeError):  # a reader who has left changes nothing about the verdict
        print(_json(problems, wrong) if output is Format.JSON else _text(file, problems, wrong))
    sys.exit(EX_CONFIG if wrong else 0)


def _prices(source: Source) -> Iterator[Problem]:
    """Warnings. Raises ConfigError for a price file that cannot be used."""
    if not source.config.ledger.enabled:
        return
    for problem in build_book(source.config, time.time())[1]:
        if problem.file != CONFIGURATION:
            yield problem
            continue
        path = tuple(int(step) if step.isdecimal() else step for step in _STEP.findall(problem.key))
        yield replace(problem, file=source.name, line=source.tree.nearest(path).line)


def _json(problems: list[Problem], wrong: bool) -> str:
    answer = {"ok": not wrong, "problems": [problem.as_dict() for problem in problems]}
    return json.dumps(answer, ensure_ascii=False, indent=2)


def _text(file: Path, problems: list[Problem], wrong: bool) -> str:
    lines = [str(problem) for problem in problems]
    if not wrong:
        count = len(problems)
        lines.append(f"{file}: can be used" + (f", with {count} warning{'s' * (count > 1)}" if count else ""))
    return "\n".join(lines)

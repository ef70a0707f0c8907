"""`forebay check`: what is wrong with a configuration file, all of it."""

from __future__ import annotations

import json
import os
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from forebay.cli.main import EX_CONFIG
from forebay.config.load import advise, read
from forebay.config.problems import ConfigError, Problem, Severity


class Format(StrEnum):
    TEXT = "text"
    JSON = "json"


def command(
    file: Annotated[Path, typer.Argument(help="The configuration, forebay.yaml.", metavar="FILE")],
    output: Annotated[Format, typer.Option("--format", help="How problems are printed.")] = Format.TEXT,
) -> None:
    """Check a configuration file and name every problem in it.

    Exits with 0 when the file can be used (warnings are shown) and with 78 when it cannot.
    """
    try:
        source = read(file, os.environ)
        problems = advise(source.config, source)
    except ConfigError as e:
        problems = e.problems
    wrong = any(problem.severity is Severity.ERROR for problem in problems)
    if output is Format.JSON:
        print(json.dumps({"ok": not wrong, "problems": [p.as_dict() for p in problems]}, ensure_ascii=False, indent=2))
    else:
        _print(file, problems, wrong)
    sys.exit(EX_CONFIG if wrong else 0)


def _print(file: Path, problems: list[Problem], wrong: bool) -> None:
    for problem in problems:
        print(problem)
    if not wrong:
        count = len(problems)
        print(f"{file}: can be used" + (f", with {count} warning{'s' * (count > 1)}" if count else ""))

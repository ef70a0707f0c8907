"""The engines of a configuration that are to be started, and what in their entries cannot be."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from forebay.config.document import Path, dotted
from forebay.config.engine import Engine
from forebay.config.launch import Launch
from forebay.config.load import Source
from forebay.config.models import Config
from forebay.config.problems import Problem
from forebay.engines.launching.commands import CommandLine, command_of, mistakes, nearest, program_of
from forebay.engines.launching.preflight import obstacles
from forebay.engines.launching.table import Program, Refused


@dataclass(frozen=True, slots=True)
class Launchable:
    """An engine whose command line is known."""

    engine: Engine
    launch: Launch
    program: Program
    command: CommandLine


def launch_problems(source: Source) -> Iterator[Problem]:
    """What the engines of the entries' kinds do not support, each with its line."""
    for index, engine in enumerate(source.config.engines):
        for mistake in mistakes(engine):
            path: Path = ("engines", index, *mistake.path)
            line = source.tree.nearest(path).line
            yield Problem(
                source.name, line, dotted(path), mistake.message, f"'{mistake.found}'" if mistake.found else ""
            )


def chosen(config: Config, names: Sequence[str]) -> list[Engine]:
    """The engines of these names, in the file's order; of no names, all with a launch section. Raises ValueError."""
    started = [engine for engine in config.engines if engine.launch is not None]
    if not started:
        raise ValueError("no engine has a launch section: see engines[].launch in docs/configuration.md")
    known = [engine.name for engine in started]
    for name in names:
        if name not in known:
            without = any(engine.name == name for engine in config.engines)
            why = "has no launch section" if without else "is not in the file"
            raise ValueError(f"the engine {name} {why}{nearest(name, known)}")
    return [engine for engine in started if not names or engine.name in names]


def launchables(engines: Sequence[Engine]) -> tuple[list[Launchable], list[str]]:
    """Those that can be started or printed, and what is in the way of the others."""
    found: list[Launchable] = []
    wrong: list[str] = []
    for engine in engines:
        program = program_of(engine)
        if engine.launch is None or program is None:
            continue
        try:
            found.append(Launchable(engine, engine.launch, program, command_of(engine)))
        except Refused as e:
            wrong.append(str(e))
    return found, wrong


def in_the_way(found: Sequence[Launchable]) -> list[str]:
    """What would keep those that run here from starting now."""
    return [why for one in found if one.program.here for why in obstacles(one.engine, one.command)]

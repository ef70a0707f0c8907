"""The command line of an engine that is to be started, and what in its entry the engine does not support."""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from types import MappingProxyType
from typing import Final

from forebay.config.engine import Engine
from forebay.config.launch import SECRET_VARIABLE, Launch
from forebay.engines.launching import llamacpp, ollama, sglang, tgi, trtllm, vllm
from forebay.engines.launching.table import Program, Refused, asked
from forebay.errors import shown

PROGRAMS: Final[Mapping[str, Program]] = MappingProxyType(
    {p.kind: p for p in (vllm.PROGRAM, sglang.PROGRAM, llamacpp.PROGRAM, trtllm.PROGRAM, tgi.PROGRAM, ollama.PROGRAM)}
)

HIDDEN: Final = "(hidden)"
_SECRET_WORD: Final = re.compile(r"(?:key|token|secret|password)$")

Which = Callable[[str], str | None]


@dataclass(frozen=True, slots=True)
class Mistake:
    """What is wrong with one key of an engine's entry; `path` leads to it from the entry."""

    path: tuple[str | int, ...]
    message: str
    found: str = ""


@dataclass(frozen=True, slots=True)
class CommandLine:
    """`variables`: what is added to the environment. `secrets`: texts that no output shows."""

    words: tuple[str, ...]
    variables: Mapping[str, str]
    secrets: frozenset[str]

    def shown(self) -> str:
        """For a shell, but for the secrets."""
        parts = [f"{name}={self._word(value)}" for name, value in self.variables.items()]
        return " ".join([*parts, *(self._word(word) for word in self.words)])

    def _word(self, word: str) -> str:
        for secret in self.secrets:
            word = word.replace(secret, HIDDEN)
        return shlex.quote(word)


def program_of(engine: Engine) -> Program | None:
    """None for a kind that cannot be started."""
    return PROGRAMS.get(str(engine.kind))


def mistakes(engine: Engine) -> Iterator[Mistake]:
    """Nothing for an engine without a launch section."""
    launch = engine.launch
    if launch is None:
        return
    program = program_of(engine)
    if program is None:
        kinds = ", ".join(PROGRAMS)
        yield Mistake(("kind",), f"launch starts an engine of one of these kinds: {kinds}", str(engine.kind))
        return
    for name, value in asked(launch):
        try:
            program.settings[name].words(value, launch)
        except Refused as e:
            yield Mistake(("launch", name), f"{program.title}: {e}", shown(value))
    if engine.api_key is not None:
        try:
            program.key.words(engine.api_key, launch)
        except Refused as e:
            yield Mistake(("api_key",), str(e))
    if launch.python is not None and program.kind not in ("vllm", "sglang", "llamacpp"):
        yield Mistake(("launch", "python"), f"{program.title} is a program of its own: use launch.command")
    yield from _flags(program, launch)


def _flags(program: Program, launch: Launch) -> Iterator[Mistake]:
    """Flags beside the fields that set them: which of the two counts would depend on the engine."""
    owner = {flag: name for name, setting in program.settings.items() for flag in setting.names}
    owner |= {alias: owner[flag] for alias, flag in program.aliases.items() if flag in owner}
    owner |= dict.fromkeys(program.model_names, "model")
    for index, word in enumerate(launch.flags):
        flag = word.partition("=")[0]
        at = ("launch", "flags", index)
        if flag in owner:
            field = owner[flag]
            text = f"launch.{field} says it: leave the flag and its value out"
            if getattr(launch, field) is None:
                text = f"set launch.{field} instead"
            yield Mistake(at, text, flag)
        elif flag == "--api-key":
            yield Mistake(at, "set the entry's api_key instead: the gateway has to send it", flag)


def command_of(engine: Engine, which: Which | None = None) -> CommandLine:
    """`engine` has a launch section without mistakes. `which` finds programs, by default on its PATH. Raises Refused
    where the program is not there."""
    launch, program = engine.launch, program_of(engine)
    if launch is None or program is None:
        raise Refused(f"{engine.name} has no launch section, or its kind cannot be started")
    path = launch.env.get("PATH")
    head = launch.command or program.found(launch, which or (lambda name: shutil.which(name, path=path)))
    if not head and program.here:
        raise Refused(not_installed(engine.name, program))
    head = head or program.found(launch, lambda name: name)
    words, variables = [*head, *program.model(launch, head)], dict(launch.env)
    for name, value in asked(launch):
        words += program.settings[name].words(value, launch)
        variables |= program.settings[name].variables(value, launch)
    if engine.api_key is not None:
        words += program.key.words(engine.api_key, launch)
        variables |= program.key.variables(engine.api_key, launch)
    if launch.report:
        words += [flag for flag in program.report(launch) if flag not in words]
    words += launch.flags
    return CommandLine(tuple(words), variables, frozenset(_secrets(engine, words, variables)))


def not_installed(name: str, program: Program) -> str:
    if program.kind == "llamacpp":
        return f"{name}: llama.cpp is not here: {program.install}, or name llama-server in launch.command"
    how = f"{program.install}, and name its Python in launch.python"
    return f"{name}: {program.title} is not here: {how} (or the program in launch.command)"


def _secrets(engine: Engine, words: list[str], variables: Mapping[str, str]) -> Iterator[str]:
    """Texts that are secret by where they stand."""
    if engine.api_key is not None:
        yield engine.api_key
    yield from (value for name, value in variables.items() if value and SECRET_VARIABLE.search(name))
    for word, after in zip(words, [*words[1:], ""], strict=True):
        flag, equals, value = word.partition("=")
        if flag.startswith("--") and _SECRET_WORD.search(flag) and (text := value if equals else after):
            yield text


def nearest(name: str, names: list[str]) -> str:
    """The end of a message about an engine's name that is none."""
    near = get_close_matches(name, names, n=1)
    return f"; did you mean {near[0]}?" if near else f"; there are {', '.join(names)}" if names else ""

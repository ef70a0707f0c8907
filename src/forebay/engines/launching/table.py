"""What an engine's table is made of: each setting of `engines[].launch` is a flag, a choice of flags, an environment
variable, or something that the engine does not have, with what to do instead."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from forebay.config.launch import Launch

SETTINGS: Final = (
    "host",
    "port",
    "served_model_name",
    "tensor_parallel_size",
    "gpu_memory_utilization",
    "max_model_len",
    "dtype",
    "block_size",
    "max_num_seqs",
    "max_num_batched_tokens",
    "enable_prefix_caching",
    "scheduling_policy",
)
"""The fields that every engine's table answers for, in the order in which they are written."""


class Refused(ValueError):
    """A value that the engine does not support; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Flag:
    """`--name VALUE`. `choices`: the values it takes, where not any. `of`: the value, where it is not the field's."""

    name: str
    choices: tuple[str, ...] = ()
    of: Callable[[Launch], object] | None = None

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name,)

    def words(self, value: object, launch: Launch) -> tuple[str, ...]:
        if self.choices and value not in self.choices:
            raise Refused(f"not one of its choices: {', '.join(self.choices)}")
        return (self.name, written(self.of(launch) if self.of is not None else value))

    def variables(self, value: object, launch: Launch) -> Mapping[str, str]:
        return {}


@dataclass(frozen=True, slots=True)
class Choice:
    """For each value its words, maybe none; `refuses` says what to do about a value that has none."""

    by: Mapping[object, tuple[str, ...]]
    refuses: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(words[0] for words in self.by.values() if words)

    def words(self, value: object, launch: Launch) -> tuple[str, ...]:
        if value not in self.by:
            raise Refused(self.refuses)
        return self.by[value]

    def variables(self, value: object, launch: Launch) -> Mapping[str, str]:
        return {}


@dataclass(frozen=True, slots=True)
class Variable:
    """An environment variable. `spelt`: how values are written there, where not as they are. `of`: as a flag's."""

    name: str
    spelt: Mapping[object, str] = field(default_factory=dict)
    of: Callable[[Launch], object] | None = None

    @property
    def names(self) -> tuple[str, ...]:
        return ()

    def words(self, value: object, launch: Launch) -> tuple[str, ...]:
        return ()

    def variables(self, value: object, launch: Launch) -> Mapping[str, str]:
        if self.of is not None:
            value = self.of(launch)
        return {self.name: self.spelt.get(value, written(value))}


def missing(instead: str) -> Choice:
    """A setting that the engine does not have in any value."""
    return Choice({}, instead)


Setting = Flag | Choice | Variable


@dataclass(frozen=True, slots=True)
class Program:
    """One kind of engine. `source`: repository, file and version that the names were read from."""

    kind: str
    title: str
    source: str
    here: bool
    """Whether `forebay launch` runs it; where not, it prints the command."""
    install: str
    """What makes the program be there."""
    health: str
    """Path that answers 200 where it is ready."""
    settings: Mapping[str, Setting]
    found: Callable[[Launch, Callable[[str], str | None]], tuple[str, ...]]
    """The words in front of the flags, None of `launch.command`: () where there is no such program. The second
    argument is `shutil.which`."""
    model: Callable[[Launch, tuple[str, ...]], tuple[str, ...]]
    """The words for the model, after those in front of the flags, which are given. Raises Refused."""
    key: Setting
    """How `api_key` of the entry is asked of callers."""
    report: Callable[[Launch], tuple[str, ...]] = lambda launch: ()
    """The flags that `launch.report` adds."""
    aliases: Mapping[str, str] = field(default_factory=dict)
    """Other spellings of flags in the table."""
    model_names: tuple[str, ...] = ()
    """Flags that name the model."""
    single_file: bool = False
    """Whether a model that is a path is one file."""


def written(value: object) -> str:
    return f"{value:.12g}" if isinstance(value, float) else str(value)


def asked(launch: Launch) -> Iterator[tuple[str, object]]:
    """The settings that are not left to the engine."""
    for name in SETTINGS:
        if (value := getattr(launch, name)) is not None:
            yield name, value


def called(*names: str) -> Callable[[Launch, Callable[[str], str | None]], tuple[str, ...]]:
    """A program by its name on PATH, and words after it."""
    return lambda launch, which: names if which(names[0]) else ()

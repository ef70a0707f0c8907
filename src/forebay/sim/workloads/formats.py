"""The forms a trace file may have, and how each is recognised."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

import msgspec

from forebay.errors import shown
from forebay.sim.workload import Ask
from forebay.sim.workloads import azure, batch, mooncake, own, vllm_run
from forebay.sim.workloads.arrivals import Arrivals
from forebay.sim.workloads.dice import dice
from forebay.sim.workloads.distributions import Distribution, whole
from forebay.sim.workloads.errors import BadRow

Parser = Callable[[bytes], Ask]


@dataclass(frozen=True, slots=True)
class BatchOptions:
    """What a batch file does not say."""

    arrivals: Arrivals | None = None
    output: Distribution | None = None
    part_tokens: int = 0
    seed: str = "0"

    def parser(self) -> Parser:
        times: Iterator[float] | None = None
        if self.arrivals is not None:
            times = self.arrivals.times(dice(self.seed, "arrivals"))
        output = None if self.output is None else whole(self.output, dice(self.seed, "lengths"))
        return batch.parser(arrivals=times, output=output, part_tokens=self.part_tokens)


@dataclass(frozen=True, slots=True)
class Format:
    name: str
    what: str
    fields: str
    signs: frozenset[str]
    """Fields that only this form has: one of them in the first line is enough."""


AZURE: Final = Format("azure", "Azure CSV", ", ".join(azure.COLUMNS), frozenset())
MOONCAKE: Final = Format("mooncake", "Mooncake JSONL", mooncake.FIELDS, frozenset({"hash_ids", "input_length"}))
RUN: Final = Format("vllm", "requests of a vLLM run, JSONL", vllm_run.FIELDS, frozenset({"input_toks", "output_toks"}))
BATCH: Final = Format("batch", "OpenAI batch JSONL", batch.FIELDS, frozenset({"custom_id", "body"}))
OWN: Final = Format("jsonl", "Forebay's JSONL", own.FIELDS, frozenset({"prompt_tokens", "output_tokens", "arrival"}))

FORMATS: Final = MappingProxyType({form.name: form for form in (AZURE, MOONCAKE, OWN, BATCH, RUN)})


def recognise(first: bytes) -> Format:
    """The form of a file that begins with this line. Raises BadRow where it is none of them."""
    if not first.startswith(b"{"):
        columns = {name.strip().strip('"').casefold() for name in first.decode().split(",")}
        if columns & {column.casefold() for column in azure.COLUMNS}:
            return AZURE
        raise BadRow(f"the first line is '{shown(first.decode(), 60)}', of no known form: {_known()}")
    try:
        fields = set(msgspec.json.decode(first, type=dict[str, msgspec.Raw]))
    except (msgspec.DecodeError, RecursionError) as e:
        raise BadRow(f"the first line begins like JSON and is not: {shown(str(e))}") from None
    for form in (MOONCAKE, RUN, BATCH, OWN):
        if fields & form.signs:
            return form
    raise BadRow(f"the first line has the fields {shown(', '.join(sorted(fields)), 60)}, of no known form: {_known()}")


def _known() -> str:
    return "; ".join(f"{form.name} ({form.fields})" for form in FORMATS.values())


def make_parser(form: Format, first: bytes, options: BatchOptions) -> Parser:
    """The parser of a file's rows. `first`: its first line, for a form that has a header. Raises BadRow for a header
    that lacks a column."""
    if form is AZURE:
        return azure.parser(first)
    if form is MOONCAKE:
        return mooncake.parser()
    if form is RUN:
        return vllm_run.parser()
    if form is BATCH:
        return options.parser()
    return own.parser()

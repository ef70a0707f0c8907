"""The requests of a measured run of vLLM, as a workload: JSONL with `input_toks`, `output_toks` and `arrival_time` (s,
on any clock). What the run measured is left aside; benchmarks/fidelity reads that."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

import msgspec

from forebay.sim.workload import Ask
from forebay.sim.workloads.bounds import MAX_SECONDS, MAX_TOKENS, bad_tokens
from forebay.sim.workloads.errors import BadRow
from forebay.sim.workloads.jsonrow import decoder

FIELDS: Final = "input_toks, output_toks, arrival_time"


class Row(msgspec.Struct, gc=False):
    input_toks: int
    output_toks: int
    arrival_time: float


def parser() -> Callable[[bytes], Ask]:
    """Arrivals count from the first row it is given. The parser raises BadRow for a row that is no request."""
    decode = decoder(Row, "a row of a vLLM run", FIELDS)
    begin: float | None = None

    def parse(line: bytes) -> Ask:
        nonlocal begin
        row = decode(line)
        if not 1 <= row.input_toks <= MAX_TOKENS:
            bad_tokens("input_toks", row.input_toks)
        if not 1 <= row.output_toks <= MAX_TOKENS:
            bad_tokens("output_toks", row.output_toks)
        if begin is None:
            begin = row.arrival_time
        arrival = row.arrival_time - begin
        if not (math.isfinite(arrival) and arrival <= MAX_SECONDS):
            raise BadRow(f"arrival_time is {row.arrival_time}, over {MAX_SECONDS:,} seconds after the first row's")
        return Ask(arrival, row.input_toks, row.output_toks)

    return parse

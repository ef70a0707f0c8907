"""The JSONL of the Mooncake traces (kvcache-ai/Mooncake, FAST25-release): `timestamp` in ms after the begin,
`input_length`, `output_length`, and `hash_ids`: one number for each 512 tokens of the prompt, equal numbers for equal
prefixes up to there."""

from __future__ import annotations

from collections.abc import Callable
from itertools import repeat
from typing import Final

import msgspec

from forebay.sim.workload import Ask
from forebay.sim.workloads.bounds import MAX_SECONDS, MAX_TOKENS, bad_seconds, bad_tokens
from forebay.sim.workloads.errors import BadRow
from forebay.sim.workloads.jsonrow import decoder

BLOCK: Final = 512
"""Tokens that one hash id stands for."""
FIELDS: Final = "timestamp, input_length, output_length, hash_ids"


class Row(msgspec.Struct, gc=False):
    timestamp: float
    input_length: int
    output_length: int
    hash_ids: list[int] = []


def parser() -> Callable[[bytes], Ask]:
    """The parser raises BadRow for a row that is no request."""
    decode = decoder(Row, "a Mooncake row", FIELDS)

    def parse(line: bytes) -> Ask:
        row = decode(line)
        arrival = row.timestamp / 1000
        prompt, output, ids = row.input_length, row.output_length, row.hash_ids
        if not 0 <= arrival <= MAX_SECONDS:
            bad_seconds("timestamp", row.timestamp, "milliseconds")
        if not 1 <= prompt <= MAX_TOKENS:
            bad_tokens("input_length", prompt)
        if not 1 <= output <= MAX_TOKENS:
            bad_tokens("output_length", output)
        whole, rest = divmod(prompt, BLOCK)
        pieces = tuple(zip(ids, repeat(BLOCK), strict=False))
        if len(ids) > whole:
            if len(ids) > whole + (rest > 0):
                raise BadRow(
                    f"hash_ids has {len(ids):,} ids; input_length {prompt:,} has room for {whole + (rest > 0):,}, "
                    f"one for each {BLOCK} tokens"
                )
            pieces = (*pieces[:-1], (ids[-1], rest))
        return Ask(arrival, prompt, output, pieces)

    return parse

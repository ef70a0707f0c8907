"""Forebay's own JSONL, which holds all that an Ask is made of; docs/workloads.md describes its fields."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import IO, Any, Final

import msgspec

from forebay.errors import shown
from forebay.sim.workload import Ask
from forebay.sim.workloads.bounds import (
    MAX_KEY,
    MAX_PIECES,
    MAX_PRIORITY,
    MAX_SECONDS,
    MAX_TOKENS,
    bad_seconds,
    bad_tokens,
    check_class,
)
from forebay.sim.workloads.errors import BadRow
from forebay.sim.workloads.jsonrow import decoder

FIELDS: Final = "arrival, prompt_tokens, output_tokens, prefix, tenant, class, priority, keeps"


class Row(msgspec.Struct, gc=False, forbid_unknown_fields=True, omit_defaults=True):
    arrival: float
    prompt_tokens: int
    output_tokens: int
    prefix: tuple[tuple[int | str, int], ...] = ()
    tenant: str = ""
    cls: str = msgspec.field(default="normal", name="class")
    priority: int = 0
    keeps: int | str | None = None


def parser() -> Callable[[bytes], Ask]:
    """The parser raises BadRow for a row that is no request."""
    decode = decoder(Row, "a row of Forebay's own form", FIELDS)

    def parse(line: bytes) -> Ask:
        row = decode(line)
        if not 0 <= row.arrival <= MAX_SECONDS:
            bad_seconds("arrival", row.arrival)
        if not 1 <= row.prompt_tokens <= MAX_TOKENS:
            bad_tokens("prompt_tokens", row.prompt_tokens)
        if not 1 <= row.output_tokens <= MAX_TOKENS:
            bad_tokens("output_tokens", row.output_tokens)
        if row.prefix:
            _check_prefix(row.prefix, row.prompt_tokens)
        if not -MAX_PRIORITY <= row.priority < MAX_PRIORITY:
            raise BadRow(f"priority is {row.priority}; allowed are {-MAX_PRIORITY:,} to {MAX_PRIORITY - 1:,}")
        _check_name("tenant", row.tenant)
        if isinstance(row.keeps, str):
            _check_name("keeps", row.keeps)
        return Ask(
            row.arrival,
            row.prompt_tokens,
            row.output_tokens,
            row.prefix,
            row.tenant,
            check_class(row.cls),
            row.priority,
            row.keeps,
        )

    return parse


def _check_prefix(prefix: tuple[tuple[int | str, int], ...], prompt: int) -> None:
    if len(prefix) > MAX_PIECES:
        raise BadRow(f"prefix has {len(prefix):,} pieces; allowed are {MAX_PIECES:,}")
    total = 0
    for key, tokens in prefix:
        if isinstance(key, str):
            _check_name("a key of prefix", key)
        if tokens < 1:
            bad_tokens("a piece of prefix", tokens)
        total += tokens
    if total > prompt:
        raise BadRow(f"the pieces of prefix hold {total:,} tokens; prompt_tokens is {prompt:,}")


def _check_name(field: str, name: str) -> None:
    if len(name) > MAX_KEY:
        raise BadRow(f"{field} has {len(name):,} characters ('{shown(name, 20)}'); allowed are {MAX_KEY}")


def write(asks: Iterable[Ask], file: IO[bytes]) -> int:
    """Write a workload in this form, a line each. How many there were."""
    encoder = msgspec.json.Encoder()
    buffer = bytearray()
    n = 0
    for ask in asks:
        row: Any = Row(*ask)
        encoder.encode_into(row, buffer)
        buffer += b"\n"
        file.write(buffer)
        n += 1
    return n

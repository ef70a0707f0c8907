"""The CSV of the Azure LLM inference traces (Azure/AzurePublicDataset, 2023 and 2024):
`TIMESTAMP,ContextTokens,GeneratedTokens`, the time as `2023-11-16 18:15:46.6805900`, with or without a zone."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable
from datetime import datetime
from typing import Final

from forebay.errors import shown
from forebay.sim.workload import Ask
from forebay.sim.workloads.bounds import MAX_SECONDS, MAX_TOKENS, bad_tokens
from forebay.sim.workloads.errors import BadRow

COLUMNS: Final = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
_SECONDS: Final = re.compile(rb":(\d\d(?:\.\d{1,9})?)(?:Z|([+-])(\d\d):?(\d\d))?")
_MINUTE: Final = 16  # 2023-11-16 18:15


def parser(header: bytes) -> Callable[[bytes], Ask]:
    """Of the rows below this header: its arrivals count from the first row it is given. Raises BadRow for a column that
    is missing; the parser raises it for a row that is no request."""
    names = [name.strip().lower() for name in _fields(header)]
    missing = [column for column in COLUMNS if column.lower().encode() not in names]
    if missing:
        raise BadRow(
            f"the column{'s' if len(missing) > 1 else ''} {' and '.join(missing)} "
            f"{'are' if len(missing) > 1 else 'is'} missing; the header is '{shown(header.decode())}', "
            f"an Azure trace has {', '.join(COLUMNS)}"
        )
    for column in COLUMNS:
        if (often := names.count(column.lower().encode())) > 1:
            raise BadRow(f"the column {column} is there {often} times; which of them counts cannot be told")
    when, prompt, output = (names.index(column.lower().encode()) for column in COLUMNS)
    width = len(names)
    begin: datetime | None = None
    since = 0.0
    minute = b""
    offset = 0.0

    def parse(line: bytes) -> Ask:
        nonlocal begin, since, minute, offset
        fields = line.split(b",") if b'"' not in line else _fields(line)
        if b", " in line or b" ," in line or b"\t" in line:
            fields = [field.strip() for field in fields]
        if len(fields) != width:
            raise BadRow(f"{len(fields)} columns where the header has {width}")
        a, b = fields[prompt], fields[output]
        prompt_tokens = int(a) if a.isdigit() else bad_tokens("ContextTokens", _text(a))
        output_tokens = int(b) if b.isdigit() else bad_tokens("GeneratedTokens", _text(b))
        if not 1 <= prompt_tokens <= MAX_TOKENS:
            bad_tokens("ContextTokens", _text(a))
        if not 1 <= output_tokens <= MAX_TOKENS:
            bad_tokens("GeneratedTokens", _text(b))
        stamp = fields[when]
        if stamp[:_MINUTE] != minute:
            at = _minute(stamp)
            if begin is None:
                begin, since = at, _seconds(stamp)
            minute, offset = stamp[:_MINUTE], (at - begin).total_seconds() - since
        arrival = offset + _seconds(stamp)
        if not arrival <= MAX_SECONDS:
            raise BadRow(f"TIMESTAMP {_text(stamp)} is more than {MAX_SECONDS:,} seconds after the first")
        return Ask(arrival, prompt_tokens, output_tokens)

    return parse


def _fields(line: bytes) -> list[bytes]:
    try:
        return [field.encode() for field in next(csv.reader([line.decode()], strict=True, skipinitialspace=True))]
    except csv.Error as e:
        raise BadRow(f"not a row of CSV: {e}") from None


def _minute(stamp: bytes) -> datetime:
    try:
        return datetime.fromisoformat(stamp[:_MINUTE].decode())  # the zone is in the seconds' part
    except ValueError:
        raise _bad_time(stamp) from None


def _seconds(stamp: bytes) -> float:
    """Of the minute; less the zone's offset from UTC, if one is named."""
    if len(stamp) == 27 and stamp[16:17] == b":" and stamp[17:19].isdigit() and stamp[20:].isdigit():
        seconds = float(stamp[17:]) if stamp[19:20] == b"." else 60.0
        if seconds < 60.0:
            return seconds
    match = _SECONDS.fullmatch(stamp, _MINUTE)
    if match is None or float(match[1]) >= 60.0:
        raise _bad_time(stamp)
    if match[2] is None:
        return float(match[1])
    zone = int(match[3]) * 3600 + int(match[4]) * 60
    return float(match[1]) - (zone if match[2] == b"+" else -zone)


def _bad_time(stamp: bytes) -> BadRow:
    return BadRow(f"TIMESTAMP is '{_text(stamp)}'; allowed are times like 2023-11-16 18:15:46.6805900")


def _text(field: bytes) -> str:
    return shown(field.decode())

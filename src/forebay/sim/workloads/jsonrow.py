"""Rows of JSON: typed decoding, and errors that name the field."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, TypeVar

import msgspec

from forebay.errors import shown
from forebay.sim.workloads.errors import BadRow

T = TypeVar("T")
_MISSING: Final = re.compile(r"missing required field `(?P<field>[^`]*)`(?: - at `\$\.?(?P<path>.*)`)?")
_UNKNOWN: Final = re.compile(r"contains unknown field `(?P<field>.*?)`(?: - at `\$\.?(?P<path>.*)`)?$")
_WRONG: Final = re.compile(r"(?P<what>.*) - at `\$\.?(?P<path>.*)`")


def decoder(kind: type[T], what: str, fields: str) -> Callable[[bytes], T]:
    """Of one line each; it raises BadRow. `what` is such a row's name and `fields` what it has, for the errors."""
    decode = msgspec.json.Decoder(kind).decode

    def one(line: bytes) -> T:
        try:
            return decode(line)
        except msgspec.ValidationError as e:
            raise BadRow(_problem(str(e), what, fields)) from None
        except msgspec.DecodeError as e:
            raise BadRow(f"not JSON: {shown(str(e))}") from None
        except RecursionError:
            raise BadRow("the JSON is nested too deeply") from None

    return one


def _problem(message: str, what: str, fields: str) -> str:
    if match := _MISSING.search(message):
        return f"the field {_at(match)} is missing; {what} has {fields}"
    if match := _UNKNOWN.search(message):
        return f"the field {shown(_at(match))} is unknown; {what} has {fields}"
    if match := _WRONG.fullmatch(message):
        return f"{match['path'] or 'the row'}: {match['what'].replace('`', '').lower()}"
    return f"{message.replace('`', '').lower()}; {what} has {fields}"


def _at(match: re.Match[str]) -> str:
    return f"{match['path']}.{match['field']}" if match["path"] else match["field"]

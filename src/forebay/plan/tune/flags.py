"""The flags that engines know, and whether a command line would be taken.

`flags/KIND.json`: for each flag what it takes. `switch`: nothing; `int`, `float`, `text`, `json`; `size`: a whole
number, also as 8k or 1M; `words`: one or more; `maybe`: one or none; `any`: not known; a list: one of these. `same`:
other spellings. `source` and `version` say where the names are from; a later engine may know more.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from importlib.resources import files
from typing import Final

from forebay.errors import shown

KINDS: Final = ("vllm", "sglang", "trtllm", "tgi")
_SIZE: Final = re.compile(r"-?\d+(\.\d+)?[kKmMgGtT]?i?|auto", re.ASCII)
_BASES: Final = ("--", "-")


@dataclass(frozen=True, slots=True)
class Flags:
    """Of one engine."""

    engine: str
    version: str
    source: str
    flags: Mapping[str, str | list[str]]
    same: Mapping[str, str]

    def takes(self, flag: str) -> str | list[str] | None:
        """What its value is; None for a flag that it does not know. Upper and lower case differ; - and _ differ too
        where the engine tells them apart, which vLLM does not."""
        name = self.same.get(flag, flag)
        if name not in self.flags and self.engine == "vLLM":
            name = name.replace("_", "-")
            name = self.same.get(name, name)
        return self.flags.get(name)

    def canonical(self, flag: str) -> str:
        name = flag if flag in self.flags or flag in self.same else flag.replace("_", "-")
        return self.same.get(name, name)


def load(kind: str) -> Flags:
    """`kind`: one of KINDS."""
    raw = json.loads(files("forebay.plan.tune").joinpath("flags", f"{kind}.json").read_text(encoding="utf-8"))
    return Flags(raw["engine"], raw["version"], raw["source"], raw["flags"], raw["same"])


def pairs(words: Sequence[str], known: Flags) -> Iterator[tuple[str, list[str]]]:
    """Flags of a command line and the words that belong to each. What belongs to none is skipped."""
    i = 0
    while i < len(words):
        word = words[i]
        i += 1
        if not _is_flag(word):
            continue
        flag, equals, value = word.partition("=")
        takes = known.takes(flag)
        values = [value] if equals else []
        most = 0 if equals or takes == "switch" else len(words) if takes in ("words", "any") else 1
        while (
            len(values) < most and i < len(words) and not (_is_flag(words[i]) and takes not in ("int", "float", "size"))
        ):
            values.append(words[i])
            i += 1
        yield flag, values


def _is_flag(word: str) -> bool:
    return word.startswith("-") and len(word) > 1 and not re.fullmatch(r"-\d+(\.\d+)?", word)


def problems(words: Sequence[str], known: Flags) -> list[str]:
    """What the engine would refuse of the flags among `words`, a sentence each; none: it would take them."""
    found, seen = [], set()
    for flag, values in pairs(words, known):
        takes = known.takes(flag)
        if takes is None:
            near = get_close_matches(flag, [*known.flags, *known.same], n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            found.append(f"{known.engine} {known.version} knows no flag {shown(flag, 80)}{hint}")
            continue
        name = known.canonical(flag)
        if name in seen:
            found.append(f"{flag} is given twice")
        seen.add(name)
        if (why := _wrong(values, takes)) is not None:
            found.append(f"{flag}: {why}")
    return found


def _wrong(values: Sequence[str], takes: str | list[str]) -> str | None:
    if takes == "switch":
        return f"takes no value, not '{shown(values[0], 80)}'" if values else None
    if takes in ("any", "maybe"):
        return None
    if not values:
        return "needs a value"
    value = values[0]
    if isinstance(takes, list):
        return None if value in takes else f"must be one of {', '.join(takes)}, not '{shown(value, 80)}'"
    if takes == "int" and not re.fullmatch(r"-?\d+", value, re.ASCII):
        return f"must be a whole number, not '{shown(value, 80)}'"
    if takes == "size" and not _SIZE.fullmatch(value):
        return f"must be a whole number, not '{shown(value, 80)}'"
    if takes == "float":
        try:
            float(value)
        except ValueError:
            return f"must be a number, not '{shown(value, 80)}'"
    if takes == "json":
        try:
            json.loads(value)
        except ValueError:
            return f"must be JSON, not '{shown(value, 80)}'"
    return None

"""A stream's events without what repeats: a token of four letters comes in an event of two hundred bytes, and from one
to the next only the words differ.

What stands between the words of two events (the end of the one, the beginning of the next) is kept once, and each place
where it stood is marked by a byte that no event can hold: control characters are escaped in JSON. Nothing is lost,
whatever the events are; where they do not repeat, nothing is saved.
"""

from __future__ import annotations

import re
from itertools import islice
from typing import Final

_MARKS: Final = (b"\0", b"\x01", b"\x02")
_SOME: Final = 2
"""Events before the one that is taken as an example: the first ones have a role, or no words."""
_WORTH: Final = 0.9
"""Of its bytes, what a stream must come down to."""
_NAMES: Final = tuple(
    re.compile(rb'"%b": ?"' % name) for name in (b"content", b"reasoning_content", b"reasoning", b"text", b"arguments")
)
_STRING: Final = re.compile(rb'[^"\\\0-\x1f]*(?:\\[^\0-\x1f][^"\\\0-\x1f]*)*')
_EVENT: Final = b"data: "


def pack(events: bytes) -> tuple[bytes, tuple[bytes, ...]]:
    """(the events, shorter, and what repeats in them), for `unpack`."""
    if any(mark in events for mark in _MARKS):
        return events, ()
    repeated: list[bytes] = []
    for name in _NAMES:
        between = _between(events, name)
        if between is not None:
            shorter = events.replace(between, _MARKS[len(repeated)])
            if len(shorter) + len(between) < _WORTH * len(events):
                events = shorter
                repeated.append(between)
                if len(repeated) == len(_MARKS):
                    break
    return events, tuple(repeated)


def unpack(packed: bytes, repeated: tuple[bytes, ...]) -> bytes:
    for mark, between in zip(_MARKS, repeated, strict=False):
        packed = packed.replace(mark, between)
    return packed


def _between(events: bytes, name: re.Pattern[bytes]) -> bytes | None:
    """What stands between the words of one event and those of the next, by the example of one in which a field of that
    name has words; None where there is no such event."""
    found = next(islice(name.finditer(events), _SOME, None), None)
    if found is None:
        return None
    begin = events.rfind(_EVENT, 0, found.start())
    end = events.find(b"\n\n", found.end()) + 2
    words = _STRING.match(events, found.end())
    if begin < 0 or end < 2 or words is None or words.end() > end:
        return None
    between = events[words.end() : end] + events[begin : found.end()]
    return between if not any(mark in between for mark in _MARKS) else None

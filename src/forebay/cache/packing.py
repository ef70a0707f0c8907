"""A stream's events without what repeats: a token of four letters comes in an event of two hundred bytes, and from one
to the next only the words differ.

What stands between the words of two events (the end of the one, the beginning of the next) is kept once, and each place
where it stood is marked by a byte that no event can hold: control characters are escaped in JSON. Nothing is lost,
whatever the events are; where they do not repeat, nothing is saved.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import islice
from typing import Final, NamedTuple

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
_CUT: Final = re.compile(rb"\\(?:u[0-9a-fA-F]{0,3})?(?:\0|$)|\\u[dD][89abAB]")
"""An escape at the end of an event's words that may go on in the next one's, or half of a character."""
_CHUNK_END: Final = b"\n\n\r\n"
_LF: Final = 10
_PAST_HEAD: Final = 6
"""An offset behind the line end of a chunk's head of up to four digits, and before the first line end of an event."""
_ENDS: Final = 8
"""Events at either end of a stream that may look otherwise: a role, an end, usage."""
_FEW: Final = 2 * _ENDS


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


class Run(NamedTuple):
    """A stream of which most events differ in their words alone. `same`: what its events say, in few of them: those of
    the run as one with all of their words."""

    same: bytes
    body: bytes
    repeated: tuple[bytes, ...]


def run_of(chunks: Sequence[bytes]) -> Run | None:
    """Of chunks, framed as HTTP's, an event in each: as `pack` would have it, in a fraction of its time. None where
    they are not like that, or where a word may begin in one event and end in the next."""
    n = len(chunks)
    if n < _FEW:
        return None
    example = chunks[n // 2]
    at = example.find(b"\n") + 1
    for name in _NAMES:
        found = name.search(example, at)
        words = _STRING.match(example, found.end()) if found is not None else None
        if found is not None and words is not None and words.end() > words.start():
            break
    else:
        return None
    before, after = example[at : found.end()], example[words.end() :]
    if not before.startswith(_EVENT) or b"\n" in before or after.find(_LF) != len(after) - len(_CHUNK_END):
        return None  # also where a piece has several
    first = next((i for i in range(_ENDS) if _fits(chunks[i], before, after)), n)
    last = next((i for i in range(n - 1, n - 1 - _ENDS, -1) if _fits(chunks[i], before, after)), 0)
    if last - first < _ENDS:
        return None
    run = chunks[first : last + 1]
    said = _said(run, before, after, run[0].find(b"\n") + 1)
    if len(said) != len(run):  # not all have a size of as many digits
        said = _said([unframed(one) + b"\r\n" for one in run], before, after, 0)
    marked = _MARKS[0].join(said)
    if len(said) != len(run) or marked.count(_MARKS[0]) != len(said) - 1:
        return None
    whole = b"".join(said)
    if (b'"' in whole and not _STRING.fullmatch(whole)) or (b"\\" in whole and _CUT.search(marked)):
        return None
    head = b"".join([unframed(one) for one in chunks[:first]])
    tail = b"".join([unframed(one) for one in chunks[last + 1 :]])
    if any(mark in part for mark in _MARKS for part in (head, before, after, tail)):
        return None
    after = after[:-2]
    body = b"%b%b%b%b%b" % (head, before, marked, after, tail)
    return Run(b"%b%b%b%b%b" % (head, before, whole, after, tail), body, (after + before,))


def _said(run: Sequence[bytes], before: bytes, after: bytes, at: int) -> list[bytes]:
    """The words of those that have them between the two. `at`: where an event begins."""
    begin, end = at + len(before), -len(after)
    return [one[begin:end] for one in run if one.startswith(before, at) and one.endswith(after)]


def _fits(chunk: bytes, before: bytes, after: bytes) -> bool:
    return chunk.endswith(after) and chunk.startswith(before, chunk.find(b"\n") + 1)


def unframed(piece: bytes) -> bytes:
    """What a chunk of HTTP's holds, or several in a row."""
    if piece.find(_LF, _PAST_HEAD) == len(piece) - len(_CHUNK_END):  # as nearly all are
        return piece[piece.index(b"\r\n") + 2 : -2]
    return b"".join([chunk[chunk.index(b"\r\n") + 2 : -2] for chunk in _apart(piece)])


def single(pieces: Sequence[bytes]) -> Sequence[bytes]:
    """The same, a chunk each."""
    found: list[bytes] = []
    for piece in pieces:
        if piece.find(_LF, _PAST_HEAD) == len(piece) - len(_CHUNK_END):
            found.append(piece)
        else:
            found += _apart(piece)
    return found if len(found) != len(pieces) else pieces


def _apart(piece: bytes) -> list[bytes]:
    found: list[bytes] = []
    at = 0
    while at < len(piece):
        begin = piece.index(b"\r\n", at) + 2
        end = begin + int(piece[at : begin - 2], 16) + 2
        found.append(piece[at:end])
        at = end
    return found


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

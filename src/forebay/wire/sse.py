"""Server-sent events as bytes: framing without parsing, and parsing of one event. No I/O.

The grammar is WHATWG HTML §9.2.5 (parsing) and §9.2.6 (interpretation): a line ends with LF, CRLF or CR, and a blank
line ends an event. Here an *event* is the raw bytes of its lines with that blank line; an event without a `data` line
(comments only, a bare blank line) dispatches nothing in a client. A *block* is zero or more whole events in a row.

Two choices where the grammar leaves room:

- A CR at the end of the bytes may be half of a CRLF. The blank line it makes is complete all the same, so the event
  goes out at once; an LF that comes later goes out at once too, ahead of anything else, and opens no line. A block may
  therefore begin with that lone LF, which `split` shows as an event without data.
- A byte order mark stays where it is, before the first event's first line. `split`, `count`, `data_of` and `parse` see
  one event or block without its place in the stream, so they skip a mark wherever it stands before an event.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

MAX_EVENT: Final = 1 << 20
"""Bytes of one event, its blank line not counted."""

_BOM: Final = b"\xef\xbb\xbf"
_LF: Final = 10
_CR: Final = 13
_UNSTARTED: Final = -1

_BLANK: Final = re.compile(rb"(?<=\n)(?:\n|\r\n?)|(?<=\r)\r\n?")
"""The end of a blank line, given the byte before it."""


class EventTooLarge(Exception):
    """An event has more than `limit` bytes before its blank line."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"an event of the stream is over the limit of {limit:,} bytes")
        self.limit = limit


class Framer:
    """Bytes in, whole events out, not one byte changed.

    What `feed` has returned, joined, with `tail` behind it, is what it was given. Each byte is looked at a bounded
    number of times, however the stream is cut up.
    """

    __slots__ = ("_bound", "_carry", "_last", "max_event")

    def __init__(self, max_event: int = MAX_EVENT) -> None:
        """Raises ValueError for a `max_event` under 1."""
        if max_event < 1:
            raise ValueError(f"max_event must be at least 1 byte, not {max_event}")
        self.max_event = max_event
        self._bound = max_event  # -1 once the limit was broken
        self._carry = bytearray()
        self._last = _UNSTARTED  # the byte before the next one

    def feed(self, data: bytes) -> bytes:
        """The longest run of whole events in what was carried over plus `data`; b"" where none is whole.

        Raises EventTooLarge where an event, whole or not, has over `max_event` bytes before its blank line, and on
        every later call.
        """
        if not self._carry and data.endswith(b"\n\n") and len(data) <= self._bound:
            self._last = _LF
            return data
        return self._feed(data) if data else b""

    @property
    def carries(self) -> bool:
        """Whether an event is unfinished."""
        return bool(self._carry)

    @property
    def tail(self) -> bytes:
        """The unfinished event. Not empty at the end of the stream: the stream was cut in the middle of an event."""
        return bytes(self._carry)

    def _feed(self, data: bytes) -> bytes:
        carry = self._carry
        start, last = 0, self._last
        if last == _UNSTARTED:
            head = bytes(carry) + data[: len(_BOM) - len(carry)]
            if head == _BOM:
                start, last = len(_BOM) - len(carry), _LF
            elif _BOM.startswith(head):
                start = len(data)
            else:
                last = carry[-1] if carry else _LF
        late = last == _CR and not carry and data[0] == _LF
        if len(carry) + len(data) > self._bound:
            self._check_sizes(data, start, last, late)
        cut = _end_of_last_blank(data, start, last) or int(late)
        self._last = data[-1] if start < len(data) else last
        if not cut:
            carry += data
            return b""
        if not carry:
            out = data[:cut]
        else:
            carry += data[:cut]
            out = bytes(carry)
            carry.clear()
        carry += data[cut:]
        return out

    def _check_sizes(self, data: bytes, start: int, last: int, late: bool) -> None:
        begin = 1 if late else -len(self._carry)
        for blank, end in _blanks(data, start, last):
            if blank - begin > self._bound:
                break
            begin = end
        else:
            if len(data) - begin <= self._bound:
                return
        self._bound = -1
        raise EventTooLarge(self.max_event)

    def __repr__(self) -> str:
        return f"<Framer {len(self._carry):,} bytes carried>"


def _end_of_last_blank(data: bytes, start: int, last: int) -> int:
    """Where the last blank line of data[start:] ends, `last` being the byte before it; 0 where it has none."""
    at = data.rfind(b"\n\n", start)
    if b"\r" in data:
        at = max(at, data.rfind(b"\n\r", start), data.rfind(b"\r\r", start))
    if at < 0:
        first = data[start : start + 1]
        if not ((last == _LF and first == b"\n") or (last in (_LF, _CR) and first == b"\r")):
            return 0
        at = start - 1
    cut = at + 2
    return cut + 1 if data[cut - 1] == _CR and data[cut : cut + 1] == b"\n" else cut


def _blanks(data: bytes, start: int, last: int) -> Iterator[tuple[int, int]]:
    """Start and end in `data` of each blank line's own line end, in data[start:], `last` being the byte before it."""
    shift = start - 1
    for m in _BLANK.finditer(bytes((max(last, 0),)) + data[start:]):
        yield m.start() + shift, m.end() + shift


def split(block: bytes) -> list[bytes]:
    """The events of a block, each with its blank line. Raises ValueError where the last event is not whole."""
    if b"\r" not in block and b"\n\n\n" not in block and not block.startswith((b"\n", _BOM)):
        whole = block.split(b"\n\n")
        if whole.pop():
            raise ValueError("the block ends in the middle of an event")
        return [event + b"\n\n" for event in whole]
    events: list[bytes] = []
    begin = 0
    start = len(_BOM) if block.startswith(_BOM) else 0
    for _, end in _blanks(block, start, _LF):
        events.append(block[begin:end])
        begin = end
    if begin < len(block):
        raise ValueError("the block ends in the middle of an event")
    return events


def count(block: bytes) -> int:
    """How many events of a block have data. Raises ValueError where the last event is not whole."""
    if block.endswith(b"\n\n") and block.find(b"\r") < 0:
        if block.find(b"\n") == len(block) - 2 and block.startswith(b"data:"):
            return 1
        n = block.count(b"\n\ndata:") + block.startswith(b"data:")
        if block.count(b"\n") == 2 * n:  # no line but one `data` line and the blank one in each
            return n
    return sum(data_of(event) is not None for event in split(block))


def data_of(event: bytes) -> bytes | None:
    """The payload: the values of the `data` lines joined by LF; None where there is no such line."""
    if (
        event.startswith(b"data: ")
        and event.endswith(b"\n\n")
        and event.find(b"\n") == len(event) - 2
        and event.find(b"\r") < 0
    ):
        return event[6:-2]
    values = [value for name, value in _fields(event) if name == b"data"]
    return b"\n".join(values) if values else None


class Event(NamedTuple):
    """One event as a client would see it.

    `data` is UTF-8 as it came; None: nothing is dispatched. `event` is "message" where the stream names no type. `id`
    is None where this event does not set it. `retry` is in milliseconds.
    """

    data: bytes | None
    event: str
    id: str | None
    retry: int | None


def parse(event: bytes) -> Event:
    """All fields of one raw event, after §9.2.6. Never raises: what the grammar does not know is ignored."""
    data: list[bytes] = []
    kind = ""
    ident: str | None = None
    retry: int | None = None
    for name, value in _fields(event):
        if name == b"data":
            data.append(value)
        elif name == b"event":
            kind = value.decode("utf-8", "replace")
        elif name == b"id":
            if b"\0" not in value:
                ident = value.decode("utf-8", "replace")
        elif name == b"retry" and _DIGITS.fullmatch(value):
            retry = int(value)
    return Event(b"\n".join(data) if data else None, kind or "message", ident, retry)


_DIGITS: Final = re.compile(rb"[0-9]{1,18}")
"""The grammar sets no upper bound; 18 digits is 31 million years, and keeps `int` cheap."""


def _fields(event: bytes) -> Iterator[tuple[bytes, bytes]]:
    # bytes.splitlines, unlike str's, splits at LF, CRLF and CR only.
    for line in event.removeprefix(_BOM).splitlines():
        name, _, value = line.partition(b":")
        if name:
            yield name, value.removeprefix(b" ")

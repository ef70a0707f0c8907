"""A head seen before need not be parsed again: neither a client's nor an engine's.

A client that keeps its connection sends the same head over and over, but for the length of the body. So the bytes of a
head that was parsed and found sound are kept, cut in two at the digits of Content-Length; a read that consists of the
same bytes, one to eight digits between them, and exactly that many bytes of body is the same request with another body,
and means the same to every parser. An engine's head differs in its Date as well, whose value is always 29 bytes long.
Anything else goes to llhttp.
"""

from __future__ import annotations

import re
from typing import Final

from forebay.wire.head import Header
from forebay.wire.message import Request

_LENGTH: Final = re.compile(rb"\r\ncontent-length: ?([0-9]{1,8})\r\n", re.IGNORECASE)
MAX_HEAD: Final = 8_192
"""Longer heads are not kept: a memo is memory a connection."""


_DIGITS: Final = 8
_ZERO: Final = 48


def _body_behind(data: bytes, at: int, after: bytes) -> bytes | None:
    """What follows one to eight digits from `at` on and then `after`, where it has as many bytes as they say."""
    length = 0
    end = at
    most = min(at + _DIGITS, len(data))
    while end < most:
        digit = data[end] - _ZERO
        if digit < 0 or digit > 9:
            break
        length = 10 * length + digit
        end += 1
    begin = end + len(after)
    if end == at or len(data) - begin != length or data[end:begin] != after:
        return None
    return data[begin:]


class HeadMemo:
    """One head, and the request it made."""

    __slots__ = ("_after", "_before", "_digits_at", "request")

    def __init__(self, before: bytes, after: bytes, request: Request) -> None:
        self._before = before
        self._after = after
        self._digits_at = len(before)
        self.request = request

    def body_of(self, data: bytes) -> bytes | None:
        """The body, where `data` is this head and one whole body; else None."""
        at = self._digits_at
        if not data.startswith(self._before):
            return None
        return _body_behind(data, at, self._after)

    def __repr__(self) -> str:
        return f"<HeadMemo {self._digits_at + len(self._after)} B>"


def remember(data: bytes, request: Request) -> HeadMemo | None:
    """A memo of the head that `data` starts with, where it can be kept: one plain Content-Length, nothing that asks for
    more than an answer."""
    end = data.find(b"\r\n\r\n", 0, MAX_HEAD)
    fields = request.fields
    if (
        end < 0
        or not request.keep_alive
        or b"expect" in fields
        or b"upgrade" in fields
        or b"transfer-encoding" in fields
    ):
        return None
    match = _LENGTH.search(data, 0, end + 4)
    if match is None:
        return None
    return HeadMemo(data[: match.start(1)], data[match.end(1) : end + 4], request.again(b""))


_DATE: Final = re.compile(
    rb"\r\ndate: ?([A-Z][a-z]{2}, \d\d [A-Z][a-z]{2} \d{4} \d\d:\d\d:\d\d GMT)\r\n", re.IGNORECASE
)
_DATE_LENGTH: Final = 29
_SPECIAL: Final = frozenset({b"transfer-encoding", b"content-encoding", b"connection", b"trailer"})


class AnswerMemo:
    """One engine's head of a whole 200. `rendered` belongs to whoever passes such answers on."""

    __slots__ = ("_after", "_before", "_dated", "_middle", "headers", "rendered")

    def __init__(self, before: bytes, middle: bytes, after: bytes, dated: bool, headers: list[Header]) -> None:
        self._before = before
        self._middle = middle
        self._after = after
        self._dated = dated
        self.headers = headers
        self.rendered: bytes | None = None

    def body_of(self, data: bytes) -> bytes | None:
        """The body, where `data` is this head and one whole body; else None."""
        if not data.startswith(self._before):
            return None
        at = len(self._before)
        if self._dated:
            at += _DATE_LENGTH
            end = at + len(self._middle)
            if data[at:end] != self._middle:
                return None
            at = end
        return _body_behind(data, at, self._after)

    def __repr__(self) -> str:
        return f"<AnswerMemo {self._before!r} … {self._after!r}>"


def remember_answer(data: bytes, headers: list[Header]) -> AnswerMemo | None:
    """A memo of the head of a 200 that `data` starts with, where it can be kept."""
    end = data.find(b"\r\n\r\n", 0, MAX_HEAD)
    if end < 0 or not data.startswith(b"HTTP/1.1 200 ") or any(name in _SPECIAL for name, _ in headers):
        return None
    length, date = _LENGTH.search(data, 0, end + 4), _DATE.search(data, 0, end + 4)
    if length is None or (date is not None and date.start() > length.start()):
        return None
    after = data[length.end(1) : end + 4]
    if date is None:
        return AnswerMemo(data[: length.start(1)], b"", after, False, headers)
    return AnswerMemo(data[: date.start(1)], data[date.end(1) : length.start(1)], after, True, headers)

"""A head seen before need not be parsed again.

A client that keeps its connection sends the same head over and over, but for the length of the body. So the bytes of a
head that was parsed and found sound are kept, cut in two at the digits of Content-Length; a read that consists of the
same bytes, one to eight digits between them, and exactly that many bytes of body is the same request with another body,
and means the same to every parser. Anything else goes to llhttp.
"""

from __future__ import annotations

import re
from typing import Final

from forebay.wire.message import Request

_LENGTH: Final = re.compile(rb"\r\ncontent-length: ?([0-9]{1,8})\r\n", re.IGNORECASE)
MAX_HEAD: Final = 8_192
"""Longer heads are not kept: a memo is memory a connection."""


class HeadMemo:
    """One head, and the request it made."""

    __slots__ = ("_after", "_before", "_digits_at", "_len_after", "request")

    def __init__(self, before: bytes, after: bytes, request: Request) -> None:
        self._before = before
        self._after = after
        self._digits_at = len(before)
        self._len_after = len(after)
        self.request = request

    def body_of(self, data: bytes) -> bytes | None:
        """The body, where `data` is this head and one whole body; else None."""
        at = self._digits_at
        if not data.startswith(self._before):
            return None
        end = data.find(b"\r", at, at + 9)
        digits = data[at:end]
        begin = end + self._len_after
        if end < 0 or not digits.isdigit() or len(data) - begin != int(digits) or not data.startswith(self._after, end):
            return None
        return data[begin:]

    def __repr__(self) -> str:
        return f"<HeadMemo {self._digits_at + self._len_after} B>"


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

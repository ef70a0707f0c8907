"""A tokenizer without a vocabulary: deterministic, reversible, about as fine as the real ones (1.3 tokens a word).

A token is a piece of at most six bytes of UTF-8: a run of letters with the space before it, up to three digits, up to
three bytes beyond ASCII, a run of white space, or one other byte. Its number is the piece's bytes after a leading 1.
"""

from __future__ import annotations

import re
from typing import Final

MAX_TOKEN: Final = 1 << 49
"""Every token number is below it (and so below 2^53, exact in JavaScript)."""

_LONGEST: Final = 6
_PIECE = re.compile(rb" ?[A-Za-z']{1,5}|[0-9]{1,3}|[\x80-\xff]{1,3}|[ \t\r\n]{1,6}|.", re.DOTALL)


def pieces(text: str) -> list[bytes]:
    return _PIECE.findall(text.encode("utf-8", "surrogatepass"))


def at_least(text: str) -> int:
    """A lower bound of the text's tokens, for free."""
    return -(-len(text) // _LONGEST)


def encode(text: str) -> list[int]:
    return [int.from_bytes(b"\x01" + piece, "big") for piece in pieces(text)]


def piece(token: int) -> bytes:
    """Raises ValueError for a number that is no token."""
    if token <= 0x1FF // 2 or token >= MAX_TOKEN:
        raise ValueError(f"{token} is no token of this engine")
    raw = token.to_bytes((token.bit_length() + 7) // 8, "big")
    if raw[0] != 1:
        raise ValueError(f"{token} is no token of this engine")
    return raw[1:]


def decode(tokens: list[int]) -> str:
    """Bytes that are no UTF-8 come out as U+FFFD. Raises ValueError for a number that is no token."""
    return b"".join(map(piece, tokens)).decode("utf-8", "replace")


def split(text: str) -> list[str]:
    """The text in tokens as strings: a piece that ends inside a character gives it to the piece that completes it."""
    out: list[str] = []
    held = b""
    for one in pieces(text):
        held += one
        try:
            out.append(held.decode())
            held = b""
        except UnicodeDecodeError:
            out.append("")
    if held:
        out.append(held.decode("utf-8", "replace"))
    return out

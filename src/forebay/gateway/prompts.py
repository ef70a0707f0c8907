"""What a prompt is made of: a few counts over a request's bytes, each at the speed of C.

Byte-pair tokenizers first cut a text into words, numbers, signs and white space, then those into tokens. What decides
how many is counted here without cutting anything: letters, long words, capitals, digits, signs, line ends, characters
by length in UTF-8. `gateway.tokens` weighs the counts.

JSON around the text is not taken out: its signs are counted as the text's are, and the weights of a message and of the
constant say how many of them were none.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, NamedTuple

import msgspec

from forebay.api.openai import AnyBody, ChatBody, CompletionBody, EmbeddingBody

NAMES: Final = (
    "request",
    "messages",
    "with tools",
    "tools",
    "bytes of tools",
    "pictures",
    "bytes of the answer's format",
    "bytes",
    "small letters",
    "six small letters in a row",
    "words after a space",
    "capitals",
    "pairs of capitals",
    "capitals after a small letter",
    "digits",
    "numbers after a space",
    "signs",
    "underscores",
    "line ends",
    "indented lines",
    "2-byte characters",
    "other 3-byte characters",
    "the comma ，",
    "Chinese characters",
    "those from U+5000 to U+5FFF",
    "4-byte characters",
)
"""What `Prompt.counts` has, in this order. The comma tells running text from lists; the block is where names and rarer
characters are fewer."""
WIDTH: Final = len(NAMES)
_NO_REQUEST: Final = (0.0,) * NAMES.index("bytes")
_NO_OTHER: Final = (0.0,) * 6

_WHOLE: Final = 2_048
"""Bytes up to which all of a text is looked at."""
_WINDOWS: Final = 16
_WINDOW: Final = _WHOLE // _WINDOWS


def _classes() -> bytes:
    table = bytearray(b"." * 256)
    for first, last, to in (
        (0x61, 0x7A, "a"),
        (0x41, 0x5A, "A"),
        (0x30, 0x39, "0"),
        (0x80, 0xBF, "x"),  # within a character
        (0xC0, 0xDF, "l"),
        (0xE0, 0xEF, "s"),
        (0xE4, 0xE9, "c"),  # U+4000 to U+9FFF
        (0xF0, 0xFF, "e"),
    ):
        for byte in range(first, last + 1):
            table[byte] = ord(to)
    for byte in b" \t\r":
        table[byte] = ord(" ")
    table[ord("\n")] = ord("\n")
    table[ord("_")] = ord("_")
    return bytes(table)


_CLASSES: Final = _classes()
_COMMA: Final = "，".encode()
_DATA: Final = b";base64,"
_ADDRESS: Final = re.compile(rb'"(?:[a-z_]*url|file_data)"\s*:\s*"data:[^"]*$')
_SAMPLES: Final = re.compile(rb'"input_audio"\s*:\s*\{(?:\s*"format"\s*:\s*"[^"]*"\s*,)?\s*"data"\s*:\s*"')
_SOUND: Final = b'"input_audio"'
_TYPE: Final = b'"type"'


class Prompt(NamedTuple):
    counts: tuple[float, ...]
    """As `NAMES` says."""
    exact: int = 0
    """Where a prompt is token ids: how many. Else 0."""


NOTHING: Final = Prompt(())
SMALL: Final = 512
"""Bytes under which a text is not taken apart."""
_PLAIN_FORMAT: Final = 64
"""Bytes of a `response_format` that has no schema."""


def glance(body: AnyBody) -> int:
    """The bytes of a chat's text, where it is a small one without tools and parts, for which an error is a few tokens;
    less than 0 where it is not all ASCII. Else 0."""
    if (
        type(body) is ChatBody
        and len(body.tools) <= 4
        and len(body.response_format) <= _PLAIN_FORMAT
        and len(body.messages) < SMALL
        and not body.beside
    ):
        text = bytes(body.messages)
        size = len(text)
        if text.find(_TYPE) < 0:
            return size if text.isascii() else -size
    return 0


def look(body: AnyBody) -> Prompt:
    """The prompt of a request that generates."""
    tools = b""
    messages = defined = pictures = schema = 0
    if isinstance(body, ChatBody):
        text = bytes(body.messages)
        messages = text.count(b'"role"')
        if b'"type"' in text:  # content in parts
            text = _without_data(text)
            pictures = -(-text.count(b'_url"') // 2)  # the part's type, and its field; films and sounds too
        if len(body.tools) > 4:  # null
            tools = bytes(body.tools)
            defined = tools.count(b'"function"') // 2
        if len(body.response_format) > _PLAIN_FORMAT:
            schema = len(body.response_format)
        beside = body.beside
    else:
        text = bytes(body.prompt if isinstance(body, CompletionBody) else body.input)
        ids = _ids(text)
        beside = b"" if isinstance(body, EmbeddingBody) else body.beside
        if ids and not beside:
            return Prompt((), ids)
    return Prompt(
        (1.0, messages, 1.0 if tools else 0.0, defined, len(tools), pictures, schema, *count(text + tools + beside)), 0
    )


def of_text(text: str) -> Prompt:
    """Of a text by itself, with no request around it."""
    return Prompt((*_NO_REQUEST, *count(msgspec.json.encode(text)[1:-1])), 0)


def count(text: bytes) -> tuple[float, ...]:
    """The counts of a text alone, UTF-8 as JSON writes it: those of `NAMES` from `bytes` on."""
    size = len(text)
    if size <= _WHOLE:
        return _counts(text)
    step = (size - _WINDOW) / (_WINDOWS - 1)
    sample = b"".join([text[(at := round(i * step)) : at + _WINDOW] for i in range(_WINDOWS)])
    scale = size / len(sample)
    return tuple([n * scale for n in _counts(sample)])


def _counts(text: bytes) -> tuple[float, ...]:
    if b"\\" in text:
        text = _unescaped(text)
    n = text.translate(_CLASSES).count
    digits, lines = n(b"0"), n(b"\n")
    known = (
        len(text),
        n(b"a"),
        n(b"aaaaaa"),
        n(b" a"),
        n(b"A"),
        n(b"AA"),
        n(b"aA"),
        digits,
        n(b" 0") if digits else 0,
        n(b"."),
        n(b"_"),
        lines,
        n(b"\n ") if lines else 0,
    )
    if text.isascii():
        return known + _NO_OTHER
    return *known, n(b"l"), n(b"s"), text.count(_COMMA), n(b"c"), text.count(b"\xe5"), n(b"e")


def _unescaped(text: bytes) -> bytes:
    """JSON's escapes as the characters they stand for, as far as the counts differ by it."""
    if b"\\u" in text and text.isascii():
        characters = text.decode("raw_unicode_escape", "ignore")
        try:
            text = characters.encode()
        except UnicodeEncodeError:  # pairs of surrogates
            text = characters.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode()
    return text.replace(b"\\\\", b"/").replace(b"\\n", b"\n").replace(b"\\", b"")


def _without_data(text: bytes) -> bytes:
    """What is written in base64 left out, each up to its closing quote: pictures' data URLs, and sounds. What a text
    says in that way is a text."""
    if _DATA in text:
        text = _without(text, _DATA, lambda start: start if _ADDRESS.search(text, max(0, start - 128), start) else -1)
    if _SOUND in text:
        text = _without(text, _SOUND, lambda start: sound.end() if (sound := _SAMPLES.match(text, start)) else -1)
    return text


def _without(text: bytes, mark: bytes, begins: Callable[[int], int]) -> bytes:
    """`begins`: where what is left out begins, for a mark's place; before that place: nothing is."""
    parts = []
    at = 0
    while (found := text.find(mark, at)) >= 0:
        start = begins(found)
        if start < found:
            start = found + len(mark)
            parts.append(text[at:start])
            at = start
            continue
        parts.append(text[at:start])
        at = text.find(b'"', start)
        if at < 0:
            return b"".join(parts)
    parts.append(text[at:])
    return b"".join(parts)


def _ids(text: bytes) -> int:
    """How many token ids an array of them, or of arrays of them, has; 0 for any other prompt."""
    first = text[:64].lstrip(b"[ \t\r\n")[:1]
    return text.count(b",") + 1 if text[:1] == b"[" and first.isdigit() else 0


_TEXTS: Final = re.compile(rb'\[\s*["\[]')
_list: Final = msgspec.json.Decoder(list[msgspec.Raw])


def prompts_of(body: AnyBody) -> int:
    """How many prompts a request brings: a completion may have an array of them."""
    if not isinstance(body, CompletionBody):
        return 1
    if bytes(memoryview(body.prompt)[:1]) != b"[":
        return 1
    raw = bytes(body.prompt)
    if not _TEXTS.match(raw):
        return 1
    try:
        found = _list.decode(raw)
    except msgspec.MsgspecError:
        return 1
    return len(found)

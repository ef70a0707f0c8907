"""Bodies and answers as the structs of `openai`: what is done with each of them, in a module that can be compiled."""

from __future__ import annotations

import json
import re
from types import MappingProxyType
from typing import Any, Final

import msgspec

from forebay import errors
from forebay.api.openai import Answer, Chunk, escapes_a_letter
from forebay.errors import Refusal

_chunks: Final = msgspec.json.Decoder(Chunk).decode
_answers: Final = msgspec.json.Decoder(Answer).decode

_WRONG_TYPE: Final = re.compile(r"Expected `(?P<wanted>[^`]+)`, got `(?P<got>[^`]+)`(?: - at `\$\.?(?P<at>[^`]*)`)?")
_NAMES: Final = MappingProxyType(
    {
        "str": "a string",
        "int": "an integer",
        "float": "a number",
        "bool": "true or false",
        "object": "an object",
        "array": "an array",
        "null": "null",
    }
)
_CLOSE_LOOK: Final = 65_536
_ESCAPE: Final = ord("\\")
_EMPTY_ARRAY: Final = re.compile(rb"\[[ \t\r\n]*\]")
_FIRST_BYTE: Final = MappingProxyType(
    {ord("{"): "an object", ord('"'): "a string", ord("t"): "a boolean", ord("f"): "a boolean"}
)
_FIXES: Final = MappingProxyType(
    {
        "model": "the name of the model to use, see GET /v1/models",
        "messages": 'an array such as [{"role": "user", "content": "…"}]',
        "prompt": "a string, or an array of strings or tokens",
        "input": "a string, or an array of strings or tokens",
    }
)


def decode(body: bytes, decoder: msgspec.json.Decoder[Any]) -> Any:
    """`body` as the decoder's struct. Raises Refusal: not UTF-8, not JSON, not an object, a field of the wrong type."""
    if not body:
        raise errors.bad_json("it is empty")
    try:
        if not body.isascii():
            body.decode()
        return decoder.decode(body)
    except UnicodeDecodeError as e:
        raise errors.bad_json(f"it is not UTF-8 (byte {e.start})") from None
    except msgspec.ValidationError as e:
        raise _wrong_type(str(e)) from None
    except msgspec.DecodeError as e:
        raise errors.bad_json(str(e).removeprefix("JSON is malformed: ")) from None
    except RecursionError:
        raise errors.bad_json("it is nested too deeply") from None


def _named(kinds: str) -> str:
    parts = [_NAMES.get(k.strip(), k.strip()) for k in kinds.split("|")]
    return " or ".join([p for p in parts if p != "null"]) or "null"


def _wrong_type(text: str) -> Refusal:
    m = _WRONG_TYPE.search(text)
    if m is None:
        return errors.bad_request(f"The body is not as expected: {text}.", code="wrong_type")
    field = m["at"] or ""
    if not field:
        return errors.bad_request(f"The body must be a JSON object, not {_named(m['got'])}.", code="wrong_type")
    return errors.wrong_type(field, _named(m["wanted"]), _named(m["got"]))


def check_content(field: str, raw: msgspec.Raw, *, kinds: bytes) -> None:
    """The content field is there, of one of the kinds given by their first byte, and not empty. Raises Refusal."""
    text = bytes(raw)
    first = text[0] if text else ord("n")
    if first == ord("n"):
        raise errors.missing_field(field, _FIXES[field])
    if first not in kinds:
        wanted = " or ".join([{ord("["): "an array", ord('"'): "a string"}[k] for k in kinds])
        raise errors.wrong_type(field, wanted, _FIRST_BYTE.get(first, "a number"))
    if first == ord("[") and text[-1] == ord("]") and text[1] in b" \t\r\n]" and _EMPTY_ARRAY.match(text):
        raise errors.bad_request(f"'{field}' must not be empty.", param=field, code="missing_field")


def no_model() -> Refusal:
    return errors.missing_field("model", _FIXES["model"])


def names_twice(body: bytes) -> bool:
    """Whether the body may hold a key of the request itself twice, "model" above all, spelt out or with an escape (its
    letters are all \\u006X): of two, an engine could read the other one than was checked. Bodies over 64 KiB that look
    like it are taken to."""
    if body.count(b'"model"') == 1 and not (_ESCAPE in body and escapes_a_letter(body)):
        return False
    if len(body) > _CLOSE_LOOK:
        return True
    return _repeats_a_key(body)


def _repeats_a_key(body: bytes) -> bool:
    pairs: list[list[tuple[str, object]]] = []

    def keep(found: list[tuple[str, object]]) -> None:
        pairs.append(found)

    try:
        json.loads(body, object_pairs_hook=keep, parse_int=str, parse_float=str)
    except (ValueError, RecursionError):  # msgspec read it, so it is JSON: look no closer
        return True
    keys = [key for key, _ in pairs[-1]]  # the outermost object is closed last
    return len(set(keys)) != len(keys)


def chunk(data: bytes) -> Chunk | None:
    """A stream event's data as far as it is understood; None where it is no such JSON."""
    try:
        return _chunks(data)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None


def answer(body: bytes) -> Answer | None:
    """A unary answer as far as it is understood; None where it is no JSON object."""
    try:
        return _answers(body)
    except msgspec.ValidationError:
        return Answer() if body.lstrip()[:1] == b"{" else None
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None

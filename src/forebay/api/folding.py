"""A stream's events folded into the answer that the same request gets unstreamed.

What a choice says piece by piece is joined: texts, tool calls by their index, lists of log probabilities. Of everything
else, known or not, the last value that is not null counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

_decode: Final = msgspec.json.Decoder(dict[str, Any]).decode
_encode: Final = msgspec.json.Encoder().encode

_TEXTS: Final = frozenset({"content", "reasoning_content", "reasoning", "refusal"})
"""Of a delta, what is joined."""
_TOGETHER: Final = 512
"""Pieces of a text that are joined at a time."""
_OVERHEAD: Final = 256
"""Bytes a choice or a tool call counts for beside its text."""


class NotFoldable(Exception):
    """An event that is no chunk; says why."""


class TooLarge(Exception):
    """The answer is over `limit` bytes."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"its answer is over the limit of {limit:,} bytes (limits.response_bytes)")


class Fold:
    """One answer. `most`: bytes that what is kept of it may have, about.

    Mutable state: the choices by index, the fields beside them, and how many bytes that is.
    """

    __slots__ = ("_choices", "_fields", "_kept", "_most", "events")

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept = 0
        self._fields: dict[str, Any] = {}
        self._choices: dict[int, _Choice] = {}
        self.events = 0
        """Events with a choice in them."""

    @property
    def finished(self) -> bool:
        """Whether every choice seen has said why it ended, and there is one."""
        return bool(self._choices) and all(c.fields.get("finish_reason") is not None for c in self._choices.values())

    def add(self, chunk: Mapping[str, Any], size: int) -> None:
        """One chunk, which was `size` bytes of JSON. Raises NotFoldable, TooLarge."""
        for name, value in chunk.items():
            if name == "choices":
                if value:
                    self._add_choices(value, size)
            else:
                self._kept += _last(self._fields, name, value, size)
        if self._kept > self._most:
            raise TooLarge(self._most)

    def _add_choices(self, found: object, size: int) -> None:
        if not isinstance(found, list):
            raise NotFoldable("its choices are no list")
        self.events += 1
        for given in found:
            index = given.get("index", 0) if isinstance(given, dict) else None
            if type(index) is not int:
                raise NotFoldable("it has a choice without an index")
            choice = self._choices.get(index)
            if choice is None:
                choice = self._choices[index] = _Choice()
                self._kept += _OVERHEAD
            self._kept += choice.add(given, size)

    def answer(self) -> bytes:
        """The whole answer, as JSON."""
        fields = self._fields
        kind = fields.get("object")
        chat = kind != "text_completion"
        choices = [self._choices[i].whole(i, chat=chat) for i in sorted(self._choices)]
        head = {"id": fields.get("id"), "object": "chat.completion" if chat else kind}
        return _encode({**head, **{k: v for k, v in fields.items() if k not in head}, "choices": choices})


class _Text:
    """A text in pieces, which takes about what it takes as a whole, however small they are: a piece of one byte is an
    object of 50."""

    __slots__ = ("_joined", "_pieces")

    def __init__(self) -> None:
        self._joined: list[str] = []
        self._pieces: list[str] = []

    def add(self, piece: str) -> None:
        if piece:
            self._pieces.append(piece)
            if len(self._pieces) >= _TOGETHER:
                self._joined.append("".join(self._pieces))
                self._pieces.clear()

    def __str__(self) -> str:
        return "".join([*self._joined, *self._pieces])


class _Choice:
    __slots__ = ("_calls", "_said", "_texts", "fields", "logprobs")

    def __init__(self) -> None:
        self._texts: dict[str, _Text | None] = {}
        self._said: dict[str, Any] = {}
        """The other fields of its deltas."""
        self._calls: dict[int, dict[str, Any]] = {}
        self.logprobs: dict[str, Any] | None = None
        self.fields: dict[str, Any] = {}

    def add(self, given: dict[str, Any], size: int) -> int:
        """Returns about how many bytes it keeps of them. Raises NotFoldable."""
        kept = 0
        for name, value in given.items():
            if name == "delta":
                kept += self._add_delta(value or {}, size)
            elif name == "text":
                kept += self._join(self._texts, name, value)
            elif name == "logprobs":
                if value is not None:
                    self._add_logprobs(value)
                    kept += size
            elif name != "index":
                kept += _last(self.fields, name, value, size)
        return kept

    def _add_delta(self, delta: object, size: int) -> int:
        if not isinstance(delta, dict):
            raise NotFoldable("it has a delta that is no object")
        kept = 0
        for name, value in delta.items():
            if name in _TEXTS:
                kept += self._join(self._texts, name, value)
            elif name == "tool_calls":
                kept += self._add_calls(value or [], size)
            elif name == "function_call" and value is not None:
                kept += self._add_call(_function(self._said, name, value), value, size)
            elif isinstance(value, list) and isinstance(self._said.get(name), list):
                self._said[name] += value
                kept += size
            else:
                kept += _last(self._said, name, value, size)
        return kept

    def _add_calls(self, calls: object, size: int) -> int:
        if not isinstance(calls, list) or not all(isinstance(c, dict) for c in calls):
            raise NotFoldable("its tool calls are no list of objects")
        kept = 0
        for given in calls:
            index = given.get("index", len(self._calls))
            if type(index) is not int:
                raise NotFoldable("it has a tool call whose index is no integer")
            call = self._calls.get(index)
            if call is None:
                call = self._calls[index] = {}
                kept += _OVERHEAD
            for name, value in given.items():
                if name == "function" and value is not None:
                    kept += self._add_call(_function(call, name, value), value, size)
                elif name != "index":
                    kept += _last(call, name, value, size)
        return kept

    def _add_call(self, call: dict[str, Any], given: dict[str, Any], size: int) -> int:
        kept = 0
        for name, value in given.items():
            if name == "arguments":
                kept += self._join(call, name, value)
            else:
                kept += _last(call, name, value, size)
        return kept

    @staticmethod
    def _join(texts: dict[str, Any], name: str, value: object) -> int:
        if value is None:
            texts.setdefault(name, None)
            return 0
        if not isinstance(value, str):
            raise NotFoldable(f"its {name} is no string")
        text = texts.get(name)
        if text is None:
            text = texts[name] = _Text()
        text.add(value)
        return len(value)

    def _add_logprobs(self, given: object) -> None:
        if not isinstance(given, dict):
            raise NotFoldable("its logprobs are no object")
        if self.logprobs is None:
            self.logprobs = {}
        for name, value in given.items():
            known = self.logprobs.get(name)
            if isinstance(value, list) and isinstance(known, list):
                known += value
            elif value is not None or name not in self.logprobs:
                self.logprobs[name] = value

    def whole(self, index: int, *, chat: bool) -> dict[str, Any]:
        texts = {name: str(text) if text is not None else None for name, text in self._texts.items()}
        if not chat:
            said: dict[str, Any] = {"text": texts.get("text") or ""}
        else:
            message = {"role": "assistant", **self._said, **texts}
            if "function_call" in message and message["function_call"] is not None:
                message["function_call"] = _call(message["function_call"])
            if self._calls:
                calls = [self._calls[i] for i in sorted(self._calls)]
                message["tool_calls"] = [
                    {"id": None, "type": "function", **c, "function": _call(c.get("function") or {})} for c in calls
                ]
            if not message.get("content"):
                message["content"] = None if self._calls else ""
            said = {"message": message}
        return {"index": index, **said, "logprobs": self.logprobs, "finish_reason": None, **self.fields}


def _last(kept: dict[str, Any], name: str, value: object, size: int) -> int:
    """Keep the value, if it is one; returns how many bytes that counts for."""
    new = name not in kept
    if value is None and not new:
        return 0
    kept[name] = value
    small = value is None or isinstance(value, int | float) or (isinstance(value, str) and len(value) <= _OVERHEAD)
    return size if new or not small else 0


def _function(kept: dict[str, Any], name: str, given: object) -> dict[str, Any]:
    """What is kept of it so far. Raises NotFoldable."""
    if not isinstance(given, dict):
        raise NotFoldable(f"its {name} is no object")
    known: dict[str, Any] | None = kept.get(name)
    if known is None:
        known = kept[name] = {}
    return known


def _call(found: dict[str, Any]) -> dict[str, Any]:
    arguments = found.get("arguments")
    return {**found, "arguments": str(arguments) if arguments is not None else ""}


def read(data: bytes) -> dict[str, Any]:
    """An event's data. Raises NotFoldable."""
    try:
        return _decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise NotFoldable("it has an event that is no JSON object") from None

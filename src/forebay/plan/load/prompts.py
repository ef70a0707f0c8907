"""Prompts out of a file: one a line of text, JSONL, OpenAI batch files, and ShareGPT's JSON, told by what is in it.

- text: each line that is not blank is a prompt;
- JSONL or a JSON array of: a text; `{"prompt": text}`; `{"messages": [...]}`; `{"body": {...}}` as in OpenAI's batch
  files; `{"conversations": [{"from", "value"}, …]}` as ShareGPT's dumps have. Beside them `max_tokens`,
  `max_completion_tokens` or `output_tokens` say how long the answer is to be.

Of a conversation the first thing a person says is the prompt, with what a system message says before it, and what is
answered to it says how long the answer is (estimated: `sim.workloads.batch.estimate`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from forebay.errors import shown
from forebay.hardware.files import read
from forebay.plan.target import LoadError
from forebay.sim.workloads.batch import estimate

MAX_BYTES: Final = 2 << 30
MAX_PROMPTS: Final = 200_000
"""Of a file; the rest is not read."""
_PEOPLE: Final = frozenset({"human", "user"})
_SYSTEM: Final = "system"


class Prompt(NamedTuple):
    messages: tuple[dict[str, Any], ...]
    output_tokens: int | None
    """Of the answer, where the file says."""
    tokens: int
    """Of the prompt: an estimate."""

    @property
    def text(self) -> str | None:
        """What a text completion can take: None where there is more than one message or something that is no text."""
        content = self.messages[0].get("content") if len(self.messages) == 1 else None
        return content if isinstance(content, str) else None


@dataclass(frozen=True)
class Texts:
    """The prompts of a file, in its order."""

    name: str
    prompts: tuple[Prompt, ...] = field(repr=False)
    skipped: int = 0
    """Entries without something to ask."""
    fingerprint: str = ""
    """Of all prompts and lengths: equal ones are the same prompts."""
    cut: bool = False
    """Whether the file has more than MAX_PROMPTS."""


class _Turn(msgspec.Struct):
    value: Any = None
    content: Any = None
    who: Any = msgspec.field(name="from", default=None)
    role: Any = None


class _Row(msgspec.Struct):
    prompt: Any = None
    messages: Any = None
    conversations: Any = None
    body: _Row | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    output_tokens: int | None = None


class _Skip(Exception):
    """An entry without something to ask."""


def read_prompts(path: str) -> Texts:
    """Raises LoadError that names the file, and the line or entry."""
    try:
        data = read(Path(path), MAX_BYTES)
    except (OSError, ValueError) as e:
        raise LoadError(f"{shown(path)} cannot be read: {getattr(e, 'strerror', None) or e}") from None
    rows = _rows(path, data.removeprefix(b"\xef\xbb\xbf"))
    prompts: list[Prompt] = []
    skipped, cut, digest = 0, False, sha256()
    for place, row in rows:
        if len(prompts) >= MAX_PROMPTS:
            cut = True
            break
        try:
            prompt = _prompt(row)
        except _Skip:
            skipped += 1
            continue
        except ValueError as e:
            raise LoadError(f"{shown(path)}, {place}: {e}") from None
        try:
            digest.update(msgspec.json.encode((prompt.messages, prompt.output_tokens)))
        except UnicodeEncodeError:  # half a character, which no server takes
            skipped += 1
            continue
        prompts.append(prompt)
    if not prompts:
        more = f": none of its {skipped:,} entries has something to ask" if skipped else ""
        raise LoadError(f"{shown(path)} has no prompts{more}")
    return Texts(path, tuple(prompts), skipped, digest.hexdigest()[:16], cut)


def _rows(path: str, data: bytes) -> Iterable[tuple[str, Any]]:
    """Each entry with its place, a text or a `_Row`."""
    head = data.lstrip()[:1]
    if head == b"[":
        try:
            return _entries(path, msgspec.json.decode(data, type=list[msgspec.Raw]))
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            pass  # Python reads half characters, as dumps of what people typed have them
        try:
            return _entries(path, json.loads(data))
        except (ValueError, RecursionError) as e:
            raise LoadError(f"{shown(path)} begins like a JSON array of prompts and is none: {shown(str(e))}") from None
    return _lines(path, data, head in (b"{", b'"'))


def _entries(path: str, found: list[Any]) -> Iterator[tuple[str, Any]]:
    """Of an array: JSON, or what came of it."""
    decoder = msgspec.json.Decoder(str | _Row)
    for n, entry in enumerate(found, 1):
        try:
            row: Any = decoder.decode(entry) if isinstance(entry, msgspec.Raw) else msgspec.convert(entry, str | _Row)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as e:
            raise LoadError(f"{shown(path)}, entry {n} is no prompt: {shown(str(e))}") from None
        yield f"entry {n}", row


def _lines(path: str, data: bytes, is_json: bool) -> Iterable[tuple[str, Any]]:
    decoder = msgspec.json.Decoder(str | _Row)
    for n, line in enumerate(data.splitlines(), 1):
        if not line.strip():
            continue
        try:
            yield f"line {n}", decoder.decode(line) if is_json else line.decode()
        except (msgspec.MsgspecError, RecursionError) as e:
            raise LoadError(f"{shown(path)}, line {n} is no prompt in JSON: {shown(str(e))}") from None
        except UnicodeDecodeError:
            raise LoadError(f"{shown(path)}, line {n} is not UTF-8") from None


def _prompt(row: str | _Row) -> Prompt:
    """Raises ValueError for what is no prompt, _Skip where there is nothing to ask."""
    if isinstance(row, str):
        return _made([{"role": "user", "content": row}], None)
    if row.body is not None:
        row = row.body
    output = next((n for n in (row.max_completion_tokens, row.max_tokens, row.output_tokens) if n is not None), None)
    if output is not None and output < 1:
        raise ValueError(f"the answer's tokens must be at least 1, not {output}")
    if row.conversations is not None:
        messages, said = _first(_turns(row.conversations))
        return _made(messages, output if output is not None else said)
    if row.messages is not None:
        return _made(row.messages, output)
    if isinstance(row.prompt, str):
        return _made([{"role": "user", "content": row.prompt}], output)
    raise ValueError("has neither prompt (a text), messages nor conversations")


def _turns(conversation: Any) -> list[_Turn]:
    """Raises _Skip for what is none."""
    try:
        return msgspec.convert(conversation, list[_Turn])
    except msgspec.ValidationError:
        raise _Skip from None


def _first(turns: list[_Turn]) -> tuple[list[dict[str, Any]], int | None]:
    system: list[dict[str, Any]] = []
    for i, turn in enumerate(turns):
        who, text = turn.who or turn.role, turn.value if turn.value is not None else turn.content
        if not isinstance(text, str):
            raise _Skip
        if who == _SYSTEM:
            system = [{"role": "system", "content": text}]
        elif who in _PEOPLE:
            answer = turns[i + 1] if i + 1 < len(turns) else None
            said = None if answer is None else answer.value if answer.value is not None else answer.content
            if not text.strip() or not isinstance(said, str) or not said:
                raise _Skip
            return [*system, {"role": "user", "content": text}], estimate(said)
    raise _Skip


def _made(messages: Any, output: int | None) -> Prompt:
    if not isinstance(messages, list) or not messages or not all(isinstance(m, dict) for m in messages):
        raise ValueError("messages must be a list of objects with role and content")
    if not all(isinstance(m.get("role"), str) for m in messages):
        raise ValueError("a message has no role")
    if all(isinstance(m.get("content"), str) and not m["content"].strip() for m in messages):
        raise _Skip
    tokens = sum(estimate(m["content"]) for m in messages if isinstance(m.get("content"), str))
    return Prompt(tuple(messages), output, max(1, tokens))

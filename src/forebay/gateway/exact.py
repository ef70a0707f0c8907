"""Counting prompts with a model's own tokenizer, off the event loop.

What it is for: the estimates of a model (`gateway.tokens`) learn from it until its engines' `usage` has taught them
enough, so that a start into a flood of Chinese is not a third off. Admission itself never waits for a count.

One thread; what it counts with releases the interpreter's lock. At most `_WAITING` prompts wait for it, others are
passed over; of each only the first `_LONGEST` bytes of its texts are counted, which take some milliseconds at most.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec

from forebay.api.openai import AnyBody, ChatBody, CompletionBody
from forebay.gateway.prompts import Prompt, of_text

log = logging.getLogger(__name__)

_WAITING: Final = 4
_ANSWERS: Final = 64
"""Likewise answers without a usage: these are for the books."""
_LONGEST: Final = 16_384
_LARGEST: Final = 262_144
"""Bytes of a prompt that is taken apart: that holds the interpreter's lock, for less than a millisecond."""
_ENOUGH: Final = 400
"""Prompts of a model that are counted."""

Count = Callable[[str], int]
Learn = Callable[[str, Prompt, int], None]
"""(model, what was counted, its tokens)."""


class _Tokenizer(Protocol):
    def encode_batch(self, inputs: list[str], *, add_special_tokens: bool) -> list[Any]: ...


def open_tokenizer(path: Path) -> Count:
    """Of a tokenizer.json as Hugging Face's `tokenizers` writes it. Raises ImportError without that package, ValueError
    for a file that is none, OSError for one that cannot be read."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # one thread is what it may have
    from tokenizers import Tokenizer

    data = path.read_bytes()
    try:
        tokenizer: _Tokenizer = Tokenizer.from_buffer(data)
    except Exception as e:  # its own class is Exception itself
        raise ValueError(f"{path} is no tokenizer.json: {e}") from None
    # encode holds the interpreter's lock, encode_batch does not
    return lambda text: len(tokenizer.encode_batch([text], add_special_tokens=False)[0].ids)


class ExactCounts:
    """Mutable state: how many prompts wait for the thread, and how many of each model were taken."""

    def __init__(self, tokenizers: Mapping[str, Count], loop: asyncio.AbstractEventLoop, learn: Learn) -> None:
        self._tokenizers = tokenizers
        self._loop = loop
        self._learn = learn
        self._taken = dict.fromkeys(tokenizers, 0)
        self._waiting = 0
        self._thread = ThreadPoolExecutor(1, "forebay-tokens")

    @classmethod
    def load(cls, files: Mapping[str, Path], loop: asyncio.AbstractEventLoop, learn: Learn) -> ExactCounts | None:
        """None where no model has a tokenizer. Blocks some tenths of a second a file. A file that went bad after the
        configuration was checked is left out, with a line in the log."""
        found: dict[str, Count] = {}
        for model, path in files.items():
            try:
                found[model] = open_tokenizer(path)
            except (ImportError, ValueError, OSError) as e:
                log.error("models.%s.tokenizer: %s; its prompts are only estimated", model, e)
        return cls(found, loop, learn) if found else None

    def offer(self, model: str, body: AnyBody) -> None:
        """A prompt that may be counted. Costs next to nothing where it is not."""
        taken = self._taken.get(model, _ENOUGH)
        if taken >= _ENOUGH or self._waiting >= _WAITING or len(_raw(body)) > _LARGEST:
            return
        self._taken[model] = taken + 1
        self._waiting += 1
        self._thread.submit(self._work, model, body)

    def knows(self, model: str) -> bool:
        return model in self._tokenizers

    def count(self, model: str, text: str, then: Callable[[int], None]) -> bool:
        """Count an answer, and call `then` on the loop; with 0 where it could not be counted. False: it will not be,
        for its model has no tokenizer here or too much waits."""
        if model not in self._tokenizers or self._waiting >= _ANSWERS or len(text) > _LARGEST:
            return False
        self._waiting += 1
        self._thread.submit(self._count, model, text, then)
        return True

    def _count(self, model: str, text: str, then: Callable[[int], None]) -> None:
        """In the thread."""
        found = 0
        try:
            found = self._tokenizers[model](text)
        except Exception:
            log.exception("an answer of %s could not be counted", model)
        try:
            self._loop.call_soon_threadsafe(self._counted, found, then)
        except RuntimeError:  # the loop is closed; the books settle it as an orphan
            return

    def _counted(self, found: int, then: Callable[[int], None]) -> None:
        self._waiting -= 1
        then(found)

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _work(self, model: str, body: AnyBody) -> None:
        """In the thread."""
        counted: tuple[Prompt, int] | None = None
        try:
            text = text_of(body)[:_LONGEST]
            if text:
                counted = of_text(text), self._tokenizers[model](text)
        except Exception:
            log.exception("a prompt for %s could not be counted", model)
        try:
            self._loop.call_soon_threadsafe(self._done, model, counted)
        except RuntimeError:  # the loop is closed
            return

    def _done(self, model: str, counted: tuple[Prompt, int] | None) -> None:
        self._waiting -= 1
        if counted is not None:
            self._learn(model, *counted)

    def __repr__(self) -> str:
        return f"<ExactCounts {self._taken}, {self._waiting} waiting>"


class _Part(msgspec.Struct):
    text: str | None = None


class _Message(msgspec.Struct):
    content: str | list[_Part] | None = None


_messages: Final = msgspec.json.Decoder(list[_Message])
_prompts: Final = msgspec.json.Decoder(str | list[str])


def _raw(body: AnyBody) -> msgspec.Raw:
    if isinstance(body, ChatBody):
        return body.messages
    return body.prompt if isinstance(body, CompletionBody) else body.input


def text_of(body: AnyBody) -> str:
    """What people wrote in a prompt: without roles, templates, tools, pictures. "" for token ids and odd shapes."""
    try:
        if isinstance(body, ChatBody):
            texts: list[str] = []
            for message in _messages.decode(_raw(body)):
                content = message.content
                texts += [content] if isinstance(content, str) else [p.text or "" for p in content or ()]
            return "\n".join(texts)
        found = _prompts.decode(_raw(body))
    except msgspec.MsgspecError:
        return ""
    return found if isinstance(found, str) else "\n".join(found)

"""Request bodies: words for prompts of given lengths, whose beginnings are shared as a workload says; or texts."""

from __future__ import annotations

import json
import random
import re
from collections import OrderedDict
from typing import Any, Final

from forebay.plan.load.plan import CHAT, Plan
from forebay.plan.load.prompts import Prompt
from forebay.plan.target import LoadError
from forebay.sim.workload import Ask

WORDS: Final = tuple(
    re.findall(
        r"\w+",
        "the water in this river runs down to a small lake and then on past old mills where men once made flour from "
        "wheat that grew on both sides of it until new roads came and all work moved away",
    )
)
UNIQUE: Final = 12
"""Leading words of a request's own part that are drawn for it alone; the rest of it is the same for all."""
_TAIL: Final = 8_192
"""Words of that rest, repeated where more are asked for."""
_KEPT: Final = 32 << 20
"""Bytes of shared beginnings that are kept as text."""


class Bodies:
    """The body of each request. Equal prefix keys give equal words, whoever asks; what the pieces of a prefix do not
    cover begins with words of its own, so that no prefix cache answers for the engine."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        salt = random.Random(plan.seed) if plan.same_words else random.SystemRandom()  # noqa: S311 - words
        self._salt = salt.getrandbits(64)
        self._random = random.Random(self._salt)  # noqa: S311
        self._streams = _Streams(self._salt)
        words = random.Random(1).choices(WORDS, k=_TAIL)  # noqa: S311
        self._tail = _Cut(words)
        self._next_text = 0
        options: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}, **plan.extra}
        self._options = json.dumps(options, separators=(",", ":"))[1:-1]
        self._head = f'{{"model":{json.dumps(plan.model)},'

    def of(self, ask: Ask) -> tuple[bytes, int]:
        """A body, and the tokens that its prompt is taken to have."""
        plan = self._plan
        prompt = ask.prompt_tokens
        if plan.texts is not None:
            given = plan.texts.prompts[self._next_text % len(plan.texts.prompts)]
            self._next_text += 1
            said, most, prompt = self._given(given), given.output_tokens, given.tokens
            most = plan.max_tokens if plan.max_tokens is not None else most
            if most is None:
                most = ask.output_tokens
        else:
            said, most = self._said(self._words(ask)), ask.output_tokens
        priority = f',"priority":{ask.priority}' if ask.priority else ""
        return f'{self._head}{said},"max_tokens":{most}{priority},{self._options}}}'.encode(), prompt

    def _said(self, text: str) -> str:
        if self._plan.path == CHAT:
            return f'"messages":[{{"role":"user","content":"{text}"}}]'
        return f'"prompt":"{text}"'

    def _given(self, prompt: Prompt) -> str:
        if self._plan.path == CHAT:
            return f'"messages":{json.dumps(prompt.messages, separators=(",", ":"))}'
        return f'"prompt":{json.dumps(prompt.text)}'

    def _words(self, ask: Ask) -> str:
        """Letters and spaces only: nothing that JSON would escape."""
        each, fixed = self._plan.words
        left = max(1, round((ask.prompt_tokens - fixed) / each))
        parts: list[str] = []
        at = 0
        for key, tokens in ask.prefix:
            n = min(left - 1, round(tokens / each))
            if n <= 0:
                continue
            parts.append(self._streams.take(key, 0, n))
            left -= n
            at = n if key == ask.keeps else at
        if ask.keeps is not None:
            parts.append(self._streams.take(ask.keeps, at, at + left))
        else:
            own = min(UNIQUE, left)
            parts.append(" ".join(self._random.choices(WORDS, k=own)))
            if left > own:
                parts.append(self._tail.take(left - own))
        return " ".join(parts)


def check_texts(plan: Plan) -> None:
    """Raises LoadError where the path cannot take the texts of the plan."""
    if plan.texts is None or plan.path == CHAT:
        return
    for n, prompt in enumerate(plan.texts.prompts, 1):
        if prompt.text is None:
            raise LoadError(
                f"prompt {n:,} of {plan.texts.name} is a conversation, which {plan.path} does not take: load the chat "
                "endpoint with it"
            )


class _Cut:
    """The first words of an endless text that repeats itself."""

    __slots__ = ("_ends", "_text")

    def __init__(self, words: list[str]) -> None:
        self._text = " ".join(words)
        self._ends = [0]
        for word in words:
            self._ends.append(self._ends[-1] + len(word) + 1)

    def take(self, n: int) -> str:
        whole, rest = divmod(n, len(self._ends) - 1)
        parts = [self._text] * whole
        if rest:
            parts.append(self._text[: self._ends[rest] - 1])
        return " ".join(parts)


class _Streams:
    """Words that belong to a key: the shorter are a beginning of the longer. The latest are kept, up to _KEPT bytes."""

    def __init__(self, salt: int) -> None:
        self._salt = salt
        self._kept: OrderedDict[tuple[int | str, int, int], str] = OrderedDict()
        self._bytes = 0

    def take(self, key: int | str, begin: int, end: int) -> str:
        found = self._kept.get((key, begin, end))
        if found is not None:
            self._kept.move_to_end((key, begin, end))
            return found
        name = f"{self._salt}/{type(key).__name__}/{key}"
        found = " ".join(random.Random(name).choices(WORDS, k=end)[begin:])  # noqa: S311
        self._kept[key, begin, end] = found
        self._bytes += len(found)
        while self._bytes > _KEPT and len(self._kept) > 1:
            self._bytes -= len(self._kept.popitem(last=False)[1])
        return found

"""What an answer is made of as it is kept. Apart from `answers`, which is compiled: structs of msgspec are not."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Final

import msgspec

from forebay.ledger.tokens import NO_TOKENS, Tokens

_AROUND: Final = 1_400
"""Bytes an answer takes in memory beside its texts, measured, a worker's books on it included."""
_A_NAME: Final = 57
"""The same of a tag."""


class Unfit(StrEnum):
    """Why an answer is not kept."""

    UNREADABLE = "unreadable"
    ERROR = "error"
    CUT = "cut"  # it has no [DONE], or no finish_reason that says it is whole
    LENGTH = "length"  # by max_tokens
    FILTERED = "filtered"
    EMPTY = "empty"
    REFUSED = "refused"  # it says that there is none
    TOOL_CALL = "tool_call"  # not wanted, or its arguments are no JSON
    LARGE = "large"


class About(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of an answer beside its bytes."""

    id: str
    """Of the entry: 16 hexadecimal digits."""
    created: float
    """Unix time."""
    ttl: float
    stale: float = 0.0
    model: str
    """As asked for."""
    version: str = ""
    partition: str = ""
    question: str = ""
    tags: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    tokens: Tokens = NO_TOKENS
    avoided: int = 0
    """What it cost, and the next one will not: nano-units of the ledger's currency."""
    price: bytes = b""
    """`ledger.pricing.Price` as JSON, which `avoided` was counted by; b"": none was known."""
    seconds: float = 0.0
    """That it took to make."""


class Answer(msgspec.Struct, frozen=True, array_like=True, tag="a1", gc=False):
    """Fields are only ever added at the end; what reads otherwise gets another tag, and is a miss to the others."""

    id: str
    created: float
    ttl: float
    stale: float
    model: str
    version: str
    partition: str
    question: str
    language: str
    """"": what it was asked in is told by the question, where somebody wants to know."""
    tags: tuple[str, ...]
    sources: tuple[str, ...]
    tokens: Tokens
    avoided: int
    price: bytes
    seconds: float
    chat: bool
    """Else a completion."""
    streamed: bool
    """How it came, and `body` is: events, [DONE] last, as `packing` keeps them; else JSON."""
    finish_reason: str
    """Of the first choice; length, where any was cut."""
    calls: bool
    """It calls tools: for equal requests only."""
    answer_id: str
    """The `id` in its body."""
    body: bytes
    usage: bytes
    """JSON; b"": the engine said none."""
    repeated: tuple[bytes, ...] = ()
    """What is left out of `body`."""
    writer: bytes = b""
    """Whose request made it, a digest, where everyone shares; b"": all who can find it share it."""
    verified: bool = False
    """An engine told another writer the same."""

    @property
    def size(self) -> int:
        """Bytes it takes in memory, about."""
        texts = len(self.body) + len(self.price) + len(self.usage) + len(self.version)
        for between in self.repeated:
            texts += len(between)
        for names in (self.tags, self.sources):
            if names:
                texts += sum(map(len, names)) + _A_NAME * len(names)
        question = self.question
        return _AROUND + texts + len(question) * (1 if question.isascii() else 4)

    def open_to(self, writer: bytes) -> bool:
        """Whether it may be given to them: what one wrote is only for others once it is verified."""
        return self.verified or self.writer == writer

    def fresh(self, now: float) -> bool:
        return now < self.created + self.ttl

    def usable(self, now: float) -> bool:
        """Fresh, or stale within what is allowed."""
        return now < self.created + self.ttl + self.stale


class Delta(msgspec.Struct, frozen=True, gc=False):
    content: str | None = None
    refusal: str | None = None
    tool_calls: list[Any] | None = None
    function_call: None = None


class Choice(msgspec.Struct, frozen=True, gc=False):
    index: int = 0
    delta: Delta | None = None
    text: str | None = None
    finish_reason: str | None = None


class Chunk(msgspec.Struct, frozen=True, gc=False):
    id: str = ""
    choices: list[Choice] = []
    error: None = None
    usage: None = None
    object: str = ""

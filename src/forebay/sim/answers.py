"""The bytes of one answer, whatever kind of server it is of: what `flow.py` needs, and what several kinds share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from json.encoder import encode_basestring
from typing import Any, ClassVar, Final, NamedTuple

from forebay.sim import words
from forebay.sim.asks import Generation
from forebay.sim.checks import Rejected, compact
from forebay.sim.script import Script

DONE: Final = b"data: [DONE]\n\n"


class Sent(NamedTuple):
    """A whole answer; `headers` is a block."""

    status: int
    headers: bytes
    body: bytes


class Later(NamedTuple):
    """An answer that takes so many seconds of the server, and then maybe more."""

    seconds: float
    then: Callable[[], Sent | Later]


@dataclass(frozen=True, slots=True)
class Prepared:
    """What an answer is given beside the request."""

    name: str
    """The request's id, without what an engine puts before it."""
    extra: bytes
    """A header block."""
    created: int
    """Unix seconds."""
    details: bool
    """Usage says how many prompt tokens were cached, where the engine has to be told to."""


class Told(NamedTuple):
    """What is known at the end. Times are monotonic seconds of the wall."""

    found: int = 0
    """Prompt tokens found in the prefix cache."""
    kept: int = 0
    """Prompt tokens put there."""
    submitted: float = 0.0
    started: float = 0.0
    first: float = 0.0
    last: float = 0.0


class Answer:
    """All methods return whole events, or a header block."""

    sse: ClassVar[bytes] = b"server: uvicorn\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    json: ClassVar[bytes] = b"server: uvicorn\r\ncontent-type: application/json\r\n"

    def __init__(self, ask: Generation, scripts: list[Script], prepared: Prepared) -> None:
        self.ask = ask
        self.scripts = scripts
        self.prepared = prepared
        self.id = prepared.name
        self.prompt_tokens = sum(p.tokens for p in ask.prompts)

    @property
    def completed(self) -> int:
        return sum(s.length for s in self.scripts)

    def stream_head(self) -> bytes:
        return self.sse + self.prepared.extra

    def whole_head(self, told: Told) -> bytes:
        return self.json + self.prepared.extra

    def role(self, script: Script) -> bytes:
        """Empty where the engine sends no such chunk."""
        return b""

    def token(self, script: Script, n: int, *, closing: bool) -> bytes:
        """The chunk of token `n` (from 1). `closing`: no token of any choice follows."""
        raise NotImplementedError

    def raw_delta(self, script: Script, n: int, delta: Any, *, last: bool, closing: bool) -> bytes:
        """A chunk whose delta is given: for faults that shape it."""
        raise NotImplementedError

    def tail(self, told: Told, *, usage: bool) -> bytes:
        """All that follows the last token. `usage` false: without it, for the fault of that name."""
        raise NotImplementedError

    def body(self, told: Told, *, usage: bool, kv_transfer: dict[str, Any] | None = None) -> bytes:
        """A whole answer that is not streamed."""
        raise NotImplementedError

    def error_event(self, e: Rejected) -> bytes:
        """Of a stream that fails, its end included."""
        raise NotImplementedError


def quoted(text: str) -> bytes:
    return encode_basestring(text).encode("utf-8", "backslashreplace")


def event(value: Any) -> bytes:
    return b"data: %b\n\n" % compact(value)


def tool_delta(script: Script, n: int) -> dict[str, Any]:
    """OpenAI's: the id and the name first, then the arguments piece by piece."""
    call = script.calls[0]
    if n == 1:
        head = {"id": call.id, "type": "function", "index": 0, "function": {"name": call.name, "arguments": ""}}
        return {"tool_calls": [head]}
    return {"tool_calls": [{"index": 0, "function": {"arguments": call.arguments[n - 2]}}]}


def tool_calls(script: Script) -> list[dict[str, Any]]:
    return [
        {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": "".join(c.arguments)}}
        for c in script.calls
    ]


def candidates(piece: str, n: int, top: int) -> list[tuple[str, float]]:
    """The chosen token first, then `top` - 1 others, each less likely: made up, the same every time."""
    seed = words.seed_of(piece, n)
    at = -0.05 - words.unit(seed)
    out = [(piece, at)]
    i = 0
    while len(out) < top:
        i += 1
        other = words.sentences(words.seed_of(seed, i), 2)[1]
        at -= 0.1 + words.unit(words.seed_of(seed, i, "gap"))
        if all(other != known for known, _ in out):
            out.append((other, at))
    return out

"""/v1/embeddings: vectors out of a hash, of unit length, the same for the same text."""

from __future__ import annotations

import base64
import math
import struct
from dataclasses import dataclass
from hashlib import shake_256
from typing import TYPE_CHECKING, Any, Final

from forebay.sim.answers import Prepared
from forebay.sim.asks import Prompt, check_length, check_model, read_prompts
from forebay.sim.checks import Fields, parameter
from forebay.sim.driver import Follower
from forebay.sim.faults import Books, Record
from forebay.sim.faulty import Out
from forebay.sim.jobs import Job, Refused
from forebay.wire.reply import Reply

if TYPE_CHECKING:
    from forebay.sim.faces.base import Face

DIMENSIONS: Final = 384
MAX_DIMENSIONS: Final = 4096


@dataclass(frozen=True, slots=True)
class EmbedAsk:
    model: str
    inputs: list[Prompt]
    dimensions: int
    base64: bool
    priority: int


def read_embed(fields: Fields, models: tuple[str, ...], limit: int) -> EmbedAsk:
    """Raises Rejected."""
    dimensions = fields.integer("dimensions", DIMENSIONS) or 0
    priority = fields.integer("priority", 0) or 0
    form = fields.data.get("encoding_format") or "float"
    if form not in ("float", "base64"):
        fields.error("literal_error", "encoding_format", "Input should be 'float' or 'base64'", form)
    if "input" not in fields:
        fields.missing("input")
    fields.raise_errors()
    model = check_model(fields, models)
    if not 1 <= dimensions <= MAX_DIMENSIONS:
        raise parameter("dimensions", f"dimensions must be in [1, {MAX_DIMENSIONS}], got {dimensions}.", dimensions)
    inputs = read_prompts(fields, "input", limit)
    for one in inputs:
        check_length(one, None, limit)
    return EmbedAsk(model, inputs, dimensions, form == "base64", priority)


def vector(text: str, dimensions: int) -> list[float]:
    raw = shake_256(text.encode("utf-8", "surrogatepass")).digest(2 * dimensions)
    numbers = [n / 32768 + 1 / 65536 for n in struct.unpack(f"<{dimensions}h", raw)]
    length = math.sqrt(sum(x * x for x in numbers))
    return [x / length for x in numbers]


class _Input(Follower):
    __slots__ = ("flow",)

    def __init__(self, flow: EmbedFlow, job: Job) -> None:
        super().__init__(job)
        self.flow = flow

    def on_tokens(self, n: int, at: float) -> None:
        self.flow.on_done(self)

    def on_broken(self) -> None:
        self.flow.on_broken()


class EmbedFlow:
    """An embedding takes its prefill and no decode. Its record is closed exactly once."""

    def __init__(
        self,
        face: Face,
        ask: EmbedAsk,
        reply: Reply,
        out: Out,
        record: Record,
        *,
        prepared: Prepared,
        books: Books,
    ) -> None:
        self._face = face
        self._ask = ask
        self._reply = reply
        self._out = out
        self._record = record
        self._prepared = prepared
        self._driver = face.house.driver
        self._tally = face.house.tally
        self._books = books
        self._open: set[_Input] = set()

    def begin(self) -> None:
        """Raises QueueFull or TooLong, with nothing submitted. Texts are not looked for in the prefix cache."""
        for one in self._ask.inputs:
            follower = _Input(self, Job(max(1, one.tokens), 1, priority=self._ask.priority))
            try:
                self._driver.submit(follower)
            except Refused:
                for other in self._open:
                    self._driver.cancel(other)
                raise
            self._open.add(follower)
            one.pieces.clear()
        self._face.house.live[self] = None
        self._reply.on_gone = self._gone

    def on_done(self, follower: _Input) -> None:
        self._open.discard(follower)
        if self._open:
            return
        total = sum(one.tokens for one in self._ask.inputs)
        self._tally.prompt_tokens += total
        self._tally.success["stop"] += len(self._ask.inputs)
        head, body = self._face.embedded(self._ask, self._prepared, self._vectors(), total)
        self._out.whole(200, head, body, self._finished)

    def on_broken(self) -> None:
        self._leave("faulted")
        self._reply.abort()

    def _vectors(self) -> list[Any]:
        out: list[Any] = []
        for one in self._ask.inputs:
            numbers = vector(one.text, self._ask.dimensions)
            packed = base64.b64encode(struct.pack(f"<{len(numbers)}f", *numbers)).decode() if self._ask.base64 else None
            out.append(packed or numbers)
        return out

    def _finished(self) -> None:
        self._leave("finished")

    def _gone(self) -> None:
        self._leave("aborted")

    def _leave(self, how: str) -> None:
        if not self._books.close(self._record, how, self._driver.now()):
            return
        self._face.house.live.pop(self, None)
        if how != "finished":
            self._out.stop()
        for follower in self._open:
            self._driver.cancel(follower)
        self._open.clear()

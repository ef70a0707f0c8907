"""What makes an emulated engine look like one kind of server: its routes, shapes, errors, and how it notices a client
that leaves. The model behind it, the faults and the books are the same for all (`sim/server.py`, `sim/flow.py`)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from forebay.sim.answers import Answer, Later, Prepared, Sent
from forebay.sim.asks import Generation, Prompt
from forebay.sim.checks import Fields, Rejected, compact
from forebay.sim.driver import Driver
from forebay.sim.gates import Gate
from forebay.sim.script import Script
from forebay.sim.tally import Edges, Tally

if TYPE_CHECKING:
    from forebay.sim.embed import EmbedAsk
    from forebay.sim.flow import Flow
    from forebay.sim.handover import Handovers
    from forebay.sim.kv_events import KvEvents
    from forebay.sim.rooms import Rooms
    from forebay.sim.serving import Settings
    from forebay.wire.message import Request

Route = Callable[["Request"], Sent | Later]
CHAT = b"/v1/chat/completions"
COMPLETIONS = b"/v1/completions"
EMBEDDINGS = b"/v1/embeddings"


class House(Protocol):
    """What a face sees of the server it belongs to."""

    settings: Settings
    driver: Driver
    tally: Tally
    handovers: Handovers | None
    rooms: Rooms | None
    events: KvEvents | None
    live: dict[Any, None]
    """Requests that have begun and not ended."""
    created: int
    """Unix seconds."""
    where: tuple[str, int] | None
    """Host and port at which other engines reach this one."""


@dataclass(frozen=True, slots=True)
class Defaults:
    """Of the options that are not given."""

    max_num_seqs: int = 256
    block_size: int = 16
    queue_limit: int | None = None
    """Of --max-num-queued-reqs."""


class Face:
    """One kind of server. Mutable state, if any, is said by the subclass."""

    kind: ClassVar[str]
    version: ClassVar[str]
    defaults: ClassVar[Defaults] = Defaults()
    limits_queue: ClassVar[bool] = False
    """The face counts who waits itself, in a way the model does not know."""
    can_limit: ClassVar[bool] = True
    """The engine can be told how many may wait."""
    head_early: ClassVar[bool] = True
    """A stream's head goes out at once, not with the first token."""
    role_early: ClassVar[bool] = False
    """So does the chunk with the role."""
    ping: ClassVar[tuple[float, bytes] | None] = None
    """After so many seconds of silence in a stream, these bytes."""
    json: ClassVar[bytes] = b"server: uvicorn\r\ncontent-type: application/json\r\n"
    text: ClassVar[bytes] = b"server: uvicorn\r\ncontent-type: text/plain; charset=utf-8\r\n"
    metrics_type: ClassVar[bytes] = b"server: uvicorn\r\ncontent-type: text/plain; version=0.0.4; charset=utf-8\r\n"
    generates: ClassVar[frozenset[bytes]] = frozenset({CHAT, COMPLETIONS})
    metrics_path: ClassVar[bytes] = b"/metrics"

    def __init__(self, house: House) -> None:
        self.house = house
        self.get: dict[bytes, Route] = {}
        self.post: dict[bytes, Route] = {}

    @property
    def settings(self) -> Settings:
        return self.house.settings

    # --- settings ----------------------------------------------------------------------------------------------------

    @classmethod
    def edges(cls, max_model_len: int) -> Edges:
        raise NotImplementedError

    # --- a request's way in ------------------------------------------------------------------------------------------

    def extra_headers(self, name: str) -> bytes:
        """A header block of every answer; `name` is the request's X-Request-Id, or empty."""
        return b""

    def refuses(self, request: Request) -> Sent | None:
        """Before anything else: a missing key, say."""
        return None

    def read(self, request: Request) -> Generation:
        """Raises Rejected."""
        raise NotImplementedError

    def admit(self, ask: Generation) -> None:
        """Raises Rejected where the server, not the model, refuses: found late, it is an event in a stream."""

    def busy(self, limit: str) -> Rejected:
        """What the model's own queue limit is answered with."""
        return Rejected("The queue is full.", status=503, kind="ServiceUnavailable")

    def too_long(self, text: str) -> Rejected:
        """The model's word on a prompt that does not fit the KV cache."""
        return Rejected(text)

    def gate(self, ask: Generation) -> Gate | None:
        return None

    def answer(self, ask: Generation, scripts: list[Script], prepared: Prepared) -> Answer:
        raise NotImplementedError

    # --- a request's life --------------------------------------------------------------------------------------------

    def on_begun(self, flow: Flow) -> None: ...
    def on_ended(self, flow: Flow) -> None: ...

    def on_gone(self, flow: Flow) -> None:
        """The client has left."""
        flow.abandon()

    def on_progress(self, flow: Flow, tokens: int, told: bool) -> None:
        """`tokens` were made so far, and something was sent to a client (`told`)."""

    def close(self) -> None: ...

    # --- other answers -----------------------------------------------------------------------------------------------

    def error(self, e: Rejected) -> Sent:
        return Sent(e.status, self.json, compact(self.error_body(e)))

    def error_body(self, e: Rejected) -> Any:
        raise NotImplementedError

    def died(self) -> Rejected:
        """What a request is told when the engine behind the server is gone."""
        return Rejected("Internal server error", status=500, kind="InternalServerError")

    def overloaded(self) -> Rejected:
        """What the fault of a full queue says."""
        return self.busy("max_num_queued_reqs")

    def not_found(self) -> Sent:
        return Sent(404, self.json, b'{"detail":"Not Found"}')

    def wrong_method(self, allowed: bytes) -> Sent:
        return Sent(405, b"allow: %b\r\n%b" % (allowed, self.json), b'{"detail":"Method Not Allowed"}')

    def metrics(self) -> Sent:
        return Sent(200, self.metrics_type, self.metrics_page())

    def metrics_page(self) -> bytes:
        raise NotImplementedError

    def embed(self, request: Request) -> EmbedAsk:
        """Raises Rejected."""
        raise NotImplementedError

    def embedded(self, ask: EmbedAsk, prepared: Prepared, vectors: list[Any], tokens: int) -> tuple[bytes, bytes]:
        """A header block and the body."""
        raise NotImplementedError

    def plain(self, value: Any) -> Sent:
        return Sent(200, self.json, compact(value))

    def empty(self) -> Sent:
        return Sent(200, b"server: uvicorn\r\n", b"")

    def later(self, seconds: float) -> float:
        """Seconds of the wall for `seconds` of the server."""
        return seconds / self.house.driver.speed


def next_poll(begun: float, now: float, every: float) -> float:
    """Seconds from `now` until a poll that began at `begun` comes round again."""
    return begun + every * (math.floor((now - begun) / every) + 1) - now


def any_model(fields: Fields, models: tuple[str, ...]) -> str:
    """For engines that answer under whatever name they are asked for."""
    name = fields.data.get("model")
    return name if isinstance(name, str) and name else models[0]


def own_model(fields: Fields, models: tuple[str, ...]) -> str:
    """For engines that answer under their own name, whatever they are asked for."""
    return models[0]


def any_range(fields: Fields, limit: int) -> None:
    """Checks nothing."""


def what_fits(prompt: Prompt, wanted: int | None, limit: int) -> int | None:
    """The answer ends where the context does."""
    return None if wanted is None or wanted < 1 else min(wanted, max(1, limit - prompt.tokens))

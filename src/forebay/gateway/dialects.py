"""What must be changed on the way to a kind of engine and back.

An engine that needs nothing has no dialect, and pays nothing. One that has is given each request as `prepare` says, and
where its answers are no answers of OpenAI's API as asked for, a `Reading` makes them so (`interpreting.py` drives it).
"""

from __future__ import annotations

import os
from time import time
from typing import Final, NamedTuple, Protocol

from forebay.api import anthropic_request, openai
from forebay.api.openai import AnyBody
from forebay.api.routes import CHAT, EMBEDDINGS, Route
from forebay.config.cache_prefix import CacheControl, PromptCache
from forebay.config.engine import Engine
from forebay.config.models import Class
from forebay.engines.base import Adapter
from forebay.gateway.callers import Caller
from forebay.gateway.prompt_cache import marked, told_of
from forebay.gateway.prompts import prompts_of
from forebay.gateway.readings import Folding, MessageStream, Reading, WholeMessage

_RID_BYTES: Final = 8


class Sending(NamedTuple):
    """One request on its way to one engine."""

    route: Route
    body: AnyBody
    payload: bytes
    """The body as it would go to an engine without a dialect."""
    class_: Class
    low_first: bool | None
    """Whether the engine takes smaller priorities first, as it says itself."""
    request_id: bytes
    stream: bool
    response_bytes: int
    event_bytes: int
    caller: Caller | None = None


class Abort(NamedTuple):
    """What tells an engine that a request is not wanted any more, beside closing its connection: a POST."""

    path: bytes
    body: bytes


class Prepared(NamedTuple):
    path: bytes
    body: bytes
    reading: Reading | None = None
    abort: Abort | None = None


class Dialect(Protocol):
    def prepare(self, sending: Sending) -> Prepared:
        """Raises Refusal for what this engine cannot be asked."""
        ...


class Fields:
    """OpenAI's API with a few fields of the engine's own set in the body."""

    def __init__(
        self, priority: Adapter | None, aborts: Adapter | None, told: PromptCache | None = None, *, fold: bool
    ) -> None:
        """`priority`: who says what a class is. `aborts`: who says how it is told of an abort; it gets ids of its own
        then (SGLang). `told`: what it is told about its prompt cache. `fold`: it is always asked for a stream."""
        self._priority = priority
        self._aborts = aborts
        self._told = told
        self._fold = fold

    def prepare(self, sending: Sending) -> Prepared:
        fields: dict[str, bytes] = {}
        reading: Reading | None = None
        abort: Abort | None = None
        if self._priority is not None:
            fields["priority"] = b"%d" % (self._priority.priority(sending.class_, sending.low_first) or 0)
        if self._aborts is not None and _is_single(sending):
            rid = _rid(sending.request_id)
            fields["rid"] = b'"%b"' % rid.encode()
            told = self._aborts.abort(rid)
            abort = Abort(*told) if told is not None else None
        if self._fold and not sending.stream and sending.route.streams:
            fields["stream"] = b"true"
            fields["stream_options"] = b'{"include_usage":true}'
            reading = Folding(sending.response_bytes, sending.event_bytes)
        payload = openai.with_fields(sending.payload, fields) if fields else sending.payload
        if self._told is not None:
            payload = marked(self._told, sending.body, payload, sending.caller)
        return Prepared(sending.route.path, payload, reading=reading, abort=abort)

    def __repr__(self) -> str:
        names = (("priority", self._priority), ("rid", self._aborts), ("cache", self._told), ("fold", self._fold))
        return f"<Fields {' '.join(name for name, on in names if on)}>"


def _is_single(sending: Sending) -> bool:
    """Whether it is one sequence: SGLang makes ids of its own of one given for several, or refuses it."""
    body = sending.body
    return sending.route is not EMBEDDINGS and body.n in (None, 1) and prompts_of(body) == 1


def _rid(request_id: bytes) -> str:
    """SGLang refuses an id that is in flight, which a client's may be, and aborts every request whose id
    *begins* with the one given (python/sglang/srt/managers/scheduler.py, abort_request: `req.rid.startswith`). So ours
    begin with random digits, all the same number of them: none begins with another."""
    return f"{os.urandom(_RID_BYTES).hex()}-{request_id.decode()}"


class Anthropic:
    """OpenAI's chat completions asked of Anthropic's Messages API (https://platform.claude.com/docs/en/api/messages)."""

    def __init__(self, cache: CacheControl = CacheControl.NO) -> None:
        self._cache = "" if cache is CacheControl.NO else cache.value

    def prepare(self, sending: Sending) -> Prepared:
        if sending.route is not CHAT:
            raise anthropic_request.no_such_route(sending.route.path.decode())
        body = anthropic_request.messages(sending.payload, self._cache)
        created = int(time())
        reading: Reading = (
            MessageStream(created, sending.event_bytes)
            if sending.stream
            else WholeMessage(created, sending.response_bytes)
        )
        return Prepared(b"/v1/messages", body, reading=reading)

    def __repr__(self) -> str:
        return "<Anthropic>"


def dialect_of(engine: Engine, adapter: Adapter) -> Dialect | None:
    """None where nothing need be changed."""
    if adapter.kind == "anthropic":
        return Anthropic(engine.prompt_cache.cache_control)
    priority = adapter if engine.priority and adapter.priority(Class.NORMAL) is not None else None
    aborts = adapter if adapter.kind == "sglang" else None
    fold = adapter.kind == "llamacpp" if engine.fold is None else engine.fold
    told = told_of(engine, adapter.kind)
    if priority is None and aborts is None and told is None and not fold:
        return None
    return Fields(priority, aborts, told, fold=fold)

"""The two calls of one attempt, to a prefill and to a decode engine.

The attempt is one, whatever its calls (the books have an entry of each, `leg_books.py`):
the request is `dispatched` from the first of them on, and whatever ends or retries it ends both (`Legs.end`).

With vLLM the prefill engine is called first, and the decode engine in the callback of its answer, so that its lease on
the KV (30 s) only has to outlive a connect. With SGLang both are called at once, and the prefill engine's answer says
only how it went.

    what fails                                    then
    prefill engine: not reached, cut, 5xx, late   the decode engine is not called (SGLang: its call is dropped); a retry
    prefill engine: 429, 503                      likewise, as back-pressure
    vLLM prefill: other 4xx, no params            the decode engine gets the whole request: what the client is told of a
                                                  bad one is its word
    SGLang prefill: other 4xx                     the client's to read
    decode engine, before content                 as any engine's failure; an unfinished prefill is dropped
    decode engine was never told of held KV       a decode engine is, and its call is dropped: it then tells the prefill
                                                  engine (`Release`)
    decode engine died, knowing                   the KV is free when its lease ends

A retry goes whole, to SGLang's as another pair.
"""

from __future__ import annotations

import secrets
from time import monotonic
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

import msgspec

from forebay import errors
from forebay.api import openai
from forebay.api.usage import tokens_of
from forebay.engines.handover import Handover, handover_of
from forebay.errors import Outcome, Refusal
from forebay.gateway.leg_books import Leg
from forebay.gateway.tokens import Counted
from forebay.lifecycle import State
from forebay.wire.head import Header
from forebay.wire.upstream import Call, Failure, UpstreamConnection, WholeInParts

if TYPE_CHECKING:
    from forebay.gateway.disaggregated import Disaggregating
    from forebay.gateway.exchange import Exchange
    from forebay.gateway.handles import Handle

Raw = msgspec.Raw
Fields = dict[str, Raw]

MOST_ANSWER: Final = 4 << 20
"""Bytes of a prefill engine's answer: it names every KV block."""
_ASK_PREFILL: Final = Raw(
    b'{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,"remote_block_ids":null,'
    b'"remote_host":null,"remote_port":null}'
)
_UNREACHED: Final = frozenset({Failure.CONNECT, Failure.CONNECT_TIMEOUT, Failure.TLS})
_UNTOLD: Final = _UNREACHED | {Failure.FULL, Failure.CLOSED}


class _Prefilled(msgspec.Struct, frozen=True):
    kv_transfer_params: Raw = Raw(b"null")
    usage: Raw = Raw(b"null")


_prefilled: Final = msgspec.json.Decoder(_Prefilled)
_usage: Final = msgspec.json.Decoder(openai.Usage)


class Legs:
    """One attempt in a group with prefill engines: two calls, or one that is kept in the books.

    Mutable state: which call is under way, and whether the decode engine has heard of KV that is held for it.
    """

    __slots__ = (
        "_began",
        "_counted",
        "_decode",
        "_decoding",
        "_fields",
        "_handed",
        "_key",
        "_owner",
        "_sink",
        "_tokens",
        "_untold",
        "_x",
        "booked",
        "deadline",
        "over",
        "prefill",
    )

    def __init__(
        self,
        owner: Disaggregating,
        x: Exchange,
        decode: Handle,
        key: int,
        tokens: int,
        counted: Counted,
        decoding: int,
    ) -> None:
        self._owner = owner
        self._x = x
        self._decode = decode
        self._key = key
        self._tokens = tokens
        self._counted = counted
        self._decoding = decoding
        self._fields: Fields = {}
        self._began = monotonic()
        self._handed = 0.0  # when the decode engine was told where the KV is
        self._untold = False  # KV is held, and no decode engine knows
        self._sink: _Prefill | None = None  # while the prefill engine's call is under way
        self.prefill: Handle | None = None
        """The engine that computes the prompt; None: the one that decodes."""
        self.booked: Leg | None = None
        """The prefill engine's leg in the books."""
        self.over = False
        self.deadline = 0.0
        """Of the ticker's time."""

    # --- starting ----------------------------------------------------------------------------------------------------

    def go_whole(self, payload: bytes, expected: float) -> None:
        owner, x = self._owner, self._x
        owner.policy.began(self._key, self._decode.name, self._tokens, self._began, decoding=self._decoding)
        if not x.stream:  # nobody sees its first token: it is presumed
            self.deadline = owner.gateway.ticker.now + expected
            owner.watch(self)
        x.send(self._decode, payload)

    def go(self, prefill: Handle, fields: Fields) -> None:
        owner, x = self._owner, self._x
        self.prefill = prefill
        self._fields = fields
        now = owner.gateway.ticker.now
        self.deadline = now + owner.policy.rules.longest
        owner.policy.began(self._key, prefill.name, self._tokens, self._began)
        prefill.in_flight += 1
        if owner.gateway.booking is not None:
            self.booked = owner.gateway.booking.prefills(x, prefill)
        self._sink = sink = _Prefill(self)
        if handover_of(prefill.adapter.kind) is Handover.BOOTSTRAP:
            if self.booked is not None:
                self.booked.handed = self.booked.began
            payload = msgspec.json.encode(fields | _bootstrap(prefill))
            _post(prefill, x, payload, sink)
            x.send(self._decode, payload)
            return
        sink.keeps = True
        asked = {k: v for k, v in fields.items() if k not in ("stream_options", "min_tokens")}
        asked["stream"], asked["max_tokens"] = Raw(b"false"), Raw(b"1")
        if x.front.route.content == "messages":
            asked["max_completion_tokens"] = Raw(b"1")
        asked["kv_transfer_params"] = _ASK_PREFILL
        x.now_at(prefill.name)
        _post(prefill, x, msgspec.json.encode(asked), sink)

    # --- from the prefill engine -------------------------------------------------------------------------------------

    def prefill_answered(self, status: int, body: bytes) -> None:
        prefill, x = self._prefilled(), self._x
        meaning = prefill.adapter.refused(status) if status >= 300 else None
        if meaning is Outcome.OVERLOADED:
            refusal = errors.overloaded("engine_overloaded", "Every engine for this model is full.", 1.0)
            self._prefill_failed(prefill, "overloaded", refusal)
        elif meaning is not None:
            kind = f"status_{status // 100}xx"
            self._prefill_failed(prefill, kind, errors.engine_failed(f"its prefill engine answered {status}"))
        elif handover_of(prefill.adapter.kind) is Handover.BOOTSTRAP:
            if status < 300:
                self._owner.policy.computed(self._key, prefill.name, monotonic())
            elif not x.reply.started:
                x.said_elsewhere(status, body)
        elif status >= 300:
            self._owner.policy.gone(self._key, prefill.name, monotonic())
            self._send_decode()
        else:
            self._hand_over(prefill, body)

    def prefill_broken(self, failure: Failure, detail: str) -> None:
        prefill = self._prefilled()
        if failure in _UNREACHED:
            self._owner.gateway.fleet.passive_failure(prefill, detail)
        if failure is Failure.FULL:
            refusal = errors.overloaded("engine_connections", "All connections to the engine are in use.", 1.0)
        else:
            refusal = errors.engine_failed(f"its prefill engine: {detail or failure.value}")
        self._prefill_failed(prefill, failure.value, refusal)

    def _prefilled(self) -> Handle:
        """Its call is over."""
        prefill = self.prefill
        assert prefill is not None
        self._sink = None
        prefill.in_flight -= 1
        return prefill

    def _prefill_failed(self, prefill: Handle, kind: str, refusal: Refusal) -> None:
        owner, x, now = self._owner, self._x, monotonic()
        owner.gateway.telemetry.upstream_errors.series(prefill.name, kind).add()
        owner.policy.gone(self._key, prefill.name, now)
        owner.policy.failed(prefill.name, now)
        if x.reply.started or x.first_content_at:
            return  # the decode engine had what it needs
        x.now_at(prefill.name)
        x.broken(refusal)

    def _hand_over(self, prefill: Handle, body: bytes) -> None:
        owner, now = self._owner, monotonic()
        try:
            found = _prefilled.decode(body)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            self._prefill_failed(prefill, "not_json", errors.engine_failed("its prefill engine's answer is not JSON"))
            return
        owner.policy.computed(self._key, prefill.name, now)
        params = found.kv_transfer_params
        if bytes(memoryview(params)[:1]) != b"{":
            # It holds nothing: it has no KV connector, or the prompt ended by itself.
            owner.gateway.telemetry.upstream_errors.series(prefill.name, "no_kv_transfer_params").add()
            owner.policy.failed(prefill.name, now)
            self._send_decode()
            return
        self._fields["kv_transfer_params"] = params
        self._handed = now
        if self.booked is not None:
            self.booked.handed, self.booked.cached = now, _cached(found.usage)
        self._send_decode()

    def _send_decode(self) -> None:
        owner, x = self._owner, self._x
        if self.booked is not None and not self._handed:
            self.booked.used = False
        spent = monotonic() - self._began
        self.deadline = owner.gateway.ticker.now + max(0.0, owner.first_byte - spent)
        x.now_at(self._decode.name)
        x.send(self._decode, msgspec.json.encode(self._fields))

    # --- from the exchange -------------------------------------------------------------------------------------------

    def first_content(self, now: float) -> None:
        owner, prefill = self._owner, self.prefill
        owner.waiting.discard(self)
        if self.booked is not None:
            self.booked.fetched = now
        if prefill is None:
            owner.policy.computed(self._key, self._decode.name, now)
        elif self._handed:
            step = self._decode.config.decode_step
            owner.policy.fetched(self._decode.name, self._tokens, now - self._handed, step=step)
        elif handover_of(prefill.adapter.kind) is Handover.BOOTSTRAP:
            owner.policy.computed(self._key, prefill.name, now)

    def dropping(self) -> None:
        """The decode engine's call is about to be dropped; while it is being made, nothing was sent."""
        call = self._x.call
        if self._handed and call is not None and not isinstance(call, UpstreamConnection):
            self._untold = True

    def decode_failed(self, failure: Failure) -> None:
        if self._handed and failure in _UNTOLD:
            self._untold = True

    def late(self) -> None:
        """Its deadline is over."""
        owner, x = self._owner, self._x
        owner.waiting.discard(self)
        sink = self._sink
        if self.prefill is None:
            owner.policy.unseen(self._key, self._decode.name)
        elif sink is not None:
            sink.leave()
            prefill = self._prefilled()
            refusal = errors.engine_timeout(f"no prefill within {owner.policy.rules.longest:g} s")
            self._prefill_failed(prefill, "prefill_timeout", refusal)
        elif not (isinstance(x.call, UpstreamConnection) and x.call.begun):
            x.on_fail(Failure.FIRST_BYTE_TIMEOUT, f"sent no content within {owner.first_byte:g} s")

    def end(self) -> None:
        """The attempt is over, in whatever way."""
        if self.over:
            return
        self.over = True
        owner, x = self._owner, self._x
        owner.waiting.discard(self)
        settled = x.state is State.SETTLED
        well = settled and x.outcome is Outcome.OK
        sink, prefill = self._sink, self.prefill
        if sink is not None:
            if well:
                sink.legs = None  # SGLang's prefill engine says its last words
            else:
                sink.leave()
            self._prefilled()
        on = prefill if prefill is not None else self._decode
        if well:
            owner.policy.unseen(self._key, on.name)
        else:
            owner.policy.gone(self._key, on.name, monotonic())
        if self._untold:
            gone = settled and x.outcome in (Outcome.CLIENT_GONE, Outcome.CANCELLED)
            owner.release(x, self._fields, self._decode.adapter.kind, "" if gone else self._decode.name)
        owner.learn(x, self._counted)

    def __repr__(self) -> str:
        where = f"{self.prefill.name} → " if self.prefill is not None else ""
        return f"<Legs {where}{self._decode.name}{', prefill under way' if self._sink is not None else ''}>"


class _Prefill(WholeInParts):
    """The sink of a prefill engine's answer. `keeps`: its body says something."""

    __slots__ = ("_body", "_status", "call", "keeps", "legs")

    heard_at = 0.0

    def __init__(self, legs: Legs) -> None:
        self.legs: Legs | None = legs
        self.call: Call | None = None
        self.keeps = False
        self._status = 0
        self._body = b""

    def leave(self) -> None:
        """Nobody wants its answer: what it computes is dropped."""
        self.legs = None
        if self.call is not None:
            self.call.cancel()

    def on_head(self, status: int, headers: list[Header], length: int | None) -> None:
        self._status = status
        coded = any(n == b"content-encoding" and v.lower() != b"identity" for n, v in headers)
        if coded or (length is not None and length > MOST_ANSWER and self.keeps):
            self._fail("an answer that is compressed" if coded else "an answer that is too large")

    def on_body(self, data: bytes) -> None:
        if not self.keeps and self._status < 300:
            return
        self._body += data
        if len(self._body) > MOST_ANSWER:
            self._fail("an answer that is too large")

    def on_end(self) -> None:
        legs, self.legs = self.legs, None
        if legs is not None:
            legs.prefill_answered(self._status, self._body)

    def on_fail(self, failure: Failure, detail: str) -> None:
        legs, self.legs = self.legs, None
        if legs is not None:
            legs.prefill_broken(failure, detail)

    def _fail(self, detail: str) -> None:
        legs = self.legs
        self.leave()
        if legs is not None:
            legs.prefill_broken(Failure.GARBAGE, detail)


class Release(WholeInParts):
    """Tells a decode engine of held KV and drops the call once its answer begins, which is after the engine took it in:
    vLLM's decode engine then tells the prefill engine, be the request aborted before its KV was fetched or after it
    (vllm-project/vllm at 0050936b, vllm/distributed/kv_transfer/kv_connector/v1/nixl/pull_scheduler.py,
    `request_finished`). Only for KV that no decode engine was told of: another might have fetched it, and the blocks be
    another request's by now."""

    __slots__ = ("_owner", "call")

    heard_at = 0.0

    def __init__(self, owner: Disaggregating, x: Exchange, handle: Handle, fields: Fields) -> None:
        self.call: Call | None = None
        self._owner = owner
        owner.releasing.add(self)
        asked = {k: v for k, v in fields.items() if k not in ("stream_options", "min_tokens", "max_completion_tokens")}
        asked["stream"], asked["max_tokens"] = Raw(b"true"), Raw(b"1")
        _post(handle, x, msgspec.json.encode(asked), self)

    def on_head(self, status: int, headers: list[Header], length: int | None) -> None:
        return

    def on_body(self, data: bytes) -> None:
        if self.call is not None:
            self.call.cancel()
        self._owner.releasing.discard(self)

    def on_end(self) -> None:
        self._owner.releasing.discard(self)

    def on_fail(self, failure: Failure, detail: str) -> None:
        self._owner.releasing.discard(self)


def _cached(usage: Raw) -> int:
    """Prompt tokens that the prefill engine did not compute, as it says."""
    try:
        return tokens_of(_usage.decode(usage))[0].cached
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):  # null, or none that can be read
        return 0


def _bootstrap(prefill: Handle) -> Fields:
    config = prefill.config
    host = config.bootstrap_host or urlsplit(config.url).hostname or ""
    if ":" in host and not host.startswith("["):
        host = f"[{host}]"
    return {
        "bootstrap_host": Raw(msgspec.json.encode(host)),
        "bootstrap_port": Raw(b"%d" % config.bootstrap_port),
        "bootstrap_room": Raw(b"%d" % secrets.randbits(63)),
    }


def _post(handle: Handle, x: Exchange, payload: bytes, sink: _Prefill | Release) -> None:
    handle.pool.request(
        b"%b%bx-request-id: %b\r\ncontent-length: %d\r\n\r\n"
        % (handle.head(b"POST", x.front.route.path), x.front.block, x.request_id, len(payload)),
        payload,
        sink,
    )

"""llama.cpp's llama-server, as recorded from xllamacpp (tests/sim/samples/llamacpp): its answers, pages and errors.
What was not recorded is of ggml-org/llama.cpp at 00efb3e1: tools/server/server-task.cpp, server-context.cpp,
server-http.cpp, server-queue.cpp.

A request waits for a slot without headers. A client that leaves is noticed when its stream is written to; where there
is nothing to write, only after a second in which no request of the server had a result (server-queue.cpp
`server_response_reader::next` wakes up for each of them and looks after its own client only when it slept through),
and asking for /metrics or /slots is such a result.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from hmac import compare_digest
from typing import Any, Final

from forebay.sim.answers import DONE, Answer, Prepared, Sent, Told, event, quoted, tool_calls, tool_delta
from forebay.sim.asks import Generation, Prompt, Rules, no_priority, read_generation
from forebay.sim.checks import Fields, Rejected, compact
from forebay.sim.faces.base import CHAT, EMBEDDINGS, Defaults, Face, House, any_range, next_poll, own_model, what_fits
from forebay.sim.flow import Flow
from forebay.sim.page import Page
from forebay.sim.script import Script
from forebay.sim.tally import Edges
from forebay.wire.message import Request

BUILD: Final = "b0-unknown"
_QUIET: Final = 1.0
"""Seconds (server-context.cpp HTTP_POLLING_SECONDS)."""
_ID_LENGTH: Final = 32
_OPEN: Final = frozenset({b"/health", b"/v1/health", b"/models", b"/v1/models", b"/api/tags", b"/"})
_HEADERS: Final = b"Server: llama.cpp\r\nAccess-Control-Allow-Origin: \r\n"
_JSON: Final = _HEADERS + b"Content-Type: application/json; charset=utf-8\r\nKeep-Alive: timeout=5, max=100\r\n"


class TooBig(Rejected):
    def __init__(self, tokens: int, context: int) -> None:
        super().__init__(
            f"request ({tokens} tokens) exceeds the available context size ({context} tokens), try increasing it",
            kind="exceed_context_size_error",
        )
        self.tokens = tokens
        self.context = context


class LlamacppAnswer(Answer):
    sse = _HEADERS + b"Content-Type: text/event-stream\r\nKeep-Alive: timeout=5, max=100\r\n"
    json = _JSON

    def __init__(self, ask: Generation, scripts: list[Script], prepared: Prepared) -> None:
        super().__init__(ask, scripts, prepared)
        self.id = f"chatcmpl-{secrets.token_hex(_ID_LENGTH // 2)}"
        rest = b'"created":%d,"id":%b,"model":%b,"system_fingerprint":%b,"object":"chat.completion.chunk"'
        values = (prepared.created, quoted(self.id), quoted(ask.model), quoted(BUILD))
        self._rest = rest % values

    def role(self, script: Script) -> bytes:
        return self._delta(script, b'{"role":"assistant","content":null}') if self.ask.chat else b""

    def token(self, script: Script, n: int, *, closing: bool) -> bytes:
        if script.calls:
            return self.raw_delta(script, n, tool_delta(script, n), last=False, closing=closing)
        piece = script.pieces[n - 1]
        if self.ask.chat:
            return self._delta(script, b'{"content":%b}' % quoted(piece))
        return event(self._text(script, piece, None))

    def raw_delta(self, script: Script, n: int, delta: Any, *, last: bool, closing: bool) -> bytes:
        return self._delta(script, compact(delta))

    def _delta(self, script: Script, delta: bytes, finish: bytes = b"null", more: bytes = b"") -> bytes:
        return b'data: {"choices":[{"finish_reason":%b,"index":%d,"delta":%b}],%b%b}\n\n' % (
            finish,
            script.index,
            delta,
            self._rest,
            more,
        )

    def tail(self, told: Told, *, usage: bool) -> bytes:
        """The timings are in the last chunk."""
        out = b""
        timings = b',"timings":%b' % compact(self._timings(told))
        count = usage and self.ask.include_usage
        for script in self.scripts:
            if self.ask.chat:
                last = script is self.scripts[-1] and not count
                out += self._delta(script, b"{}", b'"%b"' % script.finish.encode(), timings if last else b"")
            else:
                final = self._text(script, "", script.finish)
                more = {"usage": self._usage(told)} if usage else {}
                out += event(final | more | {"timings": self._timings(told)})
        if self.ask.chat and count:
            out += b'data: {"choices":[],%b,"usage":%b%b}\n\n' % (self._rest, compact(self._usage(told)), timings)
        return out + DONE

    def error_event(self, e: Rejected) -> bytes:
        return event({"error": _error(e)})

    def body(self, told: Told, *, usage: bool, kv_transfer: dict[str, Any] | None = None) -> bytes:
        answer: dict[str, Any] = {
            "choices": [self._choice(s) for s in self.scripts],
            "created": self.prepared.created,
            "model": self.ask.model,
            "system_fingerprint": BUILD,
            "object": "chat.completion" if self.ask.chat else "text_completion",
            "usage": self._usage(told),
            "id": self.id,
            "timings": self._timings(told),
        }
        if not usage:
            del answer["usage"]
        return compact(answer)

    def _choice(self, script: Script) -> dict[str, Any]:
        if not self.ask.chat:
            return {"text": script.text, "index": script.index, "logprobs": None, "finish_reason": script.finish}
        message: dict[str, Any] = {"role": "assistant", "content": None if script.calls else script.text}
        if script.calls:
            message["tool_calls"] = tool_calls(script)
        return {"finish_reason": script.finish, "index": script.index, "message": message}

    def _text(self, script: Script, text: str, finish: str | None) -> dict[str, Any]:
        return {
            "choices": [{"text": text, "index": script.index, "logprobs": None, "finish_reason": finish}],
            "created": self.prepared.created,
            "model": self.ask.model,
            "system_fingerprint": BUILD,
            "object": "text_completion",
            "id": self.id,
        }

    def _usage(self, told: Told) -> dict[str, Any]:
        return {
            "completion_tokens": self.completed,
            "prompt_tokens": self.prompt_tokens,
            "total_tokens": self.prompt_tokens + self.completed,
            "prompt_tokens_details": {"cached_tokens": told.found},
        }

    def _timings(self, told: Told) -> dict[str, Any]:
        prompt, predicted = self.prompt_tokens - told.found, self.completed
        prompt_ms, predicted_ms = 1000 * (told.first - told.started), 1000 * (told.last - told.first)
        return {
            "cache_n": told.found,
            "prompt_n": prompt,
            "prompt_ms": prompt_ms,
            "prompt_per_token_ms": prompt_ms / max(1, prompt),
            "prompt_per_second": 1000 * prompt / prompt_ms if prompt_ms else 0.0,
            "predicted_n": predicted,
            "predicted_ms": predicted_ms,
            "predicted_per_token_ms": predicted_ms / max(1, predicted),
            "predicted_per_second": 1000 * predicted / predicted_ms if predicted_ms else 0.0,
        }


class LlamacppFace(Face):
    """Mutable state: when a request last had a result, and those whose clients have left unnoticed."""

    kind = "llamacpp"
    version = BUILD
    defaults = Defaults(max_num_seqs=4)
    can_limit = False
    head_early = False
    json = _JSON
    text = _HEADERS + b"Content-Type: text/plain; version=0.0.4\r\n"
    metrics_type = _HEADERS + b"Content-Type: text/plain; version=0.0.4\r\nKeep-Alive: timeout=5, max=100\r\n"
    generates = frozenset({CHAT, b"/chat/completions", b"/v1/completions", EMBEDDINGS})

    def __init__(self, house: House) -> None:
        super().__init__(house)
        self._spoke = 0.0
        self._left: dict[Flow, asyncio.TimerHandle] = {}
        healthy = self.plain({"status": "ok"})
        self.get = {
            b"/health": lambda _: healthy,
            b"/v1/health": lambda _: healthy,
            b"/v1/models": lambda _: self.plain(self._models()),
            b"/models": lambda _: self.plain(self._models()),
            b"/api/tags": lambda _: self.plain(self._models()),
            b"/props": lambda _: self.plain(self._props()),
            b"/slots": lambda _: self.plain(self._slots()),
        }

    @classmethod
    def edges(cls, max_model_len: int) -> Edges:
        """No page shows them; sums are all that is used."""
        return Edges((1.0,), (1.0,), (1.0,), (1.0,))

    # --- a request's way in ------------------------------------------------------------------------------------------

    def refuses(self, request: Request) -> Sent | None:
        """server-http.cpp `middleware_validate_api_key`."""
        key = self.settings.api_key
        if key is None or request.path in _OPEN:
            return None
        given = request.header(b"authorization") or request.header(b"x-api-key") or b""
        if compare_digest(given.removeprefix(b"Bearer "), key.encode()):
            return None
        return self.error(Rejected("Invalid API Key", status=401, kind="authentication_error"))

    def read(self, request: Request) -> Generation:
        if request.path == EMBEDDINGS:
            text = "This server does not support embeddings. Start it with `--embeddings`"
            raise Rejected(text, status=501, kind="not_supported_error")
        chat = request.path.endswith(b"/chat/completions")
        fields = _fields(request.body)
        if chat and "messages" not in fields:
            raise Rejected("'messages' is required")
        rules = Rules(
            model=own_model,
            ranges=any_range,
            length=_length,
            priority=no_priority,
            completion_tokens=None,
            strict=False,
        )
        return read_generation(
            fields, chat=chat, models=self.settings.models, limit=self.settings.max_model_len, rules=rules
        )

    def answer(self, ask: Generation, scripts: list[Script], prepared: Prepared) -> LlamacppAnswer:
        return LlamacppAnswer(ask, scripts, prepared)

    # --- a request's life --------------------------------------------------------------------------------------------

    def on_progress(self, flow: Flow, tokens: int, told: bool) -> None:
        if told:
            self._spoke = self.house.driver.now()

    def on_gone(self, flow: Flow) -> None:
        if flow.ask.stream and flow.opened:
            flow.abandon()
            return
        flow.desert(None)
        self._look_later(flow, flow.begun)

    def _look_later(self, flow: Flow, since: float) -> None:
        seconds = next_poll(max(since, self._spoke), self.house.driver.now(), self.later(_QUIET))
        loop = asyncio.get_running_loop()
        self._left[flow] = loop.call_later(seconds, self._look, flow, self._spoke)

    def _look(self, flow: Flow, spoke: float) -> None:
        del self._left[flow]
        if spoke == self._spoke:
            flow.abandon()
        else:
            self._look_later(flow, spoke)

    def on_ended(self, flow: Flow) -> None:
        timer = self._left.pop(flow, None)
        if timer is not None:
            timer.cancel()

    def close(self) -> None:
        for timer in self._left.values():
            timer.cancel()

    # --- other answers -----------------------------------------------------------------------------------------------

    def error_body(self, e: Rejected) -> Any:
        return {"error": _error(e)}

    def died(self) -> Rejected:
        return Rejected("Compute error.", status=500, kind="server_error")

    def overloaded(self) -> Rejected:
        """It never says so but while it loads."""
        return Rejected("Loading model", status=503, kind="unavailable_error")

    def not_found(self) -> Sent:
        return self.error(Rejected("File Not Found", status=404, kind="not_found_error"))

    def wrong_method(self, allowed: bytes) -> Sent:
        return self.not_found()

    def metrics(self) -> Sent:
        self._spoke = self.house.driver.now()
        if self.settings.metrics:
            return super().metrics()
        text = "This server does not support metrics endpoint. Start it with `--metrics`"
        return self.error(Rejected(text, status=501, kind="not_supported_error"))

    def metrics_page(self) -> bytes:
        """Recorded. Tokens are counted when a request ends."""
        tally, engine = self.house.tally, self.house.driver.engine
        stats = engine.stats
        computed, prompt_seconds = tally.prompt_tokens - tally.cached_tokens, tally.prefill_time.total
        predicted, predicted_seconds = tally.request_generation.total, tally.decode_time.total
        page = Page(_as_cpp)
        for name, text, value in (
            ("prompt_tokens_total", "Number of prompt tokens processed, excluding cached tokens", computed),
            ("prompt_tokens_cached_total", "Number of prompt tokens reused from the cache", tally.cached_tokens),
            ("prompt_seconds_total", "Total time spent processing prompts", prompt_seconds),
            ("tokens_predicted_total", "Number of generation tokens processed", predicted),
            ("tokens_predicted_seconds_total", "Total time spent generating tokens", predicted_seconds),
            (
                "n_decode_total",
                "Total number of llama_decode() calls, excluding speculative decoding and multimodal decoding",
                stats.steps,
            ),
            ("n_tokens_max", "Largest observed sequence length (prompt + generation)", tally.longest),
            ("spec_decode_num_draft_tokens_total", "Speculative: Total draft tokens generated", 0),
            (
                "spec_decode_num_accepted_tokens_total",
                "Speculative: Total draft tokens accepted by the target model",
                0,
            ),
            (
                "spec_decode_num_drafts_total",
                "Speculative: Total speculative decoding verification steps",
                0,
            ),
        ):
            page.counter(f"llamacpp:{name}", text, ("", value))
        for name, text, value in (
            (
                "prompt_tokens_seconds",
                "Average prompt throughput in tokens/s",
                computed / prompt_seconds if prompt_seconds else 0,
            ),
            (
                "predicted_tokens_seconds",
                "Average generation throughput in tokens/s",
                predicted / predicted_seconds if predicted_seconds else 0,
            ),
            ("requests_processing", "Number of requests processing", engine.running),
            ("requests_deferred", "Number of requests deferred", engine.waiting),
            (
                "n_busy_slots_per_decode",
                "Average number of busy slots per llama_decode() call",
                stats.decode_tokens / stats.steps if stats.steps else 0,
            ),
        ):
            page.gauge(f"llamacpp:{name}", text, ("", value))
        return page.render()

    def _slots(self) -> list[dict[str, Any]]:
        """server-context.cpp `server_slot::to_json`."""
        self._spoke = self.house.driver.now()
        running = [flow for flow in self.house.live if isinstance(flow, Flow) and not flow.waiting]
        out = []
        for i in range(self.settings.engine.max_num_seqs):
            slot: dict[str, Any] = {"id": i, "n_ctx": self.settings.max_model_len, "speculative": False}
            slot["is_processing"] = i < len(running)
            if i < len(running):
                flow = running[i]
                left = max(0, flow.ask.max_tokens - flow.tokens)
                token = {"has_next_token": True, "has_new_line": False, "n_remain": left, "n_decoded": flow.tokens}
                slot |= {"id_task": i, "next_token": [token]}
            out.append(slot)
        return out

    def _models(self) -> dict[str, Any]:
        name = self.settings.models[0]
        details = {
            "parent_model": "",
            "format": "gguf",
            "family": "",
            "families": [""],
            "parameter_size": "",
            "quantization_level": "",
        }
        model = {
            "name": name,
            "model": name,
            "modified_at": "",
            "size": "",
            "digest": "",
            "type": "model",
            "description": "",
            "tags": [""],
            "capabilities": ["completion"],
            "parameters": "",
            "details": details,
        }
        entry = {
            "id": name,
            "aliases": [name],
            "tags": [],
            "object": "model",
            "architecture": {"input_modalities": ["text"], "output_modalities": ["text"]},
            "created": self.house.created,
            "owned_by": "llamacpp",
            "meta": {
                "vocab_type": 2,
                "n_vocab": 49152,
                "n_ctx": self.settings.max_model_len,
                "n_ctx_train": self.settings.max_model_len,
                "n_embd": 576,
                "n_params": 134515008,
                "size": 96576768,
                "ftype": "Q4_1",
            },
        }
        return {"models": [model], "object": "list", "data": [entry]}

    def _props(self) -> dict[str, Any]:
        """Of the recorded keys those that do not describe sampling or templates."""
        settings = self.settings
        return {
            "default_generation_settings": {
                "params": {"n_predict": -1, "stream": False},
                "n_ctx": settings.max_model_len,
            },
            "total_slots": settings.engine.max_num_seqs,
            "model_alias": settings.models[0],
            "model_ftype": "Q4_1",
            "model_path": f"{settings.models[0]}.gguf",
            "modalities": {"vision": False, "video": False, "audio": False},
            "endpoint_slots": True,
            "endpoint_props": False,
            "endpoint_metrics": settings.metrics,
            "ui": True,
            "ui_settings": {},
            "chat_template": "",
            "bos_token": "<|im_start|>",
            "eos_token": "<|im_end|>",
            "build_info": BUILD,
            "is_sleeping": False,
            "cors_proxy_enabled": False,
        }


def _as_cpp(value: float) -> str:
    """As a C++ stream writes numbers: six digits."""
    return f"{value:g}" if value != int(value) else str(int(value))


def _error(e: Rejected) -> dict[str, Any]:
    kind = "invalid_request_error" if e.kind in ("BadRequestError", "Bad Request") else e.kind
    out: dict[str, Any] = {"code": e.status, "message": e.message, "type": kind}
    return out | {"n_prompt_tokens": e.tokens, "n_ctx": e.context} if isinstance(e, TooBig) else out


def _length(prompt: Prompt, wanted: int | None, limit: int) -> int | None:
    """server-context.cpp `update_slots`: the answer ends where the slot's context does."""
    if prompt.tokens >= limit:
        raise TooBig(prompt.tokens, limit)
    return what_fits(prompt, wanted, limit)


def _fields(body: bytes) -> Fields:
    """The content type does not matter. Raises Rejected."""
    try:
        data = json.loads(body)
    except (ValueError, RecursionError) as e:
        at = getattr(e, "pos", 0) + 1
        text = f"[json.exception.parse_error.101] parse error at line 1, column {at}: syntax error while parsing value"
        raise Rejected(text) from None
    if not isinstance(data, dict):
        text = "[json.exception.type_error.305] cannot use operator[] with a string argument"
        raise Rejected(text, status=500, kind="server_error")
    return Fields(data)

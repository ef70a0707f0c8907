"""Ollama (ollama/ollama at fb307609, August 2026): openai/openai.go, middleware/openai.go and server/routes.go for its
OpenAI routes, api/types.go for its own, server/sched.go for the queue.

A stream's head comes with its first token, the role in the first chunk with content, finish_reason in a chunk of its
own. A prompt that is too long is cut (server/prompt.go), which nobody is told. There is no metrics page and no word on
cached tokens. While its model is loaded a request waits without a limit; the limit counts who waits here, as it does
there while the model is loading.
"""

from __future__ import annotations

import json
import secrets
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any, Final

from forebay.sim.answers import DONE, Answer, Prepared, Sent, Told, event, tool_calls
from forebay.sim.asks import Generation, Prompt, Rules, no_priority, read_generation
from forebay.sim.checks import Fields, Rejected, compact
from forebay.sim.embed import EmbedAsk, read_embed
from forebay.sim.faces.base import CHAT, COMPLETIONS, EMBEDDINGS, Defaults, Face, House, any_range
from forebay.sim.script import Script
from forebay.sim.tally import Edges
from forebay.wire.message import Request

VERSION: Final = "0.33.0-rc2"
_FINGERPRINT: Final = "fp_ollama"
_BUSY: Final = "server busy, please try again.  maximum pending requests exceeded"
_JSON: Final = b"Content-Type: application/json\r\n"
_TEXT: Final = b"Content-Type: text/plain\r\n"
_KEEP: Final = timedelta(minutes=5)


class OllamaAnswer(Answer):
    sse = b"Content-Type: text/event-stream\r\n"
    json = _JSON

    def __init__(self, ask: Generation, scripts: list[Script], prepared: Prepared) -> None:
        super().__init__(ask, scripts, prepared)
        self.id = f"{'chatcmpl' if ask.chat else 'cmpl'}-{secrets.randbelow(999)}"

    def token(self, script: Script, n: int, *, closing: bool) -> bytes:
        if script.calls:
            if n < script.length:
                return b""
            return self.raw_delta(script, 1, {"content": "", "tool_calls": _calls(script)}, last=False, closing=closing)
        piece = script.pieces[n - 1]
        if self.ask.chat:
            return self.raw_delta(script, n, {"content": piece}, last=False, closing=closing)
        return self._text(piece, None)

    def raw_delta(self, script: Script, n: int, delta: Any, *, last: bool, closing: bool) -> bytes:
        first = {"role": "assistant"} if n == 1 else {}
        return self._chunk([{"index": 0, "delta": first | delta, "finish_reason": None}])

    def tail(self, told: Told, *, usage: bool) -> bytes:
        script = self.scripts[0]
        count = usage and self.ask.include_usage
        if self.ask.chat:
            out = self._chunk([{"index": 0, "delta": {}, "finish_reason": script.finish}])
            if count:
                out += self._chunk([], self._usage())
        else:
            out = self._text("", script.finish)
            if count:
                out += self._text(None, None)
        return out + DONE

    def error_event(self, e: Rejected) -> bytes:
        """A runner that dies is a line of its own in the stream (server/routes.go `streamResponse`)."""
        return b'{"error":%b}\n' % compact(e.message)

    def body(self, told: Told, *, usage: bool, kv_transfer: dict[str, Any] | None = None) -> bytes:
        script = self.scripts[0]
        if self.ask.chat:
            message: dict[str, Any] = {"role": "assistant", "content": script.text}
            if script.calls:
                message["tool_calls"] = _calls(script)
            choice = {"index": 0, "message": message, "finish_reason": script.finish}
        else:
            choice = {"text": script.text, "index": 0, "finish_reason": script.finish}
        answer: dict[str, Any] = {
            "id": self.id,
            "object": "chat.completion" if self.ask.chat else "text_completion",
            "created": self.prepared.created,
            "model": self.ask.model,
            "system_fingerprint": _FINGERPRINT,
            "choices": [choice],
            "usage": self._usage(),
        }
        if not usage:
            del answer["usage"]
        return compact(answer) + b"\n"

    def _chunk(self, choices: list[Any], usage: dict[str, int] | None = None) -> bytes:
        chunk: dict[str, Any] = {
            "id": self.id,
            "object": "chat.completion.chunk",
            "created": self.prepared.created,
            "model": self.ask.model,
            "system_fingerprint": _FINGERPRINT,
            "choices": choices,
        }
        return event(chunk if usage is None else chunk | {"usage": usage})

    def _text(self, text: str | None, finish: str | None) -> bytes:
        """`text` None: the chunk with the usage. The others have one of zeros, where usage was asked for."""
        chunk: dict[str, Any] = {
            "id": self.id,
            "object": "text_completion",
            "created": self.prepared.created,
            "choices": [] if text is None else [{"text": text, "index": 0, "finish_reason": finish}],
            "model": self.ask.model,
            "system_fingerprint": _FINGERPRINT,
        }
        if self.ask.include_usage:
            chunk["usage"] = self._usage() if text is None else _usage(0, 0)
        return event(chunk)

    def _usage(self) -> dict[str, int]:
        return _usage(self.prompt_tokens, self.completed)


def _usage(prompt: int, completed: int) -> dict[str, int]:
    return {"prompt_tokens": prompt, "completion_tokens": completed, "total_tokens": prompt + completed}


def _calls(script: Script) -> list[dict[str, Any]]:
    return [
        {"id": c["id"], "index": i, "type": c["type"], "function": c["function"]}
        for i, c in enumerate(tool_calls(script))
    ]


class OllamaFace(Face):
    kind = "ollama"
    version = VERSION
    defaults = Defaults(max_num_seqs=1, queue_limit=512)  # envconfig/config.go OLLAMA_NUM_PARALLEL, OLLAMA_MAX_QUEUE
    limits_queue = True
    head_early = False
    json = _JSON
    text = _TEXT
    generates = frozenset({CHAT, COMPLETIONS, EMBEDDINGS})

    def __init__(self, house: House) -> None:
        super().__init__(house)
        running = Sent(200, b"Content-Type: text/plain; charset=utf-8\r\n", b"Ollama is running")
        self.get = {
            b"/": lambda _: running,
            b"/api/version": lambda _: self._own({"version": self.version}),
            b"/api/tags": lambda _: self._own({"models": [self._listed(name) for name in self.settings.models]}),
            b"/api/ps": lambda _: self._own({"models": [self._loaded(name) for name in self.settings.models]}),
            b"/v1/models": lambda _: self._models(),
        }
        self.post = {b"/api/show": self._show}

    @classmethod
    def edges(cls, max_model_len: int) -> Edges:
        """It shows none."""
        return Edges((1.0,), (1.0,), (1.0,), (1.0,))

    # --- a request's way in ------------------------------------------------------------------------------------------

    def read(self, request: Request) -> Generation:
        chat = request.path == CHAT
        fields = _fields(request.body)
        if chat and not fields.data.get("messages"):
            raise Rejected("[] is too short - 'messages'")
        rules = Rules(
            model=_model,
            ranges=any_range,
            length=_length,
            priority=no_priority,
            completion_tokens=None,
            strict=False,
        )
        ask = read_generation(
            fields, chat=chat, models=self.settings.models, limit=self.settings.max_model_len, rules=rules
        )
        ask.n = 1  # it has no such field
        return ask

    def admit(self, ask: Generation) -> None:
        """server/sched.go `GetRunner`, server/routes.go `handleScheduleError`."""
        limit = self.settings.queue_limit
        if limit is not None and self.house.driver.engine.waiting >= limit:
            raise self.busy("")

    def busy(self, limit: str) -> Rejected:
        return Rejected(_BUSY, status=503)

    def answer(self, ask: Generation, scripts: list[Script], prepared: Prepared) -> OllamaAnswer:
        return OllamaAnswer(ask, scripts, prepared)

    def embed(self, request: Request) -> EmbedAsk:
        fields = _fields(request.body)
        if "input" not in fields:
            raise Rejected("invalid input")
        name = _model(fields, self.settings.models)
        fields.data["model"] = self.settings.models[0]
        ask = read_embed(fields, self.settings.models, self.settings.max_model_len)
        return EmbedAsk(name, ask.inputs, ask.dimensions, ask.base64, 0)

    def embedded(self, ask: EmbedAsk, prepared: Prepared, vectors: list[Any], tokens: int) -> tuple[bytes, bytes]:
        body = {
            "object": "list",
            "data": [{"object": "embedding", "embedding": v, "index": i} for i, v in enumerate(vectors)],
            "model": ask.model,
            "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
        }
        return self.json, compact(body) + b"\n"

    # --- other answers -----------------------------------------------------------------------------------------------

    def error(self, e: Rejected) -> Sent:
        sent = super().error(e)
        return sent._replace(body=sent.body + b"\n")

    def error_body(self, e: Rejected) -> Any:
        """openai/openai.go `NewError`."""
        kind = {400: "invalid_request_error", 404: "not_found_error"}.get(e.status, "api_error")
        return {"error": {"message": e.message, "type": kind, "param": None, "code": None}}

    def died(self) -> Rejected:
        return Rejected("model runner has unexpectedly stopped", status=500)

    def not_found(self) -> Sent:
        return Sent(404, self.text, b"404 page not found")

    def wrong_method(self, allowed: bytes) -> Sent:
        return Sent(405, b"Allow: %b\r\n%b" % (allowed, self.text), b"405 method not allowed")

    def metrics(self) -> Sent:
        return self.not_found()

    def _own(self, value: Any) -> Sent:
        return Sent(200, b"Content-Type: application/json; charset=utf-8\r\n", compact(value))

    def _models(self) -> Sent:
        data = [
            {"id": tagged(name), "object": "model", "created": self.house.created, "owned_by": "library"}
            for name in self.settings.models
        ]
        return Sent(200, self.json, compact({"object": "list", "data": data}) + b"\n")

    def _entry(self, name: str) -> dict[str, Any]:
        """api/types.go `ListModelResponse`, `ModelDetails`."""
        return {
            "name": tagged(name),
            "model": tagged(name),
            "size": 4_661_224_676,
            "digest": sha256(name.encode()).hexdigest(),
            "details": {
                "parent_model": "",
                "format": "gguf",
                "family": "llama",
                "families": ["llama"],
                "parameter_size": "8.0B",
                "quantization_level": "Q4_0",
            },
        }

    def _listed(self, name: str) -> dict[str, Any]:
        at = datetime.fromtimestamp(self.house.created, UTC).isoformat()
        return self._entry(name) | {"modified_at": at, "capabilities": ["completion", "tools"]}

    def _loaded(self, name: str) -> dict[str, Any]:
        """`ProcessModelResponse`."""
        entry = self._entry(name)
        return entry | {
            "expires_at": (datetime.now(UTC) + _KEEP).isoformat(),
            "size_vram": entry["size"],
            "context_length": self.settings.max_model_len,
        }

    def _show(self, request: Request) -> Sent:
        """`ShowResponse`: what says how long the context is."""
        fields = _fields(request.body)
        try:
            name = _model(fields, self.settings.models)
        except Rejected as e:
            return Sent(e.status, b"Content-Type: application/json; charset=utf-8\r\n", compact({"error": e.message}))
        info = {"general.architecture": "llama", "llama.context_length": self.settings.max_model_len}
        return self._own(
            {
                "parameters": f"num_ctx {self.settings.max_model_len}",
                "details": self._entry(name)["details"],
                "model_info": info,
                "capabilities": ["completion", "tools"],
            }
        )


def tagged(name: str) -> str:
    """A model without a tag is the latest."""
    return name if ":" in name else f"{name}:latest"


def _model(fields: Fields, models: tuple[str, ...]) -> str:
    name = fields.data.get("model")
    if not isinstance(name, str) or not name:
        raise Rejected("model is required")
    if tagged(name) not in map(tagged, models):
        raise Rejected(f"model '{name}' not found", status=404)
    return name


def _length(prompt: Prompt, wanted: int | None, limit: int) -> int | None:
    """The prompt is cut to leave room for an answer."""
    if prompt.tokens >= limit:
        prompt.tokens = max(1, limit - 1)
        del prompt.pieces[prompt.tokens :]
    return None if wanted is None or wanted < 1 else min(wanted, limit - prompt.tokens)


def _fields(body: bytes) -> Fields:
    """The content type does not matter. Raises Rejected."""
    try:
        data = json.loads(body)
    except (ValueError, RecursionError) as e:
        raise Rejected("EOF" if not body else f"invalid JSON: {e}") from None
    if not isinstance(data, dict):
        raise Rejected("json: cannot unmarshal value into Go value")
    return Fields(data)

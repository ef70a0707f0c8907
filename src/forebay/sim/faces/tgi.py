"""Text Generation Inference 3.3.6-dev0 (huggingface/text-generation-inference, commit db931fcf): router/src/server.rs,
lib.rs, chat.rs, validation.rs, infer/mod.rs.

A stream's 200 goes out before the request is looked at: what is wrong with it, and that the server is full, are events
in it, always with code 422. /v1/completions sends usage with its last token; ids are empty; there is no word on cached
tokens.
"""

from __future__ import annotations

import time
from hmac import compare_digest
from typing import Any, Final

import msgspec

from forebay.sim.answers import DONE, Answer, Prepared, Sent, Told, event
from forebay.sim.asks import Generation, Prompt, Rules, no_priority, read_generation
from forebay.sim.checks import Fields, Rejected, compact
from forebay.sim.faces.base import CHAT, Defaults, Face, House, any_model, any_range, own_model
from forebay.sim.page import Page, as_rust
from forebay.sim.script import Script
from forebay.sim.tally import Edges
from forebay.wire.message import Request

VERSION: Final = "3.3.6-dev0"
FINGERPRINT: Final = f"{VERSION}-native"
_CHUNK: Final = 1024
"""Of a longer max_tokens only so many must fit (validation.rs `validate_input`, DEFAULT_GENERATION_LENGTH)."""
_MAX_STOPS: Final = 4
_CORS: Final = (
    b"vary: origin, access-control-request-method, access-control-request-headers\r\naccess-control-allow-origin: *\r\n"
)
_JSON: Final = b"content-type: application/json\r\n" + _CORS
_TEXT: Final = b"content-type: text/plain; charset=utf-8\r\n" + _CORS


class TgiAnswer(Answer):
    sse = (
        b"content-type: text/event-stream\r\ncache-control: no-cache\r\n"
        b"x-compute-type: gpu+optimized\r\nx-accel-buffering: no\r\n"
    )
    json = _JSON

    def __init__(self, ask: Generation, scripts: list[Script], prepared: Prepared) -> None:
        super().__init__(ask, scripts, prepared)
        self.id = ""

    def stream_head(self) -> bytes:
        return self.sse + b"x-compute-characters: %d\r\n" % self._characters() + _CORS + self.prepared.extra

    def whole_head(self, told: Told) -> bytes:
        """Times are milliseconds but x-compute-time."""
        queued, worked = told.started - told.submitted, told.last - told.started
        total, n = told.last - told.submitted, max(1, self.completed)
        values = {
            "x-compute-type": "gpu+optimized",
            "x-compute-time": f"{total:.9f}",
            "x-compute-characters": self._characters(),
            "x-total-time": int(total * 1000),
            "x-validation-time": 0,
            "x-queue-time": int(queued * 1000),
            "x-inference-time": int(worked * 1000),
            "x-time-per-token": int(worked * 1000 / n),
            "x-prompt-tokens": self.prompt_tokens,
            "x-generated-tokens": self.completed,
        }
        return "".join(f"{k}: {v}\r\n" for k, v in values.items()).encode() + _JSON + self.prepared.extra

    def token(self, script: Script, n: int, *, closing: bool) -> bytes:
        last = n == script.length
        if script.calls:
            call = script.calls[0]
            one = {"name": call.name if n == 1 else None, "arguments": call.arguments[n - 2] if n > 1 else ""}
            calls = [{"index": 0, "id": "0", "type": "function", "function": one}]
            return self.raw_delta(script, n, {"tool_calls": calls}, last=last, closing=closing)
        if self.ask.chat:
            return self.raw_delta(script, n, {"content": script.pieces[n - 1]}, last=last, closing=closing)
        choice = {"index": script.index, "text": script.pieces[n - 1], "logprobs": None}
        if not last:
            choices = [choice | {"finish_reason": ""}]
            return event(
                {
                    "object": "text_completion",
                    "id": "",
                    "created": int(time.time()),
                    "choices": choices,
                    "model": self.ask.model,
                    "system_fingerprint": FINGERPRINT,
                }
            )
        usage = _usage(script.prompt.tokens, script.length)
        return event(
            self._frame("text_completion", [choice | {"finish_reason": _finish(script, eos="eos_token")}], usage)
        )

    def raw_delta(self, script: Script, n: int, delta: Any, *, last: bool, closing: bool) -> bytes:
        choice = {
            "index": script.index,
            "delta": {"role": "assistant", **delta},
            "logprobs": None,
            "finish_reason": _finish(script) if last else None,
        }
        return event(self._frame("chat.completion.chunk", [choice], None))

    def tail(self, told: Told, *, usage: bool) -> bytes:
        out = b""
        if self.ask.chat and self.ask.include_usage and usage:
            out = event(self._frame("chat.completion.chunk", [], _usage(self.prompt_tokens, self.completed)))
        return out + DONE

    def error_event(self, e: Rejected) -> bytes:
        return event({"error": {"message": e.message, "http_status_code": 422}}) + DONE

    def body(self, told: Told, *, usage: bool, kv_transfer: dict[str, Any] | None = None) -> bytes:
        kind = "chat.completion" if self.ask.chat else "text_completion"
        choices = [self._choice(script) for script in self.scripts]
        answer = self._frame(kind, choices, _usage(self.prompt_tokens, self.completed))
        if not usage:
            del answer["usage"]
        return compact(answer)

    def _choice(self, script: Script) -> dict[str, Any]:
        if not self.ask.chat:
            return {"index": script.index, "text": script.text, "logprobs": None, "finish_reason": _finish(script)}
        message: dict[str, Any] = {"role": "assistant", "content": script.text}
        if script.calls:
            function = {
                "description": None,
                "name": script.calls[0].name,
                "arguments": "".join(script.calls[0].arguments),
            }
            message = {"role": "assistant", "tool_calls": [{"id": "0", "type": "function", "function": function}]}
        return {"index": script.index, "message": message, "logprobs": None, "finish_reason": _finish(script)}

    def _frame(self, kind: str, choices: list[Any], usage: dict[str, int] | None) -> dict[str, Any]:
        return {
            "object": kind,
            "id": "",
            "created": int(time.time()),
            "model": self.ask.model,
            "system_fingerprint": FINGERPRINT,
            "choices": choices,
            "usage": usage,
        }

    def _characters(self) -> int:
        return sum(len(p.text) for p in self.ask.prompts)


def _usage(prompt: int, completed: int) -> dict[str, int]:
    return {"prompt_tokens": prompt, "completion_tokens": completed, "total_tokens": prompt + completed}


def _finish(script: Script, *, eos: str = "stop") -> str:
    """lib.rs `FinishReason`: only the model's own end has another name in the OpenAI answers."""
    if script.finish == "length":
        return "length"
    return "stop_sequence" if script.stopped_by is not None else eos


class TgiFace(Face):
    kind = "tgi"
    version = VERSION
    defaults = Defaults(queue_limit=128)  # launcher/src/main.rs --max-concurrent-requests
    limits_queue = True
    ping = (15.0, b":\n\n")  # axum's KeepAlive::default()
    json = _JSON
    text = _TEXT
    metrics_type = _TEXT

    def __init__(self, house: House) -> None:
        super().__init__(house)
        healthy = Sent(200, _CORS, b"")
        self.get = {
            b"/": lambda _: healthy,
            b"/health": lambda _: healthy,
            b"/ping": lambda _: healthy,
            b"/info": lambda _: self.plain(self._info()),
            b"/v1/models": lambda _: self.plain(self._models()),
        }

    @classmethod
    def edges(cls, max_model_len: int) -> Edges:
        """server.rs: durations from 0.00015 s by 1.5, tokens in hundredths of the longest."""
        durations = [0.0001 * 1.5**i for i in range(1, 36)]
        return Edges(durations, durations, durations, [max_model_len / 100 * i for i in range(1, 101)])

    # --- a request's way in ------------------------------------------------------------------------------------------

    def refuses(self, request: Request) -> Sent | None:
        """server.rs: the key guards what generates; whether its letters are capital does not matter."""
        key = self.settings.api_key
        if key is None or request.path not in self.generates:
            return None
        given = (request.header(b"authorization") or b"").lower()
        return None if compare_digest(given, b"Bearer ".lower() + key.lower().encode()) else Sent(401, _CORS, b"")

    def read(self, request: Request) -> Generation:
        """What axum's Json extractor refuses is plain text: 415, 400 and 422."""
        chat = request.path == CHAT
        fields = _fields(request)
        rules = Rules(
            model=self._model if chat else own_model,
            ranges=any_range,
            length=_wanted,
            priority=no_priority,
            completion_tokens=None,
            strict=False,
        )
        try:
            stop = fields.data.get("stop")
            if any((fields.integer(name) or 0) < 0 for name in ("max_tokens", "max_completion_tokens")):
                fields.error("u32", "max_tokens", "invalid value, expected u32", None)
            if isinstance(stop, str):
                fields.error("list_type", "stop", "invalid type: string, expected a sequence", stop)
            ask = read_generation(
                fields, chat=chat, models=self.settings.models, limit=self.settings.max_model_len, rules=rules
            )
        except Rejected as e:
            text = f"Failed to deserialize the JSON body into the target type: {e.message}"
            raise Rejected(text, status=422, kind="text") from None
        ask.n = 1  # lib.rs reads it, nothing uses it
        ask.flaw = self._flaw(fields, ask)
        return ask

    @staticmethod
    def _model(fields: Fields, models: tuple[str, ...]) -> str:
        """Whatever was asked for, but "tgi" is the server's own (server.rs `chat_completions`)."""
        name = any_model(fields, models)
        return models[0] if name == "tgi" else name

    def _flaw(self, fields: Fields, ask: Generation) -> Rejected | None:
        """validation.rs, in its order."""
        temperature, top_p = fields.number("temperature"), fields.number("top_p")
        limit = self.settings.max_model_len
        wanted = fields.integer("max_tokens")
        if wanted is None and ask.chat:
            wanted = fields.integer("max_completion_tokens")
        text = None
        if temperature is not None and temperature < 0:
            text = "`temperature` must be strictly positive"
        elif top_p is not None and not 0 < top_p < 1:
            text = "`top_p` must be > 0.0 and < 1.0"
        elif wanted == 0:
            text = "`max_new_tokens` must be strictly positive"
        elif len(ask.stop) > _MAX_STOPS:
            text = f"`stop` supports up to {_MAX_STOPS} stop sequences. Given: {len(ask.stop)}"
        for prompt in ask.prompts:
            n = prompt.tokens
            new = min(max(0, limit - n) if wanted is None else wanted, _CHUNK)
            if text is not None:
                break
            if not prompt.text:
                text = "`inputs` cannot be empty"
            elif n + new > limit:
                text = (
                    f"`inputs` tokens + `max_new_tokens` must be <= {limit}. Given: {n} `inputs` tokens and {new} "
                    "`max_new_tokens`"
                )
            elif n > limit - 1:
                text = f"`inputs` must have less than {limit - 1} tokens. Given: {n}"
        if text is not None:
            return Rejected(f"Input validation error: {text}", status=422, kind="validation", late=True)
        longest = max(p.tokens for p in ask.prompts)
        ask.max_tokens = max(1, min(wanted or limit, limit - longest))
        return None

    def admit(self, ask: Generation) -> None:
        """infer/mod.rs `generate_stream`: first the permit, then the validation."""
        limit, tally = self.settings.queue_limit, self.house.tally
        if limit is not None and len(self.house.live) >= limit:
            tally.fail("overloaded")
            raise self.busy("")
        if ask.flaw is not None:
            tally.fail("validation")
            raise ask.flaw

    def busy(self, limit: str) -> Rejected:
        return Rejected("Model is overloaded", status=429, kind="overloaded", late=True)

    def too_long(self, text: str) -> Rejected:
        return Rejected(f"Input validation error: {text}", status=422, kind="validation", late=True)

    def answer(self, ask: Generation, scripts: list[Script], prepared: Prepared) -> TgiAnswer:
        return TgiAnswer(ask, scripts, prepared)

    # --- other answers -----------------------------------------------------------------------------------------------

    def error(self, e: Rejected) -> Sent:
        if e.kind == "text":
            return Sent(e.status, self.text, e.message.encode("utf-8", "backslashreplace"))
        return super().error(e)

    def error_body(self, e: Rejected) -> Any:
        return {"error": e.message, "error_type": e.kind}

    def died(self) -> Rejected:
        text = "Request failed during generation: Server error: transport error"
        return Rejected(text, status=424, kind="generation", late=True)

    def not_found(self) -> Sent:
        return Sent(404, _CORS, b"")

    def wrong_method(self, allowed: bytes) -> Sent:
        return Sent(405, b"allow: %b\r\n%b" % (allowed, _CORS), b"")

    def _info(self) -> dict[str, Any]:
        """lib.rs `Info`."""
        settings = self.settings
        return {
            "model_id": settings.models[0],
            "model_sha": None,
            "model_pipeline_tag": "text-generation",
            "max_concurrent_requests": settings.queue_limit,
            "max_best_of": 2,
            "max_stop_sequences": _MAX_STOPS,
            "max_input_tokens": settings.max_model_len - 1,
            "max_total_tokens": settings.max_model_len,
            "validation_workers": 2,
            "max_client_batch_size": 4,
            "router": "text-generation-router",
            "version": self.version,
            "sha": None,
            "docker_label": None,
        }

    def _models(self) -> dict[str, Any]:
        name = self.settings.models[0]
        return {"object": "list", "data": [{"id": name, "object": "model", "created": 0, "owned_by": name}]}

    def metrics_page(self) -> bytes:
        """server.rs describes the families, backends/v3/src/{backend,queue,lib}.rs and router/src fill them; one that
        was never filled is not shown, one that was not described has no HELP. Requests are counted twice."""
        tally, engine = self.house.tally, self.house.driver.engine
        page = Page(as_rust, end="\n")
        if tally.requests:
            page.counter("tgi_request_count", "Total number of requests", ("", 2 * tally.requests))
        success = sum(tally.success.values())
        if success:
            page.counter("tgi_request_success", "Number of successful requests", ("", success))
        if tally.failed:
            page.counter("tgi_request_failure", "", *((f'err="{why}"', n) for why, n in tally.failed.items()))
        page.gauge("tgi_batch_max_total_tokens", "", ("", engine.settings.kv_tokens))
        if not tally.requests:
            return page.render()
        held = round(engine.kv_usage * engine.settings.kv_tokens)
        page.gauge("tgi_queue_size", "Current queue size", ("", engine.waiting))
        page.gauge("tgi_batch_current_size", "Current batch size", ("", engine.running))
        page.gauge("tgi_batch_current_max_tokens", "Maximum tokens for the current batch", ("", held))
        for name, text, h in (
            ("tgi_request_duration", "Total time spent processing the request", tally.e2e),
            ("tgi_request_queue_duration", "Time spent in the queue per request", tally.queue_time),
            ("tgi_request_inference_duration", "Request inference duration", tally.inference_time),
            ("tgi_request_mean_time_per_token_duration", "Mean time per token per request", tally.tpot),
            ("tgi_request_generated_tokens", "Generated tokens per request", tally.request_generation),
            ("tgi_request_input_length", "Input token length per request", tally.request_prompt),
            ("tgi_request_max_new_tokens", "Maximum new tokens per request", tally.params_max_tokens),
        ):
            page.histogram(name, text, h)
        return page.render()


def _wanted(prompt: Prompt, wanted: int | None, limit: int) -> int | None:
    """Looked at later."""
    return wanted if wanted else None


def _fields(request: Request) -> Fields:
    kind = request.header(b"content-type")
    if kind is None or kind.split(b";", 1)[0].strip().lower() != b"application/json":
        raise Rejected("Expected request with `Content-Type: application/json`", status=415, kind="text")
    try:
        data = msgspec.json.decode(request.body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as e:
        raise Rejected(f"Failed to parse the request body as JSON: {e}", status=400, kind="text") from None
    if not isinstance(data, dict):
        text = "Failed to deserialize the JSON body into the target type: expected struct"
        raise Rejected(text, status=422, kind="text")
    return Fields(data)

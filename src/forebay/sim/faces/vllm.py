"""vLLM 0.32: routes, errors and headers, held to recorded answers (tests/sim/samples)."""

from __future__ import annotations

import secrets
from hmac import compare_digest
from typing import Any, Final

from forebay.sim import tokens
from forebay.sim.answers import Prepared, Sent
from forebay.sim.asks import Generation, chat_prompt, check_messages, check_model, detokenized, read_generation
from forebay.sim.checks import Fields, Rejected, compact, parameter, read_body
from forebay.sim.embed import EmbedAsk, read_embed
from forebay.sim.faces import vllm_metrics
from forebay.sim.faces.base import CHAT, COMPLETIONS, EMBEDDINGS, Face, House
from forebay.sim.faces.vllm_answers import VllmAnswer
from forebay.sim.gates import Gate
from forebay.sim.script import Script
from forebay.sim.tally import Edges
from forebay.wire.message import Request

_BUSY: Final = (
    "The engine is currently busy and cannot accept new requests. Please try again later or on a different instance."
)


class VllmFace(Face):
    kind = "vllm"
    version = "0.32.0"
    role_early = True
    generates = frozenset({CHAT, COMPLETIONS, EMBEDDINGS})
    json = VllmAnswer.json
    metrics_type = b"server: uvicorn\r\ncontent-type: text/plain; version=1.0.0; charset=utf-8\r\n"

    def __init__(self, house: House) -> None:
        super().__init__(house)
        empty = b"server: uvicorn\r\nvary: Origin\r\n"
        self.get = {
            b"/v1/models": lambda _: self.plain({"object": "list", "data": self._models()}),
            b"/health": lambda _: Sent(200, empty, b""),
            b"/ping": lambda _: Sent(200, empty, b""),
            b"/version": lambda _: self.plain({"version": self.version}),
            b"/load": lambda _: self.plain({"server_load": self._load()}),
        }
        self.post = {
            b"/ping": lambda _: Sent(200, empty, b""),
            b"/tokenize": self._tokenize,
            b"/detokenize": self._detokenize,
        }

    @classmethod
    def edges(cls, max_model_len: int) -> Edges:
        return vllm_metrics.tally_edges(max_model_len)

    # --- a request's way in ------------------------------------------------------------------------------------------

    def extra_headers(self, name: str) -> bytes:
        return b"x-request-id: %b\r\n" % (name.encode("latin-1") if name else secrets.token_hex(16).encode())

    def refuses(self, request: Request) -> Sent | None:
        key = self.settings.api_key
        if key is None or not request.path.startswith(b"/v1"):
            return None
        if compare_digest(request.header(b"authorization") or b"", b"Bearer " + key.encode()):
            return None
        return Sent(401, self.json, b'{"error":"Unauthorized"}')

    def read(self, request: Request) -> Generation:
        fields = read_body(request.body, request.header(b"content-type"))
        settings = self.settings
        chat = request.path == CHAT
        ask = read_generation(fields, chat=chat, models=settings.models, limit=settings.max_model_len)
        self._check_priority(ask.priority)
        return ask

    def _check_priority(self, priority: int) -> None:
        """vLLM 0.32's OpenAPI: any priority other than 0 is an error where it is not scheduled by."""
        if priority and self.settings.engine.policy != "priority":
            raise parameter("priority", f"Got priority {priority} but Priority scheduling is not enabled.", priority)

    def gate(self, ask: Generation) -> Gate | None:
        handovers = self.house.handovers
        return handovers.gate(ask.kv_transfer) if handovers is not None and ask.kv_transfer else None

    def answer(self, ask: Generation, scripts: list[Script], prepared: Prepared) -> VllmAnswer:
        return VllmAnswer(ask, scripts, prepared)

    def embed(self, request: Request) -> EmbedAsk:
        fields = read_body(request.body, request.header(b"content-type"))
        ask = read_embed(fields, self.settings.models, self.settings.max_model_len)
        self._check_priority(ask.priority)
        return ask

    def embedded(self, ask: EmbedAsk, prepared: Prepared, vectors: list[Any], tokens: int) -> tuple[bytes, bytes]:
        usage = {
            "prompt_tokens": tokens,
            "total_tokens": tokens,
            "completion_tokens": 0,
            "prompt_tokens_details": None,
        }
        body = {
            "id": f"embd-{prepared.name}",
            "object": "list",
            "created": prepared.created,
            "model": ask.model,
            "data": [{"index": i, "object": "embedding", "embedding": v} for i, v in enumerate(vectors)],
            "usage": usage,
        }
        return self.json + prepared.extra, compact(body)

    # --- other answers -----------------------------------------------------------------------------------------------

    def error_body(self, e: Rejected) -> Any:
        return {"error": {"message": e.message, "type": e.kind, "param": e.param, "code": e.status}}

    def busy(self, limit: str) -> Rejected:
        return Rejected(_BUSY, status=503, kind="Service Unavailable")

    def died(self) -> Rejected:
        text = "EngineCore encountered an issue. See stack trace (above) for the root cause."
        return Rejected(text, status=500, kind="InternalServerError")

    def metrics_page(self) -> bytes:
        return vllm_metrics.render(self.house.tally, self.house.driver.engine, self.settings.models[0])

    def _load(self) -> int:
        engine = self.house.driver.engine
        return engine.running + engine.waiting

    def _models(self) -> list[dict[str, Any]]:
        created = self.house.created
        return [
            {
                "id": name,
                "object": "model",
                "created": created,
                "owned_by": "vllm",
                "root": name,
                "parent": None,
                "max_model_len": self.settings.max_model_len,
                "permission": [
                    {
                        "id": f"modelperm-{created:08x}{i:08x}",
                        "object": "model_permission",
                        "created": created,
                        "allow_create_engine": False,
                        "allow_sampling": True,
                        "allow_logprobs": True,
                        "allow_search_indices": False,
                        "allow_view": True,
                        "allow_fine_tuning": False,
                        "organization": "*",
                        "group": None,
                        "is_blocking": False,
                    }
                ],
            }
            for i, name in enumerate(self.settings.models)
        ]

    def _tokenize(self, request: Request) -> Sent:
        fields = read_body(request.body, request.header(b"content-type"))
        settings = self.settings
        if "messages" in fields:
            check_messages(fields)
            fields.raise_errors()
            check_model(fields, settings.models)
            text = chat_prompt(fields.data["messages"], [], settings.max_model_len).text
        else:
            value = fields.string("prompt")
            if "prompt" not in fields:
                fields.missing("prompt")
            fields.raise_errors()
            check_model(fields, settings.models)
            text = value or ""
        numbers = tokens.encode(text)
        strings = [p.decode("utf-8", "replace") for p in tokens.pieces(text)]
        return self.plain(
            {
                "count": len(numbers),
                "max_model_len": settings.max_model_len,
                "tokens": numbers,
                "token_strs": strings if fields.boolean("return_token_strs") else None,
            }
        )

    def _detokenize(self, request: Request) -> Sent:
        fields: Fields = read_body(request.body, request.header(b"content-type"))
        numbers = fields.listing("tokens")
        if "tokens" not in fields:
            fields.missing("tokens")
        for i, number in enumerate(numbers or ()):
            if not isinstance(number, int):
                fields.error("int_type", f"tokens.{i}", "Input should be a valid integer", number)
                break
        fields.raise_errors()
        check_model(fields, self.settings.models)
        return self.plain({"prompt": detokenized(numbers or [], "tokens")})

"""The emulated vLLM server: its routes, and what each fault does before a request reaches the model."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from hmac import compare_digest
from typing import Any, Final

import msgspec

from forebay.errors import Refusal
from forebay.hardware.steptime import StepTime
from forebay.sim import tokens
from forebay.sim.asks import chat_prompt, check_messages, check_model, detokenized, read_generation
from forebay.sim.checks import Fields, Rejected, compact, parameter, read_body
from forebay.sim.driver import Driver
from forebay.sim.embed import EmbedFlow, read_embed
from forebay.sim.faults import (
    FAULT_HEADER,
    BadFault,
    Books,
    Fault,
    FaultBook,
    Kind,
    Record,
    from_json,
    parse,
)
from forebay.sim.faulty import HugeBody, Out, reset, speak_garbage
from forebay.sim.flow import JSON_HEADERS, Flow, engine_died
from forebay.sim.handover import RELEASE, Handovers
from forebay.sim.jobs import Refused, TooLong
from forebay.sim.metrics import LIMITS, EngineMetrics
from forebay.sim.rates import RateStepTime
from forebay.sim.script import write_scripts
from forebay.sim.settings import EngineSettings
from forebay.wire.message import Request
from forebay.wire.reply import Reply

log = logging.getLogger("forebay.sim")

VERSION: Final = "0.32.0"
_MAX_ID: Final = 128
_BUSY: Final = (
    "The engine is currently busy and cannot accept new requests. Please try again later or on a different instance."
)
_TOOL_KINDS: Final = frozenset({Kind.TOOL_WHOLE, Kind.TOOL_NO_ID, Kind.TOOL_EMPTY, Kind.TOOL_FINISH})
_LOOKUP: Final[dict[str, Any]] = {
    "type": "function",
    "function": {
        "name": "lookup",
        "parameters": {"type": "object", "properties": {"place": {"type": "string"}, "day": {"type": "integer"}}},
    },
}


@dataclass(frozen=True, slots=True)
class Settings:
    models: tuple[str, ...] = ("forebay-sim",)
    max_model_len: int = 8192
    seed: int = 0
    engine: EngineSettings = field(default_factory=lambda: EngineSettings(num_blocks=16_384, policy="priority"))
    steps: StepTime = field(default_factory=RateStepTime)
    speed: float = 1.0
    """Seconds of the engine in one of the wall."""
    prompt_tokens_details: bool = False
    """usage says how many prompt tokens were cached."""
    kv_transfer: bool = False
    """kv_transfer_params are obeyed."""
    api_key: str | None = field(default=None, repr=False)
    allow_fault_header: bool = False
    faults: tuple[Fault, ...] = ()


class EngineServer:
    """The handler of `forebay engine`. `refuse` is what the fault of that name calls; it raises BadFault where the
    server cannot close its listener. `where`: host and port at which other engines reach this one."""

    def __init__(
        self, settings: Settings, refuse: Callable[[float], None], where: tuple[str, int] | None = None
    ) -> None:
        self.settings = settings
        self.driver = Driver(settings.engine, settings.steps, asyncio.get_running_loop(), speed=settings.speed)
        self.handovers = Handovers(self.driver, *where) if settings.kv_transfer and where is not None else None
        self.metrics = EngineMetrics(settings.models[0], settings.max_model_len, time.time())
        self.books = Books()
        self.faults = FaultBook(list(settings.faults))
        self._refuse = refuse
        self._created = int(time.time())
        self._get: dict[bytes, Callable[[], bytes]] = {
            b"/v1/models": self._models,
            b"/health": lambda: b"",
            b"/ping": lambda: b"",
            b"/version": lambda: compact({"version": VERSION}),
            b"/load": lambda: compact({"server_load": self.driver.engine.running + self.driver.engine.waiting}),
            b"/control/faults": lambda: compact([f.as_json() for f in self.faults.faults]),
            b"/control/requests": self._requests,
        }
        self._post: dict[bytes, Callable[[Fields], bytes]] = {
            b"/tokenize": self._tokenize,
            b"/detokenize": self._detokenize,
            RELEASE: self._release_kv,
        }
        self._generate: frozenset[bytes] = frozenset({b"/v1/chat/completions", b"/v1/completions", b"/v1/embeddings"})

    # --- wire.server.Handler -----------------------------------------------------------------------------------------

    def on_head(self, request: Request) -> Refusal | None:
        return None

    def on_refused(self, request: Request | None, refusal: Refusal) -> bytes:
        return b"server: uvicorn\r\n"

    def on_request(self, request: Request, reply: Reply) -> None:
        given = request.header(b"x-request-id")
        name = given.decode("latin-1")[:_MAX_ID] if given else ""
        extra = b"x-request-id: %b\r\n" % (name.encode("latin-1") if name else secrets.token_hex(16).encode())
        path, method = request.path, request.method
        if not self._authorised(request):
            reply.send(401, JSON_HEADERS + extra, b'{"error":"Unauthorized"}')
        elif path in self._generate:
            if method == b"POST":
                self._begin(request, reply, name or secrets.token_hex(8), extra)
            else:
                self._wrong_method(reply, extra, b"POST")
        elif path == b"/control/faults" and method in (b"PUT", b"DELETE"):
            self._set_faults(request, reply, extra)
        elif path == b"/metrics" and method in (b"GET", b"HEAD"):
            text = b"server: uvicorn\r\ncontent-type: text/plain; version=1.0.0; charset=utf-8\r\n"
            reply.send(200, text, self.metrics.render(self.driver.engine))
        elif path in self._get:
            if method in (b"GET", b"HEAD") or (path == b"/ping" and method == b"POST"):
                self._plain(reply, extra, self._get[path]())
            else:
                self._wrong_method(reply, extra, b"GET, PUT, DELETE" if path == b"/control/faults" else b"GET")
        elif path in self._post:
            if method != b"POST":
                self._wrong_method(reply, extra, b"POST")
                return
            try:
                body = self._post[path](read_body(request.body, request.header(b"content-type")))
            except Rejected as e:
                reply.send(e.status, JSON_HEADERS + extra, e.body())
            else:
                self._plain(reply, extra, body)
        else:
            reply.send(404, JSON_HEADERS + extra, b'{"detail":"Not Found"}')

    # --- generating --------------------------------------------------------------------------------------------------

    def _begin(self, request: Request, reply: Reply, request_id: str, extra: bytes) -> None:
        header = request.header(FAULT_HEADER) if self.settings.allow_fault_header else None
        try:
            fault = parse(header.decode("latin-1")) if header is not None else self.faults.draw()
        except BadFault as e:
            rejected = Rejected(f"{FAULT_HEADER.decode()}: {e}", param=FAULT_HEADER.decode())
            reply.send(400, JSON_HEADERS + extra, rejected.body())
            return
        now = self.driver.now()
        record = self.books.open(request_id, request.path.decode("latin-1"), fault, now)
        if fault is not None and self._faulted(fault, request, reply, request_id, extra, record):
            return
        self._start(fault, request, reply, request_id, extra, record)

    def _start(
        self, fault: Fault | None, request: Request, reply: Reply, request_id: str, extra: bytes, record: Record
    ) -> None:
        """Every end is answered here, also where a timer calls."""
        try:
            self._serve(fault, request, reply, request_id, extra, record)
        except Rejected as e:
            self.books.close(record, "rejected", self.driver.now())
            if e.status == 503:
                request.keep_alive = False
            reply.send(e.status, JSON_HEADERS + extra, e.body())
        except Exception:
            log.exception("a request failed inside the engine")
            self.books.close(record, "faulted", self.driver.now())
            reply.on_gone = None
            if reply.started:
                reply.abort()
            else:
                reply.send(500, JSON_HEADERS + extra, engine_died().body())

    def _serve(
        self, fault: Fault | None, request: Request, reply: Reply, request_id: str, extra: bytes, record: Record
    ) -> None:
        """Raises Rejected."""
        settings = self.settings
        fields = read_body(request.body, request.header(b"content-type"))
        if request.path == b"/v1/embeddings":
            embed = read_embed(fields, settings.models, settings.max_model_len)
            self._check_priority(embed.priority)
            flow: EmbedFlow | Flow = EmbedFlow(
                embed,
                reply,
                Out(reply, fault, asyncio.get_running_loop()),
                record,
                request_id=f"embd-{request_id}",
                extra_headers=extra,
                driver=self.driver,
                metrics=self.metrics,
                books=self.books,
            )
            self._submit(flow)
            return
        chat = request.path == b"/v1/chat/completions"
        generation = read_generation(fields, chat=chat, models=settings.models, limit=settings.max_model_len)
        self._check_priority(generation.priority)
        if fault is not None and fault.kind in _TOOL_KINDS and chat and not generation.tools:
            generation.tools, generation.tool_choice = [_LOOKUP], "required"
        strange = fault is not None and fault.kind is Kind.SPLIT_UTF8
        flow = Flow(
            generation,
            write_scripts(generation, settings.seed, strange=strange),
            reply,
            record,
            request_id=f"{'chatcmpl' if chat else 'cmpl'}-{request_id}",
            extra_headers=extra,
            fault=fault,
            driver=self.driver,
            metrics=self.metrics,
            books=self.books,
            details=settings.prompt_tokens_details,
            handovers=self.handovers,
        )
        self._submit(flow)

    def _check_priority(self, priority: int) -> None:
        """vLLM 0.32's OpenAPI: any priority other than 0 is an error where it is not scheduled by."""
        if priority and self.settings.engine.policy != "priority":
            raise parameter("priority", f"Got priority {priority} but Priority scheduling is not enabled.", priority)

    def _submit(self, flow: EmbedFlow | Flow) -> None:
        """Raises Rejected."""
        try:
            flow.begin()
        except TooLong as e:
            raise Rejected(str(e)) from None
        except Refused as e:
            for limit in LIMITS:
                self.metrics.rejections[limit] += limit in str(e)
            raise _busy() from None

    def _faulted(
        self, fault: Fault, request: Request, reply: Reply, request_id: str, extra: bytes, record: Record
    ) -> bool:
        """What a fault does instead of serving, or before. False where the request goes on at once."""
        kind = fault.kind
        books, driver = self.books, self.driver

        def done(how: str = "faulted") -> None:
            books.close(record, how, driver.now())

        if kind is Kind.ERROR:
            done()
            body = (
                fault.body.encode()
                or Rejected("Internal Server Error", status=int(fault.arg), kind="InternalServerError").body()
            )
            reply.send(int(fault.arg), JSON_HEADERS + extra, body)
        elif kind is Kind.OVERLOAD_503:
            done()
            request.keep_alive = False
            reply.send(503, JSON_HEADERS + extra, _busy().body())
        elif kind is Kind.OVERLOAD_429:
            done()
            rejected = Rejected("Too many requests. Please try again later.", status=429, kind="RateLimitError")
            reply.send(429, JSON_HEADERS + extra + b"retry-after: %d\r\n" % fault.arg, rejected.body())
        elif kind is Kind.RESET:
            done()
            reset(reply)
        elif kind is Kind.GARBAGE:
            done()
            speak_garbage(reply)
        elif kind is Kind.HUGE_ERROR:
            reply.on_gone = lambda: done("aborted")
            HugeBody(reply, int(fault.arg) * 1_000_000, done)
        elif kind is Kind.STALL:
            timer: asyncio.TimerHandle | None = None
            if fault.arg != float("inf"):
                timer = asyncio.get_running_loop().call_later(
                    fault.arg, self._start, None, request, reply, request_id, extra, record
                )

            def gone() -> None:
                if timer is not None:
                    timer.cancel()
                done("aborted")

            reply.on_gone = gone
        else:
            return False
        return True

    # --- the other routes --------------------------------------------------------------------------------------------

    def _authorised(self, request: Request) -> bool:
        key = self.settings.api_key
        if key is None or not request.path.startswith(b"/v1"):
            return True
        return compare_digest(request.header(b"authorization") or b"", b"Bearer " + key.encode())

    @staticmethod
    def _plain(reply: Reply, extra: bytes, body: bytes) -> None:
        reply.send(200, (JSON_HEADERS if body else b"server: uvicorn\r\nvary: Origin\r\n") + extra, body)

    @staticmethod
    def _wrong_method(reply: Reply, extra: bytes, allowed: bytes) -> None:
        reply.send(405, b"allow: %b\r\n%b%b" % (allowed, JSON_HEADERS, extra), b'{"detail":"Method Not Allowed"}')

    def _models(self) -> bytes:
        def permission(i: int) -> dict[str, Any]:
            return {
                "id": f"modelperm-{self._created:08x}{i:08x}",
                "object": "model_permission",
                "created": self._created,
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

        data = [
            {
                "id": name,
                "object": "model",
                "created": self._created,
                "owned_by": "vllm",
                "root": name,
                "parent": None,
                "max_model_len": self.settings.max_model_len,
                "permission": [permission(i)],
            }
            for i, name in enumerate(self.settings.models)
        ]
        return compact({"object": "list", "data": data})

    def _requests(self) -> bytes:
        engine = self.driver.engine
        books = self.books
        return compact(
            {
                "now": self.driver.now(),
                "running": engine.running,
                "waiting": engine.waiting,
                "started": books.started,
                **books.ended,
                "open": books.busy,
                "records": [r.as_json() for r in books.records],
            }
        )

    def _set_faults(self, request: Request, reply: Reply, extra: bytes) -> None:
        try:
            if request.method == b"DELETE":
                faults: list[Fault] = []
            else:
                raw = request.body or b"[]"
                faults = from_json(read_list(raw))
            for fault in faults:
                if fault.kind is Kind.REFUSE:
                    self._refuse(fault.arg)
            self.faults.replace([f for f in faults if f.kind is not Kind.REFUSE])
        except BadFault as e:
            reply.send(400, JSON_HEADERS + extra, Rejected(str(e), kind="Bad Request").body())
            return
        self._plain(reply, extra, self._get[b"/control/faults"]())

    def _tokenize(self, fields: Fields) -> bytes:
        if "messages" in fields:
            check_messages(fields)
            fields.raise_errors()
            check_model(fields, self.settings.models)
            text = chat_prompt(fields.data["messages"], [], self.settings.max_model_len).text
        else:
            value = fields.string("prompt")
            if "prompt" not in fields:
                fields.missing("prompt")
            fields.raise_errors()
            check_model(fields, self.settings.models)
            text = value or ""
        numbers = tokens.encode(text)
        strings = [p.decode("utf-8", "replace") for p in tokens.pieces(text)]
        return compact(
            {
                "count": len(numbers),
                "max_model_len": self.settings.max_model_len,
                "tokens": numbers,
                "token_strs": strings if fields.boolean("return_token_strs") else None,
            }
        )

    def _detokenize(self, fields: Fields) -> bytes:
        numbers = fields.listing("tokens")
        if "tokens" not in fields:
            fields.missing("tokens")
        for i, number in enumerate(numbers or ()):
            if not isinstance(number, int):
                fields.error("int_type", f"tokens.{i}", "Input should be a valid integer", number)
                break
        fields.raise_errors()
        check_model(fields, self.settings.models)
        return compact({"prompt": detokenized(numbers or [], "tokens")})

    def _release_kv(self, fields: Fields) -> bytes:
        name = fields.string("request_id")
        if "request_id" not in fields:
            fields.missing("request_id")
        fields.raise_errors()
        return compact({"released": self.handovers is not None and self.handovers.release(name or "")})

    def close(self) -> None:
        self.driver.close()
        if self.handovers is not None:
            self.handovers.close()


def read_list(raw: bytes) -> Any:
    """Any JSON. Raises BadFault for what is none."""
    try:
        return msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError) as e:
        raise BadFault(f"the body must be a JSON list of faults: {e}") from None


def _busy() -> Rejected:
    return Rejected(_BUSY, status=503, kind="Service Unavailable")

"""SGLang 0.5.23 (sgl-project/sglang): python/sglang/srt/entrypoints/http_server.py has the routes, the files named
below the rest."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from hmac import compare_digest
from typing import Any, Final
from uuid import uuid4

from forebay.sim.answers import Later, Prepared, Sent
from forebay.sim.asks import Bootstrap, Generation, Prompt, Rules, read_generation
from forebay.sim.checks import Fields, Rejected
from forebay.sim.faces import sglang_metrics
from forebay.sim.faces.base import CHAT, COMPLETIONS, EMBEDDINGS, House, any_model, next_poll
from forebay.sim.faces.fastapi import FastApiFace
from forebay.sim.faces.sglang_answers import SglangAnswer
from forebay.sim.flow import Flow
from forebay.sim.gates import Gate
from forebay.sim.script import Script
from forebay.sim.tally import Edges
from forebay.wire.message import Request

_LAST: Final = 1 << 62
"""Behind every priority there is."""
_STREAM_LEFT: Final = 2.0
_POLL: Final = 4.0
_TOKENS_A_LOOK: Final = 50
"""A stream whose client left is aborted 2 s later (managers/tokenizer_manager.py `create_abort_task`); a request that
has not answered yet is looked after every 4 s (environ.py SGLANG_REQUEST_STATE_WAIT_TIMEOUT), and whenever the
scheduler reports, for whole answers every 50 tokens (SGLANG_FORCE_STREAM_INTERVAL)."""


class SglangFace(FastApiFace):
    """Mutable state: its requests by rid."""

    kind = "sglang"
    version = "0.5.23"
    limits_queue = True
    head_early = False  # serving_chat.py waits for the first chunk, to answer a bad request with 400
    generates = frozenset({CHAT, COMPLETIONS, EMBEDDINGS})

    def __init__(self, house: House) -> None:
        super().__init__(house)
        self._by_rid: dict[str, Flow] = {}
        self.get = {
            b"/health": self._health,
            b"/health_generate": self._health,
            b"/ready": lambda _: self.empty(),
            b"/v1/models": lambda _: self.plain(self._models()),
            b"/model_info": lambda _: self.plain(self._model_info()),
            b"/get_model_info": lambda _: self.plain(self._model_info()),
            b"/server_info": lambda _: self.plain(self._server_info()),
            b"/get_server_info": lambda _: self.plain(self._server_info()),
            b"/v1/loads": lambda _: self.plain(self._loads()),
            b"/": lambda _: self.plain("SGLang is running"),
            b"/api/tags": lambda _: self.plain(self._tags()),
        }
        self.post = {b"/abort_request": self._abort}

    @classmethod
    def edges(cls, max_model_len: int) -> Edges:
        return sglang_metrics.tally_edges()

    # --- a request's way in ------------------------------------------------------------------------------------------

    def refuses(self, request: Request) -> Sent | None:
        """utils/auth.py: all but health and metrics need the key."""
        key = self.settings.api_key
        if key is None or request.path.startswith((b"/health", b"/metrics", b"/ready")):
            return None
        if compare_digest(request.header(b"authorization") or b"", b"Bearer " + key.encode()):
            return None
        return Sent(401, self.json, b'{"error":"Unauthorized"}')

    def read(self, request: Request) -> Generation:
        fields = self.fields(request)
        if request.path == EMBEDDINGS:
            # managers/tokenizer_manager.py `_validate_one_request`
            raise Rejected(
                "This model does not appear to be an embedding model by default. "
                "Please add `--is-embedding` when launching the server or try another model."
            )
        rules = Rules(
            model=any_model,
            ranges=_ranges,
            length=_length,
            priority=self._priority,
            completion_tokens=16,
            strict=False,
        )
        settings = self.settings
        ask = read_generation(
            fields, chat=request.path == CHAT, models=settings.models, limit=settings.max_model_len, rules=rules
        )
        rid = fields.data.get("rid")
        ask.rid = rid if isinstance(rid, str) and rid else uuid4().hex
        ask.bootstrap = _bootstrap(fields)
        if settings.role == "prefill":
            ask.max_tokens, ask.n = 1, 1
        return ask

    def _priority(self, fields: Fields) -> int:
        """managers/scheduler.py `_set_or_validate_priority`: without the flag it is ignored; none is the last."""
        value = fields.integer("priority")
        if self.settings.engine.policy != "priority":
            return 0
        if value is None:
            return _LAST
        return value if self.settings.low_first else -value

    def admit(self, ask: Generation) -> None:
        """managers/scheduler.py `_abort_on_queued_limit`, `handle_generate_request`; tokenizer_manager.py."""
        if ask.rid in self._by_rid:
            raise Rejected(f"Duplicate request ID detected: {ask.rid}")
        if self.settings.role != "null":
            if ask.bootstrap is None:
                text = f"Invalid request: Disaggregated request received without bootstrap room id. req.rid={ask.rid!r}"
                raise Rejected(text, late=True)
            return
        limit, engine = self.settings.queue_limit, self.house.driver.engine
        if limit is None or engine.waiting + 1 <= limit:
            return
        if engine.settings.policy == "priority":
            waiting = [f for f in self._by_rid.values() if f.waiting]
            worst = max(waiting, key=lambda f: (f.ask.priority, f.begun), default=None)
            if worst is not None and ask.priority < worst.ask.priority:
                worst.fail(_full("The request is aborted by a higher priority request."))
                return
        raise _full("The request queue is full.")

    def busy(self, limit: str) -> Rejected:
        return _full("The request queue is full.")

    def gate(self, ask: Generation) -> Gate | None:
        rooms = self.house.rooms
        return rooms.gate(ask.bootstrap, ask.rid) if rooms is not None and ask.bootstrap is not None else None

    def answer(self, ask: Generation, scripts: list[Script], prepared: Prepared) -> SglangAnswer:
        return SglangAnswer(ask, scripts, prepared)

    # --- a request's life --------------------------------------------------------------------------------------------

    def on_begun(self, flow: Flow) -> None:
        self._by_rid[flow.ask.rid] = flow

    def on_ended(self, flow: Flow) -> None:
        if self._by_rid.get(flow.ask.rid) is flow:
            del self._by_rid[flow.ask.rid]

    def on_gone(self, flow: Flow) -> None:
        now = self.house.driver.now()
        seconds = _STREAM_LEFT if flow.opened else next_poll(flow.begun, now, _POLL)
        flow.desert(self.later(seconds))

    def on_progress(self, flow: Flow, tokens: int, told: bool) -> None:
        if flow.deserted and not flow.ask.stream and tokens % _TOKENS_A_LOOK == 0:
            flow.abandon()

    def _abort(self, request: Request) -> Sent:
        """tokenizer_manager.py `abort_request`: a rid nobody has is no error."""
        fields = self.fields(request)
        rid, every = fields.string("rid") or "", fields.boolean("abort_all")
        fields.raise_errors()
        flows = list(self._by_rid.values()) if every else [f for f in (self._by_rid.get(rid),) if f is not None]
        for flow in flows:
            self.house.tally.aborted += 1
            flow.cut_short("abort")
        return self.empty()

    # --- other answers -----------------------------------------------------------------------------------------------

    def error(self, e: Rejected) -> Sent:
        if e.late and e.status != 400:  # an HTTPException by then, whose type is its status
            e.kind = str(e.status)
        return super().error(e)

    def died(self) -> Rejected:
        return Rejected("Internal server error: the scheduler is gone", status=500, kind="500", late=True)

    def metrics(self) -> Sent:
        return super().metrics() if self.settings.metrics else self.not_found()

    def metrics_page(self) -> bytes:
        return sglang_metrics.render(self.house.tally, self.house.driver.engine, self.settings)

    def _health(self, request: Request) -> Sent | Later:
        """http_server.py `health_generate` asks the engine for a token, and looks after a second."""
        return Later(1.0, self.empty)

    def _models(self) -> dict[str, Any]:
        name = self.settings.models[0]
        card = {
            "id": name,
            "object": "model",
            "created": self.house.created,
            "owned_by": "sglang",
            "root": name,
            "parent": None,
            "max_model_len": self.settings.max_model_len,
        }
        return {"object": "list", "data": [card]}

    def _tags(self) -> dict[str, Any]:
        """entrypoints/ollama/serving.py `get_tags`: it passes for an Ollama there."""
        name = self.settings.models[0]
        model = {
            "name": name,
            "model": name,
            "modified_at": datetime.now(UTC).isoformat(),
            "size": 0,
            "digest": "sha256:sglang" + 58 * "0",
            "details": {"format": "sglang", "family": name.rpartition("/")[2], "parameter_size": "unknown"},
        }
        return {"models": [model]}

    def _model_info(self) -> dict[str, Any]:
        name = self.settings.models[0]
        return {
            "model_path": name,
            "served_model_name": name,
            "tokenizer_path": name,
            "is_generation": True,
            "preferred_sampling_params": None,
            "weight_version": "default",
            "load_format": "auto",
            "reasoning_parser": None,
            "tool_call_parser": None,
            "disaggregation_mode": self.settings.role,
            "has_image_understanding": False,
            "has_audio_understanding": False,
            "model_type": "llama",
            "architectures": ["LlamaForCausalLM"],
        }

    def _server_info(self) -> dict[str, Any]:
        """utils/common.py `build_server_info`: the resolved arguments, then what managers/scheduler.py `get_init_info`
        says; of the arguments those that a gateway can use."""
        settings, engine = self.settings, self.settings.engine
        name = settings.models[0]
        return {
            "model_path": name,
            "tokenizer_path": name,
            "served_model_name": name,
            "context_length": settings.max_model_len,
            "page_size": engine.block_size,
            "max_running_requests": engine.max_num_seqs,
            "max_queued_requests": settings.queue_limit,
            "chunked_prefill_size": engine.max_num_batched_tokens,
            "schedule_policy": "fcfs",
            "enable_priority_scheduling": engine.policy == "priority",
            "schedule_low_priority_values_first": settings.low_first,
            "disable_radix_cache": not engine.enable_prefix_caching,
            "tp_size": 1,
            "dp_size": 1,
            "enable_metrics": settings.metrics,
            "enable_cache_report": settings.prompt_tokens_details,
            "kv_events_config": None,
            "disaggregation_mode": settings.role,
            "disaggregation_bootstrap_port": settings.bootstrap_port or self._port(),
            "status": "ready",
            "max_total_num_tokens": engine.kv_tokens,
            "max_req_input_len": settings.max_model_len - 6,
            "internal_states": [
                {
                    "world_size": 1,
                    "effective_max_running_requests_per_dp": engine.max_num_seqs,
                    "memory_usage": {"token_capacity": engine.kv_tokens},
                }
            ],
            "version": self.version,
            "frontend": "python",
        }

    def _port(self) -> int:
        where = self.house.where
        return where[1] if where is not None else 8998

    def _loads(self) -> dict[str, Any]:
        """srt/entrypoints/v1_loads.py, managers/load_snapshot.py `LoadSnapshot`."""
        engine = self.house.driver.engine
        used = round(engine.kv_usage * engine.settings.kv_tokens)
        queries = engine.stats.prefix_queries
        load = {
            "timestamp": datetime.now(UTC).timestamp(),
            "dp_rank": 0,
            "num_running_reqs": engine.running,
            "num_waiting_reqs": engine.waiting,
            "num_used_tokens": used,
            "num_total_tokens": used,
            "num_active_tokens": used,
            "max_total_num_tokens": engine.settings.kv_tokens,
            "max_running_requests": engine.settings.max_num_seqs,
            "token_usage": engine.kv_usage,
            "cache_hit_rate": engine.stats.prefix_hits / queries if queries else 0.0,
        }
        return {
            "timestamp": datetime.now(UTC).isoformat(),
            "version": self.version,
            "accelerator": None,
            "num_accelerators": 1,
            "loads": [load],
        }


def _full(text: str) -> Rejected:
    return Rejected(text, status=503, kind="503", late=True)


def _ranges(fields: Fields, limit: int) -> None:
    """sampling/sampling_params.py `verify`."""
    for name in ("max_completion_tokens", "max_tokens"):
        value = fields.integer(name)
        if value is not None and value < 0:
            raise Rejected(f"max_new_tokens must be at least 0, got {value}.")
    temperature = fields.number("temperature")
    if temperature is not None and (temperature < 0 or not math.isfinite(temperature)):
        raise Rejected(f"temperature must be a non-negative finite number, got {temperature}.")
    top_p = fields.number("top_p")
    if top_p is not None and not 0 < top_p <= 1:
        raise Rejected(f"top_p must be in (0, 1], got {top_p}.")


def _length(prompt: Prompt, wanted: int | None, limit: int) -> int | None:
    """managers/tokenizer_manager.py `_validate_one_request`."""
    if prompt.tokens >= limit:
        raise Rejected(
            f"The input ({prompt.tokens} tokens) is longer than the model's context length ({limit} tokens)."
        )
    total = prompt.tokens + (wanted or 0)
    if total > limit:
        raise Rejected(
            f"Requested token count exceeds the model's maximum context length of {limit} tokens. You requested a "
            f"total of {total} tokens: {prompt.tokens} tokens from the input messages and {wanted} tokens for the "
            "completion. Please reduce the number of tokens in the input messages or the completion to fit within the "
            "limit."
        )
    return wanted or None


def _bootstrap(fields: Fields) -> Bootstrap | None:
    """entrypoints/openai/protocol.py: of one request each is a value, not a list."""
    room, host = fields.integer("bootstrap_room"), fields.string("bootstrap_host")
    port = fields.integer("bootstrap_port")
    fields.raise_errors()
    return None if room is None else Bootstrap(host or "127.0.0.1", port, room)

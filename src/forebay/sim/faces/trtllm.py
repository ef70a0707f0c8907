"""TensorRT-LLM's `trtllm-serve` (NVIDIA/TensorRT-LLM): tensorrt_llm/serve/openai_server.py at commit 00057725,
openai_protocol.py at 0076e939, postprocess_handlers.py at 01bf1923, metrics/collector.py at 050f80de.

It queues without a limit, so it never says that it is full. /metrics is JSON, a list of what each iteration was like,
and is emptied by reading (`enable_iter_perf_stats`); Prometheus' page is /prometheus/metrics (`return_perf_metrics`).
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Any, Final
from uuid import uuid4

from forebay.sim.answers import DONE, Answer, Later, Prepared, Sent, Told, event, tool_calls, tool_delta
from forebay.sim.asks import Generation, Prompt, Rules, read_generation
from forebay.sim.checks import Fields, Rejected, compact
from forebay.sim.faces.base import CHAT, Defaults, House, any_model, next_poll
from forebay.sim.faces.fastapi import FastApiFace
from forebay.sim.flow import Flow
from forebay.sim.page import Page
from forebay.sim.script import Script
from forebay.sim.tally import Edges, edges
from forebay.wire.message import Request

VERSION: Final = "1.2.0"
_POLL: Final = 1.0
"""Seconds between two looks whether the client is there (openai_server.py `await_disconnected`)."""
_DRY: Final = 2.0
"""Seconds that /metrics waits for one more iteration (`get_stats_async(2)`, executor/result.py `IterationResult`)."""
_MOST: Final = 1000
"""Iterations in one answer (llmapi/llm_args.py iter_stats_max_iterations)."""
_LATENCY: Final = "0.3 0.5 0.8 1 1.5 2 2.5 5 10 15 20 30 40 50 60 120 240 480 960 1920 7680"
_TTFT: Final = "0.001 0.005 0.01 0.02 0.04 0.06 0.08 0.1 0.25 0.5 0.75 1 2.5 5 7.5 10 20 40 80 160 640 2560"
_TPOT: Final = "0.01 0.025 0.05 0.075 0.1 0.15 0.2 0.3 0.4 0.5 0.75 1 2.5 5 7.5 10 20 40 80"
_PREFILL: Final = "0.001 0.005 0.01 0.025 0.05 0.1 0.25 0.5 1 2.5 5 10 20 40 80 160 640 2560"

_COMMON: Final = frozenset(
    str.split(
        "model n stop stream stream_options temperature top_p seed frequency_penalty presence_penalty logit_bias "
        "logprobs user best_of use_beam_search top_k top_p_min min_p repetition_penalty length_penalty early_stopping "
        "stop_token_ids include_stop_str_in_output ignore_eos min_tokens skip_special_tokens "
        "spaces_between_special_tokens max_tokens truncate_prompt_tokens lora_request prompt_ignore_length "
        "response_format disaggregated_params priority conversation_params thinking_token_budget "
        "add_special_tokens echo"
    )
)
_CHAT: Final = frozenset(
    str.split(
        "messages prompt_token_ids prompt_token_ids_b64 top_logprobs max_completion_tokens tools tool_choice "
        "parallel_tool_calls reasoning_effort thinking add_generation_prompt documents chat_template "
        "chat_template_kwargs injected_chat_template_kwargs media_io_kwargs cache_salt agent_hierarchy "
        "mm_processor_kwargs"
    )
)
_FIELDS: Final = MappingProxyType(
    {
        True: _COMMON | _CHAT,
        False: _COMMON | frozenset(("prompt", "suffix", "return_context_logits", "detokenize")),
    }
)
"""openai_protocol.py `ChatCompletionRequest`, `CompletionRequest`: any other field is refused."""


class TrtllmAnswer(Answer):
    def __init__(self, ask: Generation, scripts: list[Script], prepared: Prepared, number: int) -> None:
        """`number`: the request's, which a stream is named after."""
        super().__init__(ask, scripts, prepared)
        prefix = "chatcmpl" if ask.chat else "cmpl"
        self.id = f"{prefix}-{number if ask.stream else uuid4().hex}"
        self._object = "chat.completion.chunk" if ask.chat else "text_completion"

    def _chunk(self, choices: list[Any], usage: dict[str, Any] | None = None) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": self._object,
            "created": self.prepared.created,
            "model": self.ask.model,
            "choices": choices,
            "usage": usage,
        }

    def role(self, script: Script) -> bytes:
        """With the first token; a space before its end."""
        if not self.ask.chat:
            return b""
        chunk = self._chunk([{"index": script.index, "delta": {"role": "assistant"}}])
        del chunk["usage"]
        return b"data: %b \n\n" % compact(chunk)

    def token(self, script: Script, n: int, *, closing: bool) -> bytes:
        last = n == script.length
        if script.calls:
            return self.raw_delta(script, n, tool_delta(script, n), last=last, closing=closing)
        piece = script.pieces[n - 1]
        if self.ask.chat:
            delta = {"content": piece, "reasoning_content": ""}
            return self.raw_delta(script, n, delta, last=last, closing=closing)
        choice = {
            "index": script.index,
            "text": piece,
            "token_ids": None,
            "logprobs": None,
            "finish_reason": script.finish if last else None,
            "stop_reason": script.stopped_by if last else None,
            "avg_decoded_tokens_per_iter": None,
        }
        return event(self._chunk([choice], self._usage(script, n, Told()) if self.ask.continuous_usage else None))

    def raw_delta(self, script: Script, n: int, delta: Any, *, last: bool, closing: bool) -> bytes:
        """Without what is null."""
        choice: dict[str, Any] = {"index": script.index, "delta": delta}
        if last:
            choice["finish_reason"] = script.finish
            if script.stopped_by is not None:
                choice["stop_reason"] = script.stopped_by
        chunk = self._chunk([choice], self._usage(script, n, Told()) if self.ask.continuous_usage else None)
        if chunk["usage"] is None:
            del chunk["usage"]
        return event(chunk)

    def tail(self, told: Told, *, usage: bool) -> bytes:
        out = event(self._chunk([], self._all_usage(told))) if usage and self.ask.include_usage else b""
        return out + DONE

    def error_event(self, e: Rejected) -> bytes:
        """There is none: the generator raises, and the stream just ends (openai_server.py `chat_stream_generator`)."""
        return b""

    def body(self, told: Told, *, usage: bool, kv_transfer: dict[str, Any] | None = None) -> bytes:
        answer = self._chunk([self._choice(s) for s in self.scripts], self._all_usage(told))
        answer["object"] = "chat.completion" if self.ask.chat else "text_completion"
        if not usage:
            del answer["usage"]
        answer["prompt_token_ids"] = None
        if self.ask.chat:
            answer["prompt_token_ids_b64"] = None
        return compact(answer)

    def _choice(self, script: Script) -> dict[str, Any]:
        end = {"finish_reason": script.finish, "stop_reason": script.stopped_by}
        rest = {"disaggregated_params": None, "avg_decoded_tokens_per_iter": None}
        if not self.ask.chat:
            text = {"index": script.index, "text": script.text, "token_ids": None, "logprobs": None}
            return text | {"context_logits": None} | end | rest
        message = {
            "role": "assistant",
            "content": script.text,
            "reasoning_content": "",
            "reasoning": None,
            "tool_calls": tool_calls(script),
        }
        chat = {"index": script.index, "message": message, "logprobs": None}
        return chat | end | {"mm_embedding_handle": None} | rest

    def _usage(self, script: Script, n: int, told: Told) -> dict[str, Any]:
        return _usage(script.prompt.tokens, n, told.found)

    def _all_usage(self, told: Told) -> dict[str, Any]:
        return _usage(self.prompt_tokens, self.completed, told.found)


def _usage(prompt: int, completed: int, cached: int) -> dict[str, Any]:
    return {
        "prompt_tokens": prompt,
        "total_tokens": prompt + completed,
        "completion_tokens": completed,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


class TrtllmFace(FastApiFace):
    """Mutable state: how many requests there were, and up to where the iterations have been read."""

    kind = "trtllm"
    version = VERSION
    defaults = Defaults(block_size=32)
    can_limit = False
    metrics_path = b"/prometheus/metrics"

    def __init__(self, house: House) -> None:
        super().__init__(house)
        self._numbers = 0
        self._read_steps = 0
        self.get = {
            b"/health": lambda _: self.empty(),
            b"/health_generate": lambda _: Sent(200, b"server: uvicorn\r\n", b"Generation health check OK"),
            b"/version": lambda _: self.plain({"version": self.version}),
            b"/v1/models": lambda _: self.plain(self._models()),
            b"/metrics": self._iterations,
            b"/perf_metrics": lambda _: self.plain([]),
            b"/server_info": lambda _: self.plain({"disaggregated_params": None}),
        }

    @classmethod
    def edges(cls, max_model_len: int) -> Edges:
        return Edges(
            ttft=edges(_TTFT),
            itl=edges(_TPOT),
            latency=edges(_LATENCY),
            tokens=edges("0 64 128 256 512 1024 2048 4096 8192"),
            prefill=edges(_PREFILL),
        )

    # --- a request's way in ------------------------------------------------------------------------------------------

    def read(self, request: Request) -> Generation:
        """What pydantic refuses is a 400 with the text alone."""
        chat = request.path == CHAT
        try:
            fields = self.fields(request)
            for name in fields.data.keys() - _FIELDS[chat]:
                fields.error("extra_forbidden", name, "Extra inputs are not permitted", fields.data[name])
            if "model" not in fields:
                fields.missing("model")
            if "stream_options" in fields and not fields.boolean("stream"):
                raise Rejected("Value error, Stream options can only be defined when stream is true.")
            fields.raise_errors()
            rules = Rules(
                model=any_model,
                ranges=_ranges,
                length=self._length,
                priority=_priority,
                completion_tokens=None,
                strict=False,
            )
            ask = read_generation(
                fields, chat=chat, models=self.settings.models, limit=self.settings.max_model_len, rules=rules
            )
        except Rejected as e:
            if e.kind != "RequestError":
                e.kind = "text"
            raise
        options = fields.mapping("stream_options")
        ask.include_usage = "stream_options" in fields and options.get("include_usage") is not False
        if self.settings.engine.policy != "priority":
            ask.priority = 0
        return ask

    def _length(self, prompt: Prompt, wanted: int | None, limit: int) -> int | None:
        """llmapi/llm.py `_check_arguments`: the prompt alone must fit; the answer ends where the sequence must."""
        if prompt.tokens > limit - 1:
            raise Rejected(
                f"The sum of prompt length ({float(prompt.tokens)}), query length (0) should not exceed max_num_tokens "
                f"({limit - 1})",
                kind="RequestError",
            )
        return None if not wanted else min(wanted, limit - prompt.tokens)

    def too_long(self, text: str) -> Rejected:
        return Rejected(text, kind="RequestError")

    def answer(self, ask: Generation, scripts: list[Script], prepared: Prepared) -> TrtllmAnswer:
        self._numbers += 1
        return TrtllmAnswer(ask, scripts, prepared, self._numbers)

    def on_gone(self, flow: Flow) -> None:
        flow.desert(self.later(next_poll(flow.begun, self.house.driver.now(), _POLL)))

    # --- other answers -----------------------------------------------------------------------------------------------

    def error(self, e: Rejected) -> Sent:
        """openai_server.py `validation_exception_handler`, `create_error_response`."""
        if e.kind == "text":
            return Sent(e.status, self.json, compact({"error": e.message}))
        if e.kind == "RequestError":
            e.kind = "BadRequestError"
        return super().error(e)

    def died(self) -> Rejected:
        return Rejected("Internal server error", status=400, late=True)

    def busy(self, limit: str) -> Rejected:
        return Rejected("The server is full.", status=503, kind="ServiceUnavailable")

    def _models(self) -> dict[str, Any]:
        name = self.settings.models[0]
        card = {"id": name, "object": "model", "created": self.house.created, "owned_by": "tensorrt_llm"}
        return {"object": "list", "data": [card]}

    def _iterations(self, request: Request) -> Sent | Later:
        """All that has not been read, and more until none comes for so long: while the engine works, there is no
        answer. Iterations between two looks are one here."""
        if not self.settings.metrics or self.house.driver.engine.stats.steps == self._read_steps:
            return self.plain([])
        return self._look([])

    def _look(self, seen: list[dict[str, Any]]) -> Sent | Later:
        steps = self.house.driver.engine.stats.steps
        if steps == self._read_steps or len(seen) >= _MOST:
            return self.plain(seen)
        self._read_steps = steps
        seen.append(self._iteration())
        return Later(_DRY, lambda: self._look(seen))

    def _iteration(self) -> dict[str, Any]:
        """docs/source/commands/trtllm-serve/trtllm-serve.rst at 0434755f has the shape, metrics/collector.py
        `log_iteration_stats` the other names."""
        engine = self.house.driver.engine
        steps = max(1, engine.stats.steps)
        stats, kv = engine.stats, engine.settings
        used = round(engine.kv_usage * kv.num_blocks)
        reused = stats.prefix_hits // kv.block_size
        missed = (stats.prefix_queries - stats.prefix_hits) // kv.block_size
        return {
            "cpuMemUsage": 0,
            "gpuMemUsage": 0,
            "inflightBatchingStats": {
                "avgNumDecodedTokensPerIter": 1.0,
                "numContextRequests": 0,
                "numCtxTokens": 0,
                "numGenRequests": engine.running,
                "numPausedRequests": 0,
                "numScheduledRequests": engine.running,
            },
            "iter": steps,
            "iterLatencyMS": 1000 * stats.busy_seconds / steps,
            "kvCacheStats": {
                "allocNewBlocks": missed,
                "allocTotalBlocks": missed,
                "cacheHitRate": reused / (reused + missed) if reused + missed else 0.0,
                "freeNumBlocks": kv.num_blocks - used,
                "maxNumBlocks": kv.num_blocks,
                "missedBlocks": missed,
                "reusedBlocks": reused,
                "tokensPerBlock": kv.block_size,
                "usedNumBlocks": used,
            },
            "maxBatchSizeRuntime": kv.max_num_seqs,
            "maxBatchSizeStatic": kv.max_num_seqs,
            "maxNumActiveRequests": kv.max_num_seqs,
            "maxNumTokensRuntime": kv.max_num_batched_tokens,
            "numActiveRequests": engine.running,
            "numCompletedRequests": stats.finished,
            "numQueuedRequests": engine.waiting,
            "pinnedMemUsage": 0,
        }

    def metrics(self) -> Sent:
        return super().metrics() if self.settings.metrics else self.not_found()

    def metrics_page(self) -> bytes:
        """metrics/collector.py; its labels have these values there. Gauges follow the last iteration that was read out
        when a request ended; here they are of now."""
        tally, engine = self.house.tally, self.house.driver.engine
        stats, kv = engine.stats, engine.settings
        page = Page()
        engine_type, name = 'engine_type="undefined"', 'model_name="undefined"'
        base = f"{engine_type},{name}"
        used = round(engine.kv_usage * kv.num_blocks)
        page.counter(
            "trtllm_request_success_total",
            "Count of successfully processed requests.",
            *((f'{engine_type},finished_reason="{why}",{name}', n) for why, n in tally.success.items() if n),
        )
        for family, text, h in (
            ("e2e_request_latency_seconds", "Histogram of end to end request latency in seconds.", tally.e2e),
            ("time_to_first_token_seconds", "Histogram of time to first token in seconds.", tally.ttft),
            ("time_per_output_token_seconds", "Histogram of time per output token in seconds.", tally.tpot),
            (
                "request_queue_time_seconds",
                "Histogram of time spent in WAITING phase for request.",
                tally.queue_time,
            ),
        ):
            page.histogram(f"trtllm_{family}", text, h, before=engine_type, after=name)
        queries = stats.prefix_queries
        for family, text, value in (
            ("kv_cache_hit_rate", "KV cache hit rate", stats.prefix_hits / queries if queries else 0.0),
            ("kv_cache_utilization", "KV cache utilization", engine.kv_usage),
            ("num_requests_running", "Number of active requests", engine.running),
            ("num_requests_waiting", "Number of queued requests", engine.waiting),
            ("max_num_active_requests", "Maximum number of active requests", kv.max_num_seqs),
            ("kv_cache_max_blocks", "Maximum number of KV cache blocks", kv.num_blocks),
            ("kv_cache_free_blocks", "Number of free KV cache blocks", kv.num_blocks - used),
            ("kv_cache_used_blocks", "Number of used KV cache blocks", used),
            ("kv_cache_tokens_per_block", "Number of tokens per KV cache block", kv.block_size),
        ):
            page.gauge(f"trtllm_{family}", text, (base, value))
        for family, text, value in (
            (
                "prompt_tokens_total",
                "Cumulative number of prompt (input) tokens processed.",
                tally.request_prompt.total,
            ),
            (
                "generation_tokens_total",
                "Cumulative number of generation (output) tokens produced.",
                tally.request_generation.total,
            ),
            (
                "kv_cache_reused_blocks_total",
                "Cumulative number of KV cache blocks reused (cache hits)",
                stats.prefix_hits // kv.block_size,
            ),
            (
                "kv_cache_missed_blocks_total",
                "Cumulative number of KV cache blocks missed (cache misses)",
                (queries - stats.prefix_hits) // kv.block_size,
            ),
        ):
            page.counter(f"trtllm_{family}", text, (base, value))
        return page.render()


def _ranges(fields: Fields, limit: int) -> None:
    """n and best_of are the engine's to check; this is what a prompt of this emulation needs."""
    for name in ("max_tokens", "max_completion_tokens"):
        value = fields.integer(name)
        if value is not None and value < 0:
            raise Rejected(f"max_tokens must be greater than 0, got {value}", kind="RequestError")


def _priority(fields: Fields) -> int:
    """From 0 to 1, the highest first; 0.5 where there is none."""
    value = fields.number("priority")
    if value is not None and not 0 <= value <= 1:
        fields.error("less_than_equal", "priority", "Input should be from 0 to 1", value)
        fields.raise_errors()
    return -round(1_000_000 * (0.5 if value is None else value))

"""SGLang's metrics page: names, labels, edges and help of sgl-project/sglang 0.5.23,
srt/observability/metrics_collector.py (SchedulerMetricsCollector, TokenizerMetricsCollector). prometheus_client in its
multi-process mode: labels sorted, no `_created` series. Gauges of pools, LoRA, HiCache, grammar and speculation that
this engine does not have are left out."""

from __future__ import annotations

from typing import Final

from forebay.sim.engine import EngineModel
from forebay.sim.page import Page, escaped
from forebay.sim.serving import Settings
from forebay.sim.tally import Edges, Tally, edges

_TOKENS: Final = (
    "100 300 500 700 1000 1500 2000 3000 4000 5000 6000 7000 8000 9000 10000 12500 15000 17500 20000 22500 25000 27500 "
    "30000 35000 40000 60000 80000 100000 200000 300000 400000 600000 800000 1000000 1100000"
)
_LONG: Final = "0.1 0.2 0.4 0.6 0.8 1 2 4 6 8 10 20 40 60 80 100 200 400"
_ITL: Final = "0.002 0.004 0.006 0.008 0.01 0.015 0.02 0.025 0.03 0.035 0.04 0.06 0.08 0.1 0.2 0.4 0.6 0.8 1 2 4 6 8"
_QUEUE: Final = (
    "0 0.001 0.005 0.01 0.05 0.1 0.2 0.5 1 2 3 4 5 10 15 20 30 40 50 60 70 80 90 100 200 300 400 500 600 700 800 900 "
    "1000 1200 1400 1600 1800 2000 2500 3000"
)


def tally_edges() -> Edges:
    return Edges(
        ttft=edges(_LONG),
        itl=edges(_ITL),
        latency=edges(_LONG + " 600 1200 1800 2400"),
        tokens=edges(_TOKENS),
        queue=edges(_QUEUE),
    )


def render(tally: Tally, engine: EngineModel, settings: Settings) -> bytes:
    page = Page()
    kind = {"null": "unified"}.get(settings.role, settings.role)
    name = f'model_name="{escaped(settings.models[0])}"'
    priority = ',priority=""' if engine.settings.policy == "priority" else ""
    scheduler = f'engine_type="{kind}",{name},moe_ep_rank="0",pp_rank="0"{priority},tp_rank="0"'
    base = f'engine_type="{kind}",{name}{priority}'
    stats, kv = engine.stats, engine.settings
    capacity = kv.kv_tokens
    used = round(engine.kv_usage * capacity)
    queries = stats.prefix_queries
    for gauge, text, value in (
        ("num_running_reqs", "The number of running requests.", engine.running),
        ("num_queue_reqs", "The number of requests in the waiting queue.", engine.waiting),
        ("num_grammar_queue_reqs", "The number of requests in the grammar waiting queue.", 0),
        ("gen_throughput", "The generation throughput (token/s).", _throughput(tally)),
        ("cache_hit_rate", "The prefix cache hit rate.", stats.prefix_hits / queries if queries else 0.0),
        ("token_usage", "The token usage.", engine.kv_usage),
        ("full_token_usage", "The token usage for full attention layers.", engine.kv_usage),
        ("num_used_tokens", "The number of used tokens.", used),
        ("kv_available_tokens", "Number of free token slots in the KV cache pool.", capacity - used),
        ("kv_used_tokens", "Number of actively used token slots in the KV cache pool.", used),
        ("num_retracted_reqs", "The number of retracted requests.", 0),
        ("num_paused_reqs", "The number of paused requests by async weight sync.", 0),
        ("max_total_num_tokens", "Maximum total number of tokens in the KV cache pool.", capacity),
        ("page_size", "KV cache page size in tokens.", kv.block_size),
        ("num_pages", "Number of KV cache pages.", capacity // kv.block_size),
        ("context_len", "Maximum context length.", settings.max_model_len),
    ):
        page.gauge(f"sglang:{gauge}", text, (scheduler, value))
    page.counter(
        "sglang:num_retracted_requests_total", "Total number of retracted requests.", (scheduler, stats.preemptions)
    )
    page.histogram(
        "sglang:queue_time_seconds",
        "Histogram of queueing time in seconds.",
        tally.queue_time,
        before=f'engine_type="{kind}"',
        after=scheduler.removeprefix(f'engine_type="{kind}",'),
    )
    streamed = f'engine_type="{kind}",is_streaming="true",{name}{priority}'
    page.counter(
        "sglang:prompt_tokens_total", "Number of prefill tokens processed.", (streamed, tally.request_prompt.total)
    )
    page.counter(
        "sglang:generation_tokens_total",
        "Number of generation tokens processed.",
        (streamed, tally.request_generation.total),
    )
    page.counter(
        "sglang:cached_tokens_total",
        "Number of cached prompt tokens by source (device/host/storage).",
        (f'cache_source="device",{base}', tally.cached_tokens),
    )
    finished = sum(tally.success.values())
    page.counter("sglang:num_requests_total", "Number of requests processed.", (streamed, finished))
    page.counter("sglang:num_aborted_requests_total", "Number of requests aborted.", (base, tally.aborted))
    for family, text, h, by_stream in (
        ("prompt_tokens_histogram", "Histogram of prompt token length.", tally.request_prompt, False),
        (
            "uncached_prompt_tokens_histogram",
            "Histogram of uncached (compute) prompt token length.",
            tally.request_computed,
            False,
        ),
        ("generation_tokens_histogram", "Histogram of generation token length.", tally.request_generation, False),
        ("time_to_first_token_seconds", "Histogram of time to first token in seconds.", tally.ttft, True),
        ("inter_token_latency_seconds", "Histogram of inter-token latency in seconds.", tally.itl, False),
        (
            "request_time_per_output_token_seconds",
            "Per-request TPOT in seconds: (finished_time - first_token_time) / (completion_tokens - 1).",
            tally.tpot,
            True,
        ),
        ("e2e_request_latency_seconds", "Histogram of End-to-end request latency in seconds", tally.e2e, True),
    ):
        before = f'engine_type="{kind}"' + (',is_streaming="true"' if by_stream else "")
        page.histogram(f"sglang:{family}", text, h, before=before, after=name + priority)
    return page.render()


def _throughput(tally: Tally) -> float:
    busy = tally.decode_time.total
    return tally.request_generation.total / busy if busy else 0.0

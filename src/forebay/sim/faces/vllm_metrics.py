"""vLLM's metrics page: names, labels and edges of vLLM 0.32 (vllm/v1/metrics/loggers.py)."""

from __future__ import annotations

from forebay.sim.engine import EngineModel
from forebay.sim.page import Page, escaped
from forebay.sim.tally import REASONS, Edges, Tally, edges


def tally_edges(max_model_len: int) -> Edges:
    return Edges(
        ttft=edges("0.001 0.005 0.01 0.02 0.04 0.06 0.08 0.1 0.25 0.5 0.75 1 2.5 5 7.5 10 20 40 80 160 640 2560"),
        itl=edges("0.01 0.025 0.05 0.075 0.1 0.15 0.2 0.3 0.4 0.5 0.75 1 2.5 5 7.5 10 20 40 80"),
        latency=edges("0.3 0.5 0.8 1 1.5 2 2.5 5 10 15 20 30 40 50 60 120 240 480 960 1920 7680"),
        tokens=_token_edges(max_model_len),
    )


def _token_edges(limit: int) -> list[float]:
    """1, 2, 5, 10, 20, 50 … up to max_model_len."""
    return [float(m * 10**e) for e in range(8) for m in (1, 2, 5) if m * 10**e <= limit]


def render(tally: Tally, engine: EngineModel, model_name: str) -> bytes:
    page = Page(created=tally.created)
    gauge, counter = page.gauge, page.counter
    name = f'model_name="{escaped(model_name)}"'
    base = f'engine="0",{name}'

    stats, waiting = engine.stats, engine.waiting
    gauge("vllm:num_requests_running", "Number of requests in model execution batches.", (base, engine.running))
    gauge("vllm:num_requests_waiting", "Number of requests waiting to be processed.", (base, waiting))
    gauge(
        "vllm:num_requests_waiting_by_reason",
        "Number of waiting requests by reason.",
        (f'{base},reason="capacity"', waiting),
        (f'{base},reason="deferred"', 0),
    )
    gauge("vllm:kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.", (base, engine.kv_usage))
    text = "Prefix cache queries, in terms of number of queried tokens."
    counter("vllm:prefix_cache_queries_total", text, (base, stats.prefix_queries))
    text = "Prefix cache hits, in terms of number of cached tokens."
    counter("vllm:prefix_cache_hits_total", text, (base, stats.prefix_hits))
    transferred = tally.transferred_tokens
    text = "from KV connector cross-instance cache sharing, in terms of number of"
    queries = f"External prefix cache queries {text} queried tokens."
    hits = f"External prefix cache hits {text} cached tokens."
    counter("vllm:external_prefix_cache_queries_total", queries, (base, transferred))
    counter("vllm:external_prefix_cache_hits_total", hits, (base, transferred))
    text = "Cumulative number of preemption from the engine."
    counter("vllm:num_preemptions_total", text, (base, stats.preemptions))
    counter("vllm:prompt_tokens_total", "Number of prefill tokens processed.", (base, tally.prompt_tokens))
    cached = tally.cached_tokens
    counter(
        "vllm:prompt_tokens_by_source_total",
        "Number of prompt tokens by source.",
        (f'{base},source="local_compute"', tally.prompt_tokens - cached - transferred),
        (f'{base},source="local_cache_hit"', cached),
        (f'{base},source="external_kv_transfer"', transferred),
    )
    text = "Number of cached prompt tokens (local + external)."
    counter("vllm:prompt_tokens_cached_total", text, (base, cached + transferred))
    counter("vllm:generation_tokens_total", "Number of generation tokens processed.", (base, tally.generation_tokens))
    counter(
        "vllm:request_success_total",
        "Count of successfully processed requests.",
        *((f'engine="0",finished_reason="{r}",{name}', tally.success[r]) for r in REASONS),
    )
    counter(
        "vllm:admission_rejections_total",
        "Number of admission attempts rejected by a queue limit, by reason.",
        *((f'{name},reason="{limit}"', n) for limit, n in tally.rejections.items()),
    )
    for family, text, h in (
        ("request_prompt_tokens", "Number of prefill tokens processed.", tally.request_prompt),
        ("request_generation_tokens", "Number of generation tokens processed.", tally.request_generation),
        (
            "request_prefill_kv_computed_tokens",
            "Histogram of new KV tokens computed during prefill (excluding cached tokens).",
            tally.request_computed,
        ),
        (
            "request_num_preemptions",
            "Histogram of the number of times a request was preempted.",
            tally.request_preemptions,
        ),
        ("request_params_n", "Histogram of the n request parameter.", tally.params_n),
        ("request_params_max_tokens", "Histogram of the max_tokens request parameter.", tally.params_max_tokens),
        ("time_to_first_token_seconds", "Histogram of time to first token in seconds.", tally.ttft),
        ("inter_token_latency_seconds", "Histogram of inter-token latency in seconds.", tally.itl),
        (
            "request_time_per_output_token_seconds",
            "Histogram of time_per_output_token_seconds per request.",
            tally.tpot,
        ),
        ("e2e_request_latency_seconds", "Histogram of e2e request latency in seconds.", tally.e2e),
        ("request_queue_time_seconds", "Histogram of time spent in WAITING phase for request.", tally.queue_time),
        (
            "request_inference_time_seconds",
            "Histogram of time spent in RUNNING phase for request.",
            tally.inference_time,
        ),
        (
            "request_prefill_time_seconds",
            "Histogram of time spent in PREFILL phase for request.",
            tally.prefill_time,
        ),
        ("request_decode_time_seconds", "Histogram of time spent in DECODE phase for request.", tally.decode_time),
    ):
        page.histogram(f"vllm:{family}", text, h, before='engine="0"', after=name)
    settings = engine.settings
    info = (
        f'block_size="{settings.block_size}",cache_dtype="auto",'
        f'enable_prefix_caching="{settings.enable_prefix_caching}",engine="0",'
        f'gpu_memory_utilization="0.92",kv_cache_size_tokens="{settings.kv_tokens}",'
        f'num_gpu_blocks="{settings.num_blocks}",num_gpu_blocks_override="None",sliding_window="None"'
    )
    gauge("vllm:cache_config_info", "Information of the LLMEngine CacheConfig", (info, 1))
    return page.render()

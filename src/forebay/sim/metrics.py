"""The engine's own measurements under vLLM 0.32's names, labels and edges, in Prometheus' text format."""

from __future__ import annotations

from itertools import accumulate
from typing import Final

from forebay.counters import Histogram
from forebay.sim.engine import EngineModel


def _edges(text: str) -> tuple[float, ...]:
    return tuple(map(float, text.split()))


_TTFT: Final = _edges(
    "0.001 0.005 0.01 0.02 0.04 0.06 0.08 0.1 0.25 0.5 0.75 1 2.5 5 7.5 10 20 40 80 160 640 2560",
)
_ITL: Final = _edges("0.01 0.025 0.05 0.075 0.1 0.15 0.2 0.3 0.4 0.5 0.75 1 2.5 5 7.5 10 20 40 80")
_LATENCY: Final = _edges("0.3 0.5 0.8 1 1.5 2 2.5 5 10 15 20 30 40 50 60 120 240 480 960 1920 7680")
_PREEMPTIONS: Final = _edges("1 2 3 4 5 10 20")
_REASONS: Final = ("stop", "length", "abort", "error", "repetition")


def _token_edges(limit: int) -> list[float]:
    """1, 2, 5, 10, 20, 50 … up to max_model_len."""
    return [float(m * 10**e) for e in range(8) for m in (1, 2, 5) if m * 10**e <= limit]


LIMITS: Final = ("max_num_queued_reqs", "max_num_queued_tokens")


class EngineMetrics:
    """Bumped by the server, read at scrape time. Gauges come from the model itself."""

    def __init__(self, model_name: str, max_model_len: int, created: float) -> None:
        self._name = model_name.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        self._created = created
        self.prompt_tokens = 0
        self.generation_tokens = 0
        self.success = dict.fromkeys(_REASONS, 0)
        self.rejections = dict.fromkeys(LIMITS, 0)
        self.cached_tokens = 0
        """Of prompts prefilled."""
        self.transferred_tokens = 0
        self.ttft = Histogram(_TTFT)
        self.itl = Histogram(_ITL)
        self.tpot = Histogram(_ITL)
        self.e2e = Histogram(_LATENCY)
        self.queue_time = Histogram(_LATENCY)
        self.prefill_time = Histogram(_LATENCY)
        self.decode_time = Histogram(_LATENCY)
        self.inference_time = Histogram(_LATENCY)
        self.request_prompt = Histogram(_token_edges(max_model_len))
        self.request_generation = Histogram(_token_edges(max_model_len))
        self.params_max_tokens = Histogram(_token_edges(max_model_len))
        self.params_n = Histogram((1.0, 2.0, 5.0, 10.0, 20.0))
        self.request_computed = Histogram(_token_edges(max_model_len))
        self.request_preemptions = Histogram(_PREEMPTIONS)

    def render(self, engine: EngineModel) -> bytes:
        out: list[str] = []
        base = f'engine="0",model_name="{self._name}"'

        def gauge(name: str, text: str, *rows: tuple[str, float]) -> None:
            out.append(f"# HELP {name} {text}\n# TYPE {name} gauge\n")
            out.extend(f"{name}{{{labels}}} {float(value)!r}\n" for labels, value in rows)

        def counter(name: str, text: str, *rows: tuple[str, float]) -> None:
            out.append(f"# HELP {name}_total {text}\n# TYPE {name}_total counter\n")
            out.extend(f"{name}_total{{{labels}}} {float(value)!r}\n" for labels, value in rows)
            gauge(f"{name}_created", text, *((labels, self._created) for labels, _ in rows))

        def histogram(name: str, text: str, h: Histogram) -> None:
            out.append(f"# HELP {name} {text}\n# TYPE {name} histogram\n")
            edges = [*(repr(float(e)) for e in h.edges), "+Inf"]
            sums = list(accumulate(h.counts))
            for edge, total in zip(edges, sums, strict=True):
                out.append(f'{name}_bucket{{engine="0",le="{edge}",model_name="{self._name}"}} {float(total)!r}\n')
            out.append(f"{name}_count{{{base}}} {float(sums[-1])!r}\n{name}_sum{{{base}}} {float(h.total)!r}\n")
            gauge(f"{name}_created", text, (base, self._created))

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
        counter("vllm:prefix_cache_queries", text, (base, stats.prefix_queries))
        text = "Prefix cache hits, in terms of number of cached tokens."
        counter("vllm:prefix_cache_hits", text, (base, stats.prefix_hits))
        transferred = self.transferred_tokens
        text = "from KV connector cross-instance cache sharing, in terms of number of"
        queries = f"External prefix cache queries {text} queried tokens."
        hits = f"External prefix cache hits {text} cached tokens."
        counter("vllm:external_prefix_cache_queries", queries, (base, transferred))
        counter("vllm:external_prefix_cache_hits", hits, (base, transferred))
        text = "Cumulative number of preemption from the engine."
        counter("vllm:num_preemptions", text, (base, stats.preemptions))
        counter("vllm:prompt_tokens", "Number of prefill tokens processed.", (base, self.prompt_tokens))
        cached = self.cached_tokens
        counter(
            "vllm:prompt_tokens_by_source",
            "Number of prompt tokens by source.",
            (f'{base},source="local_compute"', self.prompt_tokens - cached - transferred),
            (f'{base},source="local_cache_hit"', cached),
            (f'{base},source="external_kv_transfer"', transferred),
        )
        text = "Number of cached prompt tokens (local + external)."
        counter("vllm:prompt_tokens_cached", text, (base, cached + transferred))
        counter("vllm:generation_tokens", "Number of generation tokens processed.", (base, self.generation_tokens))
        counter(
            "vllm:request_success",
            "Count of successfully processed requests.",
            *((f'engine="0",finished_reason="{r}",model_name="{self._name}"', self.success[r]) for r in _REASONS),
        )
        counter(
            "vllm:admission_rejections",
            "Number of admission attempts rejected by a queue limit, by reason.",
            *((f'model_name="{self._name}",reason="{limit}"', n) for limit, n in self.rejections.items()),
        )
        for name, text, h in (
            ("request_prompt_tokens", "Number of prefill tokens processed.", self.request_prompt),
            ("request_generation_tokens", "Number of generation tokens processed.", self.request_generation),
            (
                "request_prefill_kv_computed_tokens",
                "Histogram of new KV tokens computed during prefill (excluding cached tokens).",
                self.request_computed,
            ),
            (
                "request_num_preemptions",
                "Histogram of the number of times a request was preempted.",
                self.request_preemptions,
            ),
            ("request_params_n", "Histogram of the n request parameter.", self.params_n),
            ("request_params_max_tokens", "Histogram of the max_tokens request parameter.", self.params_max_tokens),
            ("time_to_first_token_seconds", "Histogram of time to first token in seconds.", self.ttft),
            ("inter_token_latency_seconds", "Histogram of inter-token latency in seconds.", self.itl),
            (
                "request_time_per_output_token_seconds",
                "Histogram of time_per_output_token_seconds per request.",
                self.tpot,
            ),
            ("e2e_request_latency_seconds", "Histogram of e2e request latency in seconds.", self.e2e),
            ("request_queue_time_seconds", "Histogram of time spent in WAITING phase for request.", self.queue_time),
            (
                "request_inference_time_seconds",
                "Histogram of time spent in RUNNING phase for request.",
                self.inference_time,
            ),
            (
                "request_prefill_time_seconds",
                "Histogram of time spent in PREFILL phase for request.",
                self.prefill_time,
            ),
            ("request_decode_time_seconds", "Histogram of time spent in DECODE phase for request.", self.decode_time),
        ):
            histogram(f"vllm:{name}", text, h)
        settings = engine.settings
        info = (
            f'block_size="{settings.block_size}",cache_dtype="auto",'
            f'enable_prefix_caching="{settings.enable_prefix_caching}",engine="0",'
            f'gpu_memory_utilization="0.92",kv_cache_size_tokens="{settings.kv_tokens}",'
            f'num_gpu_blocks="{settings.num_blocks}",num_gpu_blocks_override="None",sliding_window="None"'
        )
        gauge("vllm:cache_config_info", "Information of the LLMEngine CacheConfig", (info, 1))
        return "".join(out).encode()

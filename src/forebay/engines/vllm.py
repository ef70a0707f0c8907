"""vLLM's OpenAI server.

Names and shapes as vLLM 0.32.0 answers them (V1 engine; recorded, see tests/data/engines), older names beside them:

- vllm/v1/metrics/loggers.py 0.32.0: all `vllm:` names below. `kv_cache_usage_perc` was `gpu_cache_usage_perc`, and
  `prefix_cache_{queries,hits}` were `gpu_prefix_cache_{queries,hits}`, up to 0.9; both are counted in tokens since
  V1. `num_requests_swapped` is V0's alone (vllm/engine/metrics.py 0.8): V1 never swaps, it preempts and recomputes.
- `cache_config_info` is a sample of 1 a data-parallel rank, whose labels are the cache's settings;
  `kv_cache_size_tokens` is new, before it the capacity is `num_gpu_blocks` × `block_size`.
- `lora_requests_info`: each set of adapters ever at work stays on the page as a series; the newest has the largest
  value, which is a Unix time.
- `--api-server-count` over 1 makes prometheus_client's multi-process mode, without `process_start_time_seconds`.

Gauges lag one scheduler step.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import ClassVar, Final

import msgspec

from forebay.config.section import Class
from forebay.engines import pages
from forebay.engines.base import EngineReport, Notes
from forebay.engines.openai import OpenAIAdapter, listed
from forebay.engines.prometheus import Metric, Sample, count, least, mean, pick, share, total

CONFIG: Final = "vllm:cache_config_info"
LORA: Final = "vllm:lora_requests_info"
_RANKS: Final = MappingProxyType({Class.VIP: -1, Class.NORMAL: 0, Class.LOW: 1})


class VLLMAdapter(OpenAIAdapter):
    kind = "vllm"
    notes = Notes(
        title="vLLM",
        load="counts and shares by data-parallel rank (`engine`): counts are added up, shares averaged. To 0.9: "
        "`gpu_cache_usage_perc`, `gpu_prefix_cache_…`; V0 alone: `num_requests_swapped`",
        overload="503 before the body, with `--max-num-queued-reqs` or `--max-num-queued-tokens`; no Retry-After. KV "
        "exhausted is no error: it preempts",
        abort="closing the connection (0.04–0.5 s); `POST /inference/v1/abort_requests` only with `--enable-scale-out`",
        priority="lower first, with `--scheduling-policy priority`; without it any but 0 is 400",
        cached="`usage.prompt_tokens_details.cached_tokens`, with `--enable-prompt-tokens-details`",
        capacity="labels of `vllm:cache_config_info`: `block_size`; `kv_cache_size_tokens`, before it `num_gpu_blocks`"
        " × `block_size`. `max_num_seqs` is not told",
        lora="`vllm:lora_requests_info` (at work), `parent` in `/v1/models` (loaded)",
        restart="`process_start_time_seconds`, else a counter that fell",
        sources="vllm-project/vllm 0.32.0, recorded; vllm/v1/metrics/loggers.py; "
        "vllm/entrypoints/scale_out/token_in_token_out/api_router.py; 0.8 for V0's names",
    )
    health_path = b"/health"
    metrics_paths = (b"/metrics",)
    info_paths = ((b"/version",), (b"/v1/models",))
    prefixes = ("vllm:",)
    says = ("running", "waiting", "kv_usage", "kv_capacity_tokens", "block_size")
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("running", ("vllm:num_requests_running",), total),
        Metric("waiting", ("vllm:num_requests_waiting",), total),
        Metric("swapped", ("vllm:num_requests_swapped",), total, old=True),
        Metric("kv_usage", ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"), mean),
        Metric("preemptions", ("vllm:num_preemptions_total",), total),
        Metric("prefix_queries", ("vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total"), total),
        Metric("prefix_hits", ("vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total"), total),
        Metric("done", ("vllm:generation_tokens_total",), total),
        Metric("started_at", ("process_start_time_seconds",), least),
    )
    also = (CONFIG, LORA)

    def report(self, metrics: str) -> EngineReport:
        samples = self.samples(metrics)
        if not any(name.startswith("vllm:") for name in samples):
            return EngineReport()  # another engine's page may have process_start_time_seconds, too
        found = {m.field: pick(samples, m) for m in self.metrics}
        running, loras = samples.get("vllm:num_requests_running", ()), samples.get(LORA, ())
        newest = max(loras, key=lambda s: s.value, default=None)
        capacity, block = _cache(samples.get(CONFIG, ()))
        return EngineReport(
            running=count(found["running"]),
            waiting=count(found["waiting"]),
            swapped=count(found["swapped"]),
            kv_usage=share(found["kv_usage"]),
            kv_capacity_tokens=capacity,
            block_size=block,
            preemptions=count(found["preemptions"]),
            prefix_queries=count(found["prefix_queries"]),
            prefix_hits=count(found["prefix_hits"]),
            done=count(found["done"]),
            started_at=found["started_at"],
            labelled=served(running),
            loras=_at_work(newest) if newest is not None else None,
            max_loras=pages.whole(newest.labels.get("max_lora")) if newest is not None else None,
        )

    def info(self, path: bytes, page: bytes) -> EngineReport:
        if path == b"/version":
            return EngineReport(version=pages.text(pages.fields(pages.decoded(page)).get("version")))
        return listed(page)

    def priority(self, cls: Class, low_first: bool | None = None) -> int | None:
        return _RANKS[cls]

    def abort(self, request_id: str) -> tuple[bytes, bytes] | None:
        """Answered 403 or 404 unless the server was started with `--enable-scale-out`."""
        return b"/inference/v1/abort_requests", msgspec.json.encode({"request_ids": [request_id]})


def served(samples: tuple[Sample, ...]) -> tuple[str, ...] | None:
    """The `model_name` labels: the first of the names that the server was given."""
    return pages.names(s.labels.get("model_name") for s in samples) or None


def _cache(samples: tuple[Sample, ...]) -> tuple[int | None, int | None]:
    """Tokens of the KV caches of all ranks, and of a block."""
    whole, block = 0, None
    for sample in samples:
        labels = sample.labels
        block = pages.whole(labels.get("block_size"))
        tokens = pages.whole(labels.get("kv_cache_size_tokens"))
        if tokens is None and block is not None:
            blocks = pages.whole(labels.get("num_gpu_blocks"))
            tokens = blocks * block if blocks is not None else None
        if tokens is None:
            return None, block
        whole += tokens
    return whole or None, block


def _at_work(sample: Sample) -> tuple[str, ...]:
    lists = (sample.labels.get(f"{state}_lora_adapters", "") for state in ("running", "waiting"))
    return pages.names(name for found in lists for name in found.split(","))

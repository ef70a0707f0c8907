"""TensorRT-LLM's `trtllm-serve`. Written after NVIDIA/TensorRT-LLM, files under tensorrt_llm/:

- serve/openai_server.py (commit 00057725, after 1.2): `/metrics` is no Prometheus page but a JSON list of the
  statistics of the steps since the last reader, which takes them away from other readers and waits up to 2 s for one
  where there is none (`get_stats_async(2)`). Needs `enable_iter_perf_stats: true` with the PyTorch backend.
- `/prometheus/metrics` is there with `return_perf_metrics: true`; a task of the server then takes the statistics, so
  that `/metrics` is mostly empty. metrics/collector.py: as of 1.1 request latencies, `trtllm_kv_cache_hit_rate` and
  `trtllm_kv_cache_utilization`; the load (`trtllm_num_requests_running`, …) and the cache's size
  (`trtllm_kv_cache_max_blocks`, `trtllm_kv_cache_tokens_per_block`) came later (commit 050f80de has them all, and
  `trtllm_prompt_cached_tokens_total`). The registry is the multi-process one: no start time. `model_name` is
  "undefined".
- Names in the JSON: docs/source/commands/trtllm-serve (the sample answer) and `log_iteration_stats` in the collector,
  which also shows that both pages are the same numbers. Ranks of attention data parallelism have `attentionDpRank`.
- serve/openai_protocol.py (commit 0076e939): unknown fields are refused (`extra="forbid"`), so no `priority`;
  `owned_by` is "tensorrt_llm"; `UsageInfo.prompt_tokens_details.cached_tokens`.
- There is no limit on the queue, hence no overload status; `await_disconnected` looks once a second whether a client
  left.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from forebay.engines import pages
from forebay.engines.base import EngineReport, Notes
from forebay.engines.openai import OpenAIAdapter
from forebay.engines.prometheus import Metric, count, mean, pick, share, size, total


class TRTLLMAdapter(OpenAIAdapter):
    kind = "trtllm"
    notes = Notes(
        title="TensorRT-LLM",
        load="`/prometheus/metrics` with `return_perf_metrics: true` (1.1 has KV use alone); else `/metrics`, a "
        "JSON list of steps with `enable_iter_perf_stats: true`, which a second reader would take away",
        overload="none: its queue has no limit",
        abort="closing the connection, noticed within 1 s",
        priority="none; an unknown field is 400",
        cached="`usage.prompt_tokens_details.cached_tokens`",
        capacity="`trtllm_kv_cache_max_blocks` × `trtllm_kv_cache_tokens_per_block`, or `kvCacheStats`: `maxNumBlocks`"
        " × `tokensPerBlock`; `trtllm_max_num_active_requests`",
        lora="not told",
        restart="a counter that fell",
        sources="NVIDIA/TensorRT-LLM: tensorrt_llm/serve/openai_server.py (00057725), "
        "tensorrt_llm/metrics/collector.py (050f80de), tensorrt_llm/serve/openai_protocol.py (0076e939), "
        "docs/source/commands/trtllm-serve; PyPI 1.2.1",
    )
    health_path = b"/health"
    metrics_paths = (b"/prometheus/metrics", b"/metrics")
    info_paths = ((b"/version",),)
    prefixes = ("trtllm_",)
    needs = "set return_perf_metrics or enable_iter_perf_stats in its configuration"
    says = ("running", "waiting", "kv_usage", "kv_capacity_tokens", "block_size")
    least_interval = 1.0
    patience = 5.0
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("running", ("trtllm_num_requests_running",), total),
        Metric("waiting", ("trtllm_num_requests_waiting",), total),
        Metric("swapped", ("trtllm_num_paused_requests",), total),
        Metric("kv_usage", ("trtllm_kv_cache_utilization",), mean),
        Metric("kv_capacity_tokens", ("trtllm_kv_cache_max_blocks",), total),
        Metric("block_size", ("trtllm_kv_cache_tokens_per_block",), max),
        Metric("max_num_seqs", ("trtllm_max_num_active_requests",), total),
        Metric("prefix_queries", ("trtllm_prompt_tokens_total",), total),
        Metric("prefix_hits", ("trtllm_prompt_cached_tokens_total",), total),
        Metric("done", ("trtllm_request_success_total",), total),
    )

    def report(self, metrics: str) -> EngineReport:
        if metrics.lstrip().startswith("["):
            return _steps(metrics)
        samples = self.samples(metrics)
        values = {m.field: pick(samples, m) for m in self.metrics}
        block = size(values["block_size"])
        blocks = size(values["kv_capacity_tokens"])
        hits = count(values["prefix_hits"])
        return EngineReport(
            running=count(values["running"]),
            waiting=count(values["waiting"]),
            swapped=count(values["swapped"]),
            kv_usage=share(values["kv_usage"]),
            kv_capacity_tokens=blocks * block if blocks is not None and block is not None else None,
            block_size=block,
            max_num_seqs=size(values["max_num_seqs"]),
            prefix_queries=count(values["prefix_queries"]) if hits is not None else None,
            prefix_hits=hits,
            done=count(values["done"]),
        )

    def info(self, path: bytes, page: bytes) -> EngineReport:
        return EngineReport(version=pages.text(pages.fields(pages.decoded(page)).get("version")))


def _steps(page: str) -> EngineReport:
    """`/metrics`: the last step of each rank counts."""
    last: dict[int, Mapping[str, object]] = {}
    for item in pages.items(pages.decoded(page)):
        step = pages.fields(item)
        rank = pages.tokens(step.get("attentionDpRank")) or 0
        if rank < 4_096:
            last[rank] = step
    steps = list(last.values())
    if not steps:
        return EngineReport()
    caches = [pages.fields(step.get("kvCacheStats")) for step in steps]

    def summed(among: list[Mapping[str, object]], name: str) -> int | None:
        values = [pages.tokens(part.get(name)) for part in among]
        return sum(v for v in values if v is not None) if None not in values else None

    used, blocks = summed(caches, "usedNumBlocks"), summed(caches, "maxNumBlocks")
    block = pages.whole(caches[0].get("tokensPerBlock"))
    return EngineReport(
        running=summed(steps, "numActiveRequests"),
        waiting=summed(steps, "numQueuedRequests"),
        swapped=summed([pages.fields(s.get("inflightBatchingStats")) for s in steps], "numPausedRequests"),
        kv_usage=share(used / blocks) if used is not None and blocks else None,
        kv_capacity_tokens=blocks * block if blocks and block is not None else None,
        block_size=block,
        max_num_seqs=summed(steps, "maxNumActiveRequests") or None,
        done=summed(steps, "iter"),
    )

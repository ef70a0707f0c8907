"""llama.cpp's `llama-server`, and its like in xllamacpp. Recorded from builds of 2026-11 (see tests/data/engines);
source: ggml-org/llama.cpp, tools/server/server-context.cpp (commit 001d906a).

- `/metrics` is 501 unless started with `--metrics`. `llamacpp:prompt_tokens_cached_total` is in builds since 2026-08;
  `prompt_tokens_total` leaves cached tokens out. `llamacpp:kv_cache_usage_ratio` was there until 2025 and has no
  successor: today's pages say nothing of the KV cache.
- `/props`: `total_slots`, and `n_ctx` of one slot. Whether the slots share one pool of `n_ctx` tokens
  (`--kv-unified`) or have as many each is on no page, so the KV capacity is not told: it is one slot's at least.
- A prompt of another request's prefix is matched token by token against what the slots hold: there is no block.
- `/metrics` and `/slots` are tasks in the server's one queue, and the server looks for clients that have left only
  after it was quiet for a second (HTTP_POLLING_SECONDS): looks at a shorter interval hide them. `/health` and
  `/props` are no tasks.
- No overload: a request waits for a slot without an answer. 503 "Loading model" while it starts
  (`unavailable_error`). 500 "Context size has been exceeded." when a shared pool is full.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from forebay.engines import pages
from forebay.engines.base import EngineReport, Notes
from forebay.engines.openai import OpenAIAdapter
from forebay.engines.prometheus import Metric, count, mean, pick, share, total
from forebay.errors import Outcome


class LlamaCppAdapter(OpenAIAdapter):
    kind = "llamacpp"
    notes = Notes(
        title="llama.cpp",
        load="with `--metrics`; no KV use (until 2025: `llamacpp:kv_cache_usage_ratio`)",
        overload="none: requests wait for a slot, unanswered; 503 while the model loads; 500 “Context size has been "
        "exceeded.” where slots share one pool and it is full",
        abort="closing the connection; seen while it streams, else only after 1 s without other work",
        priority="none",
        cached="`usage.prompt_tokens_details.cached_tokens`, `timings.cache_n`; before 2025: `tokens_cached`",
        capacity="`/props`: `total_slots` are the sequences, `n_ctx` the tokens of a slot; the whole is not told",
        lora="not told",
        restart="a counter that fell",
        sources="ggml-org/llama.cpp, recorded 2026-11; tools/server/server-context.cpp (001d906a)",
    )
    health_path = b"/health"
    metrics_paths = (b"/metrics",)
    info_paths = ((b"/props",),)
    prefixes = ("llamacpp:",)
    needs = "start it with --metrics"
    says = ("running", "waiting")
    least_interval = 1.5
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("running", ("llamacpp:requests_processing",), total),
        Metric("waiting", ("llamacpp:requests_deferred",), total),
        Metric("kv_usage", ("llamacpp:kv_cache_usage_ratio",), mean, old=True),
        Metric("prefix_queries", ("llamacpp:prompt_tokens_total",), total),
        Metric("prefix_hits", ("llamacpp:prompt_tokens_cached_total",), total),
        Metric("done", ("llamacpp:tokens_predicted_total",), total),
    )

    def report(self, metrics: str) -> EngineReport:
        samples = self.samples(metrics)
        values = {m.field: pick(samples, m) for m in self.metrics}
        hits, fresh = count(values["prefix_hits"]), count(values["prefix_queries"])
        return EngineReport(
            running=count(values["running"]),
            waiting=count(values["waiting"]),
            kv_usage=share(values["kv_usage"]),
            prefix_queries=fresh + hits if fresh is not None and hits is not None else None,
            prefix_hits=hits,
            done=count(values["done"]),
        )

    def info(self, path: bytes, page: bytes) -> EngineReport:
        found = pages.fields(pages.decoded(page))
        return EngineReport(
            max_num_seqs=pages.whole(found.get("total_slots")),
            max_model_len=pages.whole(pages.fields(found.get("default_generation_settings")).get("n_ctx")),
            version=pages.text(found.get("build_info")),
            models=pages.names((found.get("model_alias"),)) or None,
        )

    def refused(self, status: int, said: bytes = b"") -> Outcome | None:
        if status == 500 and b"Context size has been exceeded" in said:
            return Outcome.OVERLOADED
        return super().refused(status, said)

    def cached_tokens(self, answer: Mapping[str, object]) -> int | None:
        found = super().cached_tokens(answer)
        if found is None:
            found = pages.tokens(pages.fields(answer.get("timings")).get("cache_n"))
        return found if found is not None else pages.tokens(answer.get("tokens_cached"))

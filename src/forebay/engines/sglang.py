"""SGLang's server. Written after sgl-project/sglang 0.5.23 (the wheel's files, under python/sglang/srt):

- observability/metrics_collector.py: all `sglang:` names below; they are there with `--enable-metrics` alone. The
  gauges are set every `--decode-log-interval` steps (40), so they lag. `page_size`, `num_pages` and `context_len` are
  newer than `max_total_num_tokens`. With `--enable-priority-scheduling` the queue gauges have a sample a priority
  beside the whole, whose label `priority` is ""; with `--enable-metrics-for-all-schedulers` a sample a tensor and
  pipeline rank, each with the same count: only data-parallel ranks (`dp_rank`) are to be added up.
- `token_usage` leaves out what can be evicted at once, and is the fullest of the pools of a hybrid model.
- `cached_tokens_total` is by `cache_source`; `prompt_tokens_total` includes cached tokens; both count when a request
  ends.
- The registry is prometheus_client's multi-process one (utils/common.py), so there is no
  `process_start_time_seconds`.
- entrypoints/http_server.py: `/server_info` (`/get_server_info` is its older name, deprecated), `/v1/loads`
  (entrypoints/v1_loads.py, fields of managers/load_snapshot.py), `/abort_request`, and `/health`, which generates a
  token and sleeps a second before it looks whether it came (SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION).
- managers/scheduler.py, `_abort_on_queued_limit` and `_poll_timeout_aborts`: with `--max-queued-requests` "The
  request queue is full." or "The request is aborted by a higher priority request."; SGLANG_REQ_WAITING_TIMEOUT:
  "Request waiting timeout reached."; each status 503 without a stream, and in one an event `{"error": {"code": 503,
  …}}` under 200 (entrypoints/openai/serving_chat.py). "Request running timeout reached." and "Using priority is
  disabled for this server." are 503 as well, and no back-pressure.
- managers/schedule_policy.py: `priority_sign`, larger first unless `--schedule-low-priority-values-first`.
- entrypoints/openai/usage_processor.py: `cached_tokens` with `--enable-cache-report`.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import MappingProxyType
from typing import ClassVar, Final

import msgspec

from forebay.config.section import Class
from forebay.engines import pages
from forebay.engines.base import EngineReport, Notes
from forebay.engines.openai import OpenAIAdapter, listed
from forebay.engines.prometheus import Metric, Sample, count, mean, pick, share, size, total
from forebay.engines.vllm import served
from forebay.errors import Outcome

_RANKS: Final = MappingProxyType({Class.VIP: 1, Class.NORMAL: 0, Class.LOW: -1})
_NO_PRESSURE: Final = (b"running timeout reached", b"priority is disabled", b"embeddings")
_BY_SCHEDULER: Final = frozenset(
    (
        "sglang:num_running_reqs",
        "sglang:num_queue_reqs",
        "sglang:token_usage",
        "sglang:max_total_num_tokens",
        "sglang:page_size",
        "sglang:context_len",
        "sglang:num_retracted_requests_total",
    )
)
"""What each scheduler process reports for itself; the rest comes from the one tokenizer process."""


class SGLangAdapter(OpenAIAdapter):
    kind = "sglang"
    notes = Notes(
        title="SGLang",
        load="with `--enable-metrics`, set every `--decode-log-interval` steps: counts of the `dp_rank`s added up,"
        " `token_usage` averaged; else `/v1/loads` (JSON), where the version has it",
        overload="with `--max-queued-requests`: 503, or in a stream a 200 with an error event of `code` 503, “The "
        "request queue is full.”; “Request running timeout reached.” is a failure",
        abort="closing the connection; `POST /abort_request` with the request's `rid`",
        priority="higher first, with `--enable-priority-scheduling`; lower first with "
        "`--schedule-low-priority-values-first` (read from `/server_info`)",
        cached="`usage.prompt_tokens_details.cached_tokens`, with `--enable-cache-report`",
        capacity="`sglang:max_total_num_tokens`, `sglang:page_size`; else `/server_info`: `max_total_num_tokens` × "
        "`dp_size`, `page_size`, `effective_max_running_requests_per_dp`",
        lora="`parent` in `/v1/models` (loaded)",
        restart="a counter that fell",
        sources="sgl-project/sglang 0.5.23: python/sglang/srt/observability/metrics_collector.py, "
        "managers/scheduler.py, managers/load_snapshot.py, entrypoints/http_server.py, entrypoints/openai/",
    )
    health_path = b"/health"
    metrics_paths = (b"/metrics", b"/v1/loads")
    info_paths = ((b"/server_info", b"/get_server_info"), (b"/v1/models",))
    prefixes = ("sglang:",)
    needs = "start it with --enable-metrics"
    says = ("running", "waiting", "kv_usage", "kv_capacity_tokens", "block_size")
    patience = 5.0
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("running", ("sglang:num_running_reqs",), total),
        Metric("waiting", ("sglang:num_queue_reqs",), total),
        Metric("kv_usage", ("sglang:token_usage",), mean),
        Metric("kv_capacity_tokens", ("sglang:max_total_num_tokens",), total),
        Metric("block_size", ("sglang:page_size",), max),
        Metric("max_model_len", ("sglang:context_len",), max),
        Metric("preemptions", ("sglang:num_retracted_requests_total",), total),
        Metric("prefix_queries", ("sglang:prompt_tokens_total",), total),
        Metric("prefix_hits", ("sglang:cached_tokens_total",), total),
        Metric("done", ("sglang:generation_tokens_total",), total),
        Metric("max_loras", ("sglang:lora_pool_slots_total",), max),
    )

    def report(self, metrics: str) -> EngineReport:
        if metrics.lstrip().startswith("{"):
            return _loads(metrics)
        found = self.samples(metrics)
        samples = {n: _ranks(s) if n in _BY_SCHEDULER else s for n, s in found.items()}
        values = {m.field: pick(samples, m) for m in self.metrics}
        hits = count(values["prefix_hits"])
        queries = count(values["prefix_queries"])
        return EngineReport(
            running=count(values["running"]),
            waiting=count(values["waiting"]),
            kv_usage=share(values["kv_usage"]),
            kv_capacity_tokens=size(values["kv_capacity_tokens"]),
            block_size=size(values["block_size"]),
            max_model_len=size(values["max_model_len"]),
            preemptions=count(values["preemptions"]),
            prefix_queries=queries,
            # a counter with labels is not on the page before its first hit
            prefix_hits=0 if hits is None and queries is not None else hits,
            done=count(values["done"]),
            labelled=served(samples.get("sglang:num_running_reqs", ())),
            max_loras=size(values["max_loras"]),
        )

    def info(self, path: bytes, page: bytes) -> EngineReport:
        if path == b"/v1/models":
            return listed(page)
        found = pages.fields(pages.decoded(page))
        states = [pages.fields(s) for s in pages.items(found.get("internal_states"))]
        ranks = max(1, len(states))
        capacity = pages.whole(found.get("max_total_num_tokens"))
        most = [n for s in states if (n := pages.whole(s.get("effective_max_running_requests_per_dp"))) is not None]
        by_priority, low_first = (
            found.get("enable_priority_scheduling"),
            found.get("schedule_low_priority_values_first"),
        )
        return EngineReport(
            kv_capacity_tokens=capacity * ranks if capacity is not None else None,
            block_size=pages.whole(found.get("page_size")),
            max_num_seqs=sum(most) or None,
            version=pages.text(found.get("version")),
            low_first=low_first if by_priority is True and isinstance(low_first, bool) else None,
        )

    def refused(self, status: int, said: bytes = b"") -> Outcome | None:
        if status == 503 and any(word in said for word in _NO_PRESSURE):
            return Outcome.ENGINE_ERROR
        return super().refused(status, said)

    def priority(self, cls: Class, low_first: bool | None = None) -> int | None:
        return -_RANKS[cls] if low_first else _RANKS[cls]

    def abort(self, request_id: str) -> tuple[bytes, bytes] | None:
        return b"/abort_request", msgspec.json.encode({"rid": request_id})


def _ranks(samples: Iterable[Sample]) -> tuple[Sample, ...]:
    """One sample a data-parallel rank: that of its first pipeline and tensor rank, over all priorities."""
    first: dict[str, tuple[tuple[int, int], Sample]] = {}
    for sample in samples:
        labels = sample.labels
        if labels.get("priority"):
            continue
        place = (_rank(labels.get("pp_rank")), _rank(labels.get("tp_rank")))
        known = first.get(rank := labels.get("dp_rank", ""))
        if known is None or place < known[0]:
            first[rank] = (place, sample)
    return tuple(sample for _, sample in first.values())


def _rank(text: str | None) -> int:
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) < 9 else 0


def _loads(page: str) -> EngineReport:
    """`/v1/loads`: a load a data-parallel rank."""
    answer = pages.fields(pages.decoded(page))
    loads = [pages.fields(load) for load in pages.items(answer.get("loads"))]
    if not loads:
        return EngineReport()

    def summed(name: str) -> int | None:
        values = [pages.tokens(load.get(name)) for load in loads]
        return sum(v for v in values if v is not None) if None not in values else None

    usages = [u for load in loads if (u := pages.number(load.get("token_usage"))) is not None]
    return EngineReport(
        running=summed("num_running_reqs"),
        waiting=summed("num_waiting_reqs"),
        kv_usage=share(mean(usages)),
        kv_capacity_tokens=summed("max_total_num_tokens") or None,
        max_num_seqs=summed("max_running_requests") or None,
        version=pages.text(answer.get("version")),
    )

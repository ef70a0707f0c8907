"""Text Generation Inference. Written after huggingface/text-generation-inference 3.3.7:

- backends/v3/src/backend.rs, queue.rs, lib.rs: `tgi_batch_current_size`, `tgi_queue_size`, and in tokens
  `tgi_batch_current_max_tokens` and `tgi_batch_max_total_tokens`. The block allocator gives a request all that it may
  come to need (prompt and max_new_tokens) when it enters the batch, so the first of these over the second is the
  share that nobody else can have, not the share that is written. `tgi_batch_max_total_tokens` is new in 3.0; `/info`
  had `max_batch_total_tokens` from 1.0 to 2.2 and `max_batch_size` in 2.0 to 2.2 (router/src/lib.rs, struct Info);
  2.3 and 2.4 tell neither.
- The block size is the shard's (backends/v3/src/lib.rs, `shard_info.block_size`) and on no page; so are prefix hits.
- router/src/server.rs: `InferError::Overloaded` is 429 `{"error": "Model is overloaded", "error_type": "overloaded"}`
  once `--max-concurrent-requests` run or wait; a failed generation is 424, a client's mistake 422, `/health` 503.
  Inside a stream (router/src/infer/mod.rs, `into_openai_event`) each of them is `{"error": {"message": …,
  "http_status_code": 422}}`.
- router/src/lib.rs, struct Usage: no cached tokens. `/v1/models`: one entry, whose `owned_by` is its `id`.
"""

from __future__ import annotations

from typing import ClassVar

from forebay.engines import pages
from forebay.engines.base import EngineReport, Notes
from forebay.engines.openai import OpenAIAdapter
from forebay.engines.prometheus import Metric, count, pick, share, size, total
from forebay.errors import Outcome


class TGIAdapter(OpenAIAdapter):
    kind = "tgi"
    notes = Notes(
        title="TGI",
        load="KV use is `tgi_batch_current_max_tokens` / `tgi_batch_max_total_tokens`: the share reserved for the "
        "batch; the second since 3.0",
        overload="429 “Model is overloaded” over `--max-concurrent-requests`; 424 is a failed generation; in a stream "
        "an error event of `http_status_code` 422, whatever it was",
        abort="closing the connection",
        priority="none",
        cached="not told",
        capacity="`tgi_batch_max_total_tokens`; until 2.2 `/info`: `max_batch_total_tokens`, `max_batch_size`. The "
        "block size is not told",
        lora="not told",
        restart="a counter that fell",
        sources="huggingface/text-generation-inference 3.3.7: backends/v3/src/{backend,queue,lib}.rs, "
        "router/src/{server,lib}.rs, router/src/infer/mod.rs; 1.0.0 to 3.0.0: router/src/lib.rs",
    )
    health_path = b"/health"
    metrics_paths = (b"/metrics",)
    info_paths = ((b"/info",),)
    prefixes = ("tgi_",)
    says = ("running", "waiting", "kv_usage", "kv_capacity_tokens")
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("running", ("tgi_batch_current_size",), total),
        Metric("waiting", ("tgi_queue_size",), total),
        Metric("kv_usage", ("tgi_batch_current_max_tokens",), total),
        Metric("kv_capacity_tokens", ("tgi_batch_max_total_tokens",), total),
        Metric("done", ("tgi_request_count",), total),
    )

    def report(self, metrics: str) -> EngineReport:
        samples = self.samples(metrics)
        values = {m.field: pick(samples, m) for m in self.metrics}
        reserved, whole = values["kv_usage"], values["kv_capacity_tokens"]
        return EngineReport(
            running=count(values["running"]),
            waiting=count(values["waiting"]),
            kv_usage=share(reserved / whole) if reserved is not None and whole else None,
            kv_capacity_tokens=size(whole),
            done=count(values["done"]),
        )

    def info(self, path: bytes, page: bytes) -> EngineReport:
        found = pages.fields(pages.decoded(page))
        return EngineReport(
            kv_capacity_tokens=pages.whole(found.get("max_batch_total_tokens")),
            max_num_seqs=pages.whole(found.get("max_batch_size")),
            max_model_len=pages.whole(found.get("max_total_tokens")),
            version=pages.text(found.get("version")),
            models=pages.names((found.get("model_id"),)) or None,
        )

    def refused(self, status: int, said: bytes = b"") -> Outcome | None:
        if b"Model is overloaded" in said:
            return Outcome.OVERLOADED
        if status == 424 or b"Request failed during generation" in said or b"Incomplete generation" in said:
            return Outcome.ENGINE_ERROR
        return super().refused(status, said)

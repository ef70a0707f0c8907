"""vLLM's OpenAI server. Names and shapes as vLLM 0.32 answers them (V1 engine); older names beside them.

Load and KV use are read from `/metrics`; overload is 503 before the body (with `--max-num-queued-reqs`); closing the
connection aborts a request. Gauges lag one scheduler step.
"""

from __future__ import annotations

import re
from typing import Final

from forebay.engines.base import EngineReport
from forebay.engines.openai import OpenAIAdapter

_SAMPLE: Final = re.compile(r"^(vllm:[a-z_]+)(?:\{(.*)\})? ([-+0-9.eE]+|NaN|[+-]Inf)(?: \d+)?$", re.MULTILINE)
_LABEL: Final = re.compile(r'([a-z_]+)="((?:[^"\\]|\\.)*)"')

_KV_USAGE: Final = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")  # the second until vLLM 0.10
_CONFIG: Final = "vllm:cache_config_info"


class VLLMAdapter(OpenAIAdapter):
    kind = "vllm"
    health_path = b"/health"
    metrics_path: bytes | None = b"/metrics"

    def report(self, metrics: str) -> EngineReport:
        sums: dict[str, float] = {}
        capacity = block = None
        for name, labels, value in _SAMPLE.findall(metrics):
            if name == _CONFIG:
                found = dict(_LABEL.findall(labels))
                capacity = _whole(found.get("kv_cache_size_tokens"))
                block = _whole(found.get("block_size"))
                if capacity is None and block is not None:
                    blocks = _whole(found.get("num_gpu_blocks"))
                    capacity = blocks * block if blocks is not None else None
            else:
                number = float(value)
                if number == number and abs(number) != float("inf"):
                    # Data-parallel engines report a sample a rank; a share is averaged, a count summed.
                    sums[name] = sums.get(name, 0.0) + number
        ranks = max(1, len(re.findall(r"^vllm:num_requests_running(?:\{| )", metrics, re.MULTILINE)))
        usage = next((sums[n] / ranks for n in _KV_USAGE if n in sums), None)
        return EngineReport(
            running=_count(sums.get("vllm:num_requests_running")),
            waiting=_count(sums.get("vllm:num_requests_waiting")),
            kv_usage=usage if usage is not None and 0.0 <= usage <= 1.0 else None,
            kv_capacity_tokens=capacity,
            block_size=block,
            preemptions=_count(sums.get("vllm:num_preemptions_total")),
        )


def _whole(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdigit() and int(text) > 0 else None


def _count(value: float | None) -> int | None:
    return int(value) if value is not None and value >= 0 else None

"""What a live engine says about itself: vLLM on /version and /metrics, llama.cpp on /props, others on /v1/models at
most."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any, Final

from forebay.hardware.fitted import EngineFacts
from forebay.plan.calibrate_client import Session

_CACHE: Final = re.compile(r"^vllm:cache_config_info\{(.*)\} 1(\.0)?$", re.MULTILINE)
_LABEL: Final = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
LLAMA_BATCH: Final = 2048
"""llama.cpp's n_batch where nothing else is set (common/common.h); it does not say on its API."""


async def facts(session: Session, model: str) -> tuple[EngineFacts, list[str]]:
    """The engine, and notes on what it does not say. Raises LoadError where it cannot be reached any more."""
    found = EngineFacts(model=model, max_model_len=await _context_of(session, model))
    version = await _json(session, "/version")
    metrics = await page(session, "/metrics")
    if isinstance(version.get("version"), str) or "vllm:" in metrics:
        cache = cache_config(metrics)
        said = _text(version.get("version"))
        block, tokens = cache.get("block_size"), cache.get("kv_tokens")
        return replace(found, kind="vllm", version=said, block_size=block, kv_tokens=tokens), []
    props = await _json(session, "/props")
    if isinstance(props.get("total_slots"), int):
        slots = props["total_slots"]
        context = props.get("default_generation_settings", {}).get("n_ctx")
        found = replace(
            found,
            kind="llama.cpp",
            version=_text(props.get("build_info")),
            max_num_seqs=slots,
            max_num_batched_tokens=LLAMA_BATCH,
            block_size=1,
        )
        if isinstance(context, int):
            found = replace(found, max_model_len=context, kv_tokens=context * slots)
        return found, [f"max_num_batched_tokens is llama.cpp's default, n_batch {LLAMA_BATCH}: it does not say its own"]
    return found, ["the engine says nothing about itself: what is not given by options is measured or unknown"]


def cache_config(metrics: str) -> dict[str, int]:
    """block_size and kv_tokens as vLLM's page of metrics has them, where it has."""
    said = _CACHE.search(metrics)
    if said is None:
        return {}
    labels = dict(_LABEL.findall(said[1]))
    out = {}
    for ours, theirs in (("block_size", "block_size"), ("kv_tokens", "kv_cache_size_tokens")):
        if labels.get(theirs, "").isdigit():
            out[ours] = int(labels[theirs])
    if "kv_tokens" not in out and labels.get("num_gpu_blocks", "").isdigit() and "block_size" in out:
        out["kv_tokens"] = int(labels["num_gpu_blocks"]) * out["block_size"]
    return out


async def page(session: Session, path: str) -> str:
    """The text there; empty where the server has none."""
    status, body = await session.get(path)
    return body.decode(errors="replace") if status == 200 else ""


async def _json(session: Session, path: str) -> dict[str, Any]:
    try:
        found = json.loads(await page(session, path))
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


async def _context_of(session: Session, model: str) -> int | None:
    data = (await _json(session, "/v1/models")).get("data")
    for one in data if isinstance(data, list) else ():
        if isinstance(one, dict) and one.get("id") == model and isinstance(one.get("max_model_len"), int):
            return int(one["max_model_len"])
    return None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None

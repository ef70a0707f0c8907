"""What a URL is: a few questions, the harmless one first, and no more after the first certain answer.

`/v1/models` is on each server that speaks OpenAI's API, and most engines sign their entries there with `owned_by`:
vLLM (entrypoints/openai/models/protocol.py 0.32.0), SGLang (entrypoints/openai/protocol.py 0.5.23), TensorRT-LLM
(serve/openai_protocol.py), llama.cpp (recorded), Ollama ("library", openai/openai.go). Only a server that does not sign
is asked for the pages that one engine alone has, and never one behind https with a key: that is some vendor's API, to
which such questions are noise at best.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final
from urllib.parse import urlsplit

from forebay.config.engine import EngineKind
from forebay.engines import pages
from forebay.engines.prometheus import whose

MODELS: Final = b"/v1/models"

_OWNERS: Final = MappingProxyType(
    {
        "vllm": EngineKind.VLLM,
        "sglang": EngineKind.SGLANG,
        "tensorrt_llm": EngineKind.TRTLLM,
        "llamacpp": EngineKind.LLAMACPP,
        "library": EngineKind.OLLAMA,
    }
)
_PREFIXES: Final = MappingProxyType(
    {
        "vllm:": EngineKind.VLLM,
        "sglang:": EngineKind.SGLANG,
        "tgi_": EngineKind.TGI,
        "llamacpp:": EngineKind.LLAMACPP,
        "trtllm_": EngineKind.TRTLLM,
    }
)
_VENDORS: Final = MappingProxyType(
    {
        "anthropic.com": EngineKind.ANTHROPIC,
        "openai.com": EngineKind.OPENAI,
        "openai.azure.com": EngineKind.OPENAI,
        "mistral.ai": EngineKind.OPENAI,
        "groq.com": EngineKind.OPENAI,
        "deepseek.com": EngineKind.OPENAI,
        "together.xyz": EngineKind.OPENAI,
        "fireworks.ai": EngineKind.OPENAI,
        "openrouter.ai": EngineKind.OPENAI,
        "x.ai": EngineKind.OPENAI,
        "googleapis.com": EngineKind.OPENAI,
        "aliyuncs.com": EngineKind.OPENAI,
        "moonshot.cn": EngineKind.OPENAI,
        "moonshot.ai": EngineKind.OPENAI,
    }
)
"""Domains; their hosts are the vendors'."""


@dataclass(frozen=True, slots=True)
class Probe:
    path: bytes
    tells: Callable[[bytes], EngineKind | None]
    """By the body of a 200; None where it says nothing certain."""


def by_url(url: str) -> EngineKind | None:
    """A vendor whose hosts are known: not a question needs to be asked."""
    found = urlsplit(url)
    host = found.hostname or ""
    if found.scheme != "https":
        return None
    return next((kind for domain, kind in _VENDORS.items() if host == domain or host.endswith("." + domain)), None)


def askable(url: str, has_key: bool) -> bool:
    """Whether it may be asked for more than its model list."""
    return not (has_key and urlsplit(url).scheme == "https")


def by_models(page: bytes) -> EngineKind | None:
    cards = pages.model_cards(page)
    owners = {card.get("owned_by") for card in cards if isinstance(card.get("owned_by"), str)}
    if len(owners) == 1:
        return _OWNERS.get(str(owners.pop()))
    if cards and all(c.get("type") == "model" and "display_name" in c and "object" not in c for c in cards):
        return EngineKind.ANTHROPIC
    return None


def by_metrics(page: bytes) -> EngineKind | None:
    text = page.decode("utf-8", "replace")
    if text.lstrip().startswith("["):
        steps = [pages.fields(step) for step in pages.items(pages.decoded(page))]
        return EngineKind.TRTLLM if any("iterLatencyMS" in s or "kvCacheStats" in s for s in steps) else None
    return _PREFIXES.get(whose(text))


def _having(kind: EngineKind, *names: str) -> Callable[[bytes], EngineKind | None]:
    def tells(page: bytes) -> EngineKind | None:
        found = pages.fields(pages.decoded(page))
        return kind if all(name in found for name in names) else None

    return tells


def _only_version(page: bytes) -> EngineKind | None:
    found = pages.fields(pages.decoded(page))
    return EngineKind.OLLAMA if set(found) == {"version"} and pages.text(found["version"]) else None


PROBES: Final = (
    Probe(b"/metrics", by_metrics),
    Probe(b"/props", _having(EngineKind.LLAMACPP, "total_slots", "default_generation_settings")),
    Probe(b"/server_info", _having(EngineKind.SGLANG, "internal_states")),
    Probe(b"/info", _having(EngineKind.TGI, "model_id", "router", "max_concurrent_requests")),
    Probe(b"/api/version", _only_version),
)
"""Where the model list is not signed, in this order."""

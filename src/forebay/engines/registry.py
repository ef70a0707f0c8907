"""The adapter of each kind."""

from __future__ import annotations

from forebay.config.engine import EngineKind
from forebay.engines.base import Adapter
from forebay.engines.openai import OpenAIAdapter
from forebay.engines.vllm import VLLMAdapter


def adapter(kind: EngineKind) -> Adapter:
    match kind:
        case EngineKind.VLLM:
            return VLLMAdapter()
        case EngineKind.OPENAI:
            return OpenAIAdapter()

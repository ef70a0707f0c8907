"""The adapter of each kind."""

from __future__ import annotations

from forebay.config.engine import EngineKind
from forebay.engines.anthropic import AnthropicAdapter
from forebay.engines.base import Adapter
from forebay.engines.llamacpp import LlamaCppAdapter
from forebay.engines.ollama import OllamaAdapter
from forebay.engines.openai import OpenAIAdapter
from forebay.engines.sglang import SGLangAdapter
from forebay.engines.tgi import TGIAdapter
from forebay.engines.trtllm import TRTLLMAdapter
from forebay.engines.vllm import VLLMAdapter


def adapter(kind: EngineKind) -> Adapter:
    """Of an engine that is still to be found out: OpenAI's, which all of them speak."""
    match kind:
        case EngineKind.VLLM:
            return VLLMAdapter()
        case EngineKind.SGLANG:
            return SGLangAdapter()
        case EngineKind.TGI:
            return TGIAdapter()
        case EngineKind.TRTLLM:
            return TRTLLMAdapter()
        case EngineKind.LLAMACPP:
            return LlamaCppAdapter()
        case EngineKind.OLLAMA:
            return OllamaAdapter()
        case EngineKind.OPENAI | EngineKind.AUTO:
            return OpenAIAdapter()
        case EngineKind.ANTHROPIC:
            return AnthropicAdapter()

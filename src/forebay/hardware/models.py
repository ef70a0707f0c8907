"""The models known by name. Shapes are those of the published `config.json` files on the Hugging Face hub; what a
vision tower weighs beside the text model is the rest of the published number of parameters."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any, Final

from .shapes import ModelShape
from .states import Mixer, delta_net, mamba1, mamba2


def _m(
    name: str,
    layers: int,
    hidden: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    intermediate: int,
    vocab: int,
    max_context: int,
    **more: Any,
) -> ModelShape:
    return ModelShape(
        name, layers, hidden, heads, kv_heads, head_dim, intermediate, vocab, max_context=max_context, **more
    )


def _moe(experts: int, chosen: int, width: int, *, shared: int = 0, dense: int = 0) -> dict[str, int]:
    return {
        "experts": experts,
        "experts_per_token": chosen,
        "moe_intermediate": width,
        "shared_experts": shared,
        "dense_layers": dense,
    }


def _mla(q_lora: int, nope: int = 128, value: int = 128) -> dict[str, int]:
    return {"kv_lora_rank": 512, "q_lora_rank": q_lora, "rope_head_dim": 64, "v_head_dim": value}


def _linear(layers: int, mixer: Mixer) -> dict[str, int]:
    return {"linear_layers": layers, "linear_each": mixer.weights, "state_bytes": mixer.state}


def _window(tokens: int, layers: int) -> dict[str, int]:
    return {"window": tokens, "window_layers": layers}


_TIED: Final = MappingProxyType({"tied": True})
_QWEN2: Final = MappingProxyType({"qkv_bias": True})
_QWEN3: Final = MappingProxyType({"qk_norm": True})
_GEMMA2: Final = MappingProxyType({"tied": True, "norms": 4})
_GEMMA3: Final = MappingProxyType({"tied": True, "norms": 4, "qk_norm": True})
_SIGLIP = 416_866_032
"""Gemma 3's vision tower, without its projection to the hidden size."""


def _gemma3(
    name: str,
    layers: int,
    hidden: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    width: int,
    full: int,
) -> ModelShape:
    vision = _SIGLIP + 1152 * hidden + 1152
    return _m(
        name, layers, hidden, heads, kv_heads, head_dim, width, 262208, 131072,
        **_GEMMA3, **_window(1024, layers - full), extra=vision,
    )  # fmt: skip


def _qwen_next(hidden: int, value_heads: int, state: int = 4) -> Mixer:
    return delta_net(hidden, 16, value_heads, 128, 128, state=state)


def _nemotron3_nano() -> ModelShape:
    """23 Mamba-2 and 6 attention layers, of which 23 are followed by experts."""
    return _m(
        "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B", 29, 2688, 32, 2, 128, 0, 131072, 262144,
        **_linear(23, mamba2(2688, 64, 64, 128, 8)), **_moe(128, 6, 1856, shared=2, dense=6), matrices=2,
    )  # fmt: skip


MODELS: Final = (
    #   name                      layers hidden heads kv head_dim intermediate vocab context
    _m("meta-llama/Llama-3.1-8B", 32, 4096, 32, 8, 128, 14336, 128256, 131072),
    _m("meta-llama/Llama-3.1-70B", 80, 8192, 64, 8, 128, 28672, 128256, 131072),
    _m("meta-llama/Llama-3.1-405B", 126, 16384, 128, 8, 128, 53248, 128256, 131072),
    _m("meta-llama/Meta-Llama-3-8B", 32, 4096, 32, 8, 128, 14336, 128256, 8192),
    _m("meta-llama/Meta-Llama-3-70B", 80, 8192, 64, 8, 128, 28672, 128256, 8192),
    _m("meta-llama/Llama-3.3-70B", 80, 8192, 64, 8, 128, 28672, 128256, 131072),
    _m("meta-llama/Llama-3.2-1B", 16, 2048, 32, 8, 64, 8192, 128256, 131072, **_TIED),
    _m("meta-llama/Llama-3.2-3B", 28, 3072, 24, 8, 128, 8192, 128256, 131072, **_TIED),
    _m("meta-llama/Llama-2-7b-hf", 32, 4096, 32, 32, 128, 11008, 32000, 4096),
    _m("meta-llama/Llama-2-13b-hf", 40, 5120, 40, 40, 128, 13824, 32000, 4096),
    _m("meta-llama/Llama-2-70b-hf", 80, 8192, 64, 8, 128, 28672, 32000, 4096),
    # three of four layers look at chunks of 8,192 tokens
    _m("meta-llama/Llama-4-Scout-17B-16E", 48, 5120, 40, 8, 128, 0, 202048, 10485760,
       **_moe(16, 1, 8192, shared=1), **_window(8192, 36), chunked=True, extra=871_932_416),
    _m("meta-llama/Llama-4-Maverick-17B-128E", 48, 5120, 40, 8, 128, 16384, 202048, 1048576,
       **_moe(128, 1, 8192, shared=1, dense=24), **_window(8192, 36), chunked=True, extra=871_932_416),
    _m("codellama/CodeLlama-7b-hf", 32, 4096, 32, 32, 128, 11008, 32016, 16384),
    _m("codellama/CodeLlama-34b-hf", 48, 8192, 64, 8, 128, 22016, 32000, 16384),
    _m("Qwen/Qwen2.5-0.5B", 24, 896, 14, 2, 64, 4864, 151936, 32768, **_TIED, **_QWEN2),
    _m("Qwen/Qwen2.5-1.5B", 28, 1536, 12, 2, 128, 8960, 151936, 131072, **_TIED, **_QWEN2),
    _m("Qwen/Qwen2.5-3B", 36, 2048, 16, 2, 128, 11008, 151936, 32768, **_TIED, **_QWEN2),
    _m("Qwen/Qwen2.5-7B", 28, 3584, 28, 4, 128, 18944, 152064, 131072, **_QWEN2),
    _m("Qwen/Qwen2.5-14B", 48, 5120, 40, 8, 128, 13824, 152064, 131072, **_QWEN2),
    _m("Qwen/Qwen2.5-32B", 64, 5120, 40, 8, 128, 27648, 152064, 131072, **_QWEN2),
    _m("Qwen/Qwen2.5-72B", 80, 8192, 64, 8, 128, 29568, 152064, 131072, **_QWEN2),
    _m("Qwen/QwQ-32B", 64, 5120, 40, 8, 128, 27648, 152064, 40960, **_QWEN2),
    _m("Qwen/Qwen1.5-MoE-A2.7B", 24, 2048, 16, 16, 128, 0, 151936, 8192,
       **_QWEN2, **_moe(60, 4, 1408, shared=4), extra=24 * 2048),
    _m("Qwen/Qwen3-0.6B", 28, 1024, 16, 8, 128, 3072, 151936, 40960, **_TIED, **_QWEN3),
    _m("Qwen/Qwen3-1.7B", 28, 2048, 16, 8, 128, 6144, 151936, 40960, **_TIED, **_QWEN3),
    _m("Qwen/Qwen3-4B", 36, 2560, 32, 8, 128, 9728, 151936, 40960, **_TIED, **_QWEN3),
    _m("Qwen/Qwen3-4B-Instruct-2507", 36, 2560, 32, 8, 128, 9728, 151936, 262144, **_TIED, **_QWEN3),
    _m("Qwen/Qwen3-8B", 36, 4096, 32, 8, 128, 12288, 151936, 40960, **_QWEN3),
    _m("Qwen/Qwen3-14B", 40, 5120, 40, 8, 128, 17408, 151936, 40960, **_QWEN3),
    _m("Qwen/Qwen3-32B", 64, 5120, 64, 8, 128, 25600, 151936, 40960, **_QWEN3),
    _m("Qwen/Qwen3-30B-A3B", 48, 2048, 32, 4, 128, 6144, 151936, 40960, **_QWEN3, **_moe(128, 8, 768)),
    _m("Qwen/Qwen3-30B-A3B-Instruct-2507", 48, 2048, 32, 4, 128, 6144, 151936, 262144, **_QWEN3, **_moe(128, 8, 768)),
    _m("Qwen/Qwen3-235B-A22B", 94, 4096, 64, 4, 128, 12288, 151936, 40960, **_QWEN3, **_moe(128, 8, 1536)),
    _m("Qwen/Qwen3-235B-A22B-Instruct-2507", 94, 4096, 64, 4, 128, 12288, 151936, 262144,
       **_QWEN3, **_moe(128, 8, 1536)),
    _m("Qwen/Qwen3-Coder-480B-A35B", 62, 6144, 96, 8, 128, 8192, 151936, 262144, **_QWEN3, **_moe(160, 8, 2560)),
    _m("Qwen/Qwen3-Next-80B-A3B", 48, 2048, 16, 2, 256, 5120, 151936, 262144, **_QWEN3, attention_gate=True,
       **_moe(512, 10, 512, shared=1), **_linear(36, _qwen_next(2048, 32)), extra=48 * 2048),
    _m("Qwen/Qwen3.5-27B", 64, 5120, 24, 4, 256, 17408, 248320, 262144, **_QWEN3, attention_gate=True,
       **_linear(48, _qwen_next(5120, 48)), extra=460_730_880),
    _m("Qwen/Qwen3.5-35B-A3B", 40, 2048, 16, 2, 256, 0, 248320, 262144, **_QWEN3, attention_gate=True,
       **_moe(256, 8, 512, shared=1), **_linear(30, _qwen_next(2048, 32)), extra=40 * 2048),
    _m("mistralai/Mistral-7B-v0.3", 32, 4096, 32, 8, 128, 14336, 32768, 32768),
    _m("mistralai/Mistral-7B-v0.1", 32, 4096, 32, 8, 128, 14336, 32000, 32768, **_window(4096, 32)),
    _m("mistralai/Mistral-7B-v0.2", 32, 4096, 32, 8, 128, 14336, 32000, 32768),
    _m("mistralai/Ministral-8B-Instruct-2410", 36, 4096, 32, 8, 128, 12288, 131072, 32768),
    _m("mistralai/Mistral-Nemo-Instruct-2407", 40, 5120, 32, 8, 128, 14336, 131072, 131072),
    _m("mistralai/Mistral-Small-24B-Instruct-2501", 40, 5120, 32, 8, 128, 32768, 131072, 32768),
    _m("mistralai/Mistral-Small-3.1-24B-Instruct-2503", 40, 5120, 32, 8, 128, 32768, 131072, 131072,
       extra=438_958_080),
    _m("mistralai/Codestral-22B-v0.1", 56, 6144, 48, 8, 128, 16384, 32768, 32768),
    _m("mistralai/Mistral-Large-Instruct-2407", 88, 12288, 96, 8, 128, 28672, 32768, 131072),
    _m("mistralai/Mixtral-8x7B-v0.1", 32, 4096, 32, 8, 128, 14336, 32000, 32768, **_moe(8, 2, 14336)),
    _m("mistralai/Mixtral-8x22B-v0.1", 56, 6144, 48, 8, 128, 16384, 32768, 65536, **_moe(8, 2, 16384)),
    _m("deepseek-ai/DeepSeek-V2-Lite", 27, 2048, 16, 16, 128, 10944, 102400, 163840,
       **_mla(0), **_moe(64, 6, 1408, shared=2, dense=1)),
    _m("deepseek-ai/DeepSeek-V2", 60, 5120, 128, 128, 128, 12288, 102400, 163840,
       **_mla(1536), **_moe(160, 6, 1536, shared=2, dense=1)),
    _m("deepseek-ai/DeepSeek-V3", 61, 7168, 128, 128, 128, 18432, 129280, 163840,
       **_mla(1536), **_moe(256, 8, 2048, shared=1, dense=3), dtype="fp8"),
    _m("deepseek-ai/DeepSeek-V3.2", 61, 7168, 128, 128, 128, 18432, 129280, 163840,
       **_mla(1536), **_moe(256, 8, 2048, shared=1, dense=3), dtype="fp8", index_heads=64, index_head_dim=128),
    _m("deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B", 28, 1536, 12, 2, 128, 8960, 151936, 131072, **_QWEN2),
    _m("moonshotai/Moonlight-16B-A3B", 27, 2048, 16, 16, 128, 11264, 163840, 8192,
       **_mla(0), **_moe(64, 6, 1408, shared=2, dense=1)),
    _m("moonshotai/Kimi-VL-A3B-Instruct", 27, 2048, 16, 16, 128, 11264, 163840, 131072,
       **_mla(0), **_moe(64, 6, 1408, shared=2, dense=1), extra=447_000_000),
    _m("moonshotai/Kimi-K2-Instruct", 61, 7168, 64, 64, 128, 18432, 163840, 131072,
       **_mla(1536), **_moe(384, 8, 2048, shared=1, dense=1), dtype="fp8"),
    _m("moonshotai/Kimi-K2-Instruct-0905", 61, 7168, 64, 64, 128, 18432, 163840, 262144,
       **_mla(1536), **_moe(384, 8, 2048, shared=1, dense=1), dtype="fp8"),
    # half of the layers look back 128 tokens
    _m("openai/gpt-oss-20b", 24, 2880, 64, 8, 64, 2880, 201088, 131072,
       bias=True, **_moe(32, 4, 2880), **_window(128, 12), dtype="mxfp4"),
    _m("openai/gpt-oss-120b", 36, 2880, 64, 8, 64, 2880, 201088, 131072,
       bias=True, **_moe(128, 4, 2880), **_window(128, 18), dtype="mxfp4"),
    _m("google/gemma-2b", 18, 2048, 8, 1, 256, 16384, 256000, 8192, **_TIED),
    _m("google/gemma-7b", 28, 3072, 16, 16, 256, 24576, 256000, 8192, **_TIED),
    _m("google/gemma-2-2b", 26, 2304, 8, 4, 256, 9216, 256000, 8192, **_GEMMA2, **_window(4096, 13)),
    _m("google/gemma-2-9b", 42, 3584, 16, 8, 256, 14336, 256000, 8192, **_GEMMA2, **_window(4096, 21)),
    _m("google/gemma-2-27b", 46, 4608, 32, 16, 128, 36864, 256000, 8192, **_GEMMA2, **_window(4096, 23)),
    _m("google/gemma-3-1b", 26, 1152, 4, 1, 256, 6912, 262144, 32768, **_GEMMA3, **_window(512, 22)),
    _gemma3("google/gemma-3-4b", 34, 2560, 8, 4, 256, 10240, 5),
    _gemma3("google/gemma-3-12b", 48, 3840, 16, 8, 256, 15360, 8),
    _gemma3("google/gemma-3-27b", 62, 5376, 32, 16, 128, 21504, 10),
    _m("microsoft/Phi-3-mini-4k-instruct", 32, 3072, 32, 32, 96, 8192, 32064, 4096, **_window(2047, 32)),
    _m("microsoft/Phi-3.5-mini-instruct", 32, 3072, 32, 32, 96, 8192, 32064, 131072),
    _m("microsoft/Phi-3-medium-128k-instruct", 40, 5120, 40, 10, 128, 17920, 32064, 131072),
    _m("microsoft/phi-4", 40, 5120, 40, 10, 128, 17920, 100352, 16384),
    _m("microsoft/Phi-4-mini-instruct", 32, 3072, 24, 8, 128, 8192, 200064, 131072, **_TIED),
    _m("zai-org/glm-4-9b-chat-hf", 40, 4096, 32, 2, 128, 13696, 151552, 131072, **_QWEN2),
    _m("zai-org/GLM-4-32B-0414", 61, 6144, 48, 2, 128, 23040, 151552, 32768, norms=4),
    _m("zai-org/GLM-4.5", 92, 5120, 96, 8, 128, 12288, 151552, 131072,
       **_QWEN2, **_QWEN3, **_moe(160, 8, 1536, shared=1, dense=3)),
    _m("zai-org/GLM-4.5-Air", 46, 4096, 96, 8, 128, 10944, 151552, 131072,
       **_QWEN2, **_moe(128, 8, 1408, shared=1, dense=1)),
    _m("zai-org/GLM-4.6", 92, 5120, 96, 8, 128, 12288, 151552, 202752,
       **_QWEN2, **_QWEN3, **_moe(160, 8, 1536, shared=1, dense=3)),
    _m("01-ai/Yi-1.5-6B", 32, 4096, 32, 4, 128, 11008, 64000, 4096),
    _m("01-ai/Yi-1.5-9B", 48, 4096, 32, 4, 128, 11008, 64000, 4096),
    _m("01-ai/Yi-1.5-34B", 60, 7168, 56, 8, 128, 20480, 64000, 4096),
    _m("01-ai/Yi-34B-200K", 60, 7168, 56, 8, 128, 20480, 64000, 200000),
    _m("MiniMaxAI/MiniMax-M2", 62, 3072, 48, 8, 128, 0, 200064, 196608, dtype="fp8", **_moe(256, 8, 1536),
       extra=62 * (48 + 8) * 128),
    _m("ibm-granite/granite-3.1-2b", 40, 2048, 32, 8, 64, 8192, 49155, 131072, **_TIED),
    _m("ibm-granite/granite-3.1-8b", 40, 4096, 32, 8, 128, 12800, 49155, 131072, **_TIED),
    _m("ai21labs/Jamba-v0.1", 32, 4096, 32, 8, 128, 14336, 65536, 262144,
       **_moe(16, 2, 14336, dense=16), **_linear(28, mamba1(4096, 16, 256))),
    _nemotron3_nano(),
    _m("HuggingFaceTB/SmolLM3-3B", 36, 2048, 16, 4, 128, 11008, 128256, 65536, **_TIED),
    _m("HuggingFaceTB/SmolLM2-135M", 30, 576, 9, 3, 64, 1536, 49152, 8192, **_TIED),
    _m("HuggingFaceTB/SmolLM2-360M", 32, 960, 15, 5, 64, 2560, 49152, 8192, **_TIED),
    _m("HuggingFaceTB/SmolLM2-1.7B", 24, 2048, 32, 32, 64, 8192, 49152, 8192, **_TIED),
)  # fmt: skip

ALIASES: Final = MappingProxyType(
    {
        "meta-llama/meta-llama-3.1-8b": "meta-llama/Llama-3.1-8B",
        "meta-llama/meta-llama-3.1-70b": "meta-llama/Llama-3.1-70B",
        "meta-llama/meta-llama-3.1-405b": "meta-llama/Llama-3.1-405B",
        "llama-3-8b": "meta-llama/Meta-Llama-3-8B",
        "llama-3-70b": "meta-llama/Meta-Llama-3-70B",
        "llama-4-scout": "meta-llama/Llama-4-Scout-17B-16E",
        "llama-4-maverick": "meta-llama/Llama-4-Maverick-17B-128E",
        "deepseek-ai/deepseek-r1": "deepseek-ai/DeepSeek-V3",
        "deepseek-ai/deepseek-r1-0528": "deepseek-ai/DeepSeek-V3",
        "deepseek-ai/deepseek-v3-0324": "deepseek-ai/DeepSeek-V3",
        "deepseek-ai/deepseek-v3.1": "deepseek-ai/DeepSeek-V3",
        "deepseek-ai/deepseek-v3.2-exp": "deepseek-ai/DeepSeek-V3.2",
        "deepseek-ai/deepseek-coder-v2-lite": "deepseek-ai/DeepSeek-V2-Lite",
        "deepseek-ai/deepseek-coder-v2": "deepseek-ai/DeepSeek-V2",
        "deepseek-ai/deepseek-v2.5": "deepseek-ai/DeepSeek-V2",
        "deepseek-ai/deepseek-r1-distill-qwen-7b": "Qwen/Qwen2.5-7B",
        "deepseek-ai/deepseek-r1-distill-qwen-14b": "Qwen/Qwen2.5-14B",
        "deepseek-ai/deepseek-r1-distill-qwen-32b": "Qwen/Qwen2.5-32B",
        "deepseek-ai/deepseek-r1-distill-llama-8b": "meta-llama/Llama-3.1-8B",
        "deepseek-ai/deepseek-r1-distill-llama-70b": "meta-llama/Llama-3.3-70B",
        "qwen/qwen2.5-coder-7b": "Qwen/Qwen2.5-7B",
        "qwen/qwen2.5-coder-14b": "Qwen/Qwen2.5-14B",
        "qwen/qwen2.5-coder-32b": "Qwen/Qwen2.5-32B",
        "qwen/qwen3-4b-thinking-2507": "Qwen/Qwen3-4B-Instruct-2507",
        "qwen/qwen3-30b-a3b-thinking-2507": "Qwen/Qwen3-30B-A3B-Instruct-2507",
        "qwen/qwen3-235b-a22b-thinking-2507": "Qwen/Qwen3-235B-A22B-Instruct-2507",
        "qwen/qwen3-coder-30b-a3b": "Qwen/Qwen3-30B-A3B-Instruct-2507",
        "qwen/qwen3-next-80b-a3b-thinking": "Qwen/Qwen3-Next-80B-A3B",
        "qwen/qwen3.6-27b": "Qwen/Qwen3.5-27B",
        "qwen/qwen3.6-35b-a3b": "Qwen/Qwen3.5-35B-A3B",
        "mistralai/mistral-small-3.2-24b-instruct-2506": "mistralai/Mistral-Small-3.1-24B-Instruct-2503",
        "mistralai/devstral-small-2507": "mistralai/Mistral-Small-3.1-24B-Instruct-2503",
        "moonshotai/kimi-dev-72b": "Qwen/Qwen2.5-72B",
        "zai-org/glm-4-9b-0414": "zai-org/glm-4-9b-chat-hf",
        "zai-org/glm-4-9b-chat": "zai-org/glm-4-9b-chat-hf",
        "microsoft/phi-3-mini-128k": "microsoft/Phi-3.5-mini-instruct",
        "ibm-granite/granite-3.3-8b": "ibm-granite/granite-3.1-8b",
        "ibm-granite/granite-3.3-2b": "ibm-granite/granite-3.1-2b",
        "minimaxai/minimax-m2.5": "MiniMaxAI/MiniMax-M2",
        "ai21labs/jamba-mini-1.5": "ai21labs/Jamba-v0.1",
        "ai21labs/ai21-jamba-1.5-mini": "ai21labs/Jamba-v0.1",
        "01-ai/yi-6b": "01-ai/Yi-1.5-6B",
        "01-ai/yi-9b": "01-ai/Yi-1.5-9B",
        "01-ai/yi-34b": "01-ai/Yi-1.5-34B",
    }
)
"""Other names, in lower case. A name's last part and its instruction-tuned siblings are found without an entry."""

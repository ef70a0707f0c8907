"""Small models of every kind that has a KV cache of its own, for vLLM on a CPU; their weights are random."""

from __future__ import annotations

from typing import Any, Final, NamedTuple


class Spec(NamedTuple):
    name: str
    what: str
    config: dict[str, Any]
    """Of a config.json."""
    engine: dict[str, Any]


def _spec(name: str, what: str, model_type: str, architecture: str, engine: dict[str, Any], **config: Any) -> Spec:
    base = {
        "model_type": model_type,
        "architectures": [architecture],
        "vocab_size": 4096,
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_hidden_layers": 12,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 4096,
        "tie_word_embeddings": True,
        "torch_dtype": "float32",
    }
    settings = {
        "kv_cache_memory_bytes": 64 << 20,
        "max_model_len": 2048,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 2048,
        "dtype": "bfloat16",
    }
    return Spec(name, what, base | config, settings | engine)


_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 128}
_MLA = {
    "kv_lora_rank": 512,
    "q_lora_rank": None,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 128,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    "moe_layer_freq": 1,
    "norm_topk_prob": False,
    "topk_method": "greedy",
    "n_group": 1,
    "topk_group": 1,
    "routed_scaling_factor": 1.0,
    "scoring_func": "softmax",
}
_DELTA = {
    "linear_num_key_heads": 4,
    "linear_num_value_heads": 8,
    "linear_key_head_dim": 64,
    "linear_value_head_dim": 64,
    "linear_conv_kernel_dim": 4,
    "full_attention_interval": 4,
    "shared_expert_intermediate_size": 128,
    "decoder_sparse_step": 1,
    "norm_topk_prob": True,
}
_MAMBA = {
    "attn_layer_period": 8,
    "attn_layer_offset": 4,
    "expert_layer_period": 2,
    "expert_layer_offset": 1,
    "mamba_d_state": 16,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
    "mamba_dt_rank": 16,
    "num_experts": 4,
    "num_experts_per_tok": 2,
}
_FULL = {"dtype": "float32"}

MODELS: Final = (
    _spec("mha", "MHA", "llama", "LlamaForCausalLM", {**_FULL, "max_model_len": 1000}, num_key_value_heads=4),
    _spec("gqa", "GQA", "llama", "LlamaForCausalLM", _FULL, num_attention_heads=8, head_dim=64),
    _spec("mqa", "MQA", "llama", "LlamaForCausalLM", {}, num_key_value_heads=1),
    _spec(
        "kv-fp8", "KV in fp8", "llama", "LlamaForCausalLM", {"kv_cache_dtype": "fp8"},
        num_attention_heads=8, head_dim=64,
    ),
    _spec("mla", "MLA, experts", "deepseek_v2", "DeepseekV2ForCausalLM", {}, num_key_value_heads=4, **_MLA),
    _spec("window", "all layers with a window", "mistral", "MistralForCausalLM", _FULL, sliding_window=256),
    _spec(
        "gemma2", "every second layer with a window", "gemma2", "Gemma2ForCausalLM", _FULL,
        num_hidden_layers=11, head_dim=64, sliding_window=256, query_pre_attn_scalar=64,
    ),
    _spec(
        "gemma3", "five of six layers with a window", "gemma3_text", "Gemma3ForCausalLM", _FULL,
        num_hidden_layers=14, head_dim=64, sliding_window=256, sliding_window_pattern=6, query_pre_attn_scalar=64,
    ),
    _spec(
        "llama4", "three of four layers in chunks", "llama4_text", "Llama4ForCausalLM", _FULL,
        head_dim=64, attention_chunk_size=256, intermediate_size_mlp=512, num_local_experts=4, num_experts_per_tok=1,
        interleave_moe_layer_step=1,
    ),
    _spec(
        "gpt-oss", "windows, experts", "gpt_oss", "GptOssForCausalLM", {},
        head_dim=64, sliding_window=128, tie_word_embeddings=False, num_local_experts=4, num_experts_per_tok=2,
    ),
    _spec(
        "qwen3-moe", "GQA, experts", "qwen3_moe", "Qwen3MoeForCausalLM", {},
        head_dim=64, decoder_sparse_step=1, norm_topk_prob=True, **_EXPERTS,
    ),
    _spec(
        "qwen3-next", "three of four layers with a state", "qwen3_next", "Qwen3NextForCausalLM", {},
        head_dim=64, **_EXPERTS, **_DELTA,
    ),
    _spec(
        "jamba", "seven of eight layers with a state", "jamba", "JambaForCausalLM", {},
        num_hidden_layers=16, **_MAMBA,
    ),
)  # fmt: skip

"""config.json files of families whose layers are not all alike, and what vLLM makes of their KV cache."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from forebay.hardware.catalogue import find_any, find_model
from forebay.hardware.configs import BadConfig, from_config
from forebay.hardware.kvcache import layout

BASE: dict[str, Any] = {
    "vocab_size": 4096,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 12,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": True,
}
MLA = {
    "kv_lora_rank": 512, "q_lora_rank": None, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
    "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 128, "first_k_dense_replace": 1,
}  # fmt: skip
DELTA = {
    "linear_num_key_heads": 4, "linear_num_value_heads": 8, "linear_key_head_dim": 64, "linear_value_head_dim": 64,
    "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 128, "shared_expert_intermediate_size": 128,
}  # fmt: skip
MAMBA = {"mamba_dt_rank": 16, "num_experts": 4, "num_experts_per_tok": 2, "num_hidden_layers": 16}
GEMMA = {"head_dim": 64, "sliding_window": 256}


def written(tmp_path: Path, config: dict[str, Any]) -> Path:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    return path


@pytest.mark.parametrize(
    ("kind", "config", "kv_dtype", "blocks", "tokens"),
    [
        # of 64 MiB, sequences of 2,048 tokens, all in one step: what vLLM 0.32.0 on a CPU reports
        ("llama", {"num_attention_heads": 8, "head_dim": 64}, "fp32", 42, 5376),
        ("llama", {"num_key_value_heads": 1}, "bf16", 170, 21_760),
        ("llama", {"num_attention_heads": 8, "head_dim": 64}, "fp8", 170, 21_760),
        ("mistral", {"sliding_window": 256}, "fp32", 42, 5059),
        ("gemma2", {**GEMMA, "num_hidden_layers": 11}, "fp32", 85, 5275),
        ("gemma3_text", {**GEMMA, "num_hidden_layers": 14, "sliding_window_pattern": 6}, "fp32", 256, 4443),
        ("llama4_text", {"head_dim": 64, "attention_chunk_size": 256, "intermediate_size_mlp": 512,
                         "num_local_experts": 4, "num_experts_per_tok": 1}, "fp32", 170, 5440),
        ("gpt_oss", {"head_dim": 64, "sliding_window": 128, "num_local_experts": 4, "num_experts_per_tok": 2},
         "bf16", 170, 10_550),
        ("deepseek_v2", {**MLA, "num_key_value_heads": 4}, "bf16", 303, 4848),
        ("qwen3_next", {**DELTA, "head_dim": 64}, "bf16", 113, 19_285),
        ("jamba", MAMBA, "bf16", 512, 34_952),
    ],
)  # fmt: skip
def test_blocks_are_those_of_vllm(
    tmp_path: Path, kind: str, config: dict[str, Any], kv_dtype: str, blocks: int, tokens: int
) -> None:
    model = from_config(written(tmp_path, {**BASE, "model_type": kind, **config}))
    cut = layout(model, kv_dtype=kv_dtype, block_size=16 if model.kv_lora_rank else 128)
    made = (64 << 20) // cut.block_bytes
    assert made == blocks
    assert cut.tokens(made, 2048, 2048) == tokens


@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("google/gemma-3-27b", {
            "model_type": "gemma3",
            "text_config": {
                "model_type": "gemma3_text", "hidden_size": 5376, "intermediate_size": 21504, "num_hidden_layers": 62,
                "num_attention_heads": 32, "num_key_value_heads": 16, "head_dim": 128, "vocab_size": 262208,
                "sliding_window": 1024, "max_position_embeddings": 131072,
            },
        }),
        ("meta-llama/Llama-4-Maverick-17B-128E", {
            "model_type": "llama4_text", "hidden_size": 5120, "intermediate_size": 8192, "intermediate_size_mlp": 16384,
            "num_hidden_layers": 48, "num_attention_heads": 40, "num_key_value_heads": 8, "head_dim": 128,
            "vocab_size": 202048, "num_local_experts": 128, "num_experts_per_tok": 1, "interleave_moe_layer_step": 2,
            "attention_chunk_size": 8192, "max_position_embeddings": 1048576,
        }),
        ("Qwen/Qwen3-Next-80B-A3B", {
            "model_type": "qwen3_next", "hidden_size": 2048, "intermediate_size": 5120, "num_hidden_layers": 48,
            "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 256, "vocab_size": 151936,
            "num_experts": 512, "num_experts_per_tok": 10, "moe_intermediate_size": 512,
            "shared_expert_intermediate_size": 512, "full_attention_interval": 4, "linear_num_key_heads": 16,
            "linear_num_value_heads": 32, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
            "max_position_embeddings": 262144,
        }),
        ("ai21labs/Jamba-v0.1", {
            "model_type": "jamba", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
            "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 65536, "num_experts": 16,
            "num_experts_per_tok": 2, "mamba_dt_rank": 256, "max_position_embeddings": 262144,
        }),
        ("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B", {
            "model_type": "nemotron_h", "hidden_size": 2688, "intermediate_size": 1856, "num_hidden_layers": 52,
            "hybrid_override_pattern": "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME",
            "num_attention_heads": 32, "num_key_value_heads": 2, "head_dim": 128, "vocab_size": 131072,
            "mamba_num_heads": 64, "mamba_head_dim": 64, "ssm_state_size": 128, "n_groups": 8,
            "mamba_ssm_cache_dtype": "float32", "n_routed_experts": 128, "num_experts_per_tok": 6,
            "moe_intermediate_size": 1856, "moe_shared_expert_intermediate_size": 3712, "n_shared_experts": 1,
            "max_position_embeddings": 262144,
        }),
        ("deepseek-ai/DeepSeek-V3.2", {
            "model_type": "deepseek_v32", "hidden_size": 7168, "intermediate_size": 18432, "num_hidden_layers": 61,
            "num_attention_heads": 128, "num_key_value_heads": 128, "vocab_size": 129280, "kv_lora_rank": 512,
            "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
            "n_routed_experts": 256, "num_experts_per_tok": 8, "moe_intermediate_size": 2048, "n_shared_experts": 1,
            "first_k_dense_replace": 3, "index_head_dim": 128, "index_n_heads": 64,
            "max_position_embeddings": 163840, "quantization_config": {"quant_method": "fp8"},
        }),
    ],
)  # fmt: skip
def test_a_config_describes_what_the_catalogue_has(tmp_path: Path, name: str, config: dict[str, Any]) -> None:
    want, got = find_model(name), from_config(written(tmp_path, config))
    assert got.parameters() - got.extra == want.parameters() - want.extra
    assert layout(got, kv_dtype="bf16") == layout(want, kv_dtype="bf16")
    assert (got.dtype, got.max_context) == (want.dtype, want.max_context)


def test_gemma_4_has_heads_of_two_sizes(tmp_path: Path) -> None:
    model = from_config(
        written(
            tmp_path,
            {
                **BASE, "model_type": "gemma4_text", "head_dim": 64, "num_key_value_heads": 4, "global_head_dim": 128,
                "num_global_key_value_heads": 1, "sliding_window": 256, "num_hidden_layers": 6, "num_experts": 4,
                "top_k_experts": 2, "moe_intermediate_size": 128,
                "layer_types": ["sliding_attention"] * 5 + ["full_attention"],
            },
        )
    )  # fmt: skip
    assert (model.kv_heads, model.head_dim, model.heads_of(windowed=True)) == (1, 128, (4, 64))
    assert (model.window_layers, model.shared_experts, model.tied) == (5, 4, True)


def test_a_vision_tower_is_counted_by_its_sizes(tmp_path: Path) -> None:
    config = {
        **BASE,
        "model_type": "qwen3_vl",
        "vision_config": {"hidden_size": 100, "depth": 3, "intermediate_size": 7},
    }
    plain = from_config(written(tmp_path, {**BASE, "model_type": "qwen3_vl"}))
    seeing = from_config(written(tmp_path, config))
    assert seeing.parameters() - plain.parameters() == 3 * (4 * 100 * 100 + 2 * 100 * 7) + 100 * 256
    assert plain.extra == 0


def compressed(kind: str, bits: int) -> dict[str, Any]:
    groups = {"group_0": {"weights": {"type": kind, "num_bits": bits}}}
    return {"quant_method": "compressed-tensors", "config_groups": groups}


@pytest.mark.parametrize(
    ("quantised", "dtype"),
    [
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "nvfp4"),
        (compressed("float", 8), "fp8"),
        (compressed("int", 8), "int8"),
        (compressed("int", 4), "int4"),
    ],
)
def test_dtypes_of_quantised_weights(tmp_path: Path, quantised: dict[str, Any], dtype: str) -> None:
    path = written(tmp_path, {**BASE, "model_type": "llama", "quantization_config": quantised})
    assert from_config(path).dtype == dtype


def test_a_dtype_may_stand_in_a_file_beside(tmp_path: Path) -> None:
    path = written(tmp_path, {**BASE, "model_type": "llama"})
    beside = tmp_path / "hf_quant_config.json"
    beside.write_text(json.dumps({"quantization": {"quant_algo": "FP8"}}))
    assert from_config(tmp_path).dtype == "fp8"
    beside.write_text("{")
    with pytest.raises(BadConfig, match=r"hf_quant_config\.json: cannot be read"):
        from_config(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"quantization_config": {"quant_method": "modelopt", "quant_algo": "MIXED"}},
            "quant_algo is 'MIXED', none of",
        ),
        ({"quantization_config": {"quant_method": "compressed-tensors"}}, "config_groups has no group with weights"),
        (
            {"quantization_config": {"quant_method": "compressed-tensors", "config_groups": {"g": {"weights": {}}}}},
            "weights of type None with None bits are unknown",
        ),
        ({"model_type": "nemotron_h"}, "hybrid_override_pattern is '' where M and"),
        (
            {"model_type": "nemotron_h", "hybrid_override_pattern": "M*", "moe_latent_size": 9},
            "moe_latent_size: experts",
        ),
        ({"model_type": "qwen3_next"}, "the key linear_num_key_heads is missing"),
        ({"layer_types": "all"}, "layer_types is 'all' where a list of words"),
        ({"layer_types": [1]}, "layer_types is a list where a list of words"),
        ({"sliding_window": "wide"}, "sliding_window is 'wide' where a whole number"),
    ],
)
def test_configs_that_say_too_little(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    with pytest.raises(BadConfig, match=message):
        from_config(written(tmp_path, {**BASE, "model_type": "llama", **change}))


def test_a_window_as_long_as_the_context_is_none(tmp_path: Path) -> None:
    path = written(tmp_path, {**BASE, "model_type": "mistral", "sliding_window": 4096})
    assert from_config(path).window_layers == 0
    path = written(tmp_path, {**BASE, "model_type": "qwen2", "sliding_window": 64, "use_sliding_window": False})
    assert from_config(path).window_layers == 0
    path = written(tmp_path, {**BASE, "model_type": "qwen2", "sliding_window": 64, "use_sliding_window": True,
                              "max_window_layers": 8})  # fmt: skip
    assert from_config(path).window_layers == 4


def test_models_that_a_package_describes_are_found_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "aiconfigurator_core" / "model_configs"
    folder.mkdir(parents=True)
    (folder.parent / "__init__.py").write_text("raise RuntimeError('is not to be imported')")
    (folder / "someone--Thing-1B_config.json").write_text(json.dumps({**BASE, "model_type": "llama"}))
    (folder / "someone--Thing-1B_hf_quant_config.json").write_text(json.dumps({"quantization": {"quant_algo": "FP8"}}))
    monkeypatch.syspath_prepend(str(tmp_path))
    found = find_any("Someone/thing-1b")
    assert (found.name, found.layers, found.dtype) == ("Someone/thing-1b", 12, "fp8")
    with pytest.raises(LookupError, match="model 'someone/thing-2b' is unknown"):
        find_any("someone/Thing-2B")

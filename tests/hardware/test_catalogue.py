"""Models and GPUs: published sizes, names, config.json files, and the KV cache that fits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from forebay.hardware.activations import activation_peak, overhead_bytes
from forebay.hardware.catalogue import UnknownGpu, UnknownModel, find_gpu, find_model, kv_capacity_tokens
from forebay.hardware.configs import BadConfig, from_config
from forebay.hardware.gpus import GPUS
from forebay.hardware.models import MODELS
from forebay.hardware.shapes import dtype_name

PUBLISHED = {
    "meta-llama/Llama-3.1-8B": 8_030_261_248,
    "meta-llama/Llama-3.1-70B": 70_553_706_496,
    "meta-llama/Llama-3.1-405B": 405_853_388_800,
    "meta-llama/Llama-3.2-1B": 1_235_814_400,
    "meta-llama/Llama-3.2-3B": 3_212_749_824,
    "meta-llama/Llama-2-7b-hf": 6_738_415_616,
    "meta-llama/Llama-2-13b-hf": 13_015_864_320,
    "meta-llama/Llama-2-70b-hf": 68_976_648_192,
    "Qwen/Qwen2.5-7B": 7_615_616_512,
    "Qwen/Qwen2.5-72B": 72_706_203_648,
    "Qwen/Qwen3-8B": 8_190_735_360,
    "Qwen/Qwen3-32B": 32_762_123_264,
    "Qwen/Qwen3-30B-A3B": 30_532_122_624,
    "Qwen/Qwen3-235B-A22B": 235_093_634_560,
    "mistralai/Mistral-7B-v0.3": 7_248_023_552,
    "mistralai/Mixtral-8x7B-v0.1": 46_702_792_704,
    "deepseek-ai/DeepSeek-V3": 671_026_404_352,
    "openai/gpt-oss-20b": 20_914_755_648,
    "openai/gpt-oss-120b": 116_829_154_368,
    "HuggingFaceTB/SmolLM2-135M": 134_515_008,
}
"""Parameters in the hub's safetensors index of each."""


@pytest.mark.parametrize(("name", "parameters"), PUBLISHED.items())
def test_shapes_add_up_to_the_published_parameters(name: str, parameters: int) -> None:
    assert find_model(name).parameters() == parameters


def test_active_parameters_of_experts() -> None:
    assert find_model("Qwen/Qwen3-30B-A3B").active_parameters() == pytest.approx(3.3e9, rel=0.03)
    assert find_model("deepseek-ai/DeepSeek-V3").active_parameters() == pytest.approx(37e9, rel=0.03)
    dense = find_model("Qwen/Qwen3-8B")
    assert dense.active_parameters() == dense.parameters()


def test_kv_bytes_a_token() -> None:
    llama = find_model("llama-3.1-8b")
    assert llama.kv_bytes_per_token() == 131_072
    assert llama.kv_bytes_per_token("fp8") == 65_536
    assert llama.kv_bytes_per_token(tp=4) == 32_768
    assert llama.kv_bytes_per_token(tp=16) == 16_384  # 8 heads on 16 ranks: each rank has one
    deepseek = find_model("deepseek-v3")
    assert deepseek.kv_bytes_per_token() == 61 * (512 + 64) * 2
    assert deepseek.kv_bytes_per_token(tp=8) == deepseek.kv_bytes_per_token()


def test_quantised_weights() -> None:
    llama = find_model("llama-3.1-8b")
    assert llama.weight_bytes() == 2 * llama.parameters()
    assert llama.weight_bytes("fp8") == pytest.approx(9.08e9, rel=0.01)  # embedding and head stay at 16 bits
    assert llama.weight_bytes("int4") == pytest.approx(5.73e9, rel=0.01)  # the published AWQ checkpoint
    assert find_model("gpt-oss-120b").weight_bytes() == pytest.approx(65.2e9, rel=0.01)
    with pytest.raises(ValueError, match="dtype 'fp7' is unknown; known are fp32, bf16"):
        dtype_name("fp7")


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ("meta-llama/Llama-3.1-8B", "meta-llama/Llama-3.1-8B"),
        ("meta-llama/Meta-Llama-3.1-8B-Instruct", "meta-llama/Llama-3.1-8B"),
        ("LLAMA-3.1-8b", "meta-llama/Llama-3.1-8B"),
        ("qwen3-30b-a3b-instruct-2507", "Qwen/Qwen3-30B-A3B-Instruct-2507"),
        ("Qwen/Qwen3-Coder-30B-A3B-Instruct-FP8", "Qwen/Qwen3-30B-A3B-Instruct-2507"),
        ("qwen3-30b-a3b", "Qwen/Qwen3-30B-A3B"),
        ("mistralai/Mistral-7B-Instruct-v0.1", "mistralai/Mistral-7B-v0.1"),
        ("mistral-7b", "mistralai/Mistral-7B-v0.3"),
        ("google/gemma-3-27b-it", "google/gemma-3-27b"),
        ("deepseek-ai/DeepSeek-V2-Lite-Chat", "deepseek-ai/DeepSeek-V2-Lite"),
        ("RedHatAI/Llama-3.3-70B-Instruct-fp8-dynamic", "meta-llama/Llama-3.3-70B"),
        ("Mixtral-8x7B-Instruct-v0.1", "mistralai/Mixtral-8x7B-v0.1"),
        ("deepseek-ai/DeepSeek-R1", "deepseek-ai/DeepSeek-V3"),
        ("llama-2-7b", "meta-llama/Llama-2-7b-hf"),
        ("Llama-3.3-70B-Instruct", "meta-llama/Llama-3.3-70B"),
    ],
)
def test_models_by_other_names(asked: str, found: str) -> None:
    assert find_model(asked).name == found


def test_every_name_in_the_catalogue_finds_itself() -> None:
    assert [find_model(m.name) for m in MODELS] == list(MODELS)
    assert [find_model(m.name.upper()) for m in MODELS] == list(MODELS)
    assert [find_gpu(g.name) for g in GPUS] == list(GPUS)


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ("H100", "h100_sxm"),
        ("NVIDIA GeForce RTX 4090", "rtx_4090"),
        ("RTXPRO6000", "rtx_pro_6000"),
        ("a100-pcie", "a100_pcie"),
    ],
)
def test_gpus_by_other_names(asked: str, found: str) -> None:
    assert find_gpu(asked).name == found


def test_unknown_names_get_the_nearest() -> None:
    with pytest.raises(UnknownModel, match=r"model 'lama-3.1-8b' is unknown; the nearest are meta-llama/Llama-3.1-8B"):
        find_model("lama-3.1-8b")
    with pytest.raises(UnknownGpu, match="GPU 'h10_sxm' is unknown; the nearest are h100_sxm"):
        find_gpu("h10_sxm")
    with pytest.raises(UnknownGpu, match="known are a100_sxm, a100_pcie"):
        find_gpu("?")


def test_kv_cache_is_near_what_vllm_measured_on_an_rtx_4090() -> None:
    # vLLM 0.19.0, Llama-3.1-8B bf16, max_num_seqs 256, max_num_batched_tokens 2048: 2,588 blocks of 16
    tokens = kv_capacity_tokens(find_model("llama-3.1-8b"), find_gpu("rtx_4090"))
    assert tokens % 16 == 0
    assert tokens == pytest.approx(41_408, rel=0.02)


def test_kv_cache_grows_with_what_leaves_room() -> None:
    llama, h100 = find_model("llama-3.1-8b"), find_gpu("h100_sxm")
    plain = kv_capacity_tokens(llama, h100)
    assert kv_capacity_tokens(llama, h100, kv_dtype="fp8") == pytest.approx(2 * plain, rel=1e-3)
    assert kv_capacity_tokens(llama, h100, dtype="int4") > plain
    assert kv_capacity_tokens(llama, h100, tp=2) > 2 * plain
    assert kv_capacity_tokens(llama, h100, utilisation=0.5) < plain
    assert kv_capacity_tokens(llama, h100, max_num_batched_tokens=65_536) < plain
    sizes = {"max_num_batched_tokens": 8192, "max_num_seqs": 1024}
    taken = activation_peak(llama, **sizes).total + overhead_bytes(h100)
    assert taken == pytest.approx((1.89 + 0.25) * 2**30, rel=0.01)  # vLLM 0.19.0


def test_a_model_that_does_not_fit_is_refused_with_the_numbers() -> None:
    with pytest.raises(ValueError, match=r"Llama-3.1-70B in bf16 does not fit on NVIDIA H100 .* 141.1 GB of weights"):
        kv_capacity_tokens(find_model("llama-3.1-70b"), find_gpu("h100_sxm"))


LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "torch_dtype": "bfloat16",
    "max_position_embeddings": 131072,
}
GPT_OSS: dict[str, Any] = {
    "model_type": "gpt_oss",
    "hidden_size": 2880,
    "intermediate_size": 2880,
    "num_attention_heads": 64,
    "num_hidden_layers": 24,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "vocab_size": 201088,
    "num_local_experts": 32,
    "experts_per_token": 4,
    "quantization_config": {"quant_method": "mxfp4"},
}


def test_a_config_json_describes_a_model(tmp_path: Path) -> None:
    for name, config in (("llama-3.1-8b", LLAMA), ("gpt-oss-20b", GPT_OSS)):
        path = tmp_path / "config.json"
        path.write_text(json.dumps(config))
        want = find_model(name)
        for given in (path, tmp_path):
            shape = find_model(str(given))
            assert (shape.parameters(), shape.weight_bytes()) == (want.parameters(), want.weight_bytes())
            assert shape.kv_bytes_per_token() == want.kv_bytes_per_token()
    path.write_text(json.dumps({"text_config": LLAMA}))
    assert from_config(path).layers == 32


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_hidden_layers": None}, "the key num_hidden_layers is missing"),
        ({"vocab_size": "many"}, "vocab_size is 'many' where a whole number"),
        ({"hidden_size": -1}, "hidden_size is -1 where a whole number"),
        ({"num_attention_heads": 0}, "num_attention_heads is 0 where 1 or more"),
        ({"model_type": "mamba"}, "model_type 'mamba' is not one whose layers are known"),
        ({"quantization_config": {"quant_method": "magic"}}, "quant_method is 'magic', none of fp8"),
        ({"quantization_config": "x"}, "quantization_config is 'x' where an object is needed"),
        ({"quantization_config": []}, "quantization_config is a list where an object is needed"),
        ({"quantization_config": {}}, "quant_method is None, none of fp8"),
        ({"quantization_config": {"quant_method": "awq", "bits": 0}}, "bits is 0; known of awq are 4"),
        ({"quantization_config": {"quant_method": "gptq", "bits": 1e9}}, "known of gptq are 4, 8"),
        ({"quantization_config": {"quant_method": "gptq", "bits": True}}, "bits is True; known of gptq are 4, 8"),
        ({"num_key_value_heads": 3}, "num_key_value_heads 3 does not divide num_attention_heads 32"),
        ({"tie_word_embeddings": "no"}, "tie_word_embeddings is 'no' where true or false is needed"),
        ({"torch_dtype": "float9"}, "torch_dtype: dtype 'float9' is unknown"),
    ],
)
def test_a_config_json_that_says_too_little(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA | change))
    with pytest.raises(BadConfig, match=rf"config\.json: .*{message}"):
        from_config(path)


@pytest.mark.parametrize(("text", "message"), [("{", "is not JSON"), ("[]", "holds list where an object")])
def test_a_config_json_that_is_none(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(BadConfig, match=message):
        find_model(str(path))
    with pytest.raises(BadConfig, match="cannot be read"):
        find_model(str(tmp_path / "none.json"))

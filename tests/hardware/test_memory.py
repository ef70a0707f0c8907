"""What a deployment takes of each GPU's memory, and how many sequences fit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from forebay.hardware.catalogue import find_any, find_any_gpu
from forebay.hardware.memory import GIB, Deployment, DoesNotFit, Slots, budget, slots_of
from forebay.hardware.roofline import RooflineSteps
from forebay.hardware.steptime import Chunk

SEVENTY = "params=70e9,layers=80,kv_heads=8,head_dim=128"
H100 = replace(find_any_gpu("h100"), memory=int(79.19 * GIB))


def deployed(model: str, gpu: str = "h100", **settings: Any) -> Deployment:
    return Deployment(find_any(model), find_any_gpu(gpu), **settings)


def test_slots_of_plain_numbers() -> None:
    given = {"total": 80 * GIB, "weights": 64 * GIB, "activations": 6 * GIB}
    assert slots_of(**given, tokens=4096, bytes_per_token=1 << 20) == Slots(2.5, 2)
    with pytest.raises(DoesNotFit, match=r"take 90\.0 GiB, 10\.0 more than the 80\.0") as refused:
        slots_of(total=80 * GIB, weights=64 * GIB, activations=26 * GIB, tokens=1, bytes_per_token=1)
    assert refused.value.short == 10 * GIB
    with pytest.raises(ValueError, match="tokens must be more than 0"):
        slots_of(**given, tokens=0, bytes_per_token=1)
    with pytest.raises(ValueError, match="weights must be 0 or more"):
        slots_of(total=1, weights=-1, activations=0, tokens=1, bytes_per_token=1)


def test_a_user_of_a_70b_model_holds_1_34_gb() -> None:
    found = budget(deployed(SEVENTY, "A100", tp=4))
    assert found.deployment.model.parameters() == 70_000_000_000
    assert found.replica_kv_bytes_per_token == 2 * 80 * 8 * 128 * 2
    assert found.kv_bytes(4096) * 4 == 1_342_177_280


def test_the_parts_add_up_to_the_share_of_the_gpu() -> None:
    for eager in (False, True):
        found = budget(deployed("llama-3.1-8b", enforce_eager=eager))
        parts = found.weights + found.activations + found.cuda_graphs + found.overhead + found.kv
        assert parts == found.usable
        assert (found.cuda_graphs == 0) == eager
        assert sum(found.weights_by_part.values()) == found.weights
        assert found.num_blocks == found.kv // (131_072 * 16)
        assert found.kv_tokens == found.num_blocks * 16
    outside = budget(deployed("llama-3.1-8b", graphs_counted=False))
    assert outside.kv == found.kv  # as in eager execution: the graphs come out of the rest
    assert outside.cuda_graphs > 0


@pytest.mark.parametrize(
    ("model", "settings", "kv_gib", "tokens"),
    [
        # start-up logs of vLLM 0.19.0 on H100s at 0.95 of their memory, 1,024 sequences, 8,192 tokens a step
        ("Qwen/Qwen3-8B", {}, 57.50, 418_688),
        ("Qwen/Qwen2.5-72B-Instruct", {"tp": 2}, 3.04, 19_920),
        ("RedHatAI/Llama-3.3-70B-Instruct-fp8-dynamic", {"tp": 4}, 54.09, 708_992),
        ("meta-llama/Llama-3.1-8B-Instruct", {"pp": 4}, 68.89, 2_257_264),
        ("deepseek-ai/DeepSeek-V2-Lite-Chat", {}, 43.61, 1_505_552),
        ("google/gemma-2-9b-it", {}, 54.12, 168_880),
        ("google/gemma-3-27b-it", {}, 19.53, 36_560),
        ("Qwen/Qwen1.5-MoE-A2.7B", {}, 45.83, 250_304),
        ("meta-llama/Llama-4-Scout-17B-16E-Instruct", {"tp": 4}, 16.75, 365_968),
        ("Llama-3.1-8B-Instruct", {"kv_dtype": "fp8"}, 58.11, 952_032),
        ("Llama-3.1-8B-Instruct", {"dtype": "fp32"}, 42.80, 175_296),
    ],
)
def test_kv_cache_is_near_what_vllm_logged(model: str, settings: dict[str, Any], kv_gib: float, tokens: int) -> None:
    found = budget(
        Deployment(
            find_any(model),
            H100,
            max_model_len=8192,
            max_num_seqs=1024,
            max_num_batched_tokens=8192,
            gpu_memory_utilization=0.95,
            graphs_counted=False,
            **settings,
        )
    )
    assert found.kv / GIB == pytest.approx(kv_gib, rel=0.035)
    assert found.kv_tokens == pytest.approx(tokens, rel=0.035)


def test_slots_of_a_window_grow_until_it_is_full() -> None:
    found = budget(deployed("gpt-oss-20b"))
    block = found.layout.block_bytes
    assert found.layout.groups == 2  # 12 layers with full attention, 12 with a window of 128
    assert found.kv_bytes(16) == 2 * block
    assert found.kv_bytes(4096) == (256 + 9) * block  # 127 tokens and one in flight, over at most 9 blocks
    assert found.kv_bytes(8192) - found.kv_bytes(4096) == 256 * block
    assert found.slots(4096).exact == pytest.approx(found.num_blocks / 265)
    with pytest.raises(ValueError, match="1 token or more, not 0"):
        found.slots(0)


def test_a_state_is_as_large_however_long_the_sequence() -> None:
    with_cache = budget(deployed("qwen3-next-80b-a3b", tp=4))
    found = budget(deployed("qwen3-next-80b-a3b", tp=4, prefix_caching=False))
    cut = found.layout
    # vLLM makes blocks so large that a layer's state fits into one
    assert cut.block_size * 2 * 256 * 2 >= 2_146_304 / 4 > (cut.block_size - 16) * 2 * 256 * 2
    assert (cut.full, cut.linear) == (1, 3)
    assert found.kv_bytes(1) == 4 * cut.block_bytes
    assert with_cache.kv_bytes(1) == 7 * cut.block_bytes
    assert found.kv_bytes(cut.block_size * 10) == 13 * cut.block_bytes
    assert found.kv_bytes_per_token == 12 * 2 * 256 * 2


def test_layers_with_heads_of_two_sizes_share_blocks() -> None:
    shape = replace(
        find_any("layers=60,hidden=5376,heads=32,kv_heads=4,head_dim=512,intermediate=21504,vocab=262144,window=1024"),
        window_layers=50, window_kv_heads=16, window_head_dim=256, tied=True,
    )  # fmt: skip
    cut = budget(Deployment(shape, H100)).layout
    assert (cut.window_tokens, cut.full_tokens) == (16, 32)
    assert (cut.full, cut.windowed) == (1, 5)
    assert shape.kv_bytes_per_token() == 10 * 2 * 4 * 512 * 2 + 50 * 2 * 16 * 256 * 2


def test_the_formulas_come_with_their_values() -> None:
    found = budget(deployed("llama-3.3-70b", tp=8))
    lines = {f.name: f for f in found.formulas}
    assert lines["KV bytes per token"].text() == (
        "KV bytes per token = 2 · layers · kv_heads · head_dim · bytes = 2 · 80 · 1 · 128 · 2 = 40,960 B"
    )
    assert lines["KV cache"].result == found.kv
    assert lines["weights"].result == found.weights
    values = lines["KV cache"].values
    taken = [float(v) for k, v in values.items() if k != "usable"]
    assert float(values["usable"]) - sum(taken) == found.kv
    slots = found.slots_formula(4096)
    assert slots.text().endswith(f"/ 256 = {slots.result:,.4g} sequences")
    assert slots.result == found.slots(4096).exact

    deepseek = {f.name: f for f in budget(deployed("deepseek-v3.2", "h200", tp=8)).formulas}
    assert deepseek["KV bytes per token"].result == 61 * ((512 + 64) * 2 + 132)
    jamba = {f.name: f for f in budget(deployed("jamba-v0.1", tp=4)).formulas}
    assert jamba["state per sequence"].result == 28 * (8192 * 3 * 2 + 8192 * 16 * 2) / 4
    gemma = {f.name: f for f in budget(deployed("gemma-3-12b")).formulas}
    assert gemma["KV bytes per token of the last 1,024"].result == 2 * 40 * 8 * 256 * 2


def test_what_does_not_fit_says_by_how_much_and_what_would() -> None:
    with pytest.raises(DoesNotFit, match=r"are missing on each; what would fit: tp 2, .* fp8 weights") as refused:
        budget(deployed("llama-3.1-70b"))
    assert refused.value.short == pytest.approx(67e9, rel=0.02)
    for fix in refused.value.fixes:
        assert budget(fix.deployment).kv_tokens == fix.kv_tokens > 0
    with pytest.raises(
        DoesNotFit, match=r"a sequence of [0-9,]+ tokens, not one of 40,000; .* max_model_len"
    ) as refused:
        budget(deployed("qwen3-32b", "a100", max_model_len=40_000))
    shorter = refused.value.fixes[-1].deployment
    assert budget(shorter).longest == shorter.max_model_len
    with pytest.raises(DoesNotFit):
        budget(replace(shorter, max_model_len=(shorter.max_model_len or 0) + 16))
    with pytest.raises(DoesNotFit, match=r"missing on each$"):  # nothing that is tried is enough
        budget(deployed("params=900e12,layers=80,kv_heads=8,head_dim=128"))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"tp": 5}, "64 attention heads, which tp 5 does not divide"),
        ({"tp": 0}, "tp must be at least 1"),
        ({"pp": 65}, "pp 65 is more than the 64 layers"),
        ({"max_model_len": 50_000}, r"max_model_len 50,000 is not within .* 40,960 .*; rope scaling by 2 \(YaRN\)"),
        ({"max_model_len": 0}, "max_model_len 0 is not within"),
        ({"gpu_memory_utilization": 1.1}, "gpu_memory_utilization must be more than 0 and at most 1, not 1.1"),
        ({"dtype": "fp7"}, "dtype 'fp7' is unknown"),
        ({"kv_dtype": "fp7"}, "dtype 'fp7' is unknown"),
        ({"block_size": 0}, "block_size must be at least 1"),
    ],
)
def test_settings_that_no_engine_takes(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        budget(deployed("qwen3-32b", "h200", **settings))


def test_what_tp_cannot_divide() -> None:
    with pytest.raises(ValueError, match="vocabulary of 49,152, which tp 5 does not divide"):
        budget(deployed("smollm2-360m", tp=5))
    with pytest.raises(ValueError, match="MLPs of width 14,337, which tp 2 does not divide"):
        budget(Deployment(replace(find_any("llama-3.1-8b"), intermediate=14_337), H100, tp=2))
    with pytest.raises(ValueError, match="8 KV heads, neither split nor copied evenly to tp 12"):
        budget(deployed("mistral-large-instruct-2407", tp=12))
    with pytest.raises(ValueError, match="ep 128 is not within 1 and the 8 experts"):
        budget(deployed("mixtral-8x7b", ep=128))
    stretched = budget(deployed("qwen3-32b", "h200", max_model_len=81_920, rope_scaling=2.0))
    assert stretched.longest == 81_920


def test_ranks_share_weights() -> None:
    one = budget(deployed("deepseek-v3", "b200", tp=8))
    two = budget(deployed("deepseek-v3", "b200", tp=8, dp=2))
    assert two.weights_by_part["experts"] == pytest.approx(one.weights_by_part["experts"] / 2, rel=1e-9)
    assert two.weights_by_part["attention"] == one.weights_by_part["attention"]
    assert one.kv_bytes_per_token * 8 == one.replica_kv_bytes_per_token  # the latent is on every rank
    wide = budget(deployed("llama-3.3-70b", tp=16))
    assert wide.replica_kv_bytes_per_token == 2 * budget(deployed("llama-3.3-70b", tp=8)).replica_kv_bytes_per_token


def test_finer_groups_of_int4_weigh_more() -> None:
    coarse = budget(deployed("llama-3.1-8b", dtype="awq"))
    fine = budget(deployed("llama-3.1-8b", dtype="awq", group_size=32))
    linear = coarse.deployment.model.linear_parameters()
    assert fine.weights - coarse.weights == pytest.approx(linear * 20 / 8 * (1 / 32 - 1 / 128), rel=1e-6)


def test_a_roofline_reads_no_more_than_a_window_and_no_growing_state() -> None:
    def growth(model: str) -> float:
        steps = RooflineSteps(find_any(model), H100)
        return steps.decode(8, 8 * 32_768, 32_768) - steps.decode(8, 8 * 16_384, 16_384)

    gemma = find_any("gemma-3-12b")
    full = replace(gemma, window=0, window_layers=0)
    per_token = RooflineSteps(full, H100).decode(1, 20_000, 20_000) - RooflineSteps(full, H100).decode(
        1, 10_000, 10_000
    )
    assert growth("gemma-3-12b") == pytest.approx(per_token / 10_000 * 8 * 16_384 * 8 / 48, rel=1e-6)
    steps = RooflineSteps(gemma, H100)
    chunks = [Chunk(1024, 0), Chunk(1024, 31_000)]
    assert steps.mixed(chunks, 4, 40_000, 10_000) < RooflineSteps(full, H100).mixed(chunks, 4, 40_000, 10_000)
    mamba = RooflineSteps(find_any("jamba-v0.1"), H100)
    kept = replace(find_any("jamba-v0.1"), state_bytes=0)
    states = mamba.decode(8, 800, 100) - RooflineSteps(kept, H100).decode(8, 800, 100)
    assert states == pytest.approx(2 * 8 * 28 * (8192 * 3 * 2 + 8192 * 16 * 2) / (H100.bandwidth * 0.8), rel=1e-6)

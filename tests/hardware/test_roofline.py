"""Step times from published numbers: the bytes and the products that must be there."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.hardware.catalogue import find_gpu, find_model
from forebay.hardware.roofline import BANDWIDTH_EFFICIENCY, FLOPS_EFFICIENCY, LAYER_SECONDS, RooflineSteps
from forebay.hardware.steptime import Chunk

LLAMA, H100 = find_model("llama-3.1-8b"), find_gpu("h100_sxm")


def test_one_sequence_reads_all_weights_but_the_embedding() -> None:
    steps = RooflineSteps(LLAMA, H100)
    weights = 2 * (LLAMA.linear_parameters() + LLAMA.vocab * LLAMA.hidden)
    want = (weights + 1000 * 131_072) / (H100.bandwidth * BANDWIDTH_EFFICIENCY) + 32 * LAYER_SECONDS
    assert steps.decode(1, 1000, 1000) == pytest.approx(want)


def test_a_long_prefill_is_bound_by_products() -> None:
    steps = RooflineSteps(LLAMA, H100)
    rate = H100.bf16 * FLOPS_EFFICIENCY
    head = 2 * LLAMA.vocab * LLAMA.hidden / (H100.bandwidth * BANDWIDTH_EFFICIENCY)
    pairs = 8192 * 4096
    want = (2 * LLAMA.linear_parameters() * 8192 + 4 * 32 * 128 * 32 * pairs) / rate + head + 32 * LAYER_SECONDS
    assert steps.mixed([Chunk(8192, 0)], 0, 0, 0) == pytest.approx(want)


def test_within_a_quarter_of_what_was_measured_for_llama_on_two_gpus() -> None:
    # sums of measured kernels (LLMServingSim's tables): ms of a decode of 32 × 1,000 tokens, of 2,048 tokens of prefill
    for gpu, decode, prefill in (("rtx_4090", 23.81, 193.0), ("rtx_pro_6000", 15.04, 82.95)):
        steps = RooflineSteps(LLAMA, find_gpu(gpu))
        assert 1e3 * steps.decode(32, 32_000, 1000) == pytest.approx(decode, rel=0.25)
        assert 1e3 * steps.mixed([Chunk(2048, 0)], 0, 0, 0) == pytest.approx(prefill, rel=0.25)


def test_quantisation_and_more_gpus_help_where_they_should() -> None:
    plain = RooflineSteps(LLAMA, H100)
    fp8, int4 = RooflineSteps(LLAMA, H100, dtype="fp8"), RooflineSteps(LLAMA, H100, dtype="int4")
    assert int4.decode(1, 1, 1) < fp8.decode(1, 1, 1) < plain.decode(1, 1, 1)
    long = [Chunk(8192, 0)]
    assert fp8.mixed(long, 0, 0, 0) < plain.mixed(long, 0, 0, 0)
    assert int4.mixed(long, 0, 0, 0) == pytest.approx(plain.mixed(long, 0, 0, 0), rel=1e-6)  # computes in 16 bits
    kv8 = RooflineSteps(LLAMA, H100, kv_dtype="fp8")
    saved = plain.decode(64, 640_000, 10_000) - kv8.decode(64, 640_000, 10_000)
    assert saved == pytest.approx(640_000 * 65_536 / (H100.bandwidth * BANDWIDTH_EFFICIENCY))
    assert plain.decode(1, 1, 1) / 2 < RooflineSteps(LLAMA, H100, tp=2).decode(1, 1, 1) < plain.decode(1, 1, 1)


def test_few_tokens_touch_few_experts() -> None:
    steps = RooflineSteps(find_model("qwen3-30b-a3b"), H100)
    assert steps.decode(1, 1, 1) < steps.decode(8, 8, 1) / 2
    assert steps.decode(128, 128, 1) < 1.1 * steps.decode(64, 64, 1)  # nearly all are read at 64 tokens


@pytest.mark.parametrize("model", ["llama-3.1-8b", "qwen3-30b-a3b", "deepseek-v3", "gpt-oss-20b"])
@pytest.mark.parametrize("tp", [1, 8])
def test_steps_never_get_cheaper_with_more_work(model: str, tp: int) -> None:
    steps = RooflineSteps(find_model(model), H100, tp=tp)

    @given(n=st.integers(1, 500), kv=st.integers(1, 100_000), chunk=st.integers(1, 9000), more=st.integers(0, 500))
    def check(n: int, kv: int, chunk: int, more: int) -> None:
        one = steps.decode(n, n * kv, kv)
        assert 0 < one <= steps.decode(n, n * kv + more, kv + more)
        assert one <= steps.decode(n + 1, n * kv, kv) * (1 + 1e-12)
        beside = steps.mixed([Chunk(chunk, kv)], n, n * kv, kv)
        assert one < beside <= steps.mixed([Chunk(chunk + more, kv + more)], n, n * kv, kv)

    check()
    assert steps.warnings == ()


def test_impossible_settings_are_refused() -> None:
    with pytest.raises(ValueError, match="tp must be 1 or more"):
        RooflineSteps(LLAMA, H100, tp=0)
    with pytest.raises(ValueError, match=r"efficiencies in \(0, 1\]: 1, 1.5"):
        RooflineSteps(LLAMA, H100, flops_efficiency=1.5)

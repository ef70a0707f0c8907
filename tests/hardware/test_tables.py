"""Step times from tables: exact where measured, linear between, and loud outside."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.hardware.bundle import load_tables
from forebay.hardware.catalogue import find_gpu, find_model
from forebay.hardware.comm import allgather_seconds, allreduce_seconds
from forebay.hardware.csvtable import BadProfile
from forebay.hardware.steptime import Chunk, OutOfProfile
from forebay.hardware.tables import CAPTURE_SIZES, MeasuredSteps, capture_sizes
from hardware_bundles import BLOCK, META, attention, dense, write

Make = Callable[..., Path]
LAYERS = 32


def expected_dense(tokens: float) -> float:
    block = 2 * dense("layernorm", tokens) + sum(dense(name, tokens) for name in BLOCK)
    return dense("embedding", tokens) + LAYERS * block + dense("final_layernorm", tokens)


def expected(chunk: float, context: float, n: int, kv: float, *, padded: float | None = None) -> float:
    """Seconds of a step with one chunk (or none) and n decodes of equal length."""
    sequences = n + (1 if chunk else 0)
    tokens = padded or chunk + n
    return (expected_dense(tokens) + 2 * (100 + sequences) + LAYERS * attention(chunk, context, n, kv)) * 1e-6


def test_grid_points_and_between_are_what_was_measured(make_bundle: Make) -> None:
    steps = load_tables(make_bundle(), pad=())
    for n, kv in ((1, 16), (4, 1024), (64, 4096), (10, 300), (33, 2000)):
        assert steps.decode(n, n * kv, kv) == pytest.approx(expected(0, 0, n, kv), rel=1e-9)
    for chunk, context in ((16, 0), (512, 2048), (100, 300)):
        assert steps.mixed([Chunk(chunk, context)], 0, 0, 0) == pytest.approx(expected(chunk, context, 0, 0), rel=1e-9)
        for n, kv in ((4, 128), (10, 777)):
            got = steps.mixed([Chunk(chunk, context)], n, n * kv, kv)
            assert got == pytest.approx(expected(chunk, context, n, kv), rel=1e-9)
    assert steps.warnings == []


def test_host_time_is_added_once(make_bundle: Make) -> None:
    folder = make_bundle()
    plain, hosted = load_tables(folder), load_tables(folder, host=0.002)
    assert hosted.decode(4, 400, 100) - plain.decode(4, 400, 100) == pytest.approx(0.002)
    chunks = [Chunk(16, 0), Chunk(16, 0)]
    assert hosted.mixed(chunks, 4, 400, 100) - plain.mixed(chunks, 4, 400, 100) == pytest.approx(0.002)


def test_steps_are_padded_to_the_next_graph(make_bundle: Make) -> None:
    folder = make_bundle()
    padded, bare = load_tables(folder), load_tables(folder, pad=())
    assert padded.decode(17, 17 * 64, 64) == pytest.approx(expected(0, 0, 17, 64, padded=24))
    assert padded.decode(24, 24 * 64, 64) == bare.decode(24, 24 * 64, 64)
    assert padded.mixed([Chunk(100, 0)], 3, 192, 64) == pytest.approx(expected(100, 0, 3, 64, padded=104))
    assert (CAPTURE_SIZES[-1], len(CAPTURE_SIZES)) == (512, 51)  # as in a vLLM 0.19 configuration
    assert capture_sizes() == CAPTURE_SIZES
    assert (capture_sizes(128)[-1], capture_sizes(3), capture_sizes(256, 100)[-1]) == (256, (1, 2, 4), 96)


def test_chunks_together_do_the_attention_of_one_of_equal_work(make_bundle: Make) -> None:
    steps = load_tables(make_bundle(), pad=())
    two = [Chunk(100, 1000), Chunk(100, 1200)]
    # products: 100·1050 + 100·1250 = 230,000 = 200·(K + 100) with K = 1050
    same = steps.mixed([Chunk(200, 1050)], 0, 0, 0) + 2e-6
    assert steps.mixed(two, 0, 0, 0) == pytest.approx(same)  # 2 µs: one sequence more to sample for


def test_several_prompts_from_their_start_cost_less_than_one_of_their_length(make_bundle: Make) -> None:
    steps = load_tables(make_bundle(), pad=())
    one = steps.mixed([Chunk(400, 0)], 0, 0, 0)
    four = steps.mixed([Chunk(100, 0)] * 4, 0, 0, 0)
    longest_alone = steps.mixed([Chunk(100, 0)], 0, 0, 0)
    assert longest_alone < four < one + 3 * 2e-6


def test_unequal_sequences_cost_more_by_the_fitted_alpha(make_bundle: Make) -> None:
    folder = make_bundle(
        meta=META.replace("enabled: false", "enabled: true")
        + "  bucket_axes:\n"
        + "    n_bins: [0, 16, 1000000]\n    n_labels: [n<=16, n>16]\n"
        + "    skew_rate_bins: [-0.01, 0.4, 1.01]\n    skew_rate_labels: [sr<=40%, sr>40%]\n"
        + "    kv_big_bins: [0, 1024, 1000000000]\n    kv_big_labels: [kvB<=1k, kvB>1k]\n"
        + "    kp_bins: [-1, 0, 1000000000]\n    kp_labels: [kp=0, kp>0]\n"
        + "  per_tp:\n    1: {alpha_default: 0.05}\n"
    )
    header = ("pc", "n_label", "skew_rate_label", "kv_big_label", "kp_label", "alpha", "n_samples")
    rows = [
        (0, "n<=16", "sr<=40%", "kvB<=1k", "kp=0", 0.5, 4),
        (16, "n<=16", "sr<=40%", "kvB<=1k", "kp>0", -0.25, 4),
    ]
    write(folder / "tp1" / "skew_fit.csv", header, rows)
    steps = load_tables(folder, pad=())
    mean, longest = expected(0, 0, 8, 200), expected(0, 0, 8, 1000)
    assert steps.decode(8, 1600, 200) == pytest.approx(mean)
    assert steps.decode(8, 1600, 1000) == pytest.approx(mean + 0.5 * (longest - mean))
    mean, longest = expected(0, 0, 32, 200), expected(0, 0, 32, 1000)
    assert steps.decode(32, 6400, 1000) == pytest.approx(mean + 0.05 * (longest - mean))  # no such bucket
    mean, longest = expected(16, 64, 8, 200), expected(16, 64, 8, 1000)
    assert steps.mixed([Chunk(16, 64)], 8, 1600, 1000) == pytest.approx(mean - 0.25 * (longest - mean))
    assert load_tables(folder, pad=(), skew=False).decode(8, 1600, 1000) == pytest.approx(expected(0, 0, 8, 200))


def test_beyond_the_tables_is_extrapolated_and_said_once_an_axis(make_bundle: Make) -> None:
    steps = load_tables(make_bundle(), pad=())
    for kv in (8192, 9000, 16384):
        assert steps.decode(4, 4 * kv, kv) == pytest.approx(expected(0, 0, 4, kv), rel=1e-9)
    assert steps.decode(128, 128 * 64, 64) == pytest.approx(expected(0, 0, 128, 64), rel=1e-9)
    assert steps.mixed([Chunk(700, 0)], 0, 0, 0) == pytest.approx(expected(700, 0, 0, 0), rel=0.2)
    assert len(steps.warnings) == len(set(steps.warnings)) == 4
    far = "KV tokens of a sequence 16,384 where 4,096 is the most that was measured, 300 % beyond"
    assert f"RTX4090/Llama-3.1-8B/tp1: {far}; extrapolated" in steps.warnings


def test_absurdly_long_axes_cost_no_memory(make_bundle: Make) -> None:
    folder = make_bundle()
    path = folder / "tp1" / "dense.csv"
    path.write_text(path.read_text().replace(",1024,", ",1000000000000,"))
    steps = load_tables(folder, pad=())
    assert steps.mixed([Chunk(400, 0)], 40_000, 40_000, 1) > 0
    assert not any("tokens in a step" in line for line in steps.warnings)


@pytest.mark.parametrize(
    ("call", "axis"),
    [
        (lambda s: s.decode(65, 65 * 64, 64), "sequences that decode 65 where 64"),
        (lambda s: s.decode(2, 10_000, 9_000), "KV tokens of a sequence 9,000 where 4,096"),
        (lambda s: s.mixed([Chunk(513, 0)], 0, 0, 0), "prefill tokens in a step 513 where 512"),
        (lambda s: s.mixed([Chunk(16, 3000)], 0, 0, 0), "KV tokens before a chunk 3,000 where 2,048"),
        (lambda s: s.mixed([Chunk(16, 0)], 65, 6500, 100), "sequences in a step 66 where 64"),
    ],
)
def test_a_strict_profile_refuses_what_it_does_not_cover(
    make_bundle: Make, call: Callable[[MeasuredSteps], float], axis: str
) -> None:
    with pytest.raises(OutOfProfile, match=axis):
        call(load_tables(make_bundle(), pad=(), strict=True))


def test_steps_never_get_cheaper_with_more_work(make_bundle: Make) -> None:
    steps = load_tables(make_bundle())

    @given(
        n=st.integers(1, 200),
        kv=st.integers(1, 9000),
        more=st.integers(0, 500),
        chunk=st.integers(1, 1000),
        before=st.integers(0, 5000),
    )
    def check(n: int, kv: int, more: int, chunk: int, before: int) -> None:
        assert 0 < steps.decode(n, n * kv, kv) <= steps.decode(n, n * (kv + more), kv + more) + 1e-12
        assert steps.decode(n, n * kv, kv) <= steps.decode(n + 1, (n + 1) * kv, kv) + 1e-12
        one = steps.mixed([Chunk(chunk, before)], n, n * kv, kv)
        assert one <= steps.mixed([Chunk(chunk + more, before)], n, n * kv, kv) + 1e-12
        assert one <= steps.mixed([Chunk(chunk, before + more)], n, n * kv, kv) + 1e-12
        assert steps.mixed([Chunk(chunk, before)], 0, 0, 0) <= one + 1e-12

    check()
    assert len(steps.warnings) <= 7  # one an axis


def test_two_interleaved_sweeps_keep_every_measured_point(make_bundle: Make) -> None:
    folder = make_bundle()
    path = folder / "tp1" / "attention.csv"
    points = {(0, 0, n, kv) for n in (1, 4) for kv in (16, 128)} | {(c, 0, 0, 0) for c in (16, 256)}
    points |= {(c, k, n, kv) for c in (16, 256) for k in (0, 512) for n in (1, 4) for kv in (16, 128)}
    points |= {(c, k, n, kv) for c in (24, 100) for k in (0, 300) for n in (2, 3) for kv in (20, 100)}
    header = ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode", "time_us")
    write(path, header, [(*p, attention(*p)) for p in sorted(points)])
    steps = load_tables(folder, pad=())
    for chunk, context, n, kv in points:
        if chunk and n:
            got = steps.mixed([Chunk(chunk, context)], n, n * kv, kv)
            assert got == pytest.approx(expected(chunk, context, n, kv), rel=1e-9)


def test_two_ranks_pay_for_their_collectives(make_bundle: Make) -> None:
    folder = make_bundle(tp=2)
    gpu = replace(find_gpu("rtx_4090"), link=10e9, link_latency=1e-5)
    steps = load_tables(folder, tp=2, gpu=gpu, pad=())
    reduce = 1e-5 + 4 * 4096 * 2 / 10e9  # 2 (p - 1) / p is 1 for two ranks
    gather = 1e-5 + 0.5 * 4 * 128256 * 2 / 10e9
    want = expected(0, 0, 4, 128) + (1 + 2 * LAYERS) * reduce + gather
    assert steps.decode(4, 512, 128) == pytest.approx(want)


def test_experts_are_read_at_those_that_the_tokens_touch(make_bundle: Make) -> None:
    layers = ("qkv_proj", "qk_norm", "rotary_emb", "o_proj")
    folder = make_bundle(meta=META.replace("meta-llama/Llama-3.1-8B", "Qwen/Qwen3-30B-A3B"), layers=layers, moe=True)
    steps = load_tables(folder, pad=())
    model = find_model("Qwen/Qwen3-30B-A3B")

    def want(tokens: int) -> float:
        touched = 128 * (1 - (1 - 8 / 128) ** tokens)
        block = 2 * dense("layernorm", tokens) + sum(dense(name, tokens) for name in layers)
        block += 10 + 6 * touched + 0.5 * tokens + attention(0, 0, tokens, 128)
        return (dense("embedding", tokens) + model.layers * block + dense("final_layernorm", tokens)) * 1e-6

    for n in (1, 8, 64):
        sampled = 2 * (100 + n) * 1e-6
        assert steps.decode(n, n * 128, 128) == pytest.approx(want(n) + sampled)


def test_collectives() -> None:
    assert allreduce_seconds(1e6, 1, 1e9, 1e-5) == 0.0
    assert allreduce_seconds(1e6, 4, 1e9, 1e-5) == pytest.approx(3e-5 + 1.5e-3)
    assert allreduce_seconds(1e6, 4, 1e9, 1e-5, switched=True) == pytest.approx(1e-5 + 1.5e-3)
    assert allgather_seconds(1e6, 4, 1e9, 1e-5) == pytest.approx(3e-5 + 0.75e-3)


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        ("dense.csv", "layer,tokens,time_us", "layer,tokens,us", r"dense\.csv: line 1: column time_us is missing"),
        ("dense.csv", "embedding,1,3.25", "embedding,1,nan", r"dense\.csv: line 2: time_us is 'nan' where a finite"),
        ("dense.csv", "embedding,1,3.25", "embedding,1,-3", r"dense\.csv: line 2: time_us is -3 where 0 or more"),
        ("dense.csv", "embedding,1,3.25", "embedding,1,fast", r"dense\.csv: line 2: time_us is 'fast' where a number"),
        (
            "dense.csv",
            "embedding,1,3.25",
            "embedding,9,3.25",
            r"dense\.csv: line 3: tokens 2 of embedding does not come",
        ),
        ("dense.csv", "embedding,1,3.25", "embedding,1", r"dense\.csv: line 2: has 2 fields where the header has 3"),
        ("dense.csv", "embedding,", "embeding,", r"dense\.csv: layer embedding is missing; found act_fn"),
        ("dense.csv", "act_fn,", "act,", r"dense\.csv: layer act_fn is missing"),
        ("per_sequence.csv", "lm_head", "head", r"per_sequence\.csv: layer lm_head is missing"),
        ("attention.csv", "0,0,1,128,", "0,0,1,8,", r"attention\.csv: line 3: .* does not come after the line before"),
        ("attention.csv", "\n0,0,", "\n16,9,", "does not come after|has no line of decode alone"),
    ],
)
def test_a_bad_file_is_named_with_its_line(make_bundle: Make, file: str, old: str, new: str, message: str) -> None:
    folder = make_bundle()
    path = folder / "tp1" / file
    text = path.read_text().replace("\r\n", "\n")
    assert old in text
    path.write_text(text.replace(old, new))
    with pytest.raises(BadProfile, match=message):
        load_tables(folder)


def test_missing_and_empty_files_are_named(make_bundle: Make) -> None:
    folder = make_bundle()
    with pytest.raises(BadProfile, match="has no tp4; found tp1"):
        load_tables(folder, tp=4)
    (folder / "tp1" / "attention.csv").write_text("")
    with pytest.raises(BadProfile, match=r"attention\.csv: is empty; its first line must name the columns"):
        load_tables(folder)
    (folder / "tp1" / "attention.csv").write_text("prefill_chunk,kv_prefill,n_decode,kv_decode,time_us\n")
    with pytest.raises(BadProfile, match=r"attention\.csv: holds no rows"):
        load_tables(folder)
    (folder / "tp1" / "attention.csv").write_text("x" * 1_000_000)
    with pytest.raises(BadProfile, match=r"attention\.csv: line 1"):
        load_tables(folder)
    (folder / "tp1" / "attention.csv").unlink()
    with pytest.raises(BadProfile, match=r"attention\.csv: cannot be read: No such file"):
        load_tables(folder)
    (folder / "meta.yaml").write_text("model: nobody/knows-this\n")
    with pytest.raises(BadProfile, match=r"meta\.yaml: model: model 'nobody/knows-this' is unknown"):
        load_tables(folder)
    shutil.rmtree(folder)
    with pytest.raises(BadProfile, match=r"meta\.yaml: cannot be read"):
        load_tables(folder)

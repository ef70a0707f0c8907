"""A fitted profile: its formula, its file, and what lies outside of it."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from forebay.hardware.fitted import (
    Coefficients,
    EngineFacts,
    FitError,
    FittedError,
    FittedProfile,
    FittedStepTime,
    Host,
    Ranges,
    load_fitted,
    read,
    save,
)
from forebay.hardware.steptime import Chunk, OutOfProfile

PROFILE = FittedProfile(
    engine=EngineFacts("vllm", "0.32.0", "tiny", 128, 174_720, 8, 1_024, 4_096, False),
    date="2026-01-02T03:04:05+00:00",
    coefficients=Coefficients(((1, 0.008), (8, 0.015), (1_024, 0.42)), 0.001, 0.002, 1e-6, 1e-9),
    host=Host(0.005, 1e-5),
    ranges=Ranges(sequences=8, context=8_000, tokens=1_024, chunk_context=2_048),
    error=FitError(0.999, {"prefill": 0.01, "decode": 0.02}, 20, 60),
    notes=("max_num_seqs was measured",),
)


def changed(**fields: Any) -> FittedProfile:
    return dataclasses.replace(PROFILE, **fields)


def test_a_step_of_decoding_is_the_curve_the_sequences_and_the_context() -> None:
    steps = FittedStepTime(PROFILE)
    assert steps.decode(1, 100, 100) == pytest.approx(0.008 + 0.001 + 100e-6)
    assert steps.decode(4, 4_000, 2_000) == pytest.approx(0.011 + 0.004 + 4_000e-6), "straight between two points"
    assert not steps.warnings


def test_a_mixed_step_adds_chunks_ends_and_attention() -> None:
    steps = FittedStepTime(PROFILE)
    found = steps.mixed([Chunk(100, 50), Chunk(408, 0, last=False)], 8, 1_000, 200)
    curve = 0.015 + (0.42 - 0.015) * (516 - 8) / (1_024 - 8)
    pairs = 100 * (50 + 50) + 408 * 204
    assert found == pytest.approx(curve + 9 * 0.001 + 2 * 0.002 + 1_000e-6 + pairs * 1e-9)
    assert not steps.warnings


def test_beyond_the_last_point_the_curve_goes_on_and_the_axis_is_named_once() -> None:
    steps = FittedStepTime(PROFILE)
    inside = steps.mixed([Chunk(1_024, 0)], 0, 0, 0)
    outside = steps.mixed([Chunk(2_040, 0)], 0, 0, 0)
    pairs = (2_040**2 - 1_024**2) / 2
    assert outside - inside == pytest.approx(0.42 - 0.015 + pairs * 1e-9)
    steps.mixed([Chunk(1_500, 0)], 0, 0, 0)
    assert steps.decode(16, 9_000, 1_000) > steps.decode(8, 8_000, 1_000)
    assert list(steps.warnings) == [
        "the fit to tiny covers up to 1,024 tokens in a step; 2,040 is 2.0 × that",
        "the fit to tiny covers up to 8 sequences that decode; 16 is 2.0 × that",
        "the fit to tiny covers up to 8,000 KV tokens in sum; 9,000 is 1.1 × that",
    ]


def test_a_curve_that_falls_at_its_end_is_flat_beyond_it() -> None:
    falls = dataclasses.replace(PROFILE.coefficients, curve=((1, 0.010), (2, 0.008)))
    steps = FittedStepTime(changed(coefficients=falls))
    assert steps.decode(100, 0, 0) == pytest.approx(0.008 + 100 * 0.001)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda s: s.decode(9, 0, 0), "8 sequences"),
        (lambda s: s.decode(8, 8_001, 0), "8,000 KV tokens in sum"),
        (lambda s: s.mixed([Chunk(1_025, 0)], 0, 0, 0), "1,024 tokens in a step"),
        (lambda s: s.mixed([Chunk(10, 2_039)], 0, 0, 0), "2,048 KV tokens before the end of a chunk"),
        (lambda s: s.mixed([Chunk(1, 0)], 9, 0, 0), "8 sequences"),
    ],
)
def test_a_strict_one_refuses(call: Callable[[FittedStepTime], float], says: str) -> None:
    with pytest.raises(OutOfProfile, match=says):
        call(FittedStepTime(PROFILE, strict=True))


def test_it_is_fast_enough_for_a_simulation() -> None:
    steps, n = FittedStepTime(PROFILE), 20_000
    best = min(_seconds(lambda: steps.decode(7, 4_000, 900), n) for _ in range(5))
    assert best / n < 20e-6, "2 µs where nothing else runs; a loaded machine gets ten times that"


def _seconds(call: Callable[[], float], n: int) -> float:
    began = time.perf_counter()
    for _ in range(n):
        call()
    return time.perf_counter() - began


# --- the file ---------------------------------------------------------------------------------------------------------


def test_a_profile_comes_back_from_its_file_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "profile.yaml"
    save(PROFILE, path)
    assert read(path) == PROFILE
    assert [p.name for p in tmp_path.iterdir()] == ["profile.yaml"]
    text = path.read_text()
    assert text.startswith("forebay_profile: 1\nkind: fitted\n")
    steps = load_fitted(path, strict=True)
    assert steps.strict and steps.profile == PROFILE


def test_what_is_not_known_comes_back_unknown(tmp_path: Path) -> None:
    bare = changed(engine=EngineFacts(model="m"), notes=(), error=FitError(-0.5, {}, 1, 1))
    save(bare, tmp_path / "p.yaml")
    assert read(tmp_path / "p.yaml") == bare


def write(path: Path, change: Callable[[Any], object]) -> Path:
    save(PROFILE, path)
    yaml = YAML(typ="safe", pure=True)
    tree = yaml.load(path)
    change(tree)
    with path.open("w") as file:
        yaml.dump(tree, file)
    return path


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda t: t.pop("forebay_profile"), "forebay_profile must be 1, not nothing"),
        (lambda t: t.update(kind="table"), "kind must be 'fitted', not 'table'"),
        (lambda t: t.pop("engine"), "engine must be a mapping, not nothing"),
        (lambda t: t["engine"].update(block_size="big"), "engine.block_size must be a whole number .*'big'"),
        (lambda t: t["engine"].update(async_scheduling=3), "engine.async_scheduling must be true, false or nothing"),
        (lambda t: t["engine"].update(model=[1]), "engine.model must be text, not a list of 1"),
        (lambda t: t["coefficients"].update(curve=[]), "coefficients.curve must have at least one point"),
        (lambda t: t["coefficients"].update(curve=[[1, 2, 3]]), r"curve\[0\] must be a pair of tokens and seconds"),
        (lambda t: t["coefficients"].update(curve=[[4, 0.1], [4, 0.2]]), r"curve\[1\] must have more than 4 tokens"),
        (lambda t: t["coefficients"].update(curve=[[1, -0.1]]), r"curve\[0\] must have 0 to 10,000 seconds, not -0.1"),
        (lambda t: t["coefficients"].update(curve=[[1, float("nan")]]), r"curve\[0\] must be a number"),
        (
            lambda t: t["coefficients"].update(per_chunk=-1),
            "coefficients.per_chunk must be 0 to 10,000 seconds, not -1",
        ),
        (lambda t: t["coefficients"].update(curve=[[1, 0]], per_sequence=0), "a step takes no time"),
        (lambda t: t["host"].pop("per_request"), "host.per_request must be a number, not nothing"),
        (lambda t: t["ranges"].update(tokens=True), "ranges.tokens must be a whole number"),
        (lambda t: t["error"].update(mape=3), "error.mape must be a mapping, not '3'"),
        (lambda t: t.update(color="red"), "color is unknown; the file has forebay_profile, kind"),
        (lambda t: t["engine"].update(max_seqs=4), "engine.max_seqs is unknown; engine has kind, version"),
        (lambda t: t["coefficients"].update(per_token=0.1), "coefficients.per_token is unknown"),
        (lambda t: t["host"].update(per_reply=0.1), "host.per_reply is unknown"),
        (lambda t: t["ranges"].update({7: 1}), "ranges.7 is unknown"),
        (lambda t: t["error"].update(rmse=0.1), "error.rmse is unknown"),
        (lambda t: t["error"]["mape"].update(swap=0.1), "error.mape.swap is unknown"),
        (lambda t: t["engine"].update(max_num_seqs=0), "engine.max_num_seqs must be at least 1 or nothing, not 0"),
        (lambda t: t["engine"].update(kv_tokens=10), "engine.kv_tokens must be at least a block of 128, not 10"),
        (
            lambda t: t["engine"].update(max_num_batched_tokens=4),
            "engine.max_num_batched_tokens must be at least engine.max_num_seqs, 8, not 4",
        ),
        (lambda t: t["coefficients"].update(per_context_token=1e300), "per_context_token must be 0 to 10,000 seconds"),
        (lambda t: t.pop("date"), "date must be a date, not nothing"),
        (lambda t: t.update(notes=[3]), r"notes\[0\] must be text, not '3'"),
    ],
)
def test_what_is_wrong_is_named_with_its_key(tmp_path: Path, change: Callable[[Any], object], says: str) -> None:
    path = write(tmp_path / "p.yaml", change)
    with pytest.raises(FittedError, match=says) as found:
        read(path)
    assert str(found.value).startswith(f"{path}: ")


def test_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(FittedError, match="cannot be read: No such file"):
        read(tmp_path / "missing.yaml")
    broken = tmp_path / "broken.yaml"
    broken.write_text("a: [1,\nb: 2")
    with pytest.raises(FittedError, match=r"broken.yaml:\d: is not YAML"):
        read(broken)
    broken.write_text("just words")
    with pytest.raises(FittedError, match="the file must be a mapping, not 'just words'"):
        read(broken)
    broken.write_bytes(b"#" * (1 << 20) + b"\nx: 1")
    with pytest.raises(FittedError, match="larger than 1,048,576 bytes"):
        read(broken)


def test_it_tells_what_it_is() -> None:
    assert repr(FittedStepTime(PROFILE)) == "<FittedStepTime tiny: 3 points, error {'prefill': 0.01, 'decode': 0.02}>"

"""Calibrating over real sockets: an engine of known step times, and the emulated one."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from engine_process import EngineProcess
from forebay.cli.main import run
from forebay.hardware.fitted import (
    Coefficients,
    EngineFacts,
    FitError,
    FittedProfile,
    FittedStepTime,
    Host,
    Ranges,
    load_fitted,
    save,
)
from forebay.hardware.steptime import Chunk
from forebay.plan.calibrate import CalibrateError, Calibration, Settings, _roundest, calibrate
from forebay.plan.calibrate_facts import cache_config
from forebay.plan.calibrate_fit import Fit
from forebay.plan.calibrate_report import print_report
from forebay.plan.calibrate_sweep import points_for
from forebay.plan.target import LoadError, Target
from step_engine import StepEngine, serving

FOREBAY = str(Path(sys.executable).with_name("forebay"))
VLLM = (
    'vllm:cache_config_info{block_size="32",enable_prefix_caching="True",kv_cache_size_tokens="64000",'
    'num_gpu_blocks="2000"} 1.0\n'
)


def times(scale: float = 1.0) -> FittedStepTime:
    curve = ((1, 0.006 * scale), (4, 0.008 * scale), (256, 0.060 * scale))
    coefficients = Coefficients(curve, 0.0004 * scale, 0.0, 1e-6 * scale, 2e-7 * scale)
    wide = Ranges(10_000, 10**9, 10**6, 10**9)
    return FittedStepTime(FittedProfile(EngineFacts(), "", coefficients, Host(), wide, FitError(1.0)))


def calibrated(engine: StepEngine, **settings: Any) -> Calibration:
    async def run() -> Calibration:
        async with serving(engine) as url:
            chosen = Settings(**{"seconds": 10.0, "max_prompt": 400, "max_batch": 8, **settings})
            return await calibrate(Target.parse(url), chosen, None)

    return asyncio.run(run())


def off(found: Calibration) -> float:
    """By how much its step times are from those of `times`, at the most."""
    true, fitted = times(), FittedStepTime(found.profile)
    pairs = [
        (fitted.decode(n, context, 0), true.decode(n, context, 0))
        for n, context in ((1, 20), (2, 500), (4, 100), (4, 1_500))
    ]
    pairs += [
        (fitted.mixed(chunks, n, n * 40, 0), true.mixed(chunks, n, n * 40, 0))
        for chunks, n in (((Chunk(100, 0),), 0), ((Chunk(200, 0),), 3), ((Chunk(100, 200),), 1))
    ]
    return max(abs(ours / theirs - 1) for ours, theirs in pairs)


def measured(
    make: Callable[[], StepEngine], fits: Callable[[Calibration], bool] = lambda found: True, **settings: Any
) -> Calibration:
    """The first of three calibrations that fits: what else this machine does can spoil one."""
    for last in (False, False, True):
        try:
            found = calibrated(make(), **settings)
        except CalibrateError:
            if last:
                raise
            continue
        if max(found.profile.error.mape.values()) < 0.05 and fits(found):
            break
    return found


@pytest.fixture(scope="module")
def found() -> Calibration:
    return measured(lambda: StepEngine(times(), metrics=VLLM), lambda found: off(found) < 0.15)


def test_the_engine_is_found_out(found: Calibration) -> None:
    assert found.profile.engine == EngineFacts("vllm", None, "steps", 32, 64_000, 4, 256, 1_000, False)


def test_known_step_times_come_back(found: Calibration) -> None:
    assert off(found) < 0.15
    assert found.profile.error.r2 > 0.98
    assert found.profile.ranges.sequences == 4


def test_the_prompts_lengths_are_known(found: Calibration) -> None:
    a_word, fixed = found.words
    assert (a_word, fixed) == (1.0, 3.0)


def test_a_server_of_chats_that_says_nothing_of_itself() -> None:
    found = measured(lambda: StepEngine(times(0.5), chat_only=True), seconds=4.0, max_prompt=100)
    assert found.profile.engine.kind == "openai" and found.profile.engine.max_num_seqs == 4
    assert any("says nothing about itself" in note for note in found.profile.notes)
    assert found.profile.engine.max_num_batched_tokens == 256


def test_what_is_given_is_taken() -> None:
    given = EngineFacts(block_size=16, kv_tokens=3_000, max_num_seqs=2, max_num_batched_tokens=128)
    settings = {"seconds": 3.0, "max_prompt": 64, "given": given}
    found = measured(lambda: StepEngine(times(0.5), metrics=VLLM), **settings).profile.engine
    assert (found.block_size, found.kv_tokens, found.max_num_seqs, found.max_num_batched_tokens) == (16, 3_000, 2, 128)


def test_a_model_that_is_not_served_is_answered_with_those_that_are() -> None:
    with pytest.raises(CalibrateError, match="serves steps; not 'other'"):
        calibrated(StepEngine(times()), model="other")


def test_an_engine_that_refuses_is_quoted() -> None:
    with pytest.raises(CalibrateError, match=r"refuses POST /v1/completions .*: status 503 no_room"):
        calibrated(StepEngine(times(), fault=503))


def test_streams_without_usage_are_no_use() -> None:
    with pytest.raises(CalibrateError, match="does not report usage"):
        calibrated(StepEngine(times(), usage=False))


def test_an_engine_too_slow_for_the_time_says_what_was_left_out() -> None:
    with pytest.raises(CalibrateError, match=r"in 0.5 s only .* give --seconds more.*left out: .*no time left"):
        calibrated(StepEngine(times(3)), seconds=0.5, max_batch=2)


def test_nobody_there() -> None:
    with pytest.raises(LoadError, match="cannot be reached"):
        asyncio.run(calibrate(Target.parse("http://127.0.0.1:9"), Settings(), None))


def test_the_cache_of_vllm_is_read_from_its_metrics() -> None:
    assert cache_config("# HELP x\n" + VLLM) == {"block_size": 32, "kv_tokens": 64_000}
    older = VLLM.replace('kv_cache_size_tokens="64000",', "")
    assert cache_config(older) == {"block_size": 32, "kv_tokens": 64_000}, "blocks times their size"
    assert cache_config("nothing") == {}


@pytest.mark.parametrize(("low", "high", "round_"), [
    (1_001, 1_040, 1_024), (1_900, 2_074, 2_048), (500, 900, 512), (7, 7, 7), (3, 100, 64),
])  # fmt: skip
def test_budgets_are_round_numbers(low: int, high: int, round_: int) -> None:
    assert _roundest(low, high) == round_


def test_points_stay_within_the_engine() -> None:
    small = EngineFacts(max_num_seqs=4, kv_tokens=400, max_model_len=300)
    points = points_for(small, 2_048, 64)
    assert len(set(points)) == len(points)
    assert max(p.prompt for p in points) <= 0.92 * 300
    assert max(p.n for p in points) <= 4
    assert all(p.n * p.context < 400 for p in points)
    assert [p.axis for p in points[:3]] == ["prefill"] * 3, "the most telling first"
    alone = points_for(dataclasses.replace(small, max_num_seqs=1), 64, 64)
    assert {p.axis for p in alone} == {"prefill", "decode"}


# --- as a shell sees it -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def engine() -> Iterator[EngineProcess]:
    process = EngineProcess(["--max-num-seqs", "4", "--kv-tokens", "32768", "--max-model-len", "1000"])
    process.start()
    yield process
    process.stop()


def forebay(*arguments: str) -> subprocess.CompletedProcess[str]:
    env = {k: v for k, v in os.environ.items() if k != "FOREBAY_API_KEY"}
    return subprocess.run(
        [FOREBAY, "calibrate", *arguments], capture_output=True, text=True, env=env, timeout=90, check=False
    )


def test_the_emulated_engine_is_calibrated(engine: EngineProcess, tmp_path: Path) -> None:
    out = tmp_path / "profile.yaml"
    url = f"http://127.0.0.1:{engine.port}"
    done = forebay(url, "--seconds", "8", "--max-prompt", "256", "--max-concurrency", "8", "--out", str(out))
    assert (done.returncode, done.stderr) == (0, "")
    for words in ("vllm", "max_num_seqs 4", "KV tokens 32,768", "1 × 16 tokens", "R²", str(out)):
        assert words in done.stdout
    profile = load_fitted(out).profile
    assert (profile.engine.kind, profile.engine.max_num_seqs, profile.engine.kv_tokens) == ("vllm", 4, 32_768)
    assert profile.error.mape["decode"] < 0.5


def test_mistakes_are_one_sentence_and_exit_2(engine: EngineProcess, tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{engine.port}"
    for arguments, says in (
        ((url, "--model", "nope"), "serves forebay-sim; not 'nope'"),
        ((url, "--seconds", "0"), "--seconds must be more than 0"),
        ((url, "--out", str(tmp_path / "no" / "p.yaml")), "--out: there is no directory"),
        (("http://127.0.0.1:9",), "cannot be reached"),
        (("ftp://x",), "is not a server's URL"),
    ):
        done = forebay(*arguments)
        assert done.returncode == 2
        assert done.stdout == "" and done.stderr.startswith("forebay calibrate: ") and says in done.stderr
        assert done.stderr.count("\n") == 1


def test_what_the_engine_says_cannot_write_to_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    evil = "x\x1b[31m\u202e"
    steps = times()
    profile = dataclasses.replace(steps.profile, engine=EngineFacts("vllm", evil, evil), notes=(evil,))
    calibration = Calibration(profile, Fit(profile.coefficients, Host(), FitError(1.0), ()), (), {}, 1, 1.0, (1.0, 0.0))
    print_report(f"http://{evil}", calibration, Console())
    assert run(["calibrate", f"ftp://{evil}"]) == 2
    found = capsys.readouterr()
    assert "x�[31m�" in found.out and "x�[31m�" in found.err
    assert not {"\x1b", "\u202e"} & set(found.out + found.err)


def test_a_model_of_no_text_can_be_saved(tmp_path: Path) -> None:
    profile = dataclasses.replace(times().profile, engine=EngineFacts("vllm", None, "x\udcff\x1b"), date="2025-01-01")
    save(profile, tmp_path / "p.yaml")
    assert "\x1b" not in (tmp_path / "p.yaml").read_text(encoding="utf-8")
    assert load_fitted(tmp_path / "p.yaml").profile.engine.model.startswith("x")


def test_the_timeout_holds_for_the_list_of_models_too() -> None:
    async def ask() -> float:
        gone = asyncio.Event()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read()
            writer.close()
            gone.set()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        began = time.monotonic()
        with pytest.raises(LoadError, match=r"/v1/models"):
            await calibrate(Target.parse(f"http://127.0.0.1:{port}"), Settings(timeout=0.3), None)
        took = time.monotonic() - began
        await gone.wait()
        server.close()
        return took

    assert asyncio.run(ask()) < 5

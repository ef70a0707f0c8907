"""What `forebay engine` makes of a GPU or a profile, without a server."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from forebay.hardware.fitted import Coefficients, EngineFacts, FitError, FittedProfile, Host, Ranges, save
from forebay.sim.options import Options, settings_of


def fitted(path: Path, model: str, kv_tokens: int | None) -> str:
    engine = EngineFacts("vllm", "0.19.0", model, 16, kv_tokens, 32, 512, 4096)
    curve = Coefficients(((1, 0.01), (512, 0.05)))
    save(FittedProfile(engine, "2025-01-01", curve, Host(), Ranges(16, 10_000, 512, 4096), FitError(0.99)), path)
    return str(path)


def test_a_calibrated_profile_needs_no_model_of_the_catalogue(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = fitted(tmp_path / "p.yaml", "our-own-model", 16_000)
    settings = settings_of(Options(profile=path))
    assert settings.engine.kv_tokens == 16_000
    assert settings.steps.decode(1, 1, 1) == pytest.approx(0.01)
    assert capsys.readouterr().err == ""
    path = fitted(tmp_path / "q.yaml", "our-own-model", None)
    with pytest.raises(ValueError, match="does not say how large the KV cache is: give --kv-tokens"):
        settings_of(Options(profile=path))
    assert settings_of(Options(profile=path, kv_tokens=4096)).engine.kv_tokens == 4096


def test_a_profile_of_something_else_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = fitted(tmp_path / "p.yaml", "llama-3.1-8b", 16_000)
    settings_of(Options(profile=path, model_shape="qwen3-8b"))
    err = capsys.readouterr().err
    assert err == f"forebay engine: note: {path}: is of the model meta-llama/Llama-3.1-8B, not Qwen/Qwen3-8B\n"


@pytest.mark.parametrize("tp", [3, 64, 1000])
def test_heads_that_the_gpus_do_not_divide(tp: int) -> None:
    with pytest.raises(ValueError, match=rf"--gpu: .* has 32 attention heads, which tp {tp} does not divide"):
        settings_of(Options(gpu="h100", model_shape="llama-3.1-8b", tp=tp))


@pytest.mark.parametrize("speed", [1e-300, 0.0, float("nan"), 1e300])
def test_a_speed_that_no_clock_bears(speed: float) -> None:
    with pytest.raises(ValueError, match="--speed must be from"):
        settings_of(Options(speed=speed))


def test_the_ready_line_has_no_escapes() -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "forebay.sim.main", "--port", "0", "--model", "a\x1b[31m\u202eb"],
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        process.terminate()
    assert line.startswith("forebay engine: a�[31m�b on ")


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (Options(kind="hal"), "--kind"),
        (Options(disaggregation_mode="prefill"), "--disaggregation-mode is of --kind sglang"),
        (Options(enable_priority_scheduling=True), "--enable-priority-scheduling"),
        (Options(kind="tgi", kv_transfer_config="{}"), "--kv-transfer-config"),
        (Options(kind="llamacpp", max_num_queued_reqs=3), "llamacpp queues without a limit"),
        (Options(kind="sglang", disaggregation_timeout=0), "--disaggregation-timeout"),
        (Options(fault=["restart"]), "PUT /control/faults"),
    ],
)
def test_what_a_kind_does_not_have_is_named(options: Options, word: str) -> None:
    with pytest.raises(ValueError, match=word):
        settings_of(options)

"""A prediction beside a live server: the emulated engine, whose step times the prediction knows."""

from __future__ import annotations

import socket

import pytest
import uvloop

from engine_process import EngineProcess
from forebay.plan.load.measure import Watch
from forebay.plan.simulate import Setup
from forebay.plan.simulate_hardware import Wanted
from forebay.plan.tune.space import Setting, TuneError
from forebay.plan.tune.trial import Problem
from forebay.plan.tune.verify import verify
from forebay.sim.results import Slo

MODEL, GPU = "Qwen/Qwen2.5-7B", "a10"
SETTING = Setting(max_num_seqs=8, max_model_len=1024)
PROBLEM = Problem(
    base=Setup(
        workload="poisson:rate=8,requests=100,system=200,prompt=100,output=8",
        hardware=Wanted(gpu=GPU, model=MODEL),
        slo=Slo(5.0, 0.0, 1.0),
    )
)


def test_the_same_requests_are_sent_and_both_are_put_side_by_side() -> None:
    engine = EngineProcess(
        ["--gpu", GPU, "--model-shape", MODEL, "--model", "m", "--max-num-seqs", "8", "--max-model-len", "1024"]
    )
    engine.start()
    try:
        found = uvloop.run(verify(f"http://127.0.0.1:{engine.port}", PROBLEM, SETTING, 24, None, Watch()))
    finally:
        engine.stop()
    assert (found["model"], found["requests"], found["completed"]) == ("m", 24, 24)
    rows = {row["name"]: row for row in found["rows"]}
    assert rows["within_slo"]["predicted"] == rows["within_slo"]["measured"] == 1.0
    for name in ("ttft_p50_s", "tpot_p50_s", "e2e_p95_s", "output_tokens_per_s"):
        row = rows[name]
        assert row["predicted"] > 0
        assert row["off"] == pytest.approx(row["predicted"] / row["measured"] - 1, rel=1e-3, abs=1e-3)  # near 0
    # a step cannot be quicker than it is modelled, whatever else the machine does
    assert rows["tpot_p50_s"]["measured"] > 0.9 * rows["tpot_p50_s"]["predicted"]


def test_a_server_that_is_not_there_is_said_to_be_so() -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        with pytest.raises(TuneError, match=r"--verify: .* cannot be reached"):
            uvloop.run(verify(f"http://127.0.0.1:{held.getsockname()[1]}", PROBLEM, SETTING, 4, None, Watch()))

"""`forebay simulate` as a shell sees it."""

from __future__ import annotations

import csv
import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from forebay.cli.main import run
from forebay.hardware.fitted import Coefficients, EngineFacts, FitError, FittedProfile, Host, Ranges, save
from forebay.plan.simulate import Setup, SimulateError, expand, set_field, variable

FOREBAY = str(Path(sys.executable).with_name("forebay"))
ENV = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE")}
"""Coverage of a process with another folder writes its data there, and to its standard error."""


@pytest.fixture(scope="module")
def profile(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("profile") / "engine.yaml"
    save(
        FittedProfile(
            EngineFacts("vllm", "0.19.0", "a-model", 16, 16_000, 32, 512, 4096),
            "2025-01-01T00:00:00+00:00",
            Coefficients(((1, 0.01), (512, 0.05)), per_sequence=1e-4, per_context_token=1e-8),
            Host(),
            Ranges(16, 100_000, 1024, 4096),
            FitError(0.99),
        ),
        path,
    )
    return str(path)


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("trace") / "trace.csv"
    rows = [f"2023-11-16 18:15:{i // 10:02}.{i % 10}000000,{100 + i % 400},{5 + i % 60}" for i in range(300)]
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + "\n".join(rows) + "\n")
    return str(path)


def forebay(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [FOREBAY, "simulate", *arguments], capture_output=True, text=True, timeout=100, cwd=cwd, check=False, env=ENV
    )


def test_one_command_lays_three_kinds_of_batching_side_by_side(trace: str, profile: str, tmp_path: Path):
    done = forebay(trace, "--profile", profile, "--batching", "static,dynamic,continuous", "--out", "out", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads((tmp_path / "out/result.json").read_text())
    assert [run["name"] for run in found["runs"]] == ["static", "dynamic", "continuous"]
    assert [run["settings"]["batching"] for run in found["runs"]] == ["static", "dynamic", "continuous"]
    ttft = [run["summary"]["ttft_s"]["p50"] for run in found["runs"]]
    assert ttft[0] > 2 * ttft[2] and ttft[1] > 2 * ttft[2]
    assert all(run["summary"]["requests"]["finished"] == 300 for run in found["runs"])
    for words in ("static", "dynamic", "continuous", "SLO attainment", "× real time", "fitted to a live engine"):
        assert words in done.stdout
    page = (tmp_path / "out/report.html").read_text()
    assert page.startswith("<!doctype html>") and "continuous" in page
    for i in (1, 2, 3):
        rows = list(csv.DictReader((tmp_path / f"out/requests-{i}.csv").read_text().splitlines()))
        assert len(rows) == 300 and {row["outcome"] for row in rows} == {"finished"}
        assert float(rows[5]["arrival"]) <= float(rows[5]["scheduled"]) < float(rows[5]["first_token"])


def test_equal_settings_give_equal_bytes_however_many_run_at_once(profile: str, tmp_path: Path):
    def result(seed: str, jobs: str) -> str:
        done = forebay(
            "poisson:rate=8,duration=15,tenants=5", "--engines", "2", "--profile", profile, "--json", "-",
            "--seed", seed, "--jobs", jobs, "--vary", "max_num_seqs=4,16", "--patience", "5", cwd=tmp_path,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert "SLO attainment" in done.stderr, "the summary makes room for the result"
        return done.stdout

    first = result("1", "1")
    assert first == result("1", "2")
    assert first != result("2", "2")
    assert [run["name"] for run in json.loads(first)["runs"]] == ["max_num_seqs 4", "max_num_seqs 16"]


def test_the_gateway_s_placement_beside_others(profile: str, tmp_path: Path):
    """Conversations over three engines: only `best` knows where a turn's prefix is."""
    done = forebay(
        "poisson:rate=0.5,duration=60,turns=5,think=4,prompt=300,output=20", "--engines", "3", "--profile", profile,
        "--placement", "round_robin,least_requests,best", "--json", "-", cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    runs = json.loads(done.stdout)["runs"]
    assert [run["settings"]["placement"] for run in runs] == ["round_robin", "least_requests", "best"]
    assert all(run["summary"]["requests"]["finished"] == run["summary"]["requests"]["arrived"] > 80 for run in runs)
    turn, least, best = (run["summary"]["engines"]["prefix_hit_rate"] for run in runs)
    assert best > 1.3 * max(turn, least)
    each = [one["decode_tokens"] for one in runs[2]["summary"]["engines"]["each"]]
    assert min(each) > 0.15 * sum(each), "and no engine has most of the work"


def test_without_files_the_report_goes_to_the_folder(trace: str, profile: str, tmp_path: Path):
    done = forebay(trace, "--profile", profile, "--limit", "20", cwd=tmp_path)
    assert done.returncode == 0 and "written: forebay-simulation.html" in done.stdout
    assert [p.name for p in tmp_path.iterdir()] == ["forebay-simulation.html"]


def test_limit_speed_duration_and_slo_are_obeyed(trace: str, profile: str, tmp_path: Path):
    done = forebay(
        trace, "--profile", profile, "--speed", "2", "--limit", "100", "--duration", "4", "--slo-ttft", "0.5",
        "--slo-tpot", "0.1", "--slo-ttft-per-1k", "0.2", "--json", "-", cwd=tmp_path,
    )  # fmt: skip
    found = json.loads(done.stdout)
    assert found["slo"] == {"ttft_s": 0.5, "per_1k_s": 0.2, "tpot_s": 0.1}
    summary = found["runs"][0]["summary"]
    assert summary["requests"]["arrived"] == 80 and summary["seconds"] <= 4  # ten a second, twice as fast
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nowhere.csv"], "nowhere.csv: no such file"),
        (["T", "--engines", "0"], "engines must be at least 1 and at most 100,000, not 0"),
        (["T", "--speed", "0"], "speed must be at least 1e-06 and at most 1,000,000, not 0"),
        (["T", "--speed", "nan"], "speed must be at least 1e-06 and at most 1,000,000, not nan"),
        (["T", "--speed", "1e-300"], "speed must be at least 1e-06"),
        (
            ["T", "--vary", "gpu_memory_utilization=0"],
            "gpu_memory_utilization must be more than 0 and at most 1, not 0",
        ),
        (["T", "--vary", "block_size=0"], "block_size must be at least 1, not 0"),
        (["T", "--vary", "draft_seconds=1e300"], "draft_seconds must be at most 1,000,000, not 1e+300"),
        (
            ["T", "--engines", "2", "--vary", "engines=1,2"],
            "--engines and --vary engines set the same; give one of them",
        ),
        (
            ["T", "--num-gpu-blocks", "9", "--vary", "num-blocks=8"],
            "--num-gpu-blocks and --vary num_blocks set the same",
        ),
        (["T", "--tp", "1", "--vary", "tensor_parallel_size=2"], "--tp and --vary tensor_parallel_size set the same"),
        (["T", "--policy", "none", "--vary", "policy=none,admission"], "--policy and --vary policy set the same"),
        (["T", "--vary", "tp=1", "--vary", "tensor_parallel_size=2"], "--vary names tensor_parallel_size twice"),
        (["T", "--html", ""], "--html needs the name of a FILE, not ''"),
        (["T", "--html", "-"], "--html needs the name of a FILE, not '-'"),
        (["T", "--json", ""], "--json needs the name of a FILE, not ''"),
        (["T", "--out", ""], "--out needs the name of a DIR, not ''"),
        (["T", "--json", "x", "--html", "./x"], "x: two results would be written to it"),
        (["T", "--out", "o", "--html", "o/result.json"], "o/result.json: two results would be written to it"),
        (["T", "--out", "o", "--html", "o/requests-1.csv"], "o/requests-1.csv: two results would be written to it"),
        (["T", "--json", "a\nb/c\x1b[31m.json"], "a�b/c�[31m.json: there is no folder a�b"),
        (["T", "--limit", "0"], "limit must be at least 1, not 0"),
        (["T", "--slo-ttft", "-1"], "slo-ttft must be a number of seconds, at least 0, not -1"),
        (["T", "--slo-ttft", "0", "--policy", "admission"], "slo-ttft must be more than 0 for policy admission"),
        (["T", "--slo-ttft", "0", "--placement", "best"], "slo-ttft must be more than 0 for placement best"),
        (
            ["T", "--placement", "best", "--vary", "decode_engines=1"],
            "placement best does not know prefill and decode engines apart; leave decode_engines out",
        ),
        (["T", "--max-num-seqs", "0"], "max_num_seqs must be at least 1, not 0"),
        (["T", "--policy", "best"], "there is no policy 'best'; known are none"),
        (["T", "--placement", "x"], "there is no placement 'x'; known are round_robin, least_requests, best"),
        (["T", "--batching", "statik"], "batching must be one of continuous, static, dynamic, not 'statik'"),
        (["T", "--batching", "static,,dynamic"], "batching has an empty value among 'static,,dynamic'"),
        (["T", "--batching", "static,static"], "batching has a value twice in 'static,static'"),
        (["T", "--vary", "max_num_seq=4"], "there is no field 'max_num_seq' to vary; the nearest are max_num_seqs"),
        (["T", "--vary", "max_num_seqs"], "--vary must be FIELD=A[,B,…], not 'max_num_seqs'"),
        (["T", "--vary", "max_num_seqs=many"], "max_num_seqs must be a whole number, not 'many'"),
        (["T", "--vary", "watermark=0.1", "--vary", "watermark=0.2"], "--vary names watermark twice"),
        (["T", "--vary", "seed=" + ",".join(map(str, range(65)))], "65 runs side by side; at most 64"),
        (["T", "--jobs", "0"], "--jobs must be at least 1, not 0"),
        (["T", "--json", "no/where.json"], "no/where.json: there is no folder no"),
        (["T", "--html", "."], ".: is a folder, a file is needed"),
    ],
)
def test_what_cannot_be_simulated_is_said_in_one_sentence(
    arguments: list[str],
    says: str,
    trace: str,
    profile: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    monkeypatch.chdir(tmp_path)
    code = run(["simulate", *[trace if a == "T" else a for a in arguments], "--profile", profile])
    err = capsys.readouterr().err
    assert code == 2
    assert says in err and len(err.splitlines()) == 1
    assert err.startswith("forebay simulate: ")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--gpu", "h101"], "GPU 'h101' is unknown; the nearest are h100_sxm"),
        (["--model", "lama-3.1-8b"], "model 'lama-3.1-8b' is unknown; the nearest are"),
        (["--profile", "nowhere"], "nowhere: does not exist"),
        (["--tp", "0"], "tp must be at least 1, not 0"),
    ],
)
def test_unknown_hardware_is_said_with_the_nearest_names(
    arguments: list[str], says: str, trace: str, capsys: pytest.CaptureFixture[str]
):
    assert run(["simulate", trace, *arguments, "--json", "-"]) == 2
    err = capsys.readouterr().err
    assert says in err and len(err.splitlines()) == 1


def test_what_is_wrong_in_the_middle_of_a_trace_names_the_line(trace: str, profile: str, tmp_path: Path):
    lines = Path(trace).read_text().splitlines()
    lines[200] = "2023-11-16 18:15:19.9000000,-5,10"
    bad = tmp_path / "bad.csv"
    bad.write_text("\n".join(lines))
    done = forebay(str(bad), "--profile", profile, "--batching", "static,continuous", cwd=tmp_path)
    assert done.returncode == 2 and f"{bad}:201: " in done.stderr and len(done.stderr.splitlines()) == 1
    assert [p.name for p in tmp_path.iterdir()] == ["bad.csv"]


def test_strict_refuses_what_the_profile_does_not_cover(profile: str, tmp_path: Path):
    heavy = ["constant:rate=100,duration=1,prompt=100,output=100", "--profile", profile, "--json", "-"]
    more = ["--vary", "max_num_seqs=256", "--num-gpu-blocks", "100000"]
    loose = forebay(*heavy, *more, cwd=tmp_path)
    assert loose.returncode == 0 and json.loads(loose.stdout)["runs"][0]["warnings"], "extrapolated, and said so"
    strict = forebay(*heavy, *more, "--strict", cwd=tmp_path)
    assert strict.returncode == 2 and len(strict.stderr.splitlines()) == 1


def test_an_interrupt_ends_with_130_and_reports_what_was_done(profile: str, tmp_path: Path):
    endless = ["poisson:rate=50,requests=100000000", "--engines", "4", "--profile", profile, "--out", "out"]
    with subprocess.Popen(
        [FOREBAY, "simulate", *endless, "--jobs", "1", "--vary", "max_num_seqs=8,16"],
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True, env=ENV,
    ) as process:  # fmt: skip
        deadline = time.monotonic() + 60
        child = None
        while child is None and time.monotonic() < deadline:
            child = _busy_child(process.pid)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does it: the children get it too
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert err.startswith("forebay simulate: interrupted") and "1 of 2 runs had not begun" in err
    found = json.loads((tmp_path / "out/result.json").read_text())
    assert found["interrupted"] and len(found["runs"]) == 1 and "SLO attainment" in out
    assert found["runs"][0]["summary"]["requests"]["arrived"] > 0


def _busy_child(pid: int) -> int | None:
    """A child that has computed for a second of CPU time: it is past its imports."""
    import psutil

    try:
        for child in psutil.Process(pid).children(recursive=True):
            if sum(child.cpu_times()[:2]) > 1.0:
                return int(child.pid)
    except psutil.NoSuchProcess:
        return None
    return None


def test_a_terminal_sees_how_far_it_is(profile: str, tmp_path: Path):
    ours, theirs = pty.openpty()
    load = ["poisson:rate=50,requests=4000", "--engines", "4", "--profile", profile]
    process = subprocess.Popen(
        [FOREBAY, "simulate", *load, "--json", "x.json"],
        cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=theirs, env={**ENV, "TERM": "xterm", "COLUMNS": "150"},
    )  # fmt: skip
    os.close(theirs)
    seen = b""
    try:
        while chunk := os.read(ours, 65536):
            seen += chunk
    except OSError:  # how a terminal says that nobody is on the other side any more
        pass
    os.close(ours)
    assert process.wait(timeout=60) == 0
    text = seen.decode()
    assert "simulated" in text and "done" in text and "%" in text and "×" in text


def test_prefill_and_decode_apart(profile: str, tmp_path: Path):
    done = forebay(
        "poisson:rate=5,requests=100,prompt=300,output=80", "--profile", profile, "--json", "-",
        "--vary", "decode_engines=0,2", "--vary", "transfer_seconds_per_token=1e-5", cwd=tmp_path,
    )  # fmt: skip
    together, apart = json.loads(done.stdout)["runs"]
    assert [run["summary"]["engines"]["count"] for run in (together, apart)] == [1, 3]
    assert [run["summary"]["requests"]["finished"] for run in (together, apart)] == [100, 100]
    assert apart["summary"]["engines"]["each"][0]["decode_tokens"] == 0
    assert apart["summary"]["itl_s"]["p99"] < together["summary"]["itl_s"]["p99"], "no prefill beside decode"
    refused = forebay("poisson:rate=5,requests=9", "--profile", profile, "--vary", "decode_engines=1", cwd=tmp_path)
    assert refused.returncode == 2 and "transfer_seconds_per_token" in refused.stderr


def test_what_a_calibrated_server_needs_before_its_engine_counts(profile: str, tmp_path: Path):
    slow = tmp_path / "slow.yaml"
    slow.write_text(Path(profile).read_text().replace("per_request: 0.0", "per_request: 0.2"))
    ttft = []
    for path in (profile, str(slow)):
        done = forebay("constant:rate=1,requests=20", "--profile", path, "--json", "-", cwd=tmp_path)
        ttft.append(json.loads(done.stdout)["runs"][0]["summary"]["ttft_s"]["mean"])
    assert ttft[1] - ttft[0] == pytest.approx(0.2, abs=0.02)


# --- fields and variations, without a shell --------------------------------------------------------------------------


def test_combinations_are_named_for_what_differs():
    base = Setup(workload="w")
    names = [s.name for s in expand(base, {"batching": ["static", "continuous"], "engines": ["1", "2"], "seed": ["3"]})]
    assert names == ["static, engines 1", "static, engines 2", "continuous, engines 1", "continuous, engines 2"]
    assert [s.name for s in expand(base, {"policy": ["none"]})] == ["1 × llama-3.1-8b on h100_sxm"]


def test_fields_take_values_of_their_type():
    base = Setup(workload="w")
    assert set_field(base, "enable-prefix-caching", "false").engine == {"enable_prefix_caching": False}
    assert set_field(base, "num_gpu_blocks", "5").engine == {"num_blocks": 5}
    assert set_field(base, "scheduling_policy", "priority").engine == {"policy": "priority"}
    assert set_field(base, "max_num_queued_reqs", "none").engine == {"max_num_queued_reqs": None}
    assert set_field(base, "watermark", "0.01").engine == {"watermark": 0.01}
    assert set_field(base, "gpu", "l40s").hardware.gpu == "l40s"
    assert set_field(base, "engines", "7").engines == 7
    for name, text in (("enable_prefix_caching", "yes"), ("preemption", "swop"), ("tp", "1.5"), ("host", "x")):
        with pytest.raises(SimulateError, match=f"^{name} must be"):
            set_field(base, name, text)


def test_every_variable_field_can_be_set():
    for name in variable():
        for text in ("1", "true", "none", "fcfs", "static", "swap", "both"):
            try:
                set_field(Setup(workload="w"), name, text)
            except SimulateError:
                continue
            break
        else:
            pytest.fail(f"{name} takes nothing")

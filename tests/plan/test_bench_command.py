"""`forebay bench` as a shell sees it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from benchmarks.common import free_port, get, mock, mock_counts

from forebay.cli.main import run

FOREBAY = str(Path(sys.executable).with_name("forebay"))


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with mock(tmp_path_factory.mktemp("mock"), core=None, interval_ms=5) as address:
        yield address


def bench(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    clean = {k: v for k, v in os.environ.items() if k != "FOREBAY_API_KEY"}
    return subprocess.run(
        [FOREBAY, "bench", *arguments], capture_output=True, text=True, env={**clean, **env}, timeout=60, check=False
    )


def test_json_says_what_was_asked_and_what_came_of_it(url: str) -> None:
    done = bench(url, "--rate", "100", "--requests", "20", "--max-tokens", "4", "--format", "json")
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    assert (found["sent"], found["completed"], found["failed"], found["errors"]) == (20, 20, 0, {})
    assert (found["model"], found["load"]["rate"], found["load"]["arrivals"]) == ("mock", 100.0, "poisson")
    assert found["output_tokens"] == 80
    assert 0 < found["ttft_ms"]["p50"] < found["e2e_ms"]["p50"] == pytest.approx(25, abs=25)
    assert found["itl_ms"]["p50"] == pytest.approx(5, abs=4)
    assert found["generator"]["lag_ms"]["p50"] is not None


def test_the_table_names_each_latency_and_each_kind_of_error(url: str) -> None:
    done = bench(url, "--requests", "6", "--max-tokens", "4", "--extra", '{"mock_fault": "cut"}')
    assert done.returncode == 1, "no request completed"
    for words in (
        "time to first token",
        "between tokens (ITL)",
        "whole request (E2E)",
        "6 × cut",
        "closed loop, 8 at once",
    ):
        assert words in done.stdout


def test_the_key_comes_from_the_environment_and_is_shown_nowhere(url: str) -> None:
    done = bench(url, "--requests", "1", "--max-tokens", "1", FOREBAY_API_KEY="sk-very-secret-indeed-0123")
    assert done.returncode == 0
    assert "secret" not in done.stdout + done.stderr


def test_a_key_that_is_none_is_not_sent(url: str) -> None:
    done = bench(url, FOREBAY_API_KEY="two words\n")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "forebay bench: FOREBAY_API_KEY holds characters that a key cannot have\n"


def test_nobody_there_is_said_in_one_line() -> None:
    port = free_port()
    done = bench(f"http://127.0.0.1:{port}", "--requests", "1")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"forebay bench: 127.0.0.1:{port} cannot be reached: connect: Connection refused\n"


def test_an_unlisted_model_is_noted_and_tried(url: str) -> None:
    done = bench(url, "--requests", "1", "--max-tokens", "1", "--model", "other")
    assert done.returncode == 0
    assert done.stderr == f"forebay bench: note: {url.removeprefix('http://')} lists mock, not other\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--rate", "5", "--concurrency", "5"], "give either --rate (open loop) or --concurrency (closed loop)"),
        (["--rate", "-1"], "bench: --rate must be more than 0, not -1"),
        (["--duration", "0"], "bench: --duration must be more than 0, not 0"),
        (["--prompt-tokens", "0"], "bench: --prompt-tokens must be more than 0, not 0"),
        (["--extra", "{"], "--extra is not JSON"),
        (["--extra", "[]"], "--extra must be a JSON object"),
        (["--extra", '{"temperature": NaN}'], "--extra is not JSON"),
        (["--extra", '{"top_p": 1e999}'], "--extra is not JSON"),
        (["--extra", '{"stream": false}'], "--extra has 'stream', which the load sets itself"),
        (["--prompt-tokens", "1e9"], "--prompt-tokens must be at most 20,000,000"),
        (["--html", "-"], "--html takes a file"),
        (["--records", "-"], "--records takes a file"),
        (["--concurrency", "9999999"], "connections that this process may open (ulimit -n)"),
        (["--cv", "3"], "--cv is of gamma arrivals: add --arrivals gamma"),
        (["--prompt-tokens", "lots"], "--prompt-tokens: a number is wanted, not 'lots'"),
        (["--workload", "nowhere.csv"], "nowhere.csv: no such file"),
        (["--workload", "poisson:rate=1,requests=2", "--prompt-tokens", "5"], "the workload or file has its own"),
        (["--prompts", "nowhere.json"], "nowhere.json cannot be read: No such file"),
        (["--keys", "nowhere"], "nowhere cannot be read: No such file"),
        (["--classes", "vip=1;gold=2"], "--classes: 'gold' is unknown; allowed are vip, normal, low"),
        (["--slo-ttft", "0"], "slo-ttft must be more than 0 seconds"),
        (["--gateway-cost"], "set FOREBAY_API_KEY or give --keys"),
        (["--find-knee", "--concurrency", "4"], "searched for with an open loop"),
        (["--find-knee", "--knee-steps", "1"], "knee-steps must be from 2"),
        (["--json", "/nowhere/x.json"], "/nowhere/x.json cannot be written: there is no folder /nowhere"),
        (["--retries", "-1"], "retries must be from 0 to 100"),
    ],
)
def test_options_that_make_no_sense_are_refused_before_the_network_is_touched(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FOREBAY_API_KEY", raising=False)
    assert run(["bench", "http://127.0.0.1:1", *arguments]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("forebay bench: ")
    assert message in said.err


def test_an_interrupt_stops_it_and_reports_what_there_is(url: str) -> None:
    command = [
        FOREBAY,
        "bench",
        url,
        "--concurrency",
        "4",
        "--duration",
        "600",
        "--max-tokens",
        "3",
        "--format",
        "json",
    ]
    before = mock_counts(url)["streams"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        while mock_counts(url)["streams"] < before + 8:
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=20)
    assert (process.returncode, err) == (130, "")
    found = json.loads(out)
    assert found["interrupted"] is True
    assert found["completed"] >= 4
    assert found["failed"] == 0


def test_the_emulated_engine_can_be_loaded(tmp_path: Path) -> None:
    port = free_port()
    command = [FOREBAY, "engine", "--port", str(port), "--decode-rate", "500", "--max-num-queued-reqs", "1"]
    with subprocess.Popen(
        [*command, "--max-num-seqs", "1"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as engine:
        try:
            while not _up(f"http://127.0.0.1:{port}/health"):
                assert engine.poll() is None
            done = bench(f"http://127.0.0.1:{port}", "--concurrency", "3", "--requests", "9", "--format", "json")
        finally:
            engine.terminate()
    found = json.loads(done.stdout)
    assert found["completed"] + found["failed"] == 9
    assert found["completed"] >= 1
    assert all(kind.startswith("status 503") for kind in found["errors"])


@pytest.fixture(scope="module")
def engine_url() -> Iterator[str]:
    """An engine that takes one request at a time, 500 tokens a second."""
    port = free_port()
    command = [FOREBAY, "engine", "--port", str(port), "--decode-rate", "500", "--max-num-seqs", "1"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as engine:
        try:
            while not _up(f"http://127.0.0.1:{port}/health"):
                assert engine.poll() is None
            yield f"http://127.0.0.1:{port}"
        finally:
            engine.terminate()


def test_the_knee_of_an_engine_is_found(engine_url: str) -> None:
    done = bench(
        engine_url, "--find-knee", "--rate", "2", "--duration", "1", "--knee-steps", "3", "--arrivals", "uniform",
        "--slo-ttft", "0.4", "--max-tokens", "100", "--format", "json",
    )  # fmt: skip
    found = json.loads(done.stdout)
    assert done.returncode == 0
    assert found["knee"]["rate"] >= 2.0, "0.2 s each: five a second can be served"
    assert found["knee"]["not_kept_at"] is None or found["knee"]["not_kept_at"] > 2.0
    assert found["load"]["rate"] == pytest.approx(found["knee"]["rate"], rel=1e-3)
    assert done.stderr.count("requests/s: ") == len(found["knee"]["steps"]) <= 3


def test_results_are_written_and_compared(url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
        """In this process: starting six takes seconds."""
        code = run(["bench", *arguments])
        return subprocess.CompletedProcess(arguments, code, *capsys.readouterr())

    names = []
    for i, seed in enumerate(("1", "1", "2")):
        names.append(str(tmp_path / f"{i}.json"))
        done = bench(
            url, "--rate", "80", "--requests", "30", "--max-tokens", "3", "--seed", seed, "--json", names[-1],
            "--records", str(tmp_path / "r.jsonl"), "--slo-ttft", "5",
            *(() if i else ("--html", str(tmp_path / "page.html"))),
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, "")
        assert "goodput" in done.stdout
    assert "<title>Load of mock at http" in (tmp_path / "page.html").read_text()
    records = [json.loads(line) for line in (tmp_path / "r.jsonl").read_text().splitlines()]
    assert len(records) == 30
    assert all(r["error"] is None and 0 < r["ttft"] <= r["e2e"] and r["output_tokens"] == 3 for r in records)
    same = bench("compare", names[0], names[1])
    assert (same.returncode, same.stderr) == (0, "")
    assert "TTFT P50, ms" in same.stdout
    other = bench("compare", names[0], names[2])
    assert (other.returncode, other.stdout) == (2, "")
    assert "seed is 1 in A and 2 in B" in other.stderr
    forced = bench("compare", names[0], names[2], "--force", "--html", str(tmp_path / "both.html"))
    assert forced.returncode == 0
    assert "Mind: seed is 1 in A and 2 in B." in forced.stdout
    assert "Not the same load: seed is 1 in A and 2 in B." in (tmp_path / "both.html").read_text()


def test_a_trace_is_replayed_with_its_tenants_keys(url: str, tmp_path: Path) -> None:
    trace, keys = tmp_path / "trace.jsonl", tmp_path / "keys"
    trace.write_text(
        "".join(
            json.dumps({"arrival": i * 0.4, "prompt_tokens": 9, "output_tokens": 2 + i % 2, "tenant": "ab"[i % 2]})
            + "\n"
            for i in range(10)
        )
    )
    keys.write_text("a sk-a\nb sk-b\n")
    done = bench(url, "--workload", str(trace), "--speed", "4", "--keys", str(keys), "--format", "json")
    found = json.loads(done.stdout)
    assert (found["completed"], found["output_tokens"]) == (10, 25)
    assert {name: one["sent"] for name, one in found["tenants"].items()} == {"a": 5, "b": 5}
    assert 0.9 < found["seconds"] < 5
    keys.write_text("a sk-a\n")
    done = bench(url, "--workload", str(trace), "--keys", str(keys))
    assert (done.returncode, done.stderr) == (2, f"forebay bench: {keys} has no key for the tenant 'b'\n")


@pytest.mark.parametrize(
    "load",
    [
        ("--requests", "4", "--prompt-tokens", "500", "--max-tokens", "2"),
        ("--rate", "50", "--requests", "4", "--prompt-tokens", "500", "--max-tokens", "2"),
        ("--workload", "poisson:rate=50,requests=4,prompt=500,output=2"),
    ],
    ids=["closed loop", "open loop", "workload"],
)
def test_lengths_are_fitted_to_the_server_s_count(engine_url: str, load: tuple[str, ...]) -> None:
    arguments = (*load, "--fit-lengths", "--warmup", "3")
    found = json.loads(bench(engine_url, *arguments, "--format", "json").stdout)
    assert found["prompt_tokens"] / 4 == pytest.approx(500, rel=0.03)
    assert found["sent"] == 4, "warm-up and counting are not part of it"
    assert found["load"]["words"] != [1.0, 0.0]


def _up(url: str) -> bool:
    try:
        return get(url)[0] == 200
    except OSError:
        return False


def test_what_cannot_be_written_takes_nothing_else_with_it(url: str, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    done = bench(
        url,
        *("--requests", "200", "--max-tokens", "1", "--json", "/dev/full", "--records", "/dev/full"),
        *("--html", str(page)),
    )
    assert done.returncode == 2
    assert done.stderr == "forebay bench: /dev/full: No space left on device\n" * 2
    assert "200 completed, 0 failed" in done.stdout
    assert page.stat().st_size > 0


def test_a_search_that_is_interrupted_says_so(url: str, tmp_path: Path) -> None:
    path = tmp_path / "knee.json"
    command = [FOREBAY, "bench", url, "--find-knee", "--rate", "20", "--requests", "10", "--max-tokens", "3"]
    command += ["--slo-ttft", "30", "--knee-steps", "50", "--json", str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert process.stderr.readline().endswith("kept\n")
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=20)
    assert process.returncode == 130
    found = json.loads(path.read_text())
    assert found["interrupted"] is True
    assert found["knee"]["not_kept_at"] is None, "an interrupted step says nothing of its rate"
    assert any("interrupted" in note for note in found["notes"])
    assert "knee: " in out


def test_a_standard_output_that_is_closed_harms_nothing(url: str, tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    script = f"'{FOREBAY}' bench '{url}' --requests 2 --max-tokens 1 --json '{path}' >&-"
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(path.read_text())["completed"] == 2

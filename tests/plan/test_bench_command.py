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
        (["--concurrency", "9999999"], "connections that this process may open (ulimit -n)"),
    ],
)
def test_options_that_make_no_sense_are_refused_before_the_network_is_touched(
    arguments: list[str], message: str
) -> None:
    done = bench("http://127.0.0.1:1", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("forebay bench: ")
    assert message in done.stderr


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


def _up(url: str) -> bool:
    try:
        return get(url)[0] == 200
    except OSError:
        return False

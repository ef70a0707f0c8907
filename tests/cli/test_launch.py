"""`forebay launch` with programs that behave, and misbehave, as engines do."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from forebay.cli.launch_log import EngineLog, file_name
from forebay.cli.main import run
from forebay.engines.launching.hints import hint
from ports import free_port
from stack import Lines, call, folder
from waiting import eventually

FAKE = [sys.executable, str(Path(__file__).parents[1] / "fake_engine.py")]


def entry(name: str, fake: dict[str, Any] | None = None, **launch: Any) -> dict[str, Any]:
    more: dict[str, Any] = {"env": {"FAKE": json.dumps(fake or {})}}
    return {
        "name": name,
        "kind": "vllm",
        "launch": {"model": "m", "port": free_port(), "command": FAKE, "stop_timeout": 10, **more, **launch},
    }


class Launcher:
    def __init__(self, where: Path, engines: list[dict[str, Any]], *arguments: str, **popen: Any) -> None:
        self.file = where / "forebay.yaml"
        self.state_dir = where / "state"
        self.file.write_text(json.dumps({"state_dir": str(self.state_dir), "engines": engines}))
        self.process = subprocess.Popen(
            [sys.executable, "-m", "forebay", "launch", "--config", str(self.file), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            **popen,
        )
        self.out, self.err = Lines(self.process.stdout), Lines(self.process.stderr)

    @property
    def text(self) -> str:
        """What was said, in plain words: off a terminal each line is JSON."""
        lines = []
        for line in self.err.text.splitlines():
            with contextlib.suppress(ValueError, TypeError, KeyError):
                line = json.loads(line)["msg"]
            lines.append(line)
        return "\n".join(lines)

    def log(self, name: str) -> str:
        return (self.state_dir / "logs" / f"{name}.log").read_text()

    def wait_for(self, words: str) -> str:
        return eventually(lambda: self.text if words in self.text else "")

    def stop(self, number: int = signal.SIGTERM, within: float = 20.0) -> int:
        self.process.send_signal(number)
        return self.process.wait(within)

    def ended(self, within: float = 20.0) -> int:
        code = self.process.wait(within)
        self.err.close()
        return code

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            self.process.wait(30)
        for lines in (self.out, self.err):
            with contextlib.suppress(ValueError):
                lines.close()


@contextlib.contextmanager
def launch(engines: list[dict[str, Any]], *arguments: str, **popen: Any) -> Iterator[Launcher]:
    with folder() as where, contextlib.closing(Launcher(where, engines, *arguments, **popen)) as launcher:
        yield launcher


def gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def pids(file: Path) -> list[int]:
    return [int(line) for line in file.read_text().split()] if file.exists() else []


# --- started, awaited, ended -----------------------------------------------------------------------------------------


def test_those_that_are_named_start_are_awaited_and_leave_on_sigterm() -> None:
    engines = [
        entry("quick", max_model_len=4096),
        {**entry("slow", {"say": ["loading"], "healthy_after": 0.5}), "api_key": "the-key-of-this-engine"},
        entry("another"),
    ]
    with launch(engines, "slow", "quick") as it:
        text = it.wait_for("2 of 2 engines run")
        assert re.search(rf"quick is healthy after .* s, on http://127.0.0.1:{engines[0]['launch']['port']}", text)
        assert float(re.search(r"slow is healthy after ([0-9.]+) s", text)[1]) >= 0.5  # type: ignore[index]
        flags = json.loads(call(engines[0]["launch"]["port"], "GET", "/health")[2])
        assert flags[:6] == ["--model", "m", "--host", "127.0.0.1", "--port", str(engines[0]["launch"]["port"])]
        assert flags[6:] == ["--max-model-len", "4096", "--enable-prompt-tokens-details", "--enable-request-id-headers"]
        second = subprocess.run(
            [sys.executable, "-m", "forebay", "launch", "-c", str(it.file)], capture_output=True, text=True, timeout=30
        )
        assert second.returncode == 69
        assert f"another `forebay launch` runs quick (state_dir {it.state_dir})" in second.stderr
        assert it.stop() == 0
        assert not (it.state_dir / "logs" / "another.log").exists()
        log = it.log("slow")
        assert "forebay launch starts: " in log and "\nloading\n" in log
        assert "asked /health, key Bearer (hidden)" in log and "the-key-of-this-engine" not in log + it.err.text
        assert (it.state_dir / "logs" / "slow.log").stat().st_mode & 0o077 == 0


def test_sigkill_of_the_launcher_leaves_nothing_behind() -> None:
    with folder() as where:
        file = where / "pids"
        with contextlib.closing(Launcher(where, [entry("a", {"family": 600, "pids": str(file)})])) as it:
            it.wait_for("a is healthy")
            family = pids(file)
            assert len(family) == 2 and not any(map(gone, family))
            it.process.kill()
            eventually(lambda: all(map(gone, family)))


def test_a_second_signal_does_not_wait_for_a_deaf_engine() -> None:
    with launch([entry("deaf", {"deaf": True}, stop_timeout=3600)]) as it:
        it.wait_for("deaf is healthy")
        it.process.terminate()
        with pytest.raises(subprocess.TimeoutExpired):
            it.process.wait(0.5)
        assert it.stop() == 0
        assert "second signal" in it.text


def test_ctrl_c_during_the_start_ends_it() -> None:
    with launch([entry("slow", {"never": True, "say": ["here"]})]) as it:
        eventually(lambda: (it.state_dir / "logs/slow.log").exists() and "here" in it.log("slow"))
        assert it.stop(signal.SIGINT) == 0


# --- what ends is started again --------------------------------------------------------------------------------------


def test_a_killed_engine_is_started_again() -> None:
    with folder() as where:
        file = where / "pids"
        with contextlib.closing(Launcher(where, [entry("a", {"pids": str(file)})])) as it:
            it.wait_for("a is healthy")
            os.kill(pids(file)[0], signal.SIGKILL)
            text = it.wait_for("it is started again in 1 s")
            assert re.search(r"a ended \(killed by SIGKILL\) after .* s\n", text)
            assert "the kernel may have killed it for memory" in text
            eventually(lambda: it.text.count("a is healthy") == 2)
            assert len(pids(file)) == 2


def test_one_that_fails_again_and_again_is_given_up_with_its_last_lines() -> None:
    lines = [*(f"line {i}" for i in range(30)), "torch.OutOfMemoryError: CUDA out of memory."]
    with launch([entry("a", {"say": lines, "exit": [0.0, 5]}, restarts=1)]) as it:
        assert it.ended() == 1
        assert "a failed 2 times in a row and is given up: ended (exit code 5) after " in it.text
        assert "before it was healthy\n  it ran out of memory: lower launch.max_model_len" in it.text
        assert f"the last lines of {it.state_dir}/logs/a.log:" in it.text
        assert "    line 29\n    torch.OutOfMemoryError" in it.text and "line 20" not in it.text
        assert it.log("a").count("forebay launch starts") == 2
        assert [json.loads(line)["level"] for line in it.err.text.splitlines() if " (exit code 5)" in line] == [
            "warning",
            "error",
        ]


def test_the_others_run_on_and_the_exit_code_tells() -> None:
    with launch([entry("bad", {"exit": [0.0, 0]}, restarts=0), entry("good")]) as it:
        text = it.wait_for("1 of 2 engines run")
        assert "bad failed and is given up: ended (exit code 0) after " in text
        assert "good is healthy" in text
        assert it.stop() == 1


def test_health_that_never_comes_is_not_waited_for_beyond_its_time() -> None:
    with launch([entry("a", {"healthy_after": 3600, "say": ["still loading"]}, start_timeout=1, restarts=0)]) as it:
        assert it.ended() == 1
        assert "a failed and is given up: was not healthy within 1 s (launch.start_timeout), and was ended" in it.text
        assert "    still loading" in it.text


# --- what cannot be started says why ---------------------------------------------------------------------------------


def test_a_taken_port_is_71() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with launch([entry("a", port=port)]) as it:
            assert it.ended() == 71
            assert f"a: launch.port: cannot listen on 127.0.0.1:{port}: Address already in use" in it.text


def test_everything_that_is_in_the_way_is_named_at_once(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "text").write_text("not a program")
    engines = [
        entry("a", model=str(tmp_path / "none"), command=["/no/such/vllm", "serve"]),
        entry("b", model=str(tmp_path / "empty"), command=["no-such-program"]),
        entry("c", directory=str(tmp_path / "nowhere"), command=[str(tmp_path / "text")]),
        entry("d", command=[], python="/no/such/python"),
    ]
    with launch(engines) as it:
        assert it.ended() == 69
        for line in (
            f"a: launch.model: there is nothing at {tmp_path}/none",
            "a: launch.command: /no/such/vllm is not there",
            f"b: launch.model: {tmp_path}/empty holds no config.json",
            "b: launch.command: no-such-program is not on PATH",
            f"c: launch.directory: {tmp_path}/nowhere is no folder",
            f"c: launch.command: {tmp_path}/text cannot be executed",
            "d: launch.python: /no/such/python is not there",
        ):
            assert line in it.text


@pytest.mark.parametrize(
    ("engines", "arguments", "code", "words"),
    [
        ([{"name": "a", "url": "http://127.0.0.1:1"}], [], 2, "no engine has a launch section"),
        (
            [entry("gpu-1"), {"name": "x", "url": "http://h"}],
            ["gpu1"],
            2,
            "gpu1 is not in the file; did you mean gpu-1?",
        ),
        ([entry("gpu-1"), {"name": "x", "url": "http://h"}], ["x"], 2, "x has no launch section; there are gpu-1"),
        ([entry("a", dtype="q4_0")], [], 78, "engines[0].launch.dtype: vLLM: not one of its choices: auto"),
        ([entry("a", flags=["--port", "1"])], [], 78, "engines[0].launch.flags[0]: launch.port says it"),
        ([{**entry("a"), "kind": "openai"}], [], 78, "engines[0].kind: launch starts an engine of one of these kinds"),
    ],
)
def test_what_makes_no_sense(
    engines: list[dict[str, Any]], arguments: list[str], code: int, words: str, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    assert ran(tmp_path, engines, *arguments) == code
    assert words in capsys.readouterr().err


def ran(where: Path, engines: list[dict[str, Any]], *arguments: str) -> int:
    """The exit code of one that starts nothing, in this process."""
    file = where / "forebay.yaml"
    file.write_text(json.dumps({"state_dir": str(where / "state"), "engines": engines}))
    return run(["launch", "--config", str(file), *arguments])


def test_check_names_what_an_engine_does_not_have_with_its_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "forebay.yaml"
    file.write_text("engines:\n  - name: a\n    kind: vllm\n    launch: {model: m, port: 8101,\n      dtype: q4_0}\n")
    assert run(["check", str(file)]) == 78
    assert f"{file}:5: engines[0].launch.dtype: vLLM: not one of its choices" in capsys.readouterr().out


def test_a_dry_run_prints_what_a_shell_can_take_and_no_secret(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = entry("a", env={"HF_TOKEN": "sesame-in-the-open", "WORDS": "a b"}, directory=str(tmp_path))
    assert ran(tmp_path, [{**one, "api_key": "sesame-key-of-the-entry"}], "--dry-run") == 0
    out = capsys.readouterr().out
    assert "sesame" not in out
    head, line = out.splitlines()
    assert head == "# a: vLLM"
    assert line == (
        f"cd {tmp_path} && HF_TOKEN='(hidden)' WORDS='a b' VLLM_API_KEY='(hidden)' {' '.join(FAKE)} --model m "
        f"--host 127.0.0.1 --port {one['launch']['port']} --enable-prompt-tokens-details --enable-request-id-headers"
    )
    assert not (tmp_path / "state").exists()


def test_a_kind_that_is_not_run_here_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = {"name": "o", "kind": "ollama", "launch": {"model": "qwen3:4b", "port": 11434}}
    assert ran(tmp_path, [one]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "# o: Ollama; start it yourself (see ollama.com/download)",
        "ollama pull qwen3:4b  # while it serves",
        "OLLAMA_HOST=127.0.0.1:11434 ollama serve",
    ]


# --- its log ---------------------------------------------------------------------------------------------------------


def test_a_log_is_moved_aside_at_its_size_and_keeps_one_more(tmp_path: Path) -> None:
    log = EngineLog(tmp_path / "a.log", 1000, [])
    for i in range(200):
        log.feed(b"%03d " % i + b"x" * 45 + b"\n")
    log.close()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.log", "a.log.1"]
    assert all(800 <= p.stat().st_size <= 1000 for p in tmp_path.iterdir() if p.name == "a.log.1")
    assert (tmp_path / "a.log").stat().st_size <= 1000
    whole = (tmp_path / "a.log.1").read_text() + (tmp_path / "a.log").read_text()
    numbers = [int(line[:3]) for line in whole.splitlines()]
    assert numbers == list(range(numbers[0], 200))


def test_a_log_hides_secrets_wherever_a_read_cuts_them(tmp_path: Path) -> None:
    log = EngineLog(tmp_path / "a.log", 65_536, ["sesame-123"])
    for piece in (b"key=ses", b"ame-123 and", b" sesame-123", b"\nloading 10%\rloading 20%\x1b[31m!", b""):
        log.feed(piece)
        assert "sesame-123" not in log.last
    assert log.last == "loading 20%!"
    log.close()
    assert (tmp_path / "a.log").read_bytes() == b"key=(hidden) and (hidden)\nloading 10%\rloading 20%\x1b[31m!\n"


def test_a_line_without_end_is_bounded(tmp_path: Path) -> None:
    log = EngineLog(tmp_path / "a.log", 1 << 20, [])
    log.feed(b"x" * 100_000)
    log.feed(b"y" * 10)
    assert (tmp_path / "a.log").stat().st_size == 100_000
    assert len(log.tail[0]) == 400
    log.close()


def test_a_full_disk_loses_lines_and_says_how_many() -> None:
    log = EngineLog(Path("/dev/full"), 1 << 20, [])
    log.feed(b"abc\n")
    assert log.lost == 4 and log.last == "abc"
    log.close()


def test_two_engines_never_share_a_log() -> None:
    assert file_name("gpu-1") == "gpu-1"
    assert file_name("a/b") != file_name("a:b") and "/" not in file_name("a/b")
    assert len(file_name("a" + "/" * 127)) < 200


@pytest.mark.parametrize(
    ("line", "meaning"),
    [
        ("ValueError: No available memory for the cache blocks.", "ran out of memory"),
        ("ModuleNotFoundError: No module named 'vllm'", "install it there"),
        ("OSError: [Errno 98] Address already in use", "port is taken"),
        ("GatedRepoError: 401 Client Error.", "HF_TOKEN"),
        ("api_server.py: error: unrecognized arguments: --nope", "launch.flags"),
        ("RuntimeError: No CUDA GPUs are available", "finds no GPU"),
        ("all is well", ""),
    ],
)
def test_hints(line: str, meaning: str) -> None:
    found = hint(["INFO something", line])
    assert meaning in found and bool(meaning) == bool(found)


def test_a_terminal_sees_a_table_that_moves() -> None:
    import pty

    master, slave = pty.openpty()
    with folder() as where:
        file = where / "forebay.yaml"
        engines = [entry("a", {"healthy_after": 0.6, "say": ["loading the weights"]})]
        file.write_text(json.dumps({"state_dir": str(where / "state"), "engines": engines}))
        process = subprocess.Popen(
            [sys.executable, "-m", "forebay", "launch", "-c", str(file)], stderr=slave, stdout=slave,
            stdin=subprocess.DEVNULL, env={**os.environ, "TERM": "xterm", "COLUMNS": "100"},
        )  # fmt: skip
        os.close(slave)
        seen, deadline = b"", time.monotonic() + 20
        while b"engines run" not in seen and time.monotonic() < deadline:
            seen += os.read(master, 4096)
        process.terminate()
        assert process.wait(20) == 0
        os.close(master)
    assert b"phase" in seen and b"loading the weights" in seen and b"healthy" in seen

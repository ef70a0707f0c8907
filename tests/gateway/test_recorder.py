"""The file that admission is recorded into."""

from __future__ import annotations

import asyncio
import logging
import os
import stat
from pathlib import Path

import pytest

from forebay.gateway.recorder import BACKLOG, PIECE, Recorder, recorded
from forebay.policy.asks import Ask
from forebay.policy.recording import Call, Due, End
from forebay.policy.rules import Rules
from forebay.sim.recording import Replay, Tape

MIB = 1 << 20


def record(path: Path, calls: int, most: int = MIB) -> Recorder:
    """A run of so many calls."""

    async def run() -> Recorder:
        policy, recorder = recorded(path, most, Rules(), asyncio.get_running_loop())
        assert policy is not None
        assert recorder is not None
        for i in range(calls):
            policy.offer(Ask(i, prompt_tokens=10, arrival=float(i), tenant="acme"), float(i))
        recorder.close()
        return recorder

    return asyncio.run(run())


def test_a_recording_is_written_whole_and_for_its_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    record(path, 1000)
    tape = Tape(path)
    assert len(list(Replay(tape))) == 1000
    assert (tape.why, tape.cut, tape.sound) == ("the gateway stopped", 0, True)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert "acme" not in path.read_text()


def test_it_ends_at_the_bound(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "run.jsonl"
    recorder = record(path, 1000, most=1 << 16)
    assert not recorder.open
    assert (1 << 16) - 1024 < path.stat().st_size <= 1 << 16
    tape = Tape(path)
    played = list(Replay(tape))
    assert 100 < len(played) < 1000
    assert tape.sound
    assert "of at most 65,536" in tape.why
    assert [r.message for r in caplog.records if "no longer recorded" in r.message] == [
        f"admission is no longer recorded into {path}: {tape.why}"
    ]


def test_an_earlier_recording_is_kept_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    for n in (3, 2, 1):
        record(path, n)
    assert [len(list(Tape(p))) for p in (path, tmp_path / "run.jsonl.1")] == [1, 2]


def test_what_is_no_recording_is_left_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    precious, pipe = tmp_path / "forebay.yaml", tmp_path / "pipe"
    precious.write_text("engines: []\n")
    os.mkfifo(pipe)
    loop = asyncio.new_event_loop()
    for path in (precious, pipe, tmp_path, tmp_path / "none" / "run.jsonl"):
        assert recorded(path, MIB, Rules(), loop) == (None, None)
    loop.close()
    assert precious.read_text() == "engines: []\n"
    assert len([r for r in caplog.records if "admission is not recorded" in r.message]) == 4


def test_a_full_disk_ends_the_recording_and_nothing_else(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        policy, recorder = recorded(tmp_path / "run.jsonl", MIB, Rules(), asyncio.get_running_loop())
        assert policy is not None
        assert recorder is not None
        full = os.open("/dev/full", os.O_WRONLY)
        os.dup2(full, recorder._fd)
        os.close(full)
        policy.due(1.0)
        ended = asyncio.Event()
        asyncio.get_running_loop().run_in_executor(None, recorder._thread.join).add_done_callback(lambda _: ended.set())
        await ended.wait()
        assert not recorder.open
        policy.due(2.0)
        recorder.close()

    with caplog.at_level(logging.WARNING):
        asyncio.run(run())
    assert sum("No space left on device" in r.message for r in caplog.records) == 1, caplog.text


def test_a_disk_that_hangs_holds_nobody_up(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        recorder = Recorder(tmp_path / "run.jsonl", 1 << 30, asyncio.get_running_loop())
        reading, writing = os.pipe()  # which takes 64 KiB, and then no more
        os.dup2(writing, recorder._fd)
        os.close(writing)
        long = End(at=0.0, key=1, raised="x" * PIECE)
        for _ in range(BACKLOG + 2):
            recorder.write(long)
        assert not recorder.open
        os.set_blocking(reading, True)
        left = asyncio.get_running_loop().run_in_executor(None, _drain, reading)
        await asyncio.to_thread(recorder.close, 10.0)
        assert not recorder._thread.is_alive()
        assert await left > PIECE
        os.close(reading)

    asyncio.run(run())
    assert sum("the disk is too slow" in r.message for r in caplog.records) == 1, caplog.text


def _drain(fd: int) -> int:
    n = 0
    while piece := os.read(fd, 1 << 20):
        n += len(piece)
    return n


def test_a_call_that_cannot_be_written_ends_the_recording(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        recorder = Recorder(tmp_path / "run.jsonl", MIB, asyncio.get_running_loop())
        recorder.write(Due(at=1.0))
        call: Call = End(at=1.0, key=1, raised="\ud800")
        recorder.write(call)
        assert not recorder.open
        recorder.close()

    asyncio.run(run())
    assert sum("End cannot be written" in r.message for r in caplog.records) == 1, caplog.text
    assert '"why":"End cannot be written' in (tmp_path / "run.jsonl").read_text()

"""The guard of an engine: nothing of it is left, whoever ends first and however."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from forebay.engines.launching import guard
from waiting import eventually

PARENT = "import os,sys,time; print(os.getpid(), flush=True); time.sleep(60)"


class Guarded:
    """A guard with a command under it; `held` keeps it alive."""

    def __init__(self, *command: str, grace: float = 20.0) -> None:
        theirs, self.held = os.pipe()
        words = [sys.executable, "-I", "-S", guard.__file__, "--grace", str(grace), "--parent-fd", str(theirs), "--"]
        self.process = subprocess.Popen(
            [*words, *command], pass_fds=(theirs,), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        os.close(theirs)

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def let_go(self) -> None:
        os.close(self.held)
        self.held = -1

    def close(self) -> None:
        if self.held >= 0:
            self.let_go()
        self.process.wait(20)
        assert self.process.stdout is not None
        self.process.stdout.close()


@contextlib.contextmanager
def guarded(*command: str, grace: float = 20.0) -> Iterator[Guarded]:
    with contextlib.closing(Guarded(*command, grace=grace)) as one:
        yield one


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def python(code: str) -> tuple[str, ...]:
    return (sys.executable, "-I", "-S", "-c", code)


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (("true",), 0),
        (("sh", "-c", "exit 7"), 7),
        (("sh", "-c", "kill -SEGV $$"), 128 + signal.SIGSEGV),
        (("/no/such/program",), 127),
        (("/etc/passwd",), 126),
    ],
)
def test_its_exit_code_is_the_engine_s(command: tuple[str, ...], code: int) -> None:
    with guarded(*command) as one:
        assert one.process.wait(20) == code
        if code in (126, 127):
            assert one.line().startswith(f"{command[0]} cannot be started: ")


@pytest.mark.parametrize("how", ["end of file", "SIGTERM"])
def test_the_engine_is_asked_to_leave(how: str) -> None:
    code = (
        "import signal,sys; signal.signal(signal.SIGTERM, lambda *_: sys.exit(3)); print(1, flush=True); signal.pause()"
    )
    with guarded(*python(code)) as one:
        assert one.line() == "1"
        if how == "SIGTERM":
            one.process.terminate()
        else:
            one.let_go()
        assert one.process.wait(20) == 3


def test_one_that_does_not_leave_is_killed_after_its_time() -> None:
    code = (
        "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True)\nwhile True: signal.pause()"
    )
    with guarded(*python(code), grace=0.3) as one:
        assert one.line() == "1"
        began = time.monotonic()
        one.process.terminate()
        assert one.process.wait(20) == 128 + signal.SIGKILL
        assert time.monotonic() - began >= 0.29


def test_a_second_signal_does_not_wait() -> None:
    code = (
        "import os, signal; signal.signal(signal.SIGTERM, lambda *_: os.write(1, b'2\\n')); os.write(1, b'1\\n')\n"
        "while True: signal.pause()"
    )
    with guarded(*python(code), grace=3600.0) as one:
        assert one.line() == "1"
        one.process.terminate()
        assert one.line() == "2"
        one.process.terminate()
        assert one.process.wait(20) == 128 + signal.SIGKILL


def test_grandchildren_in_sessions_of_their_own_go_too() -> None:
    """Two generations, the first gone: what vLLM's engine cores are to its API server."""
    inner = "import subprocess; print(subprocess.Popen(['sleep','600'],start_new_session=True).pid, flush=True)"
    code = (
        "import subprocess, sys, signal; "
        f"subprocess.run([sys.executable, '-c', {inner!r}], start_new_session=True); signal.pause()"
    )
    with guarded(*python(code), grace=5.0) as one:
        orphan = int(one.line())
        assert alive(orphan)
        one.let_go()
        one.process.wait(20)
        assert not alive(orphan)


def test_what_an_engine_leaves_behind_goes_when_it_ends_by_itself() -> None:
    with guarded("sh", "-c", "setsid sleep 600 & echo $!; exit 4") as one:
        left = int(one.line())
        assert one.process.wait(20) == 4
        assert not alive(left)


def test_a_killed_guard_takes_the_engine_with_it() -> None:
    with guarded(*python(PARENT)) as one:
        engine = int(one.line())
        one.process.kill()
        eventually(lambda: not alive(engine), 10)


def test_adopted_processes_leave_no_zombies() -> None:
    with guarded("sh", "-c", "(sh -c 'sleep 0.05 & echo $!' ) ; exec sleep 600") as one:
        adopted = int(one.line())
        eventually(lambda: not Path(f"/proc/{adopted}").exists(), 10)

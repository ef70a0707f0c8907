"""`python guard.py --grace SECONDS --parent-fd N -- COMMAND…`: runs an engine and outlives none of its processes.

An engine is a tree: vLLM's API server has engine cores below it, which would keep the GPU's memory if they were left
behind. The guard adopts whatever loses its parent in the tree (PR_SET_CHILD_SUBREAPER, prctl(2)) and ends when the tree
has. What makes it end the tree:

- end of file on descriptor N (the launcher is gone, however it died), or SIGTERM: the engine gets SIGTERM and GRACE
  seconds, then everything left SIGKILL;
- a second SIGTERM: SIGKILL at once;
- the engine's own end: what it left behind gets SIGKILL;
- SIGKILL to the guard: the engine's first process gets SIGKILL from the kernel (PR_SET_PDEATHSIG), the rest is lost.

Exit code: the engine's; 128 + N where signal N killed it; 126 or 127 where it cannot be started, as of a shell.
Nothing but the standard library, so that it starts in a blink and is small: there is one for each engine.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import time

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
SWEEP = 10.0
"""Seconds that killed processes may take to be gone: one in an uninterruptible wait holds out."""


def descendants(pid: int) -> list[int]:
    """Every process below `pid`, from /proc."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):  # noqa: PTH208 - pathlib is slow to import
        if name.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:  # noqa: PTH123
                # the name of the program, in brackets, may hold anything
                parent = int(file.read().rpartition(b")")[2].split()[1])
                children.setdefault(parent, []).append(int(name))
    found, queue = [], [pid]
    while queue:
        below = children.get(queue.pop(), [])
        found += below
        queue += below
    return found


def kill_below() -> None:
    """SIGKILL to all that is left, until nothing is, or SWEEP has passed."""
    deadline = time.monotonic() + SWEEP
    while time.monotonic() < deadline:
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        left = descendants(os.getpid())
        if not left:
            return
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)


def reap_adopted(engine: int) -> None:
    """Take the exit statuses of processes that lost their parent; the engine's is left to its `Popen`."""
    with contextlib.suppress(ChildProcessError):
        while (found := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) and found.si_pid != engine:
            os.waitpid(found.si_pid, 0)


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def _start(command: list[str]) -> subprocess.Popen[bytes]:
    """In a session of its own: a terminal's Ctrl-C is the launcher's to pass on."""
    guard = os.getpid()
    libc = ctypes.CDLL(None)  # loaded before the fork

    def with_the_guard() -> None:
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != guard:  # it went before the line above
            os._exit(1)

    return subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True, preexec_fn=with_the_guard)


def run(command: list[str], grace: float, parent_fd: int) -> int:
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    woken, wake = os.pipe()
    for fd in (woken, wake):
        os.set_blocking(fd, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for number in (signal.SIGTERM, signal.SIGCHLD):
        signal.signal(number, lambda *_: None)
    try:
        engine = _start(command)
    except (OSError, subprocess.SubprocessError) as e:
        said = e.strerror if isinstance(e, OSError) and e.strerror else str(e)
        print(f"{command[0]} cannot be started: {said}", file=sys.stderr, flush=True)  # noqa: T201
        return 127 if isinstance(e, FileNotFoundError) else 126
    poll = select.poll()
    poll.register(woken, select.POLLIN)
    poll.register(parent_fd, select.POLLIN | select.POLLHUP)
    deadline: float | None = None

    def end() -> None:
        nonlocal deadline
        if deadline is not None:
            deadline = 0.0  # a second time: at once
            return
        deadline = time.monotonic() + grace
        with contextlib.suppress(ProcessLookupError):
            engine.send_signal(signal.SIGTERM)

    while engine.poll() is None:
        wait = None if deadline is None else max(0.0, deadline - time.monotonic())
        if wait == 0.0:
            break
        for fd, _ in poll.poll(None if wait is None else int(wait * 1000) + 1):
            if fd == woken:
                if bytes([signal.SIGTERM]) in os.read(woken, 4096):
                    end()
                reap_adopted(engine.pid)
            elif not os.read(parent_fd, 4096):
                poll.unregister(parent_fd)
                end()
    code = engine.returncode
    if code is None:  # told to end, and did not in its time
        with contextlib.suppress(ProcessLookupError):
            engine.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = engine.wait(SWEEP)
    kill_below()
    if code is None:
        return 128 + signal.SIGKILL
    return 128 - code if code < 0 else code


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--grace", type=float, required=True)
    parser.add_argument("--parent-fd", type=int, required=True)
    parser.add_argument("command", nargs="+")
    options = parser.parse_args()
    os.set_inheritable(options.parent_fd, False)
    return run(options.command, options.grace, options.parent_fd)


if __name__ == "__main__":
    sys.exit(main())

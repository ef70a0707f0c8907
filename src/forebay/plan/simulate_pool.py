"""Independent simulations in processes of their own, as many at once as asked for.

A child tells how far it is through shared memory and sends its result through a pipe. It does not see SIGINT: the
parent decides, and a child that is told to stop sends what it has.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING, Any, Final

from forebay.plan.simulate import Setup, SimulateError, simulate

if TYPE_CHECKING:
    from collections.abc import Iterator
    from multiprocessing.context import SpawnProcess

LOOK: Final = 0.2
"""Seconds between two looks at how far the runs are."""
_NUMBERS: Final = 3


@dataclass(slots=True)
class State:
    """How far a run is."""

    setup: Setup
    began: float | None = None
    """Monotonic seconds."""
    seconds: float = 0.0
    """Of wall-clock time, once it has ended."""
    now: float = 0.0
    """Simulated seconds."""
    arrived: int = 0
    ended: int = 0
    result: dict[str, Any] | None = None


@dataclass(slots=True)
class _Child:
    process: SpawnProcess
    pipe: Connection
    number: int


@dataclass(slots=True)
class Pool:
    """Runs `setups`, at most `jobs` at once; `show` is called a few times a second with the state of all."""

    setups: Sequence[Setup]
    jobs: int
    show: Callable[[Sequence[State]], None] = lambda states: None
    states: list[State] = field(init=False)
    interrupted: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        self.states = [State(setup) for setup in self.setups]

    def run(self) -> None:
        """Fill `states`. After a KeyboardInterrupt the runs end early with what they have, `interrupted` is set, and
        runs that had not begun stay without a result; after a second one it is raised. Raises SimulateError for the
        first run that cannot be made, RuntimeError where a process died."""
        context = multiprocessing.get_context("spawn")
        board = context.Array("d", _NUMBERS * len(self.setups), lock=False)
        stop = context.Value("b", 0, lock=False)
        resource_tracker.ensure_running()  # it would unblock SIGINT where a child's start is what starts it
        waiting = list(range(len(self.setups)))
        children: list[_Child] = []
        try:
            while children or (waiting and not self.interrupted):
                try:
                    while waiting and len(children) < self.jobs and not self.interrupted:
                        i = waiting.pop(0)
                        mine, theirs = context.Pipe(duplex=False)
                        process = context.Process(
                            target=_child, args=(self.setups[i], board, stop, i, theirs, os.getpid()), daemon=True
                        )
                        self.states[i].began = time.monotonic()
                        with _no_interrupt():
                            process.start()
                            children.append(_Child(process, mine, i))
                        theirs.close()
                    self._look(children, board)
                except KeyboardInterrupt:
                    if self.interrupted:
                        raise
                    self.interrupted = True
                    stop.value = 1
        finally:
            for child in children:
                child.process.terminate()
            for child in children:
                child.process.join()

    def _look(self, children: list[_Child], board: Any) -> None:
        ready = wait([child.pipe for child in children], timeout=LOOK)
        for child in list(children):
            state = self.states[child.number]
            at = _NUMBERS * child.number
            state.now, state.arrived, state.ended = board[at], int(board[at + 1]), int(board[at + 2])
            if child.pipe in ready:
                try:
                    kind, value = child.pipe.recv()
                except EOFError:
                    child.process.join()
                    code = child.process.exitcode
                    raise RuntimeError(f"the process of run '{state.setup.name}' died (exit code {code})") from None
                children.remove(child)
                child.pipe.close()
                child.process.join()
                if kind == "error":
                    raise SimulateError(value)
                if kind == "crash":
                    raise RuntimeError(value)
                state.result = value
                state.seconds = time.monotonic() - (state.began or 0.0)
                counts = value["summary"]["requests"]
                state.now, state.arrived = value["summary"]["seconds"], counts["arrived"]
                state.ended = counts["arrived"] - counts["unfinished"]
        self.show(self.states)


@contextmanager
def _no_interrupt() -> Iterator[None]:
    """SIGINT waits, and does not come to processes started within until they ignore it: they inherit the mask."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT,))
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _child(setup: Setup, board: Any, stop: Any, i: int, pipe: Connection, parent: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.freeze()
    gc.set_threshold(100_000)  # a run makes and drops many objects, none in cycles: looking for those takes a tenth
    at = _NUMBERS * i

    def monitor(now: float, arrived: int, ended: int) -> bool:
        board[at], board[at + 1], board[at + 2] = now, arrived, ended
        return bool(stop.value) or os.getppid() != parent

    try:
        answer: tuple[str, Any] = ("result", simulate(setup, monitor))
    except SimulateError as e:
        answer = ("error", str(e))
    except Exception:
        import traceback

        answer = ("crash", traceback.format_exc())
    pipe.send(answer)
    pipe.close()

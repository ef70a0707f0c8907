"""Worker processes that live as long as a search: each has a Lab, with the step times that it has loaded.

A worker does not see SIGINT: the parent decides. It ends when its pipe is closed, so that none outlives the parent.
"""

from __future__ import annotations

import gc
import multiprocessing
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING, Any

from forebay.plan.tune.space import TuneError
from forebay.plan.tune.trial import Lab, Problem

if TYPE_CHECKING:
    from multiprocessing.context import SpawnProcess


@dataclass(frozen=True, slots=True)
class Task:
    """A call of one of `Lab`'s methods."""

    method: str
    arguments: tuple[Any, ...]


@dataclass(slots=True)
class _Worker:
    process: SpawnProcess
    pipe: Connection
    task: int = -1


class Pool:
    """`with Pool(problem, jobs) as pool`: `pool.map(tasks)`. State: the workers."""

    def __init__(self, problem: Problem, jobs: int) -> None:
        self._problem = problem
        self._jobs = jobs
        self._workers: list[_Worker] = []

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for worker in self._workers:
            worker.pipe.close()
            worker.process.terminate()
        for worker in self._workers:
            worker.process.join()
        self._workers.clear()

    def map(self, tasks: Sequence[Task], done: Callable[[int, Any], None] = lambda i, result: None) -> list[Any]:
        """The results in the order of `tasks`; `done` is told each as it comes. On KeyboardInterrupt what runs is
        dropped. Raises TuneError for the first task that raised it, RuntimeError where a worker died."""
        results: list[Any] = [None] * len(tasks)
        waiting = list(range(len(tasks)))[::-1]
        while len(self._workers) < min(self._jobs, len(tasks)):
            self._workers.append(self._start())
        left = len(tasks)
        try:
            while left:
                for worker in self._workers:
                    if worker.task < 0 and waiting:
                        worker.task = waiting.pop()
                        worker.pipe.send(tasks[worker.task])
                busy = {worker.pipe: worker for worker in self._workers if worker.task >= 0}
                for pipe in wait(list(busy)):
                    worker = busy[pipe]  # type: ignore[index]
                    i, worker.task = worker.task, -1
                    try:
                        kind, value = worker.pipe.recv()
                    except EOFError:
                        worker.process.join()
                        raise RuntimeError(f"a worker died (exit code {worker.process.exitcode})") from None
                    if kind == "error":
                        raise TuneError(value)
                    if kind == "crash":
                        raise RuntimeError(value)
                    results[i] = value
                    left -= 1
                    done(i, value)
        except BaseException:
            self.close()  # what they still do is of no use, and its answer would be taken for the next task's
            raise
        return results

    def _start(self) -> _Worker:
        context = multiprocessing.get_context("spawn")
        resource_tracker.ensure_running()  # it would unblock SIGINT where a child's start is what starts it
        mine, theirs = context.Pipe()
        process = context.Process(target=_work, args=(self._problem, theirs), daemon=True)
        before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT,))  # inherited until the worker ignores it
        try:
            process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        theirs.close()
        return _Worker(process, mine)


def _work(problem: Problem, pipe: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.freeze()
    gc.set_threshold(100_000)
    lab = Lab(problem)
    with suppress(EOFError, BrokenPipeError, ConnectionResetError):
        while True:
            task: Task = pipe.recv()
            try:
                answer: tuple[str, Any] = ("result", getattr(lab, task.method)(*task.arguments))
            except TuneError as e:
                answer = ("error", str(e))
            except Exception:
                import traceback

                answer = ("crash", traceback.format_exc())
            pipe.send(answer)

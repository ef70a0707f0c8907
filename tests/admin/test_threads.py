from __future__ import annotations

import asyncio
import threading

import pytest

from forebay.admin.threads import Busy, Threads


def test_results_and_errors_come_back() -> None:
    async def main() -> None:
        threads = Threads("t", count=2, bound=4)
        assert await threads.run(lambda: 7, 5) == 7
        with pytest.raises(KeyError):
            await threads.run(lambda: {}["x"], 5)
        assert await threads.run(lambda: threading.current_thread().name, 5) in ("t-1", "t-2")

    asyncio.run(main())


def test_a_call_that_hangs_times_out_and_the_next_ones_go_on() -> None:
    release, ran = threading.Event(), []

    async def main() -> None:
        threads = Threads("t", count=2, bound=4)
        with pytest.raises(TimeoutError):
            await threads.run(release.wait, 0.01)
        assert await threads.run(lambda: 1, 5) == 1
        with pytest.raises(TimeoutError):
            await threads.run(release.wait, 0.01)
        with pytest.raises(TimeoutError):  # both threads hang: it waits, and is never made
            await threads.run(lambda: ran.append("late"), 0.01)
        release.set()
        assert await threads.run(lambda: 2, 5) == 2

    asyncio.run(main())
    assert ran == []


def test_what_waits_is_bounded() -> None:
    release = threading.Event()

    async def main() -> None:
        threads = Threads("t", count=1, bound=2)
        started = threading.Event()
        first = asyncio.ensure_future(threads.run(lambda: (started.set(), release.wait()), 30))
        await asyncio.to_thread(started.wait)
        waiting = [asyncio.ensure_future(threads.run(lambda: None, 30)) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(Busy, match="2 calls wait for the t already"):
            await threads.run(lambda: None, 30)
        assert repr(threads) == "<Threads t 1/1, 2 waiting>"
        release.set()
        await asyncio.gather(first, *waiting)

    asyncio.run(main())


def test_a_result_that_comes_after_the_loop_has_gone_is_dropped() -> None:
    release, done = threading.Event(), threading.Event()

    def call() -> None:
        release.wait()

    async def main() -> Threads:
        threads = Threads("t", count=1, bound=4)
        with pytest.raises(TimeoutError):
            await threads.run(call, 0.01)
        return threads

    threads = asyncio.run(main())
    release.set()

    async def again() -> None:
        await threads.run(done.set, 5)  # the thread has survived

    asyncio.run(again())
    assert done.is_set()

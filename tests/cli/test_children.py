"""A child that must answer: real processes, stopped and silenced."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Coroutine
from typing import Any

import pytest

from forebay.cli.children import Child, Plan
from forebay.cli.heartbeat import FIRST, MISSED, Heart
from forebay.state.messages import Start

CHILD = """
import asyncio, os, sys
from forebay.state.channel import Channel
from forebay.state.messages import Ping, Pong, Ready
async def main():
    channel = await Channel.inherited()
    await channel.receive()
    await channel.send(Ready(os.getpid()))
    while (message := await channel.receive()) is not None:
        if isinstance(message, Ping):
            await channel.send(Pong(message.n, "its look-ups stand still" if "stuck" in sys.argv else ""))
asyncio.run(main())
"""
BEAT = 0.3


def run(what: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(what, 60))


def planned(*arguments: str) -> Child:
    command = [sys.executable, "-c", CHILD, *arguments]
    return Child(Plan("c", lambda: command, start=lambda: Start("{}", 0, "b"), watched=True, beat=BEAT))


async def ended(child: Child, keeping: asyncio.Task[None]) -> None:
    child.stop()
    child.signal(signal.SIGKILL)
    await keeping


def test_one_that_is_stopped_is_killed_counted_and_started_again() -> None:
    async def story() -> None:
        child, heard = planned(), asyncio.Queue[tuple[bool, int, int]]()
        child.changed = lambda: heard.put_nowait((child.ready.is_set(), child.ended, child.hung))
        keeping = asyncio.create_task(child.keep())
        assert await heard.get() == (True, 0, 0)
        first = child.pid
        await asyncio.sleep((MISSED + 2) * BEAT)
        assert child.pid == first  # it answers, and is left alone
        os.kill(first, signal.SIGSTOP)
        assert await heard.get() == (False, 0, 1)
        assert child.why.startswith("no answer for 1.5 s")
        assert await heard.get() == (True, 0, 1)
        assert child.pid != first
        os.kill(child.pid, signal.SIGKILL)  # that is no hanging
        assert await heard.get() == (False, 1, 1)
        assert child.why == "killed by SIGKILL"
        await ended(child, keeping)

    run(story())


def test_one_that_says_that_a_thread_of_it_hangs_is_killed() -> None:
    async def story() -> None:
        child, changed = planned("stuck"), asyncio.Event()
        child.changed = lambda: changed.set() if child.hung else None
        keeping = asyncio.create_task(child.keep())
        await changed.wait()
        assert child.why == "its look-ups stand still"
        await ended(child, keeping)

    run(story())


def test_a_heart_is_patient_until_the_first_answer_and_then_not() -> None:
    heart = Heart()
    for _ in range(FIRST):
        assert heart.hangs(2.0) == ""
        heart.beat()
    assert heart.hangs(2.0) == "no answer for 60 s"
    heart.heard(FIRST)
    for _ in range(MISSED):
        assert heart.hangs(2.0) == ""
        heart.beat()
    assert heart.hangs(2.0) == "no answer for 10 s"
    heart.heard(FIRST + MISSED + 100)  # a number that was never asked with
    assert heart.hangs(2.0) == ""
    for _ in range(MISSED):
        heart.beat()
    assert heart.hangs(2.0)


@pytest.mark.parametrize("late", [1, 2])
def test_an_answer_that_comes_late_counts(late: int) -> None:
    heart = Heart()
    heart.heard(heart.beat())
    for _ in range(10 * MISSED):
        heart.heard(heart.beat() - late)
        assert heart.hangs(2.0) == ""

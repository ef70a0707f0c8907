"""Tasks end with whoever waits for them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from forebay.wire.tasks import unless


def play(story: Callable[[asyncio.Event], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(10):
            await story(asyncio.Event())
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(main())


async def answer() -> str:
    await asyncio.sleep(0)
    return "yes"


def test_what_ends_first_is_returned() -> None:
    async def story(event: asyncio.Event) -> None:
        assert await unless(event, answer()) == "yes"

    play(story)


def test_what_fails_first_is_raised() -> None:
    async def fail() -> None:
        raise OSError("no")

    async def story(event: asyncio.Event) -> None:
        with pytest.raises(OSError, match="no"):
            await unless(event, fail())

    play(story)


def test_the_event_ends_the_wait_and_its_task_has_cleaned_up() -> None:
    async def story(event: asyncio.Event) -> None:
        cleaned = False

        async def hang() -> None:
            nonlocal cleaned
            try:
                event.set()
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(0)
                cleaned = True

        assert await unless(event, hang()) is None
        assert cleaned

    play(story)


def test_a_gather_is_ended_whole() -> None:
    async def story(event: asyncio.Event) -> None:
        asyncio.get_running_loop().call_soon(event.set)
        assert await unless(event, asyncio.gather(asyncio.Event().wait(), asyncio.Event().wait())) is None

    play(story)


def test_whoever_is_cancelled_leaves_no_task_behind() -> None:
    async def story(event: asyncio.Event) -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await unless(event, asyncio.Event().wait())

    play(story)

"""The links to several workers, each a real socket."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from admin_process import FakeWorker
from forebay.admin import workers as module
from forebay.admin.workers import Workers
from forebay.ledger.records import KeyRecord
from forebay.state.messages import SetKeys, Snapshot, worker_socket

KEY = KeyRecord("k1", b"\x01" * 32, "a")


def play(state_dir: Path, count: int, story: Callable[[Workers, list[Snapshot]], Awaitable[None]]) -> None:
    async def main() -> None:
        seen: list[Snapshot] = []
        workers = Workers(state_dir, count, seen.append)
        async with asyncio.timeout(30), asyncio.TaskGroup() as group:
            tasks = workers.start(group)
            try:
                await story(workers, seen)
            finally:
                for task in tasks:
                    task.cancel()

    asyncio.run(main())


async def until(look: Callable[[], object]) -> None:
    while not look():  # noqa: ASYNC110 - what is looked at has no event
        await asyncio.sleep(0.005)


def test_all_workers_are_told_and_asked(state_dir: Path) -> None:
    with contextlib.ExitStack() as stack:
        fakes = [FakeWorker(state_dir, i, boot=f"b{i}") for i in range(3)]
        for fake in fakes:
            stack.callback(fake.kill)

        async def story(workers: Workers, seen: list[Snapshot]) -> None:
            workers.set_keys(SetKeys(5, (KEY,)))
            await until(lambda: all(link.up for link in workers.links))
            assert await workers.told(5)
            assert [f.lists[-1].version for f in fakes] == [5, 5, 5]
            fakes[1].set(keys_version=77)
            await workers.fresh(5)
            assert workers.links[1].snapshot is not None
            assert workers.links[1].snapshot.keys_version == 77
            assert {s.index for s in seen} == {0, 1, 2}

        play(state_dir, 3, story)


def test_one_that_hangs_does_not_hold_the_others(state_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ANSWER", 0.5)
    with contextlib.ExitStack() as stack:
        fakes = [FakeWorker(state_dir, i) for i in range(2)]
        for fake in fakes:
            stack.callback(fake.kill)

        async def story(workers: Workers, seen: list[Snapshot]) -> None:
            await until(lambda: all(link.up for link in workers.links))
            fakes[0].answering.clear()
            workers.set_keys(SetKeys(2, (KEY,)))
            assert not await workers.told(0.1)  # pending: the one that hangs has not confirmed
            assert workers.links[1].informed
            await until(lambda: not workers.links[0].up)
            assert workers.links[0].why == "no answer within 0.5 s"
            assert await workers.told(5)  # every worker that is connected
            assert repr(workers) == "<Workers [<WorkerLink 0 no answer within 0.5 s>, <WorkerLink 1 up>]>"
            fakes[0].answering.set()
            await until(lambda: workers.links[0].up)
            assert fakes[0].lists[-1].version == 2

        play(state_dir, 2, story)


def test_a_worker_that_comes_back_gets_the_keys_again(state_dir: Path) -> None:
    first = FakeWorker(state_dir)

    async def story(workers: Workers, seen: list[Snapshot]) -> None:
        workers.set_keys(SetKeys(2, (KEY,)))
        await until(lambda: workers.links[0].up)
        await asyncio.to_thread(first.kill)
        await until(lambda: not workers.links[0].up)
        assert not workers.links[0].informed
        second = FakeWorker(state_dir, boot="boot-2")
        try:
            await until(lambda: workers.links[0].up)
            assert second.lists == [SetKeys(2, (KEY,))]
            assert workers.links[0].informed
        finally:
            await asyncio.to_thread(second.kill)

    play(state_dir, 1, story)


@pytest.mark.parametrize("said", [b"\xff\xff\xff\xff", b"\x00\x00\x00\x02{}", b"HTTP/1.1 400\r\n\r\n", b""])
def test_garbage_from_a_socket_is_no_worker(state_dir: Path, said: bytes) -> None:
    path = worker_socket(state_dir, 0)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()

        async def story(workers: Workers, seen: list[Snapshot]) -> None:
            for _ in range(2):  # it is tried again
                connection, _address = await asyncio.to_thread(listener.accept)
                with connection:
                    connection.sendall(said)
            assert not workers.links[0].up
            assert seen == []

        listener.settimeout(20)
        play(state_dir, 1, story)


def test_nobody_waits_for_a_worker_that_is_not_there(state_dir: Path) -> None:
    async def story(workers: Workers, seen: list[Snapshot]) -> None:
        workers.set_keys(SetKeys(2, (KEY,)))
        loop = asyncio.get_running_loop()
        before = loop.time()
        await workers.fresh(20)
        assert await workers.told(20)
        assert loop.time() - before < 5

    play(state_dir, 1, story)

"""Journals to write to, records to write, and what is read back."""

from __future__ import annotations

import asyncio
import errno
import functools
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from forebay.ledger.entries import How, Reserved, Settled
from forebay.ledger.journal import Journal
from forebay.ledger.journal_disk import Disk
from forebay.ledger.journal_format import segment_file, segments
from forebay.ledger.journal_read import Reader
from forebay.ledger.tokens import Tokens

WHO = ("key-1", "app", "acme", "research", "chat", "")
LIMIT = 16 << 20


class _Told(Journal):
    """Says when there is something to look at."""

    told: asyncio.Event


Told = dict[str, Any]
"""Of a life that ended: `reserved` and `settled` (seq → number of the record), `committed`, `safe` (segment → bytes
that were fsynced), `named` (segments whose names were)."""
Live = Callable[..., Told]
POINTS = [
    (call, when, n)
    for call, when in (
        ("create", "before"),
        ("create", "after"),
        ("write", "before"),
        ("write", "half"),
        ("write", "after"),
        ("sync", "before"),
        ("sync", "after"),
        ("rename", "before"),
        ("rename", "after"),
        ("sync_folder", "after"),
    )
    for n in ((0, 1, 3) if call in ("create", "rename", "sync_folder") else (0, 1, 4, 9, 17))
]
"""Where `journal_child` dies: (call of the disk, when, how many of them before)."""


def on_a_loop(test: Callable[..., Coroutine[None, None, None]]) -> Callable[..., None]:
    @functools.wraps(test)
    def run(*args: object, **kwargs: object) -> None:
        asyncio.run(test(*args, **kwargs))

    return run


def opened(folder: Path, boot: str = "boot-1", **changed: Any) -> Journal:
    """For the running loop. `journal.told` is an event, set at each commit and failure."""
    told = asyncio.Event()
    wanted: dict[str, Any] = {"currency": "USD", "limit_bytes": LIMIT, "disk": Disk()} | changed
    journal = _Told.open(
        folder, boot=boot, loop=asyncio.get_running_loop(), on_committed=lambda _: told.set(), **wanted
    )
    assert isinstance(journal, _Told)
    journal.told = told
    return journal


async def committed(journal: Journal, number: int) -> None:
    """Wait until the record `number` is on disk."""
    await until(journal, lambda: journal.committed >= number)


async def until(journal: Journal, true: Callable[[], bool]) -> None:
    """Wait for something that a commit or a failure makes true."""
    assert isinstance(journal, _Told)
    told = journal.told
    async with asyncio.timeout(20):
        while not true():
            told.clear()
            await told.wait()


def reservation(journal: Journal, size: int = 0, key: str = WHO[0]) -> Reserved:
    seq = journal.next_seq()
    return Reserved(
        seq=seq,
        request=seq,
        at=1_700_000_000.0 + seq % 1000,
        id=f"req-{seq}" + "x" * size,
        account=journal.account_no(key, *WHO[1:]),
        route="chat",
        model="gpt-4",
        served="gpt-4",
        engine="openai",
        tier="",
        class_="normal",
        end_user="",
        labels=(("team", "blue"),),
        prompt=100,
        most=200,
        held=5_000,
        price=journal.price_no(key, lambda: b'{"id":"gpt-4"}'),
    )


def cost_of(seq: int) -> int:
    return 1 + seq % 997


def settlement(seq: int, cost: int = 1_000) -> Settled:
    return Settled(seq, 1_700_000_100.0, Tokens(100, output=20), How.EXACT, cost, 0, "ok")


def looking(folder: Path, since: int = 0) -> Reader:
    """A reader that does not wait for the disk."""
    return Reader(folder, since, sync=False)


def books(folder: Path) -> tuple[dict[int, Reserved], dict[int, Settled]]:
    """What somebody who ingests from the start has at the end: the first of each seq counts."""
    reserved: dict[int, Reserved] = {}
    settled: dict[int, Settled] = {}
    for batch in looking(folder).batches():
        for record in batch.records:
            if isinstance(record, Reserved):
                assert record.account in batch.accounts
                assert record.price in batch.prices
                reserved.setdefault(record.seq, record)
            elif isinstance(record, Settled):
                settled.setdefault(record.seq, record)
    return reserved, settled


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


class Faulty(Disk):
    """Fails at the calls that are named, by number from 0; "sync" may also lose what was written since the last one."""

    def __init__(self, fails: set[int], error: int = errno.EIO) -> None:
        self.fails = fails
        self.error = error
        self.calls = 0
        self.safe: dict[int, int] = {}

    def _call(self) -> None:
        self.calls += 1
        if self.calls - 1 in self.fails:
            raise OSError(self.error, os.strerror(self.error))

    def create(self, path: Path) -> int:
        self._call()
        fd = super().create(path)
        self.safe[fd] = 0
        return fd

    def write(self, fd: int, data: memoryview) -> int:
        try:
            self._call()
        except OSError:
            super().write(fd, data[: len(data) // 2])
            raise
        return super().write(fd, data)

    def sync(self, fd: int) -> None:
        try:
            self._call()
        except OSError:
            os.ftruncate(fd, self.safe[fd])  # as a kernel that drops the pages it could not write
            raise
        super().sync(fd)
        self.safe[fd] = os.fstat(fd).st_size

    def rename(self, old: Path, new: Path) -> None:
        self._call()
        super().rename(old, new)

    def sync_folder(self, folder: Path) -> None:
        self._call()
        super().sync_folder(folder)


class Lives:
    """Workers that live and die (`journal_child`), one after another."""

    def __enter__(self) -> Lives:
        tests = Path(__file__).parent
        self._child = subprocess.Popen(
            [sys.executable, tests / "journal_child.py"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=tests,
            text=True,
        )
        return self

    def __call__(self, folder: Path, boot: str, call: str, when: str, n: int, seed: int = 1) -> Told:
        assert self._child.stdin
        assert self._child.stdout
        job = {"folder": str(folder), "boot": boot, "call": call, "when": when, "n": n, "seed": seed}
        self._child.stdin.write(json.dumps(job) + "\n")
        self._child.stdin.flush()
        assert int(self._child.stdout.readline()) == -signal.SIGKILL
        told = folder.with_name(folder.name + ".told")
        lines = [json.loads(line) for line in told.read_text().splitlines()]
        told.unlink()
        return {
            "reserved": {seq: number for _, number, seq in (x for x in lines if x[0] == "reserved")},
            "settled": {seq: number for _, number, seq in (x for x in lines if x[0] == "settled")},
            "committed": max((x[1] for x in lines if x[0] == "committed"), default=0),
            "safe": {int(x[1]): x[2] for x in lines if x[0] == "safe"},
            "named": {int(x[1]) for x in lines if x[0] == "named"},
        }

    def __exit__(self, *_: object) -> None:
        with self._child:
            assert self._child.stdin
            self._child.stdin.close()
            assert self._child.wait(20) == 0


def power_off(folder: Path, told: Told, rng: random.Random) -> None:
    """What the last life did not fsync is gone, wholly or in part, or is garbage; a rename that it did not, undone."""
    newest = max(segments(folder), default=0)
    for n in segments(folder):
        path = segment_file(folder, n)
        if n not in told["safe"]:
            continue  # of an earlier life
        if n not in told["named"] and n == newest and rng.random() < 0.5:
            path.rename(path.with_suffix(".new"))
            continue
        data = path.read_bytes()
        keep = rng.randint(told["safe"][n], len(data))
        lost = rng.choice((bytes, rng.randbytes))(len(data) - keep)
        path.write_bytes(data[:keep] + (lost if rng.random() < 0.7 else b""))

"""A worker's life with a journal that ends by SIGKILL at a chosen call of the disk.

Reads lines of JSON, `{"folder", "boot", "call", "when", "n", "seed"}`; forks a child for each, and answers with a line
once it is dead. The child writes what it was told, and what became of its files, into FOLDER.told (a killed process's
writes stay).
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
from pathlib import Path
from typing import Any

from forebay.ledger.entries import How, Progress
from forebay.ledger.journal import Journal, Tuning
from forebay.ledger.journal_disk import Disk
from journals import cost_of, reservation, settlement


class Mortal(Disk):
    """Kills its process at the call `call` number `n`: "before" it, "half" way through a write, or "after" it."""

    def __init__(self, told: int, call: str, when: str, n: int) -> None:
        self.told = told
        self.at = (call, when)
        self.left = n
        self.names: dict[int, str] = {}

    def say(self, *what: object) -> None:
        os.write(self.told, (json.dumps(what) + "\n").encode())

    def _die(self, call: str, when: str) -> None:
        if (call, when) == self.at:
            self.left -= 1
            if self.left < 0:
                os.kill(os.getpid(), signal.SIGKILL)

    def create(self, path: Path) -> int:
        self._die("create", "before")
        fd = super().create(path)
        self.names[fd] = path.stem
        self._die("create", "after")
        return fd

    def write(self, fd: int, data: memoryview) -> int:
        self._die("write", "before")
        if self.at == ("write", "half") and self.left == 0:
            super().write(fd, data[: len(data) // 2])
        self._die("write", "half")
        written = super().write(fd, data)
        self._die("write", "after")
        return written

    def sync(self, fd: int) -> None:
        self._die("sync", "before")
        super().sync(fd)
        self.say("safe", self.names[fd], os.fstat(fd).st_size)
        self._die("sync", "after")

    def rename(self, old: Path, new: Path) -> None:
        self._die("rename", "before")
        super().rename(old, new)
        self._die("rename", "after")

    def sync_folder(self, folder: Path) -> None:
        super().sync_folder(folder)
        self.say("named", max(self.names.values()))
        self._die("sync_folder", "after")


async def live(job: dict[str, Any], told: int) -> None:
    disk = Mortal(told, job["call"], job["when"], job["n"])
    rng = random.Random(job["seed"])
    journal = Journal.open(
        Path(job["folder"]),
        currency="USD",
        boot=job["boot"],
        limit_bytes=16 << 20,
        loop=asyncio.get_running_loop(),
        on_committed=lambda number: disk.say("committed", number),
        tuning=Tuning(gather=0, linger=0, pace=0, segment_bytes=4096),
        disk=disk,
    )
    journal.recover(lambda one: (How.ESTIMATED, one.delivered))
    live: list[int] = []
    while True:
        for _ in range(rng.randrange(4)):
            one = reservation(journal, size=rng.randrange(200))
            disk.say("reserved", journal.reserve(one), one.seq)
            live.append(one.seq)
        while len(live) > rng.randrange(1, 8):
            seq = live.pop(rng.randrange(len(live)))
            disk.say("settled", journal.settle(settlement(seq, cost_of(seq))), seq)
        if live and rng.random() < 0.3:
            journal.progress(Progress(2.0, ((live[0], rng.randrange(1, 50)),)))
        await asyncio.sleep(0.001)  # the load's pace


def main() -> None:
    for line in sys.stdin:
        job = json.loads(line)
        pid = os.fork()
        if pid == 0:
            told = os.open(job["folder"] + ".told", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            try:
                asyncio.run(live(job, told))
            finally:
                os._exit(1)  # it lived on, or failed: the parent sees no SIGKILL
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    main()

"""The journal on a disk that fails: nothing is lost or reordered, and it says what is wrong until it works again."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import threading
from pathlib import Path

import pytest

from forebay.ledger.entries import Progress
from forebay.ledger.journal import JournalBusy, JournalFull, State, Tuning
from forebay.ledger.journal_disk import Disk
from forebay.ledger.journal_format import segments
from forebay.ledger.journal_read import find, forget
from journals import Faulty, books, committed, looking, names, on_a_loop, opened, reservation, settlement, until

QUICK = Tuning(gather=0, linger=0, pace=0, retry=0.001, segment_bytes=4096)


async def run(folder: Path, disk: Disk) -> tuple[set[int], set[int]]:
    """A dozen groups over several segments; what must be in the books."""
    journal = opened(folder, disk=disk, tuning=QUICK)
    reserved, settled = set(), set()
    for i in range(12):
        # The account and the price of the first two are forgotten with the segment, unless something still needs them.
        ones = [reservation(journal, 100 * i, key) for key in (f"key-{i // 3}", f"key-{i // 3}", "open")]
        for one in ones:
            last = journal.reserve(one)
            reserved.add(one.seq)
        for one in ones[:2]:
            last = journal.settle(settlement(one.seq))
            settled.add(one.seq)
        journal.progress(Progress(1.0 + i, ((ones[2].seq, i + 1),)))
        if i % 4 == 3:
            await asyncio.sleep(0.001)  # what follows waits while this is under way
        else:
            await committed(journal, last)
    assert await journal.close() == 0
    assert (journal.state, journal.why, journal.waiting_bytes) == (State.OK, "", 0)
    return reserved, settled


@on_a_loop
async def test_a_failure_of_any_one_call_loses_and_reorders_nothing(tmp_path: Path) -> None:
    counting = Faulty(set())
    await run(tmp_path / "none", counting)
    assert counting.calls > 30
    for n in range(counting.calls):
        folder = tmp_path / str(n)
        reserved, settled = await run(folder, Faulty({n}))
        got_reserved, got_settled = books(folder)
        assert set(got_reserved) == reserved, n
        assert list(got_settled) == sorted(settled), n  # once, and in order
        found = find(folder)
        assert found is not None
        assert [(o.reserved.seq, o.delivered) for o in found.open] == [
            (seq, i + 1) for i, seq in enumerate(sorted(reserved - settled))
        ]


@on_a_loop
async def test_failures_one_after_another_lose_nothing_either(tmp_path: Path) -> None:
    for n, fails in enumerate(
        ({0, 1, 2, 3}, {5, 6, 7, 9}, {8, 9, 10, 11, 12}, set(range(4, 60, 6)), {3, 5, 8, 13, 17})
    ):
        folder = tmp_path / str(n)
        reserved, settled = await run(folder, Faulty(fails, errno.ENOSPC))
        got_reserved, got_settled = books(folder)
        assert (set(got_reserved), list(got_settled)) == (reserved, sorted(settled))


@on_a_loop
async def test_a_reader_beside_it_gets_everything_while_the_disk_fails_now_and_then(tmp_path: Path) -> None:
    journal = opened(tmp_path, disk=Faulty(set(range(6, 300, 7))), tuning=QUICK)
    reader = looking(tmp_path)
    seen: list[int] = []
    expected = []
    for _ in range(60):
        one = reservation(journal)
        journal.reserve(one)
        last = journal.settle(settlement(one.seq))
        expected.append(one.seq)
        await committed(journal, last)
        seen += [r.seq for _, r in reader.records() if type(r).__name__ == "Settled"]
        forget(tmp_path, reader.position)
    await journal.close()
    assert journal.failures > 10
    assert sorted(set(seen)) == expected
    assert len(segments(tmp_path)) == 1


@on_a_loop
async def test_it_says_what_is_wrong_and_when_it_is_over(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Full(Disk):
        full = False

        def write(self, fd: int, data: memoryview) -> int:
            if self.full:
                with Path("/dev/full").open("wb", buffering=0) as full:
                    return full.write(data)
            return super().write(fd, data)

    disk = Full()
    journal = opened(tmp_path, disk=disk, tuning=Tuning(gather=0, linger=0, pace=0, retry=0.001, memory_bytes=4096))
    first = reservation(journal)
    await committed(journal, journal.reserve(first))
    disk.full = True
    last = 0
    with pytest.raises(JournalFull, match=r"the journal's disk fails \(No space left on device\), and \d+ bytes wait"):
        while True:
            try:
                last = journal.reserve(reservation(journal, size=300))
            except JournalFull:
                await until(journal, lambda: bool(journal.why))  # the memory is full before the disk has said a word
                journal.reserve(reservation(journal))
    assert journal.state is State.FULL
    assert journal.why == "No space left on device"
    assert 4096 <= journal.waiting_bytes < 6000
    assert journal.refused == 2
    last = journal.settle(settlement(first.seq))  # settlements are taken all the same
    assert last > journal.committed
    disk.full = False
    await committed(journal, last)
    assert journal.state is State.OK
    said = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
    assert len(said) == 2
    assert "No space left on device; what is booked stays in memory" in said[0]
    assert "the disk takes it again" in said[1]
    assert await journal.close() == 0
    assert names(tmp_path) == {"lock", "0000000001.journal", "0000000002.journal"}
    assert set(books(tmp_path)[1]) == {first.seq}


@on_a_loop
async def test_a_folder_that_goes_away_and_comes_back(tmp_path: Path) -> None:
    folder, away = tmp_path / "journal", tmp_path / "away"
    journal = opened(folder, tuning=QUICK)
    one = reservation(journal)
    await committed(journal, journal.reserve(one))
    folder.rename(away)
    last = journal.settle(settlement(one.seq))
    while not journal.why:
        last = journal.reserve(reservation(journal))
        await until(journal, lambda: bool(journal.why) or journal.committed == last)  # noqa: B023 it is awaited here
    assert journal.why == "No such file or directory"
    away.rename(folder)
    await committed(journal, last)
    assert await journal.close() == 0
    assert set(books(folder)[1]) == {one.seq}


@on_a_loop
async def test_what_could_not_be_written_before_the_end_is_counted(tmp_path: Path) -> None:
    journal = opened(
        tmp_path, disk=Faulty(set(range(4, 100_000))), tuning=Tuning(gather=0, linger=0, pace=0, retry=0.01)
    )
    await committed(journal, 0)
    for _ in range(3):
        journal.reserve(reservation(journal))
    assert await journal.close(seconds=0.05) == 5  # an account, a price
    assert await journal.close() == 5


@on_a_loop
async def test_a_folder_that_cannot_be_made_is_said_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(Exception, match=r"file/worker-0 cannot be written to: (Not a directory|File exists)"):
        opened(tmp_path / "file" / "worker-0")


@on_a_loop
async def test_a_disk_that_does_not_answer_holds_up_nobody(tmp_path: Path) -> None:
    class Hanging(Disk):
        answers = threading.Event()

        def sync(self, fd: int) -> None:
            loop.call_soon_threadsafe(asked.set)
            assert self.answers.wait(20)
            super().sync(fd)

    loop, asked = asyncio.get_running_loop(), asyncio.Event()
    disk = Hanging()
    journal = opened(tmp_path, disk=disk, tuning=Tuning(gather=0, linger=0, pace=0, slow=0, memory_bytes=1000))
    first = reservation(journal)
    last = journal.reserve(first)
    await asked.wait()
    assert journal.state is State.FAILING
    with pytest.raises(JournalFull, match=r"the journal's disk fails \(no answer\), and \d+ bytes wait"):
        while True:
            journal.reserve(reservation(journal))
    assert journal.state is State.FULL
    last = journal.settle(settlement(first.seq))
    assert journal.committed == 0
    disk.answers.set()
    await committed(journal, last)
    assert journal.state is State.OK
    assert await journal.close() == 0
    assert set(books(tmp_path)[1]) == {first.seq}


@on_a_loop
async def test_a_disk_that_hangs_does_not_keep_the_process(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Hanging(Disk):
        answers = threading.Event()

        def sync(self, fd: int) -> None:
            assert self.answers.wait(20)

    disk = Hanging()
    journal = opened(tmp_path, disk=disk)
    journal.reserve(reservation(journal))
    with caplog.at_level("ERROR"):
        assert await journal.close(seconds=0.01) == 3
    assert "3 records could not be written: no answer" in caplog.text
    with pytest.raises(JournalBusy):
        opened(tmp_path)  # its thread may still write
    disk.answers.set()
    journal._writer.join(20)
    os.close(journal._lock)


@on_a_loop
async def test_the_names_of_new_folders_are_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A power cut would take the journal with a folder's name."""
    synced: list[Path] = []

    def sync(_: Disk, folder: Path) -> None:
        synced.append(folder)

    monkeypatch.setattr(Disk, "sync_folder", sync)
    journal = opened(tmp_path / "state" / "journal" / "worker-0")
    assert synced[:3] == [tmp_path, tmp_path / "state", tmp_path / "state" / "journal"]
    await journal.close()

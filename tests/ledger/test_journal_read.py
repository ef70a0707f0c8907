"""Reading: a cut end is where reading stops; anything else that is not as it was written is said with its place."""

from __future__ import annotations

import os
import random
import re
import shutil
from pathlib import Path

import msgspec
import pytest

from forebay.ledger.entries import Account, Began, Reserved
from forebay.ledger.journal import Journal, JournalError, Tuning
from forebay.ledger.journal_format import (
    GROUP_BYTES,
    HEAD_BYTES,
    JournalCorrupt,
    group,
    groups,
    position,
    records_at,
    segment_file,
    segments,
    split,
)
from forebay.ledger.journal_read import Reader, find, forget
from journals import books, committed, looking, on_a_loop, opened, reservation, settlement


async def written(folder: Path, rounds: int = 8, segment_bytes: int = 1 << 20) -> Journal:
    """Each round is a group."""
    journal = opened(folder, tuning=Tuning(gather=0, linger=0, pace=0, segment_bytes=segment_bytes))
    await committed(journal, 0)
    for _ in range(rounds):
        one, two = reservation(journal), reservation(journal)
        journal.reserve(one)
        journal.reserve(two)
        await committed(journal, journal.settle(settlement(one.seq)))
    await journal.close()
    return journal


def starts(path: Path, segment: int) -> list[int]:
    """Where the groups of a segment begin, and its end."""
    fd = os.open(path, os.O_RDONLY)
    size = os.fstat(fd).st_size
    found = [0]
    while (data := records_at(fd, segment, found[-1], size)) is not None:
        found.append(found[-1] + HEAD_BYTES + len(data))
    os.close(fd)
    assert found[-1] == size
    return found


@on_a_loop
async def test_a_tail_cut_at_any_byte_is_no_error(tmp_path: Path) -> None:
    await written(tmp_path / "whole")
    data = segment_file(tmp_path / "whole", 1).read_bytes()
    groups_at = starts(segment_file(tmp_path / "whole", 1), 1)
    cut = tmp_path / "cut"
    cut.mkdir()
    for size in range(groups_at[1], len(data) + 1, 7):
        segment_file(cut, 1).write_bytes(data[:size])
        reader = looking(cut)
        sound = max(at for at in groups_at if at <= size)
        assert [split(batch.position)[1] for batch in reader.batches()] == [at for at in groups_at[1:] if at <= sound]
        assert reader.position == position(1, sound)
        segment_file(cut, 1).write_bytes(data)  # the writer went on
        assert sum(len(batch.records) for batch in reader.batches()) == sum(
            len(batch.records) for batch in looking(tmp_path / "whole", position(1, sound)).batches()
        )


@on_a_loop
async def test_damage_before_the_end_is_an_error_with_its_place(tmp_path: Path) -> None:
    await written(tmp_path)
    path = segment_file(tmp_path, 1)
    data = path.read_bytes()
    groups_at = starts(path, 1)
    rng = random.Random(6)
    for broken in groups_at[1:-2]:
        for at in (broken, broken + 4, broken + 9, rng.randrange(broken, groups_at[groups_at.index(broken) + 1])):
            path.write_bytes(data[:at] + bytes([data[at] ^ 0x41]) + data[at + 1 :])
            where = f"{re.escape(str(path))} is damaged at byte {broken}: a sound group follows at byte"
            with pytest.raises(JournalCorrupt, match=where):
                list(looking(tmp_path).batches())
            with pytest.raises(JournalCorrupt, match=where):
                opened(tmp_path, "boot-2")
    path.write_bytes(data[:10] + b"?" + data[11:])
    with pytest.raises(JournalCorrupt, match="damaged at byte 0"):
        opened(tmp_path, "boot-2")
    path.write_bytes(b"")
    with pytest.raises(JournalCorrupt, match="damaged at byte 0: it does not begin as a segment does"):
        opened(tmp_path, "boot-2")


@on_a_loop
async def test_a_segment_that_lost_what_was_safe_is_an_error(tmp_path: Path) -> None:
    await written(tmp_path, 20, segment_bytes=1024)
    assert len(segments(tmp_path)) > 3
    path = segment_file(tmp_path, 2)
    data, last = path.read_bytes(), starts(path, 2)[-2]
    reader = looking(tmp_path)
    path.write_bytes(data[:-1])
    with pytest.raises(JournalCorrupt, match=rf"0000000002.journal is damaged at byte {last}: {len(data)} bytes of it"):
        list(reader.batches())
    assert reader.position == position(2, last)
    path.write_bytes(data)  # it was restored
    list(reader.batches())
    assert split(reader.position)[0] == segments(tmp_path)[-1]


@on_a_loop
async def test_it_goes_on_without_a_damaged_segment_where_somebody_says_so(tmp_path: Path) -> None:
    await written(tmp_path, 20, segment_bytes=1024)
    newest = segments(tmp_path)[-1]
    everything = list(looking(tmp_path).batches())
    for n in (2, newest):
        segment_file(tmp_path, n).write_bytes(b"gone")
        with pytest.raises(JournalCorrupt, match=rf"rename it to 000000000{n}\.damaged to go on without") as found:
            list(looking(tmp_path, position(n, 0)).batches())
        assert found.value.give_up() == tmp_path / f"000000000{n}.damaged"
    assert [b.position for b in looking(tmp_path).batches()] == [
        b.position for b in everything if split(b.position)[0] not in (2, newest)
    ]
    again = opened(tmp_path, "boot-2")
    await committed(again, again.reserve(reservation(again)))
    assert await again.close() == 0
    assert segments(tmp_path)[-1] == newest + 1  # numbers are not used again: somebody may have read up to there
    reserved, _ = books(tmp_path)
    assert len(reserved) < 41


@on_a_loop
async def test_a_segment_that_is_missing_is_an_error_unless_it_was_read(tmp_path: Path) -> None:
    await written(tmp_path, 20, segment_bytes=1024)
    newest = segments(tmp_path)[-1]
    before = list(looking(tmp_path).batches())
    end_of_two = max(batch.position for batch in before if split(batch.position)[0] == 2)
    path = segment_file(tmp_path, 2)
    data = path.read_bytes()
    path.unlink()
    for since in (0, position(1, 0), position(2, 0), end_of_two - 1):
        with pytest.raises(JournalCorrupt, match=r"0000000002.journal is missing") as found:
            list(looking(tmp_path, since).batches())
        assert found.value.give_up() is None
    assert [b.position for b in looking(tmp_path, end_of_two).batches()] == [
        b.position for b in before if b.position > end_of_two
    ]
    segment_file(tmp_path, 1).unlink()  # to a reader without a past the oldest there is the first
    assert split(next(looking(tmp_path).batches()).position)[0] == 3
    path.write_bytes(data)
    with pytest.raises(JournalCorrupt, match=f"read up to segment {newest + 1}, but the newest is {newest}"):
        list(looking(tmp_path, position(newest + 1, 0)).batches())


@on_a_loop
async def test_what_a_given_up_segment_has_too_much_does_not_matter(tmp_path: Path) -> None:
    """The next one says of it how much counts."""
    await written(tmp_path)
    path = segment_file(tmp_path, 1)
    with path.open("ab") as file:
        file.write(b"FBJ1 and garbage" * 9)
    again = opened(tmp_path, "boot-2")
    assert again.recover(lambda one: pytest.fail("none delivered anything")) == 8
    await again.close()
    reserved, settled = books(tmp_path)
    assert set(reserved) == set(settled)
    assert len(reserved) == 16


@on_a_loop
async def test_only_whoever_wrote_it_where_it_stands_is_believed(tmp_path: Path) -> None:
    await written(tmp_path)
    segment_file(tmp_path, 1).rename(segment_file(tmp_path, 2))
    with pytest.raises(JournalCorrupt, match="damaged at byte 0"):
        list(looking(tmp_path).batches())


@on_a_loop
async def test_records_of_a_newer_program_are_said_to_be_that(tmp_path: Path) -> None:
    await written(tmp_path)
    path = segment_file(tmp_path, 1)
    size = path.stat().st_size
    with path.open("ab") as file:
        file.write(group(1, size, [msgspec.msgpack.encode(["z", 1])]))
    with pytest.raises(JournalError, match=rf"at byte {size} has records of a kind that this Forebay does not know"):
        list(looking(tmp_path).batches())


def test_no_folder_no_journal(tmp_path: Path) -> None:
    assert find(tmp_path) is None
    assert list(looking(tmp_path).batches()) == []
    with pytest.raises(JournalError, match="cannot be read: No such file"):
        find(tmp_path / "none")
    with pytest.raises(JournalError, match="cannot be read: No such file"):
        list(looking(tmp_path / "none").batches())


def test_other_files_in_the_folder_are_left_alone(tmp_path: Path) -> None:
    for name in ("lock", "0000000001.new", "notes.journal", "0000000003.journal"):
        (tmp_path / name).touch()
    assert segments(tmp_path) == [3]
    assert forget(tmp_path, position(3, 50)) == 0
    assert forget(tmp_path, position(4, 0)) == 1
    assert sorted(p.name for p in tmp_path.iterdir()) == ["0000000001.new", "lock", "notes.journal"]


def test_much_at_once_is_several_groups(tmp_path: Path) -> None:
    began = Began("0" * 16, "b", 1, 9, "USD", 1.0)
    accounts = [Account(n, "k" * 1000, "", "", "", "", "") for n in range(3 * GROUP_BYTES // 1000)]
    parts = [msgspec.msgpack.encode(r) for r in (began, *accounts)]
    segment_file(tmp_path, 1).write_bytes(groups(1, 0, parts))
    batches = list(looking(tmp_path).batches())
    assert 3 <= len(batches) <= 4
    assert [r for b in batches for r in b.records] == [began, *accounts]
    assert len(batches[-1].accounts) == len(accounts)


@on_a_loop
async def test_a_reader_that_keeps_up_reads_nothing_twice_and_misses_nothing(tmp_path: Path) -> None:
    journal = opened(tmp_path, tuning=Tuning(gather=0, linger=0, pace=0, segment_bytes=2048))
    reader = Reader(tmp_path)
    seen: list[int] = []
    for _ in range(60):
        one = reservation(journal)
        journal.reserve(one)
        journal.settle(settlement(one.seq))
        await committed(journal, journal.committed)
        seen += [r.seq for _, r in reader.records() if isinstance(r, Reserved)]
    await journal.close()
    seen += [r.seq for _, r in reader.records() if isinstance(r, Reserved)]
    assert seen == list(range(1, 61))
    assert list(reader.records()) == []
    shutil.copytree(tmp_path, tmp_path / "copy")
    assert list(Reader(tmp_path / "copy", reader.position).records()) == []

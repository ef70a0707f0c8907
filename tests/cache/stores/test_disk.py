"""The file of answers: its bounds, and what can become of it."""

from __future__ import annotations

import sqlite3
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from answer_stores import disks, record
from forebay.cache.messages import Purge
from forebay.cache.stores.disk import Disk
from forebay.cache.stores.store import Put, StoreError, StoreGone
from forebay.clock import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def opened(folder: Path, clock: ManualClock, most_bytes: int = 4 << 20) -> Disk:
    return Disk(folder / "answers.db", most_bytes, clock.wall)


def size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("answers.db*"))


def test_what_is_longest_unused_makes_room(tmp_path: Path, clock: ManualClock) -> None:
    store = opened(tmp_path, clock, 1 << 20)
    made = [record(n, clock, answer=bytes([n % 256]) * 10_000) for n in range(300)]
    gone: list[str] = []
    for one in made:
        clock.advance(0.001)
        store.touch([made[0].entry])
        put = store.put(one)
        assert put.kept
        gone += put.gone
    stats = store.stats()
    assert stats.bytes is not None and stats.bytes <= 1 << 20
    assert stats.entries == 300 - len(gone) == 300 - stats.evicted
    assert stats.entries > 70
    assert gone == [one.entry for one in made[1 : len(gone) + 1]]
    assert store.get(made[0].entry) == made[0]
    store.close()
    assert size(tmp_path) < 1.1 * (1 << 20)


def test_a_smaller_bound_is_reached_step_by_step_and_the_file_shrinks(tmp_path: Path, clock: ManualClock) -> None:
    with disks(tmp_path) as again:
        store = again(clock)
        for n in range(800):
            store.put(record(n, clock, answer=bytes(3_000)))
        store.close()
    store = opened(tmp_path, clock, 400_000)
    steps = 0
    while store.expire():
        steps += 1
    stats = store.stats()
    assert 1 < steps < 10
    assert stats.bytes is not None and stats.bytes <= 400_000
    assert stats.entries is not None and stats.entries > 50
    store.close()
    assert size(tmp_path) < 500_000


def test_an_answer_that_is_too_large_for_the_file_takes_no_other_away(tmp_path: Path, clock: ManualClock) -> None:
    store = opened(tmp_path, clock, 1 << 20)
    store.put(record(1, clock))
    assert store.put(record(2, clock, answer=bytes(300_000))) == Put(False, ())
    assert store.get(record(1, clock).entry) is not None
    store.close()


def test_expiry_removes_a_page_at_a_time(tmp_path: Path, clock: ManualClock) -> None:
    store = opened(tmp_path, clock)
    for n in range(700):
        store.put(record(n, clock, answer=b"a"))
    clock.advance(151)
    assert [len(store.expire()) for _ in range(3)] == [500, 200, 0]
    assert store.stats().entries == 0
    store.close()


def test_a_file_is_for_its_owner_only(tmp_path: Path, clock: ManualClock) -> None:
    store = opened(tmp_path / "state", clock)
    store.put(record(1, clock))
    assert {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "state").iterdir()} == {0o600}
    store.close()


def test_a_purged_answer_is_in_no_file_any_more(tmp_path: Path, clock: ManualClock) -> None:
    store = opened(tmp_path, clock)
    secret = b"a secret answer" * 1_000
    store.put(record(1, clock, answer=secret, question="a secret question"))
    for n in range(2, 40):
        store.put(record(n, clock))

    def found() -> bool:
        return any(b"a secret" in path.read_bytes() for path in tmp_path.iterdir())

    assert found()
    store.remove(Purge(0, source="doc-1"))
    assert not found()
    store.close()


@pytest.mark.parametrize("where", ["head", "middle", "text", "cut", "empty"])
def test_a_damaged_file_is_set_aside_or_its_answers_are_not_believed(
    tmp_path: Path, clock: ManualClock, where: str
) -> None:
    store = opened(tmp_path, clock)
    made = [record(n, clock) for n in range(300)]
    for one in made:
        store.put(one)
    store.close()
    file = tmp_path / "answers.db"
    data = bytearray(file.read_bytes())
    if where == "head":
        data[:100] = bytes(100)
    elif where == "middle":
        for at in range(8_192, len(data), 1_024):
            data[at : at + 200] = b"\xa5" * 200
    elif where == "text":
        data = bytearray(b"nothing of ours\n" * 100)
    elif where == "cut":
        del data[len(data) // 2 :]
    else:
        data.clear()
    file.write_bytes(data)
    store = opened(tmp_path, clock)
    for one in made:
        assert store.get(one.entry) in (None, one)
        assert store.exact(one.exact) in (None, one)
    new = record(1_000, clock)
    store.put(new)  # where the damage is met only now, this one is lost
    store.put(new)
    assert store.get(new.entry) == new
    assert (tmp_path / "answers.db.damaged").exists() is (where != "empty")
    assert store.stats().state == "ok"
    store.close()


def test_one_answer_whose_bytes_changed_is_removed(tmp_path: Path, clock: ManualClock) -> None:
    store = opened(tmp_path, clock)
    made = [record(n, clock) for n in (1, 2)]
    for one in made:
        store.put(one)
    store.close()
    with sqlite3.connect(tmp_path / "answers.db") as db:
        ours = bytearray(db.execute("SELECT record FROM packed WHERE id = 1").fetchone()[0])
        ours[100] ^= 1
        db.execute("UPDATE packed SET record = ? WHERE id = 1", (bytes(ours),))
    db.close()
    store = opened(tmp_path, clock)
    assert (store.get(made[0].entry), store.get(made[1].entry)) == (None, made[1])
    stats = store.stats()
    assert (stats.damaged, stats.entries) == (1, 1)
    store.close()


def test_text_that_is_no_utf_8_stands_in_nobody_s_way(tmp_path: Path, clock: ManualClock) -> None:
    store = opened(tmp_path, clock)
    made = [record(n, clock, scope=b"s" * 16) for n in (1, 2)]
    for one in made:
        store.put(one)
    with sqlite3.connect(tmp_path / "answers.db") as db:
        db.execute("UPDATE records SET question = CAST(x'61ff' AS TEXT) WHERE id = 1")
    db.close()
    assert {known.entry for page in store.questions() for known in page} == {one.entry for one in made}
    assert store.get(made[1].entry) == made[1]
    store.close()


def test_what_a_full_disk_does_not_let_go_is_not_given(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(tmp_path, clock)
    made = [record(n, clock, tags=("faq",) if n == 1 else ()) for n in (1, 2, 3)]
    for one in made:
        store.put(one)

    @contextmanager
    def full(db: Disk, *, durable: bool = False) -> Iterator[sqlite3.Connection]:
        with db._alone():
            raise sqlite3.OperationalError("database or disk is full")
        yield db._writer

    with monkeypatch.context() as patch:
        patch.setattr(Disk, "_write", full)
        with pytest.raises(StoreGone, match="full"):
            store.remove(Purge(0, tag="faq"))
        with pytest.raises(StoreGone, match="full"):
            store.discard([made[1].entry])
        assert [store.exact(one.exact) for one in made] == [None, None, made[2]]
    assert store.remove(Purge(0, tag="faq")) == (made[0].entry,)
    assert store.get(made[2].entry) == made[2]
    store.close()


def test_a_record_of_another_version_of_forebay_is_not_there(tmp_path: Path, clock: ManualClock) -> None:
    store = opened(tmp_path, clock)
    store.put(record(1, clock))
    store.close()
    with sqlite3.connect(tmp_path / "answers.db") as db:
        ours = bytearray(db.execute("SELECT record FROM packed").fetchone()[0])
        ours[2] += 1
        db.execute("UPDATE packed SET record = ?", (bytes(ours),))
    db.close()
    store = opened(tmp_path, clock)
    assert store.exact(record(1, clock).exact) is None
    assert (store.stats().other_format, store.stats().damaged) == (1, 0)
    assert store.put(record(1, clock)).kept
    store.close()


def test_a_file_of_another_layout_is_set_aside(tmp_path: Path, clock: ManualClock) -> None:
    store = opened(tmp_path, clock)
    store.put(record(1, clock))
    store.close()
    with sqlite3.connect(tmp_path / "answers.db") as db:
        db.execute("PRAGMA user_version = 99")
    db.close()
    store = opened(tmp_path, clock)
    assert store.stats().entries == 0
    assert (tmp_path / "answers.db.damaged").exists()
    store.close()


def test_another_process_that_holds_the_file_costs_a_bounded_wait(tmp_path: Path, clock: ManualClock) -> None:
    store = Disk(tmp_path / "answers.db", 4 << 20, clock.wall, write_wait=0.05)
    store.put(record(1, clock))
    other = sqlite3.connect(tmp_path / "answers.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    assert store.put(record(2, clock)) == Put(False, ())
    with pytest.raises(StoreGone, match="locked"):
        store.remove(Purge(0))
    assert store.get(record(1, clock).entry) is None, "what was to go is not given"
    other.execute("ROLLBACK")
    other.close()
    clock.advance(1)
    assert store.put(record(3, clock)).kept
    assert store.stats().failed == 2
    store.close()


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path, clock: ManualClock) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=r"cache\.disk_bytes"):
        opened(tmp_path / "file", clock)


def test_look_ups_and_puts_from_many_threads(tmp_path: Path, clock: ManualClock) -> None:
    store = opened(tmp_path, clock)
    wrong: list[object] = []

    def work(mine: int) -> None:
        for n in range(mine, mine + 50):
            one = record(n, clock)
            store.put(one)
            if store.get(one.entry) != one:
                wrong.append(n)
            store.touch([one.entry])
        if store.discard([record(mine, clock).entry]) != 1:
            wrong.append(mine)

    threads = [threading.Thread(target=work, args=(k * 1_000,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert store.stats().entries == 4 * 49
    store.close()


def test_what_is_put_together_is_one_transaction(tmp_path: Path, clock: ManualClock) -> None:
    store = opened(tmp_path, clock)
    some = [record(n, clock) for n in range(4)]
    store.put(some[0])
    with store.together():
        assert all(store.put(one).kept for one in some[1:])
        store.touch([some[0].entry])
        assert [store.get(one.entry) is not None for one in some] == [True, False, False, False]
    assert [store.get(one.entry) for one in some] == some
    with pytest.raises(KeyError), store.together():
        store.put(record(9, clock))
        raise KeyError
    assert store.get(record(9, clock).entry) is None
    store.remove(Purge(1))
    assert store.stats().entries == 0
    store.close()


def test_where_the_file_fails_the_rest_is_put_one_by_one(tmp_path: Path, clock: ManualClock) -> None:
    """Another process has the lock: that is said before anything is put; and the next ones are kept again."""
    store = Disk(tmp_path / "answers.db", 4 << 20, clock.wall, write_wait=0.01)
    other = sqlite3.connect(tmp_path / "answers.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreGone), store.together():
        raise AssertionError("nothing is begun")
    other.execute("ROLLBACK")
    other.close()
    assert store.put(record(1, clock)).kept
    store.close()


def test_a_question_is_known_with_its_reading_also_in_a_file_that_had_none(tmp_path: Path, clock: ManualClock) -> None:
    store = opened(tmp_path, clock)
    store.put(record(1, clock), b"one")
    store.close()
    with sqlite3.connect(tmp_path / "answers.db") as db:
        db.execute("ALTER TABLE records DROP COLUMN reading")  # as an older version made it
    store = opened(tmp_path, clock)
    kept = [record(n, clock) for n in range(1, 201)]
    for n, one in enumerate(kept[1:], 2):
        assert store.put(one, b"%d" % n).kept
    found = store.known([one.entry for one in kept])
    assert [found[one.entry].reading for one in kept] == [b"", *(b"%d" % n for n in range(2, 201))]
    assert store.known([]) == {}
    assert store.get(kept[0].entry) == kept[0]
    store.close()


def test_a_full_disk_is_told_until_something_can_be_written_again(tmp_path: Path, clock: ManualClock) -> None:
    store = opened(tmp_path, clock)
    first = record(1, clock)
    assert store.put(first).kept
    pages = store._writer.execute("PRAGMA page_count").fetchone()[0]
    store._writer.execute(f"PRAGMA max_page_count = {pages}")  # SQLite then says what it says of a full disk
    assert not store.put(record(2, clock, answer=bytes(100_000))).kept
    assert "full; no answer is kept" in store.state
    assert store.stats().state == store.state
    store.expire()  # nothing to be done, which says nothing
    assert "full" in store.state
    assert store.exact(first.exact) == first
    store._writer.execute("PRAGMA max_page_count = 100000")
    assert store.put(record(3, clock)).kept
    assert store.state == "ok"
    store.close()

"""The index in the helper's memory, and its file."""

from __future__ import annotations

import contextlib
import resource
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.cache.semantic import vectors_file
from forebay.cache.semantic.arena import _singles
from forebay.cache.semantic.faiss_index import FaissIndex
from forebay.cache.semantic.index import BadVector, Index, Space
from forebay.cache.semantic.scoped import NARROW
from forebay.cache.semantic.vectors_file import Row
from index_contract import DIMENSIONS, IndexContract, Make, again, exact, filled, questions, scope

SPACE = Space("test", DIMENSIONS)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "semantic"


@pytest.fixture
def make(folder: Path) -> Iterator[Make]:
    made: list[FaissIndex] = []

    def one(most: int) -> Index:
        made.append(FaissIndex(folder, SPACE, most))
        return made[-1]

    yield one
    for index in made:
        index.close()


class TestContract(IndexContract):
    pass


def reopened(index: FaissIndex, folder: Path, most: int = 5_000, space: Space = SPACE) -> FaissIndex:
    index.close()
    return FaissIndex(folder, space, most)


def entries(index: FaissIndex, of: bytes) -> set[str]:
    return {near.entry for near in index.search(of, questions(1), 10_000)[0]}


def test_what_was_saved_is_there_again(folder: Path) -> None:
    index, vectors = FaissIndex(folder, SPACE, 5_000), questions(1_000)
    filled(index, vectors[:900], scope(1))
    filled(index, vectors[900:], scope(2), "b")
    index.save()
    index.remove(["e5", "b7"])
    index.add(scope(2), "e6", vectors[6])
    asked = questions(20, seed=3)
    before = [index.search(scope(n), asked, 8) for n in (1, 2)]
    index = reopened(index, folder)
    assert index.opened == (998, 0, None, "")
    assert len(index) == 998
    assert index.missing(["e5", "b7", "e6"]) == ["e5", "b7"]
    after = [index.search(scope(n), asked, 8) for n in (1, 2)]
    for one, other in zip(before[0] + before[1], after[0] + after[1], strict=True):
        assert [near[:2] for near in one] == [near[:2] for near in other]
    index.close()


def test_order_of_use_is_there_again(folder: Path) -> None:
    index, vectors = FaissIndex(folder, SPACE, 100), questions(110)
    names = filled(index, vectors[:100], scope(1))
    index.save()
    index.touch(names[:10])
    index = reopened(index, folder, most=100)
    filled(index, vectors[100:], scope(1), "new")
    assert index.missing(names) == names[10:20]
    index.close()


def test_fewer_entries_than_before_keep_the_last_used(folder: Path) -> None:
    index, vectors = FaissIndex(folder, SPACE, 5_000), questions(500)
    names = filled(index, vectors, scope(1))
    index.touch(names[:50])
    index = reopened(index, folder, most=100)
    assert len(index) == 100
    assert index.missing(names) == names[50:450]
    assert index.search(scope(1), vectors[499:], 1)[0][0].entry == "e499"
    index = reopened(index, folder, most=100)
    assert index.missing(names) == names[50:450]
    index.close()


def test_a_save_writes_what_changed(folder: Path) -> None:
    index = FaissIndex(folder, SPACE, 5_000)
    names = filled(index, questions(3_000), scope(1))
    index.save()
    log = folder / "vectors.sqlite-wal"

    def written() -> int:
        """Of the log, which SQLite begins from its start once all of it is in the file."""
        return log.stat().st_mtime_ns

    before = written()
    index.save()
    assert written() == before
    index.touch(names[:1])
    index.save()
    assert written() != before
    index.close()


@pytest.mark.parametrize("damage", ["empty", "text", "cut", "zeros", "other tables"])
def test_a_damaged_file_is_set_aside(folder: Path, damage: str) -> None:
    index = FaissIndex(folder, SPACE, 5_000)
    filled(index, questions(2_000), scope(1))
    index.close()
    file = folder / "vectors.sqlite"
    whole = file.read_bytes()
    if damage == "other tables":
        file.unlink()
        with sqlite3.connect(file) as db:
            db.execute("CREATE TABLE head (x)")
        db.close()
    else:
        zeroed = whole[:8192] + bytes(len(whole) - 8192)
        file.write_bytes(
            {"empty": b"", "text": b"hello" * 999, "cut": whole[: len(whole) // 2], "zeros": zeroed}[damage]
        )
    index = FaissIndex(folder, SPACE, 5_000)
    assert len(index) == 0
    assert index.search(scope(1), questions(1), 8) == [[]]
    if damage != "empty":  # a file of no bytes is a new one
        assert index.opened.aside == folder / "vectors.sqlite.aside"
        assert "damaged" in index.opened.why
    index.add(scope(1), "new", questions(1)[0])
    index = reopened(index, folder)
    assert index.opened == (1, 0, None, "")
    index.close()


def test_a_damaged_row_is_not_believed(folder: Path) -> None:
    index, vectors = FaissIndex(folder, SPACE, 5_000), questions(500)
    names = filled(index, vectors, scope(1))
    index.close()
    file = folder / "vectors.sqlite"
    whole = bytearray(file.read_bytes())
    at = whole.index(vectors[123].astype(np.float16).tobytes())
    whole[at + 9] ^= 0x40
    file.write_bytes(whole)
    index = FaissIndex(folder, SPACE, 5_000)
    assert index.opened == (499, 1, None, "")
    assert index.missing(names) == ["e123"]
    index.add(scope(1), "e123", vectors[123])
    index = reopened(index, folder)
    assert index.opened == (500, 0, None, "")
    index.close()


def test_a_flipped_byte_anywhere_is_never_a_wrong_vector(folder: Path) -> None:
    index, vectors = FaissIndex(folder, SPACE, 5_000), questions(100)
    filled(index, vectors, scope(1))
    index.close()
    file = folder / "vectors.sqlite"
    whole, rng = file.read_bytes(), np.random.default_rng(4)
    kept = 0
    for at in [*range(0, 100, 9), *rng.integers(len(whole), size=40).tolist()]:
        file.write_bytes(whole[:at] + bytes([whole[at] ^ 0x55]) + whole[at + 1 :])
        index = FaissIndex(folder, SPACE, 5_000)
        for near in index.search(scope(1), vectors[0], 200)[0]:
            np.testing.assert_allclose(near.vector, vectors[int(near.entry[1:])], atol=1e-3)
            kept += 1
        index.close()
    assert kept > 2_000


@pytest.mark.parametrize("other", [Space("another", DIMENSIONS), Space("test", 32), Space("test", DIMENSIONS, "2")])
def test_another_spaces_file_is_set_aside(folder: Path, other: Space) -> None:
    index = FaissIndex(folder, SPACE, 5_000)
    filled(index, questions(20), scope(1))
    index = reopened(index, folder, space=other)
    assert len(index) == 0
    assert index.opened.aside == folder / "vectors.sqlite.aside"
    assert index.opened.why.startswith("it is of ")
    index = reopened(index, folder)
    assert len(index) == 0
    index.close()


def test_a_file_that_is_damaged_meanwhile_is_written_anew(folder: Path) -> None:
    index, vectors = FaissIndex(folder, SPACE, 20_000), questions(15_000)
    names = filled(index, vectors, scope(1))
    index.save()
    file = folder / "vectors.sqlite"
    with file.open("r+b") as f:
        f.write(b"\xff" * file.stat().st_size)
    (folder / "vectors.sqlite-wal").write_bytes(b"")
    index.touch(names)
    index.save()
    assert (folder / "vectors.sqlite.aside").exists()
    index = reopened(index, folder, most=20_000)
    assert index.opened == (15_000, 0, None, "")
    index.close()


@contextlib.contextmanager
def full_disk() -> Iterator[None]:
    """Files of more than 512 KB cannot be written."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 19, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_loses_nothing(folder: Path) -> None:
    index, vectors = FaissIndex(folder, SPACE, 20_000), questions(6_000)
    names = filled(index, vectors, scope(1))
    index.save()
    index.remove(names[:10])
    index.touch(names[10:20])
    filled(index, vectors, scope(2), "b")
    with full_disk(), pytest.raises(OSError, match=r"vectors\.sqlite"):
        index.save()
    index.remove(["b1"])
    index = reopened(index, folder, most=20_000)
    assert len(index) == 11_989
    assert index.missing([*names, "b1"]) == [*names[:10], "b1"]
    index.close()


def test_a_full_disk_at_the_end_leaves_what_was_saved(folder: Path) -> None:
    index, vectors = FaissIndex(folder, SPACE, 20_000), questions(6_000)
    filled(index, vectors, scope(1))
    index.save()
    filled(index, vectors, scope(2), "b")
    with full_disk(), pytest.raises(OSError, match=r"vectors\.sqlite"):
        index.close()
    index = FaissIndex(folder, SPACE, 20_000)
    assert index.opened.aside is None
    assert len(index.search(scope(1), vectors[0], 10_000)[0]) == 6_000
    index.close()


def test_another_process_has_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vectors_file, "_WAIT", 0.05)
    index = FaissIndex(folder, SPACE, 100)
    with pytest.raises(OSError, match="in use by another process"):
        FaissIndex(folder, SPACE, 100)
    index.close()


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "semantic").write_text("")
    with pytest.raises(OSError, match="semantic"):
        FaissIndex(tmp_path / "semantic", SPACE, 100)
    (tmp_path / "other" / "vectors.sqlite").mkdir(parents=True)
    with pytest.raises(OSError, match=r"vectors\.sqlite"):
        FaissIndex(tmp_path / "other", SPACE, 100)


def test_only_the_owner_may_read_it(folder: Path) -> None:
    index = FaissIndex(folder, SPACE, 100)
    index.add(scope(1), "e", questions(1)[0])
    index.save()
    for path in [folder, *folder.iterdir()]:
        assert path.stat().st_mode & 0o077 == 0, path
    index.close()


def test_what_is_purged_is_not_in_the_file(folder: Path) -> None:
    index, vectors = FaissIndex(folder, SPACE, 5_000), questions(300)
    names = filled(index, vectors, scope(1))
    index.save()
    index.remove(names[:299])
    index = reopened(index, folder)
    index.close()
    whole = (folder / "vectors.sqlite").read_bytes()
    inside = [vector.astype(np.float16).tobytes() in whole for vector in vectors]
    assert inside == [False] * 299 + [True]


KILLED = """
import sys
from pathlib import Path
from index_contract import questions, scope
from forebay.cache.semantic.faiss_index import FaissIndex
from forebay.cache.semantic.index import Space
index, vectors = FaissIndex(Path(sys.argv[1]), Space("test", 64), 400), questions(2_000)
for round in range(1_000_000):
    for i in range(round % 7, 2_000, 7):
        index.add(scope(i % 3), f"e{i}", vectors[i])
    index.remove([f"e{round % 2_000}"])
    index.save()
    print(round, flush=True)
"""


def test_a_process_that_is_killed_leaves_a_file_to_believe(folder: Path) -> None:
    vectors = questions(2_000)
    for _ in range(2):
        command = [sys.executable, "-c", KILLED, str(folder)]
        child = subprocess.Popen(
            command, stdout=subprocess.PIPE, env={"PYTHONPATH": str(Path(__file__).parents[2])}, text=True
        )
        assert child.stdout
        for _ in range(12):
            assert child.stdout.readline().strip().isdigit()
        child.send_signal(signal.SIGKILL)
        child.wait()
        child.stdout.close()
        index = FaissIndex(folder, SPACE, 400)
        assert index.opened.aside is None
        assert index.opened.damaged == 0
        assert len(index) > 300
        for n in range(3):
            for near in index.search(scope(n), vectors[0], 400)[0]:
                i = int(near.entry[1:])
                assert i % 3 == n
                np.testing.assert_allclose(near.vector, vectors[i], atol=1e-3)
        index.close()


def test_threads_at_once(folder: Path) -> None:
    """One adds and removes, one saves, two search: what is found is what was put there."""
    index, vectors = FaissIndex(folder, SPACE, 800), questions(1_500)
    done = threading.Event()
    wrong: list[object] = []

    def searching() -> None:
        i = 0
        while not done.is_set():
            i = (i + 7) % len(vectors)
            for near in index.search(scope(i % 2), vectors[i], 8)[0]:
                if abs(float(vectors[int(near.entry[1:])] @ vectors[i]) - near.cosine) > 2e-3:
                    wrong.append(near)

    def saving() -> None:
        while not done.is_set():
            index.save()
            index.like(vectors[0], 0.9, 5)

    threads = [threading.Thread(target=call) for call in (searching, searching, saving)]
    for thread in threads:
        thread.start()
    try:
        for i in range(3_000):
            index.add(scope(i % 2), f"e{i % 1_500}", vectors[i % 1_500])
            if i % 11 == 0:
                index.remove([f"e{(i * 3) % 1_500}"])
    finally:
        done.set()
        for thread in threads:
            thread.join()
    assert not wrong
    index = reopened(index, folder, most=800)
    assert index.opened.damaged == 0
    for near in index.search(scope(1), vectors[1], 800)[0]:
        np.testing.assert_allclose(near.vector, vectors[int(near.entry[1:])], atol=1e-3)
    index.close()


def test_a_scope_grows_wide_and_narrow_again(folder: Path) -> None:
    index, vectors = FaissIndex(folder, SPACE, 10_000), questions(6_000)
    asked = again(vectors, 20)
    names = filled(index, vectors, scope(1))
    left = np.ones(len(vectors), bool)
    order = np.random.default_rng(1).permutation(len(vectors))
    for fewer in (4_000, 1_000, NARROW, NARROW // 2, 20, 0):
        gone = [i for i in order[fewer:] if left[i]]
        index.remove([names[i] for i in gone])
        left[gone] = False
        there = np.flatnonzero(left)
        assert len(index) == fewer
        hits = wanted = 0
        for row, found in zip(asked, index.search(scope(1), asked, 8), strict=True):
            nearest = {names[there[i]] for i in exact(vectors[there], row, 8)}
            hits, wanted = hits + len(nearest & {near.entry for near in found}), wanted + len(nearest)
        assert hits >= 0.99 * wanted
    filled(index, vectors[:2_000], scope(1))
    assert [near.entry for near in index.search(scope(1), vectors[77], 1)[0]] == ["e77"]
    index.close()


@pytest.mark.parametrize(
    ("of", "entry", "said"),
    [(b"short", "e", "16 bytes"), (scope(1), "", "1 to 64"), (scope(1), "é", "ASCII"), (scope(1), "e" * 65, "1 to 64")],
)
def test_names_that_cannot_be_kept(make: Make, of: bytes, entry: str, said: str) -> None:
    index = make(100)
    with pytest.raises(ValueError, match=said):
        index.add(of, entry, questions(1)[0])
    assert len(index) == 0


def test_one_vector_an_entry(make: Make) -> None:
    with pytest.raises(BadVector, match="one vector"):
        make(100).add(scope(1), "e", questions(2))


def test_no_room_and_no_dimensions(folder: Path) -> None:
    with pytest.raises(ValueError, match="at least one"):
        FaissIndex(folder, SPACE, 0)


def test_it_says_what_it_takes(make: Make) -> None:
    index = make(5_000)
    before = index.memory_bytes()
    filled(index, questions(2_000), scope(1))
    assert 2_000 * DIMENSIONS * 2 < index.memory_bytes() - before < 2_000 * (DIMENSIONS * 2 + 500)
    assert "2,000 of 5,000 in 1 scopes" in repr(index)


ENTRY = st.integers(0, 9)
CALLS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), ENTRY, st.integers(0, 2)),
        st.tuples(st.sampled_from(["remove", "touch"]), ENTRY, st.just(0)),
        st.tuples(st.sampled_from(["save", "reopen", "reopen", "clear"]), st.just(0), st.just(0)),
        st.tuples(st.just("reopen for"), st.integers(1, 8), st.just(0)),
    ),
    max_size=25,
)


@given(calls=CALLS)
def test_any_calls_and_restarts_leave_what_a_dict_would_hold(calls: list[tuple[str, int, int]]) -> None:
    """A dict whose order is that of use."""
    vectors = questions(10)
    with tempfile.TemporaryDirectory() as name:
        folder, most = Path(name), 6
        index = FaissIndex(folder, SPACE, most)
        known: dict[int, int] = {}
        for call, i, where in calls:
            if call == "add":
                index.add(scope(where), f"e{i}", vectors[i])
                known.pop(i, None)
                known[i] = where
            elif call == "remove":
                assert index.remove([f"e{i}"]) == (known.pop(i, None) is not None)
            elif call == "touch":
                index.touch([f"e{i}"])
                if i in known:
                    known[i] = known.pop(i)
            elif call == "save":
                index.save()
            elif call == "clear":
                assert index.clear() == len(known)
                known.clear()
            else:
                most = i or most
                index = reopened(index, folder, most)
                assert index.opened.why == "" and not index.opened.damaged
            for old in list(known)[: max(0, len(known) - most)]:
                del known[old]
            assert len(index) == len(known)
            for n in range(3):
                there = {near.entry: near.vector for near in index.search(scope(n), vectors[0], 100)[0]}
                assert there.keys() == {f"e{j}" for j, home in known.items() if home == n}
                for entry, vector in there.items():
                    np.testing.assert_allclose(vector, vectors[int(entry[1:])], atol=1e-3)
        index.close()


def test_those_kept_of_more_are_older_than_what_comes(folder: Path) -> None:
    index, vectors = FaissIndex(folder, SPACE, 5_000), questions(395)
    names = filled(index, vectors[:300], scope(1))
    index = reopened(index, folder, most=100)
    new = filled(index, vectors[300:350], scope(2), "new")
    index = reopened(index, folder, most=100)
    new += filled(index, vectors[350:], scope(2), "newer")
    assert index.missing([*names, *new]) == names[:295]
    index.close()


def test_an_entry_that_was_written_twice_is_what_was_used_last(folder: Path) -> None:
    """As a crash leaves it, between the batches of a save."""
    index, vectors = FaissIndex(folder, SPACE, 100), questions(3)
    index.close()
    file = vectors_file.VectorsFile(folder / "vectors.sqlite", SPACE, 2 * DIMENSIONS)
    half = [vector.astype(np.float16).tobytes() for vector in vectors]
    rows = [("e0", 1, 7, 0), ("e1", 1, 9, 1), ("e1", 2, 4, 2), ("e0", 2, 8, 2)]
    file.write([Row(slot, e, scope(n), used, half[v]) for slot, (e, n, used, v) in enumerate(rows)], (), ())
    file.close()
    for _ in range(2):
        index = FaissIndex(folder, SPACE, 100)
        assert index.opened == (2, 0, None, "")
        assert [near.entry for near in index.search(scope(1), vectors[1], 8)[0]] == ["e1"]
        assert [near.entry for near in index.search(scope(2), vectors[2], 8)[0]] == ["e0"]
        index.close()


def test_halves_become_singles_as_numpy_makes_them() -> None:
    every = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    finite = every[np.isfinite(every)]
    assert np.array_equal(_singles(finite.reshape(2, -1)), finite.astype(np.float32).reshape(2, -1))

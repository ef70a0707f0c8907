"""A key that is there is never said to be absent."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from answer_stores import record
from forebay.cache.messages import Purge
from forebay.cache.stores.disk import Disk
from forebay.cache.stores.presence import Presence
from forebay.clock import ManualClock


@given(st.sets(st.binary(min_size=16, max_size=16), max_size=50), st.binary(min_size=16, max_size=16))
def test_what_was_added_is_not_absent(keys: set[bytes], other: bytes) -> None:
    found = Presence()
    assert found.absent(other)
    found.update(keys)
    assert not any(found.absent(key) for key in keys)
    assert found.count == len(keys)


def test_it_says_when_it_is_too_small_and_most_others_are_absent() -> None:
    found = Presence()
    keys = [os.urandom(16) for _ in range(40_000)]
    found.update(keys)
    assert found.full
    larger = Presence(4 * found.count)
    larger.update(keys)
    assert not larger.full
    assert not any(larger.absent(key) for key in keys)
    assert sum(larger.absent(os.urandom(16)) for _ in range(1_000)) > 950


def test_a_file_knows_what_it_lacks_also_when_it_is_opened_again(tmp_path: Path) -> None:
    clock = ManualClock()
    store = Disk(tmp_path / "answers.db", 4 << 20, clock.wall)
    kept = [record(n, clock) for n in range(100)]
    assert all(store.absent(one.exact) for one in kept)
    for one in kept:
        store.put(one)
    assert not any(store.absent(one.exact) for one in kept)
    store.close()
    store = Disk(tmp_path / "answers.db", 4 << 20, clock.wall)
    assert not any(store.absent(one.exact) for one in kept)
    assert [store.exact(one.exact) for one in kept] == kept
    assert store.absent(record(101, clock).exact)
    misses = store.stats().misses
    assert store.exact(record(101, clock).exact) is None
    assert store.stats().misses == misses + 1
    assert len(store.remove(Purge(0))) == 100
    assert store.exact(kept[0].exact) is None
    clock.advance(1.0)
    later = record(0, clock)
    assert store.put(later).kept
    assert store.exact(later.exact) == later
    store.close()


def test_an_entry_that_comes_under_another_key_takes_the_place_of_the_first(tmp_path: Path) -> None:
    clock = ManualClock()
    store = Disk(tmp_path / "answers.db", 4 << 20, clock.wall)
    first = record(1, clock)
    assert store.put(record(2, clock)).kept  # after which it knows that there is room
    assert store.put(first).kept
    again = record(1, clock, exact=b"another key now.")
    with store.together():
        assert store.put(again) == (True, ())
    assert store.get(first.entry) == again
    assert store.exact(first.exact) is None
    assert store.stats().entries == 2
    with sqlite3.connect(tmp_path / "answers.db") as db:
        assert db.execute("SELECT count(*) FROM packed").fetchone() == (2,)
    store.close()

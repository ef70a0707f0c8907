"""One contract, for every store."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from answer_stores import Open, disks, in_postgres, in_redis, record, tiered
from forebay.cache.messages import Purge
from forebay.cache.stores.store import Known, Put, Store
from forebay.clock import ManualClock

N = 40


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(wall=time.time())  # servers expire answers by their own clocks


@pytest.fixture(
    params=[
        "disk",
        *(pytest.param(kind, marks=pytest.mark.books) for kind in ("redis", "valkey", "postgres", "tiered")),
    ],
    scope="module",
)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def again(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Open]:
    if kind == "disk":
        made = disks(tmp_path)
    elif kind == "postgres":
        made = in_postgres(request.getfixturevalue("postgres"))
    elif kind == "tiered":
        made = tiered(tmp_path, request.getfixturevalue("valkey_server"))
    else:
        made = in_redis(request.getfixturevalue(f"{kind}_server"))
    with made as opened:
        yield opened


@pytest.fixture
def store(again: Open, clock: ManualClock) -> Store:
    return again(clock)


def filled(store: Store, clock: ManualClock, n: int = N) -> list[str]:
    for i in range(n):
        assert store.put(record(i, clock)) == Put(True, ())
    return [record(i, clock).entry for i in range(n)]


def there(store: Store, entries: list[str]) -> set[str]:
    return set(store.known(entries))


def test_what_is_put_is_found_by_its_key_and_by_its_entry(store: Store, clock: ManualClock) -> None:
    kept = record(1, clock, answer=bytes(range(256)) * 500, question="Ü 😀 \x00 'quoted'", scope=b"")
    assert store.put(kept) == Put(True, ())
    assert store.exact(kept.exact) == kept
    assert store.get(kept.entry) == kept
    assert store.known([kept.entry, "unknown"]) == {
        kept.entry: Known(kept.entry, kept.scope, kept.question, kept.partition)
    }
    assert (store.exact(bytes(16)), store.get("unknown"), store.known([])) == (None, None, {})
    stats = store.stats()
    assert (stats.name, stats.state, stats.entries, stats.puts) == (store.name, "ok", 1, 1)
    assert (stats.hits, stats.misses, stats.failed) == (2, 2, 0)


def test_the_last_answer_to_an_equal_request_is_the_one_that_is_kept(store: Store, clock: ManualClock) -> None:
    old, new = record(1, clock), record(2, clock, exact=record(1, clock).exact)
    store.put(old)
    assert store.put(new) == Put(True, (old.entry,))
    assert (store.exact(old.exact), store.get(old.entry), store.get(new.entry)) == (new, None, new)
    changed = record(2, clock, exact=new.exact, question="another")
    assert store.put(changed) == Put(True, ())
    assert store.get(new.entry) == changed
    elsewhere = record(2, clock)
    assert store.put(elsewhere) == Put(True, ())
    assert (store.exact(old.exact), store.exact(elsewhere.exact)) == (None, elsewhere)
    assert store.stats().entries == 1


def test_what_is_over_is_not_there(store: Store, clock: ManualClock) -> None:
    short, long = record(1, clock), record(2, clock, ttl=1_000.0)
    store.put(short)
    store.put(long)
    clock.advance(149)
    assert store.get(short.entry) == short  # stale, and still given
    clock.advance(2)
    assert (store.exact(short.exact), store.get(short.entry)) == (None, None)
    assert there(store, [short.entry, long.entry]) == {long.entry}
    assert {one.entry for page in store.questions() for one in page} == {long.entry}
    assert store.put(short) == Put(False, ())
    assert store.get(long.entry) == long


PURGES = [
    (Purge(0, entry=f"{3:016x}"), {3}),
    (Purge(0, tag="tag1"), {n for n in range(N) if n % 5 == 1}),
    (Purge(0, tag="tag"), set()),
    (Purge(0, source="doc-7"), {7}),
    (Purge(0, partition="org1"), {n for n in range(N) if n % 3 == 1}),
    (Purge(0, partition="org1/web/model"), {n for n in range(N) if n % 3 == 1}),
    (Purge(0, partition="org"), set()),
    (Purge(0, partition="org%"), set()),
    (Purge(0, partition="org2", tag="tag2", model="qwen", version="1"), {2, 17, 32}),
    (Purge(0, model="llama"), set()),
    (Purge(0, version="1"), set(range(N))),
    (Purge(0), set(range(N))),
]


@pytest.mark.parametrize(("purge", "fit"), PURGES)
def test_a_purge_removes_what_fits_and_nothing_else(
    store: Store, again: Open, clock: ManualClock, purge: Purge, fit: set[int]
) -> None:
    entries = filled(store, clock)
    assert set(store.remove(purge)) == {entries[n] for n in fit}
    left = {entry for n, entry in enumerate(entries) if n not in fit}
    assert there(store, entries) == there(again(clock), entries) == left
    assert {n for n in range(N) if store.exact(record(n, clock).exact)} == set(range(N)) - fit
    assert store.remove(purge) == ()


def test_a_purge_by_likeness_is_refused(store: Store, clock: ManualClock) -> None:
    entries = filled(store, clock, 2)
    with pytest.raises(ValueError, match="index"):
        store.remove(Purge(0, like="invoice"))
    assert there(store, entries) == set(entries)


def test_an_answer_that_was_under_way_at_a_purge_is_not_kept(store: Store, clock: ManualClock) -> None:
    late, other = record(1, clock), record(2, clock)
    clock.advance(1)
    store.remove(Purge(0, source="doc-1"))
    assert (store.put(late), store.put(other)) == (Put(False, ()), Put(True, ()))
    clock.advance(1)
    assert store.put(record(1, clock)) == Put(True, ())
    assert store.stats().refused == 1


def test_entries_are_discarded(store: Store, clock: ManualClock) -> None:
    entries = filled(store, clock)
    assert store.discard([entries[1], "unknown", entries[2], entries[2]]) == 2
    assert there(store, entries) == {*entries[:1], *entries[3:]}
    assert store.exact(record(1, clock).exact) is None
    assert store.discard([]) == 0
    assert store.put(record(1, clock)) == Put(False, ())  # it was under way, from a store behind this one
    clock.advance(1.0)
    assert store.put(record(1, clock)).kept, "a later answer to the same request is another"
    assert store.put(record(3, clock, entry="another")) == Put(True, (entries[3],))


def test_questions_come_page_by_page_and_only_those_that_are_compared(store: Store, clock: ManualClock) -> None:
    made = [record(n, clock, scope=b"" if n % 100 == 0 else bytes([n % 250]) * 16, answer=b"a") for n in range(1_100)]
    for one in made:
        store.put(one)
    pages = list(store.questions())
    assert len(pages) > 1
    found = {one.entry: one for page in pages for one in page}
    assert found == {r.entry: Known(r.entry, r.scope, r.question, r.partition) for r in made if r.scope}


def test_answers_outlive_the_process(store: Store, again: Open, clock: ManualClock) -> None:
    entries = filled(store, clock)
    store.close()
    store.close()
    assert there(again(clock), entries) == set(entries)

"""The index in a real PostgreSQL with pgvector."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator

import psycopg
import pytest

from forebay.cache.semantic import pgvector_index
from forebay.cache.semantic.index import Index, IndexUnavailable, Space
from forebay.cache.semantic.pgvector_index import SMALL, PgvectorIndex
from forebay.cache.stores.circuit import Circuit
from forebay.cache.stores.store import StoreError
from forebay.clock import ManualClock
from index_contract import DIMENSIONS, IndexContract, Make, again, exact, filled, questions, scope
from postgres_server import Postgres

pytestmark = pytest.mark.books
SPACE = Space("test", DIMENSIONS)


@pytest.fixture
def make(postgres: Postgres) -> Iterator[Make]:
    made: list[PgvectorIndex] = []
    ticks = itertools.count()

    def one(most: int) -> Index:
        wall = lambda: time.time() + next(ticks) * 1e-3  # noqa: E731
        made.append(PgvectorIndex(postgres.new(), SPACE, most, wall, wait=2.0))
        return made[-1]

    yield one
    for index in made:
        index.close()


class TestContract(IndexContract):
    pass


def opened(url: str, space: Space = SPACE, **options: object) -> PgvectorIndex:
    return PgvectorIndex(url, space, 5_000, time.time, **{"wait": 2.0, **options})  # type: ignore[arg-type]


def test_a_large_scope_among_others(postgres: Postgres) -> None:
    index = opened(postgres.new())
    vectors = questions(SMALL + 400)
    filled(index, vectors[:200], scope(2), "other")
    filled(index, vectors[200:], scope(1))
    asked = again(vectors[200:], 30)
    for _ in range(2):  # the second time it is known to be large
        found = index.search(scope(1), asked, 8)
        hits = [
            len({near.entry for near in one} & {f"e{i}" for i in exact(vectors[200:], row, 8)})
            for one, row in zip(found, asked, strict=True)
        ]
        assert sum(hits) >= 0.97 * 8 * len(asked)
    assert {near.entry for near in index.search(scope(2), asked[:1], 300)[0]} == {f"other{i}" for i in range(200)}
    assert index.memory_bytes() > len(vectors) * DIMENSIONS * 2
    index.close()


def test_hosts_share_it_and_another_embedder_does_not(postgres: Postgres) -> None:
    url = postgres.new()
    a, b, other = opened(url), opened(url), opened(url, Space("other", DIMENSIONS))
    vectors = questions(5)
    filled(a, vectors, scope(1))
    assert [near.entry for near in b.search(scope(1), vectors[2], 1)[0]] == ["e2"]
    assert (len(b), len(other)) == (5, 0)
    other.add(scope(1), "e2", vectors[0])
    assert a.search(scope(1), vectors[2], 1)[0][0].cosine == pytest.approx(1.0, abs=1e-3)
    for one in (a, b, other):
        one.close()


def test_what_other_hosts_added_counts_after_a_minute(postgres: Postgres) -> None:
    url, clock = postgres.new(), ManualClock()
    a, b = (PgvectorIndex(url, SPACE, 10, clock.wall, wait=2.0, now=clock.now) for _ in range(2))
    for i, vector in enumerate(questions(16)):
        clock.advance(1)
        (a, b)[i % 2].add(scope(1), f"e{i}", vector)
    clock.advance(61)
    a.add(scope(1), "last", questions(1)[0])
    assert len(b) == 10
    assert b.missing([f"e{i}" for i in range(16)]) == [f"e{i}" for i in range(7)]
    a.close()
    b.close()


def test_a_space_that_nobody_opens_is_removed_after_a_month(postgres: Postgres) -> None:
    url, clock = postgres.new(), ManualClock()

    def tables() -> int:
        with psycopg.connect(url) as connection:
            found = connection.execute("SELECT count(*) FROM pg_tables WHERE tablename LIKE 'forebay_vectors_%'")
            return int(found.fetchone()[0])  # type: ignore[index]

    PgvectorIndex(url, Space("old", DIMENSIONS), 10, clock.wall, wait=2.0).close()
    clock.advance(29 * 86_400)
    PgvectorIndex(url, SPACE, 10, clock.wall, wait=2.0).close()
    assert tables() == 2
    clock.advance(2 * 86_400)
    PgvectorIndex(url, SPACE, 10, clock.wall, wait=2.0).close()
    assert tables() == 1


def test_a_server_that_hangs_costs_a_bounded_wait_and_comes_back(postgres: Postgres) -> None:
    clock = ManualClock()
    index = opened(postgres.new(), wait=0.02, change_wait=0.1, now=clock.now)
    vector = questions(1)
    index.add(scope(1), "e", vector[0])
    pids = postgres.freeze()
    try:
        began = time.monotonic()
        for _ in range(50):
            with pytest.raises(IndexUnavailable):
                index.search(scope(1), vector, 8)
        assert time.monotonic() - began < 1.0
        with pytest.raises(IndexUnavailable, match="no answer within"):
            index.add(scope(2), "f", vector[0])  # it may be there later
        assert len(index) == 1
    finally:
        postgres.thaw(pids)
    clock.advance(Circuit.MOST_REST)
    index.touch(["e"])
    index.save()  # it connects again
    assert index.search(scope(1), vector, 8)[0][0].entry == "e"
    index.close()


def test_what_is_missing_is_named(postgres: Postgres, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(StoreError, match="database: "):
        opened("sqlite:///x")
    with pytest.raises(IndexUnavailable, match="does not exist"):
        opened(postgres.new().replace("@/forebay", "@/missing"))
    monkeypatch.setattr(pgvector_index, "_LEAST", (99, 0))
    with pytest.raises(IndexUnavailable, match="ALTER EXTENSION vector UPDATE"):
        opened(postgres.new())

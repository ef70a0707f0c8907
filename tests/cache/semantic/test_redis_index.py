"""The index in a real Redis with RediSearch."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator

import numpy as np
import pytest

from forebay.cache.semantic.index import Index, IndexUnavailable, Space
from forebay.cache.semantic.redis_index import RedisIndex
from forebay.cache.stores.circuit import Circuit
from forebay.cache.stores.redis_scripts import PREFIX
from forebay.clock import ManualClock
from index_contract import DIMENSIONS, IndexContract, Make, filled, questions, scope
from redis_server import RedisServer, running

pytestmark = pytest.mark.books


@pytest.fixture
def make(redis_server: RedisServer) -> Iterator[Make]:
    made: list[RedisIndex] = []
    ticks = itertools.count()

    def one(most: int) -> Index:
        space = Space(f"test {time.monotonic_ns()}", DIMENSIONS)
        wall = lambda: time.time() + next(ticks) * 1e-3  # noqa: E731
        made.append(RedisIndex(redis_server.url(0), space, most, wall, wait=2.0))
        return made[-1]

    yield one
    for index in made:
        index.close()


class TestContract(IndexContract):
    pass


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with running("redis") as started:
        yield started


SPACE = Space("test", DIMENSIONS)


def opened(server: RedisServer, space: Space = SPACE, **options: float) -> RedisIndex:
    return RedisIndex(server.url(0), space, 1_000, time.time, **{"wait": 2.0, **options})  # type: ignore[arg-type]


def test_hosts_share_it_and_another_embedder_does_not(server: RedisServer) -> None:
    a, b, other = opened(server), opened(server), opened(server, Space("other", DIMENSIONS))
    vectors = questions(5)
    filled(a, vectors, scope(1))
    assert [near.entry for near in b.search(scope(1), vectors[2], 1)[0]] == ["e2"]
    assert (len(b), len(other)) == (5, 0)
    assert other.search(scope(1), vectors[2], 1) == [[]]
    other.add(scope(1), "e2", vectors[0])
    assert a.search(scope(1), vectors[2], 1)[0][0].cosine == pytest.approx(1.0, abs=1e-3)
    assert a.memory_bytes() > 5 * 2 * DIMENSIONS
    for one in (a, b, other):
        one.close()


def test_a_space_that_nobody_opens_is_removed_after_a_month(server: RedisServer) -> None:
    clock = ManualClock()
    old = RedisIndex(server.url(0), Space("old", DIMENSIONS), 10, clock.wall, wait=2.0)
    filled(old, questions(3), scope(1))
    old.close()
    clock.advance(29 * 86_400)
    new = RedisIndex(server.url(0), SPACE, 10, clock.wall, wait=2.0)
    filled(new, questions(2), scope(1))
    with server.client() as client:
        assert len(client.keys(f"{PREFIX}v:*")) == 5
        clock.advance(2 * 86_400)
        RedisIndex(server.url(0), SPACE, 10, clock.wall, wait=2.0).close()
        assert len(client.keys(f"{PREFIX}v:*")) == 2
    new.close()


def test_a_paused_redis_costs_a_bounded_wait_and_comes_back(server: RedisServer) -> None:
    clock = ManualClock()
    index = opened(server, wait=0.02, change_wait=0.2, now=clock.now)  # type: ignore[arg-type]
    vector = questions(1)
    index.add(scope(1), "e", vector[0])
    assert len(index) == 1
    server.freeze()
    began = time.monotonic()
    for _ in range(50):
        with pytest.raises(IndexUnavailable):
            index.search(scope(1), vector, 8)
    assert time.monotonic() - began < 1.0
    with pytest.raises(IndexUnavailable):
        index.add(scope(1), "f", vector[0])
    assert len(index) == 1
    server.thaw()
    clock.advance(Circuit.MOST_REST)
    # "f" may have come to it before it was given up
    assert "e" in [near.entry for near in index.search(scope(1), vector, 8)[0]]
    index.close()


def test_an_emptied_redis_gets_its_index_again(server: RedisServer) -> None:
    index = opened(server)
    filled(index, questions(3), scope(1))
    with server.client() as client:
        client.flushall()
    with pytest.raises(IndexUnavailable, match=r"(?i)no such index|unknown index"):
        index.search(scope(1), questions(1), 8)
    assert index.search(scope(1), questions(1), 8) == [[]]
    index.add(scope(1), "e", questions(1)[0])
    assert len(index.search(scope(1), questions(1), 8)[0]) == 1
    index.close()


def test_without_redisearch_it_says_so(valkey_server: RedisServer) -> None:
    with pytest.raises(IndexUnavailable, match=r"no RediSearch.*cache\.semantic\.index: faiss"):
        opened(valkey_server)


def test_another_database_than_0_says_so(redis_server: RedisServer) -> None:
    with pytest.raises(IndexUnavailable, match="database 0 only"):
        RedisIndex(redis_server.url(3), SPACE, 10, time.time, wait=2.0)


def test_a_damaged_vector_is_passed_over(server: RedisServer) -> None:
    index = opened(server)
    vectors = questions(3)
    filled(index, vectors, scope(1))
    with server.client() as client:
        key = next(client.scan_iter(f"{PREFIX}v:*:e1"))
        client.hset(key, "v", np.zeros(3, np.float16).tobytes())
    assert {near.entry for near in index.search(scope(1), vectors[:1], 8)[0]} == {"e0", "e2"}
    index.close()

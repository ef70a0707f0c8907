"""Two hosts and one store: Redis (Valkey) or PostgreSQL; and each with a file of its own in front."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from answer_stores import Open, in_postgres, in_redis, record
from forebay.cache.messages import Drop, Purge
from forebay.cache.stores.circuit import Circuit
from forebay.cache.stores.disk import Disk
from forebay.cache.stores.redis_store import RedisStore
from forebay.cache.stores.sharing import KEPT_DROPS
from forebay.cache.stores.store import Put, SharedStore
from forebay.cache.stores.tiered import Tiered
from forebay.clock import ManualClock
from redis_server import running

pytestmark = pytest.mark.books

EVERYTHING = [Drop(Purge(0))]
Pair = tuple[SharedStore, SharedStore]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(wall=time.time())


@pytest.fixture(params=["valkey", "postgres"])
def host(request: pytest.FixtureRequest) -> Iterator[Open]:
    if request.param == "postgres":
        made = in_postgres(request.getfixturevalue("postgres"))
    else:
        made = in_redis(request.getfixturevalue("valkey_server"))
    with made as opened:
        yield opened


@pytest.fixture
def pair(host: Open, clock: ManualClock) -> Pair:
    a, b = host(clock), host(clock)
    assert a.dropped(0.01) == b.dropped(0.01) == EVERYTHING  # what was dropped before is not known
    return a, b


def test_a_purge_reaches_the_other_host_once(pair: Pair, clock: ManualClock) -> None:
    a, b = pair
    kept = record(1, clock)
    a.put(kept)
    assert b.exact(kept.exact) == kept
    waiting: list[object] = []
    thread = threading.Thread(target=lambda: waiting.extend(b.dropped(5.0)))
    thread.start()
    assert a.remove(Purge(7, tag="faq", partition="org1")) == (kept.entry,)
    a.discard(["unknown"])
    thread.join(10)
    told = [*waiting, *b.dropped(0.01)]
    assert told == [Drop(Purge(7, tag="faq", partition="org1")), Drop(entries=("unknown",))]
    assert b.dropped(0.01) == a.dropped(0.01) == []
    assert b.exact(kept.exact) is None


def test_an_answer_that_was_under_way_on_another_host_is_not_kept(pair: Pair, clock: ManualClock) -> None:
    a, b = pair
    b.put(record(9, clock))
    late, other = record(1, clock), record(2, clock)
    clock.advance(1)
    a.remove(Purge(0, source="doc-1"))
    assert (b.put(late), b.put(other)) == (Put(False, ()), Put(True, ()))
    assert b.dropped(0.01) == [Drop(Purge(0, source="doc-1"))]
    clock.advance(1)
    assert b.put(record(1, clock)).kept


def test_who_missed_too_much_forgets_everything_and_keeps_nothing_older(pair: Pair, clock: ManualClock) -> None:
    a, b = pair
    old = record(1, clock)
    clock.advance(1)
    for n in range(KEPT_DROPS + 1):
        a.discard([f"{n:x}"])
    assert b.put(old) == Put(False, ())
    clock.advance(1)
    kept = record(2, clock)
    assert b.put(kept).kept
    assert b.dropped(0.01) == EVERYTHING
    assert b.dropped(0.01) == []
    assert b.get(kept.entry) == kept


def test_a_position_outlives_the_process(pair: Pair, host: Open, clock: ManualClock) -> None:
    a, b = pair
    b.close()
    a.discard(["x"])
    later = host(clock)
    later.position = b.position
    assert later.dropped(0.01) == [Drop(entries=("x",))]


class TestFiles:
    """Each host with a file of its own in front."""

    @pytest.fixture
    def hosts(self, host: Open, tmp_path: Path, clock: ManualClock) -> Iterator[tuple[Tiered, Tiered]]:
        with ExitStack() as opened:
            made = [self.opened(host, tmp_path / name, clock) for name in "ab"]
            for one in made:
                opened.callback(one.close)
                one.dropped(0.01)
            clock.advance(1)  # what was begun before that is not kept
            yield made[0], made[1]

    def opened(self, host: Open, folder: Path, clock: ManualClock) -> Tiered:
        return Tiered(Disk(folder / "answers.db", 4 << 20, clock.wall), host(clock), folder / "position", clock.wall)

    def test_what_another_host_has_is_kept_in_the_file(self, hosts: tuple[Tiered, Tiered], clock: ManualClock) -> None:
        a, b = hosts
        kept = record(1, clock)
        a.put(kept)
        assert b.near.exact(kept.exact) is None
        assert b.exact(kept.exact) == b.near.exact(kept.exact) == kept

    def test_a_stale_answer_gives_way_to_a_fresh_one_of_another_host(
        self, hosts: tuple[Tiered, Tiered], clock: ManualClock
    ) -> None:
        a, b = hosts
        old = record(1, clock)
        b.put(old)
        clock.advance(120)
        assert b.exact(old.exact) == old
        new = record(2, clock, exact=old.exact)
        a.put(new)
        assert b.exact(old.exact) == b.near.exact(old.exact) == new

    def test_a_purge_reaches_the_file_of_another_host_even_if_it_was_down(
        self, hosts: tuple[Tiered, Tiered], host: Open, clock: ManualClock, tmp_path: Path
    ) -> None:
        a, b = hosts
        kept, other = record(1, clock), record(2, clock, tags=())
        b.put(kept)
        b.put(other)
        b.dropped(0.01)
        b.close()
        clock.advance(1)
        a.remove(Purge(0, tag="faq"))
        b = self.opened(host, tmp_path / "b", clock)
        assert b.near.get(kept.entry) == kept
        assert b.dropped(0.01) == [Drop(Purge(0, tag="faq"))]
        assert (b.get(kept.entry), b.near.get(other.entry)) == (None, other)
        assert b.near.put(kept) == Put(False, ())
        b.close()
        (tmp_path / "b" / "position").write_text("junk")
        b = self.opened(host, tmp_path / "b", clock)
        assert b.dropped(0.01) == EVERYTHING
        assert (b.near.get(other.entry), b.get(other.entry)) == (None, other)
        b.close()

    def test_what_made_room_in_the_file_is_still_known(self, host: Open, clock: ManualClock, tmp_path: Path) -> None:
        near = Disk(tmp_path / "c" / "answers.db", 200_000, clock.wall)
        small = Tiered(near, host(clock), tmp_path / "c" / "position", clock.wall)
        made = [record(n, clock, answer=bytes(10_000), scope=b"s" * 16) for n in range(40)]
        for one in made:
            assert small.put(one) == Put(True, ())
        assert (small.stats().evicted > 10, small.stats().entries) == (True, 40)
        assert set(small.known([one.entry for one in made])) == {one.entry for one in made}
        assert small.expire() == ()
        small.close()


def test_a_file_answers_alone_while_redis_is_paused(tmp_path: Path) -> None:
    clock = ManualClock(wall=time.time())
    with running("valkey") as server:
        shared = RedisStore(server.url(), clock.wall, wait=0.02, change_wait=0.1, now=clock.now)
        store = Tiered(Disk(tmp_path / "answers.db", 4 << 20, clock.wall), shared, tmp_path / "position", clock.wall)
        store.dropped(0.01)
        clock.advance(1)
        kept, later = record(1, clock), record(2, clock)
        store.put(kept)
        server.freeze()
        assert store.put(later) == Put(True, ())
        assert [store.exact(one.exact) for one in (kept, later)] == [kept, later]
        for n in range(Circuit.FAILURES):
            store.exact(record(9 + n, clock).exact)
        assert "redis: " in store.state
        server.thaw()
        clock.advance(Circuit.MOST_REST)
        assert store.exact(record(9, clock).exact) is None
        assert store.state == "ok"
        store.close()

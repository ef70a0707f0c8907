"""PostgreSQL that hangs, dies, lost something, or may not be written."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import psycopg
import pytest

from answer_stores import record
from forebay.cache.messages import Drop, Purge
from forebay.cache.stores.circuit import Circuit
from forebay.cache.stores.postgres_store import PostgresStore
from forebay.cache.stores.store import FORMAT, Put, StoreError, StoreGone
from forebay.clock import ManualClock
from postgres_server import Postgres

pytestmark = pytest.mark.books

EVERYTHING = [Drop(Purge(0))]
Host = Callable[..., PostgresStore]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(wall=time.time())


@pytest.fixture
def hosts(clock: ManualClock) -> Iterator[Host]:
    with ExitStack() as opened:

        def host(url: str, **options: object) -> PostgresStore:
            made = PostgresStore(url, clock.wall, **{"wait": 0.5, "now": clock.now, **options})  # type: ignore[arg-type]
            opened.callback(made.close)
            return made

        yield host


def test_a_server_that_hangs_costs_a_bounded_wait_and_comes_back(
    postgres: Postgres, hosts: Host, clock: ManualClock
) -> None:
    store = hosts(postgres.new(), wait=0.02, change_wait=0.1)
    kept = record(1, clock)
    assert store.put(kept).kept
    store.dropped(0.01)
    pids = postgres.freeze()
    try:
        began = time.monotonic()
        assert [store.exact(kept.exact) for _ in range(100)] == [None] * 100
        assert time.monotonic() - began < 0.5  # one wait: it is not connected after that
        with pytest.raises(StoreGone, match="no answer within"):
            store.remove(Purge(0, tag="none"))
        with pytest.raises(StoreGone):
            store.dropped(0.01)
        assert store.known([kept.entry]) == {}
        assert "PostgreSQL" in store.stats().state
        assert "postgres@" not in store.stats().state
    finally:
        postgres.thaw(pids)
    clock.advance(Circuit.MOST_REST)
    assert store.expire() == ()  # it connects again
    assert store.exact(kept.exact) == kept
    assert store.state == "ok"
    assert store.dropped(0.01) == []


def test_a_server_that_ends_all_sessions(postgres: Postgres, hosts: Host, clock: ManualClock) -> None:
    store = hosts(postgres.new())
    kept = record(1, clock)
    store.put(kept)
    assert [*store.dropped(0.01), *store.dropped(0.01)] == EVERYTHING
    postgres.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'forebay'")
    assert store.exact(kept.exact) is None
    assert store.put(record(2, clock)) == Put(False, ())
    assert store.put(record(2, clock)).kept
    assert store.exact(kept.exact) == kept
    with pytest.raises(StoreGone):
        store.dropped(0.01)
    assert store.dropped(0.01) == []


def test_a_database_that_is_not_there_and_a_user_that_may_not(
    postgres: Postgres, hosts: Host, clock: ManualClock
) -> None:
    missing = hosts(postgres.new().replace("@/forebay", "@/missing"))
    assert "does not exist" in missing.state
    assert (missing.get("x"), missing.put(record(1, clock)), missing.stats().entries) == (None, Put(False, ()), None)
    url = postgres.new()
    postgres.sql("DROP ROLE IF EXISTS guest", "CREATE ROLE guest LOGIN")
    guest = url.replace("postgres@", "guest@")
    assert "grant the user of `database` CREATE" in hosts(guest).state
    owner = hosts(url)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("GRANT ALL ON forebay_answers, forebay_answer_drops TO guest")
    store = hosts(guest)  # that the tables are there is enough
    assert store.put(record(1, clock)).kept
    assert owner.get(record(1, clock).entry) is not None


@pytest.mark.parametrize("url", ["", "sqlite:///x.db", "mysql://u:secret@h/d", "postgresql://u:secret@h:x/%ZZ"])
def test_what_is_no_url_of_a_postgresql(url: str, hosts: Host) -> None:
    with pytest.raises(StoreError, match=r"database: .*postgresql://user:password@host/name") as caught:
        hosts(url)
    assert "secret" not in str(caught.value)


def test_tables_that_were_dropped_are_made_again(postgres: Postgres, hosts: Host, clock: ManualClock) -> None:
    url = postgres.new()
    store = hosts(url)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("DROP TABLE forebay_answers")
    assert store.put(record(1, clock)) == Put(False, ())
    assert store.put(record(1, clock)).kept
    assert store.get(record(1, clock).entry) is not None


def test_records_that_changed_or_are_of_another_version(postgres: Postgres, hosts: Host, clock: ManualClock) -> None:
    url = postgres.new()
    store = hosts(url)
    made = [record(n, clock) for n in range(3)]
    for one in made:
        store.put(one)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            "UPDATE forebay_answers SET record = set_byte(record, 50, 0) WHERE entry = %s", [made[0].entry]
        )
        connection.execute(
            "UPDATE forebay_answers SET record = set_byte(record, 2, %s), format = %s WHERE entry = %s",
            [FORMAT + 1, FORMAT + 1, made[1].entry],
        )
        connection.execute(
            "UPDATE forebay_answers SET record = set_byte(record, 50, 255 - get_byte(record, 50)) WHERE entry = %s",
            [made[0].entry],
        )
    assert [store.exact(one.exact) for one in made] == [None, None, made[2]]
    assert store.get(made[1].entry) is None
    assert (store.stats().damaged, store.stats().other_format) == (1, 1)
    ours = record(9, clock, exact=made[1].exact)
    assert store.put(ours) == Put(True, ())  # beside the one of the other version
    assert store.stats().entries == 4
    assert len(store.remove(Purge(0, tag="faq"))) == 4


def test_an_older_state_of_the_database_brings_no_purged_answer_back(
    postgres: Postgres, hosts: Host, clock: ManualClock
) -> None:
    url = postgres.new()
    a, b = hosts(url), hosts(url)
    kept = record(1, clock)
    a.put(kept)
    a.discard(["x"])
    for one in (a, b):
        one.dropped(0.01)
    clock.advance(1)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE TABLE saved AS SELECT * FROM forebay_answers")
        a.remove(Purge(0, source="doc-1"))
        b.dropped(0.01)
        connection.execute("INSERT INTO forebay_answers SELECT * FROM saved")
        connection.execute("DELETE FROM forebay_answer_drops WHERE n = 2")
        a.discard(["y"])  # as many drops as before, and yet not the same
    assert b.get(kept.entry) == kept
    assert b.dropped(0.01) == EVERYTHING
    assert b.get(kept.entry) is None


def test_what_is_longest_unused_makes_room_over_all_hosts(postgres: Postgres, hosts: Host, clock: ManualClock) -> None:
    store = hosts(postgres.new(), most_bytes=20_000)
    made = [record(n, clock) for n in range(60)]
    for one in made:
        clock.advance(0.01)
        store.put(one)
    clock.advance(1)
    store.touch([made[0].entry])
    gone: list[str] = []
    while page := store.expire():
        gone += page
    stats = store.stats()
    assert stats.bytes is not None and 15_000 < stats.bytes <= 20_000
    assert (stats.evicted, stats.entries) == (len(gone), 60 - len(gone))
    assert gone == [one.entry for one in made[1 : len(gone) + 1]]
    store.put(record(99, clock, answer=bytes(20_000)))
    assert store.expire() == ()  # it looks once a minute
    clock.advance(60)
    assert store.expire() != ()

"""Redis that is shared, slow, gone, full, or of another version. Real servers, of the tests' own."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from answer_stores import record
from forebay.cache.messages import Drop, Purge
from forebay.cache.stores import redis_scripts as scripts
from forebay.cache.stores.circuit import Circuit
from forebay.cache.stores.redis_store import RedisStore
from forebay.cache.stores.store import FORMAT, Put, StoreError, StoreGone
from forebay.clock import ManualClock
from redis_server import RedisServer, running

EVERYTHING = [Drop(Purge(0))]
Host = Callable[..., RedisStore]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(wall=time.time())


@pytest.fixture
def hosts(clock: ManualClock) -> Iterator[Host]:
    with ExitStack() as opened:

        def host(url: str, **options: object) -> RedisStore:
            made = RedisStore(url, clock.wall, **{"wait": 0.5, **options})  # type: ignore[arg-type]
            opened.callback(made.close)
            return made

        yield host


@pytest.fixture
def server() -> Iterator[RedisServer]:
    """That a test may stop."""
    with running("valkey") as started:
        yield started


class TestSharing:
    """Two hosts and one Redis."""

    pytestmark = pytest.mark.books

    @pytest.fixture
    def pair(self, valkey_server: RedisServer, hosts: Host) -> tuple[RedisStore, RedisStore]:
        url = valkey_server.url()
        a, b = hosts(url), hosts(url)
        assert a.dropped(0.01) == b.dropped(0.01) == EVERYTHING  # what was dropped before is not known
        return a, b

    def test_an_emptied_redis_forgets_nothing_that_is_purged(
        self, pair: tuple[RedisStore, RedisStore], valkey_server: RedisServer, clock: ManualClock
    ) -> None:
        a, b = pair
        a.discard(["x"])
        b.dropped(0.01)
        valkey_server.client(_database(b)).flushdb()
        assert b.dropped(0.01) == EVERYTHING
        assert a.dropped(0.01) == EVERYTHING
        a.dropped(0.01)
        b.dropped(0.01)
        clock.advance(1)
        assert a.put(record(1, clock)).kept
        a.remove(Purge(0, tag="faq"))
        assert b.dropped(0.01) == [Drop(Purge(0, tag="faq"))]

    def test_an_older_state_of_redis_brings_no_purged_answer_back(
        self, pair: tuple[RedisStore, RedisStore], valkey_server: RedisServer, clock: ManualClock
    ) -> None:
        a, b = pair
        client = valkey_server.client(_database(b))
        kept = record(1, clock)
        a.discard(["x"])
        assert a.put(kept).kept
        b.dropped(0.01)
        before = {key: client.dump(key) for key in client.scan_iter()}
        a.remove(Purge(0, source="doc-1"))
        b.dropped(0.01)
        client.flushdb()
        for key, value in before.items():
            client.restore(key, 0, value)
        a.discard(["y"])  # as many drops as before, and yet not the same
        assert b.get(kept.entry) == kept
        assert b.dropped(0.01) == EVERYTHING
        assert b.get(kept.entry) is None

    def test_two_versions_of_forebay_keep_out_of_each_others_way(
        self, pair: tuple[RedisStore, RedisStore], valkey_server: RedisServer, clock: ManualClock
    ) -> None:
        a, _ = pair
        client = valkey_server.client(_database(a))
        theirs = record(1, clock)
        a.put(theirs)
        data = bytearray(client.hget(scripts.ANSWER + theirs.entry, "r") or b"")
        data[2] = FORMAT + 1
        client.hset(scripts.ANSWER + theirs.entry, "r", bytes(data))
        client.rename(f"{scripts.PREFIX}x{FORMAT}:{theirs.exact.hex()}", f"{scripts.PREFIX}x9:{theirs.exact.hex()}")
        assert (a.exact(theirs.exact), a.get(theirs.entry)) == (None, None)
        assert (a.stats().other_format, a.stats().damaged) == (1, 0)
        ours = record(2, clock, exact=theirs.exact)
        assert a.put(ours) == Put(True, ())
        assert a.exact(ours.exact) == ours
        assert client.exists(scripts.ANSWER + theirs.entry)
        assert set(a.remove(Purge(0, tag="faq"))) == {ours.entry, theirs.entry}

    def test_a_drop_that_is_not_understood_is_one_of_everything(
        self, pair: tuple[RedisStore, RedisStore], valkey_server: RedisServer
    ) -> None:
        _, b = pair
        valkey_server.client(_database(b)).xadd(scripts.DROPS, {"w": "w", "by": "c", "at": "1", "d": b"\xc1"}, id="1-0")
        assert b.dropped(0.01) == EVERYTHING

    def test_a_record_whose_bytes_changed_is_not_believed(
        self, pair: tuple[RedisStore, RedisStore], valkey_server: RedisServer, clock: ManualClock
    ) -> None:
        a, b = pair
        kept, other = record(1, clock), record(2, clock)
        a.put(kept)
        a.put(other)
        client = valkey_server.client(_database(b))
        client.hset(scripts.ANSWER + kept.entry, "r", client.hget(scripts.ANSWER + other.entry, "r") or b"")
        assert (b.exact(kept.exact), b.get(kept.entry)) == (None, None)
        client.hset(scripts.ANSWER + kept.entry, mapping={"r": b"junk", "c": b"xyz"})
        assert (b.exact(kept.exact), b.known([kept.entry])) == (None, {})
        client.set(scripts.ANSWER + other.entry, "a string")
        assert b.get(other.entry) is None
        assert b.stats().damaged == 2


def _database(store: RedisStore) -> int:
    return int(store.client.database)


@pytest.mark.books
def test_a_paused_redis_costs_a_bounded_wait_and_comes_back(server: RedisServer, hosts: Host) -> None:
    clock = ManualClock(wall=time.time())
    store = hosts(server.url(), wait=0.02, change_wait=0.1, now=clock.now)
    kept = record(1, clock)
    assert store.put(kept).kept
    assert store.exact(kept.exact) == kept
    server.freeze()
    began = time.monotonic()
    assert [store.exact(kept.exact) for _ in range(100)] == [None] * 100
    assert time.monotonic() - began < 2.0  # three waits, with connecting; the rest is not tried
    assert (store.put(record(2, clock)), store.known([kept.entry])) == (Put(False, ()), {})
    with pytest.raises(StoreGone, match="Redis at"):
        store.remove(Purge(0, tag="none"))
    with pytest.raises(StoreGone):
        store.dropped(0.01)
    with pytest.raises(StoreGone):
        list(store.questions())
    stats = store.stats()
    assert "Timeout" in stats.state
    assert stats.rested >= 97
    assert stats.failed >= 6
    server.thaw()
    assert store.exact(kept.exact) is None  # it rests
    clock.advance(Circuit.MOST_REST)
    assert store.exact(kept.exact) == kept
    assert store.stats().state == "ok"


@pytest.mark.books
def test_connecting_may_take_longer_than_a_look_up(valkey_server: RedisServer, hosts: Host) -> None:
    """Through a proxy that is slow at first, as TLS to another site is."""
    clock = ManualClock(wall=time.time())
    with socket.create_server(("127.0.0.1", 0)) as listening:
        proxy = threading.Thread(target=_slow_at_first, args=(listening, valkey_server.socket), daemon=True)
        proxy.start()
        store = hosts(f"redis://127.0.0.1:{listening.getsockname()[1]}/900", wait=0.05)
        assert store.exact(record(1, clock).exact) is None
        assert (store.stats().failed, store.state) == (0, "ok")
        store.close()
        listening.shutdown(socket.SHUT_RDWR)
        proxy.join(10)


def _slow_at_first(listening: socket.socket, server: Path) -> None:
    while True:
        try:
            client, _ = listening.accept()
        except OSError:
            return
        threading.Thread(target=_slow_connection, args=(client, server), daemon=True).start()


def _slow_connection(client: socket.socket, server: Path) -> None:
    with client, socket.socket(socket.AF_UNIX) as behind:
        behind.connect(str(server))
        slow = True
        while asked := client.recv(65_536):
            behind.sendall(asked)
            answer = behind.recv(65_536)
            if slow:
                time.sleep(0.1)  # the network between
                slow = False
            client.sendall(answer)


@pytest.mark.books
def test_a_redis_that_is_killed_and_started_again(server: RedisServer, hosts: Host) -> None:
    clock = ManualClock(wall=time.time())
    store = hosts(server.url(), now=clock.now)
    kept = record(1, clock)
    assert store.put(kept).kept
    server.kill()
    assert [store.get(kept.entry) for _ in range(5)] == [None] * 5
    assert store.stats().state != "ok"
    clock.advance(Circuit.MOST_REST)
    assert store.get(kept.entry) is None
    server.start()
    clock.advance(Circuit.MOST_REST)
    assert store.get(kept.entry) is None  # it kept nothing, and the scripts are sent anew
    assert store.put(kept).kept
    assert store.exact(kept.exact) == kept


@pytest.mark.books
def test_a_wrong_password_says_so_and_is_in_no_message(
    server: RedisServer, hosts: Host, caplog: pytest.LogCaptureFixture
) -> None:
    server.kill()
    server.start("--requirepass", "right")
    clock = ManualClock(wall=time.time())
    kept = record(1, clock)
    for password in ("", "wrong-secret"):
        store = hosts(server.url(0, password))
        assert [store.get(kept.entry) for _ in range(5)] == [None] * 5
        with pytest.raises(StoreGone, match=r"cache\.redis") as caught:
            store.remove(Purge(0))
        assert "secret" not in f"{caught.value} {store!r} {store.stats()} {caplog.text}"
    assert "cache.redis" in caplog.text
    assert hosts(server.url(0, "right")).put(kept).kept


@pytest.mark.books
def test_a_full_redis_keeps_nothing_more_and_still_answers(server: RedisServer, hosts: Host) -> None:
    clock = ManualClock(wall=time.time())
    store = hosts(server.url(), now=clock.now)
    kept = record(1, clock)
    assert store.put(kept).kept
    with server.client() as client:
        client.config_set("maxmemory", "1")
        assert not any(store.put(record(2, clock)).kept for _ in range(10))
        assert "memory" in store.state
        assert store.exact(kept.exact) == kept
        client.config_set("maxmemory", "0")
    assert store.put(record(2, clock)).kept


@pytest.mark.parametrize("url", ["localhost:6379", "http://localhost", "redis://h:port/0", "redis://u:secret@h:x"])
def test_what_is_no_url_of_a_redis(url: str, hosts: Host) -> None:
    with pytest.raises(StoreError, match=r"cache\.redis: not the URL of a Redis; write redis://") as caught:
        hosts(url)
    assert "secret" not in str(caught.value)
    assert caught.value.__suppress_context__


def test_a_server_that_speaks_something_else(hosts: Host) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer() -> None:
            for _ in range(3):
                connection, _ = listening.accept()
                with connection:
                    connection.recv(100)
                    connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        store = hosts(f"redis://127.0.0.1:{listening.getsockname()[1]}")
        assert [store.get("x") for _ in range(3)] == [None] * 3
        thread.join(10)
        assert store.client.circuit.is_open
        assert "HTTP" in store.client.circuit.problem


class TestCircuit:
    def test_it_rests_after_failures_in_a_row_and_one_at_a_time_tries(self) -> None:
        clock = ManualClock()
        circuit = Circuit("Redis", clock.now)
        circuit.failed("slow")
        circuit.failed("slow")
        circuit.succeeded()
        for _ in range(Circuit.FAILURES):
            assert circuit.admits()
            circuit.failed("slow")
        assert repr(circuit) == "<Circuit open slow>"
        assert not circuit.admits()
        clock.advance(Circuit.REST)
        assert [circuit.admits(), circuit.admits()] == [True, False]
        circuit.failed("gone")
        clock.advance(Circuit.REST)
        assert not circuit.admits()  # twice as long
        clock.advance(Circuit.REST)
        assert circuit.admits()
        circuit.succeeded()
        assert (circuit.admits(), circuit.is_open, circuit.problem) == (True, False, "")

    def test_what_answers_and_refuses_does_not_rest_and_is_logged_once(self, caplog: pytest.LogCaptureFixture) -> None:
        circuit = Circuit("Redis", ManualClock().now)
        for _ in range(10):
            circuit.refused("OOM")
        assert (circuit.admits(), circuit.problem) == (True, "OOM")
        assert caplog.text.count("Redis: OOM") == 1
        circuit.succeeded()
        assert circuit.problem == ""

    def test_the_rest_is_bounded(self) -> None:
        clock = ManualClock()
        circuit = Circuit("Redis", clock.now)
        for _ in range(50):
            circuit.failed("gone")
        clock.advance(Circuit.MOST_REST)
        assert circuit.admits()

"""The admin process with a database that is damaged, gone, newer, locked or hanging."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from admin_process import Admin, FakeWorker
from forebay.admin import keys as keys_module
from forebay.admin.keys import Keys
from forebay.admin.workers import Workers
from forebay.clock import SystemClock
from forebay.config.models import Config
from forebay.ledger.database import Database, DatabaseLock, database_file
from forebay.state.messages import SetKeys, keys_snapshot
from postgres_server import Postgres
from waiting import eventually


def database(admin: Admin) -> dict[str, object]:
    found: dict[str, object] = admin.get("/health").json["database"]
    return found


def _sick(admin: Admin, why: str) -> None:
    eventually(lambda: why in str(database(admin).get("why")))
    assert admin.get("/health").status == 200
    assert admin.get("/health").json["status"] == "degraded"
    assert admin.metric("forebay_database_up") == 0
    answer = admin.api("POST", "/keys", {"name": "a"})
    assert (answer.status, answer.error["code"]) == (503, "database_unavailable")
    assert why in answer.error["message"]
    assert answer.headers["retry-after"] == "1"


def test_a_damaged_file_is_said_once_and_a_new_one_is_taken(admin: Admin, worker: FakeWorker) -> None:
    file = database_file(admin.state_dir)
    file.write_bytes(b"no database " * 1_000)
    admin.start()
    _sick(admin, "is damaged or is not an SQLite database")
    assert worker.lists == []
    file.rename(file.with_suffix(".damaged"))
    assert worker.keys() == SetKeys(1, ())
    eventually(lambda: admin.metric("forebay_database_up") == 1)
    log = admin.log.read_text()
    assert log.count("is damaged") == 1
    assert "Traceback" not in log


def test_with_a_damaged_file_the_keys_of_the_snapshot_go_on(admin: Admin, worker: FakeWorker) -> None:
    database_file(admin.state_dir).write_bytes(b"no database " * 1_000)
    worker.set(keys_version=3)  # as a worker has it that started from the snapshot
    admin.start()
    eventually(lambda: admin.get("/ready").status == 200)
    health = admin.get("/health").json
    assert health["status"] == "degraded"
    assert "is damaged" in health["database"]["why"]
    assert "go on with the last list they know" in health["database"]["meanwhile"]
    assert health["processes"][2]["keys_version"] == 3
    assert worker.lists == []


def test_a_file_removed_under_it_is_noticed(admin: Admin, worker: FakeWorker) -> None:
    admin.start()
    worker.keys()
    admin.api("POST", "/keys", {"name": "a"})
    for file in admin.state_dir.glob("forebay.db*"):
        file.unlink()
    assert worker.keys(lambda k: k.version == 1 and k is not worker.lists[0]) == SetKeys(1, ())
    assert re.search("was (removed|replaced) while it was in use", admin.log.read_text())
    assert admin.api("POST", "/keys", {"name": "b"}).status == 201


def test_damage_while_it_runs_leaves_the_workers_their_keys(admin: Admin, worker: FakeWorker) -> None:
    admin.start()
    worker.keys()
    made = admin.api("POST", "/keys", {"name": "a"}).json["record"]
    snapshot = keys_snapshot(admin.state_dir).read_bytes()
    file = database_file(admin.state_dir)
    damaged = file.with_name("damaged")
    damaged.write_bytes(b"\xff" * 40_960)
    for suffix in ("-wal", "-shm"):  # which would repair it
        file.with_name(file.name + suffix).unlink()
    damaged.rename(file)
    eventually(lambda: "is damaged" in str(database(admin).get("why")))
    assert worker.lists[-1].keys[0].id == made["id"]
    assert keys_snapshot(admin.state_dir).read_bytes() == snapshot
    assert admin.get("/ready").status == 200  # degraded, but serving


def test_a_newer_schema_is_left_alone(admin: Admin, worker: FakeWorker) -> None:
    from sqlalchemy import text

    newer = Database("", admin.state_dir)
    newer.migrate()
    with newer.write() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    newer.close()
    admin.start()
    _sick(admin, "has schema 9999, made by a newer Forebay")


def test_it_waits_for_a_command_that_has_the_lock(admin: Admin, worker: FakeWorker) -> None:
    with DatabaseLock(admin.state_dir) as lock:
        assert lock.take()
        admin.start()
        _sick(admin, "forebay.lock is held by another process")
    worker.keys()
    assert not DatabaseLock(admin.state_dir).take()


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("mysql://u:geheim@h/x", "'mysql' is not supported"),
        ("postgresql://u:geheim@/x?host=/nonexistent", "No such file or directory"),
    ],
)
def test_a_database_that_cannot_be_reached(config: Config, worker: FakeWorker, url: str, why: str) -> None:
    admin = Admin(config.model_copy(update={"database": url}))
    try:
        admin.start()
        _sick(admin, why)
        assert "geheim" not in admin.log.read_text()
        assert "geheim" not in admin.get("/health").body.decode()
    finally:
        admin.close()


def test_postgres_that_hangs_stalls_nothing_and_comes_back(
    config: Config, worker: FakeWorker, postgres: Postgres, tmp_path: Path
) -> None:
    url = postgres.new()
    admin = Admin(config.model_copy(update={"database": url}))
    admin.start()
    try:
        worker.keys()
        assert admin.api("POST", "/keys", {"name": "before"}).status == 201
        frozen = postgres.freeze()
        try:
            worker.count(5)
            assert admin.metric('forebay_requests_total{outcome="ok"}') == 5
            assert admin.get("/ready").status == 200
            eventually(lambda: "did not answer within" in str(database(admin).get("why")), 30)
            answer = admin.api("POST", "/keys", {"name": "meanwhile"})
            assert (answer.status, answer.error["code"]) == (503, "database_unavailable")
        finally:
            postgres.thaw(frozen)
        eventually(lambda: database(admin)["up"], 40)
        assert admin.api("POST", "/keys", {"name": "after"}).status == 201
        assert {k.name for k in worker.lists[-1].keys} == {"before", "after"}
    finally:
        admin.close()


def test_it_leaves_while_postgres_hangs(config: Config, postgres: Postgres, worker: FakeWorker) -> None:
    import signal

    admin = Admin(config.model_copy(update={"database": postgres.new()}))
    admin.start()
    try:
        worker.keys()
        frozen = postgres.freeze()
        try:
            assert admin.kill(signal.SIGTERM) == 0
        finally:
            postgres.thaw(frozen)
    finally:
        admin.close()


def test_a_lock_that_nobody_gives_back_is_waited_for_in_vain_once(
    state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keys_module, "HELD", 0.3)

    async def main() -> None:
        keys = Keys("", state_dir, Workers(state_dir, 0, lambda snapshot: None), SystemClock())
        task = asyncio.create_task(keys.run())
        async with asyncio.timeout(20):
            while not keys.status.endswith("is held by another process"):  # noqa: ASYNC110 - what is looked at has no event
                await asyncio.sleep(0.005)
            assert keys.pending
            while keys.pending:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        assert not keys.up
        task.cancel()
        await asyncio.wait([task])

    with DatabaseLock(state_dir) as lock:
        assert lock.take()
        asyncio.run(main())

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import inspect, text

from forebay.config import database_url
from forebay.ledger import database as module
from forebay.ledger.database import (
    SCRIPTS,
    Database,
    DatabaseCorrupt,
    DatabaseError,
    DatabaseGone,
    DatabaseLock,
    DatabaseUrl,
    SchemaNewer,
    SchemaOlder,
    database_file,
    parse_url,
)
from forebay.ledger.directory import Directory
from forebay.ledger.keystore import KeyStore
from forebay.ledger.schema import HEAD, metadata


def test_migrations_build_exactly_the_schema(database: Database) -> None:
    database.migrate()
    database.check()
    with database.read() as connection:
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []


def test_every_migration_goes_down_and_up_again(database: Database) -> None:
    database.migrate()
    config = Config()
    config.set_main_option("script_location", str(SCRIPTS))
    config.set_main_option("path_separator", "os")
    with database.write() as connection:
        config.attributes["connection"] = connection
        command.downgrade(config, "base")
    with database.read() as connection:
        assert set(inspect(connection).get_table_names()) <= {"alembic_version"}
    database.migrate()
    database.check()
    with database.read() as connection:
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []


def test_keys_outlive_the_migration_that_suspends_and_rotates_them(database: Database) -> None:
    config = Config()
    config.set_main_option("script_location", str(SCRIPTS))
    config.set_main_option("path_separator", "os")
    with database.write() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "0003")
        for level, columns, values in (
            ("organisations", "id, name", "1, 'acme'"),
            ("departments", "id, parent_id, name", "1, 1, ''"),
            ("projects", "id, parent_id, name", "1, 1, ''"),
            ("users", "id, parent_id, name", "1, 1, 'ann'"),
        ):
            connection.execute(text(f"INSERT INTO {level} ({columns}, created) VALUES ({values}, 1)"))
        connection.execute(
            text(
                "INSERT INTO keys (id, user_id, name, sha256, class, may_raise_class, models, created) "
                "VALUES ('k1', 1, 'old', :sha256, 'vip', false, '[]', 1)"
            ),
            {"sha256": b"x" * 32},
        )
    database.migrate()
    directory = Directory(database, lambda: 5.0)
    assert (directory.keys.get("k1").class_, directory.keys.get("k1").suspended) == ("vip", None)
    assert [(x.account, dict(x.labels)) for x in directory.accounts.list()] == [
        (("acme", "", "", ""), {}),
        (("acme", "", "", "ann"), {}),
    ]
    directory.keys.rotate("k1", 60)
    directory.keys.suspend("k1")
    directory.accounts.suspend(("acme", "", "", "ann"))
    with database.write() as connection:
        config.attributes["connection"] = connection
        command.downgrade(config, "0003")
        assert connection.execute(text("SELECT id, name, revoked FROM keys")).all() == [("k1", "old", None)]
    database.migrate()
    assert directory.keys.get("k1").old == ()


def test_head_is_the_newest_script() -> None:
    config = Config()
    config.set_main_option("script_location", str(SCRIPTS))
    config.set_main_option("path_separator", "os")
    assert ScriptDirectory.from_config(config).get_current_head() == HEAD


def test_migrating_twice_changes_nothing(database: Database) -> None:
    database.migrate()
    with database.write() as connection:
        connection.execute(text("INSERT INTO organisations (name, created) VALUES ('a', 1)"))
    database.migrate()
    with database.read() as connection:
        assert connection.execute(text("SELECT name FROM organisations")).scalars().all() == ["a"]


def test_a_migration_that_fails_leaves_nothing_behind(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    from alembic import op

    def stop(*args: object, **kwargs: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(op, "bulk_insert", stop)
        with pytest.raises(KeyboardInterrupt):
            database.migrate()
    assert database.revision() is None
    database.migrate()
    database.check()


def test_two_hosts_that_migrate_at_once_both_succeed(database: Database, tmp_path: Path) -> None:
    url = database.url.render_as_string(hide_password=False)
    others = [Database(url, tmp_path) for _ in range(4)]
    failed: list[BaseException] = []

    def migrate(one: Database) -> None:
        try:
            one.migrate()
            one.check()
        except BaseException as e:
            failed.append(e)

    threads = [threading.Thread(target=migrate, args=(one,)) for one in others]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    for one in others:
        one.close()
    assert failed == []


def test_no_tables_and_older_tables_are_told_apart_from_newer_ones(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SchemaOlder, match="has no tables yet"):
        database.check()
    database.migrate()
    monkeypatch.setattr(module, "HEAD", "0998")
    with pytest.raises(SchemaOlder, match=rf"has schema {HEAD}; this Forebay needs 0998\. Start `forebay serve`"):
        database.check()
    monkeypatch.undo()
    with database.write() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    for call in (database.check, database.migrate):
        with pytest.raises(SchemaNewer, match="has schema 9999, made by a newer Forebay; this one knows schemas up to"):
            call()


def test_a_schema_that_nobody_knows_is_not_touched(database: Database) -> None:
    database.migrate()
    with database.write() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '0000'"))
    with pytest.raises(DatabaseError, match=r"cannot be upgraded to schema .*0000"):
        database.migrate()
    assert database.revision() == "0000"


def test_rows_that_are_missing_are_an_error_of_the_database(database: Database) -> None:
    database.migrate()
    with database.write() as connection:
        connection.execute(text("DELETE FROM versions"))
    with pytest.raises(DatabaseError):
        KeyStore(database, lambda: 1.0).version()


def test_a_file_that_was_replaced_is_noticed(tmp_path: Path) -> None:
    database = Database("", tmp_path)
    database.migrate()
    database.still_there()
    database_file(tmp_path).rename(tmp_path / "aside")
    with pytest.raises(DatabaseGone, match="was removed while it was in use"):
        database.still_there()
    database_file(tmp_path).write_bytes(b"")
    with pytest.raises(DatabaseGone, match="was replaced while it was in use"):
        database.still_there()
    database.close()


def test_sqlite_is_durable_and_private(tmp_path: Path) -> None:
    database = Database("", tmp_path / "state")
    database.migrate()
    with database.read() as connection:
        pragmas = {
            p: connection.execute(text(f"PRAGMA {p}")).scalar() for p in ("journal_mode", "synchronous", "foreign_keys")
        }
    assert pragmas == {"journal_mode": "wal", "synchronous": 2, "foreign_keys": 1}
    assert (tmp_path / "state").stat().st_mode & 0o777 == 0o700
    for file in (tmp_path / "state").iterdir():
        assert file.stat().st_mode & 0o777 == 0o600, file
    database.close()


def test_another_process_that_closes_it_takes_nothing_along(tmp_path: Path) -> None:
    """The admin process has several `Database` objects of one file; commands open and close it meanwhile."""
    ours, other = Database("", tmp_path), Database("", tmp_path)
    ours.migrate()
    other.check()  # must not drop the locks that SQLite holds for the first
    script = (
        "import sys, sqlite3; c = sqlite3.connect(sys.argv[1]); print(c.execute(sys.argv[2]).fetchone()[0]); c.close()"
    )

    def asked() -> str:
        query = "SELECT count(*) FROM sqlite_master WHERE name = 'written_later'"
        command = [sys.executable, "-c", script, str(database_file(tmp_path)), query]
        return subprocess.run(command, check=True, timeout=30, capture_output=True, text=True).stdout.strip()

    assert asked() == "0"
    with ours.write() as connection:
        connection.execute(text("CREATE TABLE written_later (n INTEGER)"))
    assert asked() == "1"
    ours.close()
    other.close()


@pytest.mark.parametrize("damage", [b"this is no database, only words" * 100, b"SQLite format 3\x00" + b"\xff" * 5000])
def test_a_damaged_file_is_said_to_be_one(tmp_path: Path, damage: bytes) -> None:
    database_file(tmp_path).write_bytes(damage)
    database = Database("", tmp_path)
    for call in (database.check, database.migrate):
        with pytest.raises(DatabaseCorrupt, match=r"forebay\.db is damaged or is not an SQLite database .*backup"):
            call()
    database.close()
    assert database_file(tmp_path).read_bytes() == damage


def test_pages_damaged_under_a_sound_head_are_found(tmp_path: Path) -> None:
    database = Database("", tmp_path)
    database.migrate()
    database.close()
    content = database_file(tmp_path).read_bytes()
    database_file(tmp_path).write_bytes(content[:4096] + b"\xa5" * (len(content) - 4096))
    with pytest.raises(DatabaseCorrupt):
        database.check()
    database.close()


def test_a_writer_waits_for_another_and_says_locked_at_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WAIT", 0.2)
    database = Database("", tmp_path)
    database.migrate()
    other = sqlite3.connect(database_file(tmp_path), isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(DatabaseGone, match=r"forebay\.db: database is locked"), database.write():
        pass
    database.check()  # readers are not stopped by a writer
    other.close()
    with database.write() as connection:
        connection.execute(text("DELETE FROM users"))
    database.close()


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    database = Database("", tmp_path / "file" / "state")
    with pytest.raises(DatabaseGone, match=r"forebay\.db: (Not a directory|File exists)"):
        database.check()
    with pytest.raises(DatabaseGone, match=r"forebay\.lock: "):
        DatabaseLock(tmp_path / "file" / "state").take()


def test_postgres_that_is_not_there(tmp_path: Path) -> None:
    database = Database(f"postgresql://u:geheim@/x?host={tmp_path}", tmp_path)
    with pytest.raises(DatabaseGone, match="No such file or directory") as e:
        database.check()
    assert "geheim" not in str(e.value)
    database.close()


def test_a_postgres_password_is_never_shown(tmp_path: Path) -> None:
    database = Database("postgresql://u:geheim@db.example/x", tmp_path)
    assert "geheim" not in f"{database} {database!r}"


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("nonsense", "database: not a URL; use postgresql://"),
        ("postgresql://h:port/x", "database: the port is not a number"),
        (
            "mysql://root@localhost/x",
            "database: 'mysql' is not supported; use postgresql://user:password@host/name or sqlite:////path/forebay.db",
        ),
        ("postgresql+asyncpg://h/x", "'postgresql.asyncpg' is not supported"),
        ("sqlite://", "an SQLite URL names a file"),
        ("sqlite:///:memory:", "an SQLite URL names a file"),
    ],
)
def test_urls_that_are_refused(tmp_path: Path, url: str, message: str) -> None:
    with pytest.raises(DatabaseUrl, match=message):
        parse_url(url, tmp_path)


def test_without_the_driver_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database_url, "find_spec", lambda name: None)
    with pytest.raises(DatabaseUrl, match=r"install forebay\[postgres\]"):
        Database("postgresql://h/x", tmp_path)


def test_the_lock_is_one_process_at_a_time_and_dies_with_it(tmp_path: Path) -> None:
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys; from pathlib import Path; from forebay.ledger.database import DatabaseLock\n"
            "lock = DatabaseLock(Path(sys.argv[1])); print(lock.take(), flush=True); sys.stdin.read()",
            str(tmp_path),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ,
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "True\n"
    lock = DatabaseLock(tmp_path)
    assert not lock.take()
    assert not lock.take(0.1)
    holder.kill()
    holder.communicate()
    with lock:
        assert lock.take(5)
        assert lock.take()
        assert "held" in repr(lock)
        assert not DatabaseLock(tmp_path).take()
    with DatabaseLock(tmp_path) as again:
        assert again.take()


def test_another_process_that_closes_it_takes_nothing_from_those_who_have_it_open(tmp_path: Path) -> None:
    """Looking at the file again, as every part of the admin process does that opens it, must not drop the locks that
    SQLite holds on it: the other process would remove the -wal, and what is committed from then on would be lost."""
    first, second = Database("", tmp_path), Database("", tmp_path)
    first.migrate()
    second.check()
    file = database_file(tmp_path)
    wal = file.with_name(file.name + "-wal")
    before = wal.stat().st_ino
    look = "import sqlite3, sys; sqlite3.connect(sys.argv[1]).execute('SELECT count(*) FROM versions').fetchall()"
    subprocess.run([sys.executable, "-c", look, file], check=True)
    assert wal.stat().st_ino == before
    with first.write() as connection:
        connection.execute(text("INSERT INTO versions (name, value) VALUES ('kept', 1)"))
    kept = "import sqlite3, sys; print(sqlite3.connect(sys.argv[1]).execute('SELECT name FROM versions').fetchall())"
    assert (
        "kept" in subprocess.run([sys.executable, "-c", kept, file], check=True, capture_output=True, text=True).stdout
    )
    first.close()
    second.close()

"""The database behind the ledger: SQLite in the state directory, or PostgreSQL by URL.

Calls block, so they belong on a thread. Every failure is a `DatabaseError` whose message says what is wrong and what to
do about it; the driver's own exceptions come out only as its cause. One process writes at a time: `DatabaseLock`.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from sqlalchemy import URL, Connection, Engine, create_engine, event, exc, inspect, make_url, text

from forebay.config.database_url import ALLOWED, SQLITE, unsupported
from forebay.ledger.schema import HEAD

SCRIPTS: Final = Path(__file__).parent / "migrations"
WAIT: Final = 5.0
"""Seconds: to connect, for another writer's lock, for a pooled connection."""
STATEMENT: Final = 5.0
"""Seconds a PostgreSQL statement may take."""
_MIGRATION_LOCK: Final = 0x666F7265626179  # "forebay", the advisory lock that migrations of several hosts share


class DatabaseError(Exception):
    """The database cannot be used. The message says why, and what to do."""


class DatabaseGone(DatabaseError):
    """It does not answer, is locked, or is somebody else's for now: worth another try."""


class DatabaseCorrupt(DatabaseError):
    """Its file is damaged or is no database."""


class DatabaseUrl(DatabaseError):
    """The URL is not one of ours, or its driver is not installed."""


class SchemaOlder(DatabaseError):
    """The tables are older than this program: `migrate` brings them up to date."""


class SchemaNewer(DatabaseError):
    """The tables were made by a newer program."""


def database_file(state_dir: Path) -> Path:
    return state_dir / "forebay.db"


def parse_url(url: str, state_dir: Path) -> URL:
    """The SQLAlchemy URL of a configured one; the empty one is SQLite in `state_dir`. Raises DatabaseUrl."""
    if not url:
        return URL.create("sqlite", database=str(database_file(state_dir)))
    if why := unsupported(url):
        raise DatabaseUrl(f"database: {why}; use {ALLOWED}")
    try:
        parsed = make_url(url)
    except (exc.ArgumentError, ValueError):
        raise DatabaseUrl(f"database: not a URL; use {ALLOWED}") from None
    return parsed.set(drivername="sqlite" if parsed.drivername in SQLITE else "postgresql+psycopg")


class Database:
    """One engine and its pool. Nothing is opened before the first call."""

    def __init__(self, url: str, state_dir: Path) -> None:
        """Raises DatabaseUrl."""
        self.url = parse_url(url, state_dir)
        self.sqlite = self.url.drivername == "sqlite"
        self._file_id: tuple[int, int] | None = None
        self._engine = _sqlite_engine(self.url) if self.sqlite else _postgres_engine(self.url)

    @property
    def file(self) -> Path | None:
        """The SQLite file, or None for PostgreSQL."""
        return Path(str(self.url.database)) if self.sqlite else None

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """A transaction that sees one state of the database. Raises DatabaseError."""
        level = {} if self.sqlite else {"isolation_level": "REPEATABLE READ"}
        with self._explained(), self._engine.connect().execution_options(**level) as connection, connection.begin():
            yield connection

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """A transaction that is committed at its end. Raises DatabaseError."""
        with (
            self._explained(),
            self._engine.connect().execution_options(forebay_write=True) as connection,
            connection.begin(),
        ):
            yield connection

    def check(self) -> None:
        """That the database answers and its tables fit this program. Raises DatabaseError."""
        found = self.revision()
        if found == HEAD:
            return
        if found is None:
            raise SchemaOlder(f"{self} has no tables yet; they are made at the next start of `forebay serve`")
        if found > HEAD:  # revisions are numbered
            raise SchemaNewer(
                f"{self} has schema {found}, made by a newer Forebay; this one knows schemas up to {HEAD}. "
                "Run the newer version, or restore a backup from before the upgrade"
            )
        raise SchemaOlder(f"{self} has schema {found}; this Forebay needs {HEAD}. Start `forebay serve` to upgrade it")

    def revision(self) -> str | None:
        """The schema's version, or None where there are no tables. Raises DatabaseError."""
        if self.file is not None:
            self._file_id = _make_private(self.file)
        with self.read() as connection:
            if not inspect(connection).has_table("alembic_version"):
                return None
            return connection.execute(text("SELECT version_num FROM alembic_version")).scalar()

    def migrate(self) -> None:
        """Bring the tables up to date, in one transaction. Raises DatabaseError."""
        try:
            self.check()
        except SchemaOlder:
            pass
        else:
            return
        from alembic import command  # heavy, and needed only here
        from alembic.config import Config
        from alembic.util.exc import CommandError

        config = Config()
        config.set_main_option("script_location", str(SCRIPTS).replace("%", "%%"))
        config.set_main_option("path_separator", "os")
        with self.write() as connection:
            if not self.sqlite:
                connection.execute(text("SELECT pg_advisory_xact_lock(:n)"), {"n": _MIGRATION_LOCK})
            config.attributes["connection"] = connection
            try:
                command.upgrade(config, "head")
            except CommandError as e:
                raise DatabaseError(f"{self} cannot be upgraded to schema {HEAD}: {e}") from e

    def still_there(self) -> None:
        """Raises DatabaseGone where the SQLite file in use was removed or replaced: what is written to it is lost."""
        if self.file is None:
            return
        try:
            now = self.file.stat()
        except OSError as e:
            raise DatabaseGone(f"{self} was removed while it was in use: {e.strerror}") from e
        if self._file_id is not None and (now.st_dev, now.st_ino) != self._file_id:
            raise DatabaseGone(f"{self} was replaced while it was in use")

    def close(self) -> None:
        self._engine.dispose()

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except exc.TimeoutError as e:
            raise DatabaseGone(f"{self}: no free connection within {WAIT:g} s") from e
        except exc.DBAPIError as e:
            raise self._explain(e) from e
        except exc.SQLAlchemyError as e:
            raise DatabaseError(f"{self}: {e}") from e

    def _explain(self, error: exc.DBAPIError) -> DatabaseError:
        said = (str(error.orig).strip().splitlines() or ["no message"])[0]
        if not self.sqlite:
            return DatabaseGone(f"{self}: {said}")
        if isinstance(error.orig, sqlite3.DatabaseError):
            code = getattr(error.orig, "sqlite_errorcode", 0) & 0xFF
            if code in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT):
                return DatabaseCorrupt(
                    f"{self} is damaged or is not an SQLite database ({said}); "
                    "restore a backup, or move the file away to start with an empty one"
                )
        return DatabaseGone(f"{self}: {said}")

    def __str__(self) -> str:
        if self.sqlite:
            return str(self.file)
        # As it is configured: without the driver, and a socket's folder with its slashes.
        return self.url.set(drivername="postgresql").render_as_string(hide_password=True).replace("%2F", "/")

    def __repr__(self) -> str:
        return f"<Database {self}>"


def _make_private(file: Path) -> tuple[int, int]:
    """Create the file with mode 0600 before SQLite would with the umask's; its -wal and -shm follow it. Returns its
    device and inode.

    The file is never opened here: closing it would drop every lock that SQLite holds on it in this process (fcntl(2)).
    Another process that then closes the database takes itself for the last one and deletes the -wal, and what is
    written from then on is lost.
    """
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with suppress(FileExistsError):
            os.mknod(file, stat.S_IFREG | 0o600)
        found = file.stat()
    except OSError as e:
        raise DatabaseGone(f"{file}: {e.strerror}") from e
    return found.st_dev, found.st_ino


def _sqlite_engine(url: URL) -> Engine:
    engine = create_engine(url, connect_args={"timeout": WAIT}, pool_timeout=WAIT)

    @event.listens_for(engine, "connect")
    def _connect(connection: sqlite3.Connection, _: Any) -> None:
        connection.isolation_level = None  # BEGIN is ours, below
        _use_wal(connection)
        for pragma in ("synchronous = FULL", "foreign_keys = ON"):
            connection.execute(f"PRAGMA {pragma}")

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        # A read that turns into a write fails at once as "locked" where another wrote meanwhile: writers say so first.
        write = connection.get_execution_options().get("forebay_write", False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")

    return engine


def _use_wal(connection: sqlite3.Connection) -> None:
    """Where two connections turn a new file to WAL at once, SQLite does not wait: the one that could only dead-lock is
    told "locked" straight away."""
    deadline = time.monotonic() + WAIT
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as e:
            if (e.sqlite_errorcode & 0xFF) != sqlite3.SQLITE_BUSY or time.monotonic() >= deadline:
                raise
            time.sleep(0.01)
        else:
            return


def _postgres_engine(url: URL) -> Engine:
    wanted: dict[str, Any] = {
        "connect_timeout": int(WAIT),
        "tcp_user_timeout": 15_000,
        "keepalives_idle": 15,
        "application_name": "forebay",
    }
    try:
        engine = create_engine(
            url,
            connect_args={k: v for k, v in wanted.items() if k not in url.query},
            pool_size=4,
            max_overflow=0,
            pool_timeout=WAIT,
            pool_pre_ping=True,
        )
    except ImportError as e:  # the driver is there, but not the libpq it needs
        raise DatabaseUrl(f"database: the driver psycopg cannot be loaded ({e}); install forebay[postgres]") from e

    @event.listens_for(engine, "connect")
    def _connect(connection: Any, _: Any) -> None:
        # By SET and not by start-up options, which connection poolers refuse.
        with connection.cursor() as cursor:
            cursor.execute(f"SET statement_timeout = {int(STATEMENT * 1000)}")
            cursor.execute(f"SET lock_timeout = {int(WAIT * 1000)}")
        connection.commit()

    return engine


class DatabaseLock:
    """The right to write to the database of a state directory: held by the admin process, or by a command while none
    runs. The kernel drops it with the process that holds it."""

    def __init__(self, state_dir: Path) -> None:
        self.path = state_dir / "forebay.lock"
        self._fd: int | None = None

    def take(self, wait: float = 0.0) -> bool:
        """False where another process still holds it after `wait` seconds. Raises DatabaseGone: it cannot be tried."""
        if self._fd is not None:
            return True
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as e:
            raise DatabaseGone(f"{self.path}: {e.strerror}") from e
        deadline = time.monotonic() + wait
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    os.close(fd)
                    return False
                time.sleep(0.02)
            else:
                self._fd = fd
                return True

    def release(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def __enter__(self) -> DatabaseLock:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def __repr__(self) -> str:
        return f"<DatabaseLock {self.path} {'held' if self._fd is not None else 'free'}>"

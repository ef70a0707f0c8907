"""A PostgreSQL that is asked with a bound on the time, and left alone for a while after it failed.

A connection each for look-ups, changes and listening. Look-ups never connect: that may take two seconds, so that
changes do it, and until then a look-up is a miss. psycopg is optional; this module is imported only where it is needed.
"""

from __future__ import annotations

import contextlib
import select
import threading
import time
from collections.abc import Callable
from typing import Any, Final, TypeVar

import psycopg
from psycopg import errors

from forebay.cache.stores.circuit import Circuit
from forebay.cache.stores.store import StoreError, StoreGone
from forebay.config.database_url import POSTGRES

__all__ = ["Connection", "PostgresClient"]

Connection = psycopg.Connection[tuple[Any, ...]]
_T = TypeVar("_T")
_R, _W = 1, 2
_EVENTS: Final = {_R: select.POLLIN, _W: select.POLLOUT, _R | _W: select.POLLIN | select.POLLOUT}


class TooSlow(psycopg.OperationalError):
    """The server did not answer in time. The connection cannot be used any more."""


class _Timed(Connection):
    """Every wait for the server ends after `limit` seconds, also where it hangs and the network says nothing."""

    limit: float = 2.0

    def wait(self, gen: Any, *args: Any, **kwargs: Any) -> Any:
        deadline = time.monotonic() + self.limit
        poll = select.poll()
        try:
            wanted = next(gen)
            poll.register(self.pgconn.socket, _EVENTS[int(wanted)])
            while True:
                poll.modify(self.pgconn.socket, _EVENTS[int(wanted)])
                left = deadline - time.monotonic()
                events = poll.poll(max(0.0, left * 1000)) if left > 0 else []
                if not events:
                    raise TooSlow(f"no answer within {self.limit:g} s")
                seen = events[0][1]
                hung_up = seen & (select.POLLERR | select.POLLHUP)
                ready = (_R if seen & select.POLLIN or hung_up else 0) | (_W if seen & select.POLLOUT else 0)
                wanted = gen.send(ready)
        except StopIteration as done:
            return done.value


class PostgresClient:
    """`wait`: seconds for one answer to a look-up; changes have `change_wait`. `prepare` is called with each new
    connection that changes: to make tables. `ready` is called after that with every one: for settings."""

    CONNECT: Final = 2
    """Seconds; the least that psycopg has."""

    def __init__(
        self,
        url: str,
        prepare: Callable[[Connection], None],
        ready: Callable[[Connection], None] = lambda _: None,
        *,
        wait: float,
        change_wait: float,
        channel: str = "",
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """Connects to nothing yet; `connect` tries to. `channel`: that `listen` hears. Raises StoreError for a URL that
        is none of PostgreSQL's."""
        scheme, separator, rest = url.partition("://")
        if scheme not in POSTGRES or not separator:
            raise StoreError(
                "database: cache.semantic.index: pgvector needs a PostgreSQL there: postgresql://user:password@host/name"
            )
        self._url = f"postgresql://{rest}"
        try:
            found = psycopg.conninfo.conninfo_to_dict(self._url)
        except psycopg.ProgrammingError:
            raise StoreError("database: not a URL; write postgresql://user:password@host/name") from None
        self.where = f"PostgreSQL at {found.get('host', 'localhost')}, {found.get('dbname', '')}"
        """For people: without a password."""
        self._prepare = prepare
        self._ready = ready
        self._limits = {"reader": wait, "writer": change_wait, "listener": change_wait}
        self.change_wait = change_wait
        self._channel = channel
        self._connections: dict[str, _Timed | None] = dict.fromkeys(self._limits)
        self._locks = {role: threading.Lock() for role in self._limits}
        self._closed = False
        self.circuit = Circuit(self.where, now)

    def connect(self) -> None:
        """Raises StoreGone."""
        self.change(lambda _: None, anyway=True)

    def look_up(self, ask: Callable[[Connection], _T]) -> _T:
        """Raises StoreGone, also while it rests."""
        if not self.circuit.admits():
            raise StoreGone(f"{self.where} rests: {self.circuit.problem}")
        with self._locks["reader"]:
            connection = self._connections["reader"]
            if connection is None:
                raise StoreGone(f"{self.where} is not connected: {self.circuit.problem or 'not yet'}")
            return self._asked("reader", lambda: ask(connection))

    def change(self, ask: Callable[[Connection], _T], *, anyway: bool = False) -> _T:
        """`anyway`: even while it rests. Raises StoreGone."""
        if not (anyway or self.circuit.admits()):
            raise StoreGone(f"{self.where} rests: {self.circuit.problem}")
        with self._locks["writer"]:
            answer = self._asked("writer", lambda: ask(self._connected("writer")))
        if self._connections["reader"] is None:
            with self._locks["reader"]:
                self._asked("reader", lambda: self._connected("reader"))
        return answer

    def listen(self, wait: float) -> None:
        """Until something comes on the channel, for `wait` seconds. Raises StoreGone."""

        def ask() -> None:
            connection = self._connected("listener")
            # The server's own time to answer comes on top: a hanging one is found out by the next question.
            poll = select.poll()
            poll.register(connection.pgconn.socket, select.POLLIN)
            if poll.poll(wait * 1000):
                for _ in connection.notifies(timeout=0):
                    pass

        with self._locks["listener"]:
            self._asked("listener", ask)

    def _connected(self, role: str) -> _Timed:
        connection = self._connections[role]
        if connection is not None:
            return connection
        if self._closed:
            raise psycopg.OperationalError("closed")
        connection = _Timed.connect(
            self._url,
            autocommit=True,
            prepare_threshold=None,  # connection poolers
            connect_timeout=self.CONNECT,
            application_name="forebay",
        )
        try:
            connection.limit = self.change_wait
            connection.execute(f"SET statement_timeout = {int(self.change_wait * 1000)}")
            if role == "writer":
                self._prepare(connection)
            self._ready(connection)
            if role == "listener":
                connection.execute(f"LISTEN {self._channel}")
        except BaseException:
            connection.close()
            raise
        connection.limit = self._limits[role]
        self._connections[role] = connection
        return connection

    def _asked(self, role: str, ask: Callable[[], _T]) -> _T:
        """With the lock of that role."""
        try:
            answer = ask()
        except (psycopg.Error, OSError) as e:
            problem = _explained(e)
            connection = self._connections[role]
            useless = isinstance(
                e, TooSlow | OSError | errors.UndefinedTable
            )  # the last: tables are made on connecting
            if connection is not None and (connection.closed or useless):
                connection.close()
                self._connections[role] = None
            if isinstance(e, psycopg.OperationalError | psycopg.InterfaceError | OSError):
                self.circuit.failed(problem)
            else:
                self.circuit.refused(problem)
            raise StoreGone(f"{self.where}: {problem}") from e
        self.circuit.succeeded()
        return answer

    def close(self) -> None:
        self._closed = True
        for role, lock in self._locks.items():
            with lock:
                connection = self._connections[role]
                self._connections[role] = None
                if connection is not None:
                    with contextlib.suppress(psycopg.Error):  # it may have broken before
                        connection.close()

    def __repr__(self) -> str:
        return f"<{self.where} {self.circuit}>"


def _explained(problem: Exception) -> str:
    said = (str(problem).strip().splitlines() or [type(problem).__name__])[0].rstrip(".")
    if isinstance(problem, errors.InsufficientPrivilege):
        return f"{said}; grant the user of `database` CREATE on the schema, or make the tables as another one"
    return said

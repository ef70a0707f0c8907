"""A Redis or Valkey that is asked with a bound on the time, and left alone for a while after it failed.

redis-py is optional and slow to import; so this module is imported only where a Redis is configured.
"""

from __future__ import annotations

import hashlib
import socket
import time
from collections.abc import Callable
from typing import Any, Final, TypeVar

import redis
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, NoScriptError, RedisError, ResponseError
from redis.retry import Retry

from forebay.cache.stores.circuit import Circuit
from forebay.cache.stores.store import StoreError, StoreGone

__all__ = ["RedisClient", "Script", "all_of"]

_T = TypeVar("_T")


class RedisClient:
    """`wait`: seconds for one answer to a look-up; changes have `change_wait`. A look-up that has to connect first may
    wait CONNECT seconds for each step of it: TLS takes some."""

    CONNECT: Final = 0.25
    CONNECTIONS: Final = 16
    """Of each kind. Who finds none free is refused at once."""

    def __init__(self, url: str, *, wait: float, change_wait: float, now: Callable[[], float] = time.monotonic) -> None:
        """Connects to nothing. Raises StoreError for a URL that is none."""
        self._quick = _client(url, wait, max(wait, self.CONNECT), self.CONNECTIONS)
        self._patient = _client(url, change_wait, change_wait, self.CONNECTIONS)
        self.change_wait = change_wait
        found = self._quick.connection_pool.connection_kwargs
        self.where = f"Redis at {found.get('path') or '{}:{}'.format(found.get('host'), found.get('port', 6379))}"
        """For people: without a password."""
        self.database = found.get("db", 0)
        self.circuit = Circuit(self.where, now)

    def look_up(self, ask: Callable[[redis.Redis], _T]) -> _T:
        """Raises StoreGone, also while it rests."""
        if not self.circuit.admits():
            raise StoreGone(f"{self.where} rests: {self.circuit.problem}")
        return self._asked(self._quick, ask)

    def change(self, ask: Callable[[redis.Redis], _T], *, anyway: bool = False) -> _T:
        """`anyway`: even while it rests. Raises StoreGone."""
        if not (anyway or self.circuit.admits()):
            raise StoreGone(f"{self.where} rests: {self.circuit.problem}")
        return self._asked(self._patient, ask)

    def _asked(self, client: redis.Redis, ask: Callable[[redis.Redis], _T]) -> _T:
        try:
            answer = ask(client)
        except (RedisError, OSError) as e:
            problem = _explained(e)
            if isinstance(e, ResponseError):
                self.circuit.refused(problem)
            else:
                self.circuit.failed(problem)
            raise StoreGone(f"{self.where}: {problem}") from e
        self.circuit.succeeded()
        return answer

    def close(self) -> None:
        self._quick.close()
        self._patient.close()

    def __repr__(self) -> str:
        return f"<{self.where} {self.circuit}>"


class Script:
    """In Lua. The server knows it already, but for the first time and after it restarted."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._sha = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()

    def __call__(self, client: redis.Redis, keys: list[str], args: list[Any]) -> Any:
        try:
            return client.evalsha(self._sha, len(keys), *keys, *args)
        except NoScriptError:
            return client.eval(self._text, len(keys), *keys, *args)


def all_of(pipeline: Any) -> list[Any]:
    """Its answers. Raises the first error as the server said it: `execute` would add the command, vectors and all."""
    answers: list[Any] = pipeline.execute(raise_on_error=False)
    for answer in answers:
        if isinstance(answer, Exception):
            raise answer
    return answers


class _Connecting:
    """Of a connection: what is said while it connects has a time-out of its own."""

    socket_timeout: float
    socket_connect_timeout: float
    _sock: socket.socket | None

    def connect(self, *args: Any, **kwargs: Any) -> None:
        wait, self.socket_timeout = self.socket_timeout, self.socket_connect_timeout
        try:
            super().connect(*args, **kwargs)  # type: ignore[misc]
        finally:
            self.socket_timeout = wait
        if self._sock is not None:
            self._sock.settimeout(wait)


def _client(url: str, wait: float, connect_wait: float, connections: int) -> redis.Redis:
    kept_alive = {} if url.startswith("unix:") else {"socket_keepalive": True}
    try:
        pool = redis.ConnectionPool.from_url(
            url,
            protocol=2,  # plain lists as answers, in every version of redis-py
            decode_responses=False,
            socket_timeout=wait,
            socket_connect_timeout=connect_wait,
            retry=Retry(NoBackoff(), 0),
            max_connections=connections,
            **kept_alive,
        )
    except (ValueError, TypeError, RedisError):  # its message may hold the password
        raise StoreError(
            "cache.redis: not the URL of a Redis; write redis://[[USER]:PASSWORD@]HOST[:PORT][/DATABASE], "
            "rediss:// for TLS, or unix://PATH"
        ) from None
    pool.connection_class = type("Connection", (_Connecting, pool.connection_class), {})
    return redis.Redis.from_pool(pool)


def _explained(problem: Exception) -> str:
    said = (str(problem).strip().splitlines() or [type(problem).__name__])[0].rstrip(".")
    if isinstance(problem, AuthenticationError) or said.startswith(("WRONGPASS", "NOAUTH")):
        return f"{said}; set user and password in cache.redis"
    return said

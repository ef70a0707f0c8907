"""The server that a load is sent to: its URL, the heads of requests to it, and whether it is what it should be."""

from __future__ import annotations

import asyncio
import re
import ssl
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

import msgspec

from forebay.config.models import Timeouts
from forebay.wire.head import Header
from forebay.wire.pool import Origin, Pool
from forebay.wire.tasks import Tasks
from forebay.wire.ticker import Ticker
from forebay.wire.upstream import Call, Failure, WholeInParts

MAX_BODY: Final = 1 << 20
"""Bytes read of an answer that is not a stream."""


class LoadError(Exception):
    """The load cannot be made: what is wrong and what to do."""


@dataclass(frozen=True)
class Target:
    """A server: its origin, and the path in front of `/v1`."""

    origin: Origin
    host: str
    prefix: str

    @classmethod
    def parse(cls, url: str) -> Target:
        """Raises LoadError for anything but http(s)://host[:port][/prefix][/v1]."""
        shown = re.sub(r"^([a-zA-Z]+://)?[^/]*@", r"\1", url)  # a password is nobody's business
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as e:
            raise LoadError(f"'{shown}' is not a URL: {e}") from None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise LoadError(f"'{shown}' is not a server's URL: write http://host:port or https://host")
        if not url.isascii() or not url.isprintable() or " " in url:
            raise LoadError(
                f"'{shown}' has characters that a URL cannot have: write a host as xn--…, and a path with %20 and the "
                "like"
            )
        if parts.query or parts.fragment or parts.username or parts.password:
            raise LoadError("the URL has no query, fragment or user; the key comes from FOREBAY_API_KEY")
        tls = ssl.create_default_context() if parts.scheme == "https" else None
        prefix = parts.path.rstrip("/").removesuffix("/v1")
        return cls(Origin(parts.hostname, port or (443 if tls else 80), tls), parts.netloc, prefix)

    def head(
        self, method: str, path: str, key: str | None, length: int | None = None, more: tuple[str, ...] = ()
    ) -> bytes:
        """A request's head, its empty line included; `more` are further lines of it."""
        lines = [f"{method} {self.prefix}{path} HTTP/1.1", f"host: {self.host}", "user-agent: forebay-bench"]
        if key:
            lines.append(f"authorization: Bearer {key}")
        if length is not None:
            lines += ["content-type: application/json", "accept: text/event-stream", f"content-length: {length}"]
        return "\r\n".join([*lines, *more, "", ""]).encode("latin-1")


class _Whole(WholeInParts):
    """A `Sink` that collects one answer."""

    def __init__(self) -> None:
        self.call: Call | None = None
        self.heard_at = 0.0
        self.ended: asyncio.Future[tuple[int, bytes]] = asyncio.get_running_loop().create_future()
        self._status = 0
        self._body = b""

    def on_head(self, status: int, headers: list[Header], length: int | None) -> None:
        self._status = status

    def on_body(self, data: bytes) -> None:
        if len(self._body) < MAX_BODY:
            self._body += data

    def on_end(self) -> None:
        if not self.ended.done():
            self.ended.set_result((self._status, self._body))

    def on_fail(self, failure: Failure, detail: str) -> None:
        if not self.ended.done():
            self.ended.set_exception(LoadError(f"{failure.value.replace('_', ' ')}: {detail}"))


async def page(target: Target, path: str, key: str | None, seconds: float = 10.0) -> tuple[int, bytes]:
    """Status and body of a GET. Raises LoadError where the server is not there or does not answer in time."""
    tasks, ticker = Tasks(), Ticker(asyncio.get_running_loop())
    pool = Pool(
        target.origin,
        max_open=1,
        max_idle=1,
        timeouts=Timeouts(connect=seconds, first_byte=seconds, stream_idle=seconds),
        ticker=ticker,
        spawn=tasks.spawn,
    )
    whole = _Whole()
    pool.request(target.head("GET", path, key), b"", whole)
    try:
        async with asyncio.timeout(seconds):
            return await whole.ended
    except TimeoutError:
        raise LoadError(f"{target.origin} did not answer GET {target.prefix}{path} within {seconds:g} s") from None
    except LoadError as e:
        raise LoadError(f"{target.origin} cannot be reached: {e}") from None
    finally:
        if whole.call is not None:
            whole.call.cancel()
        pool.close()
        await tasks.drain()


async def models(target: Target, key: str | None, seconds: float = 10.0) -> list[str]:
    """The models a server lists. Raises LoadError where it is not there, wants a key, or is no OpenAI-like server."""
    path = f"{target.prefix}/v1/models"
    status, body = await page(target, "/v1/models", key, seconds)
    if status in (401, 403):
        said = "the key in FOREBAY_API_KEY" if key else "no key: set FOREBAY_API_KEY"
        raise LoadError(f"{target.origin} answered {status} to {said}")
    try:
        found = msgspec.json.decode(body, type=_ModelList)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        found = None
    if status != 200 or found is None:
        raise LoadError(
            f"{target.origin} is no OpenAI-compatible server: GET {path} answered {status}, not a model list"
        )
    return [m.id for m in found.data]


class _Model(msgspec.Struct):
    id: str


class _ModelList(msgspec.Struct):
    data: list[_Model]

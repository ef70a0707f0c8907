"""One small request to an engine, awaited: for health, model lists, metrics, aborts; never for a client's request."""

from __future__ import annotations

import asyncio
from typing import Protocol

from forebay.wire.head import Header
from forebay.wire.pool import Pool
from forebay.wire.upstream import Call, Failure, WholeInParts

MAX_BODY = 8 << 20


class FetchFailed(Exception):
    """No 200 came back; says why. `ours`: for a want of ours, not of the engine's. `status`: what came instead.
    `silent`: nothing came at all."""

    def __init__(
        self,
        why: str,
        *,
        ours: bool = False,
        status: int | None = None,
        too_large: bool = False,
        silent: bool = False,
    ) -> None:
        super().__init__(why)
        self.ours = ours
        self.status = status
        self.too_large = too_large
        self.silent = silent


class Target(Protocol):
    @property
    def pool(self) -> Pool: ...
    def head(self, method: bytes, path: bytes) -> bytes: ...


class _Collect(WholeInParts):
    call: Call | None = None
    heard_at = 0.0

    def __init__(self, done: asyncio.Future[bytes], limit: int) -> None:
        self._done = done
        self._limit = limit
        self._parts: list[bytes] = []
        self._size = 0
        self._status = 0

    def on_head(self, status: int, headers: list[Header], length: int | None) -> None:
        self._status = status

    def on_body(self, data: bytes) -> None:
        self._size += len(data)
        if self._size > self._limit:
            if not self._done.done():
                self._done.set_exception(FetchFailed(f"it answered more than {self._limit:,} bytes", too_large=True))
        else:
            self._parts.append(data)

    def on_end(self) -> None:
        if self._done.done():
            return
        if self._status == 200:
            self._done.set_result(b"".join(self._parts))
        else:
            self._done.set_exception(FetchFailed(f"it answered {self._status}", status=self._status))

    def on_fail(self, failure: Failure, detail: str) -> None:
        if not self._done.done():
            self._done.set_exception(FetchFailed(detail or failure.value, ours=failure is Failure.FULL))


async def fetch(
    target: Target, path: bytes, seconds: float, body: bytes | None = None, *, limit: int = MAX_BODY
) -> bytes:
    """The body of a 200, of at most `limit` bytes, to a GET, or to a POST of JSON where `body` is given. Raises
    FetchFailed."""
    done: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
    sink = _Collect(done, limit)
    if body is None:
        method = b"GET"
        target.pool.request(target.head(method, path) + b"\r\n", b"", sink)
    else:
        method = b"POST"
        length = b"content-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body)
        target.pool.request(target.head(method, path) + length, body, sink)
    try:
        async with asyncio.timeout(seconds):
            return await done
    except TimeoutError:
        why = f"{method.decode()} {path.decode()} took longer than {seconds:g} s"
        raise FetchFailed(why, silent=True) from None
    finally:
        if sink.call is not None:
            sink.call.cancel()

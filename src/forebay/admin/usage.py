"""Usage out of the database: on the admin port, and on `admin.sock` for `forebay usage` and for workers.

`GET /usage` (`/admin/usage` on the admin port) with `by`, `where`, `since`, `until`, `day`, `month`, `zone` → a report
as `ledger.usage.as_json`; `format=csv` → CSV; `focus` → by what an export as FOCUS needs, with `format=csv` that file.
`GET /usage/key?id=ID` (`admin.sock` only) → one key's own use, as GET /v1/usage passes it on.

Reports read the database on threads and a pool of their own: one that takes long holds up neither keys nor ingest.
"""

from __future__ import annotations

import io
import logging
from collections.abc import Callable
from typing import Any, Final, TypeVar

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from forebay import errors
from forebay.admin.keys import Unavailable
from forebay.admin.opened import Opened
from forebay.admin.public import Endpoint, explained
from forebay.admin.threads import Busy, Threads
from forebay.admin.view import GatewayState
from forebay.clock import Clock
from forebay.state.messages import journals

WITHIN: Final = 25.0
"""Seconds a report may take; `forebay usage` waits 30."""
OWN: Final = 2.5
"""Seconds one key's own use may take; a worker waits 3."""

SLACK: Final = 65_536
"""Bytes of journals that a report need not mention: they are booked within a moment."""

T = TypeVar("T")
_log = logging.getLogger("forebay.admin")


class UsageReports:
    """Reports for whoever asks; nothing is opened before."""

    def __init__(self, state: GatewayState, clock: Clock) -> None:
        self._state = state
        self._clock = clock
        self._reports = Threads("reports", count=2, bound=16)
        self._own = Threads("own usage", count=2, bound=64)
        self._books = Opened(state.config.database, state.config.state_dir)

    async def report(self, given: dict[str, list[str]], *, csv: bool) -> Any:
        """The report as JSON takes it, or as CSV. Raises Refusal, Unavailable."""

        def call() -> Any:
            from forebay.ledger.asked import Wrong
            from forebay.ledger.exports import write_csv
            from forebay.ledger.focus import write_focus
            from forebay.ledger.usage import as_json
            from forebay.ledger.usage_books import answer

            try:
                config = self._state.config
                found = answer(
                    self._books.get(), given, config.ledger, self._clock.wall(), journals(config.state_dir), SLACK
                )
                if not csv:
                    return as_json(found)
                file = io.StringIO(newline="")
                (write_focus if "focus" in given else write_csv)(found, file)
                return file.getvalue()
            except Wrong as e:
                raise errors.bad_request(f"{e}.", param=e.field) from e

        return await self._call(self._reports, call, WITHIN)

    async def of_key(self, key_id: str) -> dict[str, Any]:
        """Raises Unavailable."""

        def call() -> dict[str, Any]:
            from forebay.ledger.usage_books import of_key

            with self._books.get().read() as connection:
                return of_key(connection, key_id, self._state.config.ledger, self._clock.wall())

        return await self._call(self._own, call, OWN)

    async def close(self) -> None:
        """A report that hangs is left behind."""
        try:
            await self._call(self._own, self._books.close, OWN)
        except Unavailable as e:
            _log.warning("usage: the database was left open: %s", e)

    async def _call(self, threads: Threads, call: Callable[[], T], within: float) -> T:
        def explained() -> T:
            from forebay.ledger.database import DatabaseError

            try:
                return call()
            except DatabaseError as e:
                raise Unavailable(str(e)) from e

        try:
            return await threads.run(explained, within)
        except TimeoutError as e:
            raise Unavailable(f"it did not answer within {within:g} s") from e
        except Busy as e:
            raise Unavailable(str(e)) from e

    def __repr__(self) -> str:
        return f"<UsageReports of {self._books}>"


def usage_routes(usage: UsageReports) -> dict[str, dict[str, Endpoint]]:
    """Those of `admin.sock`."""
    return {"/usage": {"GET": usage_endpoint(usage)}, "/usage/key": {"GET": _key_endpoint(usage)}}


def usage_endpoint(usage: UsageReports) -> Endpoint:
    async def endpoint(request: Request) -> Response:
        given: dict[str, list[str]] = {}
        for name, text in request.query_params.multi_items():
            given.setdefault(name, []).append(text)
        format_ = given.pop("format", ["json"])[-1]
        if format_ not in ("json", "csv"):
            raise errors.bad_request("format is json or csv.", param="format")
        found = await usage.report(given, csv=format_ == "csv")
        if format_ == "json":
            return JSONResponse(found)
        headers = {"content-disposition": 'attachment; filename="usage.csv"'}
        # A lone surrogate, which UTF-8 cannot carry, is written as "?".
        return Response(found.encode("utf-8", "replace"), headers=headers, media_type="text/csv; charset=utf-8")

    return explained(endpoint)


def _key_endpoint(usage: UsageReports) -> Endpoint:
    async def endpoint(request: Request) -> Response:
        key_id = request.query_params.get("id")
        if not key_id:
            raise errors.missing_field("id", "name a key by its id")
        return JSONResponse(await usage.of_key(key_id))

    return explained(endpoint)

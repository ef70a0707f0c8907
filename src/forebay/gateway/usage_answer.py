"""GET /v1/usage: a caller's own use and what is left to it.

The worker has no database: it asks the admin process over `admin.sock`, at most FLIGHTS questions at a time, and keeps
an answer for a second, so that a client that asks in a loop costs the database nothing. What the caller's limits are at
is the worker's own knowledge, and is put in at each answer. Without the admin process the answer is 503.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final
from urllib.parse import quote

import msgspec

from forebay import errors
from forebay.errors import Refusal
from forebay.gateway.callers import Caller
from forebay.gateway.usage_limits import LimitUse
from forebay.wire.reply import Reply
from forebay.wire.tasks import Tasks

KEPT: Final = 1.0
"""Seconds an answer is good for."""
MOST_KEPT: Final = 1_024
WITHIN: Final = 3.0
"""Seconds the admin process has."""
FLIGHTS: Final = 16
WAITING: Final = 64
"""Requests that wait for one question."""
MOST_BYTES: Final = 256 * 1024
_JSON: Final = b"content-type: application/json\r\ncache-control: private, no-store\r\n"

Found = Callable[[bytes | Refusal], None]


class _NoAnswer(Exception):
    """The message says why."""


class UsageAnswers:
    def __init__(self, admin: Path, tasks: Tasks, now: Callable[[], float]) -> None:
        """`admin`: `state.messages.admin_socket`; `now`: monotonic seconds."""
        self._admin = str(admin)
        self._tasks = tasks
        self._now = now
        self._kept: OrderedDict[str, tuple[float, bytes]] = OrderedDict()
        self._flights: dict[str, list[Found]] = {}

    def answer(
        self,
        reply: Reply,
        caller: Caller,
        limits: Callable[[], Sequence[LimitUse]],
        done: Callable[[int, Refusal | None], None],
    ) -> None:
        """Answers, at once or when the admin process has; `done` is called once then, with the status and the refusal
        where it is one. Raises Refusal where it can be refused at once."""
        if caller.key_id == "anonymous":
            raise errors.no_key()

        def found(body: bytes | Refusal) -> None:
            if isinstance(body, Refusal):
                reply.refuse(body)
                done(body.status, body)
            else:
                reply.send(200, _JSON, body[:-1] + b',"limits":' + msgspec.json.encode(limits()) + b"}")
                done(200, None)

        self.ask(caller.key_id, found)

    def ask(self, key_id: str, found: Found) -> None:
        """`found` is called once with a JSON object, or with a Refusal. Raises Refusal where too many ask."""
        kept = self._kept.get(key_id)
        if kept is not None and self._now() - kept[0] < KEPT:
            found(kept[1])
            return
        waiting = self._flights.get(key_id)
        if waiting is None:
            if len(self._flights) >= FLIGHTS:
                raise errors.usage_unavailable("too many ask at once")
            self._flights[key_id] = [found]
            self._tasks.spawn(self._fly(key_id))
        elif len(waiting) >= WAITING:
            raise errors.usage_unavailable("too many ask at once")
        else:
            waiting.append(found)

    async def _fly(self, key_id: str) -> None:
        answer: bytes | None = None
        why = "the gateway is shutting down"
        try:
            async with asyncio.timeout(WITHIN):
                answer = await _get(self._admin, f"/usage/key?id={quote(key_id, safe='')}")
        except TimeoutError:
            why = f"the admin process did not answer within {WITHIN:g} s"
        except OSError:
            why = "the admin process does not answer"
        except _NoAnswer as e:
            why = str(e)
        finally:
            waiting = self._flights.pop(key_id)
            if answer is not None:
                self._kept[key_id] = (self._now(), answer)
                self._kept.move_to_end(key_id)
                if len(self._kept) > MOST_KEPT:
                    self._kept.popitem(last=False)
            for found in waiting:
                found(answer if answer is not None else errors.usage_unavailable(why))

    def __repr__(self) -> str:
        return f"<UsageAnswers {len(self._kept)} kept, {len(self._flights)} asked>"


async def _get(path: str, target: str) -> bytes:
    """The JSON object of a 200. Raises OSError, _NoAnswer."""
    reader, writer = await asyncio.open_unix_connection(path)
    try:
        # HTTP/1.0: the answer ends with its connection and is never chunked.
        writer.write(f"GET {target} HTTP/1.0\r\nhost: localhost\r\n\r\n".encode())
        parts, size = [], 0
        while data := await reader.read(65_536):
            parts.append(data)
            size += len(data)
            if size > MOST_BYTES:
                raise _NoAnswer(f"the admin process answered more than {MOST_BYTES:,} bytes")
    finally:
        writer.close()
    head, _, body = b"".join(parts).partition(b"\r\n\r\n")
    status = head[9:12]
    if status != b"200":
        raise _NoAnswer(_said(body) or f"the admin process answered {status.decode('latin-1') or 'nothing'}")
    if not (body.startswith(b"{") and body.endswith(b"}") and len(body) > 2):
        raise _NoAnswer("the admin process's answer is cut")
    return body


class _Error(msgspec.Struct):
    message: str = ""


class _Envelope(msgspec.Struct):
    error: _Error


def _said(body: bytes) -> str:
    try:
        return msgspec.json.decode(body, type=_Envelope).error.message.rstrip(".")
    except msgspec.MsgspecError:
        return ""

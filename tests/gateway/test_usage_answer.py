"""GET /v1/usage as a worker answers it: asked of an admin process that a test plays, over a real Unix socket."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from forebay.errors import Refusal
from forebay.gateway import usage_answer
from forebay.gateway.callers import Caller
from forebay.gateway.usage_answer import FLIGHTS, KEPT, MOST_BYTES, MOST_KEPT, WAITING, UsageAnswers
from forebay.gateway.usage_limits import LimitUse, limits_of
from forebay.ledger.gates import Who
from forebay.ledger.limits import Held, Limits
from forebay.ledger.records import KeyRecord
from forebay.ledger.rules import Level, Rule, Unpriced
from forebay.wire.message import Peer, Request
from forebay.wire.reply import Outlet as OutletBase
from forebay.wire.reply import Reply
from forebay.wire.tasks import Tasks

Answering = Callable[[str], "bytes | None"]


def ok(body: object) -> bytes:
    return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n" + json.dumps(body).encode()


class Admin:
    """`answer`: the bytes for a request's target; None: none, until `release` is set."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.asked: list[str] = []
        self.answer: Answering = lambda target: ok({"object": "usage", "target": target})
        self.release = asyncio.Event()
        self.arrived = asyncio.Semaphore(0)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        target = head.split()[1].decode()
        self.asked.append(target)
        self.arrived.release()
        answer = self.answer(target)
        if answer is None:
            await self.release.wait()
            answer = ok({"late": True})
        writer.write(answer)
        writer.close()


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class World:
    def __init__(self, admin: Admin) -> None:
        self.admin, self.tasks, self.clock = admin, Tasks(), Clock()
        self.answers = UsageAnswers(admin.path, self.tasks, self.clock)

    def ask(self, key: str = "k1") -> asyncio.Future[bytes | Refusal]:
        found: asyncio.Future[bytes | Refusal] = asyncio.get_running_loop().create_future()
        self.answers.ask(key, found.set_result)
        return found


@asynccontextmanager
async def world() -> AsyncIterator[World]:
    with tempfile.TemporaryDirectory(prefix="fb-") as folder:
        admin = Admin(Path(folder) / "admin.sock")
        server = await asyncio.start_unix_server(admin.serve, str(admin.path))
        found = World(admin)
        try:
            yield found
        finally:
            admin.release.set()
            await found.tasks.drain()
            server.close()
            await server.wait_closed()


class Outlet(OutletBase):
    def __init__(self) -> None:
        self.written = b""

    def write(self, data: bytes) -> None:
        self.written += data

    def is_blocked(self) -> bool:
        return False

    def ended(self, reply: Reply) -> None: ...
    def cut(self) -> None: ...
    def date(self) -> bytes:
        return b""

    def raw_writer(self) -> None:
        return None


def caller(key: str = "k1") -> Caller:
    return Caller(KeyRecord(id=key, sha256=b"", name="n"))


def reply() -> tuple[Reply, Outlet]:
    request = Request(b"GET", b"/v1/usage", b"", [], {}, Peer("127.0.0.1"), False)
    request.keep_alive = True
    outlet = Outlet()
    return Reply(outlet, request), outlet


def test_an_answer_has_the_limits_as_they_are_now() -> None:
    async def go() -> None:
        async with world() as w:
            ended = asyncio.Event()
            seen: list[tuple[int, Refusal | None]] = []
            limit = LimitUse(
                "team", "project acme/rag", "money_per_day", "1.50", "5.00", "3.50", "2026-12-01T00:00:00Z"
            )

            def done(status: int, refusal: Refusal | None) -> None:
                seen.append((status, refusal))
                ended.set()

            there, outlet = reply()
            w.answers.answer(there, caller("config:a b"), lambda: [limit], done)
            await ended.wait()
            head, _, body = outlet.written.partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200 ")
            assert b"cache-control: private, no-store" in head
            found = json.loads(body)
            assert found["target"] == "/usage/key?id=config%3Aa%20b"
            assert found["limits"] == [
                {"name": "team", "scope": "project acme/rag", "measure": "money_per_day", "used": "1.50",
                 "limit": "5.00", "remaining": "3.50", "reset": "2026-12-01T00:00:00Z", "models": []}
            ]  # fmt: skip
            assert seen == [(200, None)]

    asyncio.run(go())


def test_an_answer_is_kept_for_a_second_and_requests_at_once_share_one() -> None:
    async def go() -> None:
        async with world() as w:
            same = [w.ask() for _ in range(5)]
            assert len({await found for found in same}) == 1
            w.clock.now = KEPT - 0.01
            assert await w.ask() == await same[0]
            assert len(w.admin.asked) == 1
            w.clock.now = KEPT
            await w.ask()
            await w.ask("k2")
            assert len(w.admin.asked) == 3

    asyncio.run(go())


def test_what_is_kept_and_what_flies_is_bounded() -> None:
    async def go() -> None:
        async with world() as w:
            for i in range(MOST_KEPT + 3):
                await w.ask(f"k{i}")
            assert repr(w.answers) == f"<UsageAnswers {MOST_KEPT} kept, 0 asked>"
            w.admin.answer = lambda target: None
            flying = [w.ask(f"f{i}") for i in range(FLIGHTS)]
            with pytest.raises(Refusal, match="too many ask at once"):
                w.ask("one more")
            waiting = [w.ask("f0") for _ in range(WAITING - 1)]
            with pytest.raises(Refusal, match="too many ask at once"):
                w.ask("f0")
            w.admin.release.set()
            for found in (*flying, *waiting):
                assert json.loads(await found) == {"late": True}  # type: ignore[arg-type]

    asyncio.run(go())


def test_an_admin_process_that_hangs_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage_answer, "WITHIN", 0.05)

    async def go() -> None:
        async with world() as w:
            w.admin.answer = lambda target: None
            refusal = await w.ask()
            assert isinstance(refusal, Refusal)
            assert (refusal.status, refusal.code) == (503, "usage_unavailable")
            assert "did not answer within 0.05 s" in refusal.message
            assert (b"retry-after", b"1") in refusal.headers
            w.admin.answer = lambda target: ok({"again": True})
            assert json.loads(await w.ask()) == {"again": True}  # type: ignore[arg-type]

    asyncio.run(go())


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"", "answered nothing"),
        (b"HTTP/1.1 500 Oh\r\n\r\n", "answered 500"),
        (b'HTTP/1.1 503 No\r\n\r\n{"error": {"message": "The database is away."}}', "now: The database is away."),
        (b'HTTP/1.1 200 OK\r\n\r\n{"object": "usa', "is cut"),
        (b"HTTP/1.1 200 OK\r\n\r\n[]", "is cut"),
        (b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * (MOST_BYTES + 1), "more than"),
    ],
)
def test_what_is_no_answer_is_a_503(answer: bytes, words: str) -> None:
    async def go() -> None:
        async with world() as w:
            w.admin.answer = lambda target: answer
            refusal = await w.ask()
            assert isinstance(refusal, Refusal)
            assert refusal.status == 503
            assert words in refusal.message

    asyncio.run(go())


def test_without_an_admin_process() -> None:
    async def go() -> None:
        tasks = Tasks()
        answers = UsageAnswers(Path("/nonexistent/admin.sock"), tasks, Clock())
        there, outlet = reply()
        seen: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        answers.answer(there, caller(), list, lambda status, refusal: seen.set_result(status))
        assert await seen == 503
        assert b"the admin process does not answer" in outlet.written

    asyncio.run(go())


def test_a_shutdown_answers_those_who_wait() -> None:
    async def go() -> None:
        async with world() as w:
            w.admin.answer = lambda target: None
            found = w.ask()
            await w.admin.arrived.acquire()
            await w.tasks.drain()
            refusal = found.result()
            assert isinstance(refusal, Refusal)
            assert "is shutting down" in refusal.message

    asyncio.run(go())


def test_a_client_that_left_gets_nothing_and_nobody_without_a_key_may_ask() -> None:
    async def go() -> None:
        async with world() as w:
            there, outlet = reply()
            seen: asyncio.Future[int] = asyncio.get_running_loop().create_future()
            w.answers.answer(there, caller(), list, lambda status, refusal: seen.set_result(status))
            there.gone()
            assert await seen == 200
            assert outlet.written == b""
            with pytest.raises(Refusal) as e:
                w.answers.answer(there, caller("anonymous"), list, lambda status, refusal: None)
            assert e.value.status == 401

    asyncio.run(go())


def test_limits_are_shown_as_holds_see_them() -> None:
    wall, day = 1_795_900_000.0, 86_400.0
    rule = Rule(
        name="team",
        each=Level.PROJECT,
        requests_per_minute=60,
        concurrent=5,
        tokens_per_day=1_000,
        money_per_month=2_000_000_001,
        unpriced=Unpriced.PASS,
    )
    model = Rule(name="dear", each=Level.KEY, models=("gpt",), tokens_per_minute=600)
    users = Rule(name="users", each=Level.END_USER, tokens_per_day=5)
    limits = Limits()
    limits.configure((rule, model, users), 0.0, wall)
    gate = limits.gate(Who("k1", "n", "acme", "d", "rag"))
    assert {use.used for use in limits_of(limits, gate, 0.0, wall)} == {0, "0.00"}
    held = [limits.hold(gate, "gpt", 10, 90, None, "", 0.0, wall) for _ in range(2)]
    first = held[0]
    assert isinstance(first, Held)
    limits.settle(first, 50, 1_000_000_000, 0.5)
    uses = {use.measure: use for use in limits_of(limits, gate, 1.0, wall)}
    assert {m: (u.used, u.limit, u.remaining) for m, u in uses.items()} == {
        "requests_per_minute": (1, 60, 59),  # two, of which one drained in the second
        "concurrent": (1, 5, 4),
        "tokens_per_day": (150, 1_000, 850),
        "money_per_month": ("1.00", "2.000000001", "1.000000001"),
        "tokens_per_minute": (140, 600, 460),
    }
    assert uses["concurrent"].reset is None
    assert uses["tokens_per_day"].reset == "2026-11-29T00:00:00Z"
    assert uses["money_per_month"].reset == "2026-12-01T00:00:00Z"
    assert (uses["tokens_per_minute"].scope, uses["tokens_per_minute"].models) == ("key k1", ("gpt",))
    tomorrow = {use.measure: use for use in limits_of(limits, gate, day, wall + day)}
    assert (tomorrow["tokens_per_day"].used, tomorrow["requests_per_minute"].used) == (0, 0)
    assert tomorrow["tokens_per_day"].reset == "2026-11-30T00:00:00Z"

"""Queues, tries and the outbox, against receivers on real sockets."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from alert_receiver import SECRET, HookServer, Say, hook_server, verified
from forebay.admin.alerting import send_tests
from forebay.admin.delivery import Delivery
from forebay.admin.outbox import Outbox
from forebay.clock import SystemClock
from forebay.config.alerts import Alerts, Every, Severity
from forebay.ledger.alerts import Alert, Scope, Window, alert_id
from ports import free_port
from stack import self_signed
from waiting import eventually


@pytest.fixture
def hooks() -> Iterator[HookServer]:
    with hook_server() as server:
        yield server


def rules(*receivers: dict[str, Any], **more: Any) -> Alerts:
    return Alerts.model_validate({"receivers": receivers, "back_off": 0.01, "back_off_most": 0.02, "timeout": 5} | more)


def webhook(server: HookServer, name: str = "ops", **more: Any) -> dict[str, Any]:
    return {"name": name, "url": server.url, "secret": SECRET, **more}


def alert(n: int, *, severity: Severity = Severity.WARNING, organisation: str = "acme") -> Alert:
    now = time.time()
    return Alert(
        id=alert_id("test", n),
        rule="burst",
        severity=severity,
        title=f"number {n}",
        text=f"This is number {n}.",
        at=now,
        scope=Scope("organisation", (organisation,)),
        window=Window(Every.DAY, now - 10, now + 1_000, "UTC"),
        data={"n": n},
    )


@asynccontextmanager
async def delivering(section: Alerts, path: Path) -> AsyncIterator[Delivery]:
    """As one life of an admin process."""
    outbox = Outbox.load(path, "00112233aabbccdd", section.queue)
    delivery = Delivery(section, outbox, path, SystemClock())
    delivery.start(section)
    try:
        yield delivery
    finally:
        await delivery.close()


async def wait(server: HookServer, count: int) -> list[int]:
    """The numbers of the alerts that came, once they are so many."""
    got = await asyncio.to_thread(server.wait, count)
    return [g.json["data"].get("n", -1) for g in got]


async def until(true: Callable[[], object]) -> None:
    await asyncio.to_thread(eventually, true)


def test_once_each_signed_fresh_and_in_order(hooks: HookServer, tmp_path: Path) -> None:
    async def main() -> None:
        async with delivering(rules(webhook(hooks)), tmp_path / "alerts.json") as delivery:
            for n in range(5):
                assert await delivery.put(alert(n))
                assert not await delivery.put(alert(n)), "the same again"
            assert await wait(hooks, 5) == [0, 1, 2, 3, 4]
            await until(lambda: not delivery.outbox.waiting("ops"))

    asyncio.run(main())
    for n, got in enumerate(hooks.got):
        assert verified(got, time.time())["data"] == {"n": n}
        with pytest.raises(AssertionError, match="forged"):
            verified(got, time.time(), secret="another-secret-of-them")
        with pytest.raises(AssertionError, match="too old"):
            verified(got, time.time() + 301)
    assert len({got.id for got in hooks.got}) == 5


def test_it_is_tried_again_with_the_same_id_and_the_others_wait(hooks: HookServer, tmp_path: Path) -> None:
    hooks.answers = [Say(500), Say(503, headers=(("retry-after", "0"),)), Say(429), Say(200), Say(502), Say(200)]

    async def main() -> None:
        async with delivering(rules(webhook(hooks)), tmp_path / "alerts.json") as delivery:
            for n in (1, 2):
                await delivery.put(alert(n))
            assert await wait(hooks, 6) == [1, 1, 1, 1, 2, 2]
            await until(lambda: not delivery.outbox.waiting("ops"))
            wanted = {("ops", "again"): 4, ("ops", "delivered"): 2}
            await until(lambda: {labels: c.value for labels, c in delivery.deliveries.items()} == wanted)

    asyncio.run(main())
    assert len({got.id for got in hooks.got[:4]}) == 1
    for got in hooks.got:
        verified(got, time.time())


def test_a_time_out_is_tried_again(hooks: HookServer, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    hooks.answers = [Say(hang=True)]

    async def main() -> None:
        async with delivering(rules(webhook(hooks), timeout=0.2), tmp_path / "alerts.json") as delivery:
            await delivery.put(alert(1))
            assert await wait(hooks, 2) == [1, 1]

    asyncio.run(main())
    assert "no answer within 0.2 s" in caplog.text


def test_what_is_refused_is_given_up_and_the_next_comes(
    hooks: HookServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    hooks.answers = [Say(400, b"no such channel"), Say(307, headers=(("location", "/elsewhere"),))]

    async def main() -> None:
        async with delivering(rules(webhook(hooks)), tmp_path / "alerts.json") as delivery:
            for n in (1, 2, 3):
                await delivery.put(alert(n))
            assert await wait(hooks, 3) == [1, 2, 3]
            await until(lambda: not delivery.outbox.waiting("ops"))

    asyncio.run(main())
    assert {got.path for got in hooks.got} == {"/hooks/T0123456789"}, "a redirect was followed"
    assert "400 no such channel" in caplog.text
    assert "it is not followed" in caplog.text


def test_a_receiver_that_hangs_delays_no_other(hooks: HookServer, tmp_path: Path) -> None:
    with hook_server() as slow:
        slow.always = Say(hang=True)

        async def main() -> None:
            both = rules(webhook(slow, "slow"), webhook(hooks, "quick"), timeout=20)
            async with delivering(both, tmp_path / "alerts.json") as delivery:
                for n in range(3):
                    await delivery.put(alert(n))
                assert await wait(hooks, 3) == [0, 1, 2]
                assert await wait(slow, 1) == [0]
                assert (delivery.outbox.waiting("slow"), len(slow.got)) == (3, 1)

        asyncio.run(main())


def test_nothing_is_lost_or_repeated_over_a_restart(hooks: HookServer, tmp_path: Path) -> None:
    path = tmp_path / "alerts.json"

    async def first() -> None:
        async with delivering(rules(webhook(hooks)), path) as delivery:
            await delivery.put(alert(0))
            await wait(hooks, 1)
            await until(lambda: not delivery.outbox.waiting("ops"))
            hooks.always = Say(503)
            for n in (1, 2):
                await delivery.put(alert(n))
            await wait(hooks, 2)

    asyncio.run(first())
    assert path.stat().st_mode & 0o777 == 0o600
    hooks.always = Say(200)
    seen = len(hooks.got)

    async def second() -> None:
        async with delivering(rules(webhook(hooks)), path) as delivery:
            for n in range(3):
                assert not await delivery.put(alert(n)), "told of before"
            assert (await wait(hooks, seen + 2))[seen:] == [1, 2]
            await until(lambda: not delivery.outbox.waiting("ops"))

    asyncio.run(second())
    assert len(hooks.got) == seen + 2
    for got in hooks.got:
        verified(got, time.time())


def test_a_receiver_that_was_long_away_is_told_what_was_dropped(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is down: nothing listens. The queue holds four; the oldest are dropped, but the one that is being tried."""
    port = free_port()
    path = tmp_path / "alerts.json"
    section = rules({"name": "ops", "url": f"http://127.0.0.1:{port}/", "secret": SECRET}, queue=4)

    async def main() -> None:
        async with delivering(section, path) as delivery:
            for n in range(10):
                await delivery.put(alert(n))
            assert delivery.outbox.waiting("ops") == 4
            await until(lambda: delivery.state_of("ops")[1])
            assert "refused" in delivery.state_of("ops")[1]
        async with delivering(section, path) as delivery:
            server = await asyncio.to_thread(HookServer, port)
            try:
                got = await asyncio.to_thread(server.wait, 5)
                await until(lambda: not delivery.outbox.waiting("ops"))
            finally:
                await asyncio.to_thread(server.close)
            told = [verified(g, time.time()) for g in got]
            assert [t["data"].get("n") for t in told] == [0, None, 7, 8, 9]
            assert told[1]["type"] == "alerts_dropped"
            assert told[1]["text"] == (
                "While ops could not be reached, 6 alerts were dropped: 6 burst. `forebay alerts list` shows them."
            )
            assert (told[1]["data"]["dropped"], told[1]["data"]["dropped_burst"]) == (6, 6)

    asyncio.run(main())
    assert caplog.text.count("is not delivered to ops: 4 others wait already") == 6


def test_what_is_too_old_is_dropped_too(hooks: HookServer, tmp_path: Path) -> None:
    hooks.always = Say(500)
    section = rules(webhook(hooks), keep_trying=0.05)

    async def main() -> None:
        async with delivering(section, tmp_path / "alerts.json") as delivery:
            await delivery.put(alert(1))
            await until(lambda: not delivery.outbox.waiting("ops"))
            hooks.always = Say(200)
            before = len(hooks.got)
            await delivery.put(alert(2))
            assert (await wait(hooks, before + 2))[before:] == [2, -1]
            assert hooks.got[-1].json["data"]["dropped"] == 1

    asyncio.run(main())


def test_each_gets_what_it_wants(hooks: HookServer, tmp_path: Path) -> None:
    section = rules(
        webhook(hooks, "critical", least="critical"),
        webhook(hooks, "theirs", organisations=["other"]),
        webhook(hooks, "quotas", rules=["quota_near"]),
    )

    async def main() -> None:
        async with delivering(section, tmp_path / "alerts.json") as delivery:
            await delivery.put(alert(1))
            await delivery.put(alert(2, severity=Severity.CRITICAL))
            await delivery.put(alert(3, organisation="other"))
            assert sorted(await wait(hooks, 2)) == [2, 3]
            await until(lambda: not delivery.outbox.state.alerts)

    asyncio.run(main())


def test_a_receiver_that_is_configured_no_more_is_forgotten(hooks: HookServer, tmp_path: Path) -> None:
    hooks.always = Say(500)

    async def main() -> None:
        path = tmp_path / "alerts.json"
        async with delivering(rules(webhook(hooks, "old"), webhook(hooks, "stays")), path) as delivery:
            await delivery.put(alert(1))
            delivery.start(rules(webhook(hooks, "stays"), webhook(hooks, "new")))
            assert list(delivery.outbox.state.queues) == ["stays"]
            hooks.always = Say(200)
            await delivery.put(alert(2))
            await until(lambda: not delivery.outbox.state.alerts)
            names = {labels[0] for labels, _ in delivery.deliveries.items()}
            assert {"stays", "new"} <= names

    asyncio.run(main())


def test_a_disk_that_takes_nothing_stops_no_alert(
    hooks: HookServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with delivering(rules(webhook(hooks)), tmp_path / "gone" / "alerts.json") as delivery:
            for n in (1, 2):
                await delivery.put(alert(n))
            assert await wait(hooks, 2) == [1, 2]

    asyncio.run(main())
    assert caplog.text.count("cannot be written, so a restart may repeat or lose alerts") == 1


def test_an_outbox_that_cannot_be_read_is_moved_aside(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "alerts.json"
    path.write_text("{")
    outbox = Outbox.load(path, "00", 4)
    assert (outbox.state.owner, outbox.changed) == ("00", True)
    assert (tmp_path / "alerts.json.bad").read_text() == "{"
    assert "cannot be read" in caplog.text


def test_no_secret_is_in_a_log_or_on_the_disk(
    hooks: HookServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    hooks.answers = [Say(500, b"at /hooks/T0123456789"), Say(404, b"no /hooks/T0123456789 for " + SECRET.encode())]

    async def main() -> None:
        async with delivering(rules(webhook(hooks)), tmp_path / "alerts.json") as delivery:
            await delivery.put(alert(1))
            await wait(hooks, 2)
            await until(lambda: not delivery.outbox.waiting("ops"))
            assert "T0123456789" not in repr(delivery)

    asyncio.run(main())
    for text in (caplog.text, (tmp_path / "alerts.json").read_text()):
        assert "T0123456789" not in text
        assert SECRET not in text


def test_https_is_verified(tmp_path: Path) -> None:
    import ssl
    import threading
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

    pem = self_signed(tmp_path)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.handle_error = lambda *_: None  # type: ignore[method-assign] # a handshake that the client breaks off
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    url = f"https://localhost:{server.server_address[1]}/"
    try:
        section = rules({"name": "plain", "url": url}, {"name": "knows", "url": url, "ca": str(pem)})
        plain, knows = asyncio.run(send_tests(section.receivers, section, SystemClock()))
    finally:
        server.shutdown()
        thread.join(10)
        server.server_close()
    assert not plain["delivered"]
    assert "certificate verify failed" in plain["answer"].lower()
    assert (knows["delivered"], knows["answer"]) == (True, "200")


def test_a_test_says_what_came_back(hooks: HookServer) -> None:
    hooks.answers = [Say(403, b"who are you?")]
    section = rules(webhook(hooks))
    (row,) = asyncio.run(send_tests(section.receivers, section, SystemClock()))
    assert (row["receiver"], row["delivered"], row["answer"]) == ("ops", False, "403 who are you?")
    (got,) = hooks.got
    assert verified(got, time.time())["type"] == "test"
    assert json.loads(got.body)["severity"] == "info"

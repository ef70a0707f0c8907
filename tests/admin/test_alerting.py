"""Alerts of a real admin process over real books, arriving at a real receiver, once each."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from admin_process import Admin, FakeWorker
from alert_receiver import SECRET, HookServer, Say, hook_server, verified
from books import Books, spent
from forebay.admin.alert_books import DatabaseBooks
from forebay.admin.alerting import LISTED, MOST, Alerting
from forebay.cli.main import run
from forebay.clock import ManualClock
from forebay.config.models import Address, Config
from forebay.ledger.alerts import Rules
from forebay.ledger.database import Database
from forebay.state.messages import FamilySnapshot, Reload, alerts_outbox
from waiting import eventually

pytestmark = pytest.mark.books

NOON = 1_790_000_000.0


@pytest.fixture
def hooks() -> Iterator[HookServer]:
    with hook_server() as server:
        yield server


def configured(state_dir: Path, hooks: HookServer, **alerts: Any) -> Config:
    receiver = {"name": "ops", "url": hooks.url, "secret": SECRET}
    section = {"receivers": [receiver], "every": 0.1, "back_off": 0.05, "back_off_most": 0.1} | alerts
    quotas = [{"name": "each-key", "each": "key", "tokens_per_day": 15_000}]
    found = {"state_dir": state_dir, "admin": Address(host="127.0.0.1"), "alerts": section, "quotas": quotas}
    return Config.model_validate(found)


@pytest.fixture
def books(state_dir: Path) -> Iterator[Books]:
    """Made before the admin process starts, so that it finds what is in it at its first look."""
    database = Database("", state_dir)
    database.migrate()
    yield Books(database)
    database.close()


def kinds(hooks: HookServer) -> list[str]:
    return sorted(got.json["type"] for got in hooks.got)


def listed(admin: Admin) -> Any:
    """The alerts that the admin process lists, once it has opened its database."""
    answer = eventually(lambda: None if (a := admin.api("GET", "/alerts").json)["why"] else a)
    return answer["alerts"]


def test_alerts_arrive_once_each_also_over_a_restart(
    state_dir: Path, hooks: HookServer, books: Books, worker: FakeWorker
) -> None:
    now = time.time()
    books.add([spent(now, tokens=12_000), spent(now, tokens=3, cost=None, model="new")])
    admin = Admin(configured(state_dir, hooks)).start()
    try:
        got = hooks.wait(3)
        assert kinds(hooks) == ["burst", "quota_near", "unpriced_model"]
        for one in got:
            verified(one, time.time())
        delivered = 'forebay_alert_deliveries_total{receiver="ops",result="delivered"}'
        assert eventually(lambda: admin.metric(delivered) == 3)
        assert admin.metric('forebay_alerts_total{rule="burst"}') == 1
        assert admin.metric('forebay_alerts_waiting{receiver="ops"}') == 0
        admin.kill(signal.SIGKILL)
        admin.start()
        # A new matter is told of; what is new of the old one is looked at in the same transaction, and is not.
        books.add([spent(time.time(), tokens=14_999, key="k2", name="cd"), spent(time.time(), tokens=2_000)])
        hooks.wait(5)
        assert kinds(hooks) == ["burst", "burst", "quota_near", "quota_near", "unpriced_model"]
        assert len({one.id for one in hooks.got}) == 5
        eventually(lambda: not any(a["waits_for"] for a in listed(admin)))
        assert sorted(a["type"] for a in listed(admin)) == kinds(hooks)
        assert len(hooks.got) == 5
    finally:
        admin.close()
    assert SECRET not in admin.log.read_text()
    assert "T0123456789" not in admin.log.read_text()


def test_a_kill_loses_no_alert(state_dir: Path, hooks: HookServer, books: Books, worker: FakeWorker) -> None:
    """One waits for its receiver; of another only the claim was made, and it never reached the outbox."""
    hooks.always = Say(503)
    books.add([spent(time.time(), tokens=11_000), spent(time.time(), tokens=11_500, key="k2", name="cd")])
    admin = Admin(configured(state_dir, hooks)).start()
    try:
        hooks.wait(2)
        rows = eventually(lambda: rows if len(rows := listed(admin)) == 2 else None)
        assert all(row["waits_for"] == ["ops"] for row in rows)
        admin.kill(signal.SIGKILL)
        outbox = alerts_outbox(state_dir)
        state = json.loads(outbox.read_text())
        gone = state["queues"]["ops"].pop()["id"]
        del state["told"][gone], state["alerts"][gone]
        outbox.write_text(json.dumps(state))
        seen, hooks.always = len(hooks.got), Say(200)
        admin.start()
        got = hooks.wait(seen + 2)
        assert {one.id for one in got} == {row["id"] for row in rows}
        eventually(lambda: not any(a["waits_for"] for a in listed(admin)))
        assert [one.id for one in hooks.got[seen:]] == [state["queues"]["ops"][0]["id"], gone]
    finally:
        admin.close()


def test_hosts_that_share_a_database_tell_each_alert_once(
    state_dir: Path, hooks: HookServer, books: Books, tmp_path: Path
) -> None:
    keys = [f"k{n}" for n in range(2 * MOST)]
    books.add([spent(NOON, tokens=20_000, key=key, name=key) for key in keys])
    section = configured(state_dir, hooks, receivers=[]).alerts

    async def main() -> None:
        clock = ManualClock(wall=NOON + 1)
        hosts = []
        for n in range(2):
            host_books = DatabaseBooks("", state_dir, lambda: "UTC", lambda: "", lambda: ())
            path = tmp_path / f"{n}.json"
            hosts.append(Alerting(Rules(section, "USD", "UTC"), host_books, lambda: (), path, f"host-{n}", clock))
        # What the other host has does not stand in the way of what nobody has yet.
        assert [await host.look() for host in (*hosts, *hosts)] == [MOST, 0, MOST, 0]
        found = [host.delivery.outbox.state.told.keys() for host in hosts]
        assert (len(found[0]), len(found[1])) == (2 * MOST, 0)
        books.add([spent(NOON, tokens=20_000, key="last", name="last")])
        assert sum([await host.look() for host in reversed(hosts)]) == 1
        assert len(found[1]) == 1
        assert len((await hosts[0].rows())["alerts"]) == LISTED
        for host in hosts:
            await host.close()

    asyncio.run(main())


def test_trouble_with_the_books_is_told_without_a_database(
    state_dir: Path, hooks: HookServer, worker: FakeWorker
) -> None:
    (state_dir / "forebay.db").write_bytes(b"this is no database, but a text of some length" * 40)
    state = ((("ok",), 0.0), (("full",), 1.0), (("failing",), 0.0))
    worker.set(families=(FamilySnapshot("forebay_ledger_journal_state", "State.", "gauge", ("state",), values=state),))
    admin = Admin(configured(state_dir, hooks, trouble={"after": 0.2})).start()
    try:
        hooks.wait(2)
        found = {got.json["data"]["kind"]: verified(got, time.time()) for got in hooks.got}
        assert sorted(found) == ["database_down", "journal_full"]
        assert "is not an SQLite database" in found["database_down"]["text"]
        assert found["journal_full"]["data"]["where"] == "worker 0"
        assert found["journal_full"]["severity"] == "critical"
        answer = admin.api("GET", "/alerts").json
        assert "is not an SQLite database" in answer["why"]
    finally:
        admin.close()


def test_limits_of_the_database_are_looked_at(
    state_dir: Path, hooks: HookServer, books: Books, worker: FakeWorker
) -> None:
    admin = Admin(configured(state_dir, hooks, receivers=[])).start()
    try:
        worker.keys()
        made = admin.api("POST", "/limits", {"name": "theirs", "each": "project", "tokens_per_day": 1_000})
        assert made.status in (200, 201), made
        books.add([spent(time.time(), tokens=1_000)])
        (found,) = eventually(lambda: [a for a in listed(admin) if a["type"] == "quota_reached"])
        assert (found["data"]["limit"], found["data"]["used"]) == ("theirs", 1_000)
    finally:
        admin.close()


def test_a_reload_changes_receivers(state_dir: Path, hooks: HookServer, books: Books, worker: FakeWorker) -> None:
    admin = Admin(configured(state_dir, hooks, receivers=[])).start()
    try:
        worker.keys()
        assert admin.api("POST", "/alerts/test", {}).json == {"tests": []}
        config = configured(state_dir, hooks)
        admin.send(Reload(config.model_dump_json(by_alias=True)))
        tests = eventually(lambda: admin.api("POST", "/alerts/test", {"receivers": []}).json["tests"])
        assert (tests[0]["receiver"], tests[0]["delivered"], tests[0]["answer"]) == ("ops", True, "200 ok")
        refused = admin.api("POST", "/alerts/test", {"receivers": ["opps"]})
        assert (refused.status, refused.error["param"]) == (400, "receivers")
        assert refused.error["message"] == "receivers: there is no receiver 'opps'; there are ops."
        assert admin.api("POST", "/alerts/test", {"receivers": "ops"}).status == 400
    finally:
        admin.close()


# --- the command -----------------------------------------------------------------------------------------------------


def test_the_command_lists_and_tests(
    state_dir: Path,
    hooks: HookServer,
    books: Books,
    worker: FakeWorker,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("HOOK_URL", hooks.url)
    monkeypatch.setenv("HOOK_SECRET", SECRET)

    def forebay(*words: str) -> tuple[int, str, str]:
        capfd.readouterr()
        code = run(["alerts", *words])
        return code, *capfd.readouterr()

    file = tmp_path / "forebay.yaml"
    receiver = "{name: ops, url: '${HOOK_URL}', secret: '${HOOK_SECRET}'}"
    file.write_text(f"state_dir: {state_dir}\nalerts:\n  receivers:\n    - {receiver}\n")
    code, out, err = forebay("test", "--config", str(file))
    assert code == 0, err
    assert out.startswith("ops (webhook, 127.0.0.1): delivered in ")
    assert "1 sent by this command, for no gateway runs." in err
    assert verified(hooks.got[0], time.time())["type"] == "test"
    assert forebay("list", "--config", str(file))[0] == 69
    wrong = forebay("test", "--config", str(file), "--receiver", "opps")
    assert wrong == (2, "", "forebay alerts: there is no receiver 'opps'; there are ops\n")

    books.add([spent(time.time(), tokens=11_000)])
    admin = Admin(configured(state_dir, hooks)).start()
    try:
        hooks.wait(2)
        eventually(lambda: [a for a in listed(admin) if not a["waits_for"]])
        code, out, err = forebay("list", "--state-dir", str(state_dir))
        assert (code, err) == (0, "")
        assert "11,000 tokens in a minute: key ci (acme / bot)" in out
        hooks.answers = [Say(500, b"out of order")]
        code, out, err = forebay("test", "--state-dir", str(state_dir), "--receiver", "ops")
        assert code == 1
        assert "NOT delivered" in out
        assert "500 out of order" in out
        assert "1 sent by the running gateway." in err
    finally:
        admin.close()

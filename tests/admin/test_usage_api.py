"""Usage over HTTP: on the admin port, on admin.sock, and for a worker that asks for its caller."""

from __future__ import annotations

import asyncio
import csv
import json
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from admin_process import Admin
from forebay.config.ledger import Ledger
from forebay.config.models import Address, Config
from forebay.errors import Refusal
from forebay.gateway.usage_answer import UsageAnswers
from forebay.ledger.database import database_file
from forebay.ledger.tokens import Tokens
from forebay.state.messages import admin_socket
from forebay.wire.tasks import Tasks
from usage_entries import Usage, at
from waiting import eventually

KEY = "config:a/b&c=d é"


@pytest.fixture(scope="module")
def admin() -> Iterator[Admin]:
    """Of one state directory; the test that takes its database away is the last."""
    folder = Path(tempfile.mkdtemp(prefix="fb-"))
    usage = Usage.below(folder)
    usage.request(at("2025-11-03T12:00:00Z"), 5, department="=x, y", tokens=Tokens(input=3))
    usage.request(time.time() - 1, 7, key=KEY, tokens=Tokens(input=3, output=2))
    usage.book()
    address = Address(host="127.0.0.1", port=8081)
    admin = Admin(Config(state_dir=folder, admin=address, ledger=Ledger(currency="USD", zone="Asia/Shanghai")))
    try:
        admin.start()
        eventually(lambda: admin.get("/health").json["database"]["up"])
        yield admin
    finally:
        admin.close()
        shutil.rmtree(folder)


def own(admin: Admin, key_id: str) -> bytes | Refusal:
    async def ask() -> bytes | Refusal:
        tasks = Tasks()
        answers = UsageAnswers(admin_socket(admin.state_dir), tasks, time.monotonic)
        found: asyncio.Future[bytes | Refusal] = asyncio.get_running_loop().create_future()
        answers.ask(key_id, found.set_result)
        answer = await found
        await tasks.drain()
        return answer

    return asyncio.run(ask())


def test_the_same_report_on_both_ways_in_the_configuration_s_zone(admin: Admin) -> None:
    query = "month=2025-11&by=department&where=key%3Dk1"
    port, sock = admin.get(f"/admin/usage?{query}"), admin.api("GET", f"/usage?{query}")
    assert (port.status, sock.status) == (200, 200)
    assert port.json | {"at": ""} == sock.json | {"at": ""}
    assert port.json["zone"] == "Asia/Shanghai"
    assert [row["of"] for row in port.json["rows"]] == [{"department": "=x, y"}]
    assert port.json["total"]["cost"] == "0.000000005"


def test_csv_and_focus(admin: Admin) -> None:
    answer = admin.get("/admin/usage?month=2025-11&by=department&format=csv")
    assert answer.headers["content-type"] == "text/csv; charset=utf-8"
    (line,) = csv.DictReader(answer.body.decode().splitlines())
    assert line["department"] == "'=x, y"
    focus = admin.get("/admin/usage?month=2025-11&focus=true&format=csv")
    (row,) = csv.DictReader(focus.body.decode().splitlines())
    assert (row["BilledCost"], row["BillingPeriodStart"]) == ("0.000000005", "2025-10-31T16:00:00Z")


@pytest.mark.parametrize(
    ("query", "param"), [("by=frob", "by"), ("month=x", "month"), ("colour=red", "colour"), ("format=xls", "format")]
)
def test_what_is_asked_wrongly_names_its_parameter(admin: Admin, query: str, param: str) -> None:
    answer = admin.get(f"/admin/usage?{query}")
    assert (answer.status, answer.error["param"]) == (400, param)


def test_a_page_of_another_site_cannot_read_it(admin: Admin) -> None:
    assert admin.get("/admin/usage", host="evil.example").status == 403


def test_one_key_s_use_is_not_on_the_port(admin: Admin) -> None:
    assert admin.get("/admin/usage/key?id=k1").status == 404
    assert admin.get("/usage/key?id=k1").status == 404
    assert admin.api("GET", "/usage/key").error["param"] == "id"


def test_a_worker_asks_for_its_caller(admin: Admin) -> None:
    body = own(admin, KEY)
    assert isinstance(body, bytes), body
    found = json.loads(body)
    assert (found["key"], found["periods"]["today"]["cost"]) == (KEY, "0.000000007")
    assert admin.api("GET", f"/usage/key?id={quote(KEY)}").json["periods"] == found["periods"]


def test_a_report_holds_up_neither_writers_nor_another_report(admin: Admin) -> None:
    """A writer in the middle of its transaction, and a reader that has seen the state before."""
    with sqlite3.connect(database_file(admin.state_dir), isolation_level=None) as other:
        other.execute("BEGIN IMMEDIATE")
        other.execute("UPDATE versions SET value = value + 1")
        assert admin.get("/admin/usage?month=2025-11").json["total"]["requests"] == 1
        other.execute("ROLLBACK")
    other.close()


def test_without_its_database_the_admin_process_says_so(admin: Admin) -> None:
    file = database_file(admin.state_dir)
    assert admin.get("/admin/usage").status == 200
    file.rename(file.with_suffix(".away"))
    file.mkdir()  # so that no new one is made in its place
    answer = admin.get("/admin/usage")
    assert (answer.status, answer.error["code"]) == (503, "database_unavailable")
    refusal = own(admin, "k1")
    assert isinstance(refusal, Refusal)
    assert (refusal.status, refusal.code) == (503, "usage_unavailable")
    assert "database" in refusal.message

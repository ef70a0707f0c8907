"""Reports over a month of the books."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, func, select, text

from benchmarks.common import BenchError
from benchmarks.ledger.work import ACCOUNTS, KEYS, LABELS, MODELS
from forebay.ledger.database import Database
from forebay.ledger.entries import Account, Reserved
from forebay.ledger.focus import NEEDS
from forebay.ledger.names import Names
from forebay.ledger.reports import Query, Row, Step, report
from forebay.ledger.schema import DAY, GRAINS, SUMS, entries, journals, rollups
from forebay.ledger.tokens import KINDS

SINCE = 1_796_083_200
"""1 December 2026, UTC; the month has 31 days."""
UNTIL = SINCE + 31 * DAY
LOT = 500_000
"""Entries of one transaction."""
TIMES = 3

QUERIES: dict[str, Query] = {
    "all": Query(SINCE, UNTIL),
    "by department": Query(SINCE, UNTIL, by=("department",)),
    "by department and model": Query(SINCE, UNTIL, by=("department", "model")),
    "by key": Query(SINCE, UNTIL, by=("key", "key_name", "project", "user")),
    "by label": Query(SINCE, UNTIL, by=("label:team",)),
    "by model, each day": Query(SINCE, UNTIL, by=("model",), step=Step.DAY),
    "by model, each day of Shanghai": Query(
        SINCE - 8 * 3600, UNTIL - 8 * 3600, by=("model",), step=Step.DAY, zone="Asia/Shanghai"
    ),
    "by department and model, each day of Berlin": Query(
        SINCE - 3600, UNTIL - 3600, by=("department", "model"), step=Step.DAY, zone="Europe/Berlin"
    ),
    "each hour": Query(SINCE, UNTIL, step=Step.HOUR),
    "by model, each hour": Query(SINCE, UNTIL, by=("model",), step=Step.HOUR),
    "by department, each hour": Query(SINCE, UNTIL, by=("department",), step=Step.HOUR),
    "one department, each hour": Query(SINCE, UNTIL, step=Step.HOUR, where={"department": ("department 7",)}),
    "one day as FOCUS, each hour": Query(SINCE + 9 * DAY, SINCE + 10 * DAY, by=(*NEEDS, "label:team"), step=Step.HOUR),
    "from 09:13:07 to 17:41:53, by user": Query(SINCE + 33_187, UNTIL - 22_687, by=("user",)),
}


def fill(database: Database, count: int) -> None:
    """`count` entries spread evenly over the month, and the sums that the book would have kept of them: by SQL, since
    the book would take a quarter of an hour."""
    with _writing(database) as connection:
        names, first, number = Names(), 0, 0
        for who in ACCOUNTS:
            account = names.account(connection, Account(0, *who))
            for model in MODELS:
                call = Reserved(1, 1, SINCE, "", 0, "chat", model, model, "engine-1", "", "normal", "", LABELS, 0, 0, 0)
                number = names.dimension(connection, account, call, float(SINCE)).dimension
                first = first or number
        if number - first + 1 != KEYS * len(MODELS):
            raise BenchError("the dimensions are not numbered one after another")
        journal = {"boot": "b", "booted": 0.0, "segment": 1, "position": 1, "next_seq": count + 1, "seen": 0.0}
        connection.execute(journals.insert().values(id=1, owner="0" * 16, currency="USD", **journal))
    for start in range(0, count, LOT):
        with _writing(database) as connection:
            _fill_entries(connection, start, min(LOT, count - start), count, first)
    with _writing(database) as connection:
        _sum_up(connection)
        connection.exec_driver_sql("ANALYZE")


@contextmanager
def _writing(database: Database) -> Iterator[Connection]:
    with database.write() as connection:
        if not database.sqlite:
            # Ten million rows in minutes: without a look at each one's references, and without a statement's limit.
            connection.exec_driver_sql("SET LOCAL session_replication_role = replica")
            connection.exec_driver_sql("SET LOCAL statement_timeout = 0")
        yield connection


def _fill_entries(connection: Connection, start: int, lot: int, count: int, first: int) -> None:
    sqlite = connection.dialect.name == "sqlite"
    made = {
        "journal_id": "1",
        "seq": "n + 1",
        "request": "n + 1",
        "reserved": "at - 1.5",
        "at": "at",
        "request_id": "printf('req-%028x', n)" if sqlite else "'req-' || lpad(to_hex(n), 28, '0')",
        "dimension_id": f"{first} + h % {KEYS * len(MODELS)}",
        "how": "CASE h % 50 WHEN 0 THEN 'estimated' WHEN 1 THEN 'unpriced' ELSE 'exact' END",
        "outcome": "CASE h % 50 WHEN 0 THEN 'client_gone' ELSE 'ok' END",
        "input": "100 + h % 1000",
        "output": "h % 700",
        "cost": "CASE h % 50 WHEN 1 THEN NULL ELSE 3000 * (100 + h % 1000) + 15000 * (h % 700) END",
        "ttft": "0.12",
        "seconds": "1.5",
        "note": "''",
        "price_id": "NULL",
        "end_user": "NULL",
        "labels": "NULL",
    }
    columns = [column.name for column in entries.columns]
    values = ", ".join(made.get(name, "0") for name in columns)
    numbers = (
        f"SELECT {start} UNION ALL SELECT n + 1 FROM numbers WHERE n + 1 < {start + lot}"
        if sqlite
        else f"SELECT generate_series({start}::bigint, {start + lot - 1})"
    )
    query = f"""
        INSERT INTO entries ({", ".join(columns)})
        WITH {"RECURSIVE" if sqlite else ""} numbers(n) AS ({numbers}),
        made AS (SELECT n, {SINCE} + n * {float(UNTIL - SINCE) / count!r} AS at,
                        (n * 2654435761 + n / 7) % 4294967291 AS h FROM numbers)
        SELECT {values} FROM made
        """
    connection.execute(text(query.replace(":", r"\:")))


def _sum_up(connection: Connection) -> None:
    sums = {
        "attempts": "count(*)",
        "requests": "sum(CASE WHEN request = seq THEN 1 ELSE 0 END)",
        **{kind: f"sum({kind})" for kind in KINDS},
        "cost": "sum(coalesce(cost, 0))",
        "avoided": "sum(avoided)",
        "kv": "sum(kv)",
    }
    columns = [column.name for column in rollups.columns]
    finest = min(GRAINS)
    for grain in sorted(GRAINS):
        source, at = ("entries", "at") if grain == finest else ("rollups", "slot")
        where = "" if grain == finest else f"WHERE grain = {finest}"
        made = {name: sums.get(name, "0") if grain == finest else f"sum({name})" for name in SUMS}
        key = f"CAST({at} AS INTEGER)" if connection.dialect.name == "sqlite" else f"CAST(floor({at}) AS bigint)"
        key = f"{key} / {grain} * {grain}"
        connection.exec_driver_sql(
            f"INSERT INTO rollups ({', '.join(columns)}) SELECT {grain}, {key}, dimension_id, how, outcome, "
            f"{', '.join(made[name] for name in SUMS)} FROM {source} {where} GROUP BY 2, 3, 4, 5"
        )


def measure(folder: Path, url: str, count: int, say: Callable[[str], None]) -> dict[str, Any]:
    """Seconds, and of them this process's CPU, of a few times of each query, on a database that was just opened."""
    database = Database(url, folder)
    try:
        database.migrate()
        began = time.monotonic()
        fill(database, count)
        say(f"{count:,} entries in {time.monotonic() - began:.0f} s")
        with _writing(database) as connection:
            truth = connection.execute(select(func.count(), func.sum(entries.c.cost), func.sum(entries.c.output))).one()
            rolled = connection.execute(select(func.count()).select_from(rollups)).scalar_one()
    finally:
        database.close()
    seconds: dict[str, list[float]] = {}
    cpu: dict[str, list[float]] = {}
    for name, query in QUERIES.items():
        for _ in range(TIMES):
            fresh = Database(url, folder)
            try:
                began, spent = time.monotonic(), time.process_time()
                with fresh.read() as connection:
                    rows = report(connection, query)
                seconds.setdefault(name, []).append(time.monotonic() - began)
                cpu.setdefault(name, []).append(time.process_time() - spent)
            finally:
                fresh.close()
        if query.since == SINCE and query.until == UNTIL and not query.where:
            _check(name, rows, truth)
    return {"entries": count, "sums": rolled, "seconds": seconds, "cpu": cpu}


def _check(name: str, rows: list[Row], truth: Any) -> None:
    found = (sum(r.attempts for r in rows), sum(r.cost for r in rows), sum(r.tokens.output for r in rows))
    if found != tuple(truth):
        raise BenchError(f"the report {name!r} says {found}, the entries {tuple(truth)}")

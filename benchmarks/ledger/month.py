"""Reports over a month of the books."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Connection, Table, func, select, text

from benchmarks.common import BenchError
from benchmarks.ledger.work import ACCOUNTS, MODELS
from forebay.ledger.database import Database
from forebay.ledger.entries import Account, Reserved
from forebay.ledger.focus import NEEDS
from forebay.ledger.names import Names
from forebay.ledger.reports import Query, Row, report
from forebay.ledger.schema import (
    ACCOUNT,
    COARSE,
    DAY,
    GRAINS,
    HOWS,
    SERVICE,
    USE,
    account_rollups,
    entries,
    journals,
    rollups,
    service_rollups,
    use_rollups,
)
from forebay.ledger.steps import Step
from forebay.ledger.tokens import KINDS

SINCE = 1_796_083_200
"""1 December 2026, UTC; the month has 31 days."""
UNTIL = SINCE + 31 * DAY
LOT = 500_000
"""Entries of one transaction."""
TIMES = 3
TEAMS = ("blue", "green", "red", "white", "black")
"""Values of a label."""

_HALF_PAST: Final = 19_800
"""Seconds that Kolkata is before UTC: five hours and a half."""


def _month(*by: str, step: Step | None = None, **where: str) -> Query:
    return Query(SINCE, UNTIL, by=by, step=step, where={name: (value,) for name, value in where.items()})


def _of(query: Query, zone: str, offset: int) -> Query:
    """The same month of a zone that is `offset` seconds before UTC."""
    return replace(query, since=SINCE - offset, until=UNTIL - offset, zone=zone)


def _kolkata(query: Query) -> Query:
    return _of(query, "Asia/Kolkata", _HALF_PAST)


_HOUR, _DAY = Step.HOUR, Step.DAY
_TEAMS: Final = replace(_month("model"), where={"label:team": TEAMS[:2]})
QUERIES: Final = {
    "all": _month(),
    "by department": _month("department"),
    "by department and model": _month("department", "model"),
    "by key": _month("key", "key_name", "project", "user"),
    "by label": _month("label:team"),
    "by model of two labels": _TEAMS,
    "by model, each day": _month("model", step=_DAY),
    "by model, each day of Shanghai": _of(_month("model", step=_DAY), "Asia/Shanghai", 8 * 3600),
    "by department and model, each day of Berlin": _of(_month("department", "model", step=_DAY), "Europe/Berlin", 3600),
    "by department and model, each day of Kolkata": _kolkata(_month("department", "model", step=_DAY)),
    "by label, each day of Kolkata": _kolkata(_month("label:team", step=_DAY)),
    "by label, each hour of Kolkata": _kolkata(_month("label:team", step=_HOUR)),
    "each hour": _month(step=_HOUR),
    "by model, each hour": _month("model", step=_HOUR),
    "by department, each hour": _month("department", step=_HOUR),
    "by project, each hour": _month("project", step=_HOUR),
    "by department and model, each hour": _month("department", "model", step=_HOUR),
    "one department, each hour": _month(step=_HOUR, department="department 7"),
    "by user of a department, each hour": _month("user", step=_HOUR, department="department 7"),
    "by user, each hour of 20 days": replace(_month("user", step=_HOUR), until=SINCE + 20 * DAY),
    "by label, each hour": _month("label:team", step=_HOUR),
    "by model of two labels, each hour": replace(_TEAMS, step=_HOUR),
    "by engine, each hour": _month("engine", step=_HOUR),
    "by how, each hour": _month("how", step=_HOUR),
    "each hour of Kolkata": _kolkata(_month(step=_HOUR)),
    "by model, each hour of Kolkata": _kolkata(_month("model", step=_HOUR)),
    "by department, each hour of Kolkata": _kolkata(_month("department", step=_HOUR)),
    "by project, each hour of Kolkata": _kolkata(_month("project", step=_HOUR)),
    "by engine, each day of Kolkata": _kolkata(_month("engine", step=_DAY)),
    "by engine, each hour of Kolkata": _kolkata(_month("engine", step=_HOUR)),
    "by model and outcome, each hour of Kolkata": _kolkata(_month("model", "outcome", step=_HOUR)),
    "by user of a department, each hour of Kolkata": _kolkata(_month("user", step=_HOUR, department="department 7")),
    "one day as FOCUS, each hour": Query(SINCE + 9 * DAY, SINCE + 10 * DAY, by=(*NEEDS, "label:team"), step=_HOUR),
    "from 09:13:07 to 17:41:53, by user": Query(SINCE + 33_187, UNTIL - 22_687, by=("user",)),
}
BEYOND: Final = {
    "by key and model, each hour of Kolkata": _kolkata(_month("key", "model", step=_HOUR)),
    "by end user": _month("end_user"),
    "by end user, each day": _month("end_user", step=_DAY),
}
"""What no sums are kept for that are short enough: shown, without a bar."""


def told_apart_by_few(query: Query) -> bool:
    """Whether sums by account, use or service tell what a report is by: then it takes no longer where there are many
    end users."""
    names = {*query.by, *query.where}
    unlabelled = {name for name in names if not name.startswith("label:")}
    return unlabelled.issubset(USE) or names.issubset(ACCOUNT) or names.issubset((*SERVICE, "how", "outcome"))


def fill(database: Database, count: int, users: int = 0) -> None:
    """`count` entries spread evenly over the month, of `users` end users of each key (0: of none), and the sums that
    the book would have kept of them: by SQL, since the book would take a quarter of an hour."""
    combinations = len(ACCOUNTS) * len(MODELS) * max(1, users)
    with _writing(database) as connection:
        names, first, number = Names(), 0, 0
        for n, who in enumerate(ACCOUNTS):
            account = names.account(connection, Account(0, *who))
            labels = (("team", TEAMS[n % len(TEAMS)]),)
            for model, end_user in product(MODELS, [f"end user {u}" for u in range(users)] or [""]):
                engine = f"engine-{len(model) % 3}"
                call = Reserved(
                    1, 1, SINCE, "", 0, "chat", model, model, engine, "", "normal", end_user, labels, 0, 0, 0
                )
                number = names.dimension(connection, account, call, float(SINCE)).dimension
                first = first or number
        if number - first + 1 != combinations:
            raise BenchError("the dimensions are not numbered one after another")
        journal = {"boot": "b", "booted": 0.0, "segment": 1, "position": 1, "next_seq": count + 1, "seen": 0.0}
        connection.execute(journals.insert().values(id=1, owner="0" * 16, currency="USD", **journal))
    for start in range(0, count, LOT):
        with _writing(database) as connection:
            _fill_entries(connection, start, min(LOT, count - start), count, range(first, number + 1))
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


def _fill_entries(connection: Connection, start: int, lot: int, count: int, among: range) -> None:
    sqlite = connection.dialect.name == "sqlite"
    known = f"h / {len(among)} % 50"  # another number than the dimension's
    made = {
        "journal_id": "1",
        "seq": "n + 1",
        "request": "n + 1",
        "reserved": "at - 1.5",
        "at": "at",
        "request_id": "printf('req-%028x', n)" if sqlite else "'req-' || lpad(to_hex(n), 28, '0')",
        "dimension_id": f"{among.start} + h % {len(among)}",
        "how": f"CASE {known} WHEN 0 THEN 'estimated' WHEN 1 THEN 'unpriced' ELSE 'exact' END",
        "outcome": f"CASE {known} WHEN 0 THEN 'client_gone' ELSE 'ok' END",
        "input": "100 + h % 1000",
        "output": "h % 700",
        "cost": f"CASE {known} WHEN 1 THEN NULL ELSE 3000 * (100 + h % 1000) + 15000 * (h % 700) END",
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
    settled = sums | {
        "succeeded": "sum(CASE WHEN outcome = 'ok' THEN 1 ELSE 0 END)",
        **{how: f"sum(CASE WHEN how = '{how}' THEN 1 ELSE 0 END)" for how in HOWS},
    }
    entry = "entries JOIN dimensions ON dimensions.id = dimension_id"
    _sum_into(connection, rollups, GRAINS, ("dimension_id", "how", "outcome"), "entries", sums)
    _sum_into(connection, account_rollups, COARSE, ("account_id",), entry, settled)
    _sum_into(connection, use_rollups, COARSE, ("use_id",), entry, settled)
    _sum_into(connection, service_rollups, COARSE, ("service_id", "how", "outcome"), entry, sums)


def _sum_into(
    connection: Connection, table: Table, grains: Sequence[int], by: tuple[str, ...], source: str, sums: dict[str, str]
) -> None:
    columns = [column.name for column in table.columns]
    keys, counts = columns[2 : 2 + len(by)], columns[2 + len(by) :]
    second = "CAST(at AS INTEGER)" if connection.dialect.name == "sqlite" else "CAST(floor(at) AS bigint)"
    made, where = {name: sums.get(name, "0") for name in counts}, ""
    for grain in sorted(grains):
        connection.exec_driver_sql(
            f"INSERT INTO {table.name} ({', '.join(columns)}) SELECT {grain}, {second} / {grain} * {grain}, "
            f"{', '.join(by)}, {', '.join(made[name] for name in counts)} FROM {source} {where} "
            f"GROUP BY {', '.join(map(str, range(2, 3 + len(by))))}"
        )
        second, by, source, where = "slot", tuple(keys), table.name, f"WHERE grain = {min(grains)}"
        made = {name: f"sum({name})" for name in counts}


def measure(folder: Path, url: str, count: int, users: int, say: Callable[[str], None]) -> dict[str, Any]:
    """Seconds, and of them this process's CPU, of a few times of each query, on a database that was just opened."""
    queries = {name: query for name, query in (QUERIES | BEYOND).items() if users or "end_user" not in query.by}
    database = Database(url, folder)
    try:
        database.migrate()
        began = time.monotonic()
        fill(database, count, users)
        say(f"{count:,} entries in {time.monotonic() - began:.0f} s")
        with _writing(database) as connection:
            truth = connection.execute(select(func.count(), func.sum(entries.c.cost), func.sum(entries.c.output))).one()
            rolled = {
                table.name: connection.execute(select(func.count()).select_from(table)).scalar_one()
                for table in (rollups, account_rollups, use_rollups, service_rollups)
            }
    finally:
        database.close()
    seconds: dict[str, list[float]] = {}
    cpu: dict[str, list[float]] = {}
    rows: dict[str, int] = {}
    for name, query in queries.items():
        for _ in range(TIMES if name in QUERIES else 1):
            fresh = Database(url, folder)
            try:
                began, spent = time.monotonic(), time.process_time()
                with fresh.read() as connection:
                    found = report(connection, query)
                seconds.setdefault(name, []).append(time.monotonic() - began)
                cpu.setdefault(name, []).append(time.process_time() - spent)
            finally:
                fresh.close()
        if query.since == SINCE and query.until == UNTIL and not query.where:
            _check(name, found, truth)
        rows[name] = len(found)
    barred = [name for name, query in QUERIES.items() if not users or told_apart_by_few(query)]
    shown = {"seconds": seconds, "cpu": cpu, "rows": rows, "barred": barred}
    return {"entries": count, "end_users": users, "sums": rolled} | shown


def _check(name: str, rows: list[Row], truth: Any) -> None:
    found = (sum(r.attempts for r in rows), sum(r.cost for r in rows), sum(r.tokens.output for r in rows))
    if found != tuple(truth):
        raise BenchError(f"the report {name!r} says {found}, the entries {tuple(truth)}")

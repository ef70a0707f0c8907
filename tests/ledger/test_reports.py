from __future__ import annotations

import random
from datetime import datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from forebay.ledger.book import Book
from forebay.ledger.database import Database
from forebay.ledger.entries import Account, Adjusted, Began, How, Record, Reserved, Settled
from forebay.ledger.names import MOST_VALUES
from forebay.ledger.reports import BadQuery, Query, Row, Step, report, spans
from forebay.ledger.tokens import Tokens

OWNER = "00112233445566aa"
APRIL = datetime(2026, 4, 1, tzinfo=ZoneInfo("UTC")).timestamp()
DAY = 86_400


def attempt(
    seq: int, at: float, cost: int, account: int = 1, model: str = "m", end_user: str = "", **labels: str
) -> list[Record]:
    tags = tuple(sorted(labels.items()))
    reserved = Reserved(seq, seq, at, "x", account, "chat", model, model, "e", "", "low", end_user, tags, 1, 1, 1)
    outcome = "ok" if seq % 2 else "engine_cut"
    return [reserved, Settled(seq, at, Tokens(input=2, output=1), How.EXACT, cost, 0, outcome)]


def names() -> list[Record]:
    projects = ("a,b", "O'Brien; DROP TABLE entries", "naïve 🦊\nline")
    return [Began(OWNER, "b", 1, 1, "USD", APRIL)] + [
        Account(n, f"k{n}", "key", "acme", "dep", name, "") for n, name in enumerate(projects, 1)
    ]


def fill(database: Database, records: list[Record]) -> None:
    database.migrate()
    Book(database, "USD").ingest(OWNER, list(enumerate([*names(), *records], 1)), APRIL)


def asked(database: Database, query: Query) -> list[Row]:
    with database.read() as connection:
        return report(connection, query)


def test_any_span_of_any_zone_sums_exactly_what_is_in_it(database: Database) -> None:
    """Against plain sums of the same entries: edges within hours, days of zones off by quarters, changes of clocks."""
    rng = random.Random(5)
    times = [APRIL - 5 * DAY + rng.uniform(0, 12 * DAY) for _ in range(400)]
    fill(database, [r for seq, at in enumerate(times, 1) for r in attempt(seq, at, seq, seq % 3 + 1)])
    entries = list(enumerate(times, 1))
    for zone, step in (
        ("UTC", Step.DAY),
        ("Asia/Shanghai", Step.DAY),
        ("Asia/Kathmandu", Step.DAY),
        ("Europe/Berlin", Step.WEEK),
        ("Australia/Lord_Howe", Step.HOUR),
        ("America/New_York", Step.MONTH),
        ("UTC", None),
    ):
        since = APRIL - 4 * DAY + rng.uniform(0, DAY)
        until = since + rng.uniform(2 * DAY, 6 * DAY)
        query = Query(since, until, by=("project",), step=step, zone=zone)
        rows = asked(database, query)
        assert sum(r.cost for r in rows) == sum(seq for seq, at in entries if since <= at < until)
        for begin, end in spans(query):
            inside = [seq for seq, at in entries if begin <= at < end]
            found = [r for r in rows if r.since == begin]
            assert sum(r.cost for r in found) == sum(inside), (zone, begin, end)
            assert sum(r.attempts for r in found) == len(inside)
            assert sum(r.succeeded for r in found) == sum(seq % 2 for seq in inside)


@pytest.mark.parametrize(
    ("zone", "step", "since", "until", "hours"),
    [
        ("UTC", Step.DAY, "2028-02-28T00:00", "2028-03-02T00:00", [24, 24, 24]),  # 29 February
        ("Europe/Berlin", Step.DAY, "2026-03-28T00:00", "2026-03-31T00:00", [24, 23, 24]),
        ("Europe/Berlin", Step.DAY, "2026-10-24T12:00", "2026-10-26T06:00", [12, 25, 6]),
        ("America/Santiago", Step.DAY, "2026-09-05T00:00", "2026-09-07T00:00", [24, 23]),  # there is no midnight
        ("UTC", Step.MONTH, "2028-01-15T00:00", "2028-04-01T00:00", [17 * 24, 29 * 24, 31 * 24]),
        ("Asia/Shanghai", Step.WEEK, "2026-11-27T00:00", "2026-12-08T00:00", [72, 168, 24]),
        ("Asia/Kathmandu", Step.HOUR, "2026-01-01T00:30", "2026-01-01T02:00", [0.5, 1]),
        ("Europe/Berlin", Step.HOUR, "2026-03-29T01:00", "2026-03-29T04:00", [1, 1]),
    ],
)
def test_steps_are_the_zones(zone: str, step: Step, since: str, until: str, hours: list[float]) -> None:
    begin, end = (datetime.fromisoformat(t).replace(tzinfo=ZoneInfo(zone)).timestamp() for t in (since, until))
    found = list(spans(Query(begin, end, step=step, zone=zone)))
    assert [(b - a) / 3_600 for a, b in found] == hours
    assert found[0][0] == begin
    assert found[-1][1] == end


def test_by_names_and_labels_that_are_anything(database: Database) -> None:
    fill(
        database,
        [
            *attempt(1, APRIL, 10, 1, team="x"),
            *attempt(2, APRIL, 20, 2, team="y'; --", env="p"),
            *attempt(3, APRIL, 40, 3, "n"),
            Adjusted(4, APRIL, 2, 5, "invoice"),
        ],
    )
    rows = asked(database, Query(APRIL, APRIL + 1, by=("project", "label:team")))
    assert [(*r.group, r.total) for r in rows] == [
        ("naïve 🦊\nline", "", 40),
        ("O'Brien; DROP TABLE entries", "y'; --", 25),
        ("a,b", "x", 10),
    ]
    where = {"label:team": ("y'; --", "x"), "model": ("m",)}
    (row,) = asked(database, Query(APRIL, APRIL + 1, where=where))
    assert (row.group, row.cost, row.adjusted, row.corrections) == ((), 30, 5, 1)
    assert asked(database, Query(APRIL, APRIL + 1, where={"key": ("nobody",)})) == []


def test_what_clients_type_is_bounded_and_what_is_left_is_summed(tmp_path: Path) -> None:
    database = Database("", tmp_path)
    count = MOST_VALUES + 50
    records = [r for seq in range(1, count + 1) for r in attempt(seq, APRIL, 1, end_user=f"u{seq}", run=str(seq % 7))]
    fill(database, records)
    rows = asked(database, Query(APRIL, APRIL + 1, by=("end_user",)))
    assert rows[0].group == ("_other",)
    assert rows[0].cost == count - len(rows) + 1
    assert count - 60 < len(rows) <= MOST_VALUES + 1
    assert len(asked(database, Query(APRIL, APRIL + 1, by=("label:run",)))) == 7
    with database.read() as connection:
        kept = connection.exec_driver_sql("SELECT count(*) FROM entries WHERE end_user IS NOT NULL").scalar()
    assert kept == rows[0].cost
    database.close()


@pytest.mark.parametrize(
    ("query", "said"),
    [
        (Query(5, 5), "until: must be after since"),
        (Query(float("nan"), 5), "since: a time from 1970"),
        (Query(0, 5, by=("projct",)), "by: 'projct' is none of key, "),
        (Query(0, 5, where={"label:": ("x",)}), "where: 'label:' is none of"),
        (Query(0, 5, by=("key", "key")), "by: names one twice"),
        (Query(0, 5, where={"key": ()}), "where: 1 to 500 values of key, not 0"),
        (Query(0, 5, zone="Mars/Olympus"), "zone: a time zone like"),
        (Query(0, 1e9, step=Step.HOUR), "step: over 2,400 steps"),
    ],
)
def test_queries_that_make_no_sense(tmp_path: Path, query: Query, said: str) -> None:
    database = Database("", tmp_path)
    database.migrate()
    with pytest.raises(BadQuery) as caught:
        asked(database, query)
    assert said in str(caught.value)
    database.close()

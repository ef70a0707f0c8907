from __future__ import annotations

import random
from datetime import datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from sqlalchemy import event

from forebay.ledger.book import Book
from forebay.ledger.database import Database
from forebay.ledger.entries import Account, Adjusted, Began, How, Record, Reserved, Settled
from forebay.ledger.names import MOST_VALUES
from forebay.ledger.reports import BadQuery, Query, Row, report, spans
from forebay.ledger.steps import Step
from forebay.ledger.tokens import Tokens

pytestmark = pytest.mark.books

OWNER = "00112233445566aa"
APRIL = datetime(2026, 4, 1, tzinfo=ZoneInfo("UTC")).timestamp()
DAY = 86_400
PROJECTS = ("a,b", "O'Brien; DROP TABLE entries", "naïve 🦊\nline")


def attempt(
    seq: int, at: float, cost: int, account: int = 1, model: str = "m", end_user: str = "", **labels: str
) -> list[Record]:
    tags = tuple(sorted(labels.items()))
    reserved = Reserved(seq, seq, at, "x", account, "chat", model, model, "e", "", "low", end_user, tags, 1, 1, 1)
    outcome = "ok" if seq % 2 else "engine_cut"
    return [reserved, Settled(seq, at, Tokens(input=2, output=1), How.EXACT, cost, 0, outcome)]


def names() -> list[Record]:
    return [Began(OWNER, "b", 1, 1, "USD", APRIL)] + [
        Account(n, f"k{n}", "key", "acme", "dep", name, "") for n, name in enumerate(PROJECTS, 1)
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
        ("Europe/Berlin", Step.DAY),
        ("Australia/Lord_Howe", Step.DAY),
        ("UTC", Step.HOUR),
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
    ("zone", "step", "most"),
    [
        ("UTC", Step.HOUR, 2),
        ("UTC", Step.DAY, 1),
        ("Asia/Shanghai", Step.DAY, 2),
        ("America/New_York", Step.HOUR, 2),
        ("Asia/Kolkata", Step.HOUR, 2),
        ("Asia/Kolkata", Step.DAY, 4),
        ("Europe/Berlin", Step.DAY, 10),  # the clocks change: three ways to cover a day
    ],
)
def test_many_steps_are_few_queries(database: Database, zone: str, step: Step, most: int) -> None:
    """One for each way to cover a step, and one for what is 0 throughout."""
    here = ZoneInfo(zone)
    since, until = (datetime(2026, 3, day, tzinfo=here) for day in (10, 31))
    rng = random.Random(7)
    times = [rng.uniform(since.timestamp(), until.timestamp()) for _ in range(60)]
    fill(database, [r for seq, at in enumerate(times, 1) for r in attempt(seq, at, seq)])
    query = Query(since.timestamp(), until.timestamp(), by=("model",), step=step, zone=zone)
    asked_of: list[str] = []
    with database.read() as connection:
        event.listen(connection, "before_cursor_execute", lambda _c, _cur, statement, *_: asked_of.append(statement))
        rows = report(connection, query)
    plain = {begin: sum(seq for seq, at in enumerate(times, 1) if begin <= at < end) for begin, end in spans(query)}
    assert {r.since: r.cost for r in rows} == {begin: cost for begin, cost in plain.items() if cost}
    assert len(asked_of) <= most


@pytest.mark.parametrize(("zone", "step"), [("Asia/Kolkata", Step.HOUR), ("Europe/Berlin", Step.DAY), ("UTC", None)])
def test_whatever_is_asked_by_comes_to_the_same(database: Database, zone: str, step: Step | None) -> None:
    """Against plain sums of the entries, whichever sums they are read from."""
    rng = random.Random(11)
    records: list[Record] = []
    plain: list[tuple[float, dict[str, str], tuple[int, int, int]]] = []
    for seq in range(1, 151):
        at, n, model = APRIL - 5 * DAY + rng.uniform(0, DAY), rng.randint(1, 3), rng.choice("mn")
        end_user, team = rng.choice(("", "ann", "bob")), rng.choice("xy")
        records += attempt(seq, at, seq, n, model, end_user, team=team)
        adjusted = seq % 5 == 0
        if adjusted:
            records.append(Adjusted(1_000 + seq, at, seq, -1, "less"))
        said = {"project": PROJECTS[n - 1], "key": f"k{n}", "model": model, "tier": "", "end_user": end_user,
                "engine": "e", "how": "exact", "outcome": "ok" if seq % 2 else "engine_cut"}  # fmt: skip
        plain.append((at, said | {"label:team": team, "department": "dep"}, (seq, -adjusted, seq % 2)))
    fill(database, records)
    since, until = APRIL - 4.95 * DAY, APRIL - 4.1 * DAY
    for by in ((), ("project",), ("key", "project"), ("model",), ("project", "tier", "model"), ("key", "model"),
               ("end_user",), ("label:team", "model"), ("engine", "outcome"), ("how", "project")):  # fmt: skip
        for where in (
            {},
            {"department": ("dep",)},
            {"model": ("m",)},
            {"outcome": ("ok",)},
            {"key": ("k2", "k3")},
            {"label:team": ("x",)},
        ):
            query = Query(since, until, by=by, step=step, zone=zone, where=where)
            expected: dict[tuple[float, tuple[str, ...]], tuple[int, ...]] = {}
            for begin, end in spans(query):
                for at, said, counts in plain:
                    if begin <= at < end and all(said[name] in values for name, values in where.items()):
                        key = (begin, tuple(said[name] for name in by))
                        before = expected.get(key, (0, 0, 0, 0))
                        expected[key] = tuple(a + b for a, b in zip(before, (1, *counts), strict=True))
            rows = asked(database, query)
            found = {(r.since, r.group): (r.attempts, r.cost, r.adjusted, r.succeeded) for r in rows}
            assert found == expected, (by, where)
            assert len(rows) == len(found)
            assert all(r.exact == r.requests == r.attempts for r in rows)
            assert all(r.tokens == Tokens(input=2 * r.attempts, output=r.attempts) for r in rows)


def test_what_is_seldom_counted_is_not_lost_where_it_is_rare(database: Database) -> None:
    """What comes to 0 over days is left out of a query over their hours; corrections that cancel do not."""
    attempts = [r for seq in range(1, 11) for r in attempt(seq, APRIL + seq * 40_000, seq)]
    odd = Settled(11, APRIL + 5, Tokens(input=1, images=3), How.UNPRICED, None, 0, "ok", kv=9)
    call = Reserved(11, 11, APRIL + 5, "x", 1, "chat", "m", "m", "e", "", "low", "", (), 1, 1, 1)
    both = [
        Adjusted(12, APRIL + 5, 2, 70, "up"),
        Adjusted(13, APRIL + 6, 2, -70, "down"),
        Adjusted(14, APRIL, 3, -2, ""),
    ]
    fill(database, [*attempts, call, odd, *both])
    rows = asked(database, Query(APRIL, APRIL + 6 * DAY, step=Step.HOUR))
    assert len(rows) == 11
    assert (rows[0].since, rows[0].tokens, rows[0].kv, rows[0].unpriced) == (APRIL, Tokens(input=1, images=3), 9, 1)
    assert [(r.adjusted, r.corrections) for r in rows[:5]] == [(0, 0), (0, 0), (0, 2), (-2, 1), (0, 0)]
    assert sum(r.exact for r in rows) == 10


@pytest.mark.parametrize("by", [(), ("department",), ("project", "model"), ("key", "model")])
def test_corrections_that_cancel_are_seen_in_their_hours(database: Database, by: tuple[str, ...]) -> None:
    attempts = [r for seq in (1, 2) for r in attempt(seq, APRIL + seq * 40_000, 100)]
    fill(database, [*attempts, Adjusted(3, APRIL, 1, 70, "up"), Adjusted(4, APRIL, 2, -70, "down")])
    rows = asked(database, Query(APRIL, APRIL + 6 * DAY, by=by, step=Step.HOUR))
    assert [(r.cost, r.adjusted, r.corrections) for r in rows] == [(100, 70, 1), (100, -70, 1)]


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
        ("Europe/Berlin", Step.HOUR, "2026-10-25T01:00", "2026-10-25T04:00", [1, 1, 1, 1]),
        ("Australia/Lord_Howe", Step.HOUR, "2026-04-05T01:00", "2026-04-05T03:00", [1, 0.5, 1]),  # back by half an hour
        ("Australia/Lord_Howe", Step.HOUR, "2026-10-04T01:00", "2026-10-04T04:00", [1, 0.5, 1]),  # forth
        ("Asia/Kolkata", Step.DAY, "2027-12-31T00:00", "2028-01-02T00:00", [24, 24]),  # a year's end
        ("Asia/Kolkata", Step.HOUR, "2026-12-31T23:30", "2027-01-01T01:00", [0.5, 1]),
        ("Pacific/Apia", Step.DAY, "2011-12-29T00:00", "2012-01-01T00:00", [24, 24]),  # without a 30th
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

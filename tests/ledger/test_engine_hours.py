"""Hours of self-hosted engines in the books: what is allocated and what is idle is the bill, whoever asks and when."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from itertools import count, pairwise
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import func, select, update

from books import Books, spent
from forebay.config.engine import GpuPrice
from forebay.ledger import enginehours
from forebay.ledger.book import Book
from forebay.ledger.corrections import INVOICES, Correction, correct
from forebay.ledger.database import Database
from forebay.ledger.enginehours import EngineHours, Engines, Span, billed
from forebay.ledger.gpuhours import HOUR
from forebay.ledger.intake import Intake
from forebay.ledger.pricelists import Exchange
from forebay.ledger.pricing import PriceBook
from forebay.ledger.reports import Query, report
from forebay.ledger.schema import adjustments, dimensions, engine_hours
from forebay.ledger.stand import stand
from forebay.ledger.verify import verify
from journals import committed, on_a_loop, opened, reservation
from postgres_server import Postgres

pytestmark = pytest.mark.books

START = 1_800_000_000.0
assert START % HOUR == 0
PRICE = GpuPrice(gpu_hour=0.0000036)  # 3,600 nano-units an hour, one a second
RATES = PriceBook()


def engines(spread: bool = False, **prices: GpuPrice) -> Engines:
    return Engines(prices or {"e1": PRICE.model_copy(update={"spread_idle": spread})}, RATES)


@pytest.fixture
def made(database: Database) -> Database:
    database.migrate()
    return database


def hour(database: Database, n: int = 0, engine: str = "e1", by: str = "project") -> dict[str, int]:
    """What is booked to whom in the hour, for use of the engine."""
    since = START + n * HOUR
    with database.read() as connection:
        rows = report(connection, Query(since, since + HOUR, by=(by,), where={"engine": (engine,)}))
    return {row.group[0]: row.total for row in rows}


def differences(database: Database, tmp_path: Path) -> int:
    found = verify(database, tmp_path / "journal")
    return sum(check.count for check in found.checks if "prices" not in check.name)  # `Books` has none


class Host:
    """An admin process on the database."""

    def __init__(self, database: Database, name: str = "a") -> None:
        self._hours = EngineHours(Book(database, "USD"))
        self._name = name

    def look(self, at: float, what: Engines | None = None) -> int:
        """`at`: seconds after START. Returns how many hours were reconciled."""
        total, more = 0, True
        while more:
            done, more = self._hours.look(self._name, what if what is not None else engines(), START + at)
            total += done
        return total


@pytest.fixture
def host(made: Database) -> Host:
    return Host(made)


def test_what_nobody_used_is_idle(made: Database, host: Host, tmp_path: Path) -> None:
    assert host.look(0) == 0
    Books(made).add([spent(START + 10, cost=1_000, project="bot"), spent(START + 20, cost=50, project="rag")])
    assert host.look(HOUR) == 0, "records of its last seconds may be under way"
    assert host.look(HOUR + 60) == 1
    assert host.look(HOUR + 90) == 0
    assert hour(made) == {"bot": 1_000, "rag": 50, "_idle": 2_550}
    assert differences(made, tmp_path) == 0
    assert [one.owner for one in stand(made, tmp_path)] == ["00112233445566aa"]
    with made.write() as connection:
        connection.execute(update(engine_hours).values(bill=engine_hours.c.bill + 1, idle=engine_hours.c.idle + 1))
    said = [one for check in verify(made, tmp_path / "journal").checks for one in check.differences]
    assert "e1, the hour from 2027-01-15 08:00 UTC: -1 against its bill" in said


def test_what_was_allocated_too_much_is_taken_off_every_part(made: Database, host: Host, tmp_path: Path) -> None:
    host.look(0)
    used = [("bot", "m", 3_000), ("bot", "n", 3_000), ("rag", "m", 1_200), ("free", "m", 0), ("dark", "m", None)]
    Books(made).add([spent(START + 10, cost=cost, project=of, model=model) for of, model, cost in used])
    host.look(HOUR + 60)
    assert hour(made) == {"bot": 3_000, "rag": 600, "free": 0, "dark": 0}
    assert hour(made, by="model") == {"m": 2_100, "n": 1_500}
    with made.read() as connection:
        named = select(adjustments.c.reason, adjustments.c.since, adjustments.c.until).distinct()
        assert connection.execute(named).all() == [("GPU hour", START, START + HOUR)]
    assert differences(made, tmp_path) == 0


def test_idle_time_is_laid_on_those_who_used_it_where_that_is_wanted(made: Database, host: Host) -> None:
    host.look(0, engines(spread=True))
    Books(made).add([spent(START + 10, cost=1_000, project="bot"), spent(START + 20, cost=2_000, project="rag")])
    host.look(2 * HOUR + 60, engines(spread=True))
    assert hour(made) == {"bot": 1_200, "rag": 2_400}
    assert hour(made, 1) == {"_idle": 3_600}, "nobody used it"


def test_what_is_settled_after_the_hour_was_done_corrects_it(made: Database, host: Host, tmp_path: Path) -> None:
    host.look(0)
    books = Books(made)
    books.add([spent(START + 10, cost=5_000, project="bot")])
    host.look(HOUR + 60)
    assert hour(made) == {"bot": 3_600}
    books.add([spent(START + 2 * HOUR, cost=1, project="now"), spent(START + 20, cost=4_000, project="late")])
    assert hour(made) == {"bot": 3_600, "late": 4_000}
    assert differences(made, tmp_path) == 0, "it is known to be open"
    assert host.look(2 * HOUR + 90) == 2
    assert hour(made) == {"bot": 2_000, "late": 1_600}
    assert host.look(2 * HOUR + 91) == 0
    assert differences(made, tmp_path) == 0


def test_an_invoices_correction_is_beside_the_bill(made: Database, host: Host, tmp_path: Path) -> None:
    host.look(0)
    books = Books(made)
    books.add([spent(START + 10, cost=5_000, project="bot")])
    with made.read() as connection:
        (dimension,) = connection.execute(select(dimensions.c.id)).scalars()
    with Book(made, "USD").writing() as (connection, names):
        correct(
            connection,
            names,
            INVOICES,
            "USD",
            "credit",
            [Correction(dimension, START + 7, -100, START, START + 9)],
            1.0,
        )
    host.look(HOUR + 60)
    assert hour(made) == {"bot": 3_500}
    books.add([spent(START + 20, cost=5_000, project="late")])
    host.look(HOUR + 90)
    assert hour(made) == {"bot": 1_700, "late": 1_800}
    assert differences(made, tmp_path) == 0


def test_an_engine_is_billed_from_when_it_was_seen_until_it_is_taken_out(made: Database, host: Host) -> None:
    twice = GpuPrice(gpu_hour=0.0000072)
    none = Engines({}, RATES)
    host.look(600)  # ten minutes past
    host.look(HOUR + 1_800)
    host.look(HOUR + 1_800, engines(e1=twice))
    host.look(2 * HOUR + 1_000, engines(e1=twice))
    host.look(2 * HOUR + 1_030, none)
    host.look(2 * HOUR + 1_100, engines(e1=twice))  # missing for a moment
    host.look(3 * HOUR + 100, engines(e1=twice))
    host.look(3 * HOUR + 130, none)
    host.look(6 * HOUR + 70, none)
    host.look(7 * HOUR + 600, engines(e1=twice))
    host.look(9 * HOUR + 60, engines(e1=twice))
    bills = [hour(made, n).get("_idle") for n in range(9)]
    assert bills == [3_000, 1_800 + 3_600, 7_200, 200, None, None, None, 6_000, 7_200]


def test_it_costs_too_while_forebay_did_not_run(made: Database) -> None:
    Host(made).look(0)
    Host(made).look(100)
    again = Host(made)
    assert again.look(3 * HOUR + 60) == 3
    assert [hour(made, n)["_idle"] for n in range(3)] == [3_600] * 3
    Host(made).look(4 * HOUR + 60, Engines({}, RATES))  # taken out while it did not run: after it was last seen
    assert hour(made, 3) == {"_idle": 60}


def test_long_absences_are_caught_up_by_and_by(
    made: Database, host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(enginehours, "MOST", 7)
    monkeypatch.setattr(enginehours, "AT_ONCE", 2)
    host.look(0)
    assert host.look(16 * HOUR + 60) == 16
    assert [hour(made, n) for n in range(16)] == [{"_idle": 3_600}] * 16


def test_an_hour_waits_for_its_exchange_rate_and_no_other_waits_for_it(made: Database, host: Host) -> None:
    both = {"e1": GpuPrice(gpu_hour=0.0000036, currency="CNY"), "e2": PRICE}
    host.look(0, Engines(both, RATES))
    assert host.look(HOUR + 60, Engines(both, RATES)) == 1
    known = PriceBook(exchange=(Exchange("CNY", "USD", rate=0.5),))  # type: ignore[arg-type]
    assert host.look(HOUR + 90, Engines(both, known)) == 1
    assert (hour(made, engine="e1"), hour(made, engine="e2")) == ({"_idle": 1_800}, {"_idle": 3_600})


def test_hosts_on_one_database_have_one_engine(made: Database) -> None:
    a, b = Host(made, "a"), Host(made, "b")
    a.look(0)
    b.look(1_200, engines(e1=GpuPrice(gpu_hour=0.0000072)))
    b.look(HOUR + 30, engines(e1=GpuPrice(gpu_hour=0.0000072)))
    assert a.look(HOUR + 60) + b.look(HOUR + 60, engines(e1=GpuPrice(gpu_hour=0.0000072))) == 1
    assert hour(made)["_idle"] == 1_200 + 2 * 2_400, "of two prices the one that was told last"


RECONCILE = """
import sys
from pathlib import Path
from forebay.config.engine import GpuPrice
from forebay.ledger.book import Book
from forebay.ledger.database import Database
from forebay.ledger.enginehours import EngineHours, Engines
from forebay.ledger.pricing import PriceBook
hours = EngineHours(Book(Database(sys.argv[1], Path(sys.argv[2])), "USD"))
engines = Engines({f"e{n}": GpuPrice(gpu_hour=0.0000036) for n in range(4)}, PriceBook())
hours.look(sys.argv[3], engines, 1_800_000_000.0)
print("ready", flush=True)
sys.stdin.readline()
print(hours.look(sys.argv[3], engines, 1_800_000_000.0 + 12 * 3600 + 60)[0])
"""


def test_two_processes_reconcile_each_hour_once(postgres: Postgres, tmp_path: Path) -> None:
    database = Database(postgres.new(), tmp_path)
    database.migrate()
    url = database.url.render_as_string(hide_password=False)
    command = [sys.executable, "-c", RECONCILE, url, str(tmp_path)]
    racers = [
        subprocess.Popen([*command, name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for name in "ab"
    ]
    for racer in racers:
        assert racer.stdout is not None
        assert racer.stdout.readline() == "ready\n"
    Books(database).add([spent(START + n * HOUR, cost=9_000, engine=f"e{n % 4}") for n in range(12)])
    done = [racer.communicate("go\n", timeout=60)[0] for racer in racers]
    assert [racer.returncode for racer in racers] == [0, 0]
    assert sum(map(int, done)) == 48
    with database.read() as connection:
        (row,) = report(connection, Query(START, START + 12 * HOUR))
        hours = connection.execute(select(func.count()).select_from(engine_hours)).scalar()
    assert (row.total, row.cost, row.corrections, hours) == (48 * 3_600, 108_000, 48, 48)
    assert differences(database, tmp_path) == 0
    database.close()


def test_the_intake_reconciles_when_its_journals_are_read(made: Database, tmp_path: Path) -> None:
    async def begun(folder: Path) -> None:
        journal = opened(folder)
        await committed(journal, journal.reserve(reservation(journal)))
        await journal.close()

    on_a_loop(begun)(tmp_path / "journal" / "worker-0")
    now = [START]
    intake = Intake(made, tmp_path / "journal", "USD", wall=lambda: now[0], engines=engines)
    for at in (0.0, 30.0, HOUR + 61.0):
        now[0] = START + at
        swept = intake.sweep()
    assert swept.totals.hours == 1
    assert hour(made) == {"_idle": 3_600}


seconds = st.integers(0, 2 * HOUR)


@given(
    st.lists(st.tuples(seconds, seconds, st.integers(0, 10**6), st.integers(1, 8), st.sampled_from("ab")), max_size=5)
)
def test_a_bill_is_of_the_time_that_any_host_had_the_engine(
    given_spans: list[tuple[int, int, int, int, str]],
) -> None:
    spans = [
        Span(min(a, b), max(a, b), GpuPrice(gpu_hour=micro / 10**6, gpus=gpus), host)
        for a, b, micro, gpus, host in given_spans
    ]
    found = billed(spans, RATES, 0.0, HOUR)
    assert found is not None
    expected = 0.0
    edges = sorted({0, HOUR, *(int(t) for span in spans for t in (span.since, span.until) if t < HOUR)})
    for begin, end in pairwise(edges):
        there = [s for s in spans if s.since <= begin < s.until]
        if there:
            price = max(there, key=lambda s: (s.since, s.host)).price
            expected += price.gpu_hour * price.gpus * 10**9 * (end - begin) / HOUR
    assert abs(found[0] - expected) <= 1 + len(spans) + expected * 1e-9


class Scratch:
    """A database of many engines; each example has one."""

    def __init__(self, folder: Path) -> None:
        self.database = Database("", folder)
        self.database.migrate()
        self.books = Books(self.database)
        self.numbers = count()


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scratch]:
    scratch = Scratch(tmp_path_factory.mktemp("hours"))
    yield scratch
    scratch.database.close()


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5_000)), max_size=6), min_size=1, max_size=4),
    st.booleans(),
)
def test_allocated_and_idle_are_the_bill_whatever_comes_when(
    scratch: Scratch, rounds: list[list[tuple[int, int]]], spread: bool
) -> None:
    """Rounds of (project, cost) are booked into the same hour, which is reconciled between them."""
    name = f"run-{next(scratch.numbers)}"
    host, what = Host(scratch.database, name), engines(**{name: PRICE.model_copy(update={"spread_idle": spread})})
    host.look(0, what)
    given_costs: dict[str, int] = {}
    for at, attempts in enumerate(rounds, 1):
        scratch.books.add([spent(START + 5, cost=cost, project=f"p{of}", engine=name) for of, cost in attempts])
        for of, cost in attempts:
            given_costs[f"p{of}"] = given_costs.get(f"p{of}", 0) + cost
        host.look(at * HOUR + 60, what)
        booked = hour(scratch.database, engine=name)
        assert sum(booked.values()) == 3_600
        total = sum(given_costs.values())
        idle = booked.pop("_idle", 0)
        if total > 3_600 or (spread and total):
            assert idle == 0
            assert all(abs(booked[of] - cost * 3_600 / total) < 1 for of, cost in given_costs.items())
        else:
            assert {of: n for of, n in booked.items() if n} == {of: n for of, n in given_costs.items() if n}

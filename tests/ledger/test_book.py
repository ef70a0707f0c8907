from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal

import pytest
from sqlalchemy import func, select, text

from forebay.ledger.book import Book, WrongCurrency
from forebay.ledger.database import Database, DatabaseError
from forebay.ledger.entries import Account, Adjusted, Began, Hit, How, Priced, Progress, Record, Reserved, Settled
from forebay.ledger.intake import estimate
from forebay.ledger.pricelists import Scale
from forebay.ledger.pricing import Price, named
from forebay.ledger.reports import Query, Row, report
from forebay.ledger.schema import entries, reservations
from forebay.ledger.tokens import Tokens

OWNER = "00112233445566aa"
NOON = 1_800_000_000.0


def began(boot: str = "b1", segment: int = 1, currency: str = "USD") -> Began:
    return Began(OWNER, boot, segment, 1, currency, NOON)


def account(n: int = 1, project: str = "p") -> Account:
    return Account(n, "k1", "key one", "acme", "dep", project, "ann")


def reserved(seq: int, *, request: int = 0, at: float = NOON, **more: object) -> Reserved:
    fields: dict[str, object] = {
        "id": f"req-{seq}",
        "account": 1,
        "route": "/v1/chat/completions",
        "model": "m",
        "served": "m-real",
        "engine": "e1",
        "tier": "",
        "class_": "normal",
        "end_user": "",
        "labels": (),
        "prompt": 10,
        "most": 100,
        "held": 5_000,
        "price": 1,
    }
    return Reserved(seq=seq, request=request or seq, at=at, **(fields | more))  # type: ignore[arg-type]


def settled(seq: int, cost: int | None = 1_000, *, at: float = NOON + 1, **more: object) -> Settled:
    fields: dict[str, object] = {
        "tokens": Tokens(input=10, output=7),
        "how": How.UNPRICED if cost is None else How.EXACT,
        "price": 0 if cost is None else 1,
        "outcome": "ok",
    }
    return Settled(seq=seq, at=at, cost=cost, **(fields | more))  # type: ignore[arg-type]


PRICED = Priced(1, b'{"id":"p1"}')
HEAD = (began(), account(), PRICED)


class Journal:
    """Positions for records, as a file would give them."""

    def __init__(self, *records: Record) -> None:
        self.records = [*HEAD, *records]

    def __iter__(self) -> Iterator[tuple[int, Record]]:
        return iter([(i * 10, r) for i, r in enumerate(self.records, 1)])


@pytest.fixture
def book(database: Database) -> Book:
    database.migrate()
    return Book(database, "USD")


def total(database: Database, **more: object) -> Row:
    with database.read() as connection:
        (row,) = report(connection, Query(NOON - 86_400, NOON + 86_400, **more))  # type: ignore[arg-type]
    return row


def count(database: Database, table: object) -> int:
    with database.read() as connection:
        return int(connection.execute(select(func.count()).select_from(table)).scalar_one())  # type: ignore[arg-type]


def test_a_settled_attempt_is_an_entry_and_its_sums(database: Database, book: Book) -> None:
    done = book.ingest(OWNER, Journal(reserved(1), settled(1), reserved(2, request=1), settled(2, None)), NOON)
    assert (done.position, done.records, done.settled, done.unpriced) == (70, 7, 2, 1)
    assert book.position(OWNER) == 70
    row = total(database)
    assert (row.attempts, row.requests, row.succeeded, row.cost, row.unpriced) == (2, 1, 2, 1_000, 1)
    assert row.tokens == Tokens(input=20, output=14)
    assert count(database, reservations) == 0


def test_the_same_records_again_change_nothing(database: Database, book: Book) -> None:
    journal = Journal(reserved(1), settled(1), reserved(2))
    book.ingest(OWNER, journal, NOON)
    before = total(database)
    assert book.ingest(OWNER, journal, NOON).records == 0
    other = Book(database, "USD")
    assert other.ingest(OWNER, journal, NOON).records == 0
    assert total(database) == before
    assert count(database, reservations) == 1


def test_records_at_new_positions_settle_nothing_twice(database: Database, book: Book) -> None:
    """A segment that was copied, say."""
    records = [*HEAD, reserved(1), settled(1), reserved(2)]
    twice = [*records, *records, settled(2), settled(2, 9), settled(1, 9)]
    done = book.ingest(OWNER, list(enumerate(twice, 1)), NOON)
    assert (done.settled, done.again) == (2, 3)
    again = book.ingest(OWNER, list(enumerate(records, 100)), NOON)
    assert (again.settled, again.again) == (0, 1)
    assert total(database).cost == 2_000
    assert count(database, entries) == 2
    assert count(database, reservations) == 0


@pytest.mark.parametrize(("default", "booked"), [("off", "on"), ("local", "local")])
def test_what_is_booked_is_on_the_servers_disk(database: Database, book: Book, default: str, booked: str) -> None:
    """Segments of the journal are removed then."""
    if database.sqlite:
        pytest.skip("SQLite is opened with synchronous = FULL")
    with database.write() as connection:
        connection.execute(text(f"ALTER DATABASE {database.url.database} SET synchronous_commit = {default}"))
    database.close()  # later connections have the new default
    with database.read() as connection:
        assert connection.execute(text("SHOW synchronous_commit")).scalar() == default
    with book.writing() as (connection, _):
        assert connection.execute(text("SHOW synchronous_commit")).scalar() == booked


def test_the_records_of_a_group_share_its_position(database: Database, book: Book) -> None:
    records = [(7, r) for r in (*HEAD, reserved(1), settled(1))]
    assert [book.ingest(OWNER, records, NOON).settled for _ in range(2)] == [1, 0]
    assert total(database).cost == 1_000


def test_names_hold_over_runs_of_one_segment(database: Database, book: Book) -> None:
    records = list(Journal(reserved(1), reserved(2), settled(1), settled(2)))
    for position, record in records:
        Book(database, "USD").ingest(OWNER, [(position, record)], NOON)
    row = total(database, by=("project", "model"))
    assert (row.group, row.attempts, row.cost) == (("p", "m"), 2, 2_000)


def test_a_new_segment_means_its_own_names(database: Database, book: Book) -> None:
    first = Journal(reserved(1), settled(1))
    book.ingest(OWNER, first, NOON)
    rest = [began(segment=2), account(1, "other"), PRICED, reserved(2), settled(2, 5)]
    book.ingest(OWNER, list(enumerate(rest, 1_000)), NOON)
    with database.read() as connection:
        rows = report(connection, Query(NOON - 10, NOON + 10, by=("project",)))
    assert [(r.group, r.cost) for r in rows] == [(("p",), 1_000), (("other",), 5)]


def test_what_nobody_settles_costs_what_its_price_says_if_it_says(database: Database, book: Book) -> None:
    def priced(n: int, **kinds: str) -> Priced:
        scales = (Scale({kind: Decimal(price) for kind, price in kinds.items()}),)
        return Priced(n, named(Price("", "m", "p", "USD", scales)).as_json())

    records = [
        *(priced(2, input="1", output="3"), priced(3, input="1"), Priced(4, b"no price")),
        *(reserved(seq, price=price) for seq, price in ((1, 2), (2, 3), (3, 4))),
        Progress(NOON + 1, ((1, 4), (2, 4), (3, 4))),
    ]
    book.ingest(OWNER, Journal(*records), NOON)
    assert book.expire(NOON + 601, silent=600, grace=30, estimate=estimate) == 3
    with database.read() as connection:
        found = connection.execute(select(entries.c.seq, entries.c.how, entries.c.cost).order_by(entries.c.seq)).all()
    assert found == [(1, "estimated", 10 * 1_000 + 4 * 3_000), (2, "unpriced", None), (3, "unpriced", None)]


def test_what_nobody_settles_is_estimated_by_what_was_delivered(database: Database, book: Book) -> None:
    book.ingest(OWNER, Journal(reserved(1), reserved(2), Progress(NOON, ((1, 4),))), NOON)
    assert book.expire(NOON + 5, silent=600, grace=30, estimate=lambda price, t: t.total) == 0
    assert book.expire(NOON + 601, silent=600, grace=30, estimate=lambda price, t: t.total) == 2
    row = total(database)
    assert (row.estimated, row.cost, row.tokens) == (2, 14, Tokens(input=10, output=4))
    assert count(database, reservations) == 0


def test_a_true_settlement_after_a_survivors_is_an_adjustment(database: Database, book: Book) -> None:
    book.ingest(OWNER, Journal(reserved(1), Progress(NOON, ((1, 4),))), NOON)
    book.expire(NOON + 601, silent=600, grace=30, estimate=lambda price, t: t.total)
    for position in (1_000, 2_000):
        done = book.ingest(OWNER, [(position, settled(1, 20, at=NOON + 2))], NOON + 700)
    assert (done.late, done.again) == (0, 1)
    row = total(database)
    assert (row.cost, row.adjusted, row.total, row.corrections) == (14, 6, 20, 1)
    assert row.tokens == Tokens(input=10, output=7)


def test_an_earlier_boots_attempts_are_orphans_after_the_grace(database: Database, book: Book) -> None:
    book.ingest(OWNER, Journal(reserved(1)), NOON)
    book.ingest(OWNER, [(100, began("b2", 2)), (110, account()), (120, PRICED), (130, reserved(2))], NOON + 50)
    assert book.expire(NOON + 60, silent=600, grace=30, estimate=lambda p, t: 1) == 0
    assert book.expire(NOON + 81, silent=600, grace=30, estimate=lambda p, t: 1) == 1
    assert count(database, reservations) == 1


def test_corrections_count_when_what_they_correct_did(database: Database, book: Book) -> None:
    day = 86_400
    book.ingest(
        OWNER,
        Journal(
            reserved(1),
            settled(1),
            Adjusted(2, NOON + 5 * day, 1, -300, "invoice"),
            Adjusted(3, NOON + 5 * day, 0, 50, "GPU hour", 1, NOON - 7_200, NOON - 3_600),
        ),
        NOON,
    )
    row = total(database)
    assert (row.cost, row.adjusted, row.corrections) == (1_000, -250, 2)


def test_a_hit_is_booked_with_what_it_avoided(database: Database, book: Book) -> None:
    book.ingest(OWNER, Journal(Hit(reserved(1), settled(1, 0, how=How.CACHE, avoided=77, outcome="hit"))), NOON)
    row = total(database)
    assert (row.cached, row.cost, row.avoided, row.succeeded) == (1, 0, 77, 1)


def test_a_settlement_without_a_reservation_is_not_lost(database: Database, book: Book) -> None:
    assert book.ingest(OWNER, Journal(settled(9, 40), reserved(9), reserved(3, account=8)), NOON).strays == 1
    row = total(database, by=("key",))
    assert (row.group, row.cost) == (("unknown",), 40)


def test_another_currency_is_refused_and_nothing_is_booked(database: Database, book: Book) -> None:
    records = [(1, began(currency="CNY")), (2, account()), (3, reserved(1)), (4, settled(1))]
    with pytest.raises(WrongCurrency, match=r"in CNY, the books are in USD: give back `ledger.currency: CNY`"):
        book.ingest(OWNER, records, NOON)
    assert book.position(OWNER) == 0
    assert count(database, entries) == 0


def test_absurd_records_hold_nothing_up(database: Database, book: Book) -> None:
    wild = Tokens(input=-5, output=1 << 62)
    book.ingest(
        OWNER,
        Journal(
            reserved(1, at=float("nan"), id="a\0b", end_user="\0", labels=(("x", "\0"),), prompt=-1),
            settled(1, 1 << 80, tokens=wild, seconds=float("inf"), kv=-3, note="\0"),
            reserved(2),
            settled(2, None, how=How.EXACT),
        ),
        NOON,
    )
    row = total(database)
    assert (row.attempts, row.unpriced, row.cost) == (2, 1, 1 << 53)
    assert row.tokens == Tokens(input=10, output=(1 << 40) + 7)


@pytest.mark.parametrize("change", ["UPDATE entries SET cost = 0", "DELETE FROM entries", "DELETE FROM adjustments"])
def test_what_is_booked_stays(database: Database, book: Book, change: str) -> None:
    book.ingest(OWNER, Journal(reserved(1), settled(1), Adjusted(2, NOON, 1, 5, "invoice")), NOON)
    with pytest.raises(DatabaseError, match="are append-only"), database.write() as connection:
        connection.execute(text(change))
    assert total(database).total == 1_005

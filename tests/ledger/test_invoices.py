"""A maker's invoice in the books: to its total or by an amount, shared out to the nano-unit, and never twice."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.cli.main import run
from forebay.ledger.asked import Wrong, asked
from forebay.ledger.book import Book
from forebay.ledger.database import Database
from forebay.ledger.entries import Account, Began, How, Priced, Record, Reserved, Settled
from forebay.ledger.invoices import Plan, Wanted, amount_of, book, engines_of, share_out
from forebay.ledger.pricelists import Scale
from forebay.ledger.pricing import Price, named
from forebay.ledger.reports import Query, report
from forebay.ledger.tokens import Tokens
from forebay.ledger.verify import verify

pytestmark = pytest.mark.books

OCTOBER = 1_727_740_800.0  # 2024-10-01 UTC
DAY = 86_400.0
NOW = OCTOBER + 40 * DAY


def priced(provider: str) -> bytes:
    return named(Price("", "m", provider, "USD", (Scale({"input": 1}),))).as_json()  # type: ignore[dict-item]


USED = (  # day, project, engine, price, nano-units
    (1.5, "bot", "api", 1, 3_000),
    (1.6, "bot", "api", 1, 3_001),
    (9.1, "rag", "api", 1, 1_000),
    (20.0, "rag", "gpu", 2, 70_000),
    (30.9, "bot", "api", 1, 10),
    (31.0, "bot", "api", 1, 999),  # November
)


@pytest.fixture
def books(database: Database) -> Book:
    database.migrate()
    records: list[Record] = [
        Began("00112233445566aa", "b", 1, 1, "USD", 0.0),
        Priced(1, priced("deepseek")),
        Priced(2, priced("self-hosted")),
    ]
    projects = {"bot": 1, "rag": 2}
    records += [Account(n, f"k-{name}", f"of {name}", "acme", "", name, "") for name, n in projects.items()]
    for seq, (day, project, engine, price, cost) in enumerate(USED, 1):
        at = OCTOBER + day * DAY
        n = projects[project]
        records.append(
            Reserved(seq, seq, at, "", n, "chat", "m", "m", engine, "", "normal", "", (), 1_000, 0, 0, price)
        )
        records.append(Settled(seq, at, Tokens(input=cost // 1_000), How.EXACT, cost, price, "ok"))
    found = Book(database, "USD")
    found.ingest("00112233445566aa", list(enumerate(records, 1)), NOW)
    return found


def wanted(books: Book, *where: str, **more: object) -> Wanted:
    of = asked({"month": ["2024-10"], "where": list(where)}, NOW, "UTC")
    provider = str(more.get("provider", ""))
    if provider:
        with books.reading() as connection:
            more["engines"] = engines_of(connection, provider, of.since, of.until)
    return Wanted(of, **({"reason": "invoice 7"} | more))  # type: ignore[arg-type]


def sums(books: Book, by: str = "project", days: float = 31) -> dict[str, int]:
    with books.reading() as connection:
        rows = report(connection, Query(OCTOBER, OCTOBER + days * DAY, by=(by,)))
    return {row.group[0]: row.total for row in rows}


def test_a_providers_total_is_shared_out_by_what_each_paid(books: Book, database: Database, tmp_path: Path) -> None:
    assert sums(books) == {"bot": 6_011, "rag": 71_000}
    made = book(books, wanted(books, provider="deepseek", total=10_000), NOW)
    assert (made.booked, made.added, sum(one.cost for one in made.corrections)) == (7_011, 2_989, 2_989)
    assert [(part.account[4], part.booked) for part in made.parts] == [("bot", 6_011), ("rag", 1_000)]
    assert sums(books, "engine") == {"api": 10_000, "gpu": 70_000}
    assert sums(books) == {"bot": 8_574, "rag": 71_426}
    assert sums(books, days=2) == {"bot": 8_560}, "it counts when what it corrects did"
    again = book(books, wanted(books, provider="deepseek", total=10_000), NOW)
    assert (again.added, again.corrections) == (0, ())
    assert book(books, wanted(books, provider="deepseek", total=0), NOW).added == -10_000
    assert sums(books, "engine") == {"api": 0, "gpu": 70_000}
    checks = verify(database, tmp_path).checks
    assert [c.name for c in checks if c.count and not c.name.startswith("costs")] == []


def test_an_amount_is_added_once(books: Book) -> None:
    book(books, wanted(books, "model=m", "project=bot", amount=-11), NOW)
    assert sums(books) == {"bot": 6_000, "rag": 71_000}
    with pytest.raises(Wrong, match=r"^reason: .* is booked already; --again"):
        book(books, wanted(books, "project=bot", amount=-11), NOW)
    book(books, wanted(books, "project=bot", amount=-11, again=True), NOW)
    book(books, wanted(books, key="k-rag", amount=500, reason="one more"), NOW)
    assert sums(books) == {"bot": 5_989, "rag": 71_500}
    assert sums(books, "engine") == {"api": 6_989, "gpu": 70_000, "": 500}


@pytest.mark.parametrize(
    ("where", "more", "said"),
    [
        ((), {}, "total: or amount is needed"),
        ((), {"total": 1, "amount": 1}, "total: or amount is needed, and not both"),
        ((), {"total": 1}, "provider: or where is needed"),
        (("model=m",), {"total": -1}, "total: is not negative"),
        (("model=m",), {"amount": 0}, "amount: is not 0"),
        (("model=m",), {"amount": 1, "reason": " "}, "reason: is needed"),
        (("model=m",), {"amount": 1, "reason": "a\nb"}, "reason: is needed"),
        (("model=x",), {"total": 5}, "total: nothing that cost something is booked of October 2024, model x"),
        (("how=exact",), {"total": 5}, "where: how is not of a correction"),
        (("project=rag",), {"amount": -71_001}, "amount: takes off more than the 0.000071 USD that is booked"),
        ((), {"provider": "deepsek", "total": 5}, "provider: nothing was booked at prices of 'deepsek'"),
        ((), {"provider": "self-hosted", "total": 5}, "provider: engines of your own are reconciled"),
        ((), {"key": "k-none", "amount": 5}, "key: nothing was ever booked for a key with the id 'k-none'"),
        (("project=rag",), {"key": "k-rag", "amount": 5}, "key: is corrected as a whole"),
    ],
)
def test_nonsense_is_refused_by_its_fields_name(
    books: Book, where: tuple[str, ...], more: dict[str, object], said: str
) -> None:
    with pytest.raises(Wrong) as caught:
        book(books, wanted(books, *where, **more), NOW)
    assert str(caught.value).startswith(said)
    assert sums(books) == {"bot": 6_011, "rag": 71_000}


def test_a_time_that_is_not_over_has_no_total(books: Book) -> None:
    with pytest.raises(Wrong, match=r"^total: is of a time that is over, and October 2024 is not"):
        book(books, wanted(books, "model=m", total=5), OCTOBER + 30 * DAY)


def test_what_changed_since_it_was_shown_is_not_booked(books: Book) -> None:
    shown = Plan(1, 2, (), (), 0)
    with pytest.raises(Wrong, match=r"^period: something was booked"):
        book(books, wanted(books, "model=m", total=5), NOW, shown)


@pytest.mark.parametrize(
    ("text", "said"),
    [("12,5", "like 1234.56"), ("nan", "below"), ("1e400", "below"), ("0.0000000001", "nine|at most 9 digits")],
)
def test_amounts(text: str, said: str) -> None:
    assert (amount_of("total", "1_234.5"), amount_of("amount", "-0.000000001")) == (1_234_500_000_000, -1)
    with pytest.raises(Wrong, match=f"^total: .*({said})"):
        amount_of("total", text)


@given(st.integers(-(10**15), 10**15), st.lists(st.integers(1, 10**12), min_size=1, max_size=30))
def test_shares_are_the_whole_and_each_is_right_to_a_nano_unit(amount: int, weights: list[int]) -> None:
    shares = share_out(amount, weights)
    assert sum(shares) == amount
    for share, weight in zip(shares, weights, strict=True):
        assert abs(share * sum(weights) - amount * weight) < sum(weights)


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_the_command_shows_it_before_it_books(
    books: Book, database: Database, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["ledger", "adjust", "--state-dir", str(tmp_path), "--month", "2024-10", "--reason", "invoice 7"]
    command += ["--provider", "deepseek", "--total", "0.00001"]
    before = sums(books)
    done = subprocess.run(
        [sys.executable, "-m", "forebay", *command],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr.splitlines()[-1]) == (
        1,
        "forebay ledger: nothing was booked; --yes books it without asking",
    )
    assert run([*command, "--dry-run"]) == 0
    said = capsys.readouterr()
    assert said.err == "October 2024, in USD\nNothing was booked.\n"
    rows = [line.split() for line in said.out.splitlines()]
    assert rows[1] == ["acme", "bot", "of", "bot", "0.000006011", "0.000002563", "0.000008574"]
    assert rows[-1] == ["total", "0.000007011", "0.000002989", "0.00001"]
    assert sums(books) == before
    assert run([*command, "--yes"]) == 0
    assert capsys.readouterr().err.endswith("\n3 adjustments are booked.\n")
    assert sums(books) == {"bot": 8_574, "rag": 71_426}
    one = [*command[:6], "--key", "k-bot", "--amount=-0.01", "--reason", "goodwill", "--yes"]
    assert run(one) == 0
    said = capsys.readouterr()
    assert said.out.split() == [
        *("organisation", "department", "project", "key", "adjustment"),
        *("acme", "bot", "of", "bot", "-0.01", "total", "-0.01"),
    ]
    assert said.err.endswith("\n1 adjustment is booked.\n")
    assert run([*command[:4], "--reason", "x", "--total", "5"]) == 2
    assert capsys.readouterr().err.startswith("forebay ledger: month: is needed")

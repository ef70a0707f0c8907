"""`forebay usage`, out of the database and through the admin process."""

from __future__ import annotations

import csv
import io
import json
import re
import tempfile
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import NamedTuple

import plotly.graph_objects as go
import pytest
from rich.cells import cell_len
from rich.console import Console

from admin_process import Admin
from forebay.cli import usage as module
from forebay.cli.main import run
from forebay.cli.usage_page import figures, html
from forebay.cli.usage_view import amount, print_table, share, steps
from forebay.config.models import Address, Config
from forebay.ledger.entries import How
from forebay.ledger.tokens import Tokens
from forebay.ledger.usage import from_json
from journals import on_a_loop, opened, reservation, settlement
from usage_entries import Usage, at
from waiting import eventually

EVIL = '</script><img src=x onerror=alert(1)>&"'
NAMES = ("research", "sales, EU", "x'; DROP TABLE entries;--", "two\nlines", "🤖 团队", "=HYPERLINK(1)", EVIL)


class Done(NamedTuple):
    code: int
    out: str
    err: str


Ask = Callable[..., Done]


def fill(state_dir: Path) -> None:
    """November 2025: a request of each name on a day of its own, and one that has no price."""
    usage = Usage.below(state_dir)
    for i, name in enumerate(NAMES):
        tokens = Tokens(input=100 * (i + 1), cached=50, output=20)
        n = usage.request(
            at(f"2025-11-{i + 2:02}T12:00:00Z"), 1_000_000 * (i + 1) + 1, department=name, tokens=tokens, key=f"k{i}"
        )
    usage.request(at("2025-11-20T12:00:00Z"), None, department="research", model="new", tokens=Tokens(input=5))
    usage.request(at("2025-11-20T13:00:00Z"), 7, department="research", how=How.ESTIMATED, outcome="client_gone")
    usage.adjust(at("2025-11-21T12:00:00Z"), n, -999)
    usage.book()


TOTAL = sum(1_000_000 * (i + 1) + 1 for i in range(len(NAMES))) + 7 - 999


@pytest.fixture(scope="module", params=["direct", "admin"])
def standing(request: pytest.FixtureRequest) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="fb-") as folder:
        fill(Path(folder))
        if request.param == "direct":
            yield Path(folder)
            return
        admin = Admin(Config(state_dir=Path(folder), admin=Address(host="127.0.0.1", port=8081)))
        try:
            admin.start()
            eventually(lambda: admin.get("/health").json["database"]["up"])
            yield Path(folder)
        finally:
            admin.close()


@pytest.fixture
def ask(standing: Path, capsys: pytest.CaptureFixture[str]) -> Ask:
    def call(*arguments: str, state_dir: Path = standing) -> Done:
        code = run(["usage", *arguments, "--state-dir", str(state_dir)])
        return Done(code, *capsys.readouterr())

    return call


def test_a_table_that_adds_up(ask: Ask) -> None:
    done = ask("--by", "department", "--month", "2025-11")
    assert done.code == 0
    head, *lines, total = done.out.splitlines()
    assert re.split(r"  +", head.strip())[:3] == ["department", "requests", "ok"]
    costs = [Decimal(line.split()[-1].replace(",", "")) for line in lines]
    assert len(lines) == len(NAMES)
    assert sum(costs) == Decimal(TOTAL).scaleb(-9) == Decimal(total.split()[-1])
    assert "two�lines" in done.out
    assert "1 attempt has no known price" in done.err
    assert "tokens of 11.1% of the attempts are estimated" in done.err
    assert "November 2025 (UTC), by department" in done.err


@pytest.mark.parametrize("width", [200, 100, 80, 60, 40])
def test_no_terminal_is_too_narrow_for_names_and_amounts(ask: Ask, width: int) -> None:
    span = ("--month", "2025-11", "--by", "department,model,key")
    found = from_json(json.loads(ask(*span, "--format", "json").out))
    console = Console(file=io.StringIO(), width=width, highlight=False, markup=False, emoji=False)
    print_table(found, console)
    said = console.file.getvalue()  # type: ignore[attr-defined]
    head, *lines = said.splitlines()
    assert head.split()[:3] == ["department", "model", "key"]
    assert head.split()[-2:] == ["total", "USD"]
    assert "…" not in said
    totals = [line.split()[-1] for line in lines if re.search(r"\d\.\d{9}$", line)]
    assert sum(map(Decimal, totals[:-1])) == Decimal(totals[-1]) == Decimal(TOTAL).scaleb(-9)
    assert console.width == width
    if width >= 80:
        assert max(map(cell_len, said.splitlines())) <= width


def test_month_may_stand_alone_before_another_option_and_last(ask: Ask) -> None:
    first, last = ask("--month", "--by", "department"), ask("--by", "department", "--month")
    assert (first.code, last.code) == (0, 0)
    assert first.err == last.err
    assert ask("--day", "--by", "model").code == 0


def test_nothing_used_is_said(ask: Ask) -> None:
    done = ask("--month", "2020-01", "--where", "department=research")
    assert (done.code, done.out) == (0, "")
    assert done.err == "Nothing was used: January 2020 (UTC), by project, department research.\n"


def test_what_has_no_price_has_no_cost(ask: Ask) -> None:
    done = ask("--month", "2025-11", "--by", "model", "--where", "department=research")
    (line,) = [line for line in done.out.splitlines() if line.startswith("new")]
    assert line.split()[-1] == "?"


def test_csv_has_every_name(ask: Ask) -> None:
    done = ask("--month", "2025-11", "--by", "department", "--format", "csv")
    rows = list(csv.DictReader(done.out.splitlines(keepends=True)))
    assert {row["department"].removeprefix("'") for row in rows} == set(NAMES)
    assert sum(Decimal(row["total"]) for row in rows) == Decimal(TOTAL).scaleb(-9)
    assert "no known price" in done.err


def test_json_is_the_report(ask: Ask) -> None:
    done = ask("--month", "2025-11", "--by", "key", "--format", "json", "--zone", "Asia/Shanghai")
    found = json.loads(done.out)
    assert (found["by"], found["zone"]) == (["key_name", "key"], "Asia/Shanghai")
    assert found["total"]["total"] == f"{Decimal(TOTAL).scaleb(-9):f}"
    assert (found["since"], found["total"]["unpriced"]) == ("2025-11-01T00:00:00+08:00", 1)
    assert from_json(found).total.total == TOTAL


def test_the_dearest_and_the_others(ask: Ask) -> None:
    done = ask("--month", "2025-11", "--by", "department", "--top", "3", "--format", "json")
    rows = json.loads(done.out)["rows"]
    assert [row["of"]["department"] for row in rows] == [EVIL, "=HYPERLINK(1)", "(5 others)"]
    assert json.loads(done.out)["total"]["total"] == f"{Decimal(TOTAL).scaleb(-9):f}"


def test_charts(ask: Ask) -> None:
    bars = ask("--month", "2025-11", "--by", "department", "--chart")
    lengths = [line.count("█") for line in bars.out.splitlines() if "█" in line]
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[0] > 2 * lengths[-1]
    days = ask("--month", "2025-11", "--by", "day", "--chart").out
    assert "Sun 2025-11-02 … Thu 2025-11-20, a column each day" in days
    columns = [line.partition("┤")[2] for line in days.splitlines() if "┤" in line]
    assert [len(column) for column in columns] == [19] * 8
    assert columns[0].strip() == "█"
    assert "▁" in ask("--month", "2025-11", "--by", "day,department", "--chart").out


@pytest.mark.parametrize(
    ("step", "first", "last", "count"),
    [
        ("hour", "2025-11-02 12:00", "2025-11-20 13:00", None),
        ("day", "Sun 2025-11-02", "Thu 2025-11-20", 19),
        ("week", "week 44 from 2025-10-27", "week 47 from 2025-11-17", 4),
        ("month", "Nov 2025", "Nov 2025", 1),
    ],
)
def test_every_step_in_table_chart_and_page(
    ask: Ask, tmp_path: Path, step: str, first: str, last: str, count: int | None
) -> None:
    page = tmp_path / "usage.html"
    since = "2025-10-27" if step == "week" else "2025-11-01"
    done = ask("--since", since, "--until", "2025-12-01", "--by", step, "--chart", "--html", str(page))
    assert (done.code, page.exists()) == (0, True)
    chart, _, table = done.out.partition("a column each" if count is not None else "a column every")
    assert f"{first} … {last}" in chart
    columns = [line.partition("┤")[2] for line in chart.splitlines() if "┤" in line]
    assert count is None or [len(column) for column in columns] == [count] * 8
    assert first in table
    assert last in table


def test_a_span_that_begins_amid_an_hour_is_drawn_whole(ask: Ask) -> None:
    span = ("--since", "2025-11-20T17:15", "--until", "2025-11-20T21:00", "--zone", "Asia/Kolkata", "--by", "hour")
    found = from_json(json.loads(ask(*span, "--format", "json").out))
    assert steps(found, "hour") == ["2025-11-20T17:15:00+05:30", "2025-11-20T18:00:00+05:30"]
    drawn = {figure["id"]: figure["data"] for figure in figures(found)}["cost-time"]
    assert [text for series in drawn for text in series["customdata"]] == ["0.00", "0.000000007"]
    assert "0.000000007 ┤ █" in ask(*span, "--chart").out


def test_a_page_that_asks_the_network_for_nothing(ask: Ask, tmp_path: Path) -> None:
    page = tmp_path / "usage.html"
    done = ask("--month", "2025-11", "--by", "day,department", "--html", str(page))
    assert (done.code, done.out) == (0, "")
    text = page.read_text()
    ours = text[: text.index("<script>")]
    assert "default-src 'none'" in ours
    assert "<img" not in ours
    assert EVIL not in text
    for figure in json.loads(re.search(r'id="figures">(.*?)</script>', text, re.DOTALL)[1]):  # type: ignore[index]
        go.Figure(figure["data"], figure["layout"])
        assert figure["data"], figure["title"]
    assert f"{Decimal(TOTAL).scaleb(-9):f}" in ours
    assert "1 attempt has no known price" in ours


def test_focus(ask: Ask, tmp_path: Path) -> None:
    file = tmp_path / "focus.csv"
    done = ask("--month", "2025-11", "--focus", str(file))
    assert (done.code, done.out) == (0, "")
    with file.open(newline="") as text:
        rows = list(csv.DictReader(text))
    assert sum(Decimal(row["BilledCost"]) for row in rows) == Decimal(TOTAL).scaleb(-9)
    assert {row["ChargeCategory"] for row in rows} == {"Usage", "Adjustment"}
    assert "FOCUS 1.2, November 2025 (UTC)" in done.err
    assert "1 attempt has no known price: its row has the BilledCost 0 and says so" in done.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--by", "departmnt"], "by: nothing is booked by 'departmnt'; did you mean department?"),
        (["--month", "soon"], "month: is written 2026-11"),
        (["--where", "x"], "where: is written department=research"),
        (["--by", "hour", "--since", "2001-01-01"], "over 2,400 steps"),
    ],
)
def test_what_is_asked_wrongly_ends_with_2(ask: Ask, arguments: list[str], words: str) -> None:
    done = ask(*arguments)
    assert (done.code, done.out) == (2, "")
    assert words in done.err
    assert "Traceback" not in done.err


def test_a_file_that_cannot_be_written(ask: Ask, tmp_path: Path) -> None:
    done = ask("--month", "2025-11", "--html", str(tmp_path / "no" / "such.html"))
    assert done.code == 1
    assert "such.html: No such file or directory" in done.err


def test_no_database_is_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["usage", "--state-dir", str(tmp_path)]) == module.EX_UNAVAILABLE
    assert "there is no database" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_lock_of_another_command_does_not_matter(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from forebay.ledger.database import DatabaseLock

    fill(tmp_path)
    with DatabaseLock(tmp_path) as lock:
        assert lock.take()
        assert run(["usage", "--month", "2025-11", "--state-dir", str(tmp_path)]) == 0
    assert capsys.readouterr().out


def test_what_is_in_a_journal_alone_is_missed_aloud(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def write(folder: Path) -> None:
        journal = opened(folder)
        for _ in range(3):
            reserved = reservation(journal)
            journal.reserve(reserved)
            journal.settle(settlement(reserved.seq))
        assert await journal.close() == 0

    fill(tmp_path)
    on_a_loop(write)(tmp_path / "journal" / "worker-0")
    assert run(["usage", "--state-dir", str(tmp_path)]) == 0
    assert re.search(r"note: [\d,]+ bytes of this host's journals are not booked yet", capsys.readouterr().err)
    assert run(["usage", "--month", "2025-11", "--state-dir", str(tmp_path)]) == 0
    assert "journals" not in capsys.readouterr().err
    (segment,) = (tmp_path / "journal" / "worker-0").glob("*.journal")
    segment.write_bytes(b"no journal")
    assert run(["usage", "--state-dir", str(tmp_path)]) == 0
    assert "is not known" in capsys.readouterr().err


def test_an_amount_shows_all_its_digits_and_a_share_is_100_only_where_it_is() -> None:
    assert [amount(n, 9) for n in (1, -1, 1_234_000_000_001)] == ["0.000000001", "-0.000000001", "1,234.000000001"]
    assert amount(1_500_000_000, 2) == "1.50"
    assert [share(a, b) for a, b in ((0, 9), (1, 1_000_000), (999_999, 1_000_000), (5, 5), (0, 0))] == [
        "0.0%",
        "0.1%",
        "99.9%",
        "100.0%",
        "–",
    ]


def test_an_empty_page(ask: Ask) -> None:
    found = from_json(json.loads(ask("--month", "2020-01", "--format", "json").out))
    assert "0.00" in html(found)

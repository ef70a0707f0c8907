"""Exports of a report: whoever named things in it, and whoever reads it."""

from __future__ import annotations

import csv
import io
import json
import re
from datetime import datetime, timedelta
from decimal import Decimal
from zoneinfo import ZoneInfo

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.ledger.asked import Wrong
from forebay.ledger.exports import cell, write_csv
from forebay.ledger.focus import COLUMNS, NEEDS, write_focus
from forebay.ledger.money import nano
from forebay.ledger.tokens import Tokens
from forebay.ledger.usage import Line, Report, as_json, cut, exact, from_json

NAMES = (
    "sales, EU",
    'two\nlines "quoted"',
    "x'; DROP TABLE entries;--",
    "🤖 团队",
    "=HYPERLINK(1)",
    "+1",
    "-2+3",
    "@SUM(A1)",
    "\t=1",
    " =1",
    "",
    "﹢",
    "＝1",
)
TOKENS = Tokens(1, 2, 3, 4, 5, 6, 7, 8, 9, 10)


def report(*lines: Line, by: tuple[str, ...] = ("department",), zone: str = "UTC") -> Report:
    return Report(
        by, (("key", "k"),), 1_793_491_200.0, 1_796_083_200.0, zone, "November 2026", "USD", lines, ("a",), 9.0
    )


def rows(written: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(written, newline="")))


def as_csv(found: Report) -> str:
    file = io.StringIO(newline="")
    write_csv(found, file)
    return file.getvalue()


def line(name: str, **more: int) -> Line:
    return msgspec.structs.replace(Line((name,), 3, 2, 2, 1, 1, 0, TOKENS, 1_000_000_001, -5, 7), **more)


def test_every_name_comes_back_from_csv_and_none_is_a_formula() -> None:
    found = rows(as_csv(report(*(line(name) for name in NAMES))))
    for name, row in zip(NAMES, found, strict=True):
        assert row["department"].removeprefix("'") == name
        assert not row["department"].lstrip().startswith(("=", "+", "-", "@", "＝")), row
    assert {(row["cost"], row["adjusted"], row["total"]) for row in found} == {
        ("1.000000001", "-0.000000005", "0.999999996")
    }


@given(st.text())
def test_no_text_breaks_a_row(text: str) -> None:
    (row,) = rows(as_csv(report(line(text))))
    assert row["department"] == cell(text)
    assert row["requests"] == "2"
    row["department"].encode()


def test_a_lone_surrogate_is_no_reason_to_fail() -> None:
    assert cell("a\udc80") == "a?"


def test_csv_adds_up_to_the_report() -> None:
    found = report(line("a"), line("b", cost=10**18 + 1), line("c", cost=-3))
    table = rows(as_csv(found))
    assert sum(nano(Decimal(row["total"])) for row in table) == found.total.total
    assert sum(int(row["tokens"]) for row in table) == found.total.tokens.total == 3 * TOKENS.total
    assert sum(int(row["images"]) for row in table) == 30


@given(
    st.lists(
        st.builds(
            Line,
            st.tuples(st.text(st.characters(exclude_categories=["Cs"]))),
            *[st.integers(0, 1 << 40)] * 6,
            st.builds(Tokens, *[st.integers(0, 1 << 40)] * 10),
            *[st.integers(-(1 << 62), 1 << 62)] * 3,
        ),
        max_size=4,
    )
)
def test_json_loses_nothing(lines: list[Line]) -> None:
    found = report(*lines)
    assert from_json(json.loads(json.dumps(as_json(found)))) == found


def test_json_money_is_text_of_units() -> None:
    found = as_json(report(line("a")))
    assert found["rows"][0]["cost"] == "1.000000001"
    assert found["rows"][0]["of"] == {"department": "a"}
    assert found["total"]["total"] == "0.999999996"
    assert found["since"] == "2026-11-01T00:00:00Z"
    assert as_json(report(zone="Europe/Berlin"))["since"] == "2026-11-01T01:00:00+01:00"


def test_a_cost_that_is_not_known_is_no_0_in_csv_and_json() -> None:
    found = report(line("a", cost=0, adjusted=0, attempts=3, unpriced=3), line("free", cost=0, adjusted=0))
    unknown, free = rows(as_csv(found))
    assert (unknown["cost"], unknown["total"], unknown["adjusted"]) == ("", "", "0.00")
    assert (free["cost"], free["total"]) == ("0.00", "0.00")
    said = as_json(found)
    assert (said["rows"][0]["cost"], said["rows"][0]["total"]) == (None, None)
    assert said["total"]["cost"] == "0.00"  # what is known of it
    assert from_json(said) == found


@pytest.mark.parametrize(
    ("nanos", "text"),
    [(0, "0.00"), (1, "0.000000001"), (-50_000_000, "-0.05"), (12_000_000_000, "12.00"), (10**18, "1000000000.00")],
)
def test_amounts_are_exact_and_never_in_powers_of_ten(nanos: int, text: str) -> None:
    assert exact(nanos) == text


def test_the_dearest_and_the_others_come_to_the_same_sum() -> None:
    lines = [Line((str(i), "x"), i, i, 0, 0, 0, 0, TOKENS, i * 10, 1) for i in range(10)]
    whole = report(*lines, by=("department", "model"))
    some = cut(whole, 4)
    assert [found.of for found in some.lines] == [("7", "x"), ("8", "x"), ("9", "x"), ("(7 others)", "…")]
    assert some.total == whole.total
    assert cut(whole, 10) is whole


# --- FOCUS -----------------------------------------------------------------------------------------------------------

MANDATORY = [
    *("BilledCost", "BillingAccountId", "BillingAccountName", "BillingCurrency", "BillingPeriodEnd"),
    *("BillingPeriodStart", "ChargeCategory", "ChargeClass", "ChargeDescription", "ChargePeriodEnd"),
    *("ChargePeriodStart", "ContractedCost", "EffectiveCost", "InvoiceIssuerName", "ListCost", "PricingQuantity"),
    *("PricingUnit", "ProviderName", "PublisherName", "ServiceCategory", "ServiceName"),
]
"""Of FOCUS 1.2."""
NULLABLE = {"BillingAccountName", "ChargeClass", "ChargeDescription", "PricingQuantity", "PricingUnit"}
BY = ("day", *NEEDS, "label:team", "end_user")


def focus(
    *lines: Line, by: tuple[str, ...] = BY, zone: str = "UTC", since: str = "", until: str = ""
) -> list[dict[str, str]]:
    """`since`, `until`: of the zone; November 2026 in UTC where left out."""
    found = report(*lines, by=by, zone=zone)
    for field, text in (("since", since), ("until", until)):
        if text:
            when = datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone))
            found = msgspec.structs.replace(found, **{field: when.timestamp()})
    file = io.StringIO(newline="")
    write_focus(found, file)
    return rows(file.getvalue())


def used(when: str = "2026-11-05T00:00:00Z", *, step: str = "day", **of: str) -> Line:
    values = {
        step: when, "organisation": "acme", "department": "research", "project": "rag", "user": "ann", "key": "k1",
        "model": "alias", "served": "gpt-4o", "engine": "e1", "tier": "", "class": "normal",
        "route": "/v1/chat/completions", "how": "exact", "label:team": "x", "end_user": "",
    } | {name.replace("label_", "label:"): value for name, value in of.items()}  # fmt: skip
    return Line(tuple(values.values()), 3, 2, 2, 0, 0, 0, Tokens(input=10, output=5), 54_399_000, 0, 0)


def test_focus_has_the_mandatory_columns_and_fills_those_that_may_not_be_null() -> None:
    (row,) = focus(used())
    assert set(MANDATORY) <= set(COLUMNS) <= row.keys()
    assert [column for column in MANDATORY if not row[column] and column not in NULLABLE] == []
    assert [column for column in row if column not in COLUMNS and not column.startswith("x_")] == []
    costs = {row[column] for column in ("BilledCost", "EffectiveCost", "ListCost", "ContractedCost")}
    assert costs == {"0.054399"}
    assert (row["ChargeCategory"], row["ChargeClass"], row["ChargeFrequency"]) == ("Usage", "", "Usage-Based")
    assert (row["ConsumedQuantity"], row["ConsumedUnit"], row["PricingUnit"]) == ("15", "Tokens", "Tokens")
    assert (row["SkuId"], row["ServiceCategory"]) == ("gpt-4o", "AI and Machine Learning")
    assert row["BillingPeriodStart"] == "2026-11-01T00:00:00Z"
    assert row["BillingPeriodEnd"] == "2026-12-01T00:00:00Z"
    assert (row["ChargePeriodStart"], row["ChargePeriodEnd"]) == ("2026-11-05T00:00:00Z", "2026-11-06T00:00:00Z")
    assert (row["SubAccountId"], row["SubAccountName"]) == ("acme/research/rag", "rag")
    tags = json.loads(row["Tags"])
    assert tags["team"] == "x"
    assert tags["forebay/user"] == "ann"


def test_focus_periods_are_the_zone_s_said_in_utc() -> None:
    (row,) = focus(used("2026-10-25T00:00:00+02:00"), zone="Europe/Berlin", since="2026-10-01", until="2026-11-01")
    assert (row["ChargePeriodStart"], row["ChargePeriodEnd"]) == ("2026-10-24T22:00:00Z", "2026-10-25T23:00:00Z")
    assert (row["BillingPeriodStart"], row["BillingPeriodEnd"]) == ("2026-09-30T22:00:00Z", "2026-10-31T23:00:00Z")


def test_a_first_step_that_began_before_and_a_last_that_goes_on_are_cut() -> None:
    by = ("hour", *BY[1:])
    (first,) = focus(used("2026-11-05T06:40:00Z", step="hour"), by=by, since="2026-11-05T06:40")
    assert (first["ChargePeriodStart"], first["ChargePeriodEnd"]) == ("2026-11-05T06:40:00Z", "2026-11-05T07:00:00Z")
    (last,) = focus(used(), until="2026-11-05T12:30")
    assert last["ChargePeriodEnd"] == "2026-11-05T12:30:00Z"


@pytest.mark.parametrize(
    ("zone", "day", "start", "end"),
    [
        ("Asia/Kolkata", "2026-11-05T09:00:00+05:30", "2026-11-05T03:30:00Z", "2026-11-05T04:30:00Z"),
        ("Europe/Berlin", "2026-10-25T02:00:00+01:00", "2026-10-25T01:00:00Z", "2026-10-25T02:00:00Z"),
        ("Australia/Lord_Howe", "2026-04-05T01:30:00+10:30", "2026-04-04T15:00:00Z", "2026-04-04T15:30:00Z"),
        ("Asia/Kathmandu", "2026-12-31T23:00:00+05:45", "2026-12-31T17:15:00Z", "2026-12-31T18:15:00Z"),
    ],
)
def test_focus_by_hours_of_any_zone(zone: str, day: str, start: str, end: str) -> None:
    first = datetime.fromisoformat(day).replace(tzinfo=None, day=1, hour=0, minute=0)
    month = {"since": first.isoformat(), "until": (first.replace(day=28) + timedelta(days=4)).date().isoformat()}
    (row,) = focus(used(day, step="hour"), by=("hour", *BY[1:]), zone=zone, **month)
    assert (row["ChargePeriodStart"], row["ChargePeriodEnd"]) == (start, end)
    assert row["BillingPeriodStart"] <= start < end <= row["BillingPeriodEnd"]


USAGE_HAS = ("SkuId", "SkuPriceId", "SkuMeter", "PricingCategory", "PricingQuantity", "PricingUnit", "ConsumedQuantity")
"""What FOCUS wants of every row of usage that is no correction, where the column is there."""


def test_focus_of_what_has_no_model_no_engine_no_organisation() -> None:
    nobody = dict.fromkeys(("organisation", "department", "project", "user", "model", "served", "engine"), "")
    (row,) = focus(used(**nobody))
    assert [column for column in (*USAGE_HAS, *MANDATORY) if not row[column] and column != "ChargeClass"] == []
    assert {row[column] for column in ("ResourceId", "ResourceName", "ResourceType")} == {""}
    assert {row[column] for column in ("SubAccountId", "SubAccountName", "SubAccountType")} == {""}


def test_focus_keeps_its_rules_about_what_may_be_null() -> None:
    usage, adjustment = focus(msgspec.structs.replace(used(), adjusted=-4_000))
    assert all(usage[column] for column in USAGE_HAS)
    assert (usage["ResourceId"], usage["ResourceName"], usage["ResourceType"]) == ("e1", "", "Engine")  # no duplicate
    assert [adjustment[name] for name in ("ConsumedQuantity", "ConsumedUnit", "PricingQuantity", "PricingUnit")] == [
        "", "", "", ""
    ]  # fmt: skip
    for row in (usage, adjustment):
        assert row["BilledCost"] == row["ContractedCost"] == row["ListCost"] == row["EffectiveCost"]  # no unit prices
        assert (row["ServiceCategory"], row["ServiceSubcategory"]) == ("AI and Machine Learning", "Generative AI")
        assert row["ChargeFrequency"] in ("One-Time", "Recurring", "Usage-Based")
        assert re.fullmatch(r"-?\d+(\.\d+)?", row["BilledCost"])
        assert all(isinstance(value, str) for value in json.loads(row["Tags"]).values())


def test_an_adjustment_is_a_row_of_its_own_and_all_rows_come_to_the_total() -> None:
    one, two = msgspec.structs.replace(used(), adjusted=-4_000), used(project="", label_team="")
    alone = msgspec.structs.replace(used(engine="e2"), attempts=0, requests=0, cost=0, adjusted=9)
    found = focus(one, two, alone)
    assert [row["ChargeCategory"] for row in found] == ["Usage", "Adjustment", "Usage", "Adjustment"]
    assert (found[1]["BilledCost"], found[1]["ConsumedQuantity"], found[1]["x_Requests"]) == ("-0.000004", "", "")
    assert sum(nano(Decimal(row["BilledCost"])) for row in found) == report(one, two, alone, by=BY).total.total
    assert (found[2]["SubAccountName"], found[2]["SubAccountType"]) == ("research", "Department")


def test_what_has_no_price_is_seen_in_focus() -> None:
    line = msgspec.structs.replace(used(how="unpriced"), cost=0, unpriced=3)
    (row,) = focus(line)
    assert (row["BilledCost"], row["x_Settlement"], row["ConsumedQuantity"]) == ("0.00", "unpriced", "15")
    assert "no price is known" in row["ChargeDescription"]


@pytest.mark.parametrize("name", [name for name in NAMES if name])
def test_names_in_focus(name: str) -> None:
    (row,) = focus(used(project=name, organisation=name, served=name, label_team=name, end_user=name))
    assert row["BillingAccountId"].removeprefix("'") == name
    assert json.loads(row["Tags"])["team"] == name
    assert all(not v.lstrip().startswith(("=", "+", "-", "@", "＝")) for v in row.values())


def test_equal_projects_of_two_departments_are_two_sub_accounts() -> None:
    found = focus(used(department="a/b", project="c"), used(department="a", project="b/c"))
    assert found[0]["SubAccountId"] != found[1]["SubAccountId"]


def test_focus_asks_for_what_it_needs() -> None:
    with pytest.raises(Wrong, match="by hour or day"):
        focus(Line(("x",)), by=("department",))

"""What a plan reads of the ledger, on both databases."""

from __future__ import annotations

import pytest

from forebay.ledger.database import Database
from forebay.ledger.tokens import Tokens
from forebay.plan.capacity_ledger import recorded
from usage_entries import Usage

pytestmark = pytest.mark.books

NOW = 1_759_999_200.0 // 3_600 * 3_600


def test_a_plan_reads_rates_and_lengths(database: Database) -> None:
    usage = Usage(database)
    for i in range(90):
        usage.request(
            NOW - 3_600 + 40 * i + 1,
            5,
            tokens=Tokens(input=100 + i, output=10),
            model="m" if i % 3 else "n",
            project="p",
        )
    usage.book()
    span = {"since": NOW - 3_600, "until": NOW, "zone": "UTC", "tiers": {}}
    with database.read() as connection:
        found = recorded(connection, where={"model": ("m",), "project": ("p",)}, **span)  # type: ignore[arg-type]
    assert max(found.traffic.hours) == pytest.approx(60 / 3_600)
    assert (len(found.lengths.prompts), found.lengths.output) == (60, 10)

"""A self-hosted engine's hour, shared out: no more than the bill, and to the nano-unit with what is idle."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from forebay.config.engine import Engine
from forebay.ledger.enginepricing import EnginePrices, provider_of
from forebay.ledger.gpuhours import HOUR, bill, hosted, hours, reconcile
from forebay.ledger.pricelists import Clause, Exchange, Listed, Period, Scale, Vendor
from forebay.ledger.pricing import PriceBook
from forebay.ledger.tokens import Tokens

BOOK = PriceBook()


def engine(**fields: object) -> Engine:
    given = {"name": "gpu-1", "url": "http://h:8000", "kv_tokens": 1_000_000, "price": {"gpu_hour": 2.5, "gpus": 8}}
    return Engine.model_validate(given | fields)


def test_an_hour_of_a_full_engine_is_charged_in_full() -> None:
    one = engine(prefill_tokens_per_s=8_000, decode_step=0.02, max_num_seqs=256)
    price = hosted(one, BOOK, 0.0)
    assert price is not None
    whole = bill(one.price, BOOK, 0.0, HOUR)
    assert whole == 20_000_000_000
    prefilled = price.cost(Tokens(8_000 * HOUR // 2, output=12_800 * HOUR // 2), kv=1_000_000 * HOUR)
    decoded = price.cost(Tokens(0, 5_000, output=12_800 * HOUR), kv=1_000_000 * HOUR)
    assert prefilled is not None and decoded is not None
    for cost in (prefilled, decoded):
        assert whole - 20 < cost <= whole  # rates are rounded down at twelve digits
    assert price.cost(Tokens(0, 5_000)) == 0
    assert price.cost(Tokens(images=1)) is None


def test_memory_and_computing_share_the_price_as_configured() -> None:
    def costs(**price: object) -> tuple[int | None, int | None]:
        found = hosted(engine(price={"gpu_hour": 3.6, **price}, prefill_tokens_per_s=1_000), BOOK, 0.0)
        assert found is not None
        return found.cost(Tokens(1_000)), found.cost(Tokens(), kv=1_000_000)

    assert costs() == (500_000, 500_000)
    assert costs(kv_share=0.25) == (750_000, 250_000)
    assert costs(kv_share=0) == (1_000_000, 0)
    assert costs(kv_share=1) == (0, 1_000_000)
    assert costs(kv_share=0, gpus=2) == (2_000_000, 0)


@given(st.integers(0, 10_000), st.integers(0, 10_000))
def test_a_hold_covers_what_an_engine_takes_that_keeps_its_pace(prompt: int, answer: int) -> None:
    one = engine(prefill_tokens_per_s=8_000, decode_step=0.02)
    price = hosted(one, BOOK, 0.0)
    assert price is not None
    seconds = prompt / 8_000 + answer * 0.02
    cost = price.cost(Tokens(prompt, output=answer), kv=int((prompt + answer) * seconds))
    assert cost is not None and cost <= price.most(prompt, answer)
    assert price.most(prompt, answer) <= price.most(prompt, answer + 1)


def test_without_a_known_memory_all_is_by_computing() -> None:
    found = hosted(engine(kv_tokens=None, price={"gpu_hour": 3.6}, prefill_tokens_per_s=1_000), BOOK, 0.0)
    assert found is not None
    assert (found.cost(Tokens(1_000)), found.cost(Tokens(), kv=10**9)) == (1_000_000, 0)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"kv_tokens": None, "price": {"gpu_hour": 1, "kv_share": 0.5}}, "price.kv_share needs kv_tokens"),
        ({"provider": "openai"}, "leave one out"),
        ({"price": {"gpu_hour": -1}}, "greater than or equal to 0"),
        ({"price": {"gpu_hour": float("inf")}}, "finite|less than"),
        ({"price": {"gpu_hour": 1, "currency": "usd"}}, "pattern"),
    ],
)
def test_a_price_that_cannot_be_meant_is_refused(fields: dict[str, object], why: str) -> None:
    with pytest.raises(ValidationError, match=why):
        engine(**fields)


def test_a_price_in_another_currency_needs_a_rate() -> None:
    rented = engine(price={"gpu_hour": 20, "currency": "CNY", "kv_share": 0})
    assert hosted(rented, BOOK, 0.0) is None and bill(rented.price, BOOK, 0.0, HOUR) is None
    rates = PriceBook(
        exchange=(Exchange("CNY", "USD", Decimal("0.14"), 0.0), Exchange("CNY", "USD", Decimal("0.15"), HOUR))
    )
    assert [bill(rented.price, rates, t, t + HOUR) for t in (0.0, HOUR)] == [2_800_000_000, 3_000_000_000]
    assert bill(rented.price, rates, 0.0, 1.0) == 777_778
    prices = EnginePrices(rented, rates)
    first, same, later = (prices.at("any", t) for t in (0.0, 3_000.0, HOUR))
    assert first is same is not None and later is not None
    assert (first.exchange, later.exchange) == ("0.14", "0.15")


def test_hours_are_whole_since_the_epoch() -> None:
    assert list(hours(1_800.0, 9_000.0)) == [(1_800.0, 3_600.0), (3_600.0, 7_200.0), (7_200.0, 9_000.0)]
    assert list(hours(7_200.0, 7_200.0)) == []


costs = st.dictionaries(st.integers(0, 50), st.integers(-(10**9), 10**12), max_size=30)


@given(st.integers(0, 10**13), costs, st.booleans())
def test_allocated_and_idle_are_the_bill(bill: int, allocated: dict[int, int], spread: bool) -> None:
    found = reconcile(bill, allocated, spread_idle=spread)
    total = sum(allocated.values()) + sum(found.adjustments.values())
    assert total + found.idle == bill
    positive = sum(cost for cost in allocated.values() if cost > 0)
    fixed = sum(cost for cost in allocated.values() if cost < 0)
    if positive > bill - fixed or (spread and positive):
        assert found.idle == 0
    else:
        assert found.adjustments == {}
    for key, change in found.adjustments.items():
        assert allocated[key] > 0 and allocated[key] + change >= 0
        fair = allocated[key] * (bill - fixed) / positive
        assert abs(allocated[key] + change - fair) <= 1 + fair * 1e-12


def test_each_pays_its_part_and_the_odd_units_go_to_the_largest_remainders() -> None:
    assert reconcile(100, {"a": 10, "b": 10, "c": 10}).idle == 70
    spread = reconcile(100, {"a": 10, "b": 10, "c": 10}, spread_idle=True)
    assert sorted(spread.adjustments.values()) == [23, 23, 24]
    scaled = reconcile(100, {"a": 90, "b": 60})
    assert (scaled.adjustments, scaled.idle) == ({"a": -30, "b": -20}, 0)
    assert reconcile(100, {}, spread_idle=True).idle == 100
    assert reconcile(0, {"a": 5}).adjustments == {"a": -5}


def test_whose_list_counts_for_an_engine() -> None:
    listed = Listed("m", Clause("equals", "m"), (Period((Scale({"input": Decimal(1)}),)),))
    book = PriceBook(vendors=(Vendor("openai", (listed,), r"https://api\.openai\.com"),))
    plain = {"price": None, "kv_tokens": None}
    assert provider_of(engine(url="https://api.openai.com", **plain), book) == "openai"
    assert provider_of(engine(**plain), book) == ""
    assert provider_of(engine(kind="anthropic", **plain), book) == "anthropic"
    assert provider_of(engine(provider="openai", **plain), book) == "openai"
    for url, known in (("https://api.openai.com", True), ("http://h:1", False)):
        assert (EnginePrices(engine(url=url, **plain), book).at("m", 0.0) is not None) is known

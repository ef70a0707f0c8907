"""Prices applied: the issue's known cases, exact to the nano-unit; dates, hours, tiers, currencies."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import ROUND_HALF_EVEN, Decimal, localcontext
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.ledger.pricelists import Clause, Exchange, Listed, Period, Scale, Vendor, Window
from forebay.ledger.pricing import MOST_MODELS, PRICED_KINDS, Price, PriceBook, named, price_from
from forebay.ledger.tokens import KINDS, Tokens

MINUTE = 60.0


def scale(above: int = 0, **prices: str | int) -> Scale:
    return Scale({kind: Decimal(price) for kind, price in prices.items()}, above)


def price(*scales: Scale, exchange: str = "1") -> Price:
    return named(Price("", "m", "p", "USD", scales, exchange=exchange))


def book(*periods: Period, exchange: tuple[Exchange, ...] = (), currency: str = "USD") -> PriceBook:
    listed = Listed("m", Clause("equals", "m"), periods)
    return PriceBook(currency, (Vendor("", (listed,)),), (), exchange)


def at(text: str, zone: str = "UTC", fold: int = 0) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone), fold=fold).timestamp()


def found(book: PriceBook, when: float) -> str | None:
    """The input price in force."""
    price = book.lookup("m", "", when)
    return str(price.scales[0].prices["input"]) if price is not None else None


@pytest.mark.parametrize(
    ("prices", "tokens", "nanos"),
    [
        (scale(input="1.25", cached="0.625", output=10), Tokens(5_005, 257_955, output=1_744), 184_918_125),
        (scale(input=3, cache_write="3.75", output=15), Tokens(3, 0, 12_304, output=550), 54_399_000),
        (scale(input="1.4", cached="0.26", output="4.4"), Tokens(1, 27_146, output=351), 8_603_760),
        (scale(input=30, output=60), Tokens(1_000_000, output=1_000_000), 90_000_000_000),
        (scale(input="0.5", output="1.5"), Tokens(1_000_000, output=1_000_000), 2_000_000_000),
        (scale(input=3, output=15), Tokens(1_000_000, output=1_000_000), 18_000_000_000),
        (scale(input=3, cache_write="3.75", cache_write_long=6, output=15), Tokens(0, 0, 100, 1_000), 6_375_000),
        (scale(input=1, images="0.04"), Tokens(10, images=2), 80_010_000),
        (scale(input=1, output=1, request="0.005"), Tokens(1, output=1), 5_002_000),
        (scale(input=1, output=1, request="0.005"), Tokens(), 0),
        (scale(input=0, output=0), Tokens(5, output=5), 0),
    ],
)
def test_known_cases_come_out_to_the_nano_unit(prices: Scale, tokens: Tokens, nanos: int) -> None:
    assert price(prices).cost(tokens) == nanos


@pytest.mark.parametrize(("tokens", "nanos"), [(1, 0), (2, 1), (3, 2), (5, 2), (7, 4)])
def test_a_line_is_rounded_once_half_to_even(tokens: int, nanos: int) -> None:
    half = price(scale(input="0.0005", output="0.0005"))
    assert half.cost(Tokens(tokens)) == nanos
    assert half.cost(Tokens(tokens - 1, output=1)) == nanos


def test_a_kind_without_a_price_of_its_own_costs_what_it_is_part_of() -> None:
    one = price(scale(input=2, output=10))
    assert one.cost(Tokens(1, 1, 1, 1, 0, 0, 1, 0, 1)) == 6 * 2_000
    assert one.cost(Tokens(0, 0, 0, 0, 1, 1, 0, 1)) == 3 * 10_000


def test_what_has_no_price_is_not_free() -> None:
    embedding = price(scale(input="0.02"))
    assert embedding.cost(Tokens(1_000)) == 20_000
    assert embedding.cost(Tokens(1_000, output=1)) is None
    assert embedding.cost(Tokens(1_000, images=1)) is None
    assert price(scale(output=5)).cost(Tokens(0, 7)) is None
    assert book().lookup("m", "", 0.0) is None


def test_a_tier_is_for_all_tokens_and_begins_above_its_mark() -> None:
    tiers = price(scale(input=3, cached="0.3", output=15), scale(200_000, input=6, output="22.5"))
    assert tiers.cost(Tokens(200_000, output=1_000)) == 600_000_000 + 15_000_000
    assert tiers.cost(Tokens(200_001, output=1_000)) == 200_001 * 6_000 + 22_500_000
    assert tiers.cost(Tokens(150_000, 60_000, output=0)) == 150_000 * 6_000 + 60_000 * 300
    assert tiers.rate_of("cached", 300_000) == Decimal("0.3") and tiers.rate_of("reasoning", 300_000) == Decimal("22.5")


rates = st.decimals(min_value=0, max_value=1_000, places=6)
scales = st.builds(
    lambda base, more, above: (Scale(base), Scale(more, above)),
    st.fixed_dictionaries(
        dict.fromkeys(("input", "output"), rates),
        optional=dict.fromkeys(PRICED_KINDS[1:4] + PRICED_KINDS[5:], rates),
    ),
    st.dictionaries(st.sampled_from(PRICED_KINDS), rates, max_size=5),
    st.integers(1, 300_000),
)
counts = st.builds(Tokens, *(st.integers(0, 200_000) for kind in KINDS if kind != "images"), st.just(0))
money = st.decimals(min_value="0.000001", max_value=200, places=9)


@given(scales, counts, money, st.integers(0, 1_000))
def test_what_is_held_is_never_less_than_what_is_settled(
    scales: tuple[Scale, ...], tokens: Tokens, exchange: Decimal, more: int
) -> None:
    one = price(*scales, exchange=str(exchange))
    cost = one.cost(tokens)
    assert cost is not None
    assert one.most(tokens.prompt + more, tokens.completion) >= cost
    if not tokens.audio_input and not tokens.audio_output:
        assert one.most(tokens.prompt, tokens.completion + more, audio=False) >= cost


@given(scales, counts, money)
def test_a_cost_is_the_exact_sum_rounded_and_its_snapshot_says_the_same(
    scales: tuple[Scale, ...], tokens: Tokens, exchange: Decimal
) -> None:
    one = price(*scales, exchange=str(exchange))
    with localcontext() as context:
        context.prec = 60
        exact = sum(
            (getattr(tokens, kind) * (one.rate_of(kind, tokens.prompt) or 0) for kind in KINDS if kind != "images"),
            Decimal(0),
        )
        request = one.rate_of("request", tokens.prompt) or 0
        exact = exact / 1_000_000 + (request if tokens != Tokens() else 0)
        nanos = int((exact * exchange * 10**9).to_integral_value(ROUND_HALF_EVEN))
    assert one.cost(tokens) == nanos
    again = price_from(one.as_json())
    assert again == one and again.cost(tokens) == nanos


def test_audio_is_held_for_where_it_may_come() -> None:
    one = price(scale(input=1, output=2, audio_input=10, audio_output=20))
    assert one.most(1_000, 100) == 10_000_000 + 2_000_000
    assert one.most(1_000, 100, audio=False) == 1_000_000 + 200_000


def test_an_id_tells_prices_apart() -> None:
    one, other = price(scale(input=1)), price(scale(input=2))
    assert one.id != other.id
    assert one.id == price(scale(input=1)).id
    assert one.id.startswith("p/m#")


# --- when -------------------------------------------------------------------------------------------------------------


def test_dates_begin_and_end_on_the_second() -> None:
    begins, ends = at("2026-03-01"), at("2026-06-01")
    dated = book(Period((scale(input=1),), begins, ends), Period((scale(input=2),), ends))
    assert [found(dated, t) for t in (begins - 0.001, begins, ends - 0.001, ends)] == [None, "1", "1", "2"]
    assert found(dated, begins - 1) is None  # a clock that went back


def test_hours_are_of_the_wall_clock_of_their_zone() -> None:
    night = Period((scale(input=1),), windows=(Window(30, 8 * 60 + 30),), zone="Asia/Shanghai")
    prices = book(Period((scale(input=2),)), night)
    for text, expected in (("00:29", "2"), ("00:30", "1"), ("08:29", "1"), ("08:30", "2")):
        assert found(prices, at(f"2026-03-01T{text}", "Asia/Shanghai")) == expected
    one = prices.lookup("m", "", at("2026-03-01T01:00", "Asia/Shanghai"))
    assert one is not None and one.hours == "00:30-08:30 Asia/Shanghai"


def test_hours_over_midnight_belong_to_the_day_they_begin_on() -> None:
    friday = Period((scale(input=1),), windows=(Window(22 * 60, 6 * 60, (4,)),))
    prices = book(Period((scale(input=2),)), friday)
    for text, expected in (
        ("2026-03-06T21:59", "2"),
        ("2026-03-06T22:00", "1"),
        ("2026-03-07T05:59", "1"),
        ("2026-03-07T06:00", "2"),
        ("2026-03-07T22:00", "2"),
        ("2026-03-06T03:00", "2"),
    ):
        assert found(prices, at(text)) == expected, text


def test_a_clock_change_leaves_out_or_repeats_an_hour() -> None:
    night = Period((scale(input=1),), windows=(Window(120, 180),), zone="Europe/Berlin")
    prices = book(Period((scale(input=2),)), night)
    autumn = at("2026-10-25T02:00", "Europe/Berlin")
    inside = [found(prices, autumn + n * 60 * MINUTE) for n in (-1, 0, 1, 2)]
    assert inside == ["2", "1", "1", "2"]  # 02:00 comes twice
    spring = at("2026-03-29T01:59", "Europe/Berlin")
    assert [found(prices, spring + n * MINUTE) for n in (0, 1, 2)] == ["2", "2", "2"]  # 02:00 never comes


def test_the_29th_of_february_is_a_day() -> None:
    begins, ends = at("2028-02-29", "Asia/Shanghai"), at("2028-03-01", "Asia/Shanghai")
    assert ends - begins == 24 * 60 * MINUTE
    leap = book(Period((scale(input=1),)), Period((scale(input=2),), begins, ends))
    assert [found(leap, t) for t in (begins - 1, begins, ends - 1, ends)] == ["1", "2", "2", "1"]
    tuesday = book(Period((scale(input=2),), windows=(Window(0, 0, (1,)),)))
    assert found(tuesday, at("2028-02-29T23:59")) == "2" and found(tuesday, at("2028-03-01")) is None


def test_one_price_is_one_object_until_it_changes() -> None:
    prices = book(Period((scale(input=1),)), Period((scale(input=2),), since=at("2026-03-01")))
    first, later = (prices.lookup("m", "", at(f"2026-02-{day}T12:00")) for day in ("01", "28"))
    assert first is later is not None
    assert prices.lookup("M", "", at("2026-03-01")) is not first


def test_what_is_remembered_is_bounded() -> None:
    prices = PriceBook(own=(Vendor("", (Listed("*", Clause("starts_with", ""), (Period((scale(input=1),)),)),)),))
    for n in range(MOST_MODELS + 100):
        assert prices.lookup(f"model-{n}", "", 0.0) is not None
    assert len(prices._lately) == MOST_MODELS
    assert len(prices._prices) == 1


# --- which ------------------------------------------------------------------------------------------------------------


def test_who_is_asked_first() -> None:
    def listed(name: str, number: int, **when: float) -> Listed:
        kind, text = ("starts_with", name[:-1]) if name.endswith("*") else ("equals", name)
        return Listed(name, Clause(kind, text), (Period((scale(input=number),), **when),))

    prices = PriceBook(
        own=(
            Vendor("openai", (listed("gpt-4o", 1, until=100.0), listed("gpt-*", 2, until=200.0))),
            Vendor("", (listed("gpt-4o", 3, until=300.0),)),
        ),
        vendors=(
            Vendor("openai", (listed("gpt-4o", 4), listed("gpt-5.2-2025-12-11", 5)), "https://api\\.openai\\.com"),
            Vendor("azure", (listed("own", 6),), names=Clause("contains", "azure"), others=("openai",)),
        ),
    )

    def of(model: str, provider: str, when: float) -> str | None:
        price = prices.lookup(model, provider, when)
        return str(price.scales[0].prices["input"]) if price is not None else None

    assert [of("gpt-4o", "openai", t) for t in (0.0, 100.0, 200.0, 300.0)] == ["1", "2", "3", "4"]
    assert of("GPT-4o", "openai", 0.0) == "1"
    assert of("gpt-4o", "", 0.0) == "3" and of("gpt-4o", "", 300.0) is None
    assert of("gpt-5.2-20251211", "openai", 300.0) == "5"
    assert of("gpt-4o", "azure", 300.0) == "4" and of("own", "my-azure", 0.0) == "6"
    assert of("gpt-4o", "elsewhere", 300.0) is None
    assert prices.provider_of("https://api.openai.com/v1") == "openai"
    assert prices.provider_of("http://127.0.0.1:8000") == ""


def test_a_book_is_the_same_after_a_journey() -> None:
    there = book(
        Period((scale(input=1), scale(5, input=2)), 1.0, 2.0, (Window(0, 5, (1, 2)),), "Asia/Tokyo", "CNY"),
        exchange=(Exchange("CNY", "USD", Decimal("0.14")),),
    )
    back = PriceBook.from_json(there.as_json())
    assert (back.currency, back.own, back.vendors, back.exchange) == ("USD", there.own, there.vendors, there.exchange)


@pytest.mark.parametrize("clause", ["regex", "contains", "starts_with", "ends_with", "equals", "and", "or"])
def test_every_clause_matches_and_does_not(clause: str) -> None:
    text = {"regex": "^gpt-[0-9]$", "contains": "t-4", "starts_with": "gpt", "ends_with": "4", "equals": "gpt-4"}
    of = (Clause("contains", "gpt"), Clause("ends_with", "4"))
    one = Clause(clause, text.get(clause, ""), of if clause in ("and", "or") else ())
    assert one.matches("gpt-4") and not one.matches("llama-3")
    if clause == "and":
        assert not one.matches("gpt-5")


# --- currencies -------------------------------------------------------------------------------------------------------


def test_another_currency_is_converted_exactly_at_the_rate_of_the_day() -> None:
    first, second = at("2026-01-01"), at("2026-02-01")
    yuan = book(
        Period((scale(input=2, output=3),), currency="CNY"),
        exchange=(Exchange("CNY", "USD", Decimal("0.1389"), first), Exchange("CNY", "USD", Decimal("0.14"), second)),
    )
    assert yuan.lookup("m", "", first - 1) is None  # no rate yet: not known, never 1
    one, other = yuan.lookup("m", "", first), yuan.lookup("m", "", second)
    assert one is not None and other is not None
    assert (one.exchange, one.exchange_since, one.currency, one.into) == ("0.1389", first, "CNY", "USD")
    assert one.cost(Tokens(1_000_000, output=1)) == 277_800_000 + 417  # 416.7
    assert other.cost(Tokens(1_000_000)) == 280_000_000
    assert one.id != other.id


def test_a_rate_the_other_way_round_is_its_exact_reverse() -> None:
    dollars = book(
        Period((scale(input=3),)), exchange=(Exchange("CNY", "USD", Decimal("0.14")),), currency="CNY"
    ).lookup("m", "", 0.0)
    assert dollars is not None and dollars.exchange == "50/7"
    assert dollars.cost(Tokens(7)) == 150_000
    assert price_from(dollars.as_json()).cost(Tokens(1)) == 21_429


def test_a_rate_of_the_right_way_goes_before_a_later_reverse() -> None:
    both = PriceBook(
        exchange=(Exchange("CNY", "USD", Decimal("0.14"), 0.0), Exchange("USD", "CNY", Decimal("8"), 10.0))
    )
    rate = both.rate("CNY", "USD", 20.0)
    assert rate is not None and rate[0] == Decimal("0.14")
    assert both.rate("EUR", "USD", 20.0) is None


def test_midnight_that_a_clock_change_skips_still_begins_a_day() -> None:
    begins = at("2026-03-08", "America/Havana")
    dated = book(Period((scale(input=1),), begins))
    assert datetime.fromtimestamp(begins, UTC).isoformat() == "2026-03-08T05:00:00+00:00"
    assert [found(dated, begins - 1), found(dated, begins)] == [None, "1"]

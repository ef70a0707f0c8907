"""A price file: what it says, and each way in which it can be wrong."""

from __future__ import annotations

import re
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from forebay.config.load import loads as read_config
from forebay.config.problems import ConfigError
from forebay.ledger.pricefile import PriceFile, load_prices, read_prices
from forebay.ledger.pricelists import Clause, Listed, Period, Scale, Vendor
from forebay.ledger.pricing import Price, PriceBook
from forebay.ledger.tokens import Tokens

ROOT = Path(__file__).parents[2]


def at(text: str, zone: str = "UTC") -> float:
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).timestamp()


def read(text: str) -> PriceFile:
    return read_prices(text, "prices.yaml", "USD")


def book(file: PriceFile) -> PriceBook:
    return PriceBook("USD", file.vendors(), (), tuple(file.exchange))


def price(prices: PriceBook, model: str, provider: str, when: str, zone: str = "Asia/Shanghai") -> Price:
    found = prices.lookup(model, provider, at(when, zone))
    assert found is not None
    return found


def test_the_example_says_what_it_means() -> None:
    file = load_prices(ROOT / "examples/prices.yaml", "USD")
    assert file.warnings == []
    prices = book(file)
    tokens = Tokens(1_000_000, output=1_000_000)
    for when, nanos in (
        ("2025-02-26T00:29", 10 * 138_900_000),
        ("2025-02-26T00:30", 5 * 138_900_000),
        ("2025-08-31T12:00", 10 * 138_900_000),
        ("2025-09-01T12:00", 10 * 140_400_000),
        ("2025-09-06T03:00", 16 * 140_400_000),
        ("2026-11-30T00:00", 5 * 140_400_000),
    ):
        assert price(prices, "deepseek-chat", "deepseek", when).cost(tokens) == nanos, when
    assert prices.lookup("deepseek-chat", "deepseek", at("2025-02-25T23:59", "Asia/Shanghai")) is None
    long = price(prices, "qwen-plus-latest", "dashscope", "2026-01-01")
    assert long.cost(Tokens(128_000)) == rounded("0.8", 128_000)
    assert long.cost(Tokens(128_001)) == rounded("2.4", 128_001)
    assert price(prices, "gpt-4o", "openai", "2026-12-31T23:59").cost(Tokens(output=1_000)) == 8_800_000
    assert prices.lookup("gpt-4o", "openai", at("2027-01-01", "Asia/Shanghai")) is None
    free = price(prices, "bge-large-en", "", "2026-01-01")
    assert free.cost(Tokens(5)) == 0 and free.cost(Tokens(images=1)) is None


def rounded(yuan: str, tokens: int) -> int:
    return round(Decimal(yuan) * tokens * 1_000 * Decimal("0.1404"))


def test_what_the_page_shows_can_be_used() -> None:
    blocks = re.findall(r"(?s)```yaml\n(.*?)```", (ROOT / "docs/prices.md").read_text())
    file = read(next(block for block in blocks if "prices:" in block))
    cost = price(book(file), "deepseek-chat", "deepseek", "2026-03-07T01:00").cost(Tokens(128_001, output=1))
    assert cost == 35_943_102  # 4 and 6 yuan, half off on a Saturday: 128,001 × 280.8 and 421.2 nano-dollars
    hosted = read_config(next(block for block in blocks if "gpu_hour" in block), "forebay.yaml", {})
    assert hosted.engines[0].price is not None


def test_each_entry_is_in_force_until_the_next_begins() -> None:
    prices = book(
        read(
            """
            prices:
              - {model: m, since: 2026-03-01, input: 3}
              - {model: m, input: 1}
              - {model: M, since: 2026-02-01, input: 2, currency: USD}
            """
        )
    )
    inputs = [
        str(price(prices, "m", "any", day, "UTC").scales[0].prices["input"])
        for day in ("2000-01-01", "2026-01-31", "2026-02-01", "2026-02-28", "2026-03-01", "2100-01-01")
    ]
    assert inputs == ["1", "1", "2", "2", "3", "3"]


def test_digits_are_those_written() -> None:
    prices = book(read("prices: [{model: m, input: 0.1, output: '0.123456789012'}]"))
    assert {k: str(v) for k, v in price(prices, "m", "", "2026-01-01").scales[0].prices.items()} == {
        "input": "0.1",
        "output": "0.123456789012",
    }


def test_a_discount_is_off_tiers_too_and_a_price_off_peak_keeps_the_others() -> None:
    prices = book(
        read(
            """
            prices:
              - model: a
                input: 1
                output: 3
                tiers: [{above: 100, input: 2}]
                off_peak: [{hours: ["00:00-06:00", "23:00-24:00"], discount: 0.75}]
              - model: b
                input: 1
                output: 3
                off_peak: [{hours: "22:00-06:00", days: [Sat, Sunday], output: 1}]
            """
        )
    )
    tokens = Tokens(1_000, output=1_000)
    assert [
        price(prices, "a", "", f"2026-03-01T{hour}", "UTC").cost(tokens) for hour in ("05:59", "12:00", "23:30")
    ] == [
        1_250_000,
        5_000_000,
        1_250_000,
    ]
    sunday, monday = (price(prices, "b", "", f"2026-03-0{day}T23:00", "UTC").cost(tokens) for day in (1, 2))
    assert (sunday, monday) == (2_000_000, 4_000_000)


def test_a_whole_name_goes_before_a_beginning_and_a_longer_before_a_shorter() -> None:
    prices = book(read("prices: [{model: 'gpt-*', input: 1}, {model: 'gpt-4*', input: 2}, {model: gpt-4o, input: 3}]"))
    found = [str(price(prices, m, "", "2026-01-01").scales[0].prices["input"]) for m in ("gpt-3", "gpt-4.1", "gpt-4o")]
    assert found == ["1", "2", "3"]


ENTRY = "prices:\n  - model: m\n    input: 1\n    "


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("prices:\n  - {model: m, inptu: 1}", "2: prices[0].inptu: unknown key; did you mean input? (allowed model, "),
        ("price: []", "1: price: unknown key; did you mean prices? (allowed currency, zone, exchange, prices)"),
        ("prices:\n  - {model: m}", "2: prices[0]: no price (allowed at least one of input, cached, "),
        ("prices:\n  - {input: 1}", "2: prices[0]: an entry is of a model, or of models (allowed model: NAME, or "),
        ("prices:\n  - {models: [], input: 1}", "2: prices[0]: an entry is of at least one model"),
        ("prices:\n  - {models: [a, A], input: 1}", "2: prices[0].models[1]: named twice (found 'A')"),
        ("prices:\n  - {model: 'a b', input: 1}", "2: prices[0].model: not a model's name (found 'a b'; allowed "),
        (
            "prices:\n  - {model: m, input: -1}",
            "2: prices[0].input: not a price (found -1; allowed a decimal from 0 to ",
        ),
        ("prices:\n  - {model: m, input: .nan}", "2: prices[0].input: not a price (found nan; allowed "),
        ("prices:\n  - {model: m, input: yes}", "2: prices[0].input: not a price (found 'yes'; allowed "),
        ("prices:\n  - {model: m, input: true}", "2: prices[0].input: not a price (found true; allowed "),
        ("prices:\n  - {model: m, input: }", "2: prices[0].input: not a price (found nothing; allowed "),
        ("prices:\n  - {model: m, input: 2e9}", "2: prices[0].input: not a price (found 2000000000.0; allowed "),
        (
            "prices:\n  - {model: m, input: '0.0000000000001'}",
            "2: prices[0].input: more than 12 digits behind the point (found '0.0000000000001')",
        ),
        (
            ENTRY + "since: 2027-02-29",
            "4: prices[0].since: no such day or time (day is out of range for month) (found '2027-02-29'; allowed a ",
        ),
        (ENTRY + "since: soon", "4: prices[0].since: no such day or time (found 'soon'; allowed a date such as "),
        (ENTRY + "since: 1026-01-01", "4: prices[0].since: not a day of this time, or not in whole minutes (found "),
        (ENTRY + "since: 2026-01-01T00:00:30", "4: prices[0].since: not a day of this time, or not in whole minutes"),
        (
            ENTRY + "since: 2026-01-01\n    until: 2026-01-01",
            "5: prices[0].until: not after since (found '2026-01-01')",
        ),
        (ENTRY + "zone: Asia/Bejing", "4: prices[0].zone: not a time zone (found 'Asia/Bejing'; allowed a name such "),
        (ENTRY + "currency: yuan", "4: prices[0].currency: not a currency (found 'yuan'; allowed an ISO 4217 code "),
        (ENTRY + "provider: open ai", "4: prices[0].provider: not a provider's name (found 'open ai'; allowed "),
        (ENTRY + "tiers: [{above: 0, input: 1}]", "4: prices[0].tiers[0].above: above is the prompt tokens that it "),
        (
            ENTRY + "tiers: [{above: 9, input: 1}, {above: 9, input: 2}]",
            "4: prices[0].tiers[1].above: above is the prompt tokens that it begins above, more than in the tier",
        ),
        (ENTRY + "tiers: [{above: 9, output: 1}]", "4: prices[0].tiers[0]: the entry itself has no price for output"),
        (ENTRY + "tiers: [{above: 9}]", "4: prices[0].tiers[0]: no price in this tier"),
        (ENTRY + "off_peak: [{discount: 0.5}]", "4: prices[0].off_peak[0]: hours missing (allowed "),
        (ENTRY + 'off_peak: [{hours: "8-9", discount: 0.5}]', "4: prices[0].off_peak[0].hours: not hours of a day "),
        (
            ENTRY + 'off_peak: [{hours: "24:00-08:00", discount: 0.5}]',
            "4: prices[0].off_peak[0].hours: not hours of a ",
        ),
        (
            ENTRY + 'off_peak: [{hours: "08:00-08:00", discount: 0.5}]',
            "4: prices[0].off_peak[0].hours: begins and ends ",
        ),
        (ENTRY + 'off_peak: [{hours: "08:00-09:00"}]', "4: prices[0].off_peak[0]: neither a discount nor a price "),
        (
            ENTRY + 'off_peak: [{hours: "08:00-09:00", discount: 0.5, input: 1}]',
            "4: prices[0].off_peak[0]: either a discount or prices, not both",
        ),
        (
            ENTRY + 'off_peak: [{hours: "08:00-09:00", days: [Funday], discount: 1}]',
            "4: prices[0].off_peak[0].days[0]: not a day (found 'Funday'; allowed Mon, ",
        ),
        (
            ENTRY + 'tiers: [{above: 9, input: 2}]\n    off_peak: [{hours: "08:00-09:00", input: 1}]',
            "5: prices[0].off_peak[0]: the entry has tiers, so its off-peak prices need theirs (allowed tiers, or ",
        ),
        (
            ENTRY + "until: 2026-03-02\n  - {model: M, since: 2026-03-01, input: 2}",
            "5: prices[1].since: overlaps the price of m on line 2, which ends 2026-03-02",
        ),
        (ENTRY + "\n  - {model: m, input: 2}", "5: prices[1].since: a second price of m: the other is on line 2"),
        ("exchange: [{from: CNY, to: USD}]", "1: exchange[0]: rate missing (allowed {from: CNY, to: USD, rate: "),
        ("exchange: [{from: CNY, to: USD, rate: 0}]", "1: exchange[0].rate: an exchange rate is more than 0 (found 0)"),
        ("exchange: [{from: CNY, to: CNY, rate: 1}]", "1: exchange[0]: a currency has no rate into itself"),
        (
            "exchange: [{from: CNY, to: USD, rate: 1}, {from: USD, to: CNY, rate: 1}]",
            "1: exchange[1]: a second rate between USD and CNY from the same day on",
        ),
        ("prices: 5", "1: prices: not a list (found 5)"),
        ("prices: [5]", "1: prices[0]: not a mapping (found 5; allowed model, models, "),
        ("- 5", "1: the file must be a mapping of keys to values (found a list)"),
        ("prices: [", "not YAML"),
    ],
)
def test_what_is_wrong_is_named_with_its_place(text: str, problem: str) -> None:
    with pytest.raises(ConfigError) as e:
        read(text)
    assert len(e.value.problems) == 1, e.value
    assert problem in str(e.value), e.value


def test_every_mistake_is_named_at_once() -> None:
    with pytest.raises(ConfigError) as e:
        read("zone: Mars\nprices:\n  - {model: m, input: -1, since: never}\n  - {modle: m, input: 1}\n")
    assert [p.key for p in e.value.problems] == [
        "zone",
        "prices[0].since",
        "prices[0].input",
        "prices[1].modle",
        "prices[1]",
    ]


def test_a_gap_is_a_warning_that_says_what_counts_then() -> None:
    file = read(
        "zone: Asia/Shanghai\nprices:\n"
        "  - {model: m, provider: p, since: 2026-01-01, until: 2026-02-01, input: 1}\n"
        "  - {model: m, provider: p, since: 2026-03-01, input: 2}\n"
    )
    assert [str(problem) for problem in file.warnings] == [
        "prices.yaml:4: prices[1].since: warning: m of p has no price in this file from 2026-02-01 to 2026-03-01; what "
        "is listed elsewhere counts then, if anything"
    ]
    prices = book(file)
    assert prices.lookup("m", "p", at("2026-02-15", "Asia/Shanghai")) is None
    assert prices.lookup("m", "p", at("2026-01-31T23:59", "Asia/Shanghai")) is not None


@pytest.mark.parametrize(
    ("entry", "warning"),
    [
        ("{model: m, input: 0.00002}", "prices are per million tokens, and this is very little (found 0.00002)"),
        ("{model: m, input: 1, cached: 2}", "dearer than input (found 2)"),
    ],
)
def test_what_is_probably_not_meant(entry: str, warning: str) -> None:
    (problem,) = read(f"prices: [{entry}]").warnings
    assert warning in str(problem)


def test_a_file_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.yaml: cannot be read: No such file or directory"):
        load_prices(tmp_path / "none.yaml", "USD")
    (tmp_path / "latin.yaml").write_bytes(b"prices: \xff")
    with pytest.raises(ConfigError, match="not UTF-8"):
        load_prices(tmp_path / "latin.yaml", "USD")


def test_an_empty_file_has_no_prices() -> None:
    assert read("").vendors() == ()


TIERS = """
prices:
  - {model: gpt-5, provider: openai, input: 1, output: 8}
  - {model: gpt-5, provider: openai, service_tier: Flex, input: 0.4, output: 3}
  - {model: gpt-4o, provider: openai, service_tier: flex, input: 0.9, output: 7}
"""


def test_a_tier_has_the_price_that_is_given_for_it_or_none() -> None:
    file = read(TIERS)
    assert file.warnings == []
    listed = Clause("starts_with", "gpt")
    ordinary, flex = Period((Scale({"input": Decimal(2)}),)), Period((Scale({"input": Decimal(1)}),))
    lists = (
        Vendor("openai", (Listed("gpt", listed, (ordinary,), service_tiers={"flex": (flex,), "priority": (flex,)}),)),
    )
    prices = PriceBook("USD", file.vendors(), lists)

    def cost(model: str, tier: str) -> int | None:
        found = prices.lookup(model, "openai", 1.9e9, tier)
        assert found is None or found.service_tier == tier
        return found.cost(Tokens(1_000_000)) if found is not None else None

    assert cost("gpt-5", "") == 10**9
    assert cost("gpt-5", "flex") == 4 * 10**8
    assert cost("gpt-5", "priority") is None, "negotiated, and not in this tier: what is listed is no guess at it"
    assert cost("gpt-4o", "") == 2 * 10**9
    assert cost("gpt-4o", "flex") == 9 * 10**8
    assert cost("gpt-4o", "priority") == 10**9
    assert cost("gpt-4o", "scale") is None


@pytest.mark.parametrize(
    ("tier", "said"),
    [("default", "the ordinary tier"), ("'1'", "not a service tier's name"), ("[flex]", "not a service tier")],
)
def test_a_tier_that_is_none(tier: str, said: str) -> None:
    with pytest.raises(ConfigError) as e:
        read(f"prices:\n  - {{model: m, service_tier: {tier}, input: 1}}")
    assert said in str(e.value)

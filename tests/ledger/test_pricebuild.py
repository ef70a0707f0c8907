"""All prices of a configuration, the lists of commercial models among them, and what is probably not meant."""

from __future__ import annotations

import json
import warnings
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from forebay.cli import prices as command
from forebay.config.load import loads
from forebay.config.models import Config
from forebay.config.problems import ConfigError
from forebay.ledger.pricebuild import build_book
from forebay.ledger.pricing import PriceBook
from forebay.ledger.tokens import Tokens
from forebay.ledger.vendors import vendors

NOW = datetime(2026, 11, 30, 3, tzinfo=UTC).timestamp()
ENGINES = """
engines:
  - {name: a, url: https://api.openai.com, models: [gpt-4o]}
  - {name: d, url: https://api.deepseek.com, models: [deepseek-chat]}
  - {name: v, url: http://127.0.0.1:8000, models: [llama-3.1-8b]}
models: {llama-3.1-8b: {aliases: [llama]}}
ledger: {prices: prices.yaml}
"""


@pytest.fixture(scope="module")
def lists() -> PriceBook:
    return PriceBook(vendors=vendors())


def config(folder: Path, prices: str, text: str = ENGINES) -> Config:
    (folder / "prices.yaml").write_text(prices)
    return loads(text, "forebay.yaml", {}, base=folder)


def test_every_list_says_what_its_source_says(lists: PriceBook) -> None:
    from genai_prices import Usage
    from genai_prices.data import providers

    again = PriceBook.from_json(lists.as_json())
    compared = 0
    times = [
        datetime(2024, 12, 24, 0, 30, tzinfo=UTC),
        datetime(2025, 6, 15, 17, tzinfo=UTC),
        datetime.fromtimestamp(NOW, UTC),
    ]
    for provider in providers:
        if provider.id not in ("anthropic", "openai", "google", "deepseek", "moonshotai", "zhipuai", "azure", "x-ai"):
            continue
        for number, model in enumerate(provider.models):
            at = times[number % 3]
            price = again.lookup(model.id, provider.id, at.timestamp())
            known = provider.find_model(model.id, all_providers=providers)
            if price is None or known is None or price.cost(Tokens(1, 1, 1, 0, 1)) is None:
                continue
            for tokens in (Tokens(1_000, 0, 0, 0, 77), Tokens(190_001, 20_000, 5_000, 0, 3), Tokens(1, 5, 0, 0, 0)):
                usage = Usage(
                    input_tokens=tokens.prompt,
                    cache_read_tokens=tokens.cached,
                    cache_write_tokens=tokens.cache_write,
                    output_tokens=tokens.output,
                )
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    said = known.calc_price(usage, provider, genai_request_timestamp=at).total_price
                cost = price.cost(tokens)
                assert cost is not None and abs(said * 10**9 - cost) <= Decimal("0.5"), (provider.id, model.id, tokens)
                compared += 1
    assert compared > 300


def test_commercial_prices_are_dated_tiered_and_off_peak(lists: PriceBook) -> None:
    def cost(model: str, provider: str, when: datetime, tokens: Tokens) -> int | None:
        price = lists.lookup(model, provider, when.timestamp())
        assert price is not None and price.source.startswith("genai-prices ")
        return price.cost(tokens)

    now = datetime.fromtimestamp(NOW, UTC)
    million = Tokens(1_000_000, output=1_000_000)
    assert cost("gpt-4", "openai", now, million) == 90_000_000_000
    assert cost("gpt-3.5-turbo", "openai", now, million) == 2_000_000_000
    assert cost("claude-3-sonnet", "anthropic", now, Tokens(3, 0, 12_304, output=550)) == 54_399_000
    day, night = (datetime(2025, 8, 1, hour, tzinfo=UTC) for hour in (12, 20))
    by_day, by_night = (cost("deepseek-chat", "deepseek", when, million) for when in (day, night))
    assert by_day is not None and by_night is not None and by_night < by_day
    short, long = (cost("gemini-2.5-pro", "google", now, Tokens(n)) for n in (200_000, 200_001))
    assert short is not None and long is not None and long > 1.9 * short


def test_what_a_list_does_not_price_by_tokens_is_unpriced(lists: PriceBook) -> None:
    assert lists.lookup("whisper-1", "openai", NOW) is None
    embedding = lists.lookup("text-embedding-3-small", "openai", NOW)
    assert embedding is not None and embedding.cost(Tokens(1_000)) == 20_000
    assert lists.lookup("no-such-model", "openai", NOW) is None


def test_the_file_goes_before_the_lists(tmp_path: Path) -> None:
    found, problems = build_book(
        config(tmp_path, "prices: [{model: gpt-4o, provider: openai, input: 7, output: 8}]"), NOW
    )
    assert problems == []
    mine, listed = found.lookup("gpt-4o", "openai", NOW), found.lookup("gpt-4", "openai", NOW)
    assert mine is not None and listed is not None
    assert mine.cost(Tokens(1_000)) == 7_000_000
    assert mine.source == str(tmp_path / "prices.yaml")


@pytest.mark.parametrize(
    ("prices", "warning"),
    [
        ("[{model: gpt-4oo, provider: openai, input: 1}]", "did you mean gpt-4o? (found 'gpt-4oo')"),
        ("[{model: lama-3.1-8b, input: 1}]", "did you mean llama-3.1-8b? (found 'lama-3.1-8b')"),
        ("[{model: llama, input: 1}]", "an alias: prices are by the engine's own name, llama-3.1-8b (found 'llama')"),
        ("[{model: my-model, input: 1}]", "no engine lists this model, nor does a known price list (found 'my-model')"),
        ("[{model: zzz-*, input: 1}]", "no engine lists this model, nor does a known price list (found 'zzz-*')"),
        ("[{model: gpt-4o, provider: opneai, input: 1}]", "none that is known; did you mean openai? (found 'opneai')"),
        ("[{model: gpt-4o, provider: openai, currency: CNY, input: 1}]", "no exchange rate into USD is given"),
    ],
)
def test_what_is_probably_not_meant(tmp_path: Path, prices: str, warning: str) -> None:
    _, problems = build_book(config(tmp_path, f"prices:\n  - {prices[1:-1]}"), NOW)
    problem = problems[0]
    assert warning in str(problem)
    assert [other.key for other in problems[1:]] in ([], ["engines[0].models[0]"])
    assert (problem.file, problem.line) == (str(tmp_path / "prices.yaml"), 2)


def test_names_that_are_meant_are_not_doubted(tmp_path: Path) -> None:
    entries = (
        "prices: [{model: gpt-4, input: 1}, {models: [llama-*, LLAMA-3.1-8B], input: 1}, {model: deepseek-*, input: 1}]"
    )
    assert build_book(config(tmp_path, entries), NOW)[1] == []


def test_engines_that_will_be_unpriced_are_named(tmp_path: Path) -> None:
    text = """
engines:
  - {name: a, url: https://api.openai.com, models: [gpt-4o, gpt-99]}
  - {name: b, url: https://example.com, provider: opneai, models: [x]}
  - {name: c, url: http://127.0.0.1:8000, price: {gpu_hour: 2, currency: CNY}}
ledger: {currency: EUR}
"""
    _, problems = build_book(config(tmp_path, "", text), NOW)
    assert str(problems[0]) == (
        "configuration: ledger.currency: warning: known prices are in USD, and no exchange rate into EUR is given: "
        "they are not used"
    )
    assert [problem.key for problem in problems[1:]] == [
        "engines[0].models[0]",
        "engines[0].models[1]",
        "engines[1].provider",
        "engines[2].price.currency",
    ]


def test_a_file_that_cannot_be_used_stops_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not a price"):
        build_book(config(tmp_path, "prices: [{model: m, input: -1}]"), NOW)


# --- forebay prices ---------------------------------------------------------------------------------------------------


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as e:
        command.app(list(arguments), standalone_mode=True)
    out, err = capsys.readouterr()
    return int(e.value.code or 0), out, err


def written(folder: Path, prices: str) -> str:
    (folder / "prices.yaml").write_text(prices)
    (folder / "forebay.yaml").write_text(ENGINES)
    return str(folder / "forebay.yaml")


def test_the_engines_models_are_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = written(tmp_path, "prices: [{model: gpt-4o, provider: openai, input: 2.25, cached: 1, output: 9}]")
    code, out, err = run(capsys, "list", "-c", file)
    assert (code, err) == (0, "")
    lines = [line.split() for line in out.splitlines()]
    assert lines[1][:6] == ["a", "gpt-4o", "2.25", "1", "9", "USD"]
    assert lines[3] == ["v", "llama-3.1-8b", "unpriced"]
    code, out, _ = run(capsys, "list", "-c", file, "--json")
    assert [row["price"] is None for row in json.loads(out)] == [False, False, True]


def test_a_price_is_shown_with_all_that_decides(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    entry = (
        "zone: Asia/Shanghai\nexchange: [{from: CNY, to: USD, rate: 0.14, since: 2026-01-01}]\nprices:\n"
        "  - {model: deepseek-chat, provider: deepseek, currency: CNY, since: 2026-01-01, input: 2, output: 3,\n"
        '     tiers: [{above: 1000, input: 4}], off_peak: [{hours: "00:30-08:30", discount: 0.5}]}\n'
    )
    file = written(tmp_path, entry)
    code, out, err = run(capsys, "show", "deepseek-chat", "-c", file, "--at", "2026-03-01T23:00")
    assert (code, err) == (0, "")
    assert out.splitlines()[1:] == [
        f"  from {tmp_path / 'prices.yaml'}",
        "  in force 2025-12-31T16:00 to further notice (UTC)",
        "  off-peak, 00:30-08:30 Asia/Shanghai",
        "  1 CNY is 0.14 USD since 2025-12-31T16:00",
        "  input                       1 CNY per million",
        "  output                    1.5 CNY per million",
        "  above 1,000 prompt tokens, for all of them:",
        "    input                       2 CNY per million",
    ]
    assert run(capsys, "show", "llama-3.1-8b", "-c", file)[:2] == (1, "llama-3.1-8b of v: unpriced\n")


def test_what_a_usage_costs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = written(tmp_path, "prices: [{model: gpt-4o, provider: openai, input: 1.25, cached: 0.625, output: 10}]")
    usage: dict[str, Any] = {
        "prompt_tokens": 262_960,
        "completion_tokens": 1_744,
        "prompt_tokens_details": {"cached_tokens": 257_955},
    }
    code, out, _ = run(capsys, "cost", "gpt-4o", json.dumps({"usage": usage}), "-c", file)
    assert (code, out.splitlines()) == (
        0,
        [
            "input 5,005, cached 257,955, output 1,744",
            "a: 0.184918125 USD",
            "  input: 5,005 × 1.25 USD / 1,000,000",
            "  cached: 257,955 × 0.625 USD / 1,000,000",
            "  output: 1,744 × 10 USD / 1,000,000",
        ],
    )
    code, out, err = run(capsys, "cost", "nobodys", json.dumps(usage), "-c", file)
    assert code == 1 and err == "nobodys: unpriced; no price of it is known\n"
    code, _, err = run(capsys, "cost", "gpt-4o", "[1]", "-c", file)
    assert code == 2 and "the usage must be a JSON object" in err


def test_a_price_file_is_checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = written(tmp_path, "")
    file = tmp_path / "other.yaml"
    file.write_text("prices: [{model: gpt-4oo, provider: openai, input: 1}]")
    assert run(capsys, "check", str(file))[:2] == (0, f"{file}: can be used\n")
    code, out, _ = run(capsys, "check", str(file), "-c", config)
    assert code == 0 and "did you mean gpt-4o?" in out and out.endswith(f"{file}: can be used, with 1 warning\n")
    file.write_text("prices: [{model: m, input: x}]")
    code, out, _ = run(capsys, "check", str(file), "--json")
    assert code == 78 and json.loads(out)["problems"][0]["key"] == "prices[0].input"

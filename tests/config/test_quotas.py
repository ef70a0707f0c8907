"""`quotas` in the file: what is refused, in words that name the field and the fix; and the rules that come out."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from forebay.config.load import loads
from forebay.config.models import Config
from forebay.config.problems import ConfigError
from forebay.config.quotas import Each, Quota
from forebay.ledger.rules import Measure, Rule


@pytest.mark.parametrize(
    ("quota", "message"),
    [
        ({}, "a quota needs at least one of requests_per_minute, tokens_per_minute, concurrent, tokens_per_day"),
        ({"concurrent": 1, "key": "k", "each": "user"}, "each is above key, which is all that it counts"),
        ({"concurrent": 1, "organisation": "a", "each": "all"}, "each is above organisation"),
        ({"concurrent": 1, "over": "degrade"}, "over: degrade needs degrade_class or degrade_model"),
        ({"concurrent": 1, "degrade_class": "low"}, "degrade_class and degrade_model need over: degrade"),
        (
            {"concurrent": 1, "over": "degrade", "degrade_model": "m", "models": ["m"]},
            "degrade_model is one of the models that the quota is for",
        ),
        ({"tokens_per_day": 1, "window": "sliding", "zone": "UTC"}, "a sliding window has no time zone"),
        ({"tokens_per_day": 1, "answer_tokens": 8}, "least_answer_tokens must not be more than answer_tokens"),
        ({"tokens_per_day": 1, "zone": "Mars/Olympus"}, "a time zone is named as in UTC"),
        ({"tokens_per_day": 0}, "greater than or equal to 1"),
        ({"money_per_day": -1}, "greater than 0"),
        ({"money_per_day": float("nan")}, "finite"),
        ({"end_user": "", "concurrent": 1}, "at least 1 character"),
        ({"each": "team", "concurrent": 1}, "Input should be 'all', 'organisation'"),
    ],
)
def test_what_is_refused(quota: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError) as raised:
        Quota.model_validate({"name": "q", **quota})
    [error] = raised.value.errors()
    assert message in error["msg"]


def test_the_file_names_the_line() -> None:
    text = """\
ledger: {enabled: false}
engines: [{name: a, url: "http://h"}]
quotas:
  - {name: a, concurrent: 1}
  - {name: a, key: 17, tokens_per_day: many}
"""
    with pytest.raises(ConfigError) as raised:
        loads(text, "f.yaml", {})
    assert [(p.line, p.key, p.message, p.found) for p in raised.value.problems] == [
        (1, "ledger.enabled", "the quotas on line 3 need the ledger", ""),
        (5, "quotas[1].key", "not text; put it in quotes if it is meant as text", "17"),
        (5, "quotas[1].tokens_per_day", "not a whole number", "'many'"),
        (5, "quotas[1].name", "another quota has this name: quotas[0].name on line 4", "'a'"),
    ]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"quotas": [{"name": "a", "concurrent": 1}] * 2}, "two quotas have the same name"),
        (
            {"quotas": [{"name": "a", "concurrent": 1}], "ledger": {"enabled": False}},
            "quotas need ledger.enabled: true",
        ),
    ],
)
def test_the_models_refuse_it_by_themselves(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Config.model_validate(config)


@pytest.mark.parametrize(
    ("quota", "each"),
    [
        ({}, Each.ALL),
        ({"organisation": "a"}, Each.ORGANISATION),
        ({"department": "b", "organisation": "a"}, Each.DEPARTMENT),
        ({"project": "b", "each": "end_user"}, Each.END_USER),
        ({"end_user": "b", "key": "k"}, Each.END_USER),
    ],
)
def test_whose_use_is_counted_together(quota: dict[str, Any], each: Each) -> None:
    assert Rule.of(Quota.model_validate({"name": "q", "concurrent": 1, **quota}), "UTC").each is each


def test_the_example_of_the_page_can_be_used() -> None:
    page = (Path(__file__).parents[2] / "docs/quotas.md").read_text()
    [text] = re.findall(r"^```yaml\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    assert [q.counted for q in loads(text, "quotas.md", {}).quotas] == [
        Each.KEY,
        Each.DEPARTMENT,
        Each.END_USER,
        Each.DEPARTMENT,
    ]


def test_amounts_of_money_become_nano_units_exactly() -> None:
    rule = Rule.of(Quota(name="q", money_per_day=0.1, money_per_month=1_234.567_890_123), "Asia/Shanghai")
    assert (rule.money_per_day, rule.money_per_month, rule.zone) == (100_000_000, 1_234_567_890_123, "Asia/Shanghai")


def test_a_rule_has_every_field_of_its_quota() -> None:
    """A field added to one and forgotten in the other would be a limit that is not kept."""
    full: dict[str, Any] = {
        "name": "q", "organisation": "a", "department": "b", "project": "c", "user": "d", "key": "e", "end_user": "f",
        "models": ["m"], "each": "end_user", "zone": "Europe/Berlin", "over": "degrade", "degrade_class": "low",
        "degrade_model": "n", "hold": "predicted", "answer_tokens": 99, "least_answer_tokens": 9, "unpriced": "pass",
        "window": "calendar", **{measure.value: 7 for measure in Measure},
    }  # fmt: skip
    assert set(full) == set(Quota.model_fields)
    rule = Rule.of(Quota.model_validate(full), "UTC")
    bare = Rule.of(Quota(name="q", concurrent=1), "UTC")
    assert {f for f in Rule.__struct_fields__ if getattr(rule, f) == getattr(bare, f)} == {"name", "window"}


@pytest.mark.parametrize(
    ("written", "amount"),
    [("2M", 2_000_000), ("500k", 500_000), ("1.5M", 1_500_000),
     ("2 G", 2 * 10**9), ("2b", 2 * 10**9), ("1_000k", 10**6),
     ("'500K'", 500_000), ("7", 7), ("'7'", 7)],
)  # fmt: skip
def test_amounts_may_have_a_letter(written: str, amount: int) -> None:
    found = loads(f"quotas: [{{name: a, tokens_per_day: {written}, money_per_day: 1.5k}}]", "f.yaml", {}).quotas[0]
    assert (found.tokens_per_day, found.money_per_day) == (amount, 1_500.0)


@pytest.mark.parametrize("written", ["2Mi", "1.0005k", "M", "-2k", "2e6M", "0k", "2T"])
def test_amounts_with_another_letter_are_refused(written: str) -> None:
    with pytest.raises(ConfigError, match="tokens_per_day"):
        loads(f"quotas: [{{name: a, tokens_per_day: {written}}}]", "f.yaml", {})

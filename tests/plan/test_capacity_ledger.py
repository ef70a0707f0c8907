"""`forebay plan --from-ledger`: the recorded traffic, and what-if."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from forebay.cli.main import run
from forebay.ledger.database import Database
from forebay.ledger.entries import How
from forebay.ledger.tokens import Tokens
from forebay.plan.capacity_ledger import Recorded, recorded
from forebay.plan.capacity_question import PlanError
from usage_entries import Usage

HOUR = 3_600
NOW = 1_760_000_400.0 // HOUR * HOUR
"""A full hour."""
TOKENS = Tokens(input=600, cached=200, output=100, reasoning=50)


def filled(root: Path) -> Database:
    """Three hours: 60 requests, 120, and 60 with as many answers from a cache; every fourth of another model."""
    usage = Usage.below(root)
    for hour, count in enumerate((60, 120, 60)):
        for i in range(count):
            when = NOW - (3 - hour) * HOUR + i * HOUR / count + 1
            usage.request(when, 5, tokens=TOKENS, model="big" if i % 4 else "small")
    for i in range(60):
        usage.request(NOW - HOUR + i * 60 + 1, 0, tokens=TOKENS, model="big", how=How.CACHE, outcome="hit")
    usage.book()
    return Database("", root)


def read(database: Database, **more: Any) -> Recorded:
    given = {"since": NOW - 3 * HOUR, "until": NOW, "zone": "UTC", "where": {}, "tiers": {}} | more
    with database.read() as connection:
        return recorded(connection, **given)


def test_rates_lengths_and_cache_hits_are_those_recorded(tmp_path: Path) -> None:
    database = filled(tmp_path)
    found = read(database)
    first = int(NOW // HOUR - 3) % 24
    assert found.traffic.hours[first] == pytest.approx(60 / HOUR)
    assert found.traffic.hours[(first + 1) % 24] == pytest.approx(120 / HOUR)
    assert found.traffic.hours[(first + 2) % 24] == pytest.approx(60 / HOUR)  # what a cache answered, no engine did
    assert found.traffic.peak == pytest.approx(120 / HOUR, rel=0.11)
    assert (found.lengths.prompt, found.lengths.output) == (800, 150)
    assert found.cache_hit == pytest.approx(0.25)
    grown = read(database, growth=3.0, where={"model": ("small",)})
    assert grown.traffic.hours[(first + 1) % 24] == pytest.approx(3 * 30 / HOUR)
    database.close()


def test_a_burst_is_planned_for_over_five_minutes(tmp_path: Path) -> None:
    usage = Usage.below(tmp_path)
    for _ in range(90):
        usage.request(NOW - 1_800, 5, tokens=TOKENS, model="m")
    usage.book()
    database = Database("", tmp_path)
    assert read(database).traffic.peak == pytest.approx(90 / 300)
    database.close()


def test_what_the_ledger_does_not_have_is_said(tmp_path: Path) -> None:
    database = filled(tmp_path)
    with pytest.raises(PlanError, match="no request of an engine"):
        read(database, where={"model": ("none",)})
    with pytest.raises(PlanError, match=r"--where: a plan can be for .*model.*, not label:x"):
        read(database, where={"label:x": ("y",)})
    with pytest.raises(PlanError, match="--tier: the ledger has no tier large in that time; it has none"):
        read(database, tiers={"large": 2.0})
    with pytest.raises(PlanError, match="at most 100 days"):
        read(database, since=NOW - 101 * 24 * HOUR)
    database.close()


def test_the_command_plans_what_was_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    filled(tmp_path).close()
    monkeypatch.setattr(time, "time", lambda: NOW)
    asked = ["plan", "--model", "llama-3.1-8b", "--gpu", "L4", "--from-ledger", "--state-dir", str(tmp_path)]
    asked += ["--since", "3h", "--no-simulate"]
    assert run([*asked, "--json", "-"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["question"]["cache_hit"] == pytest.approx(0.25)
    assert found["question"]["prompt"]["mean"] == 800
    assert max(hour["requests_per_s"] for hour in found["fleet"]["hours"]) == pytest.approx(120 / HOUR, rel=0.01)
    assert any("the ledger's 240 attempts" in note for note in found["notes"])
    assert run([*asked, "--qps", "3"]) == 2
    assert "--qps and --from-ledger say the same twice" in capsys.readouterr().err
    assert run([*asked[:-4], str(tmp_path / "nothing")]) == 2
    assert "there is no database" in capsys.readouterr().err
    assert run([*asked, "--where", "colour=red"]) == 2
    assert "--where" in capsys.readouterr().err

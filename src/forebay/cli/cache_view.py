"""What `forebay cache` shows people, as tables."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from forebay.errors import shown

_KINDS: Final = ("exact", "semantic", "stale", "flight", "miss", "bypass")
_HITS: Final = ("exact", "semantic", "stale", "flight")
_QUESTION: Final = 60
"""Characters of a question, and of an answer, in a list."""
_WHYS: Final = 3
"""Reasons named in one cell."""

Rows = list[dict[str, Any]]


def show_stats(found: Mapping[str, Any]) -> None:
    out = _console()
    if not found["enabled"]:
        out.print("cache.enabled is false: no answer is given again.")
    workers: Mapping[str, Rows] = found["workers"]
    _models(out, workers, found["currency"])
    for name, title in (("bypasses", "Not looked for"), ("answers", "Engines' answers")):
        if counts := _by(workers.get(name, []), "why" if name == "bypasses" else "result"):
            out.print(f"{title}: {_named(counts, len(counts))}.")
    if "bytes" in workers:
        held, entries = _sum(workers["bytes"]), _sum(workers.get("entries", []))
        evicted = _sum(workers.get("evicted", []))
        out.print(f"In workers' memory: {entries:,.0f} answers, {_size(held)}; {evicted:,.0f} left for want of room.")
    if lookups := _by(workers.get("lookups", []), "result"):
        out.print(f"Look-ups at the helper process: {_named(lookups, len(lookups))}.")
    helper = found["helper"]
    if helper is None:
        out.print(f"Helper process: {found['why']}")
        return
    _costs(out, workers, helper["total"])
    _partitions(out, helper)
    _store(out, helper)


def _costs(out: Console, workers: Mapping[str, Rows], total: Mapping[str, Any]) -> None:
    """What is to be set against the savings."""
    calls = _by(workers.get("background", []), "why")
    asked = f"{_named(calls, len(calls))} engine calls that no client waited for" if calls else "no engine calls"
    looking, keeping = _span(total["seconds"]), _span(total["keeping"])
    out.print(
        f"What it cost: {looking} of looking up and {keeping} of keeping and comparing in the helper process; {asked}."
    )


def _models(out: Console, workers: Mapping[str, Rows], currency: str) -> None:
    by_model: dict[str, dict[str, float]] = {}
    for row in workers.get("requests", []):
        by_model.setdefault(row["model"], {})[row["result"]] = row["value"]
    if not by_model:
        out.print("No request was looked up since the gateway started.")
        return
    tokens = _by(workers.get("saved_tokens", []), "model")
    money = _by(workers.get("saved_nano", []), "model")
    seconds = _by(workers.get("saved_milliseconds", []), "model")
    table = _table("model", "requests", *_KINDS, "hits", "tokens saved", f"saved, {currency}", "engine time saved")
    total: dict[str, float] = {}
    for model, kinds in sorted(by_model.items(), key=lambda item: -sum(item[1].values())):
        table.add_row(*_model(model, kinds, tokens.get(model, 0), money.get(model, 0), seconds.get(model, 0)))
        for kind, value in kinds.items():
            total[kind] = total.get(kind, 0) + value
    if len(by_model) > 1:
        sums = (sum(each.values()) for each in (tokens, money, seconds))
        table.add_row(*_model("all", total, *sums), style="bold")
    out.print(table)


def _model(name: str, kinds: Mapping[str, float], tokens: float, nano: float, milliseconds: float) -> list[str]:
    asked = sum(kinds.values())
    looked = asked - kinds.get("bypass", 0)
    hits = sum(kinds.get(kind, 0) for kind in _HITS)
    return [
        name,
        f"{asked:,.0f}",
        *(f"{kinds.get(kind, 0):,.0f}" for kind in _KINDS),
        f"{hits / looked:.1%}" if looked else "-",
        f"{tokens:,.0f}",
        f"{nano / 1e9:,.4f}",
        _span(milliseconds / 1000),
    ]


def _partitions(out: Console, helper: Mapping[str, Any]) -> None:
    """The helper's own view: whose answers, how often a similar question was answered, and how often wrongly."""
    partitions: Mapping[str, Mapping[str, Any]] = helper["partitions"]
    if not partitions:
        return
    table = _table(
        "partition",
        "looked up",
        "exact",
        "semantic",
        "near misses",
        "feedback",
        "language",
        "bar",
        "labels",
        "wrong hits",
    )
    for name, count in partitions.items():
        misses = {why: n for why, n in count["misses"].items() if why}
        learned = count.get("learned") or [None]
        for i, standing in enumerate(learned):
            own = (
                (
                    name,
                    f"{count['looked']:,}",
                    f"{count['exact'] + count['stale']:,}",
                    f"{count['semantic']:,}",
                    _named(misses, _WHYS) if misses else "-",
                    f"+{count['good']:,} -{count['bad']:,}",
                )
                if i == 0
                else ("",) * 6
            )
            table.add_row(*own, *_standing(standing))
    out.print(table)


def _standing(standing: Mapping[str, Any] | None) -> tuple[str, str, str, str]:
    """What was learned of one language: where the bar is, by how many labels, and the share of wrong hits with its
    interval."""
    if standing is None:
        return "-", "-", "-", "-"
    bar = standing["state"]
    if standing["state"] in ("certified", "shipped", "fixed"):
        bar += f" ≥ {standing['threshold']:.3f}"
    wrong = (
        f"{standing['estimate']:.2%} ({standing['low']:.2%} - {standing['high']:.2%})"
        if standing["labels"]
        else "not known"
    )
    return standing["language"], bar, f"{standing['labels']:,}", wrong


def _store(out: Console, helper: Mapping[str, Any]) -> None:
    store = helper["store"]
    stored = " of ".join(_size(store[name]) for name in ("bytes", "most_bytes") if store.get(name) is not None)
    entries = f"{store['entries']:,} answers, " if store.get("entries") is not None else ""
    out.print(f"Store: {store['name']} ({store['state']}), {entries}{stored or 'size not known'}.")
    semantic = helper["semantic"]
    if "embedder" not in semantic:
        out.print(f"Questions that mean the same: {semantic['state']}.")
        return
    questions = f"{semantic['questions']:,}" if semantic.get("questions") is not None else "an unknown number"
    taken = f", {_size(semantic['bytes'])}" if semantic.get("bytes") is not None else ""
    out.print(
        f"Questions that mean the same: {semantic['state']}; {questions} of {semantic['most_questions']:,}{taken} in "
        f"{semantic['index']}, by {semantic['embedder']}; mode {semantic['mode']}, "
        f"at most {semantic['delta']:.2%} wrong."
    )
    for standing in semantic.get("learned") or ():
        language, bar, labels, wrong = _standing(standing)
        out.print(f"  {language}: {bar}, {labels} labels, wrong hits {wrong}")


def show_entries(entries: Rows) -> None:
    alike = any("similarity" in entry for entry in entries)
    table = _table("entry", *(["cosine"] if alike else []), "age", "fresh for", "partition", "question", "answer")
    for entry in entries:
        cosine = [f"{entry['similarity']:.3f}" if "similarity" in entry else "-"] if alike else []
        left = _span(entry["fresh_for"]) if entry["fresh_for"] > 0 else "over"
        texts = (shown(entry[name], _QUESTION) if entry.get(name) else "-" for name in ("question", "answer"))
        table.add_row(entry["entry"], *cosine, _span(entry["age"]), left, entry["partition"], *texts)
    _console().print(table)


def show_entry(entry: Mapping[str, Any]) -> None:
    out = _console()
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    left = _span(entry["fresh_for"]) if entry["fresh_for"] > 0 else "over"
    for name, value in (
        ("entry", entry["entry"]),
        ("partition", entry["partition"]),
        ("model", entry["model"]),
        ("version", entry["version"] or "-"),
        ("made", f"{_span(entry['age'])} ago, fresh for {left}"),
        ("language", entry.get("language") or "-"),
        ("compared", "by meaning, too" if entry["compared"] else "only with equal requests"),
        ("tags", ", ".join(entry["tags"]) or "-"),
        ("sources", ", ".join(entry["sources"]) or "-"),
        ("ended with", entry.get("finish_reason") or "-"),
        ("size", _size(entry["bytes"])),
        ("question", _plain(entry["question"]) or "-"),
        ("answer", _plain(entry.get("answer") or "-") + (" …" if entry.get("cut") else "")),
    ):
        table.add_row(name, value)
    out.print(table)


def _plain(text: str) -> str:
    """What a model or a user wrote must not steer the terminal."""
    return "".join(ch if ch.isprintable() or ch in "\n\t" else "\N{REPLACEMENT CHARACTER}" for ch in text)


def _by(rows: Iterable[Mapping[str, Any]], label: str) -> dict[str, float]:
    found: dict[str, float] = {}
    for row in rows:
        found[row[label]] = found.get(row[label], 0) + row["value"]
    return found


def _sum(rows: Iterable[Mapping[str, Any]]) -> float:
    return sum(float(row["value"]) for row in rows)


def _named(counts: Mapping[str, float], most: int) -> str:
    """The largest first."""
    ordered = sorted(counts.items(), key=lambda item: -item[1])
    rest = sum(value for _, value in ordered[most:])
    return ", ".join(
        [f"{name} {value:,.0f}" for name, value in ordered[:most]] + ([f"other {rest:,.0f}"] if rest else [])
    )


def _size(count: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            return f"{count:,.0f} {unit}" if unit == "B" else f"{count:,.1f} {unit}"
        count /= 1024
    raise AssertionError


def _span(seconds: float) -> str:
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:,.1f} {unit}"
    return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        words = column in ("model", "partition", "question", "answer", "near misses", "bar", "language", "entry")
        table.add_column(column, overflow="fold", justify="left" if words else "right", no_wrap=column == "entry")
    return table


def _console() -> Console:
    # Into a pipe, lines are not folded: other programs read them.
    return Console(width=None if sys.stdout.isatty() else 1_000, highlight=False, markup=False)

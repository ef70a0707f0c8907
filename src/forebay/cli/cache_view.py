"""What `forebay cache` shows people, as tables."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import Any, Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from forebay.errors import shown

_KINDS: Final = ("exact", "semantic", "stale", "flight", "miss", "bypass")
_HITS: Final = ("exact", "semantic", "stale", "flight")
_QUESTION: Final = 60
"""Characters of a question, and of an answer, in a list."""
_WIDE: Final = 110
"""Columns of a terminal that has room for answers beside questions."""
_WHYS: Final = 3
"""Reasons named in one cell."""
_FOLDED: Final = ("model", "partition", "question", "answer", "near misses")
_WORDS: Final = (*_FOLDED, "served", "lang.", "entry")

Rows = list[dict[str, Any]]


def show_stats(found: Mapping[str, Any], partition: str = "") -> None:
    """`partition`: what was asked for; of partitions the helper process alone knows."""
    out = _console()
    if not found["enabled"]:
        out.print("cache.enabled is false: no answer is given again.")
    if not partition:
        _of_workers(out, found["workers"], found["currency"])
    process = found["helper_process"]
    if not partition and (process["ended"] or process["hung"]):
        out.print(
            f"The helper process was started again since it ended by itself ({process['ended']} times) or hung and was"
            f" killed ({process['hung']}); the last time: {shown(process['why'])}."
        )
    helper = found["helper"]
    if helper is None:
        out.print(f"Helper process: {found['why']}")
        return
    if partition and not helper["partitions"]:
        out.print(f"No partition {shown(partition)} has looked anything up.")
        return
    if partition:
        looking, keeping = (_span(helper["total"][name]) for name in ("seconds", "keeping"))
        out.print(f"Of {shown(partition)}: {looking} of looking up, {keeping} of keeping and comparing.")
    else:
        _costs(out, found, helper["total"])
    if helper["partitions"]:
        out.print()
        _partitions(out, helper["partitions"])
        out.print()
    if helper["semantic"].get("learned") or any(count.get("learned") for count in helper["partitions"].values()):
        _learned(out, helper)
        out.print()
    _store(out, helper)


def _of_workers(out: Console, workers: Mapping[str, Rows], currency: str) -> None:
    _models(out, workers, currency)
    for name, title in (("bypasses", "Not looked for"), ("answers", "Engines' answers")):
        if counts := _by(workers.get(name, []), "why" if name == "bypasses" else "result"):
            out.print(f"{title}: {_named(counts, len(counts))}.")
    if "bytes" in workers:
        held, entries = _sum(workers["bytes"]), _sum(workers.get("entries", []))
        evicted = _sum(workers.get("evicted", []))
        out.print(f"In workers' memory: {entries:,.0f} answers, {_size(held)}; {evicted:,.0f} left for want of room.")
    if lookups := _by(workers.get("lookups", []), "result"):
        out.print(f"Look-ups at the helper process: {_named(lookups, len(lookups))}.")


def _costs(out: Console, found: Mapping[str, Any], total: Mapping[str, Any]) -> None:
    """What is to be set against the savings, and what is left of them."""
    calls = _by(found["workers"].get("background", []), "why")
    asked = f"engine calls that no client waited for: {_named(calls, len(calls)) if calls else 'none'}"
    if judged := total.get("asked", 0):
        asked += f"; a model was asked to judge {judged:,} times, on its own key's account"
    looking, keeping = _span(total["seconds"]), _span(total["keeping"])
    out.print(
        f"What it cost: {looking} of looking up and {keeping} of keeping and comparing in the helper process; {asked}."
    )
    money, currency = found["money"], found["currency"]
    saved, spent, left = (money[name] / 1e9 for name in ("saved_nano", "background_nano", "net_nano"))
    unpriced = f" ({money['unpriced']:,} of them without a price)" if money["unpriced"] else ""
    time = _sum(found["workers"].get("saved_milliseconds", [])) / 1000 - total["seconds"] - total["keeping"]
    out.print(
        f"Net: {saved:,.4f} {currency} saved - {spent:,.4f} of those calls{unpriced} = {left:,.4f} {currency}; "
        f"{'-' if time < 0 else ''}{_span(abs(time))} of engine time less the helper process's."
    )


def _models(out: Console, workers: Mapping[str, Rows], currency: str) -> None:
    by_model: dict[str, dict[str, float]] = {}
    for row in workers.get("requests", []):
        by_model.setdefault(row["model"], {})[row["result"]] = row["value"]
    if not by_model:
        out.print("No request was looked up since the gateway started.")
        return
    total: dict[str, float] = {}
    asked = sorted(by_model.items(), key=lambda item: -sum(item[1].values()))
    for _, kinds in asked:
        for kind, value in kinds.items():
            total[kind] = total.get(kind, 0) + value
    counts = _table("model", "requests", *_KINDS, "hits")
    saved = _table("model", "tokens saved", f"saved, {currency}", "engine time saved")
    sums = [_by(workers.get(name, []), "model") for name in ("saved_tokens", "saved_nano", "saved_milliseconds")]
    for model, kinds in asked:
        counts.add_row(*_counts(model, kinds))
        saved.add_row(*_saved(model, *(each.get(model, 0) for each in sums)))
    if len(asked) > 1:
        counts.add_row(*_counts("all", total), style="bold")
        saved.add_row(*_saved("all", *(sum(each.values()) for each in sums)), style="bold")
    _put(out, counts)
    out.print()
    _put(out, saved)
    out.print()


def _counts(name: str, kinds: Mapping[str, float]) -> list[str]:
    asked = sum(kinds.values())
    looked = asked - kinds.get("bypass", 0)
    hits = sum(kinds.get(kind, 0) for kind in _HITS)
    each = (f"{kinds.get(kind, 0):,.0f}" for kind in _KINDS)
    return [name, f"{asked:,.0f}", *each, f"{hits / looked:.1%}" if looked else "-"]


def _saved(name: str, tokens: float, nano: float, milliseconds: float) -> list[str]:
    return [name, f"{tokens:,.0f}", f"{nano / 1e9:,.4f}", _span(milliseconds / 1000)]


def _partitions(out: Console, partitions: Mapping[str, Mapping[str, Any]]) -> None:
    """The helper's own view: whose answers, and how often a similar question was answered."""
    table = _table("partition", "looked up", "exact", "semantic", "good", "bad", "near misses")
    for name, count in partitions.items():
        misses = {why: n for why, n in count["misses"].items() if why}
        numbers = (count["looked"], count["exact"] + count["stale"], count["semantic"], count["good"], count["bad"])
        table.add_row(name, *(f"{n:,}" for n in numbers), _named(misses, _WHYS) if misses else "-")
    out.print("Asked of the helper process, where a worker's memory had nothing; and feedback:")
    _put(out, table)


def _learned(out: Console, helper: Mapping[str, Any]) -> None:
    """What is served of questions that mean the same, and how much of that is wrong."""
    table = _table("partition", "lang.", "served", "labels", "wrong hits", "95 % within")
    for name, count in helper["partitions"].items():
        for i, standing in enumerate(count.get("learned") or ()):
            table.add_row(name if i == 0 else "", *_standing(standing))
    for i, standing in enumerate(helper["semantic"].get("learned") or ()):
        table.add_row("all" if i == 0 else "", *_standing(standing))
    out.print("What is served of questions that mean the same, and how many of these hits are wrong:")
    _put(out, table)


def _standing(standing: Mapping[str, Any]) -> tuple[str, ...]:
    """What was learned of one language: where the bar is, by how many labels, and the share of wrong hits with its
    interval."""
    bar = standing["state"]
    if bar in ("certified", "shipped", "fixed"):
        bar += f" ≥ {standing['threshold']:.3f}"
    wrong = "not known", "-"
    if standing["labels"]:
        wrong = f"{standing['estimate']:.2%}", f"{standing['low']:.2%} - {standing['high']:.2%}"
    return standing["language"], bar, f"{standing['labels']:,}", *wrong


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


def show_entries(entries: Rows) -> None:
    out = _console()
    alike = ["cosine"] if any("similarity" in entry for entry in entries) else []
    texts = ["question", "answer"] if out.width >= _WIDE else ["question"]
    table = _table("entry", *alike, "age", "fresh for", "partition", *texts)
    for entry in entries:
        cosine = [f"{entry['similarity']:.3f}" if "similarity" in entry else "-" for _ in alike]
        left = _span(entry["fresh_for"]) if entry["fresh_for"] > 0 else "over"
        told = (_line(entry.get(name) or "-") for name in texts)
        table.add_row(entry["entry"], *cosine, _span(entry["age"]), left, entry["partition"], *told)
    _put(out, table)


def _line(text: str) -> Text:
    return Text(shown(text, _QUESTION), no_wrap=True, overflow="ellipsis")


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
    _put(out, table)


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
        words = column in _WORDS
        table.add_column(column, overflow="fold", justify="left" if words else "right", no_wrap=column not in _FOLDED)
    return table


def _put(out: Console, table: Table) -> None:
    """Without the blanks that fill a column up to its longest text, where no terminal cuts that."""
    if out.is_terminal:
        out.print(table)
        return
    with out.capture() as made:
        out.print(table)
    for line in made.get().splitlines():
        print(line.rstrip())


def _console() -> Console:
    # Into a pipe, lines are not folded: other programs read them.
    return Console(width=None if sys.stdout.isatty() else 1_000, highlight=False, markup=False)

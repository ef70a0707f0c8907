"""What stores and shared indexes take: a file, Redis, PostgreSQL; RediSearch, pgvector. Real servers, on this machine.

Answers of 1.5 kB. Settings: RECORDS (20,000), VECTORS (5,000), one after the other, by one client.
"""

from __future__ import annotations

import contextlib
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.common import BenchError, env_int
from forebay.cache.messages import Purge
from forebay.cache.semantic.index import Index, Space, Vectors
from forebay.cache.semantic.pgvector_index import PgvectorIndex
from forebay.cache.semantic.redis_index import RedisIndex
from forebay.cache.stores.disk import Disk
from forebay.cache.stores.postgres_store import PostgresStore
from forebay.cache.stores.redis_store import RedisStore
from forebay.cache.stores.store import Record, Store

TESTS = Path(__file__).parents[2] / "tests"
DIMENSIONS = 512
TIMED = 2_000
RECALL = 0.95
WAIT = 5.0
"""Seconds; nothing is to fail here."""


def measure(console: Console) -> tuple[dict[str, object], list[str]]:
    records, vectors = env_int("RECORDS", 20_000), env_int("VECTORS", 5_000)
    if str(TESTS) not in sys.path:
        sys.path.append(str(TESTS))  # the servers are those of the tests
    figures: dict[str, object] = {"records": records, "vectors": vectors}
    short: list[str] = []
    with _servers() as (redis, postgres, folder):
        stores: dict[str, Callable[[], Store]] = {
            "disk": lambda: Disk(folder / "answers.db", 1 << 30, time.time),
            "redis": lambda: RedisStore(redis(1), time.time, wait=WAIT, change_wait=WAIT),
            "postgres": lambda: PostgresStore(postgres(), time.time, wait=WAIT, change_wait=WAIT),
        }
        table = Table("store", "put µs", "equal request µs, P50", "P99", "8 questions µs", "purge of a fifth s")
        for name, opened in stores.items():
            took = _store(opened(), records)
            figures[name] = took
            table.add_row(name, *(f"{took[key]:,.1f}" for key in ("put", "exact_p50", "exact_p99", "known", "purge_s")))
        console.print(table)
        space = Space("bench", DIMENSIONS)
        indexes: dict[str, Callable[[], Index]] = {
            "redisearch": lambda: RedisIndex(redis(0), space, 1_000_000, time.time, wait=WAIT),
            "pgvector": lambda: PgvectorIndex(postgres(), space, 1_000_000, time.time, wait=WAIT),
        }
        table = Table("index", "add µs", "large scope ms, P50", "P99", "recall", "small scope ms, P50", "P99", "recall")
        for name, open_index in indexes.items():
            found = _index(open_index(), vectors)
            figures[name] = found
            table.add_row(name, *(f"{value:,.3g}" for value in found.values()))
            short += [
                f"{name}: recall@8 {found[key]:.3f} < 0.95"
                for key in ("large_recall", "small_recall")
                if found[key] < 0.95
            ]
        console.print(table)
    return figures, short


@contextlib.contextmanager
def _servers() -> Iterator[tuple[Callable[[int], str], Callable[[], str], Path]]:
    from engines.install import CannotInstall
    from postgres_server import Postgres
    from redis_server import running

    folder = Path(tempfile.mkdtemp(prefix="forebay-bench-"))
    try:
        with contextlib.ExitStack() as opened:
            try:
                redis = opened.enter_context(running("redis"))
            except CannotInstall as e:
                raise BenchError(str(e)) from e
            (folder / "pg").mkdir()
            folder.chmod(0o755)
            postgres = Postgres(folder / "pg")
            opened.callback(postgres.close)
            (folder / "disk").mkdir()
            yield redis.url, postgres.new, folder / "disk"
    finally:
        shutil.rmtree(folder)


def _store(store: Store, n: int) -> dict[str, float]:
    made = [_record(i) for i in range(n)]
    put = _each(made, store.put)
    exact = _each(made[-TIMED:], lambda one: store.exact(one.exact))
    known = _each(made[:TIMED], lambda one: store.known([r.entry for r in made[-8:]]))
    began = time.perf_counter()
    gone = store.remove(Purge(0, tag="tag1"))
    purge = time.perf_counter() - began
    if len(gone) != len([one for one in made if one.tags == ("tag1",)]):
        raise BenchError(f"{store.name}: a purge removed {len(gone)} answers")
    store.close()
    return {
        "put": float(np.median(put)),
        "exact_p50": float(np.median(exact)),
        "exact_p99": float(np.percentile(exact, 99)),
        "known": float(np.median(known)),
        "purge_s": purge,
    }


def _each(items: list[Record], call: Callable[[Record], object]) -> list[float]:
    """Microseconds of each."""
    took = []
    for one in items:
        began = time.perf_counter()
        call(one)
        took.append((time.perf_counter() - began) * 1e6)
    return took


def _record(i: int) -> Record:
    return Record(f"{i:016x}", i.to_bytes(16, "big"), bytes(16), f"Question number {i}?", "acme/chat", "chat", "1",
                  (f"tag{i % 5}",), (), time.time(), 86_400.0, 0.0, bytes(1_500))  # fmt: skip


def _index(index: Index, n: int) -> dict[str, float]:
    """Half in one scope, the rest in scopes of 50."""
    rng = np.random.default_rng(1)
    topics = rng.normal(size=(max(2, n // 20), DIMENSIONS))
    vectors = topics[rng.integers(len(topics), size=n)] + 0.7 * rng.normal(size=(n, DIMENSIONS))
    rows = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
    scopes = [bytes(16) if i < n // 2 else (1 + i // 50).to_bytes(16, "big") for i in range(n)]
    began = time.perf_counter()
    for i in range(n):
        index.add(scopes[i], f"e{i}", rows[i])
    figures = {"add": (time.perf_counter() - began) / n * 1e6}
    for size, at in (("large", 0), ("small", n - 1)):
        mine = [i for i in range(n) if scopes[i] == scopes[at]]
        took, recall = _searched(index, scopes[at], rows[mine], mine, rng)
        figures |= {f"{size}_p50": float(np.median(took)), f"{size}_p99": float(np.percentile(took, 99))}
        figures[f"{size}_recall"] = recall
    index.close()
    return figures


def _searched(
    index: Index, scope: bytes, rows: Vectors, numbers: list[int], rng: np.random.Generator
) -> tuple[list[float], float]:
    """Milliseconds of each search, and the share of the eight nearest that were found."""
    took, found, wanted = [], 0, 0
    for _ in range(300):
        asked = rows[rng.integers(len(rows))] + 0.5 * rng.normal(size=DIMENSIONS) / np.sqrt(DIMENSIONS)
        one = (asked / np.linalg.norm(asked)).astype(np.float32)
        began = time.perf_counter()
        near = index.search(scope, one, 8)[0]
        took.append((time.perf_counter() - began) * 1e3)
        best = {f"e{numbers[i]}" for i in np.argsort(-(rows @ one))[:8]}
        found += len(best & {each.entry for each in near})
        wanted += len(best)
    return took, found / wanted

"""make bench-ledger_latency: what the ledger adds to the time to the first token while commits are slow."""

from __future__ import annotations

import asyncio
import contextlib
import os
import tempfile
import time
from pathlib import Path

import uvloop
from rich.console import Console
from rich.table import Table

from benchmarks.client import Answer, Client, chat, connect
from benchmarks.common import (
    MODEL,
    RESULTS,
    BenchError,
    Gateway,
    env_int,
    gateway,
    mock,
    run,
    two_cores,
    verdict,
    write_results,
)

ADDED = 2.0
"""Most milliseconds that the ledger may add to the P99."""
SLOW_DISK = Path(__file__).with_name("slow_disk")
WITHOUT: dict[str, object] = {"ledger": {"enabled": False}}
WARM = 50
"""First requests of each gateway that do not count."""


class Side:
    """One gateway's requests. Milliseconds to the first content and to the end, in the order of sending."""

    def __init__(self, client: Client, body: bytes) -> None:
        self._client = client
        self._body = body
        self.first: list[float] = []
        self.whole: list[float] = []
        self.open = self.failed = 0
        self._idle = asyncio.Event()

    async def ended(self) -> None:
        """Until no request is open."""
        while self.open:
            self._idle.clear()
            await self._idle.wait()

    def send(self) -> None:
        began = time.perf_counter()
        heard = 0.0

        def on_content(answer: Answer) -> None:
            nonlocal heard
            heard = heard or time.perf_counter()

        def ended(answer: Answer) -> None:
            self.open -= 1
            if answer.done and heard:
                self.first.append((heard - began) * 1e3)
                self.whole.append((time.perf_counter() - began) * 1e3)
            else:
                self.failed += 1
            self._idle.set()

        self.open += 1
        answer = Answer(ended)
        answer.on_content = on_content
        self._client.post(self._body, answer)


async def _drive(without: Gateway, booked: Gateway, rate: int, seconds: int) -> tuple[Side, Side]:
    """Each is sent `rate` streams a second, by turns, whatever comes back."""
    body = chat(MODEL, stream=True, max_tokens=4)
    async with connect(without.url, 2_048) as one, connect(booked.url, 2_048) as other:
        sides = Side(one, body), Side(other, body)
        loop = asyncio.get_running_loop()
        due = loop.time()
        for i in range(2 * rate * seconds):
            due += 0.5 / rate
            if (early := due - loop.time()) > 0:
                await asyncio.sleep(early)
            sides[i % 2].send()
        async with asyncio.timeout(30):
            await asyncio.gather(*(side.ended() for side in sides))
    return sides


def quantile(values: list[float], q: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * q))]


def main() -> int:
    ttft, commit = env_int("TTFT_MS", 50, least=0), env_int("COMMIT_MS", 5, least=0)
    rate, seconds = env_int("RATE", 100), env_int("SECONDS", 30)
    cores = two_cores()
    os.sched_setaffinity(0, {cores[1]})
    slow = {"PYTHONPATH": str(SLOW_DISK), "COMMIT_MS": str(commit)}
    RESULTS.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="bench-latency-", dir=RESULTS) as folder, contextlib.ExitStack() as stack:
        work = Path(folder)
        for name in ("without", "booked"):
            (work / name).mkdir()
        url = stack.enter_context(mock(work, core=cores[1], interval_ms=1, ttft_ms=ttft))
        without = stack.enter_context(gateway(work / "without", url, core=cores[0], extra=WITHOUT))
        booked = stack.enter_context(gateway(work / "booked", url, core=cores[0], env=slow))
        sides = uvloop.run(_drive(without, booked, rate, seconds))
        stands = {
            stand: booked.metric("forebay_ledger_first_bytes_total", reservation=stand)
            for stand in ("safe", "waited", "degraded")
        }
        commits = booked.metric("forebay_ledger_journal_fsync_seconds") * 1e3
    if commits < commit:
        raise BenchError(f"the slow disk is not in use: the last commit took {commits:.1f} ms")
    if failed := sum(side.failed for side in sides):
        raise BenchError(f"{failed} requests failed")
    figures = {
        name: {
            what: {q: quantile(values[WARM:], float(q)) for q in ("0.5", "0.9", "0.99", "0.999")}
            for what, values in (("first", side.first), ("whole", side.whole))
        }
        for name, side in zip(("without", "booked"), sides, strict=True)
    }
    table = Table(
        title=f"Milliseconds to the first token: an engine that takes {ttft}, commits that take {commit} more"
    )
    for column in ("", "P50", "P90", "P99", "P99.9"):
        table.add_column(column, justify="right" if column else "left")
    for name, found in figures.items():
        table.add_row(name, *(f"{value:.1f}" for value in found["first"].values()))
    added = {q: figures["booked"]["first"][q] - figures["without"]["first"][q] for q in figures["booked"]["first"]}
    table.add_row("added", *(f"{value:+.1f}" for value in added.values()))
    console = Console()
    console.print(table)
    told = ", ".join(f"{count:,.0f} {stand}" for stand, count in stands.items())
    console.print(f"reservations at the first byte: {told}; the last commit took {commits:.1f} ms")
    short = []
    if added["0.99"] > ADDED:
        short.append(f"the ledger adds {added['0.99']:.1f} ms to the P99; the bar is {ADDED:g} ms")
    path = write_results(
        "ledger_latency",
        {
            "bar_ms": ADDED,
            "settings": {"ttft_ms": ttft, "commit_ms": commit, "rate": rate, "seconds": seconds},
            "figures": figures,
            "added_ms": added,
            "reservations": stands,
            "fell_short": short,
            "samples": {
                name: {"first": side.first, "whole": side.whole} for name, side in zip(figures, sides, strict=True)
            },
        },
    )
    console.print(f"{path}", highlight=False)
    return verdict(short)


if __name__ == "__main__":
    run(main)

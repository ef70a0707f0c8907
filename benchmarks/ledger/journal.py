"""What booking costs a worker, and how soon it is on disk."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from pathlib import Path
from typing import Any

import uvloop

from benchmarks.ledger.work import TICK, UNDER_WAY, reserved, settled
from forebay.ledger.entries import Reserved, Settled
from forebay.ledger.journal import Journal


class Nothing:
    """The same calls without a journal: what the load itself costs."""

    committed = fsyncs = 0

    def __init__(self) -> None:
        self._seq = 0

    def next_seq(self) -> int:
        self._seq += 1
        return self._seq

    def account_no(self, *_: str) -> int:
        return 1

    def price_no(self, *_: object) -> int:
        return 1

    def reserve(self, _: Reserved) -> int:
        return 0

    def settle(self, _: Settled) -> int:
        return 0

    async def close(self) -> int:
        return 0


async def _load(journal: Any, waiting: deque[tuple[int, float]], rate: int, seconds: float) -> dict[str, float]:
    loop = asyncio.get_running_loop()
    live: deque[int] = deque()
    count = 0
    inside = 0.0
    done = loop.create_future()
    start, cpu, thread = loop.time(), time.process_time(), time.thread_time()

    def lot() -> None:
        nonlocal count, inside
        spent = loop.time() - start
        began = time.thread_time()
        while count < spent * rate:
            one = reserved(journal, 1.8e9)
            number = journal.reserve(one)
            if count % 16 == 0 and number:
                waiting.append((number, time.perf_counter()))
            live.append(one.seq)
            if len(live) > UNDER_WAY:
                journal.settle(settled(journal, live.popleft(), 1.8e9))
            count += 1
        inside += time.thread_time() - began
        if spent > seconds:
            done.set_result(None)
        else:
            loop.call_later(TICK, lot)

    lot()
    await done
    return {
        "attempts": count,
        "cpu": time.process_time() - cpu,
        "loop": time.thread_time() - thread,
        "inside": inside,
        "seconds": loop.time() - start,
        "fsyncs": journal.fsyncs,
    }


async def _measured(folder: Path | None, rate: int, seconds: float) -> tuple[dict[str, float], list[float]]:
    waiting: deque[tuple[int, float]] = deque()
    waits: list[float] = []

    def committed(number: int) -> None:
        now = time.perf_counter()
        while waiting and waiting[0][0] <= number:
            waits.append(now - waiting.popleft()[1])

    loop = asyncio.get_running_loop()
    journal: Any = Nothing()
    if folder is not None:
        journal = Journal.open(
            folder, currency="USD", boot="bench", limit_bytes=8 << 30, loop=loop, on_committed=committed
        )
    found = await _load(journal, waiting, rate, seconds)
    await journal.close()
    return found, sorted(waits)


def measure(folder: Path, rate: int, seconds: float) -> dict[str, Any]:
    """Microseconds of CPU an attempt, over those of the same load without a journal: in the calls, in the whole loop
    thread, in all threads; milliseconds from `reserve` until a reservation is on disk."""
    idle, _ = uvloop.run(_measured(None, rate, seconds))
    busy, waits = uvloop.run(_measured(folder, rate, seconds))

    def more(name: str) -> float:
        return (busy[name] / busy["attempts"] - idle[name] / idle["attempts"]) * 1e6

    return {
        "rate": rate,
        "attempts": busy["attempts"],
        "calls_us": more("inside"),
        "loop_us": more("loop"),
        "all_us": more("cpu"),
        "fsyncs_a_second": busy["fsyncs"] / busy["seconds"],
        "commit_ms": {
            "p50": waits[len(waits) // 2] * 1e3,
            "p99": waits[int(len(waits) * 0.99)] * 1e3,
            "max": waits[-1] * 1e3,
        },
        "late": sum(w > 0.05 for w in waits) / len(waits),
    }

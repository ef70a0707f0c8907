"""From a worker's journal into the books, while it writes on."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.common import ROOT, BenchError
from forebay.ledger.book import Book
from forebay.ledger.database import Database
from forebay.ledger.journal_read import Batch, Reader, forget

RUN = 8_192
"""Records of one transaction, about."""
DRAIN = 120.0
"""Seconds that what is left may take when the worker has ended."""


class Sweeper:
    """Books what a journal holds, in runs, as the admin process does."""

    def __init__(self, database: Database, folder: Path) -> None:
        self._book = Book(database, "USD")
        self._folder = folder
        self._reader = Reader(folder)
        self.settled = 0

    def sweep(self) -> bool:
        """One run. False: there was nothing."""
        batches: list[Batch] = []
        count = 0
        for batch in self._reader.batches():
            batches.append(batch)
            count += len(batch.records)
            if count >= RUN:
                break
        if not batches:
            return False
        records = ((batch.position, record) for batch in batches for record in batch.records)
        done = self._book.ingest(batches[0].began.owner, records, time.time())
        self.settled += done.settled
        forget(self._folder, done.position)
        return True


def measure(folder: Path, rate: int, seconds: float) -> dict[str, Any]:
    """A worker books `rate` attempts a second for `seconds`, and this process brings them into SQLite until all are."""
    database = Database("", folder)
    database.migrate()
    journal = folder / "worker-0"
    journal.mkdir()
    sweeper = Sweeper(database, journal)
    command = [sys.executable, "-m", "benchmarks.ledger.work", str(journal), str(rate), str(seconds)]
    samples: list[tuple[float, int]] = []
    ended = 0.0
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as worker:
        assert worker.stdout
        try:
            start, cpu = time.monotonic(), time.process_time()
            while True:
                over = worker.poll() is not None
                more = sweeper.sweep()
                now = time.monotonic() - start
                if not samples or now - samples[-1][0] >= 1.0:
                    samples.append((now, sweeper.settled))
                if over and not ended:
                    ended = now
                if over and not more:
                    break
                if over and now - ended > DRAIN:
                    raise BenchError(f"the journal is not booked {DRAIN:g} s after its end")
                if not more:
                    time.sleep(0.05)
            spent = time.process_time() - cpu
            written, lost, refused = map(int, worker.stdout.read().split() or (0, 0, 0))
        finally:
            worker.kill()
            database.close()
    if worker.returncode or lost:
        raise BenchError(f"the worker ended with code {worker.returncode} and {lost} records not written")
    if sweeper.settled != written - refused:
        raise BenchError(f"{written - refused:,} attempts were written and {sweeper.settled:,} booked")
    return {
        "offered": rate,
        "settled": sweeper.settled,
        "seconds": now,
        "a_second": sweeper.settled / now,
        "drained_after": now - ended,
        "cpu_us": spent / sweeper.settled * 1e6,
        "samples": samples,
    }

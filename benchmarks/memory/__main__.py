"""make bench-memory: what a concurrent stream costs in memory, and whether any starves."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.common import (
    BenchError,
    env_int,
    gateway,
    mock,
    need_files,
    rss,
    run,
    tail,
    two_cores,
    verdict,
    write_results,
)

BAR_BYTES = 15_000
BAR_RATIO = 5.0
INTERVAL_MS = 1_000
PHASES = 100
"""The mock writes to a hundredth of the streams every 10 ms."""


class Peak(threading.Thread):
    """Samples a process's resident memory every 0.2 s until told to stop."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self._pid = pid
        self._over = threading.Event()
        self.largest = rss(pid)

    def run(self) -> None:
        while not self._over.wait(0.2):
            with contextlib.suppress(OSError):  # it ended: its caller finds out
                self.largest = max(self.largest, rss(self._pid))

    def done(self) -> int:
        self._over.set()
        self.join()
        return self.largest


def _client(url: str, streams: int, events: int, ramp: float, core: int) -> subprocess.Popen[str]:
    command = ["taskset", "-c", str(core), sys.executable, "-m", "benchmarks.memory.client", "--url", url]
    command += ["--streams", str(streams), "--events", str(events), "--ramp", str(ramp)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def _says(process: subprocess.Popen[str], state: str, log: Path) -> dict[str, object]:
    """The client's next word. Raises BenchError where it is another or none."""
    assert process.stdout is not None
    line = process.stdout.readline()
    found: dict[str, object] = json.loads(line) if line else {}
    if found.get("state") != state:
        raise BenchError(
            f"the client said {line.strip() or 'nothing'!r}, not {state!r}; the gateway's log:\n{tail(log)}"
        )
    return found


def main() -> int:
    streams, events = env_int("STREAMS", 8_000), env_int("EVENTS", 40, least=20)
    need_files(2 * streams + 500)
    core, other = two_cores()
    ramp = streams / 800
    say = Console(width=None if sys.stdout.isatty() else 120)
    with tempfile.TemporaryDirectory(prefix="forebay-bench-") as folder, contextlib.ExitStack() as stack:
        work = Path(folder)
        upstream = stack.enter_context(mock(work, core=other, interval_ms=INTERVAL_MS, phases=PHASES))
        up = stack.enter_context(gateway(work, upstream, core=core))
        worker = up.worker()
        with _client(up.url, 100, 2, 0.5, other) as warm:
            _says(warm, "running", up.log)
            _says(warm, "done", up.log)
        before = rss(worker)
        peak = Peak(worker)
        peak.start()
        began, cpu = time.monotonic(), up.tree.cpu()
        say.print(
            f"{streams:,} streams of {events} events, one a second; {before / 1e6:.1f} MB before", highlight=False
        )
        with _client(up.url, streams, events, ramp, other) as client:
            try:
                _says(client, "running", up.log)
                time.sleep(3)
                running = rss(worker)
                gaps = _says(client, "done", up.log)
            except BaseException:
                client.kill()
                raise
        highest = peak.done()
        share = up.tree.spent(cpu, up.tree.cpu()) / (time.monotonic() - began)
    each = (highest - before) / streams
    t = Table(title=f"{streams:,} concurrent streams")
    t.add_column("")
    t.add_column("measured", justify="right")
    t.add_column("bar", justify="right")
    t.add_row("memory a stream, at the highest", f"{each:,.0f} B", f"{BAR_BYTES:,} B")
    t.add_row("memory a stream, all running", f"{(running - before) / streams:,.0f} B", "")
    t.add_row("largest gap / median gap, worst stream", f"{gaps.get('worst_ratio', 0):.2f}", f"{BAR_RATIO:g}")
    t.add_row("largest gap / median gap, median stream", f"{gaps.get('median_ratio', 0):.2f}", "")
    t.add_row("median gap", f"{gaps.get('median_gap_s', 0):.3f} s", "")
    t.add_row("CPU of the gateway's processes", f"{share:.0%} of a core", "")
    say.print(t)
    fell = []
    if gaps["bad"]:
        fell.append(f"streams that did not end well: {gaps['bad']}")
    if each > BAR_BYTES:
        fell.append(f"{each:,.0f} bytes a stream, the bar is {BAR_BYTES:,}")
    ratio = gaps.get("worst_ratio")
    if not isinstance(ratio, float) or ratio > BAR_RATIO:
        fell.append(
            f"{gaps.get('streams_over_5')} streams starved: largest / median gap {ratio}, the bar is {BAR_RATIO}"
        )
    figures: dict[str, object] = {
        "streams": streams,
        "events": events,
        "bars": {"bytes_a_stream": BAR_BYTES, "gap_ratio": BAR_RATIO},
        "bytes_a_stream": round(each),
        "rss_before": before,
        "rss_running": running,
        "rss_highest": highest,
        "gateway_cpu_share": round(share, 3),
        **{k: v for k, v in gaps.items() if k != "state"},
        "fell_short": fell,
    }
    say.print(write_results("memory", figures), highlight=False)
    return verdict(fell)


if __name__ == "__main__":
    run(main)

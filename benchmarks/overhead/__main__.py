"""make bench-overhead: what the gateway costs a request, against nginx, a bare Python proxy and its peers."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

from rich.console import Console

from benchmarks.common import (
    RESULTS,
    BenchError,
    env_flag,
    env_int,
    env_names,
    mock,
    run,
    two_cores,
    verdict,
    write_results,
)
from benchmarks.overhead.measure import LOADS, Load, Sample, idle, measure, probe, thinking, write_bodies
from benchmarks.overhead.report import YARDSTICK, lines, picture, shortfalls, table
from benchmarks.overhead.subjects import OWN, PEERS, SELDOM, Running

CPU_BUDGET = 2.0
"""Seconds of CPU a round may cost a subject; what is slower gets fewer requests."""
INSTALL_BUDGET = 300.0


class Session:
    """One run: the mock, the cores, the load's bodies, and the samples so far."""

    def __init__(self, work: Path, mock_url: str, cores: tuple[int, int], loads: list[Load], say: Console) -> None:
        self.work = work
        self.mock_url = mock_url
        self.cores = cores
        self.loads = loads
        self.say = say
        self.samples: list[Sample] = []
        self.idle: dict[str, float] = {}
        self._counts: dict[tuple[str, str], int] = {}
        data = Path(os.environ["DATA"]) if os.environ.get("DATA") else None
        for load in loads:
            write_bodies(load, data, self.bodies(load))

    def bodies(self, load: Load) -> Path:
        return self.work / f"{load.name}.jsonl"

    def warm(self, name: str, up: Running) -> None:
        """Look at one answer of each load, and size its rounds by a small one."""
        for load in self.loads:
            probe(name, up.url, self.bodies(load))
            pilot = self._measure(name, up, load, load.connections * 2, "pilot")
            affordable = int(CPU_BUDGET / (pilot.cpu_us / 1e6))
            waves = max(1, min(affordable, load.requests) // load.connections)
            self._counts[name, load.name] = waves * load.connections

    def rest(self, name: str, up: Running) -> None:
        """Measure a subject at rest, once its rounds are over."""
        self.idle[name] = idle(up)

    def round(self, subjects: dict[str, Running], label: str) -> None:
        for load in self.loads:
            for name, up in subjects.items():
                sample = self._measure(name, up, load, self._counts[name, load.name], label)
                self.samples.append(sample)
                self.say.print(f"  {label:>16} {load.name:>6} {name:>14} {sample.cpu_us:>12,.1f} µs", highlight=False)

    def _measure(self, name: str, up: Running, load: Load, count: int, label: str) -> Sample:
        return measure(name, up, load, self.bodies(load), count, self.mock_url, self.cores, label)


def _peers(session: Session, yardstick: Running, chosen: list[str], rounds: int, install: bool) -> dict[str, str]:
    """Measure each peer beside nginx; why those that could not be."""
    failed = {}
    for name in chosen:
        peer = PEERS[name]
        if not install and not peer.installed:
            failed[name] = "not installed (PEERS=1 installs it)"
            continue
        try:
            if not peer.installed:
                session.say.print(f"installing {peer.requirement} into {peer.venv}")
            peer.install(INSTALL_BUDGET)
            work = session.work / name
            work.mkdir()
            with peer.start(work, session.mock_url, session.cores[0]) as up:
                session.warm(name, up)
                for i in range(rounds):
                    session.round({YARDSTICK: yardstick, name: up}, f"{name} {i + 1}")
                session.rest(name, up)
        except BenchError as e:
            failed[name] = str(e)
            session.samples = [s for s in session.samples if not s.round.startswith(f"{name} ")]
    return failed


def main() -> int:
    began = time.monotonic()
    rounds = env_int("ROUNDS", 5)
    peers_wanted = env_flag("PEERS")
    usual = [name for name in OWN if name not in SELDOM]
    chosen = env_names("SUBJECTS", [*usual, *([] if peers_wanted is False else PEERS)], [*OWN, *PEERS])
    loads = [LOADS[x] for x in env_names("LOADS", list(LOADS), list(LOADS))]
    ttft = env_int("TTFT_MS", 0, least=0)
    loads = [thinking(load, ttft) for load in loads]
    if YARDSTICK not in chosen:
        chosen.insert(0, YARDSTICK)
    say = Console(width=None if sys.stdout.isatty() else 120)
    cores = two_cores()
    os.sched_setaffinity(0, {cores[1]})
    with tempfile.TemporaryDirectory(prefix="forebay-bench-") as folder, contextlib.ExitStack() as stack:
        work = Path(folder)
        interval = float(os.environ.get("INTERVAL_MS") or 5)
        mock_url = stack.enter_context(mock(work, core=cores[1], interval_ms=interval, ttft_ms=ttft))
        session = Session(work, mock_url, cores, loads, say)
        own: dict[str, Running] = {}
        for name in chosen:
            if name in OWN:
                (work / name).mkdir()
                own[name] = stack.enter_context(OWN[name](work / name, mock_url, cores[0]))
                session.warm(name, own[name])
        for i in range(rounds):
            session.round(own, str(i + 1))
        for name, up in own.items():
            session.rest(name, up)
        peers = [x for x in chosen if x in PEERS]
        failed = _peers(session, own[YARDSTICK], peers, min(rounds, 3), install=bool(peers_wanted))
    by_load = {load.name: lines(session.samples, load) for load in loads}
    table(by_load, session.idle, failed, say)
    fell = shortfalls(by_load)
    if "forebay" not in own:
        fell.append("forebay was not among the subjects, so no bar was held against it")
    figures: dict[str, object] = {
        "ttft_ms": ttft,
        "bars": {
            load.name: {"forebay": load.bar, "admission": load.admission_bar, "ledger": load.ledger_bar}
            for load in loads
        },
        "figures": {name: [asdict(x) for x in found] for name, found in by_load.items()},
        "idle_cpu_ms_per_s": session.idle,
        "not_measured": failed,
        "fell_short": fell,
        "samples": [s.plain() for s in session.samples],
        "seconds": round(time.monotonic() - began, 1),
    }
    path = write_results("overhead", figures)
    (RESULTS / "overhead.svg").write_text(picture(by_load), encoding="utf-8")
    say.print(f"{path}, {RESULTS / 'overhead.svg'}", highlight=False)
    return verdict(fell)


if __name__ == "__main__":
    run(main)

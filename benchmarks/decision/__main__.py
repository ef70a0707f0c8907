"""make bench-decision: what a decision costs, by engines and by requests in flight and waiting."""

from __future__ import annotations

import cProfile
import io
import os
import pstats
import sys
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any, TypeVar

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.common import env_int, run, verdict, write_results
from forebay.config.models import Class
from forebay.policy.admission import Admission
from forebay.policy.asks import Ask
from forebay.policy.decisions import Admit, Refuse, Wait
from forebay.policy.facts import Facts
from forebay.policy.prior import PrefillPrior
from forebay.policy.rules import QueueRules, Rules

ENGINES = (1, 8, 64, 256)
IN_FLIGHT = (2_000, 20_000)
WAITING = 500
TENANTS = 50
BARS = {8: 50.0, 256: 200.0}
"""Median CPU microseconds of a decision at 2,000 in flight: an `offer`, or half a `due` that lets one go, which decides
over that one and over the next, who has to wait on."""
DECISIONS = {"offer: admit": 1, "offer: wait": 1, "refuse": 1, "due, 1": 2}
PREFILL = 40_000.0
"""Prompt tokens a second of one engine."""
PROMPT = 600
LOAD = 0.5
"""Of that, what the requests that are offered bring."""
SEED = 5

T = TypeVar("T")


class Timed:
    """CPU time of each call by name, nanoseconds, without what reading the clock takes."""

    def __init__(self) -> None:
        self.samples: dict[str, list[int]] = {}
        clock = time.thread_time_ns
        self._clock = clock
        self._cost = sorted(-(clock() - clock()) for _ in range(1_000))[500]

    def __call__(self, name: str | Callable[[T], str], call: Callable[[], T]) -> T:
        clock = self._clock
        begin = clock()
        found = call()
        took = clock() - begin - self._cost
        self.samples.setdefault(name if isinstance(name, str) else name(found), []).append(max(0, took))
        return found


class Traffic:
    """Requests at an even rate on `engines` engines, of which `in_flight` are on them; where `full`, these are all that
    the engines hold, and `WAITING` wait."""

    def __init__(self, engines: int, in_flight: int, *, full: bool) -> None:
        self.random = Random(SEED)
        each = -(-in_flight // engines)
        prior = PrefillPrior(
            base_s=0.008, per_token_s=1 / PREFILL, per_token_context_s=0.0, decode_step_s=0.008, per_sequence_s=1e-6,
            budget_tokens=2_048 + 2 * each,
        )  # fmt: skip
        facts = Facts(kv_tokens=4_000 * each, max_num_seqs=each if full else 2 * each, prefill=prior)
        forever = dict.fromkeys(Class, 1e6)
        queue = QueueRules(requests=round(WAITING / 0.8), tokens=10**9)
        rules = Rules(ttft=forever, wait=forever, queue=queue) if full else Rules(queue=queue)
        self.names = tuple(f"engine-{i}" for i in range(engines))
        self.admission = Admission(rules, dict.fromkeys(self.names, facts))
        self.now = 0.0
        self.dt = PROMPT / (LOAD * PREFILL * engines)
        self.flying: deque[Ask] = deque()
        self.fresh: deque[Ask] = deque()
        self.keys = 0
        while len(self.flying) < in_flight:
            self.now += self.dt
            one = self.ask()
            if isinstance(self.admission.offer(one, self.now), Admit):
                self.admission.on_first_token(one, self.now + 0.01)
                self.flying.append(one)
            else:
                self.admission.on_end(one, self.now)
        while full and self.admission.waiting(Class.NORMAL)[0] < WAITING:
            self.admission.offer(self.ask(), self.now)

    def ask(self) -> Ask:
        self.keys += 1
        random = self.random
        return Ask(
            self.keys,
            prompt_tokens=random.randint(PROMPT // 3, PROMPT * 5 // 3),
            arrival=self.now,
            tenant=f"tenant-{random.randrange(TENANTS)}",
            model="m",
            engines=self.names,
        )

    def step(self, timed: Timed) -> None:
        """One request ends, those whose time has come have their first token, one is offered."""
        admission, random = self.admission, self.random
        self.now += self.dt
        now = self.now
        while self.fresh and self.fresh[0].admitted_at + 0.8 * self.fresh[0].bound <= now:
            one = self.fresh.popleft()
            timed("first token", partial(admission.on_first_token, one, now))
            self.flying.append(one)
        if self.flying:  # else all wait for their first tokens
            self.flying.rotate(random.randrange(20))
            gone = self.flying.popleft()
            timed("end", lambda: admission.on_end(gone, now, tokens=random.randint(20, 400)))
        if admission.next_due() <= now:
            out = timed(lambda found: f"due, {len(found)}", lambda: admission.due(now))
            self.fresh.extend(ask for ask, decision in out if isinstance(decision, Admit))
        new = self.ask()
        decision = timed(_kind, lambda: admission.offer(new, now))
        if isinstance(decision, Admit):
            self.fresh.append(new)
        if isinstance(decision, Wait):  # the room is full again
            more = self.ask()
            timed(_kind, lambda: admission.offer(more, now))


def _kind(decision: Admit | Wait | Refuse) -> str:
    return "offer: admit" if isinstance(decision, Admit) else "offer: wait" if isinstance(decision, Wait) else "refuse"


def measure(engines: int, in_flight: int, *, full: bool, steps: int) -> dict[str, Any]:
    traffic = Traffic(engines, in_flight, full=full)
    for _ in range(steps // 10):
        traffic.step(Timed())
    timed = Timed()
    for _ in range(steps):
        traffic.step(timed)
    profile = cProfile.Profile()
    profile.runcall(lambda: [traffic.step(Timed()) for _ in range(steps // 10)])
    return {
        "engines": engines,
        "in_flight": in_flight,
        "waiting": WAITING if full else 0,
        "calls": {
            name: {
                "calls": len(ns),
                "p50_us": round(float(np.percentile(ns, 50)) / 1e3, 2),
                "p99_us": round(float(np.percentile(ns, 99)) / 1e3, 2),
                "mean_us": round(float(np.mean(ns)) / 1e3, 2),
            }
            for name, ns in sorted(timed.samples.items())
        },
        "profile": _dominant(profile),
    }


def _dominant(profile: cProfile.Profile) -> list[str]:
    """The functions with the largest own time, and their share of it."""
    stats = pstats.Stats(profile, stream=io.StringIO())
    rows = [
        (own, f"{os.path.basename(where[0])}:{where[2]}")  # noqa: PTH119
        for where, (_, _, own, _, _) in stats.stats.items()  # type: ignore[attr-defined]
        if "forebay" in where[0] and "benchmarks" not in where[0]
    ]
    total = sum(own for own, _ in rows)
    return [f"{name} {100 * own / total:.0f} %" for own, name in sorted(rows, reverse=True)[:6]]


def main() -> int:
    steps = env_int("STEPS", 2_000, least=200)
    began = time.monotonic()
    found = [
        measure(engines, in_flight, full=full, steps=steps)
        for engines in ENGINES
        for in_flight in IN_FLIGHT
        for full in (False, True)
    ]
    say = Console(width=None if sys.stdout.isatty() else 170)
    say.print(_table(found))
    for cell in found:
        if cell["engines"] in BARS and cell["in_flight"] == IN_FLIGHT[0]:
            say.print(f"{cell['engines']} engines, {cell['waiting']} waiting: {', '.join(cell['profile'])}")
    fell = list(_shortfalls(found))
    path = write_results("decision", {"bars": BARS, "fell_short": fell, "cells": found})
    say.print(f"{path}; {len(found)} cells in {time.monotonic() - began:.0f} s", highlight=False)
    return verdict(fell)


def _shortfalls(found: list[dict[str, Any]]) -> list[str]:
    fell = []
    for cell in found:
        bar = BARS.get(cell["engines"])
        if bar is None or cell["in_flight"] != IN_FLIGHT[0]:
            continue
        for name, decisions in DECISIONS.items():
            took = cell["calls"].get(name, {"p50_us": 0.0})["p50_us"] / decisions
            if took > bar:
                fell.append(
                    f"{cell['engines']} engines, {cell['waiting']} waiting: {name} takes {took:.0f} µs a decision, "
                    f"the bar is {bar:g} µs"
                )
    return fell


def _table(found: list[dict[str, Any]]) -> Table:
    names = ("offer: admit", "offer: wait", "refuse", "due, 0", "due, 1", "first token", "end")
    table = Table(title="CPU µs a call: median, 99th percentile")
    for column in ("engines", "in flight", "waiting", *names):
        table.add_column(column, justify="right")
    for cell in found:
        table.add_row(
            str(cell["engines"]),
            f"{cell['in_flight']:,}",
            str(cell["waiting"]),
            *(
                f"{c['p50_us']:.1f}  {c['p99_us']:.0f}" if (c := cell["calls"].get(name)) is not None else ""
                for name in names
            ),
        )
    return table


if __name__ == "__main__":
    run(main)

"""make bench-tune: how long a search takes, how good what it finds is, and whether its commands are taken."""

from __future__ import annotations

import os
import resource
import sys
import time
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.common import BenchError, env_names, run, verdict, write_results
from benchmarks.tune import outside
from benchmarks.tune.cases import CASES, Case
from forebay.plan.tune.pool import Pool, Task
from forebay.plan.tune.search import Wish
from forebay.plan.tune.space import Setting
from forebay.plan.tune.trial import Trial

SETTINGS_BAR = 200
SECONDS_BAR = 300.0
"""Of wall time, for so many settings."""
EVEN = 0.0
"""How much less than the other's recommendation ours may bear, as a share."""
PARTS = ("search", "commands", "manifests")


def main() -> int:
    parts = env_names("PARTS", PARTS, PARTS)
    cases = [
        case for case in CASES if case.name in env_names("CASES", [c.name for c in CASES], [c.name for c in CASES])
    ]
    say = Console(width=None if sys.stdout.isatty() else 140)
    outside.environment(say)
    found: dict[str, Any] = {}
    fell: list[str] = []
    results: list[tuple[Case, dict[str, Any]]] = []
    if "search" in parts:
        found["search"] = _searches(cases, say, fell, results)
    commands = [command for _, result in results for command in result["commands"]] or _commands()
    if "commands" in parts:
        found["commands"] = _taken(commands, say, fell)
    if "manifests" in parts:
        texts = [text for _, result in results for text in result["manifests"].values()] or _manifests()
        found["manifests"] = _valid(texts, say, fell)
    path = write_results(
        "tune", {"bars": {"settings": SETTINGS_BAR, "seconds": SECONDS_BAR}, "fell_short": fell, **found}
    )
    say.print(str(path), highlight=False)
    return verdict(fell)


def _searches(
    cases: list[Case], say: Console, fell: list[str], results: list[tuple[Case, dict[str, Any]]]
) -> list[dict[str, Any]]:
    from forebay.plan.tune.result import loss
    from forebay.plan.tune.run import run as tune

    rows = []
    table = Table(title="Requests a second within the SLO, from the same GPUs, both by the simulator")
    for column in (
        "",
        "settings",
        "seconds",
        "CPU s",
        "forebay tune",
        "bears",
        "aiconfigurator",
        "bears",
        "ours − theirs",
    ):
        table.add_column(column, justify="left" if column in ("", "forebay tune", "aiconfigurator") else "right")
    for case in cases:
        theirs = outside.recommendations(case)
        wish = case.wish(jobs=os.cpu_count() or 1)
        _warm(wish, theirs)
        began, spent = time.perf_counter(), _cpu()
        result = tune(wish, None, lambda name, done, of: None)
        seconds, cpu = time.perf_counter() - began, _cpu() - spent
        if result is None:
            raise BenchError(f"{case.name}: the search was broken off")
        results.append((case, result))
        ours_setting = case.setting(result["best"]["setting"])
        ours, *judged = _judged(wish, result, [ours_setting, *theirs])
        their_best, other = max(zip(theirs, judged, strict=True), key=lambda pair: sum(t.capacity for t in pair[1]))
        lost = loss(ours, other)
        mine, other_mean = (sum(t.capacity for t in trials) / len(trials) for trials in (ours, other))
        searched = result["search"]["settings"]
        if searched >= SETTINGS_BAR and seconds > SECONDS_BAR:
            fell.append(f"{case.name}: {searched} settings took {seconds:.0f} s, the bar is {SECONDS_BAR:.0f} s")
        if searched < SETTINGS_BAR:
            fell.append(f"{case.name}: only {searched} settings were searched, the bar is {SETTINGS_BAR}")
        if mine < other_mean * (1 - EVEN):
            fell.append(f"{case.name}: ours bears {mine:.3g}/s, aiconfigurator's {other_mean:.3g}/s")
        say.print(f"{case.name}: searched in {seconds:.0f} s, {cpu:.0f} s of CPU", highlight=False)
        table.add_row(
            case.name, f"{searched}", f"{seconds:.0f}", f"{cpu:.0f}", str(ours_setting), f"{mine:.3g}/s",
            str(their_best), f"{other_mean:.3g}/s", f"{mine / other_mean - 1:+.1%}" if other_mean else "–",
        )  # fmt: skip
        rows.append(
            {
                "case": case.name, "settings": searched, "simulations": result["search"]["simulations"],
                "seconds": seconds, "cpu_seconds": cpu, "ours": str(ours_setting),
                "capacity": [t.capacity for t in ours],
                "theirs": [
                    {"setting": str(s), "capacity": [t.capacity for t in ts]}
                    for s, ts in zip(theirs, judged, strict=True)
                ],
                "loss_of_theirs": lost, "step_times": result["step_time"]["source"],
            }
        )  # fmt: skip
    say.print(table)
    return rows


def _cpu() -> float:
    """Of this process and of its workers that have ended, in seconds."""
    mine, theirs = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return mine.ru_utime + mine.ru_stime + theirs.ru_utime + theirs.ru_stime


def _judged(wish: Wish, result: dict[str, Any], settings: list[Setting]) -> list[list[Trial]]:
    """Trials of each, with every seed, as the search's last rounds are made."""
    size, guess = result["search"]["requests"][2], result["best"]["at_capacity"]["speed"]
    tasks = [Task("capacity", (s, guess, size, 0.0, seed)) for s in settings for seed in range(wish.seeds)]
    with Pool(wish.problem, wish.jobs) as pool:
        found = pool.map(tasks)
    return [found[i * wish.seeds : (i + 1) * wish.seeds] for i in range(len(settings))]


def _warm(wish: Any, theirs: list[Any]) -> None:
    """Step times of every tp, compiled and kept by an earlier run of any command; that is no part of a search."""
    from forebay.plan.tune.search import begin
    from forebay.plan.tune.trial import Lab

    begin(wish)
    lab = Lab(wish.problem)
    for setting in theirs:
        lab.prepare(setting)


def _commands() -> list[dict[str, Any]]:
    from forebay.plan.tune.launch import Shares, as_list, starts

    return [c for s in outside.SETTINGS for c in as_list(starts(s, outside.MODEL, Shares(0.4, 0.4, 0.9)))]


def _manifests() -> list[str]:
    from forebay.plan.tune.launch import Shares, starts
    from forebay.plan.tune.manifests import manifests

    found: list[str] = []
    for s in outside.SETTINGS:
        gpus = {"both": s.tp, "prefill": s.tp, "decode": s.decode_tp or s.tp}
        found += manifests(starts(s, outside.MODEL, Shares(0.4, 0.4, 0.9)), outside.MODEL, gpus).values()
    return found


def _taken(commands: list[dict[str, Any]], say: Console, fell: list[str]) -> dict[str, Any]:
    """Whether real vLLM's parser takes its commands; ours, those of the other engines."""
    refused = [f"{c['engine']}: {note}" for c in commands for note in c["notes"] if note.startswith("refused")]
    lines = [c["words"] for c in commands if c["kind"] == "vllm" and c["words"]]
    said = outside.vllm_parses(lines)
    if said is None:
        fell.append("vLLM is not installed: python tests/engines/install.py")
    else:
        refused += [f"vLLM's parser: {text}" for text in said]
        say.print(
            f"commands: {len(commands)}, of them {len(lines)} given to vLLM's own parser; refused: {len(refused)}"
        )
    fell += refused
    return {"commands": len(commands), "by_vllm": len(lines), "refused": refused}


def _valid(texts: list[str], say: Console, fell: list[str]) -> dict[str, Any]:
    wrong = outside.invalid_manifests(texts)
    say.print(f"manifests: {len(texts)} files; refused by kubernetes-validate: {len(wrong)}")
    fell += wrong
    return {"files": len(texts), "refused": wrong}


if __name__ == "__main__":
    run(main)

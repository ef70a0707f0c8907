"""The whole of `forebay tune`: search, result, commands."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from forebay.plan.simulate import SimulateError
from forebay.plan.tune import launch
from forebay.plan.tune.manifests import manifests
from forebay.plan.tune.result import document
from forebay.plan.tune.search import Progress, Wish, begin, compare, search
from forebay.plan.tune.space import TuneError
from forebay.plan.tune.trial import Lab


def run(wish: Wish, draft: str | None, progress: Progress) -> dict[str, Any] | None:
    """The JSON result; None where it was interrupted before there was any. Raises TuneError."""
    try:
        wish, found, expected = begin(wish, progress)
    except KeyboardInterrupt:
        return None
    interrupted = False
    try:
        (compare if wish.compare else search)(wish, found, expected, progress)
    except KeyboardInterrupt:
        interrupted = True
    if interrupted and not found.final:
        return None
    lab = Lab(wish.problem)
    winner = found.winner or next(iter(found.final))
    found.winner = winner
    try:
        ready = lab.prepare(winner)
    except SimulateError as e:
        raise TuneError(str(e)) from None
    found.notes += [note for note in (*ready.hardware.notes, *ready.steps.warnings) if note not in found.notes]
    result = document(wish, found, ready.hardware, interrupted=interrupted)
    model = wish.problem.base.hardware.model or ready.hardware.model
    starts = launch.starts(winner, model or "MODEL", launch.shares(ready, winner), draft=draft)
    gpus = {"both": winner.tp, "prefill": winner.tp, "decode": winner.decode_tp or winner.tp}
    return result | {"commands": launch.as_list(starts), "manifests": manifests(starts, model or "MODEL", gpus)}


def extra_files(result: Mapping[str, Any]) -> dict[str, str]:
    """Names and contents of what is written beside the report: a shell script an engine, what it names, and Kubernetes
    manifests."""
    found: dict[str, str] = {}
    for start in result["commands"]:
        if start["command"] is None:
            continue
        role = f"-{start['role']}" if start["role"] else ""
        lines = ["#!/bin/sh", f"# {start['count']} engines; flags of {start['checked_against']}"]
        lines += [f"# {note}" for note in start["notes"]]
        found[f"{start['kind']}{role}.sh"] = "\n".join([*lines, f"exec env {start['command']}", ""])
        found |= start["files"]
    found.update(result["manifests"])
    return found

"""`forebay serve` with engines that are started here: by itself with --launch, or by a `forebay launch` beside it."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil

from ports import free_port
from stack import Forebay, call, chat, config_of, folder
from waiting import eventually


def config(where: Path, **launch: Any) -> dict[str, Any]:
    entry = {
        "name": "started",
        "kind": "vllm",
        "health_interval": 0.2,
        "launch": {
            "model": "forebay-sim", "port": free_port(), "max_num_seqs": 8, "report": False,
            "command": [sys.executable, "-m", "forebay.sim.main"], **launch,
        },
    }  # fmt: skip
    return {**config_of(where / "state"), "engines": [entry]}


def answers(forebay: Forebay) -> bool:
    return bool(forebay.call("POST", "/v1/chat/completions", chat(3, stream=False))[0] == 200)


def gone(processes: list[psutil.Process]) -> bool:
    return not any(p.is_running() and p.status() != psutil.STATUS_ZOMBIE for p in processes)


def test_serve_launch_starts_them_serves_them_and_takes_them_along() -> None:
    with folder() as where:
        forebay = Forebay(where, config(where), "--launch")
        with contextlib.closing(forebay):
            eventually(lambda: answers(forebay))
            family = psutil.Process(forebay.pid).children(recursive=True)
            words = [" ".join(p.cmdline()) for p in family]
            assert sum("launch" in w and "--parent-fd" in w for w in words) >= 1
            assert sum(w.endswith("--max-num-seqs 8") for w in words) == 2  # the guard's, and the engine's own
            assert forebay.stop() == 0
            assert gone(family)
        assert "forebay launch starts" in (where / "state/logs/started.log").read_text()


def test_nothing_is_left_of_a_killed_serve_launch() -> None:
    with folder() as where, contextlib.closing(Forebay(where, config(where), "--launch")) as forebay:
        eventually(lambda: answers(forebay))
        family = psutil.Process(forebay.pid).children(recursive=True)
        forebay.process.kill()
        forebay.process.wait(10)
        eventually(lambda: gone(family))


def test_a_launcher_beside_it_survives_the_gateway() -> None:
    with folder() as where:
        forebay = Forebay(where, config(where), wait=False)
        launcher = subprocess.Popen(
            [sys.executable, "-m", "forebay", "launch", "--config", str(forebay.file)], stderr=subprocess.DEVNULL
        )
        try:
            with contextlib.closing(forebay):
                forebay.wait_said()
                eventually(lambda: answers(forebay))
                assert forebay.stop() == 0
            assert launcher.poll() is None
            port = json.loads(forebay.file.read_text())["engines"][0]["launch"]["port"]
            assert call(port, "GET", "/health")[0] == 200
        finally:
            launcher.send_signal(signal.SIGTERM)
            assert launcher.wait(20) == 0


def test_what_is_in_the_way_is_said_before_anything_serves() -> None:
    with folder() as where:
        forebay = Forebay(where, config(where, command=["/no/such/program"]), "--launch", wait=False)
        with contextlib.closing(forebay):
            assert forebay.process.wait(20) == 69
            eventually(lambda: "started: launch.command: /no/such/program is not there" in forebay.text)


def test_engines_that_are_only_printed_are_nothing_to_start() -> None:
    with folder() as where:
        printed = config(where)
        printed["engines"][0] |= {"kind": "trtllm", "launch": {"model": "m", "port": 1}}
        forebay = Forebay(where, printed, "--launch", wait=False)
        with contextlib.closing(forebay):
            assert forebay.process.wait(20) == 78
            eventually(lambda: "none of the engines with a launch section is of a kind" in forebay.text)

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import journals
from forebay.ledger.database import Database
from journals import Live


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    """An empty database of each kind."""
    url = "" if request.param == "sqlite" else request.getfixturevalue("postgres").new()
    database = Database(url, tmp_path)
    yield database
    database.close()


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    """Lets a worker live and die on a folder; returns what it was told."""
    tests = Path(journals.__file__).parent
    child = subprocess.Popen(
        [sys.executable, tests / "journal_child.py"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=tests,
        text=True,
    )
    assert child.stdin
    assert child.stdout

    def run(folder: Path, boot: str, call: str, when: str, n: int, seed: int = 1) -> dict[str, Any]:
        job = {"folder": str(folder), "boot": boot, "call": call, "when": when, "n": n, "seed": seed}
        child.stdin.write(json.dumps(job) + "\n")
        child.stdin.flush()
        assert int(child.stdout.readline()) == -signal.SIGKILL
        told = folder.with_name(folder.name + ".told")
        lines = [json.loads(line) for line in told.read_text().splitlines()]
        told.unlink()
        return {
            "reserved": {seq: number for what, number, seq in (x for x in lines if x[0] == "reserved")},
            "settled": {seq: number for what, number, seq in (x for x in lines if x[0] == "settled")},
            "committed": max((x[1] for x in lines if x[0] == "committed"), default=0),
            "safe": {int(x[1]): x[2] for x in lines if x[0] == "safe"},
            "named": {int(x[1]) for x in lines if x[0] == "named"},
        }

    with child:
        yield run
        child.stdin.close()
        assert child.wait(20) == 0

"""Keys made and revoked while nothing runs count from the first request after the start."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from stack import Engine, Forebay, config_of, folder


def key(state_dir: Path, *arguments: str) -> Any:
    done = subprocess.run(
        [sys.executable, "-m", "forebay", "key", *arguments, "--json", "--state-dir", str(state_dir)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return json.loads(done.stdout)


def test_changes_between_two_lives() -> None:
    with folder() as where, contextlib.closing(Engine()) as engine:
        config = config_of(where / "state", engine)
        with contextlib.closing(Forebay(where, config)) as first:
            old = key(first.state_dir, "create", "--name", "old")
            assert old["workers"] == "informed"
            assert first.call("GET", "/v1/models", key=old["key"])[0] == 200
            assert first.stop() == 0
        assert key(where / "state", "revoke", old["record"]["id"])["workers"] == "not running"
        new = key(where / "state", "create", "--name", "new")
        # A worker that starts reads the snapshot before it listens, so not even a request before readiness is wrong.
        second = Forebay(where, config, wait=False)
        with contextlib.closing(second):
            second.wait_said()
            assert second.call("GET", "/v1/models", key=old["key"])[0] == 401
            assert second.call("GET", "/v1/models", key=new["key"])[0] == 200
            second.wait_ready()
            assert second.call("GET", "/v1/models", key=old["key"])[0] == 401
            assert second.call("GET", "/v1/models", key=new["key"])[0] == 200

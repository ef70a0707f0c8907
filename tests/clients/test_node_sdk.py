"""The `openai` SDK for Node, installed with npm from tests/clients/node/package.json, through the gateway."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from stack import KEY, OTHER_KEY

SUITE = Path(__file__).parent / "node"


@pytest.mark.system
@pytest.mark.timeout(300)
def test_the_node_suite_passes(gateway: Any, tmp_path: Path) -> None:
    npm, node = shutil.which("npm"), shutil.which("node")
    assert npm and node, "this suite needs node and npm (Debian: apt install nodejs npm)"
    for name in ("package.json", "suite.mjs"):
        shutil.copy(SUITE / name, tmp_path / name)
    subprocess.run([npm, "install", "--no-audit", "--no-fund", "--silent"], cwd=tmp_path, check=True, timeout=200)
    ran = subprocess.run(
        [node, "--test", "--test-reporter=spec", "suite.mjs"],
        cwd=tmp_path,
        env={
            **os.environ,
            "BASE_URL": gateway.base_url,
            "API_KEY": KEY,
            "OTHER_KEY": OTHER_KEY,
            "ENGINE_URL": gateway.engine.url,
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=90,
    )
    assert ran.returncode == 0, ran.stdout
    assert "# fail 0" in ran.stdout.replace("ℹ", "#"), ran.stdout

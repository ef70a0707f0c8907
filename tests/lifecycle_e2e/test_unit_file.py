"""deploy/forebay.service is one that systemd understands."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

UNIT = Path(__file__).parents[2] / "deploy" / "forebay.service"


@pytest.mark.system
def test_systemd_finds_nothing_wrong_with_the_unit(tmp_path: Path) -> None:
    assert shutil.which("systemd-analyze"), "this test needs systemd-analyze (Debian: apt install systemd)"
    text = UNIT.read_text()
    assert text.count("/opt/forebay/bin/forebay") == 1
    unit = tmp_path / "forebay.service"
    unit.write_text(text.replace("/opt/forebay/bin/forebay", "/bin/true"))
    ran = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0 and "forebay.service" not in ran.stderr, ran.stderr

"""docs/engines.md says what the code says."""

from __future__ import annotations

from pathlib import Path

import pytest

from forebay.config.engine import EngineKind
from forebay.engines.detect import PROBES
from forebay.engines.registry import adapter
from forebay.engines.table import renewed

PAGE = Path(__file__).parents[2] / "docs" / "engines.md"


def test_the_tables_are_today_s() -> None:
    page = PAGE.read_text("utf-8")
    assert renewed(page) == page, "run: python -m forebay.engines.table docs/engines.md"
    with pytest.raises(ValueError, match="no marks"):
        renewed("# Engines\n")


def test_each_kind_has_a_row_and_each_question_is_told() -> None:
    page = PAGE.read_text("utf-8")
    for kind in set(EngineKind) - {EngineKind.AUTO}:
        assert adapter(kind).kind == kind
        assert f"| `{kind}` |" in page
    for probe in PROBES:
        assert f"`{probe.path.decode()}`" in page.partition("## What a URL is")[2]

"""docs/reference.md says what the code says, and leaves nothing out."""

from __future__ import annotations

import re
from pathlib import Path

from forebay.cli.reference import page
from forebay.errors import Outcome

ROOT = Path(__file__).parents[2]


def written_page() -> str:
    """As it is in docs/, which the first test compares: making it takes seconds."""
    return (ROOT / "docs/reference.md").read_text()


def test_the_page_is_current() -> None:
    again = "python -m forebay.cli.reference > docs/reference.md"
    assert (ROOT / "docs/reference.md").read_text() == page(), again


def test_every_code_written_in_the_source_is_on_the_written_page() -> None:
    found = set(re.findall(r"^\| \d{3} \| `(\w+)` \|", written_page(), re.MULTILINE))
    written: set[str] = set()
    for path in (ROOT / "src/forebay").rglob("*.py"):
        if "sim" not in path.parts:
            text = path.read_text()
            written |= set(
                re.findall(r'(?:\bRefusal\(\s*\d{3},|\boverloaded\(|\b_unauthorized\(|\bcode=)\s*"(\w+)"', text)
            )
    assert len(written) > 25
    assert written - found == set()


def test_every_metric_s_name_written_in_the_source_is_on_the_written_page() -> None:
    found = {
        name.removesuffix("_total") for name in re.findall(r"^\| `(forebay_\w+)` \|", written_page(), re.MULTILINE)
    }
    written: set[str] = set()
    for room in ("gateway", "admin"):
        for path in (ROOT / "src/forebay" / room).rglob("*.py"):
            written |= {n.removesuffix("_total") for n in re.findall(r'"(forebay_\w+)",', path.read_text())}
    assert len(written) > 25
    assert {n.removesuffix("_info") for n in found} == {n.removesuffix("_info") for n in written}


def test_every_outcome_is_explained() -> None:
    text = written_page()
    assert all(f"| `{outcome.value}` | " in text for outcome in Outcome)


def test_the_operations_page_names_only_what_exists() -> None:
    text, known = (ROOT / "docs/operations.md").read_text(), written_page()
    metrics = {re.sub(r"_(bucket|count|sum)$", "", name) for name in re.findall(r"\bforebay_\w+", text)}
    codes = set(re.findall(r"^\| \d{3} `(\w+)`", text, re.MULTILINE))
    assert len(metrics) > 15
    assert len(codes) >= 8
    assert {word for word in metrics | codes if f"`{word}`" not in known} == set()

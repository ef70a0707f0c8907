"""The crash campaign's comparison finds what it is for."""

from __future__ import annotations

import pytest

from crash_books import MARGIN, Entry, compared
from crash_load import Call, Told

BEGAN, ENDED = 100.0, 101.0
EXACT = Entry("exact", "ok", (30, 12), 0.0)
NOTHING = Entry("exact", "engine_error", (0, 0), 0.0)
ESTIMATED = Entry("estimated", "internal", (28, 9), 0.0)
OFF_BY_ONE = Entry("exact", "ok", (30, 11), 0.0)
UNDER_WAY, LATER, AFTER = 100.9, ENDED + 0.9 * MARGIN, ENDED + 1.1 * MARGIN


@pytest.mark.parametrize(
    ("how", "books", "kill", "content", "expected"),
    [
        ("whole", [EXACT], None, True, ""),
        ("whole", [], None, True, "lost"),
        ("whole", [EXACT, EXACT], None, True, "double"),
        ("whole", [EXACT, ESTIMATED], None, True, "double"),
        ("whole", [OFF_BY_ONE], None, True, "wrong"),
        ("whole", [ESTIMATED], None, True, "wrong"),
        ("failed", [NOTHING], None, False, ""),
        ("failed", [EXACT], None, False, "wrong"),
        ("whole", [ESTIMATED], LATER, True, ""),
        ("whole", [EXACT], LATER, True, ""),
        ("whole", [EXACT, ESTIMATED], LATER, True, "double"),
        ("failed", [NOTHING, ESTIMATED], LATER, False, ""),
        ("whole", [ESTIMATED, ESTIMATED, ESTIMATED], LATER, True, "double"),
        ("whole", [ESTIMATED], AFTER, True, "wrong"),
        ("whole", [], AFTER, True, "lost"),
        ("cut", [ESTIMATED], UNDER_WAY, True, ""),
        ("cut", [], UNDER_WAY, True, "lost"),
        ("cut", [], UNDER_WAY, False, "lost"),
        ("cut", [], BEGAN + 0.1, False, ""),
        ("cut", [], BEGAN + 0.1, True, "lost"),
    ],
)
def test_names_what_is_lost_double_or_wrong(
    how: str, books: list[Entry], kill: float | None, content: bool, expected: str
) -> None:
    client = Told("a-1", BEGAN - 0.1, ENDED, 200, content, how == "whole")
    calls = {"a-1": [Call("a-1", 30, 12, BEGAN, ENDED, how)]}
    found = compared([client], calls, {"a-1": books}, [] if kill is None else [kill])
    named = [name for name in ("lost", "double", "wrong") if getattr(found, name)]
    assert named == ([expected] if expected else [])


def test_an_entry_of_nobody_is_wrong() -> None:
    assert compared([], {}, {"a-1": [EXACT]}, []).wrong

"""The crash campaign's comparison finds what it is for."""

from __future__ import annotations

import pytest

from crash_books import Death, Entry, compared
from crash_load import Call, Told

BEGAN, ENDED = 100.0, 101.0
EXACT = Entry("exact", "ok", (30, 12), 0.0)
NOTHING = Entry("exact", "engine_error", (0, 0), 0.0)
ESTIMATED = Entry("estimated", "internal", (28, 9), 0.0)
OFF_BY_ONE = Entry("exact", "ok", (30, 11), 0.0)
OTHERS = Death(BEGAN + 0.6, unsaved=[("b-1", BEGAN + 0.59)], unsettled=["b-1", "b-2"])
IN_MEMORY = Death(BEGAN + 0.1, unsaved=[("a-1", BEGAN)], unsettled=["a-1"])
ON_DISK = Death(BEGAN + 0.9, unsettled=["a-1"])
TWICE = Death(BEGAN + 0.9, unsaved=[("a-1", BEGAN)], unsettled=["a-1", "a-1"])
BEFORE_IT_WAS_READ = Death(BEGAN - 0.001, unsaved=[("a-1", BEGAN - 0.002)], unsettled=["a-1"])


@pytest.mark.parametrize(
    ("how", "books", "deaths", "content", "expected"),
    [
        ("whole", [EXACT], [], True, ""),
        ("whole", [], [], True, "lost"),
        ("whole", [EXACT, EXACT], [], True, "double"),
        ("whole", [EXACT, ESTIMATED], [], True, "double"),
        ("whole", [OFF_BY_ONE], [], True, "wrong"),
        ("whole", [ESTIMATED], [], True, "wrong"),
        ("failed", [NOTHING], [], False, ""),
        ("failed", [EXACT], [], False, "wrong"),
        ("whole", [EXACT], [OTHERS], True, ""),
        ("whole", [ESTIMATED], [OTHERS], True, "wrong"),
        ("cut", [], [OTHERS], False, "lost"),
        ("whole", [ESTIMATED], [ON_DISK], True, ""),
        ("whole", [EXACT], [ON_DISK], True, "lost"),
        ("whole", [EXACT, ESTIMATED], [ON_DISK], True, "double"),
        ("failed", [NOTHING, ESTIMATED], [ON_DISK], False, ""),
        ("cut", [ESTIMATED], [ON_DISK], True, ""),
        ("cut", [], [ON_DISK], True, "lost"),
        ("cut", [], [ON_DISK], False, "lost"),
        ("cut", [], [IN_MEMORY], False, ""),
        ("cut", [], [IN_MEMORY], True, "lost"),
        ("cut", [ESTIMATED], [IN_MEMORY], False, "wrong"),
        ("cut", [ESTIMATED], [TWICE], False, ""),
        ("cut", [], [TWICE], False, "lost"),
        ("whole", [], [BEFORE_IT_WAS_READ], False, ""),
        ("whole", [], [BEFORE_IT_WAS_READ, OTHERS], False, ""),
    ],
)
def test_names_what_is_lost_double_or_wrong(
    how: str, books: list[Entry], deaths: list[Death], content: bool, expected: str
) -> None:
    client = Told("a-1", BEGAN - 0.1, ENDED, 200, content, how == "whole")
    calls = {"a-1": [Call("a-1", 30, 12, BEGAN, ENDED, how)]}
    found = compared([client], calls, {"a-1": books}, deaths)
    named = [name for name in ("lost", "double", "wrong") if getattr(found, name)]
    assert named == ([expected] if expected else [])
    assert found.failing() == (["a-1"] if expected else [])


def test_an_entry_of_nobody_is_wrong() -> None:
    assert compared([], {}, {"a-1": [EXACT]}, []).wrong

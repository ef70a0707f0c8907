"""The tables of measurements in both READMEs take what the benchmarks wrote."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.readme import cells, filled

ROOT = Path(__file__).parents[2]
PAGES = [(ROOT / name).read_text() for name in ("README.md", "README.zh-CN.md")]


def table(text: str) -> list[list[str]]:
    return [line.split(" | ") for line in text.splitlines() if line.startswith("| ") and "`make " in line]


def test_new_results_go_into_both_tables() -> None:
    figure = {"subject": "forebay", "ratio": 1.5, "cpu_us": 1234.5}
    rows = cells(
        {
            "overhead": {
                "figures": {
                    "unary": [{"subject": "nginx"}, figure],
                    "flat-out": [figure | {"ratio": 2.75}],
                    "stream": [figure | {"ratio": 1.25}],
                }
            },
            "memory": {"bytes_a_stream": 9_876, "worst_ratio": 1.777},
            "startup": {"medians": {"import": 0.002, "ready, first start": 1.1, "ready, later start": 0.9}},
            "cancel": {"n": 10_000, "lag_seconds": {"0.5": 0.001, "0.999": 0.0401}},
        }
    )
    for language, text in enumerate(PAGES):
        new = table(filled(text, [row[language] for row in rows]))
        assert [line[1] for line in new[: len(rows)]] == [row[language] for row in rows]
        assert new[len(rows) :] == table(text)[len(rows) :]
        assert [[line[0], *line[2:]] for line in new] == [[line[0], *line[2:]] for line in table(text)]
    assert rows[0] == ("1.50 × (1,234 µs)", "1.50 倍（1,234 µs）")
    assert rows[7][0] == "1.0 ms, 40.1 ms (10,000 cancels)"


def test_a_table_of_another_shape_is_left_alone() -> None:
    with pytest.raises(ValueError, match="the table has 8 rows, not 1"):
        filled(PAGES[0], ["x"])

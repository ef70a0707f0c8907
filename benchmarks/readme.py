"""Put the newest results into the tables of README.md and README.zh-CN.md: `python -m benchmarks.readme`."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = ("overhead", "memory", "startup", "cancel")


def cells(results: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, str]]:
    """What was measured, a row each: in English, in Chinese."""
    rows: list[tuple[str, str]] = []
    for load in ("unary", "flat-out", "stream"):
        (found,) = (f for f in results["overhead"]["figures"][load] if f["subject"] == "forebay")
        ratio, cost = f"{found['ratio']:.2f}", f"{found['cpu_us']:,.0f} µs"
        rows.append((f"{ratio} × ({cost})", f"{ratio} 倍（{cost}）"))
    memory = results["memory"]
    rows.append((f"{memory['bytes_a_stream']:,} bytes", f"{memory['bytes_a_stream']:,} 字节"))
    rows.append((f"{memory['worst_ratio']:.2f} ×", f"{memory['worst_ratio']:.2f} 倍"))
    medians = results["startup"]["medians"]
    rows.append((f"{medians['import'] * 1000:.0f} ms",) * 2)
    first, later = (f"{medians[f'ready, {which} start']:.2f} s" for which in ("first", "later"))
    rows.append((f"{first}, {later}", f"{first}、{later}"))
    lag, n = results["cancel"]["lag_seconds"], f"{results['cancel']['n']:,}"
    median, high = (f"{lag[share] * 1000:.1f} ms" for share in ("0.5", "0.999"))
    rows.append((f"{median}, {high} ({n} cancels)", f"{median}、{high}（{n} 次取消）"))
    return rows


def filled(text: str, values: list[str]) -> str:
    """`text` with the second cell of each row that ends in a `make` command replaced, in the first table that has such.
    Raises ValueError where their number is not that of `values`."""
    lines = text.split("\n")
    rows: list[int] = []
    for i, line in enumerate(lines):
        if line.startswith("| ") and line.endswith("` |") and "| `make " in line:
            if rows and i > rows[-1] + 1:
                break
            rows.append(i)
    if len(rows) != len(values):
        raise ValueError(f"the table has {len(rows)} rows, not {len(values)}")
    for i, value in zip(rows, values, strict=True):
        parts = lines[i].split(" | ")
        lines[i] = " | ".join([parts[0], value, *parts[2:]])
    return "\n".join(lines)


def main() -> int:
    """0; 2 where a result is missing."""
    try:
        results = {name: json.loads((ROOT / "results" / f"{name}.json").read_text()) for name in RESULTS}
    except FileNotFoundError as e:
        print(f"{e.filename} is missing: run that benchmark first", file=sys.stderr)
        return 2
    rows = cells(results)
    for language, name in enumerate(("README.md", "README.zh-CN.md")):
        path = ROOT / name
        path.write_text(filled(path.read_text(), [row[language] for row in rows]))
    missed = [text for r in results.values() for text in r.get("fell_short", r.get("missed", ()))]
    print(
        "\n".join(
            f"{r['machine']['time']} {r['machine']['commit'][:7]} {name}"
            for name, r in results.items()
            if "machine" in r
        )
    )
    print("\n".join(f"missed: {text}" for text in missed))
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Two runs side by side: whether they may be compared, and what of their difference is more than noise."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from forebay.errors import shown
from forebay.hardware.files import read
from forebay.plan.load.document import FORM
from forebay.plan.load.form import what_is_wrong
from forebay.plan.target import LoadError

MAX_BYTES: Final = 64 << 20


@dataclass(frozen=True)
class Row:
    """One figure of both runs; `better` is +1 where B is, -1 where A is, 0 where the intervals overlap, None where
    there are none."""

    name: str
    unit: str
    a: float | None
    b: float | None
    better: int | None

    @property
    def change(self) -> float | None:
        """Of B against A, as a share."""
        return None if self.a in (None, 0) or self.b is None or self.a is None else self.b / self.a - 1


@dataclass(frozen=True)
class Comparison:
    a: dict[str, Any]
    b: dict[str, Any]
    differences: tuple[str, ...]
    """Settings that differ, which make the comparison a doubtful one."""
    rows: tuple[Row, ...]

    def as_json(self) -> dict[str, Any]:
        return {
            "form": "forebay-bench-compare/1",
            "a": self.a["url"],
            "b": self.b["url"],
            "forced": bool(self.differences),
            "differences": list(self.differences),
            "figures": [
                {"name": r.name, "unit": r.unit, "a": r.a, "b": r.b, "change": r.change, "better": r.better}
                for r in self.rows
            ],
        }


def load(path: str) -> dict[str, Any]:
    """A result that `forebay bench --json` wrote. Raises LoadError."""
    try:
        found = json.loads(read(Path(path), MAX_BYTES))
    except (OSError, UnicodeDecodeError, ValueError, RecursionError) as e:
        why = getattr(e, "strerror", None) or ("not JSON" if isinstance(e, ValueError) else e)
        raise LoadError(f"{shown(path)} cannot be read: {why}") from None
    if not isinstance(found, dict) or found.get("form") != FORM:
        raise LoadError(f"{shown(path)} is no result of forebay bench --json ({FORM})")
    if why := what_is_wrong(found):
        raise LoadError(f"{shown(path)} is a result of forebay bench that was cut or changed: {shown(why, 200)}")
    return found


def compare(a: dict[str, Any], b: dict[str, Any], *, force: bool = False) -> Comparison:
    """Raises LoadError where model, prompts or settings differ, unless forced."""
    differences = tuple(_differences(a, b))
    if differences and not force:
        raise LoadError(
            "the runs differ in more than the server: "
            + "; ".join(differences)
            + ". --force compares them all the same"
        )
    return Comparison(a, b, differences, tuple(_rows(a, b)))


_FOUND: Final = frozenset({"rate", "speed", "load_fingerprint"})
"""What a search for the knee finds by itself."""


def _differences(a: dict[str, Any], b: dict[str, Any]) -> list[str]:
    found = []
    searched = "knee" in a and "knee" in b
    for name in dict.fromkeys((*a["load"], *b["load"])):
        if searched and name in _FOUND:
            continue
        x, y = a["load"].get(name), b["load"].get(name)
        if x != y:
            found.append(f"{name} is {_short(x)} in A and {_short(y)} in B")
    if searched:
        for name in ("least_share", "precision", "slo"):
            x, y = a["knee"].get(name), b["knee"].get(name)
            if x != y:
                found.append(f"the knee's {name} is {_short(x)} in A and {_short(y)} in B")
    for word, run in (("A", a), ("B", b)):
        if run["interrupted"] or run["given_up"]:
            found.append(f"{word} did not run to its end")
    return found


def _short(x: Any) -> str:
    return shown("not given" if x is None else x if isinstance(x, str) else json.dumps(x), 60)


_LATENCIES: Final = (("ttft", "TTFT"), ("itl", "ITL"), ("tpot", "TPOT"), ("e2e", "E2E"))


def _rows(a: dict[str, Any], b: dict[str, Any]) -> list[Row]:
    rows = []
    if "knee" in a and "knee" in b:
        rows.append(Row("knee", "requests/s", a["knee"]["rate"], b["knee"]["rate"], None))
    for key, label in _LATENCIES:
        for name in ("p50", "p90", "p99", "mean"):
            field = f"{key}_ms"
            rows.append(
                Row(
                    f"{label} {name.upper() if name[0] == 'p' else name}",
                    "ms",
                    a[field][name],
                    b[field][name],
                    _apart(a["intervals"][field].get(name), b["intervals"][field].get(name), more_is_better=False),
                )
            )
    rows += [
        Row("completed", "requests/s", a["completed_per_s"], b["completed_per_s"], None),
        Row("output", "tokens/s", a["output_tokens_per_s"], b["output_tokens_per_s"], None),
        Row("goodput", "requests/s", a["goodput"]["per_s"], b["goodput"]["per_s"], None),
        Row(
            "good of all",
            "share",
            a["goodput"]["share"],
            b["goodput"]["share"],
            _apart(a["goodput"]["share_interval"], b["goodput"]["share_interval"], more_is_better=True),
        ),
        Row("failed", "requests", a["failed"], b["failed"], None),
    ]
    costs = [{one["name"]: one["per_valid_request"] for one in (run["cost"] or {"by": []})["by"]} for run in (a, b)]
    for name in costs[0].keys() & costs[1].keys():
        rows.append(Row(f"cost a valid request, {name}", a["cost"]["currency"], costs[0][name], costs[1][name], None))
    return rows


def _apart(x: list[float | None] | None, y: list[float | None] | None, *, more_is_better: bool) -> int | None:
    """Which of two intervals is better: +1 the second, -1 the first, 0 where they overlap."""
    if x is None or y is None:
        return None
    (a_low, a_high), (b_low, b_high) = x, y
    if a_high is not None and b_low is not None and b_low > a_high:
        return 1 if more_is_better else -1
    if b_high is not None and a_low is not None and a_low > b_high:
        return -1 if more_is_better else 1
    return 0

"""Numbers and settings as people read them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from forebay.plan.report_metrics import dollars, seconds


def rate(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g}/s"


def late(value: float | None) -> str:
    return "–" if value is None else seconds(value)


def money(value: float | None) -> str:
    """USD, of a request also in small change."""
    if value is None:
        return "–"
    return dollars(value) if value >= 0.01 else f"${value:.2g}"


def share(value: float | None) -> str:
    return "–" if value is None else f"{value:.1%}"


def tokens(value: float | None) -> str:
    return "–" if value is None else f"{value:,.0f}"


def plus_minus(found: Mapping[str, Any], unit: str = "/s") -> str:
    """A mean and its interval."""
    if found["low"] is None:
        return f"{found['mean']:.3g}{unit}"
    return f"{found['mean']:.3g} ± {found['high'] - found['mean']:.2g}{unit}"


def loss(found: Mapping[str, Any]) -> str:
    """What a choice costs against the best, and how sure that is."""
    mean, low, high = found["mean"], found["low"], found["high"]
    if mean is None:
        return "–"
    said = f"{-mean:+.1%}" if mean else "0 %"
    if low is not None and high > low:
        said += f" ± {high - mean:.1%}"
    return said


def verdict(found: Mapping[str, Any]) -> str:
    return {
        "worse": "worse, at 95 %",
        "better": "better, at 95 %",
        "even": "cannot be told apart",
        None: "one seed: not known",
    }[found["verdict"]]


def value(thing: Any) -> str:
    if isinstance(thing, bool):
        return "on" if thing else "off"
    return f"{thing:g}" if isinstance(thing, float) else str(thing)

"""What a result file must have to be compared and drawn: its fields and their types, so that one that was cut or edited
is refused and not half shown."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

Number = Annotated[float, msgspec.Meta(ge=-1e300, le=1e300)]
Numbers = list[Number | None]
Count = Annotated[int, msgspec.Meta(ge=0)]
Bounds = tuple[Number | None, Number | None]


class Latencies(msgspec.Struct):
    """In milliseconds."""

    p50: Number | None
    p90: Number | None
    p99: Number | None
    mean: Number | None


class Intervals(msgspec.Struct):
    ttft_ms: dict[str, Bounds | None]
    itl_ms: dict[str, Bounds | None]
    tpot_ms: dict[str, Bounds | None]
    e2e_ms: dict[str, Bounds | None]


class Goodput(msgspec.Struct):
    slo: str
    good: Count
    per_s: Number
    share: Number | None
    share_interval: Bounds | None


class Curve(msgspec.Struct):
    ms: list[Number]
    share: list[Number]


class Curves(msgspec.Struct):
    ttft: Curve
    itl: Curve
    tpot: Curve
    e2e: Curve


class Timeline(msgspec.Struct):
    width_s: Annotated[float, msgspec.Meta(gt=0, le=1e9)]
    arrived: list[Count]
    good: list[Count]
    tokens: list[Count]
    in_flight: list[Count]
    ttft_p50_ms: Numbers
    ttft_p99_ms: Numbers


class Bill(msgspec.Struct):
    name: str
    per_valid_request: Number | None


class Cost(msgspec.Struct):
    currency: str
    by: list[Bill]


class Knee(msgspec.Struct):
    rate: Number | None
    slo: str


class Bar(msgspec.Struct):
    ttft_s: Number | None = None
    tpot_s: Number | None = None
    e2e_s: Number | None = None


class Load(msgspec.Struct):
    model: str
    slo: Bar


class Document(msgspec.Struct):
    forebay: str
    started: str
    url: str
    model: str
    shape: str
    load: Load
    notes: list[str]
    seconds: Number
    interrupted: bool
    given_up: str | None
    sent: Count
    completed: Count
    failed: Count
    completed_per_s: Number
    output_tokens_per_s: Number
    goodput: Goodput
    ttft_ms: Latencies
    itl_ms: Latencies
    tpot_ms: Latencies
    e2e_ms: Latencies
    intervals: Intervals
    cost: Cost | None
    curves: Curves
    timeline: Timeline
    knee: Knee | msgspec.UnsetType = msgspec.UNSET


def what_is_wrong(document: dict[str, Any]) -> str:
    """Empty where nothing is."""
    try:
        msgspec.convert(document, Document)
    except msgspec.ValidationError as e:
        return str(e)
    return ""

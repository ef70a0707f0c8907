"""A plan's traffic and lengths from what the ledger has recorded.

Rates come from the hourly sums, which are exact; lengths, the share of cached prompt tokens, bursts and the TTFT that
was measured come from the newest entries of the span, of which a bounded number is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from zoneinfo import ZoneInfo

import numpy as np
from sqlalchemy import Connection, select

from forebay.ledger.entries import How
from forebay.ledger.reports import MOST_STEPS, Query, Row, report
from forebay.ledger.schema import ACCOUNT, SHAPE, accounts, dimensions, entries
from forebay.ledger.steps import Step
from forebay.ledger.tokens import KINDS, Tokens
from forebay.plan.capacity_lengths import Lengths
from forebay.plan.capacity_question import PlanError, Traffic
from forebay.plan.capacity_traffic import HOUR, WINDOW, of_arrivals

MOST_ENTRIES: Final = 50_000
"""Newest entries of the span that lengths are taken from."""
FEWEST: Final = 20
"""Entries without which there are no lengths to speak of."""
_SINGLE: Final = (*SHAPE, *ACCOUNT)
"""What entries can be chosen by."""


@dataclass(frozen=True)
class Recorded:
    traffic: Traffic
    lengths: Lengths
    cache_hit: float
    """Share of prompt tokens that were read from a cache."""
    notes: tuple[str, ...]


def recorded(
    connection: Connection,
    *,
    since: float,
    until: float,
    zone: str,
    where: Mapping[str, tuple[str, ...]],
    tiers: Mapping[str, float],
    growth: float = 1.0,
) -> Recorded:
    """What was asked of engines from `since` until before `until`. `where`: name → values, as of reports; `tiers`: how
    many times as many requests a tier has. Raises PlanError, `reports.BadQuery`, DatabaseError."""
    if (until - since) / HOUR > MOST_STEPS:
        raise PlanError(f"--since: at most {MOST_STEPS / 24:.0f} days are read by the hour")
    for name in where:
        if name not in _SINGLE:
            raise PlanError(f"--where: a plan can be for {', '.join(_SINGLE)}, not {name}")
    rows = report(connection, Query(since, until, by=("tier",), step=Step.HOUR, zone=zone, where=where))
    _check_tiers(rows, tiers)
    hours, seen = _hours(rows, zone, tiers, growth)
    if not any(hours):
        raise PlanError("the ledger has no request of an engine in that time; choose --since and --where otherwise")
    table = _entries(connection, since, until, where)
    if len(table) < FEWEST:
        raise PlanError(
            f"the ledger has {len(table)} entries with tokens in that time, {FEWEST} are needed for lengths"
        )
    lengths, cache_hit = _lengths(table, tiers)
    peak = max(max(hours), _busiest(table) * _share_of(tiers, table) * growth)
    changed = "".join(f", tier {name} × {factor:g}" for name, factor in tiers.items())
    grown = f", × {growth:g}" if growth != 1 else ""
    span = f"{(until - since) / 86_400:.3g} days"
    what = f"{seen:,} attempts in {span}{changed}{grown}"
    text = f"the ledger's {what}, each hour's highest"
    traffic = Traffic(hours=hours, peak=peak, text=text)
    return Recorded(traffic, lengths, cache_hit, tuple(_notes(table, peak, max(hours), text)))


def _check_tiers(rows: list[Row], tiers: Mapping[str, float]) -> None:
    there = sorted({row.group[0] for row in rows} - {""})
    for name in tiers:
        if name not in there:
            raise PlanError(f"--tier: the ledger has no tier {name} in that time; it has {', '.join(there) or 'none'}")


def _hours(rows: list[Row], zone: str, tiers: Mapping[str, float], growth: float) -> tuple[tuple[float, ...], int]:
    """The highest rate of each hour of the day, and how many attempts there were, without answers from a cache."""
    sums: dict[float, float] = {}
    spans: dict[float, float] = {}
    seen = 0
    for row in rows:
        count = row.attempts - row.cached
        seen += count
        sums[row.since] = sums.get(row.since, 0.0) + count * tiers.get(row.group[0], 1.0)
        spans[row.since] = row.until - row.since
    found = [0.0] * 24
    place = ZoneInfo(zone)
    for begin, total in sums.items():
        hour = datetime.fromtimestamp(begin, place).hour
        # an hour that the span cuts short is not taken for a quiet one, nor a minute of it for a busy one
        found[hour] = max(found[hour], total * growth / max(spans[begin], HOUR / 4))
    return tuple(found), seen


@dataclass(frozen=True)
class _Entry:
    reserved: float
    tokens: Tokens
    ttft: float
    tier: str


def _entries(connection: Connection, since: float, until: float, where: Mapping[str, tuple[str, ...]]) -> list[_Entry]:
    """The newest that were answered in full by an engine, in order of time."""
    e, d = entries.c, dimensions.c
    chosen = [(accounts.c if name in ACCOUNT else d)[name].in_(values) for name, values in where.items()]
    query = (
        select(e.reserved, e.ttft, d.tier, *(e[kind] for kind in KINDS))
        .select_from(entries.join(dimensions, d.id == e.dimension_id).join(accounts, accounts.c.id == d.account_id))
        .where(e.at >= since, e.at < until, e.outcome == "ok", e.how != How.CACHE, *chosen)
        .order_by(e.at.desc())
        .limit(MOST_ENTRIES)
    )
    found = [_Entry(row[0], Tokens(*map(int, row[3:])), row[1], row[2]) for row in connection.execute(query)]
    return [one for one in reversed(found) if one.tokens.prompt > 0 and one.tokens.completion > 0]


def _lengths(table: list[_Entry], tiers: Mapping[str, float]) -> tuple[Lengths, float]:
    """As many of each tier's requests as `tiers` has of them."""
    rng = np.random.default_rng(7)
    weights = np.array([tiers.get(one.tier, 1.0) for one in table])
    if tiers and weights.sum() > 0:
        table = [table[i] for i in rng.choice(len(table), len(table), p=weights / weights.sum())]
    prompts = np.array([one.tokens.prompt for one in table], dtype=np.float64)
    outputs = np.array([one.tokens.completion for one in table], dtype=np.float64)
    cached = float(sum(one.tokens.cached for one in table))
    return Lengths(prompts, outputs, f"{len(table):,} recorded requests"), min(0.99, cached / float(prompts.sum()))


def _share_of(tiers: Mapping[str, float], table: list[_Entry]) -> float:
    return sum(tiers.get(one.tier, 1.0) for one in table) / len(table)


def _busiest(table: list[_Entry]) -> float:
    """Requests a second of the busiest five minutes, at least."""
    times = np.sort(np.array([one.reserved for one in table]))
    if times[-1] - times[0] < WINDOW:
        return len(times) / WINDOW
    return of_arrivals(times, "the ledger").traffic.peak or 0.0


def _notes(table: list[_Entry], peak: float, hour: float, text: str) -> list[str]:
    out = [f"traffic: {text}; at most {peak:.3g} requests/s over five minutes, {hour:.3g} over an hour"]
    ttft = np.array([one.ttft for one in table if one.ttft > 0])
    if len(ttft) >= FEWEST:
        p50, p95 = np.quantile(ttft, (0.5, 0.95))
        out.append(f"recorded TTFT of the newest {len(ttft):,} requests: P50 {p50:.3g} s, P95 {p95:.3g} s")
    return out


def tiers_of(texts: list[str]) -> dict[str, float]:
    """`NAME=X` each: so many times as many requests of a tier. Raises PlanError."""
    found: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        try:
            factor = float(value)
        except ValueError:
            factor = -1.0
        if not equals or not name or not 0 <= factor <= 1e6:
            raise PlanError(f"--tier must be NAME=X, X times its requests, at least 0, not '{text[:80]}'")
        found[name.strip()] = factor
    return found

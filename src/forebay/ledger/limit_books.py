"""What the books say was used of limits before a worker began to count: where it was killed, or a rule is new.

The books count by the time of settlement, a worker by that of the hold: a request that ran over a window's end may be
in the next one here. End users beyond the bound of the sums (`ledger.names`) are not told apart, and left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from sqlalchemy import Connection

from forebay.counters import OVERFLOW
from forebay.ledger.gates import Path, Who, path_of
from forebay.ledger.limit_state import Use
from forebay.ledger.meters import span
from forebay.ledger.reports import BadQuery, Query, Row, report
from forebay.ledger.rules import MONEY, Level, Measure, Rule, Window
from forebay.ledger.schema import ACCOUNT
from forebay.ledger.windows import Calendar, Span

BUDGETS: Final = (Measure.TOKENS_DAY, Measure.TOKENS_MONTH, Measure.MONEY_DAY, Measure.MONEY_MONTH)
_LENGTHS: Final = {Span.DAY: 86_400.0, Span.MONTH: 30 * 86_400.0}


def booked(
    connection: Connection, rules: Iterable[Rule], since: Mapping[str, float], now: float
) -> tuple[list[Use], list[str]]:
    """For `limit_state.others`: use of the windows that have `now` (Unix time), up to `since`, when a worker began to
    count a rule, by `Rule.id`; all of it where that says nothing. And the names of rules left out, with too many scopes
    to be told apart. Blocks. Raises what the database raises."""
    found: list[Use] = []
    left_out: dict[str, None] = {}
    rows: dict[tuple[float, float, tuple[str, ...]], list[Row] | None] = {}
    calendars: dict[tuple[Span, str], Calendar] = {}
    for rule in rules:
        by = (*ACCOUNT, *(("served",) if rule.models else ()), *(("end_user",) if rule.each is Level.END_USER else ()))
        for measure in BUDGETS:
            if rule.limit(measure) is None:
                continue
            start = _start(rule, measure, now, calendars)
            until = min(now, since.get(rule.id, now))
            if until <= start:
                continue
            at = (start, until, by)
            if at not in rows:
                try:
                    rows[at] = report(connection, Query(start, until, by))
                except BadQuery:
                    rows[at] = None
            known = rows[at]
            if known is None:
                left_out[rule.name] = None
            else:
                began = 0.0 if rule.window is Window.SLIDING else start
                found += (Use(rule.id, path, measure, began, n) for path, n in _sums(rule, measure, by, known).items())
    return found, list(left_out)


def _start(rule: Rule, measure: Measure, now: float, calendars: dict[tuple[Span, str], Calendar]) -> float:
    if rule.window is Window.SLIDING:
        return now - _LENGTHS[span(measure)]
    at = (span(measure), rule.zone)
    if at not in calendars:
        calendars[at] = Calendar(*at)
    return calendars[at].window(now)[0]


def _sums(rule: Rule, measure: Measure, by: tuple[str, ...], rows: Iterable[Row]) -> dict[Path, int]:
    sums: dict[Path, int] = {}
    for row in rows:
        of = dict(zip(by, row.group, strict=True))
        if rule.models and of["served"] not in rule.models:
            continue
        path = path_of(rule, Who(*(of[name] for name in ACCOUNT)))
        if path is None:
            continue
        if rule.each is Level.END_USER:
            end_user = of["end_user"]
            if end_user in ("", OVERFLOW) or (rule.end_user and rule.end_user != end_user):
                continue
            path = (*path, end_user)
        sums[path] = sums.get(path, 0) + (row.total if measure in MONEY else row.tokens.total)
    return {path: n for path, n in sums.items() if n > 0}

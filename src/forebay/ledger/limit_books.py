"""What others than one worker have used of limits, by the books: its own earlier lives, before it was killed, and other
hosts on the same database.

That is all use of a window but for what the worker counted itself: its own entries since it began to count a rule. Sums
of all come from the rollups; own entries are read once each, and those of the last seconds again every time.

The books count by the time of settlement, a worker by that of the hold: a request that ran over a window's end may be
in the next one here. End users beyond the bound of the sums (`ledger.names`) are not told apart, and left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from sqlalchemy import Connection, func, select

from forebay.counters import OVERFLOW
from forebay.ledger.gates import Path, Who, path_of
from forebay.ledger.limit_state import Use
from forebay.ledger.meters import SLOTS, span
from forebay.ledger.reports import BadQuery, Query, report
from forebay.ledger.rules import BUDGETS, MONEY, Level, Measure, Rule, Window
from forebay.ledger.schema import ACCOUNT, HOUR, accounts, dimensions, entries, journals
from forebay.ledger.tokens import KINDS
from forebay.ledger.windows import Calendar, Span

OVERLAP: Final = 10.0
"""Seconds before the newest of its own entries that are read again: a clock may have been put back a little."""

_Group = tuple[str, ...]
_Amounts = tuple[int, int]  # tokens, and money in nano-units
_NONE: Final = (0, 0)


class Elsewhere:
    """Of the worker whose journal is `owner`, under rules that it has counted since the Unix times `since`, by
    `Rule.id`. Blocks; for one thread at a time. Mutable state: the sums of its own entries."""

    def __init__(self, owner: str, rules: Iterable[Rule], since: Mapping[str, float]) -> None:
        self._owner = owner
        found: dict[tuple[Window, Span, str], list[tuple[Rule, Measure]]] = {}
        for rule in rules:
            for measure in BUDGETS:
                if rule.limit(measure) is not None:
                    zone = "" if rule.window is Window.SLIDING else rule.zone
                    found.setdefault((rule.window, span(measure), zone), []).append((rule, measure))
        self._windows = [_Windows(kind, counted, since) for kind, counted in found.items()]
        self._others = select(func.count(), func.coalesce(func.sum(journals.c.position), 0)).where(
            journals.c.owner != owner
        )
        self._heard: tuple[int, int] | None = None
        """How many journals others had at the last look, and the sum of their positions."""

    def moved(self, connection: Connection) -> bool:
        """Whether more of others is booked than at the last `read`, or there was none. Corrections, and what is settled
        for those who never did, do not show. Raises what the database raises."""
        return self._stand(connection) != self._heard

    def _stand(self, connection: Connection) -> tuple[int, int]:
        count, positions = connection.execute(self._others).one()
        return int(count), int(positions)

    def read(self, connection: Connection, now: float) -> tuple[list[Use], list[str]]:
        """Use in the windows that have `now` (Unix time), and the names of rules left out, with too many scopes to be
        told apart. `connection` must see one state of the database. Raises what the database raises."""
        stand = self._stand(connection)
        journal = connection.execute(select(journals.c.id).where(journals.c.owner == self._owner)).scalar()
        uses: list[Use] = []
        left_out: dict[str, None] = {}
        for windows in self._windows:
            try:
                uses += windows.read(connection, journal, now)
            except BadQuery:
                left_out |= dict.fromkeys(rule.name for rule, _ in windows.counted)
        self._heard = stand
        return uses, list(left_out)

    def __repr__(self) -> str:
        return f"<Elsewhere than {self._owner}, {len(self._windows)} kinds of windows>"


class _Windows:
    """The windows of one kind, and what is counted in them."""

    def __init__(
        self,
        kind: tuple[Window, Span, str],
        counted: Sequence[tuple[Rule, Measure]],
        since: Mapping[str, float],
    ) -> None:
        window, length, zone = kind
        self.counted = counted
        self._calendar = None if window is Window.SLIDING else Calendar(length, zone)
        self._slots, self._seconds = SLOTS[length]
        self._since = {rule.id: since.get(rule.id, float("inf")) for rule, _ in counted}
        self._marks = sorted(set(self._since.values()))
        named = any(rule.models for rule, _ in counted)
        end_users = any(rule.each is Level.END_USER for rule, _ in counted)
        self._by = (*ACCOUNT, *(("served",) if named else ()), *(("end_user",) if end_users else ()))
        self._own: dict[float, dict[_Group, _Amounts]] = {}
        """By when a part of a window begins that is wholly before or after each of `_marks`."""
        self._cursor = self._marks[0]
        """Own entries before this are in `_own`."""

    def read(self, connection: Connection, journal: int | None, now: float) -> Iterator[Use]:
        start, until = self._window(now)
        rows = report(connection, Query(start, until, self._by))
        everyone = [(row.group, (row.tokens.total, row.total)) for row in rows]
        own = list(self._read_own(connection, journal, start)) if journal is not None else []
        began = 0.0 if self._calendar is None else start
        for rule, measure in self.counted:
            since = self._since[rule.id]
            mine = _by_path(rule, measure, self._by, (row for part, row in own if part >= since))
            for path, amount in _by_path(rule, measure, self._by, everyone).items():
                if (more := amount - mine.get(path, 0)) > 0:
                    yield Use(rule.id, path, measure, began, more)

    def _window(self, now: float) -> tuple[float, float]:
        """What is summed: whole hours where the window begins with one, for the rollups; somewhat into the future, for
        hosts whose clocks are ahead."""
        soon = (now // HOUR + 2) * HOUR
        if self._calendar is None:
            return now // self._seconds * self._seconds - self._slots * self._seconds, soon
        start, end = self._calendar.window(now)
        return start, min(end, soon)

    def _read_own(
        self, connection: Connection, journal: int, start: float
    ) -> Iterator[tuple[float, tuple[_Group, _Amounts]]]:
        """Of each part since `start`: when it begins, and a row of its sums."""
        self._cursor = max(self._cursor, start)
        for over in [part for part in self._own if part < start]:
            del self._own[over]
        mine = (entries.c.journal_id == journal, entries.c.at >= self._cursor)
        last = connection.execute(select(func.max(entries.c.at)).where(*mine)).scalar()
        if last is not None:
            for part, since, until in self._parts(self._cursor, last - OVERLAP):
                sums = self._own.setdefault(part, {})
                for group, (tokens, money) in self._entries(connection, journal, since, until):
                    before = sums.get(group, _NONE)
                    sums[group] = (before[0] + tokens, before[1] + money)
                self._cursor = until
            for part, since, until in self._parts(self._cursor, last + 1.0):
                yield from ((part, row) for row in self._entries(connection, journal, since, until))
        for part, sums in self._own.items():
            yield from ((part, row) for row in sums.items())

    def _parts(self, since: float, until: float) -> Iterator[tuple[float, float, float]]:
        """(the part's beginning, since, until), none longer than an hour, so that a query is soon done."""
        while since < until:
            if self._calendar is None:
                begins = since // self._seconds * self._seconds
                ends = begins + self._seconds
            else:
                begins, ends = self._calendar.window(since)
            for mark in self._marks:
                if mark <= since:
                    begins = max(begins, mark)
                else:
                    ends = min(ends, mark)
            end = min(ends, until, since + HOUR)
            yield begins, since, end
            since = end

    def _entries(
        self, connection: Connection, journal: int, since: float, until: float
    ) -> list[tuple[_Group, _Amounts]]:
        e, d = entries.c, dimensions.c
        columns: list[Any] = [accounts.c[name] if name in ACCOUNT else d[name] for name in self._by]
        tokens = sum((e[kind] for kind in KINDS if kind != "images"), start=0 * e.images)
        query = (
            select(*columns, func.sum(tokens), func.sum(func.coalesce(e.cost, 0)))
            .select_from(entries.join(dimensions, d.id == e.dimension_id).join(accounts, accounts.c.id == d.account_id))
            .where(e.journal_id == journal, e.at >= since, e.at < until)
            .group_by(*columns)
        )
        return [(tuple(row[:-2]), (int(row[-2]), int(row[-1]))) for row in connection.execute(query)]

    def __repr__(self) -> str:
        return f"<_Windows {self._calendar or 'sliding'}, {len(self.counted)} limits>"


def _by_path(
    rule: Rule, measure: Measure, by: tuple[str, ...], rows: Iterable[tuple[_Group, _Amounts]]
) -> dict[Path, int]:
    sums: dict[Path, int] = {}
    column = measure in MONEY
    for group, amounts in rows:
        of = dict(zip(by, group, strict=True))
        if rule.models and of["served"] not in rule.models:
            continue
        path = path_of(rule, Who(*group[: len(ACCOUNT)]))
        if path is None:
            continue
        if rule.each is Level.END_USER:
            end_user = of["end_user"]
            if end_user in ("", OVERFLOW) or (rule.end_user and rule.end_user != end_user):
                continue
            path = (*path, end_user)
        sums[path] = sums.get(path, 0) + amounts[column]
    return sums

"""What the rules of alerts ask, answered from the tables of the ledger.

Sums are those of `ledger.reports`, taken once for all limits that share a window and added up by scope here. What was
used on days that are over is remembered for hours, since it changes only by corrections.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import pairwise
from types import MappingProxyType
from typing import Final, NamedTuple
from zoneinfo import ZoneInfo

from sqlalchemy import Connection, func, select

from forebay.config.alerts import Every
from forebay.config.alerts import Level as Whose
from forebay.ledger.alerts import Burst, Quota, Scope, Unit, UnpricedUse, Windows
from forebay.ledger.meters import span
from forebay.ledger.reports import Query, report
from forebay.ledger.rules import SELECTORS, Level, Measure, Over, Rule, Window
from forebay.ledger.schema import HOUR, accounts, dimensions, rollups
from forebay.ledger.trends import BACK

MEASURES: Final = MappingProxyType(
    {
        Measure.TOKENS_DAY: Unit.TOKENS,
        Measure.TOKENS_MONTH: Unit.TOKENS,
        Measure.MONEY_DAY: Unit.MONEY,
        Measure.MONEY_MONTH: Unit.MONEY,
    }
)
SLIDING: Final = MappingProxyType({Every.DAY: 86_400.0, Every.MONTH: 30 * 86_400.0})
KEEP: Final = 6 * 3_600.0
"""Seconds for which sums of days that are over are remembered."""
SEVERAL: Final = 5
"""Attempts from which on their mean says what the next one takes."""
KEPT: Final = 512
"""Sums of days that are remembered at most."""
_NAMES: Final = ("organisation", "department", "project", "user", "key_name", "key")
_DEPTHS: Final = MappingProxyType(
    {Level.ORGANISATION: 1, Level.DEPARTMENT: 2, Level.PROJECT: 3, Level.USER: 4, Level.KEY: 5}
)

Spent = tuple[int, int, int]
"""Tokens, nano-units, attempts."""
Path = tuple[str, ...]
"""What tells scopes of a level apart: a key's id, whatever it is called; else the names."""


class Of(NamedTuple):
    """Who used something, as far as it was asked."""

    names: tuple[str, ...]
    """Organisation, department, project, user, the key's name."""
    key: str
    model: str
    end_user: str
    """"" but in rows that are of one end user's, which are rows of the others once more."""


class Sum:
    """What a scope used."""

    __slots__ = ("attempts", "money", "scope", "tokens")

    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self.tokens = 0
        self.money = 0
        self.attempts = 0


class _Sums:
    """What a span comes to."""

    def __init__(self, rows: Mapping[Of, Spent]) -> None:
        self._rows = rows
        self._by: dict[tuple[Level, tuple[str, ...]], dict[Path, Sum]] = {}

    def of(self, rule: Rule) -> dict[Path, Sum]:
        """The scopes that the rule counts, and others of their level."""
        if rule.end_user:
            return self._added(rule.each, rule.models, rule)
        key = (rule.each, rule.models)
        found = self._by.get(key)
        if found is None:
            found = self._by[key] = self._added(rule.each, rule.models, None)
        return found

    def _added(self, each: Level, models: tuple[str, ...], rule: Rule | None) -> dict[Path, Sum]:
        end_user = rule.end_user if rule is not None else ""
        found: dict[Path, Sum] = {}
        for of, (tokens, money, attempts) in self._rows.items():
            if (models and of.model not in models) or of.end_user != end_user:
                continue
            if rule is not None and not _fits(rule, of.names, of.key):
                continue
            add(found, scope_of(each, of.names, of.key, end_user), tokens, money, attempts)
        return found


def add(sums: dict[Path, Sum], scope: Scope | None, tokens: int, money: int, attempts: int = 0) -> None:
    if scope is None:
        return
    path = path_of(scope)
    found = sums.get(path)
    if found is None:
        found = sums[path] = Sum(scope)
    found.tokens += tokens
    found.money += money
    found.attempts += attempts


def path_of(scope: Scope) -> Path:
    return (scope.id,) if scope.level == "key" else (*scope.names, scope.id)


def scope_of(each: Level, names: tuple[str, ...], key: str, end_user: str = "") -> Scope | None:
    """None where the level was not given."""
    if each is Level.ALL:
        return Scope("all")
    if each is Level.END_USER:
        return Scope("end_user", names[:3], end_user)
    depth = _DEPTHS[each]
    if each is Level.KEY:
        return Scope("key", names, key)
    return Scope(each.value, names[:depth]) if names[depth - 1] else None


def _fits(rule: Rule, names: tuple[str, ...], key: str) -> bool:
    """Whether a rule counts what this caller uses."""
    for level in SELECTORS:
        wanted = rule.selector(level)
        if not wanted or level is Level.END_USER:
            continue
        if level is Level.KEY:
            if wanted not in (key, names[4] if len(names) > 4 else ""):
                return False
        elif len(names) < _DEPTHS[level] or wanted != names[_DEPTHS[level] - 1]:
            return False
    return True


_Span = tuple[float, float, bool, tuple[str, ...]]
"""From, until, and what is told apart: `SqlUsage._wanted`."""


class Memory:
    """What is remembered from one look to the next: days that are over."""

    def __init__(self) -> None:
        self.windows = Windows()
        self._days: OrderedDict[_Span, tuple[float, _Sums]] = OrderedDict()

    def get(self, key: _Span, now: float) -> _Sums | None:
        found = self._days.get(key)
        return found[1] if found is not None and 0 <= now - found[0] < KEEP else None

    def put(self, key: _Span, now: float, sums: _Sums) -> None:
        self._days[key] = (now, sums)
        self._days.move_to_end(key)
        while len(self._days) > KEPT:
            self._days.popitem(last=False)


class SqlUsage:
    """`ledger.alerts.Usage` of one state of the database. Raises DatabaseError."""

    def __init__(self, connection: Connection, rules: Sequence[Rule], zone: str, memory: Memory) -> None:
        """`zone`: of the windows in which sliding limits are told of once."""
        self._connection = connection
        self._rules = {rule.name: rule for rule in rules if _budget(rule)}
        self._zone = zone
        self._memory = memory

    def quotas(self, now: float) -> list[Quota]:
        sums: dict[float, _Sums] = {}
        found: list[Quota] = []
        for rule in self._rules.values():
            sliding = rule.window is Window.SLIDING
            for measure, unit in MEASURES.items():
                if (most := rule.limit(measure)) is None:
                    continue
                every = Every(span(measure).value)
                window = self._memory.windows.at(every, self._zone if sliding else rule.zone, now)
                since = now - SLIDING[every] if sliding else window.since
                if since not in sums:
                    sums[since] = self._sums(since, now)
                for total in sums[since].of(rule).values():
                    used = total.money if unit is Unit.MONEY else total.tokens
                    scope = total.scope
                    if used > 0 and (rule.end_user or _fits(rule, scope.names, scope.id)):
                        refuses = rule.over is Over.REFUSE
                        each = -(-used // total.attempts) if total.attempts >= SEVERAL else 0
                        quota = Quota(rule.name, scope, unit, window, most, used, refuses, rule.models, sliding, each)
                        found.append(quota)
        return found

    def days(self, quota: Quota, now: float, most: int) -> list[int]:
        rule = self._rules.get(quota.limit)
        if rule is None:
            return []
        path = path_of(quota.scope)
        found: list[int] = []
        for since, until in _days_before(now, quota.window.zone, most):
            total = self._past(since, until, now).of(rule).get(path)
            used = 0 if total is None else max(0, total.money if quota.unit is Unit.MONEY else total.tokens)
            if used or found:
                found.append(used)
        return found

    def minute(self, level: Whose, least: int, now: float) -> list[Burst]:
        sums: dict[Path, Sum] = {}
        for of, (tokens, money, _) in self._rows(now - 60, now).items():
            add(sums, scope_of(Level(level.value), of.names, of.key), tokens, money)
        return [Burst(total.scope, total.tokens) for total in sums.values() if total.tokens >= least]

    def unpriced(self, since: float, now: float) -> list[UnpricedUse]:
        if since >= now:
            return []
        found: dict[str, UnpricedUse] = {}
        query = Query(since, now, by=("served", "engine"), where={"how": ("unpriced",)})
        for row in report(self._connection, query):
            model, engine = row.group
            before = found.get(model)
            attempts, tokens = row.attempts, row.tokens.total
            if before is not None:
                engine, attempts, tokens = before.engine, attempts + before.attempts, tokens + before.tokens
            found[model] = UnpricedUse(model, engine, attempts, tokens, since)
        return list(found.values())

    def hours(self, level: Whose, least: int, now: float) -> dict[Scope, dict[int, int]]:
        present = int(now // HOUR * HOUR)
        dear = {path for path, (_, hours) in self._hours(level, present - HOUR).items() if max(hours.values()) >= least}
        if not dear:
            return {}
        found = self._hours(level, present - BACK * 86_400)
        return {scope: hours for path, (scope, hours) in found.items() if path in dear}

    def _hours(self, level: Whose, since: int) -> dict[Path, tuple[Scope, dict[int, int]]]:
        names = _NAMES if level is Whose.KEY else _NAMES[: _DEPTHS[Level(level.value)]]
        r, columns = rollups.c, [accounts.c[name] for name in names]
        query = (
            select(r.slot, func.sum(r.cost + r.adjusted), *columns)
            .join(dimensions, dimensions.c.id == r.dimension_id)
            .join(accounts, accounts.c.id == dimensions.c.account_id)
            .where(r.grain == HOUR, r.slot >= since)
            .group_by(r.slot, *columns)
        )
        found: dict[Path, tuple[Scope, dict[int, int]]] = {}
        for slot, cost, *group in self._connection.execute(query):
            key = group.pop() if level is Whose.KEY else ""
            scope = scope_of(Level(level.value), tuple(group), key)
            if scope is not None:
                hours = found.setdefault(path_of(scope), (scope, {}))[1]
                hours[int(slot)] = hours.get(int(slot), 0) + int(cost)
        return found

    def _past(self, since: float, until: float, now: float) -> _Sums:
        key = (since, until, *self._wanted())
        found = self._memory.get(key, now)
        if found is None:
            found = self._sums(since, until)
            self._memory.put(key, now, found)
        return found

    def _sums(self, since: float, until: float) -> _Sums:
        return _Sums(self._rows(since, until, *self._wanted()))

    def _wanted(self) -> tuple[bool, tuple[str, ...]]:
        """Whether models must be told apart, and which end users."""
        rules = self._rules.values()
        return any(rule.models for rule in rules), tuple(sorted({rule.end_user for rule in rules if rule.end_user}))

    def _rows(
        self, since: float, until: float, models: bool = False, end_users: tuple[str, ...] = ()
    ) -> dict[Of, Spent]:
        if since >= until:
            return {}
        by = _NAMES + (("served",) if models else ())
        found: dict[Of, Spent] = {}
        for row in report(self._connection, Query(since, until, by=by)):
            names, key, model = row.group[:5], row.group[5], row.group[6] if models else ""
            found[Of(names, key, model, "")] = (row.tokens.total, row.total, row.attempts)
        for at in range(0, len(end_users), 500):
            where = {"end_user": end_users[at : at + 500]}
            for row in report(self._connection, Query(since, until, by=(*by, "end_user"), where=where)):
                names, key, model = row.group[:5], row.group[5], row.group[6] if models else ""
                found[Of(names, key, model, row.group[-1])] = (row.tokens.total, row.total, row.attempts)
        return found


def _budget(rule: Rule) -> bool:
    if rule.each is Level.END_USER and not rule.end_user:
        return False
    return any(rule.limit(measure) is not None for measure in MEASURES)


def _days_before(now: float, zone: str, most: int) -> Iterator[tuple[float, float]]:
    """The last `most` days that are over in the zone, oldest first."""
    where = ZoneInfo(zone)
    today = datetime.fromtimestamp(now, where).date()
    edges = [
        datetime(day.year, day.month, day.day, tzinfo=where).timestamp()
        for day in (today - timedelta(days=back) for back in range(most, -1, -1))
    ]
    yield from pairwise(edges)

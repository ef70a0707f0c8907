"""Which limits a caller passes: rules matched with callers once, and looked up again only when the rules change."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from forebay.errors import shown
from forebay.ledger.meters import AnyMeter, Budget, Concurrent, Rate, Sliding, meter, span
from forebay.ledger.records import KeyRecord
from forebay.ledger.rules import MONEY, SELECTORS, Hold, Level, Measure, Rule
from forebay.ledger.windows import Calendar, Span

SWEEP: Final = 10_000
"""Scopes from which on those that have nothing to remember are dropped."""
_PATHS: Final = (Level.ORGANISATION, Level.DEPARTMENT, Level.PROJECT, Level.USER)
_KEPT: Final = 256
"""Models, and end users, that a gate keeps the meters of."""

_LONGEST_NAME: Final = 256
"""Characters of an end user's name; a longer one is known by its SHA-256."""

Path = tuple[str, ...]


def known_as(end_user: str) -> str:
    """An end user's name, as it is counted and booked by."""
    if len(end_user) <= _LONGEST_NAME:
        return end_user
    return hashlib.sha256(end_user.encode("utf-8", "surrogatepass")).hexdigest()


@dataclass(frozen=True, slots=True)
class Who:
    """Whom a request is booked to; "" for a level that was not given."""

    key: str
    key_name: str
    organisation: str
    department: str = ""
    project: str = ""
    user: str = ""

    @classmethod
    def of(cls, record: KeyRecord) -> Who:
        return cls(
            record.id,
            record.name,
            record.organisation,
            record.department or "",
            record.project or "",
            record.user or "",
        )


class Group:
    """The meters of one rule for one scope."""

    __slots__ = ("meters", "path", "rule", "scope")

    def __init__(self, rule: Rule, path: Path) -> None:
        self.rule = rule
        self.path = path
        names = "/".join(shown(name) for name in path if name)
        self.scope = f"{rule.each.value.replace('_', '-')} {names}" if path else rule.each.value
        """For people."""
        self.meters: dict[Measure, AnyMeter] = {}

    def idle(self, now: float, wall: float) -> bool:
        return all(m.idle(now, wall) for m in self.meters.values())

    def __repr__(self) -> str:
        return f"<Group {self.rule.name} {self.scope} {list(self.meters.values())}>"


class Meters:
    """All meters that one request passes, by kind."""

    __slots__ = (
        "all",
        "answer",
        "concurrent",
        "least",
        "money",
        "predicts_cost",
        "rates",
        "requests",
        "sets_most",
        "sets_words",
        "token_limits",
        "tokens",
    )

    def __init__(self, groups: Iterable[Group]) -> None:
        meters = [m for g in groups for m in g.meters.values()]
        rates = [m for m in meters if isinstance(m, Rate)]
        budgets = [m for m in meters if isinstance(m, Budget | Sliding)]
        hard = [m.rule for m in budgets if m.refuses and not m.predicted]
        self.all = tuple(meters)
        self.requests = tuple(m for m in rates if m.measure is Measure.REQUESTS_MINUTE)
        self.rates = tuple(m for m in rates if m.measure is Measure.TOKENS_MINUTE)
        self.concurrent = tuple(m for m in meters if isinstance(m, Concurrent))
        self.tokens = tuple(m for m in budgets if m.measure in (Measure.TOKENS_DAY, Measure.TOKENS_MONTH))
        self.token_limits = (*self.rates, *self.tokens)
        self.money = tuple(m for m in budgets if m.measure in MONEY)
        self.predicts_cost = any(m.predicted for m in self.money)
        """Whether one of `money` holds what is predicted."""
        strictest = min(hard, key=lambda r: r.answer, default=None)
        self.sets_most = "" if strictest is None else strictest.name
        """The rule that gives a request without max_tokens one; "": none does."""
        self.sets_words = b""
        """What `limit_words` says of that."""
        self.answer = min((m.rule.answer for m in meters), default=0) if strictest is None else strictest.answer
        """Completion tokens held of a request without max_tokens."""
        self.least = max((r.least_answer for r in hard), default=1)

    def __repr__(self) -> str:
        return f"<Meters {list(self.all)}>"


NO_METERS: Final = Meters(())


class Gate:
    """The limits of one caller. Kept with its connection; renewed by itself when rules have changed."""

    __slots__ = ("base", "by_end_user", "by_model", "generation", "groups", "per_end_user", "who")

    def __init__(self, who: Who) -> None:
        self.who = who
        self.generation = -1
        self.base = NO_METERS
        """For a model that no rule names."""
        self.by_model: dict[str, Meters] = {}
        self.groups: tuple[Group, ...] = ()
        self.per_end_user: tuple[tuple[Rule, Path], ...] = ()
        self.by_end_user: dict[tuple[str, str], tuple[list[Group], Meters]] = {}
        """The end user's own groups, and all meters; by model and end user."""

    def __repr__(self) -> str:
        return f"<Gate {self.who.key_name} {len(self.groups)} rules, {len(self.per_end_user)} per end user>"


class Scopes:
    """The rules in force and a group of meters for each scope that came by. `generation` changes when gates must be
    looked up anew."""

    def __init__(self, end_users: int, sweep: int = SWEEP) -> None:
        self.generation = 0
        self.next = 1
        """The number of the next hold."""
        self.forgotten = 0
        """Scopes of end users that were forgotten with something used."""
        self.rules: dict[str, Rule] = {}
        self.since: dict[str, float] = {}
        """Since when each rule has counted here: Unix time, by its id."""
        self.models: frozenset[str] = frozenset()
        """That some rule names."""
        self.predicts = False
        """Whether some rule holds what is predicted."""
        self.end_users: OrderedDict[tuple[str, Path], Group] = OrderedDict()
        """The longest unseen first."""
        self.groups: dict[tuple[str, Path], Group] = {}
        """Of all other scopes."""
        self._most_end_users = end_users
        self._index: dict[tuple[Level, str], list[Rule]] = {}
        self._calendars: dict[tuple[Span, str], Calendar] = {}
        self._sweep_least = sweep
        self._sweep_at = sweep

    def configure(self, rules: Iterable[Rule], now: float, wall: float) -> None:
        self.rules = {rule.id: rule for rule in rules}
        self.since = {at: self.since.get(at, wall) for at in self.rules}
        self.models = frozenset(model for rule in self.rules.values() for model in rule.models)
        self.predicts = any(rule.hold is Hold.PREDICTED for rule in self.rules.values())
        self._index = {}
        for rule in self.rules.values():
            self._index.setdefault(_most_specific(rule), []).append(rule)
        zones = {rule.zone for rule in self.rules.values()}
        self._calendars = {at: c for at, c in self._calendars.items() if at[1] in zones}
        for groups in (self.groups, self.end_users):
            for at, group in list(groups.items()):
                rule_now = self.rules.get(group.rule.id)
                if rule_now is None:
                    del groups[at]
                elif rule_now != group.rule:
                    self._change(group, rule_now, now, wall)
        self.generation += 1

    def fill(self, gate: Gate, now: float, wall: float) -> None:
        """Look a gate's rules up."""
        if len(self.groups) >= self._sweep_at:
            self._sweep(now, wall)
        groups: list[Group] = []
        per_end_user: list[tuple[Rule, Path]] = []
        for rule in self._candidates(gate.who):
            path = path_of(rule, gate.who)
            if path is None:
                continue
            if rule.each is Level.END_USER:
                per_end_user.append((rule, path))
            else:
                groups.append(self._group(self.groups, rule, path, now, wall))
        gate.groups = tuple(groups)
        gate.per_end_user = tuple(per_end_user)
        gate.by_model = {}
        gate.by_end_user = {}
        gate.base = Meters(g for g in groups if not g.rule.models)
        gate.generation = self.generation

    def meters(self, gate: Gate, model: str, end_user: str, now: float, wall: float) -> Meters:
        """What a request passes where that is not the gate's `base`: its model or its end user is in some rule."""
        if model not in self.models:
            model = ""
        if not (end_user and gate.per_end_user):
            if not model:
                return gate.base
            found = gate.by_model.get(model)
            if found is None:
                if len(gate.by_model) >= _KEPT:
                    gate.by_model.clear()
                found = gate.by_model[model] = Meters(_for_model(gate.groups, model))
            return found
        end_user = known_as(end_user)
        own = [
            self._of_end_user(rule, (*path, end_user), now, wall)
            for rule, path in gate.per_end_user
            if (not rule.models or model in rule.models) and (not rule.end_user or rule.end_user == end_user)
        ]
        before = gate.by_end_user.get((model, end_user))
        if before is not None and before[0] == own:
            return before[1]
        if len(gate.by_end_user) >= _KEPT:
            gate.by_end_user.clear()
        meters = Meters((*_for_model(gate.groups, model), *own))
        gate.by_end_user[model, end_user] = (own, meters)
        return meters

    def each(self) -> Iterator[Group]:
        yield from self.groups.values()
        yield from self.end_users.values()

    def group(self, rule_id: str, path: Path, now: float, wall: float) -> Group | None:
        """That of a scope, made where it is new; None: there is no such rule."""
        rule = self.rules.get(rule_id)
        if rule is None:
            return None
        if rule.each is Level.END_USER:
            return self._of_end_user(rule, path, now, wall)
        return self._group(self.groups, rule, path, now, wall)

    def _candidates(self, who: Who) -> Iterator[Rule]:
        index = self._index
        yield from index.get((Level.ALL, ""), ())
        for level in _PATHS:
            if name := getattr(who, level.value):
                yield from index.get((level, name), ())
        yield from index.get((Level.KEY, who.key), ())
        if who.key_name != who.key:
            yield from index.get((Level.KEY, who.key_name), ())

    def _of_end_user(self, rule: Rule, path: Path, now: float, wall: float) -> Group:
        at = (rule.id, path)
        group = self._group(self.end_users, rule, path, now, wall)
        self.end_users.move_to_end(at)
        if len(self.end_users) > self._most_end_users:
            _, gone = self.end_users.popitem(last=False)
            self.forgotten += not gone.idle(now, wall)
        return group

    def _group(self, groups: dict[tuple[str, Path], Group], rule: Rule, path: Path, now: float, wall: float) -> Group:
        at = (rule.id, path)
        group = groups.get(at)
        if group is None:
            group = groups[at] = Group(rule, path)
            self._change(group, rule, now, wall)
        return group

    def _change(self, group: Group, rule: Rule, now: float, wall: float) -> None:
        """The meters that a rule wants, each with what it had counted."""
        before = group.meters
        group.rule = rule
        group.meters = {}
        for measure in Measure:
            if rule.limit(measure) is None:
                continue
            had = before.get(measure)
            if isinstance(had, Rate):
                had.advance(now, self.next)
            if had is not None and had.fits(rule):
                had.configure(rule)
                group.meters[measure] = had
                continue
            made = meter(rule, measure, group.scope, self._calendar(rule, measure), now, wall)
            if had is not None:
                made.take(had.used)
            group.meters[measure] = made

    def _calendar(self, rule: Rule, measure: Measure) -> Calendar:
        at = (span(measure), rule.zone)
        found = self._calendars.get(at)
        if found is None:
            found = self._calendars[at] = Calendar(*at)
        return found

    def _sweep(self, now: float, wall: float) -> None:
        """Callers whose keys are gone, and who have nothing left to remember, are dropped."""
        self.groups = {at: g for at, g in self.groups.items() if not g.idle(now, wall)}
        self._sweep_at = max(self._sweep_least, 2 * len(self.groups))
        self.generation += 1

    def __repr__(self) -> str:
        return f"<Scopes {len(self.rules)} rules, {len(self.groups)} scopes, {len(self.end_users)} of end users>"


def _for_model(groups: Iterable[Group], model: str) -> Iterator[Group]:
    return (g for g in groups if not g.rule.models or model in g.rule.models)


def _most_specific(rule: Rule) -> tuple[Level, str]:
    """Where a rule is found by: end users are looked at later."""
    for level in (Level.KEY, *reversed(_PATHS)):
        if name := rule.selector(level):
            return level, name
    return Level.ALL, ""


def path_of(rule: Rule, who: Who) -> Path | None:
    """The scope that a caller's use counts in; without the end user's name. None: the rule does not fit the caller."""
    for level in SELECTORS:
        wanted = rule.selector(level)
        if not wanted or level is Level.END_USER:
            continue
        if level is Level.KEY:
            if wanted not in (who.key, who.key_name):
                return None
        elif wanted != getattr(who, level.value):
            return None
    if rule.each is Level.ALL:
        return ()
    if rule.each is Level.KEY:
        return (who.key,)
    if rule.each is Level.END_USER:
        return (who.organisation, who.department, who.project)
    depth = _PATHS.index(rule.each) + 1
    path: Path = (who.organisation, who.department, who.project, who.user)[:depth]
    return path if path[-1] else None

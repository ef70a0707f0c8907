"""What a recorded run decided, beside what the same admission decides when it is told the same again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

from forebay.config.models import Class
from forebay.errors import shown
from forebay.policy.recording import (
    Admitted,
    Asked,
    Call,
    Configure,
    Due,
    End,
    Offer,
    Told,
    Waits,
)
from forebay.sim.recording import Played, Tape

SHOWN: Final = 5
"""Differences that are printed in detail."""


def decisions(call: Call) -> list[tuple[int, Told]]:
    """By the request's key, in order."""
    if isinstance(call, Offer):
        return [(call.ask.key, call.gave)] if call.gave is not None else []
    return call.gave if isinstance(call, (Due, Configure)) else []


def kind(decision: Told) -> str:
    """What it is, without its numbers."""
    if isinstance(decision, Admitted):
        return "admit"
    if isinstance(decision, Waits):
        return "wait"
    return f"refuse, {decision.reason}"


class Row(NamedTuple):
    """How many decisions of one kind over requests of one class."""

    cls: Class
    kind: str
    live: int
    replayed: int
    equal: int


@dataclass(frozen=True, slots=True)
class Difference:
    line: int
    at: float
    call: str
    ask: Asked | None
    live: str
    replayed: str


@dataclass(slots=True)
class Verdict:
    """Mutable state: counts, the first differences, and the requests that have not ended."""

    shown: int = SHOWN
    calls: int = 0
    made: int = 0
    """Decisions of the live run."""
    different: int = 0
    """Decisions, and calls that gave something else that is none, which are not the same."""
    first: list[Difference] = field(default_factory=list)
    ended_at: float | None = None
    engines: set[str] = field(default_factory=set)
    """Those that anything was admitted to."""
    _live: Counter[tuple[Class, str]] = field(default_factory=Counter)
    _replayed: Counter[tuple[Class, str]] = field(default_factory=Counter)
    _equal: Counter[tuple[Class, str]] = field(default_factory=Counter)
    _asks: dict[int, Asked] = field(default_factory=dict)

    def add(self, played: Played) -> None:
        line, live, replayed = played
        self.calls += 1
        self.ended_at = live.at
        if isinstance(live, Offer):
            self._asks[live.ask.key] = live.ask
        before, after = decisions(live), decisions(replayed)
        self.made += len(before)
        for counts, given in ((self._live, before), (self._replayed, after)):
            for key, decision in given:
                counts[self._kind(key, decision)] += 1
                if isinstance(decision, Admitted):
                    self.engines.add(decision.engine)
        if _outcome(live) == _outcome(replayed):
            for key, decision in before:
                self._equal[self._kind(key, decision)] += 1
        else:
            self._compare(line, live, replayed, dict(before), dict(after))
        if isinstance(live, End):
            self._asks.pop(live.key, None)

    def _compare(self, line: int, live: Call, replayed: Call, before: dict[int, Told], after: dict[int, Told]) -> None:
        known = self.different
        for key in before | after:
            one, other = before.get(key), after.get(key)
            if one is not None and one == other:
                self._equal[self._kind(key, one)] += 1
            else:
                self._differs(line, live, self._asks.get(key), _said(one), _said(other))
        if live.raised != replayed.raised:
            self._differs(line, live, None, _raised(live), _raised(replayed))
        elif self.different == known:  # the same ones in another order, or what is no decision
            self._differs(line, live, None, *(str(_outcome(call)[0]) for call in (live, replayed)))

    def _differs(self, line: int, call: Call, ask: Asked | None, live: str, replayed: str) -> None:
        self.different += 1
        if len(self.first) < self.shown:
            self.first.append(Difference(line, call.at, str(type(call).__struct_config__.tag), ask, live, replayed))

    def _kind(self, key: int, decision: Told) -> tuple[Class, str]:
        ask = self._asks.get(key)
        return (ask.cls if ask is not None else Class.NORMAL), kind(decision)

    def rows(self) -> list[Row]:
        live, replayed, equal = self._live, self._replayed, self._equal
        known = sorted(live | replayed, key=lambda k: (k[0].rank, k[1].startswith("refuse"), k[1]))
        return [Row(*k, live[k], replayed[k], equal[k]) for k in known]

    def texts(self) -> list[tuple[str, ...]]:
        return [(row.cls.value, row.kind, *(f"{n:,}" for n in row[2:])) for row in self.rows()]


def _outcome(call: Call) -> tuple[Any, str | None]:
    return getattr(call, "gave", None), call.raised


def _said(decision: Told | None) -> str:
    if decision is None:
        return "nothing yet"
    if isinstance(decision, Admitted):
        return f"admit to {decision.engine}, first token within {decision.bound} s"
    if isinstance(decision, Waits):
        return f"wait at position {decision.position}, first token in {decision.expected} s"
    return f"refuse, {decision.reason}, come back after {decision.retry_after} s"


def _raised(call: Call) -> str:
    return f"{call.raised} was raised" if call.raised else "nothing was raised"


# --- for people ------------------------------------------------------------------------------------------------------


def lines(verdict: Verdict, tape: Tape, version: str) -> Iterator[str]:
    """What is said of it beside the table."""
    begin = tape.begin
    seconds = (verdict.ended_at if verdict.ended_at is not None else begin.at) - begin.at
    engines = ", ".join(shown(name) for name in sorted(verdict.engines)) or "no engine"
    yield f"{shown(tape.path, 4096)}: from {shown(begin.time)}, {seconds:,.1f} s, {verdict.calls:,} calls, {engines}"
    if begin.forebay != version:
        yield f"Recorded by forebay {shown(begin.forebay)}, replayed by {version}."
    if tape.cut:
        yield f"Line {tape.cut} is not whole and was left out, as where the gateway was killed or the disk was full."
    elif tape.why:
        yield f"It ends because {shown(tape.why, 200)}."
    else:
        yield "It has no end: the gateway still runs, or was killed."
    if not tape.sound:
        yield "Its last line does not fit those before it: it is not what the gateway wrote."
    if not verdict.different:
        yield f"{verdict.made:,} decisions, all the same."
        return
    yield f"{verdict.different:,} of {verdict.made:,} decisions differ. What follows the first may be its consequence."
    for one in verdict.first:
        when = datetime.fromisoformat(begin.time) + timedelta(seconds=one.at - begin.at)
        yield f"line {one.line}, {when:%H:%M:%S.%f}, {one.call}{_about(one.ask)}"
        yield f"  live      {shown(one.live, 400)}"
        yield f"  replayed  {shown(one.replayed, 400)}"


def _about(ask: Asked | None) -> str:
    if ask is None:
        return ""
    return f", request {ask.key} ({ask.cls}, {ask.prompt_tokens:,} prompt tokens, {shown(ask.model)})"

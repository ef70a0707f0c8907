"""What admission is doing: as the admin process shows it, as gauges, and in the log."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Final

from forebay.config.models import Class
from forebay.policy.admission import Admission
from forebay.policy.engine_books import EngineBooks
from forebay.policy.queue import WaitingRoom
from forebay.policy.shed import KV_FULL, PREEMPTING, Shedder
from forebay.policy.ttft import LEVELS
from forebay.state.messages import AdmissionState, EngineAdmission, Margin, ModelAdmission, ShedChange, Waiting

QUIET: Final = 3.0
"""Seconds without shedding after which it counts as over, so that use about the line does not fill the log."""
REASONS: Final = (KV_FULL, PREEMPTING)

_log = logging.getLogger("forebay.admission")


def admission_state(policy: Admission, served: Iterable[str], now: float, wall: float) -> AdmissionState:
    """`served`: models that engines have. `now`: monotonic seconds, `wall`: seconds since 1970, both at once."""
    scaling = policy.scaling
    models = []
    for name in sorted({*served, *scaling.models, *policy.rooms}):
        needs, room = scaling.models.get(name), policy.rooms.get(name)
        demand = needs.demand if needs is not None else 0.0
        models.append(ModelAdmission(name, scaling.desired(name), demand, _waiting(room)))
    return AdmissionState(
        models=tuple(models), engines=tuple(_engine(books, now, wall - now) for books in policy.books.values())
    )


def reasons(books: Iterable[EngineBooks]) -> list[tuple[tuple[str, ...], float]]:
    """By engine and reason: 1 where it sheds for that."""
    found: list[tuple[tuple[str, ...], float]] = []
    for b in books:
        on = {KV_FULL: b.shed.over, PREEMPTING: b.shed.level > 0}
        found += [((b.name, reason), float(on[reason])) for reason in REASONS]
    return found


def _waiting(room: WaitingRoom | None) -> dict[str, Waiting]:
    if room is None:
        return {cls.value: Waiting(0, 0) for cls in Class}
    return {cls.value: Waiting(room.count(cls), room.tokens_of(cls)) for cls in Class}


def _engine(books: EngineBooks, now: float, to_wall: float) -> EngineAdmission:
    shed, ttft, facts = books.shed, books.ttft, books.facts
    return EngineAdmission(
        name=books.name,
        shed_level=shed.level,
        reason=shed.reason,
        kv_predicted=books.use(),
        kv_tokens=books.kv_tokens,
        ceilings={cls.value: shed.ceiling(cls) for cls in Class},
        in_flight=books.sequences,
        cap=books.cap,
        scale_factor=books.factor.value if facts.concurrency is not None else None,
        load=books.load,
        pace=ttft.pace,
        prefill_rate=ttft.prefill_rate,
        prefill_ahead=ttft.backlog(now),
        margins={name: Margin(ttft.margin(i), len(ttft.levels[i])) for i, name in enumerate(LEVELS)},
        history=tuple(ShedChange(one.time + to_wall, one.level, one.reason) for one in shed.history),
    )


class ShedLog:
    """Says in the log when an engine begins to shed, and when it has ended. Mutable state: since when each of those
    that shed does, and when it last did."""

    def __init__(self) -> None:
        self._since: dict[str, tuple[float, float]] = {}
        self._seen: dict[str, float] = {}

    def look(self, engine: str, shed: Shedder, now: float) -> None:
        """To be called at every report, for what began and ended between two is in the history."""
        seen = self._seen.get(engine, now)
        self._seen[engine] = now
        reason = shed.reason
        for one in reversed(shed.history):
            if reason or one.time <= seen:
                break
            reason = one.reason
        since = self._since.get(engine)
        if reason:
            if since is None:
                _log.warning(
                    "engine %s sheds load: %s (level %.2f, predicted KV use %.0f %%)",
                    engine,
                    reason,
                    shed.level,
                    100 * shed.use,
                )
            self._since[engine] = (now if since is None else since[0], now)
        elif since is not None and now - since[1] >= QUIET:
            del self._since[engine]
            _log.info("engine %s sheds no more, after %.1f s", engine, since[1] - since[0])

    def forget(self, engine: str) -> None:
        """It is gone."""
        self._since.pop(engine, None)
        self._seen.pop(engine, None)

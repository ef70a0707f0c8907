"""The fleet as the admin process is shown it: a row an engine, and metrics whose number of series is bounded."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from forebay.counters import OVERFLOW
from forebay.gateway.fleet import Fleet
from forebay.gateway.handles import Handle, Source
from forebay.gateway.telemetry import counter_snapshot, gauge
from forebay.state.messages import EngineState, FamilySnapshot

MOST: Final = 512
"""Engines with gauges of their own. In a larger fleet: those with requests, then those that get none for some trouble,
then others; the rest is summed."""

_STATES: Final = ("starting", "healthy", "half-open", "open", "stalled", "unhealthy", "draining", "leaving")


def engine_states(fleet: Fleet) -> Iterator[EngineState]:
    for h in fleet.handles.values():
        yield _row(h, h.state)
    for h in fleet.leaving:
        yield _row(h, "leaving")
    for engine, why in fleet.unresolved():
        yield EngineState(
            engine.name,
            engine.url,
            healthy=False,
            models=engine.models,
            in_flight=0,
            why=why,
            state="unresolved",
            usable=False,
            source=Source.DNS.value,
        )


def _row(h: Handle, state: str) -> EngineState:
    return EngineState(
        h.name,
        h.config.url,
        h.healthy,
        h.models,
        h.in_flight,
        h.wrong,
        kind=h.adapter.kind,
        version=h.report.version or "",
        state=state,
        usable=h.usable and state != "leaving",
        source=h.wanted.source.value,
    )


def engine_gauges(fleet: Fleet) -> Iterator[FamilySnapshot]:
    handles = [*fleet.handles.values(), *fleet.leaving]
    counts = dict.fromkeys(_STATES, 0)
    for h in fleet.handles.values():
        counts[h.state] += 1
    counts["leaving"] = len(fleet.leaving)
    yield gauge("forebay_engines", "Engines by their state.", ("state",), [((s,), float(n)) for s, n in counts.items()])
    shown, rest = _chosen(handles)
    rows = [_figures(h) for h in shown]
    others = [0.0] * len(_FAMILIES)
    for h in rest:
        for i, value in enumerate(_figures(h)):
            if value is not None:
                others[i] += value
    for i, (name, text) in enumerate(_FAMILIES):
        values = [((h.name,), float(v)) for h, row in zip(shown, rows, strict=True) if (v := row[i]) is not None]
        if rest:
            values.append(((OVERFLOW,), others[i]))
        yield gauge(name, text, ("engine",), values)
    yield counter_snapshot(fleet.breaks)


_FAMILIES: Final = (
    ("forebay_engine_in_flight", "Requests at an engine."),
    ("forebay_engine_connections", "Open connections to an engine, idle ones included."),
    ("forebay_engine_healthy", "1 where the engine's health checks pass."),
    ("forebay_engine_usable", "1 where the engine gets new requests."),
    ("forebay_engine_running", "Running requests, as the engine reports."),
    ("forebay_engine_waiting", "Waiting requests, as the engine reports."),
    ("forebay_engine_kv_usage", "Share of KV blocks in use, as the engine reports."),
)


def _figures(h: Handle) -> tuple[float | None, ...]:
    """In the order of the families."""
    r = h.report
    return h.in_flight, h.pool.open, h.healthy, h.usable, r.running, r.waiting, r.kv_usage


def _chosen(handles: list[Handle]) -> tuple[list[Handle], list[Handle]]:
    """Those with gauges of their own, and the rest."""
    if len(handles) <= MOST:
        return handles, []
    first = [h for h in handles if h.in_flight or not h.usable]
    if len(first) > MOST:
        first = sorted(first, key=lambda h: -h.in_flight)[:MOST]
    chosen = set(first)
    for h in handles:
        if len(chosen) == MOST:
            break
        chosen.add(h)
    return [h for h in handles if h in chosen], [h for h in handles if h not in chosen]

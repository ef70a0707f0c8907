"""How an engine is looked at: what it is, where its entry leaves that open; its load; and, seldom, what stays the same.

What cannot be read costs knowledge and nothing else: requests go on by the gateway's own books. Each cause is said once
an engine.
"""

from __future__ import annotations

import asyncio
import logging
import random
from math import inf
from typing import TYPE_CHECKING, Final

from forebay.config.engine import EngineKind
from forebay.engines.base import NOTHING, EngineReport
from forebay.engines.detect import MODELS, PROBES, askable, by_models, by_url
from forebay.engines.prometheus import whose
from forebay.gateway.fetch import FetchFailed, fetch

if TYPE_CHECKING:
    from forebay.gateway.handles import Handle

log = logging.getLogger("forebay.engines")

INFO_EVERY: Final = 60.0
"""Seconds between two looks at what stays the same."""
BACK_OFF: Final = 5.0
"""Seconds until a page is asked for again that was there and of no use."""
MAX_PAGE: Final = 2 << 20
"""Bytes of a page that are read: searching so much holds the loop for some milliseconds."""
IDENTIFY_SECONDS: Final = 10.0
FLAP_SECONDS: Final = 60.0
FLAPS: Final = 3
"""Restarts so close that no engine loads a model in between: several of them stand behind the URL."""
EMPTY_LOOKS: Final = 3
"""Pages in a row that say nothing, while requests run there, until it counts as one that never does."""


class Look:
    """What was found out about one engine beside its report."""

    __slots__ = (
        "_said",
        "due",
        "empty",
        "flaps",
        "info",
        "info_due",
        "kind",
        "page",
        "restarted_at",
        "restarts",
        "unsure",
    )

    def __init__(self) -> None:
        self.kind: EngineKind | None = None
        """What it was found to be."""
        self.unsure = True
        """It is to be asked (again) what it is."""
        self.restarts = 0
        """How often it was seen to begin anew, its caches empty."""
        self.restarted_at = -inf
        self.flaps = 0
        self.forget()

    def forget(self) -> None:
        """It is another engine now."""
        self.page = 0
        self.due = 0.0
        self.info = NOTHING
        self.info_due = 0.0
        self.empty = 0
        self._said: set[str] = set()

    def first(self, cause: str) -> bool:
        """Whether this cause was not said yet."""
        new = cause not in self._said
        self._said.add(cause)
        return new

    def __repr__(self) -> str:
        return f"<Look {self.kind or 'as configured'}{', unsure' if self.unsure else ''}, {self.restarts} restarts>"


# --- what it is ------------------------------------------------------------------------------------------------------


async def identify(handle: Handle) -> None:
    """Finds out what the engine is, where its entry says `auto` and it is not known or may have been replaced. Raises
    FetchFailed where nothing answers there."""
    look, config = handle.look, handle.config
    if config.kind is not EngineKind.AUTO or not look.unsure:
        return
    kind = by_url(config.url)
    if kind is None:
        kind = await _asked(handle)
    look.unsure = False
    if kind is not look.kind:
        handle.become(kind)
        log.info("engine %s is taken for: %s", handle.name, handle.adapter.notes.title)


async def _asked(handle: Handle) -> EngineKind:
    seconds = max(handle.config.health_timeout, handle.adapter.patience)
    try:
        found = by_models(await fetch(handle, MODELS, seconds))
    except FetchFailed as e:
        if e.status is None or e.status >= 500:
            raise  # away, or not ready to say
        found = None
    if found is not None or not askable(handle.config.url, handle.config.api_key is not None):
        return found or EngineKind.OPENAI
    try:
        async with asyncio.timeout(IDENTIFY_SECONDS):
            for probe in PROBES:
                try:
                    kind = probe.tells(await fetch(handle, probe.path, seconds, limit=MAX_PAGE))
                except FetchFailed:
                    continue
                if kind is not None:
                    return kind
    except TimeoutError:
        pass
    return EngineKind.OPENAI


# --- what it says ----------------------------------------------------------------------------------------------------


def pause(handle: Handle, interval: float, rng: random.Random) -> float:
    """Seconds until the next look, where they are to be `interval` apart."""
    return max(interval * rng.uniform(0.9, 1.1), handle.adapter.least_interval * rng.uniform(1.0, 1.1))


async def look_at(handle: Handle, now: float) -> None:
    """Sets the handle's report, unless the engine is not to be looked at again so soon. `now`: seconds, monotonic."""
    look, adapter = handle.look, handle.adapter
    if now < look.due:
        return
    look.due = now + adapter.least_interval
    if now >= look.info_due:
        look.info_due = now + INFO_EVERY
        await _read_info(handle)
    if adapter.metrics_paths:
        report = await _read_load(handle, now)
    else:
        report = look.info
    if handle.adapter is adapter:  # else it was found to be something else meanwhile
        _take(handle, report, now)


async def _read_info(handle: Handle) -> None:
    adapter, seconds = handle.adapter, _patience(handle)
    info = NOTHING
    for group in adapter.info_paths:
        for path in group:
            try:
                info = adapter.info(path, await fetch(handle, path, seconds, limit=MAX_PAGE)).over(info)
                break
            except FetchFailed:
                continue
    handle.look.info = info
    known = (*(info.models or ()), *(info.adapters or ()))
    for name in handle.config.models if known else ():
        if name not in known:
            _say(handle, f"model {name}", f"does not list the model {name!r} that its entry names")


async def _read_load(handle: Handle, now: float) -> EngineReport | None:
    """The report; what stays the same, where the load cannot be read; None where nothing can be believed."""
    look, adapter = handle.look, handle.adapter
    page, why = b"", ""
    for at in range(look.page, len(adapter.metrics_paths)):
        path = adapter.metrics_paths[at]
        try:
            page = await fetch(handle, path, _patience(handle), limit=MAX_PAGE)
        except FetchFailed as e:
            if e.status is None and not e.too_large:
                look.page = 0
                return look.info  # it is away: the health check says so
            why = why or f"GET {path.decode()}: {e}"
            continue
        look.page = at
        break
    else:
        _of_no_use(handle, now, "no page", f"{why}{f' ({adapter.needs})' if adapter.needs else ''}")
        return look.info
    text = page.decode("utf-8", "replace")
    report = adapter.report(text)
    if report != NOTHING:
        look.empty = 0
        return _believed(handle, report)
    path, theirs = adapter.metrics_paths[at], whose(text)
    if text.lstrip().startswith("<"):
        _of_no_use(handle, now, "html", f"GET {path.decode()} answers HTML")
    elif theirs and theirs not in adapter.prefixes:
        look.unsure = True
        _of_no_use(handle, now, "foreign", f"it reports {theirs} metrics: it is not {adapter.notes.title}")
        return None
    else:  # an engine that has done nothing yet may have nothing to say
        look.empty = look.empty + 1 if handle.in_flight else 0
        if look.empty >= EMPTY_LOOKS:
            needs = f" ({adapter.needs})" if adapter.needs else ""
            what = f"GET {path.decode()} has none of the names known of {adapter.notes.title}{needs}"
            _of_no_use(handle, now, "unknown", what)
    return look.info


def _of_no_use(handle: Handle, now: float, cause: str, why: str) -> None:
    handle.look.page = 0
    handle.look.due = now + BACK_OFF
    _ledger_only(handle, cause, why)


def _believed(handle: Handle, report: EngineReport) -> EngineReport | None:
    info, adapter = handle.look.info, handle.adapter
    if report.labelled and info.models and not set(report.labelled) & set(info.models):
        handle.look.info_due = 0.0
        _ledger_only(
            handle, "other model", f"its metrics are about {report.labelled[0]!r}, and it serves {info.models[0]!r}"
        )
        return None
    full = report.over(info)
    # some gauges come with the first request
    missing = [name for name in adapter.says if getattr(full, name) is None] if full.done else []
    if missing and handle.look.first("part"):
        log.warning("engine %s: its metrics do not say %s", handle.name, ", ".join(missing))
    return full


def _take(handle: Handle, report: EngineReport | None, now: float) -> None:
    look, before = handle.look, handle.report
    if report is None:
        handle.report = NOTHING
        return
    if report.restarted(before):
        look.flaps = look.flaps + 1 if now - look.restarted_at < FLAP_SECONDS else 0
        look.restarted_at = now
        if look.flaps < FLAPS:
            look.restarts += 1
            look.info_due = 0.0
            log.info("engine %s has started anew: its caches are empty", handle.name)
        else:
            _say(handle, "several", "answers as several engines in turn; give each an entry of its own")
        before = NOTHING
    handle.report = report.over(before)
    was, holds = before.kv_capacity_tokens, handle.report.kv_capacity_tokens
    if was is not None and holds is not None and holds != was:
        log.info("engine %s: its KV cache holds %s tokens now, %s before", handle.name, f"{holds:,}", f"{was:,}")


def _patience(handle: Handle) -> float:
    return max(handle.config.health_timeout, handle.adapter.patience)


def _ledger_only(handle: Handle, cause: str, why: str) -> None:
    _say(handle, cause, f"{why}; its load and KV use are not known, requests go on by the gateway's own books")


def _say(handle: Handle, cause: str, what: str) -> None:
    if handle.look.first(cause):
        log.warning("engine %s: %s", handle.name, what)

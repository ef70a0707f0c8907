"""The engines and what each model name stands for: who there is, who is well, what is said of each by its requests.

Engines come from the configuration, the watched file, `forebay engines add`, and the addresses of DNS names. Mutable
state: the handles by name, those that leave and still work, and the catalogue built from them whenever health, models
or the engines change, so that a request looks one dictionary up.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import ssl
from collections.abc import Callable, Iterable
from time import perf_counter
from typing import Final, NoReturn, Protocol
from urllib.parse import urlsplit

from forebay import errors
from forebay.config.engine import Discover, Engine
from forebay.config.health import Health
from forebay.config.models import Config, Model, Timeouts
from forebay.counters import counters
from forebay.gateway.checking import Rounds, model_ids
from forebay.gateway.discovery import Names, Resolve, resolve
from forebay.gateway.fetch import FetchFailed, fetch
from forebay.gateway.handles import EAGER, EAGER_SECONDS, Entry, Handle, Source, Wanted
from forebay.gateway.kv_events import KvFeeds
from forebay.gateway.looking import identify, look_at, pause
from forebay.gateway.verdicts import breaker_rules
from forebay.policy.breaker import Breaker
from forebay.policy.breaker import State as BreakerState
from forebay.policy.placement import Placement
from forebay.wire.pool import Origin, Pool
from forebay.wire.tasks import Tasks
from forebay.wire.ticker import Ticker

log = logging.getLogger("forebay.engines")

MODELS_EVERY: Final = 5
"""Health checks between two looks at the model list."""
CHECKS: Final = 400
LOOKS: Final = 1_000
"""Health checks and looks at metrics a second, of all engines: more engines are looked at less often."""
REBUILD_SHARE: Final = 0.05
"""Of the time, for rebuilding the catalogue of a large fleet; a small one's is rebuilt at once."""
AT_ONCE: Final = 0.0002
"""Seconds of a rebuild that need no waiting."""
TRIES: Final = 8
"""Engines looked at for a request because those before are spared."""
REST: Final = (0.1, 0.5)
"""Seconds that an engine rests which said it is overloaded, and not for how long."""


class Watcher(Protocol):
    """Who follows the engines."""

    def sync(self, handles: Iterable[Handle]) -> None:
        """Their number, whether they take requests, or their models changed."""
        ...

    def reported(self, handle: Handle) -> None:
        """A look at its metrics ended, well or not."""
        ...


class Fleet:
    """`watcher`, where there is one, is told of every change, and of the engines' metrics every `report_interval`
    seconds. `lost`, where it is set, is told of an engine that has fallen silent."""

    watcher: Watcher | None = None
    feeds: KvFeeds | None = None
    """The engines' KV events, where somebody wants them."""
    report_interval = 0.25
    lost: Callable[[Handle, str], None] | None = None

    def __init__(
        self, tasks: Tasks, ticker: Ticker, clock: Callable[[], float], ask_dns: Resolve = resolve, seed: int = 0
    ) -> None:
        self._tasks = tasks
        self._ticker = ticker
        self._clock = clock
        self._rng = random.Random(seed)  # noqa: S311 - spreads load, guards nothing
        self._models: dict[str, Model] = {}
        self._timeouts = Timeouts()
        self._rules = breaker_rules(Health())
        self._rest_most = Health().rest_most
        self._file: dict[str, Wanted] = {}
        self._live: dict[str, Engine] = {}
        self._shadowed: set[str] = set()
        self._draining: frozenset[str] = frozenset()
        self._names = Names(tasks, self._apply, ask_dns)
        self._checks = Rounds(tasks, self._watch)
        self._scrapes = Rounds(tasks, self._scrape)
        self._contexts: dict[tuple[str, bool], ssl.SSLContext] = {}
        self._began: float | None = None
        self._rebuild_took = 0.0
        self._rebuilding: asyncio.TimerHandle | None = None
        self._open: set[Handle] = set()
        self.eased: set[str] = set()
        """Names of engines that get less than their share of traffic now."""
        self.handles: dict[str, Handle] = {}
        self.leaving: list[Handle] = []
        """Taken out of the configuration, and still working."""
        self.catalog: dict[str, Entry] = {}
        self.breaks = counters("forebay_engine_breaker", "Breakers opened, by why, and closed.", "engine", "event")
        ticker.add(self._tick)

    # --- who there is ------------------------------------------------------------------------------------------------

    def configure(self, config: Config, listed: int = 0) -> None:
        """Engines that did not change keep their connections; those gone finish what they run. `listed`: how many of
        them, the last ones, are of the watched file."""
        admission = config.admission
        self.report_interval = (admission if admission.enabled else config.placement).report_interval
        self._models = dict(config.models)
        self._timeouts = config.timeouts
        self._rules = breaker_rules(config.health)
        self._rest_most = config.health.rest_most
        split = len(config.engines) - listed
        self._file = {
            e.name: Wanted(e, Source.FILE if i < split else Source.LIST) for i, e in enumerate(config.engines)
        }
        for handle in self.handles.values():
            handle.pool.configure(config.timeouts)
            handle.breaker.rules = self._rules
        if self._began is None:
            self._began = self._clock()
        self._contexts.clear()  # authorities may have been renewed
        self._say_shadowed()
        self._follow_names()
        self._apply(rebuild=True)

    def set_live(self, engines: Iterable[Engine], draining: Iterable[str]) -> None:
        """What `forebay engines` has added, and whose names, addresses of them included, get no new requests."""
        self._live = {e.name: e for e in engines}
        self._draining = frozenset(draining)
        self._say_shadowed()
        self._follow_names()
        self._apply()

    def _say_shadowed(self) -> None:
        """Once for each."""
        shadowed = self._live.keys() & self._file.keys()
        for name in sorted(shadowed - self._shadowed):
            log.error("engine %s, added live, is left out: the configuration has one of that name", name)
        self._shadowed = shadowed

    def _follow_names(self) -> None:
        self._names.configure({n: w.config for n, w in self._named().items() if w.config.discover is not Discover.NO})

    def _named(self) -> dict[str, Wanted]:
        """The files' win over those added live."""
        return {**{name: Wanted(engine, Source.LIVE) for name, engine in self._live.items()}, **self._file}

    def _apply(self, *, rebuild: bool = False) -> None:
        """Bring the handles to what is wanted."""
        wanted: dict[str, Wanted] = {}
        for name, entry in self._named().items():
            if entry.config.discover is Discover.NO:
                wanted[name] = entry
            else:
                wanted.update(self._names.expanded(name))
        before = dict(self.handles)
        changed = rebuild
        for name, handle in before.items():
            if wanted.get(name) != handle.wanted:
                changed = True
                self._leave(handle)
        for name, entry in wanted.items():
            if name not in self.handles:
                changed = True
                self._join(entry, before.get(name))
        for handle in self.handles.values():
            draining = handle.name in self._draining or handle.name.partition("@")[0] in self._draining
            if draining is not handle.draining:
                handle.draining = draining
                log.info("engine %s %s", handle.name, "drains" if draining else "takes requests again")
            changed = handle.refresh() or changed
        if changed:
            if self.feeds is not None:
                self.feeds.sync(handle.config for handle in self.handles.values())
            self.rebuild()

    def _join(self, wanted: Wanted, before: Handle | None) -> None:
        now = self._clock()
        try:
            pool = self._pool(wanted)
        except OSError as e:  # ssl.SSLError is one
            log.error("engine %s is left out, its tls.ca cannot be used: %s", wanted.config.name, e)
            return
        handle = Handle(wanted, pool, Breaker(self._rules), now)
        self.handles[handle.name] = handle
        if before is not None:
            handle.follow(before)
            if handle.breaker.state is not BreakerState.CLOSED:
                self._open.add(handle)
        self._checks.begin(handle)
        if self.watcher is not None:
            self._scrapes.begin(handle, self._spread(self.report_interval, LOOKS))

    def _leave(self, handle: Handle) -> None:
        del self.handles[handle.name]
        self.eased.discard(handle.name)
        self._open.discard(handle)
        handle.pool.close()
        self._checks.end(handle)
        self._scrapes.end(handle)
        if handle.in_flight:
            self.leaving.append(handle)

    def _pool(self, wanted: Wanted) -> Pool:
        engine = wanted.config
        url = urlsplit(engine.url)
        host = url.hostname or ""
        tls = self._context(engine) if url.scheme == "https" else None
        named = engine.tls.server_name or (host if wanted.address else None)
        return Pool(
            Origin(wanted.address or host, url.port or (443 if tls else 80), tls, named),
            max_open=engine.max_connections,
            max_idle=engine.max_idle,
            timeouts=self._timeouts,
            ticker=self._ticker,
            spawn=self._tasks.spawn,
        )

    def _context(self, engine: Engine) -> ssl.SSLContext:
        """One for all that trust the same: the system's authorities take a moment and a megabyte to load."""
        key = (str(engine.tls.ca or ""), engine.tls.verify)
        found = self._contexts.get(key)
        if found is None:
            found = self._contexts[key] = ssl.create_default_context(cafile=key[0] or None)
            if not engine.tls.verify:
                found.check_hostname = False
                found.verify_mode = ssl.CERT_NONE
        if not engine.tls.verify:
            log.warning("engine %s: its certificate is not verified (tls.verify is false)", engine.name)
        return found

    # --- the catalogue -----------------------------------------------------------------------------------------------

    def rebuild(self) -> None:
        """At once, or soon where that takes long: in a large fleet changes come in flocks."""
        if self._rebuilding is not None:
            return
        if self._rebuild_took <= AT_ONCE:
            self._rebuild()
        else:
            after = self._rebuild_took / REBUILD_SHARE
            self._rebuilding = asyncio.get_running_loop().call_later(after, self._rebuild)

    def _rebuild(self) -> None:
        began = perf_counter()
        self._rebuilding = None
        serving: dict[str, list[Handle]] = {}
        for handle in self.handles.values():
            for model in handle.models:
                serving.setdefault(model, []).append(handle)
        catalog: dict[str, Entry] = {}
        plain = Model()
        for target, handles in serving.items():
            settings = self._models.get(target, plain)
            for name in (target, *settings.aliases):
                catalog[name] = Entry(name, target, tuple(handles), settings)
        self.catalog = catalog
        if self.watcher is not None:
            self.watcher.sync(self.handles.values())
        self._rebuild_took = perf_counter() - began

    def refuse(self, model: str, usable: Callable[[str], bool] | None) -> NoReturn:
        """Say why `model` cannot be served now: unknown to this caller, or on no engine that takes requests. Raises
        Refusal."""
        known = [n for n in self.catalog if usable is None or usable(n)]
        if model in known:
            raise errors.no_engine(model, self.catalog[model].why_none)
        now = self._clock()
        if model not in self.catalog and any(h.may_yet_know(now) for h in self.handles.values()):
            raise errors.no_engine(model, "an engine that may serve it has not answered yet")
        raise errors.unknown_model(model, sorted(known))

    # --- what requests show ------------------------------------------------------------------------------------------

    def passive_failure(self, handle: Handle, why: str) -> None:
        """A request could not reach the engine: check it now."""
        if handle.failed(why):
            self._out(handle, why)
        self._checks.hurry(handle, 0.2)  # failures come in flocks: one check for all of them

    def went_well(self, handle: Handle, probe: int) -> None:
        """An answer, where the engine's breaker is tender."""
        now = self._clock()
        if handle.breaker.succeeded(now, probe=probe):
            self._closed(handle)
        else:
            self._look_again(handle)

    def went_badly(self, handle: Handle, probe: int, why: str) -> None:
        """A request that failed through the engine's fault."""
        breaker = handle.breaker
        changed = breaker.failed(self._clock(), probe=probe, may_open=False)
        if not changed and breaker.overdue and self._others(handle, half=True):
            changed = breaker.trip(self._clock())
        if changed:
            self._opened(handle, "failures", why)

    def said_nothing(self, handle: Handle, probe: int) -> None:
        """A probe ended through no doing of the engine's."""
        if handle.breaker.void(probe):
            self._look_again(handle)

    def silent(self, handle: Handle, why: str) -> bool:
        """It has stalled. False where it stays in, since there is no other."""
        if handle.stalled or not self._others(handle, half=False) or not handle.breaker.trip(self._clock()):
            return False
        handle.stalled = True
        self._opened(handle, "stalled", why)
        self._checks.hurry(handle, 0.0)
        return True

    def heard_again(self, handle: Handle) -> None:
        """It was slow, not dead."""
        handle.stalled = False
        if handle.breaker.heal(self._clock()):
            self._closed(handle)

    def rests(self, handle: Handle, asked: float | None) -> None:
        """It said that it is overloaded: spared for the seconds it asked for, or a short while."""
        seconds = self._rng.uniform(*REST) if asked is None else asked
        until = self._clock() + min(seconds, self._rest_most)
        handle.rests_until = max(handle.rests_until, until)
        if handle.name in self.handles:
            self.eased.add(handle.name)

    def instead(self, placement: Placement, model: str, candidates: tuple[str, ...], first: str) -> str:
        """`first`, or another of `candidates` where that is spared now and its turn has not come. Where all are spared:
        rather one that starts slowly than one that is full."""
        now, name, slow = self._clock(), first, ""
        for _ in range(min(len(candidates), TRIES)):
            handle = self.handles.get(name)
            share = handle.share(now) if handle is not None else 1.0
            if share >= 1.0:
                self.eased.discard(name)
                return name
            if handle is None or now >= handle.rests_until:
                if self._rng.random() < share:
                    return name
                slow = name
            name = placement.choose(model, candidates, now) or name
        return slow or first

    def probes_first(self, candidates: tuple[str, ...]) -> tuple[str, ...]:
        """One of them alone that is to be probed; else all. By its score it would hardly be chosen while others are
        idle, and would stay out."""
        for handle in self._open:
            if handle.usable and handle.breaker.state is BreakerState.HALF_OPEN and handle.name in candidates:
                return (handle.name,)
        return candidates

    def probed(self, handle: Handle) -> None:
        """A probe was sent: there may be room for no more."""
        self._look_again(handle)

    def _others(self, handle: Handle, *, half: bool) -> bool:
        """Whether its models can do without it: another engine takes requests for each, or half of them do."""
        for model in handle.models:
            entry = self.catalog.get(model)
            if entry is not None:
                left = sum(e.usable for e in entry.engines if e is not handle)
                if left < (-(-len(entry.engines) // 2) if half else 1):
                    return False
        return True

    def _opened(self, handle: Handle, event: str, why: str) -> None:
        if handle not in self._open:
            log.warning("engine %s gets no requests for now: %s", handle.name, why)
        self._open.add(handle)
        handle.trouble = why
        self.breaks.series(handle.name, event).add()
        self._look_again(handle)

    def _closed(self, handle: Handle) -> None:
        self._open.discard(handle)
        handle.stalled, handle.trouble = False, ""
        log.info("engine %s gets requests again", handle.name)
        self.breaks.series(handle.name, "closed").add()
        if handle.share(self._clock()) < 1.0:
            self.eased.add(handle.name)
        self._look_again(handle)

    def _out(self, handle: Handle, why: str) -> None:
        handle.reported = True
        log.warning("engine %s is out: %s", handle.name, why)
        self._look_again(handle)

    def _look_again(self, handle: Handle) -> None:
        if handle.refresh() and handle.name in self.handles:
            self.rebuild()

    def _tick(self, now: float) -> None:
        if self._open:
            now = self._clock()
            for handle in tuple(self._open):
                if handle.breaker.look(now):
                    self.eased.add(handle.name)
                    self._look_again(handle)
        if self.leaving:
            self.leaving = [h for h in self.leaving if h.in_flight]

    # --- health ------------------------------------------------------------------------------------------------------

    async def first_look(self, seconds: float) -> None:
        """Until every engine has been looked at once, at most `seconds`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._names.first_answers()
                for handle in tuple(self.handles.values()):
                    await handle.looked_at.wait()

    def _spread(self, seconds: float, most: int) -> float:
        """A pause of about that long, and longer where all engines together would be looked at too often."""
        return max(seconds, len(self.handles) / most) * self._rng.uniform(0.9, 1.1)

    async def _watch(self, handle: Handle) -> float:
        """One health check; returns the seconds to the next."""
        await self._check(handle)
        handle.looked_at.set()
        now = self._clock()
        if not handle.healthy and not handle.reported and now >= handle.expected_until - EAGER_SECONDS + 1.0:
            handle.reported = True
            log.warning("engine %s has not answered yet: %s", handle.name, handle.why)
        handle.checks = handle.checks + 1 if handle.healthy else 0
        interval = handle.config.health_interval
        if not handle.healthy and now < handle.expected_until:
            interval = min(interval, EAGER)
        return self._spread(interval, CHECKS)

    async def _check(self, handle: Handle) -> None:
        """One look at an engine; the catalogue follows what it shows."""
        known = handle.discovered
        try:
            await identify(handle)
            adapter = handle.adapter
            seconds = max(handle.config.health_timeout, adapter.patience)
            await fetch(handle, adapter.health_path, seconds)
            if not handle.config.models and (known is None or handle.checks % MODELS_EVERY == 0):
                handle.discovered = model_ids(await fetch(handle, adapter.models_path, seconds))
        except FetchFailed as e:
            if e.ours:
                log.error("engine %s cannot be checked: %s", handle.name, e)
            elif handle.failed(str(e)):
                self._out(handle, str(e))
                if e.silent and self.lost is not None:
                    self.lost(handle, str(e))
            return
        if self.watcher is None or not handle.healthy:
            await look_at(handle, self._clock())
        recovered = handle.succeeded()
        if recovered:
            log.info("engine %s is healthy, serving %s", handle.name, ", ".join(handle.models) or "no model")
            now = self._clock()
            if self._began is not None and now - self._began > EAGER_SECONDS and self._rules.slow_start_s:
                handle.breaker.warm_up(now)
                self.eased.add(handle.name)
        if handle.refresh() or recovered or handle.discovered != known:
            self.rebuild()

    async def _scrape(self, handle: Handle) -> float:
        """Its metrics, for as long as it is healthy. The watcher is told of one that has none, too: it looks then at
        what it knows itself."""
        if handle.healthy and self.watcher is not None:
            await look_at(handle, self._clock())
            self.watcher.reported(handle)
        return max(self._spread(self.report_interval, LOOKS), pause(handle, self.report_interval, self._rng))

    # --- ends --------------------------------------------------------------------------------------------------------

    def unresolved(self) -> Iterable[tuple[Engine, str]]:
        """Entries whose DNS name has shown no address yet, and why."""
        return self._names.unresolved()

    def close(self) -> None:
        self._ticker.remove(self._tick)
        self._names.close()
        if self._rebuilding is not None:
            self._rebuilding.cancel()
        for handle in self.handles.values():
            self._checks.end(handle)
            self._scrapes.end(handle)
            handle.pool.close()

    def __repr__(self) -> str:
        return f"<Fleet {list(self.handles.values())}>"

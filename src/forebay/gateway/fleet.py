"""The engines and what each model name stands for: pools, health checks, model discovery.

Mutable state: the handles by name, and the catalogue built from them whenever health, models or the configuration
change, so that a request looks one dictionary up.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import ssl
from collections.abc import Callable, Iterable
from typing import NoReturn, Protocol
from urllib.parse import urlsplit

import msgspec

from forebay import errors
from forebay.config.engine import Engine
from forebay.config.models import Config, Model, Timeouts
from forebay.gateway.fetch import FetchFailed, fetch
from forebay.gateway.handles import EAGER, EAGER_SECONDS, Entry, Handle
from forebay.gateway.kv_events import KvFeeds
from forebay.gateway.looking import identify, look_at, pause
from forebay.wire.pool import Origin, Pool
from forebay.wire.tasks import Tasks
from forebay.wire.ticker import Ticker

log = logging.getLogger("forebay.engines")

MAX_MODELS = 1_000
"""Models believed of one engine's list."""
MODELS_EVERY = 5
"""Health checks between two looks at the model list."""


class Watcher(Protocol):
    """Who follows the engines."""

    def sync(self, handles: Iterable[Handle]) -> None:
        """Their number, health or models changed."""
        ...

    def reported(self, handle: Handle) -> None:
        """A look at its metrics ended, well or not."""
        ...


class Fleet:
    """`watcher`, where there is one, is told of every change, and of the engines' metrics every `report_interval`
    seconds."""

    watcher: Watcher | None = None
    feeds: KvFeeds | None = None
    """The engines' KV events, where somebody wants them."""
    report_interval = 0.25

    def __init__(self, tasks: Tasks, ticker: Ticker, clock: Callable[[], float]) -> None:
        self._tasks = tasks
        self._ticker = ticker
        self._clock = clock
        self._models: dict[str, Model] = {}
        self.handles: dict[str, Handle] = {}
        self.catalog: dict[str, Entry] = {}

    def configure(self, config: Config) -> None:
        """Engines that did not change keep their connections; those gone finish what they run."""
        self.report_interval = config.admission.report_interval
        wanted = {e.name: e for e in config.engines}
        timeouts = config.timeouts
        before = dict(self.handles)
        for name, handle in before.items():
            if wanted.get(name) != handle.config:
                del self.handles[name]
                handle.pool.close()
                for task in (handle.task, handle.scraping):
                    if task is not None:
                        task.cancel()
            else:
                handle.pool.configure(timeouts)
        for name, engine in wanted.items():
            if name not in self.handles:
                handle = self.handles[name] = Handle(engine, self._pool(engine, timeouts), self._clock())
                if name in before:
                    handle.follow(before[name])
                handle.task = self._tasks.spawn(self._watch(handle))
                if self.watcher is not None:
                    handle.scraping = self._tasks.spawn(self._scrape(handle, self.watcher))
        self._models = dict(config.models)
        if self.feeds is not None:
            self.feeds.sync(handle.config for handle in self.handles.values())
        self.rebuild()

    def _pool(self, engine: Engine, timeouts: Timeouts) -> Pool:
        url = urlsplit(engine.url)
        tls: ssl.SSLContext | None = None
        if url.scheme == "https":
            tls = ssl.create_default_context(cafile=str(engine.tls.ca) if engine.tls.ca else None)
            if not engine.tls.verify:
                log.warning("engine %s: its certificate is not verified (tls.verify is false)", engine.name)
                tls.check_hostname = False
                tls.verify_mode = ssl.CERT_NONE
        return Pool(
            Origin(url.hostname or "", url.port or (443 if tls else 80), tls, engine.tls.server_name),
            max_open=engine.max_connections,
            max_idle=engine.max_idle,
            timeouts=timeouts,
            ticker=self._ticker,
            spawn=self._tasks.spawn,
        )

    # --- the catalogue -----------------------------------------------------------------------------------------------

    def rebuild(self) -> None:
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

    def refuse(self, model: str, usable: Callable[[str], bool] | None) -> NoReturn:
        """Say why `model` cannot be served now: unknown to this caller, or on no healthy engine. Raises Refusal."""
        known = [n for n in self.catalog if usable is None or usable(n)]
        if model in known:
            raise errors.no_engine(model, "none of its engines is healthy")
        now = self._clock()
        if model not in self.catalog and any(h.may_yet_know(now) for h in self.handles.values()):
            raise errors.no_engine(model, "an engine that may serve it has not answered yet")
        raise errors.unknown_model(model, sorted(known))

    def passive_failure(self, handle: Handle, why: str) -> None:
        """A request could not reach the engine: check it now."""
        if handle.failed(why):
            log.warning("engine %s is out: %s", handle.name, why)
            self.rebuild()
        handle.recheck.set()

    # --- health ------------------------------------------------------------------------------------------------------

    async def first_look(self, seconds: float) -> None:
        """Until every engine has been looked at once, at most `seconds`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                for handle in tuple(self.handles.values()):
                    await handle.looked_at.wait()

    async def _watch(self, handle: Handle) -> None:
        checks = 0
        rng = random.Random(handle.name)  # noqa: S311 - spreads checks, guards nothing
        while True:
            handle.recheck.clear()
            await self._check(handle, checks)
            handle.looked_at.set()
            if (
                not handle.healthy
                and not handle.reported
                and self._clock() >= handle.expected_until - EAGER_SECONDS + 1.0
            ):
                handle.reported = True
                log.warning("engine %s has not answered yet: %s", handle.name, handle.why)
            checks = checks + 1 if handle.healthy else 0
            pause = handle.config.health_interval * rng.uniform(0.9, 1.1)
            if not handle.healthy and self._clock() < handle.expected_until:
                pause = min(pause, EAGER)
            try:
                async with asyncio.timeout(pause):
                    await handle.recheck.wait()
                    await asyncio.sleep(min(0.2, pause))  # failures come in flocks: one check for all of them
            except TimeoutError:
                continue

    async def _check(self, handle: Handle, checks: int) -> None:
        """One look at an engine; the catalogue follows what it shows."""
        known = handle.discovered
        try:
            await identify(handle)
            adapter = handle.adapter
            seconds = max(handle.config.health_timeout, adapter.patience)
            await fetch(handle, adapter.health_path, seconds)
            if not handle.config.models and (known is None or checks % MODELS_EVERY == 0):
                handle.discovered = _model_ids(await fetch(handle, adapter.models_path, seconds))
        except FetchFailed as e:
            if e.ours:
                log.error("engine %s cannot be checked: %s", handle.name, e)
            elif handle.failed(str(e)):
                log.warning("engine %s is out: %s", handle.name, e)
                self.rebuild()
            return
        if self.watcher is None or not handle.healthy:
            await look_at(handle, self._clock())
        recovered = handle.succeeded()
        if recovered:
            log.info("engine %s is healthy, serving %s", handle.name, ", ".join(handle.models) or "no model")
        if recovered or handle.discovered != known:
            self.rebuild()

    async def _scrape(self, handle: Handle, watcher: Watcher) -> None:
        """Its metrics, again and again, for as long as it is healthy. The watcher is told of one that has none, too: it
        looks then at what it knows itself."""
        rng = random.Random(handle.name)  # noqa: S311 - spreads looks, guards nothing
        while True:
            await asyncio.sleep(pause(handle, self.report_interval, rng))
            if handle.healthy:
                await look_at(handle, self._clock())
                watcher.reported(handle)

    def close(self) -> None:
        for handle in self.handles.values():
            handle.pool.close()

    def __repr__(self) -> str:
        return f"<Fleet {list(self.handles.values())}>"


class _Listed(msgspec.Struct, frozen=True):
    id: str


class _List(msgspec.Struct, frozen=True):
    data: list[_Listed]


def _model_ids(body: bytes) -> tuple[str, ...]:
    """Raises FetchFailed where the list is none."""
    try:
        found = msgspec.json.decode(body, type=_List)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as e:
        raise FetchFailed(f"its model list cannot be read: {errors.shown(e)}") from None
    return tuple(m.id for m in found.data[:MAX_MODELS] if 0 < len(m.id) <= 256 and m.id.isprintable())

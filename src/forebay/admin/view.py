"""What the admin process knows of the whole gateway: the view behind health, readiness and metrics."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from forebay import __version__
from forebay.admin.ingest import Ingest
from forebay.admin.keys import Keys
from forebay.admin.metrics import gauge
from forebay.admin.procfs import process_families
from forebay.admin.sums import Store, Sums
from forebay.admin.threads import Busy, Threads
from forebay.admin.workers import Workers
from forebay.config.models import Config
from forebay.state.messages import EngineState, FamilySnapshot, HelperState, Snapshot, run_dir

SCRAPE: Final = 0.25
"""Seconds a scrape waits for fresh snapshots."""
NAMED: Final = 20
"""Engines that one sentence names."""
SHOWN: Final = 256
"""Engines in `/health`, those in trouble first; `/admin/engines` has all."""
SAVE: Final = 0.5
"""Seconds a scrape waits for the sums to be kept."""

_log = logging.getLogger("forebay.admin")


@dataclass(slots=True)
class EngineView:
    """One engine as all workers see it."""

    name: str
    url: str
    healthy: int = 0
    """Workers that find it healthy."""
    seen: int = 0
    """Workers that know it."""
    in_flight: int = 0
    models: tuple[str, ...] = ()
    why: str = ""
    kind: str = ""
    version: str = ""
    usable: int = 0
    """Workers that send it requests."""
    state: str = ""
    source: str = ""

    def add(self, state: EngineState) -> None:
        self.seen += 1
        self.healthy += state.healthy
        self.in_flight += state.in_flight
        self.models = self.models or state.models
        self.usable += state.usable
        self.source = state.source
        if not self.state or self.state == "healthy":  # the first that is not well speaks for all
            self.state = state.state
        self.why = self.why or state.why
        self.kind = state.kind or self.kind
        self.version = state.version or self.version

    def as_json(self) -> dict[str, Any]:
        found: dict[str, Any] = {
            "name": self.name,
            "url": self.url,
            "healthy": self.healthy > 0,
            "healthy_in_workers": self.healthy,
            "state": self.state,
            "usable": self.usable > 0,
            "source": self.source,
            "models": list(self.models),
            "in_flight": self.in_flight,
        }
        if self.kind:
            found["kind"] = self.kind
        if self.version:
            found["version"] = self.version
        if self.why and (self.state != "healthy" or min(self.healthy, self.usable) < self.seen):
            found["why"] = self.why
        return found


class GatewayState:
    """Put together by `main`; read by the HTTP routes."""

    def __init__(self, config: Config, boot: str, workers: int) -> None:
        self.config = config
        self.draining = False
        self.workers = Workers(config.state_dir, workers, self._on_snapshot)
        self._store = Store(run_dir(config.state_dir) / "metrics.json")
        self._sums = Sums(self._store.load(boot))
        self._boot = boot
        self._own_boot = f"{os.getpid()}-{os.urandom(4).hex()}"
        self._files = Threads("sums", count=1, bound=4)
        self._unsaved = ""
        self.ledger: Ingest | None = None
        """None where the ledger is not enabled."""
        self.helper = HelperState()
        """Of the cache, as the supervisor says."""
        self.own: list[Callable[[], tuple[FamilySnapshot, ...]]] = []
        """What else this process counts. Its counters go on over a restart."""

    def _on_snapshot(self, snapshot: Snapshot) -> None:
        role = _role(snapshot.index)
        self._sums.report(role, snapshot.boot, snapshot.families + process_families(role, snapshot.pid))

    async def scrape(self, keys: Keys) -> tuple[FamilySnapshot, ...]:
        """Every family, as fresh as the workers answer."""
        await self.workers.fresh(SCRAPE)
        own = tuple(family for families in self.own for family in families())
        own += self.ledger.families() if self.ledger is not None else ()
        self._sums.report("admin", self._own_boot, process_families("admin", os.getpid()) + own)
        children = (*process_families("supervisor", os.getppid()), restarts(self.helper))
        self._sums.report("supervisor", self._boot, children)
        living = ["admin", "supervisor", *(_role(link.index) for link in self.workers.links if link.up)]
        total = self._sums.total(living)
        # Kept before it is shown: what a scrape has seen must not be lower after a restart of this process.
        await self.save()
        up = [((str(link.index),), float(link.up)) for link in self.workers.links]
        return (
            *total,
            gauge("forebay_worker_up", "1 where the worker answers.", up, "worker"),
            gauge("forebay_database_up", "1 where the database works.", [((), float(keys.up))]),
        )

    async def save(self) -> None:
        """Keep the sums for the next life of this process, where they changed."""
        if not self._sums.changed:
            return
        content = self._sums.take_state()
        try:
            await self._files.run(lambda: self._store.save(content), SAVE)
        except (OSError, TimeoutError, Busy) as e:
            self._sums.changed = True
            why = str(e) or "no answer from the disk"
            if why != self._unsaved:
                _log.error(
                    "%s cannot be written, so counters may fall when the admin process restarts: %s",
                    self._store.path,
                    why,
                )
            self._unsaved = why
        else:
            self._unsaved = ""

    def engines(self) -> list[EngineView]:
        found: dict[str, EngineView] = {}
        for link in self.workers.links:
            if link.up and link.snapshot is not None:
                for state in link.snapshot.engines:
                    found.setdefault(state.name, EngineView(state.name, state.url)).add(state)
        return list(found.values())

    def unknown_models(self, names: tuple[str, ...]) -> list[str]:
        """A warning for each name that is neither an engine's model nor an alias; none while no model is known."""
        served = {model for engine in self.engines() for model in engine.models}
        served |= {model for engine in self.config.engines for model in engine.models}
        if not served:
            return []
        known = served | set(self.config.models) | {a for model in self.config.models.values() for a in model.aliases}
        some = ", ".join(sorted(known)[:20])
        return [
            f"models: no engine has a model '{n}', and no alias is called so; known: {some}"
            for n in names
            if n not in known
        ]

    def not_ready(self, keys: Keys) -> list[str]:
        """Why no work should be sent here; empty where it may be."""
        reasons = ["draining"] if self.draining else []
        if keys.pending:
            reasons.append(f"the key list was not read from the database yet: {keys.status}")
        connected = [(link, link.snapshot) for link in self.workers.links if link.up]
        reasons += [f"worker {link.index} does not answer: {link.why}" for link in self.workers.links if not link.up]
        for link, snapshot in connected:
            assert snapshot is not None
            if snapshot.draining and not self.draining:
                reasons.append(f"worker {link.index} is draining")
            if not link.informed:
                reasons.append(f"worker {link.index} was not given the current key list yet")
            elif snapshot.keys_version < 1:
                reasons.append(f"worker {link.index} has no key list yet")
        if connected:
            engines = self.engines()
            if not engines:
                reasons.append("no engine is configured")
            elif not any(e.healthy and e.usable for e in engines):
                some = [f"{e.name} ({e.why or e.state or 'not checked yet'})" for e in engines[:NAMED]]
                more = f" and {len(engines) - NAMED:,} more" if len(engines) > NAMED else ""
                reasons.append(f"no engine is healthy: {', '.join(some)}{more}")
        return reasons

    def health(self, keys: Keys) -> dict[str, Any]:
        processes: list[dict[str, Any]] = [
            {"role": "supervisor", "pid": os.getppid(), "up": True},
            {"role": "admin", "pid": os.getpid(), "up": True},
        ]
        for link in self.workers.links:
            entry: dict[str, Any] = {"role": _role(link.index), "pid": None, "up": link.up}
            if link.up and link.snapshot is not None:
                entry |= {
                    "pid": link.snapshot.pid,
                    "draining": link.snapshot.draining,
                    "keys_version": link.snapshot.keys_version,
                }
            else:
                entry["why"] = link.why
            processes.append(entry)
        database: dict[str, Any] = {"up": keys.up, "keys_version": keys.version}
        if not keys.up:
            database["why"] = keys.status
            if not keys.pending:
                database["meanwhile"] = "the workers go on with the last list they know (keys_version of each)"
        engines = self.engines()
        fine = keys.up and not self.not_ready(keys) and all(e.healthy == e.seen for e in engines)
        ledger = {} if self.ledger is None else {"ledger": self.ledger.health()}
        fine = fine and all(part["up"] for part in ledger.values())
        shown = sorted(engines, key=lambda e: e.healthy == e.seen)[:SHOWN] if len(engines) > SHOWN else engines
        return {
            "status": "ok" if fine else "degraded",
            "version": __version__,
            "draining": self.draining,
            "processes": processes,
            "database": database,
            **ledger,
            "engine_count": {
                "all": len(engines),
                "healthy": sum(e.healthy == e.seen for e in engines),
                "usable": sum(e.usable == e.seen for e in engines),
            },
            "engines": [e.as_json() for e in shown],
        }


def _role(index: int) -> str:
    return f"worker-{index}"


def private_folder(path: Path) -> None:
    """Make a folder of mode 0700, or bring an existing one to it. Raises OSError."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.chmod(0o700)


def restarts(helper: HelperState) -> FamilySnapshot:
    return FamilySnapshot(
        "forebay_cache_helper_restarts",
        "Ends of the helper process that nobody asked for: it ended, or hung and was killed.",
        "counter",
        ("why",),
        values=((("ended",), float(helper.ended)), (("hung",), float(helper.hung))),
    )

"""One engine as the gateway sees it, and what one model name stands for."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from enum import StrEnum
from urllib.parse import urlsplit

import msgspec

from forebay.config.engine import Engine, EngineKind
from forebay.config.models import Model
from forebay.engines.base import EngineReport
from forebay.engines.registry import adapter
from forebay.gateway.dialects import dialect_of
from forebay.gateway.looking import Look
from forebay.gateway.roles import roles_of
from forebay.ledger.enginepricing import Dearest, EnginePrices
from forebay.policy.breaker import Breaker
from forebay.policy.breaker import State as BreakerState
from forebay.wire.pool import Pool

EAGER, EAGER_SECONDS = 0.1, 15.0
"""Seconds between checks of an engine that is not there yet, and for how long it is expected so eagerly."""
RESTING = 0.01
"""Share of traffic of an engine that said it is overloaded."""


class Source(StrEnum):
    """Who named an engine."""

    FILE = "file"
    """The configuration."""
    LIST = "list"
    """The watched file, `engines_file`."""
    LIVE = "live"
    """`forebay engines add`."""
    DNS = "dns"
    """An address of an engine with `discover`, whoever named that."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """An engine that there should be. `address`: of several behind its host's name, the one to connect to."""

    config: Engine
    source: Source
    address: str = ""


class Handle:
    """One engine as the gateway sees it."""

    __slots__ = (
        "_failures",
        "_heads",
        "adapter",
        "answered_at",
        "breaker",
        "checks",
        "config",
        "dialect",
        "discovered",
        "draining",
        "expected_until",
        "first_mean",
        "firsts",
        "gap_mean",
        "gaps",
        "healthy",
        "heard_at",
        "in_flight",
        "look",
        "looked_at",
        "name",
        "per_byte",
        "per_event",
        "pool",
        "prices",
        "quiet",
        "report",
        "reported",
        "rests_until",
        "stalled",
        "trouble",
        "usable",
        "wanted",
        "why",
    )

    def __init__(self, wanted: Wanted, pool: Pool, breaker: Breaker, now: float) -> None:
        config = wanted.config
        self.name = config.name
        self.expected_until = now + EAGER_SECONDS
        self.wanted = wanted
        self.config = config
        self.adapter = adapter(config.kind)
        self.dialect = dialect_of(config, self.adapter)
        self.look = Look()
        self.pool = pool
        self.breaker = breaker
        self.healthy = False
        self.draining = False
        self.usable = False
        """Whether it gets new requests: the sum of the above, kept by `refresh`."""
        self.stalled = False
        self.rests_until = 0.0
        self.why = "not checked yet"
        """Of the last check that went wrong."""
        self.trouble = ""
        """Why its breaker is not closed."""
        self.reported = False
        self.discovered: tuple[str, ...] | None = None
        self.in_flight = 0
        self.report = EngineReport()
        self.looked_at = asyncio.Event()
        self.checks = 0
        """Good ones in a row."""
        # What gateway.stalls learns: monotonic seconds, seconds, counts.
        self.heard_at = 0.0
        self.answered_at = 0.0
        self.quiet = 0.0
        self.prices: EnginePrices | None = None
        """Set with its first reservation (`gateway.booking`)."""
        self.per_event = 1.0
        """Tokens of one event of its streams, on average."""
        self.per_byte = 0.25
        """Tokens of a byte of their words, likewise."""
        self.gap_mean = 0.0
        self.gaps = 0
        self.first_mean = 0.0
        self.firsts = 0
        self._failures = 0
        self._heads: dict[bytes, bytes] = {}

    @property
    def models(self) -> tuple[str, ...]:
        return self.config.models or self.discovered or ()

    @property
    def state(self) -> str:
        """In one word, for people."""
        if self.draining:
            return "draining"
        if not self.healthy:
            return "unhealthy" if self.reported or self.discovered is not None or self._failures else "starting"
        if self.stalled:
            return "stalled"
        return "healthy" if self.breaker.state is BreakerState.CLOSED else self.breaker.state.value

    @property
    def wrong(self) -> str:
        """Why it gets no requests, or what went wrong last; empty where all is well."""
        return (self.trouble if self.healthy else "") or self.why

    def share(self, now: float) -> float:
        """Of the traffic that it would get otherwise, in (0, 1]: less while it starts slowly, hardly any while it
        rests. `now` is monotonic seconds."""
        share = self.breaker.share(now)
        return min(share, RESTING) if now < self.rests_until else share

    def refresh(self) -> bool:
        """Look whether it is usable. True where that changed."""
        usable = self.healthy and not self.draining and self.breaker.admits
        changed, self.usable = usable is not self.usable, usable
        return changed

    def began(self, seconds: float) -> None:
        """Its answer to a request began that long after it was sent."""
        self.firsts += 1
        seconds = max(0.0, seconds)
        self.first_mean += (seconds - self.first_mean) * max(0.1, 1.0 / self.firsts)

    def may_yet_know(self, now: float) -> bool:
        """Whether it may serve models nobody has heard of yet: it is new, and has not told."""
        return not self.config.models and self.discovered is None and now < self.expected_until

    def head(self, method: bytes, path: bytes) -> bytes:
        """The start of a request's head: request line, Host, credentials. The path is one of our routes."""
        found = self._heads.get(path)
        if found is None:
            url = urlsplit(self.config.url)
            found = b"%b %b%b HTTP/1.1\r\nhost: %b\r\naccept-encoding: identity\r\n" % (
                method,
                url.path.rstrip("/").encode(),
                path,
                url.netloc.encode(),
            )
            if self.config.api_key is not None:
                found += self.adapter.credentials(self.config.api_key)
            self._heads[path] = found
        return found

    def become(self, kind: EngineKind) -> None:
        """It was found to be another kind of engine: what was known of it does not hold."""
        self.adapter = adapter(kind)
        self.dialect = dialect_of(self.config, self.adapter)
        if self.look.kind is not None:
            self.discovered = None
        self.look.kind = kind
        self.look.forget()
        self.report = EngineReport()
        self._heads.clear()

    def succeeded(self) -> bool:
        """A check went well. True where that changes its health."""
        self._failures = 0
        changed, self.healthy, self.why = not self.healthy, True, ""
        return changed

    def failed(self, why: str) -> bool:
        """A check or a connection went wrong. True where that changes its health."""
        self._failures += 1
        self.why = why
        self.look.unsure = True
        if self.healthy and self._failures >= self.config.unhealthy_after:
            self.healthy = False
            return True
        return False

    def follow(self, before: Handle) -> None:
        """Where it is the same server under other settings, what was known of it holds until the next check."""
        ours, theirs = self.config, before.config
        if (ours.url, ours.kind, ours.tls, ours.api_key) == (theirs.url, theirs.kind, theirs.tls, theirs.api_key):
            self.healthy, self.why, self.reported = before.healthy, before.why, before.reported
            self.trouble = before.trouble
            self.discovered, self.report = before.discovered, before.report
            self.adapter, self.look = before.adapter, before.look
            self.dialect = dialect_of(ours, self.adapter)
            self.breaker, self.rests_until, self.stalled = before.breaker, before.rests_until, before.stalled
            self.gap_mean, self.gaps = before.gap_mean, before.gaps
            self.first_mean, self.firsts = before.first_mean, before.firsts

    def __repr__(self) -> str:
        well = self.state if self.healthy else self.wrong
        return f"<Engine {self.name} {well} {self.in_flight} in flight>"


class Entry:
    """What one model name means now."""

    __slots__ = (
        "_suffix",
        "able",
        "apart",
        "candidates",
        "default_most",
        "defaults",
        "engines",
        "name",
        "prefills",
        "priced",
        "renames",
        "spares",
        "target",
        "target_json",
    )

    def __init__(self, name: str, target: str, engines: tuple[Handle, ...], model: Model) -> None:
        self._suffix = b""
        self.priced: tuple[float, Dearest | None] = (0.0, None)
        """Until when (Unix time), and what its engines' prices come to at most (`gateway.booking`)."""
        self.name = name
        self.target = target
        self.engines = engines
        self.able, self.candidates, self.spares, self.prefills, self.apart = roles_of(engines)
        self.defaults = {k: msgspec.json.encode(v) for k, v in model.defaults.items()}
        self.default_most = _most(self.defaults)
        """The max_tokens of requests that say none; None: nothing bounds those."""
        self.target_json = msgspec.json.encode(target)
        ours = msgspec.json.encode(name)
        self.renames: tuple[tuple[bytes, bytes], ...] = (
            (
                (b'"model":' + self.target_json, b'"model":' + ours),
                (b'"model": ' + self.target_json, b'"model": ' + ours),
            )
            if name != target
            else ()
        )

    def left(self, tried: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Of those not yet tried, who is healthy, and who is able once it is."""
        healthy = tuple([c for c in self.candidates if c not in tried])
        if not healthy and self.spares:
            healthy = tuple([c for c in self.spares if c not in tried])
            return healthy, healthy
        return healthy, tuple([c for c in self.able if c not in tried])

    @property
    def why_none(self) -> str:
        """Why none of its engines takes requests, for people."""
        engines = self.engines
        if all(h.draining for h in engines):
            return "its engines drain"
        if any(h.usable for h in engines):  # which decodes, and cannot answer alone
            return "none of its prefill engines takes requests"
        return (
            "none of its engines takes requests"
            if any(h.healthy for h in engines)
            else "none of its engines is healthy"
        )

    def shared(self, suffix: bytes) -> bytes:
        """The same bytes, one object for all streams of this model: it stays in the processor's cache."""
        if suffix != self._suffix:
            self._suffix = suffix
        return self._suffix

    def renamed(self, data: bytes) -> bytes:
        """An engine's bytes with its own name for the model replaced by the one asked for. JSON strings cannot contain
        the pattern: their quotes are escaped."""
        for theirs, ours in self.renames:
            data = data.replace(theirs, ours)
        return data

    def __repr__(self) -> str:
        return f"<Entry {self.name} → {self.target} on {list(self.candidates)}>"


def _most(defaults: dict[str, bytes]) -> int | None:
    found = defaults.get("max_completion_tokens") or defaults.get("max_tokens") or b""
    return int(found) or None if found.isdigit() else None

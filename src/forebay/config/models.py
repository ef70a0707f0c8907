"""The configuration as it is once it has been checked: one model a section of `forebay.yaml`.

Every field has a default that is safe on a laptop, a unit in its name or description, and a bound. Unknown keys are
errors. Secrets are plain strings that never appear in a `repr`.
"""

from __future__ import annotations

import hashlib
import ipaddress
import json
import os
import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, field_validator, model_validator

from forebay.config.admission import Admission
from forebay.config.alerts import Alerts
from forebay.config.cache import Cache
from forebay.config.disaggregation import Disaggregation
from forebay.config.engine import VISIBLE, Engine, Role
from forebay.config.fit import impossible
from forebay.config.health import Health
from forebay.config.ledger import Ledger
from forebay.config.placement import Placement
from forebay.config.quotas import Quota
from forebay.config.section import Class, Name, Seconds, Secret, Section
from forebay.config.section import clash as _clash
from forebay.errors import shown

__all__ = ["Class", "Name", "Section"]

_HOST_PORT = re.compile(r"(?:\[(?P<v6>[0-9A-Fa-f:.]+)\]|(?P<host>[A-Za-z0-9._-]+)):(?P<port>[0-9]{1,5})")


def _is_v6(text: str) -> bool:
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return True


class Address(Section):
    """Where to listen: `host:port`, `[v6]:port` or `unix:/path`."""

    host: str = ""
    port: Annotated[int, Field(ge=0, le=65_535)] = 0
    unix: str = ""

    @classmethod
    def parse(cls, text: str) -> Address:
        """Raises ValueError for anything that is neither `host:port` nor `unix:/path`."""
        if text.startswith("unix:"):
            path = text.removeprefix("unix:")
            if not path.startswith("/") or len(path.encode()) > 100:
                raise ValueError("a Unix socket is written unix:/absolute/path, at most 100 bytes long")
            return cls(unix=path)
        m = _HOST_PORT.fullmatch(text)
        if m is None or int(m["port"]) > 65_535 or (m["v6"] and not _is_v6(m["v6"])):
            raise ValueError("an address is written host:port (port 0 to 65535), [v6]:port or unix:/absolute/path")
        return cls(host=m["v6"] or m["host"], port=int(m["port"]))

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: Any) -> Any:
        if isinstance(value, str):
            return cls.parse(value).model_dump()
        if not isinstance(value, dict | Address):
            raise ValueError("an address is written host:port (port 0 to 65535), [v6]:port or unix:/absolute/path")
        return value

    @model_validator(mode="after")
    def _one_of(self) -> Address:
        if bool(self.host) == bool(self.unix):
            raise ValueError("an address has either a host and a port or a unix path")
        return self

    @property
    def loopback(self) -> bool:
        if self.unix or self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    def __str__(self) -> str:
        if self.unix:
            return f"unix:{self.unix}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class ServerTLS(Section):
    cert: Path
    """PEM file: the server's certificate, then its chain."""
    key: Path
    """PEM file: the private key."""
    key_password: Secret | None = Field(default=None, repr=False)
    """Opens an encrypted private key; write ${VAR}."""
    client_ca: Path | None = None
    """PEM file: when given, clients must show a certificate signed by it."""
    min_version: Literal["1.2", "1.3"] = "1.2"
    """Oldest TLS version a client may speak."""

    @field_validator("min_version", mode="before")
    @classmethod
    def _version(cls, value: Any) -> Any:
        return str(value) if isinstance(value, float) else value  # YAML reads a bare 1.2 as a number


class Listener(Section):
    address: Address
    """`host:port`, `[v6]:port` or `unix:/path`."""
    tls: ServerTLS | None = None
    """Serve HTTPS; without it, HTTP."""
    trusted_proxies: tuple[str, ...] = ()
    """Addresses or CIDR ranges whose X-Forwarded-For is believed; `unix` trusts peers of a Unix socket."""

    @field_validator("trusted_proxies")
    @classmethod
    def _networks(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for v in value:
            try:
                if v != "unix":
                    ipaddress.ip_network(v, strict=False)
            except ValueError:
                raise ValueError(f"'{shown(v)}' is neither an address, a CIDR range nor the word unix") from None
        return value


class Model(Section):
    """What is said about one model, by the engine's own name."""

    aliases: tuple[Name, ...] = ()
    """Names a client may use for it; rewritten on the way in and out."""
    defaults: dict[str, Any] = Field(default={})
    """Request fields used where the client sent none: temperature, max_tokens, …"""
    tokenizer: Path | None = None
    """Its tokenizer.json (Hugging Face): admission's estimates of prompts learn from it. Needs forebay[tokenizers]."""

    @field_validator("defaults")
    @classmethod
    def _defaults(cls, value: dict[str, Any]) -> dict[str, Any]:
        fixed = {"model", "messages", "prompt", "input", "stream", "stream_options"} & value.keys()
        if fixed:
            raise ValueError(f"{', '.join(sorted(fixed))} cannot have a default")
        try:
            json.dumps(value, allow_nan=False)
        except (TypeError, ValueError):
            raise ValueError("a default must be a value that JSON has: no .nan, no .inf") from None
        return value


class Key(Section):
    """A key kept in the configuration (its text in the environment) instead of the database."""

    name: Name
    """Its label in logs and reports."""
    key: Secret = Field(repr=False)
    """Its text, at least 20 characters; write ${VAR}."""
    organisation: Name = "default"
    """Whom its use is booked to, from the top: organisation, department, project, user."""
    department: Name | None = None
    """Within the organisation."""
    project: Name | None = None
    """Within the department."""
    user: Name | None = None
    """Within the project."""
    models: tuple[Name, ...] = ()
    """Models or aliases it may use; empty: all."""
    class_: Class = Field(default=Class.NORMAL, alias="class")
    """Priority class, best first: vip, normal, low."""
    may_raise_class: bool = False
    """True lets X-Priority / X-User-Tier raise the class as well as lower it."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, validate_default=True, use_attribute_docstrings=True, populate_by_name=True
    )

    @field_validator("key")
    @classmethod
    def _long_enough(cls, value: str) -> str:
        if len(value) < 20 or not VISIBLE.fullmatch(value):
            raise ValueError("a key is at least 20 printable ASCII characters without spaces")
        return value

    def sha256(self) -> bytes:
        return hashlib.sha256(self.key.encode()).digest()


class Anonymous(Section):
    enabled: bool = False
    """Serve callers who send no key."""
    any_key: bool = False
    """Serve callers whose key is unknown, as anonymous: for a laptop, never for a network."""
    class_: Class = Field(default=Class.LOW, alias="class")
    """Priority class of callers without a key."""
    models: tuple[Name, ...] = ()
    """Models or aliases they may use; empty: all."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, validate_default=True, use_attribute_docstrings=True, populate_by_name=True
    )

    @model_validator(mode="after")
    def _consistent(self) -> Anonymous:
        if self.any_key and not self.enabled:
            raise _clash("any_key needs enabled: true")
        return self


class Callers(Section):
    anonymous: Anonymous = Anonymous()
    """Callers without a key."""
    keys: tuple[Key, ...] = ()
    """Keys kept here; others are made with `forebay key create`."""
    failed_keys_per_minute: Annotated[int, Field(ge=1, le=100_000)] = 30
    """Requests with an unknown key an address may make in a minute before it gets 429."""

    @model_validator(mode="after")
    def _unique(self) -> Callers:
        names = [k.name for k in self.keys]
        if len(set(names)) != len(names):
            raise _clash("two keys have the same name")
        if len({k.sha256() for k in self.keys}) != len(names):
            raise _clash("two keys have the same text")
        return self


class Limits(Section):
    header_bytes: Annotated[int, Field(ge=1_024, le=1 << 20)] = 32_768
    """Largest request head."""
    header_count: Annotated[int, Field(ge=8, le=1_000)] = 100
    """Most header fields in a request."""
    body_bytes: Annotated[int, Field(ge=1_024, le=1 << 30)] = 8 << 20
    """Largest request body."""
    response_bytes: Annotated[int, Field(ge=65_536, le=1 << 32)] = 64 << 20
    """Largest unary answer passed on."""
    error_bytes: Annotated[int, Field(ge=1_024, le=16 << 20)] = 65_536
    """Largest error body of an engine passed on."""
    event_bytes: Annotated[int, Field(ge=4_096, le=64 << 20)] = 1 << 20
    """Largest single event of a stream."""
    write_buffer_bytes: Annotated[int, Field(ge=4_096, le=64 << 20)] = 65_536
    """Unsent bytes a client may have waiting before its engine connection is paused."""
    connections: Annotated[int, Field(ge=1, le=1_000_000)] = 20_000
    """Client connections a worker holds at once."""
    pipelined: Annotated[int, Field(ge=1, le=1_000)] = 8
    """Requests a connection may send ahead."""
    end_users: Annotated[int, Field(ge=1, le=1_000_000)] = 50_000
    """End users whose use is remembered for quotas, each quota for itself, at about 1 kB; the longest unseen is
    forgotten first."""


class Timeouts(Section):
    header: Seconds = 10.0
    """From the first byte of a request to the end of its head."""
    body: Seconds = 60.0
    """From the end of the head to the end of the body."""
    idle: Seconds = 75.0
    """A client connection without a request."""
    write: Seconds = 30.0
    """A client that takes no bytes while some are waiting."""
    connect: Seconds = 5.0
    """To an engine, TLS included."""
    first_byte: Seconds = 120.0
    """From dispatch to the answer's first content."""
    stream_idle: Seconds = 60.0
    """Between two reads of an answer that has begun."""
    upstream_idle: Seconds = 4.0
    """An engine connection kept without a request; keep it below the engine's own keep-alive time-out (vLLM: 5 s)."""
    upstream_age: Seconds = 300.0
    """An engine connection's life, after which DNS is asked again."""
    drain: Seconds = 30.0
    """From SIGTERM to the end of the last stream."""
    drain_delay: Annotated[float, Field(ge=0, le=3_600)] = 0.0
    """From readiness going false to refusing new work, for load balancers to notice."""


class Retries(Section):
    attempts: Annotated[int, Field(ge=1, le=10)] = 3
    """Engines tried for one request, the first included; only before the first byte."""
    budget: Annotated[float, Field(ge=0, le=1)] = 0.2
    """Retries allowed as a share of requests over the last 10 s (and always a few)."""


class Cors(Section):
    origins: tuple[str, ...] = ()
    """Origins allowed to call from a browser; "*" for any; empty: none."""


class Logging(Section):
    format: Literal["json", "pretty", "auto"] = "auto"
    """auto: pretty on a terminal, JSON elsewhere."""
    level: Literal["debug", "info", "warning", "error"] = "info"
    """Least severe line written."""
    requests: bool = True
    """One line a request."""
    bodies: bool = False
    """Prompts and answers too, cut at 4 kB: they are your users' words."""


class Metrics(Section):
    slo_ttft: Annotated[float, Field(gt=0, le=600)] = 1.5
    """Seconds. Always an edge of the TTFT histogram."""
    slo_itl: Annotated[float, Field(gt=0, le=60)] = 0.05
    """Seconds. Always an edge of the inter-token histogram."""


def default_state_dir() -> Path:
    base = os.environ.get("STATE_DIRECTORY") or os.environ.get("XDG_STATE_HOME")
    if base:
        return Path(base) / "forebay"
    try:
        return Path.home() / ".local" / "state" / "forebay"
    except RuntimeError:  # a container's user without a home
        return Path("/var/lib/forebay")


class Config(Section):
    listeners: tuple[Listener, ...] = (Listener(address=Address(host="127.0.0.1", port=8080)),)
    """Where clients call; each may have TLS of its own."""
    admin: Address = Address(host="127.0.0.1", port=8081)
    """Health, readiness, metrics."""
    state_dir: Path = Field(default_factory=default_state_dir)
    """Database, sockets and snapshots; created with mode 0700."""
    database: str = Field(default="", repr=False)
    """SQLAlchemy URL, such as postgresql://user:password@host/name (needs forebay[postgres]); write ${VAR}. Empty:
    SQLite in state_dir."""
    engines: tuple[Engine, ...] = ()
    """The engines behind the gateway."""
    engines_file: Path | None = None
    """A file with more of them: a list of entries as under engines, in YAML or JSON. It is watched: a change is in
    force within seconds, and one that cannot be used changes nothing."""
    health: Health = Health()
    """When an engine gets no more requests for a while."""
    models: dict[Name, Model] = Field(default={})
    """Aliases, defaults and tokenizers, by the engine's own model name."""
    callers: Callers = Callers()
    """Who may call."""
    limits: Limits = Limits()
    """Bounds on sizes and counts."""
    timeouts: Timeouts = Timeouts()
    """Bounds on waits, in seconds."""
    retries: Retries = Retries()
    """Second tries on another engine."""
    cors: Cors = Cors()
    """Calls from browsers."""
    logging: Logging = Logging()
    """What is logged, and how."""
    metrics: Metrics = Metrics()
    """Edges of the latency histograms."""
    admission: Admission = Admission()
    """What is promised, and how full engines may get."""
    placement: Placement = Placement()
    """Which engine of a model gets a request."""
    disaggregation: Disaggregation = Disaggregation()
    """Prefill on one engine, decode on another."""
    cache: Cache = Cache()
    """Answers that are given again."""
    ledger: Ledger = Ledger()
    """Tokens and money."""
    quotas: tuple[Quota, ...] = ()
    """Who may use how much: docs/quotas.md. Others are set with `forebay limit`."""
    alerts: Alerts = Alerts()
    """Who is told when they run out, or run away."""

    @field_validator("listeners")
    @classmethod
    def _some(cls, value: tuple[Listener, ...]) -> tuple[Listener, ...]:
        if not value:
            raise ValueError("at least one listener is needed")
        return value

    @model_validator(mode="after")
    def _consistent(self) -> Config:
        names = [e.name for e in self.engines]
        if len(set(names)) != len(names):
            raise _clash("two engines have the same name")
        taken: dict[str, str] = {}
        for model, entry in self.models.items():
            for alias in entry.aliases:
                if alias in taken or alias in self.models:
                    raise _clash(f"the alias {alias} is taken by {taken.get(alias, 'a model of that name')}")
                taken[alias] = model
        quotas = [q.name for q in self.quotas]
        if len(set(quotas)) != len(quotas):
            raise _clash("two quotas have the same name")
        if self.quotas and not self.ledger.enabled:
            raise _clash("quotas need ledger.enabled: true")
        if self.admission.enabled:
            for why in impossible(self.admission, self.engines):
                raise _clash(why)
        if Role.PREFILL in {e.role for e in self.engines} and self.disaggregation.longest > self.timeouts.first_byte:
            raise _clash(
                f"disaggregation.longest ({self.disaggregation.longest:g} s) must not be more than "
                f"timeouts.first_byte ({self.timeouts.first_byte:g} s)"
            )
        if self.callers.anonymous.any_key and not all(x.address.loopback for x in self.listeners):
            raise _clash("callers.anonymous.any_key is for loopback listeners only")
        return self

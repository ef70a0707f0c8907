"""One engine behind the gateway, as the configuration names it."""

from __future__ import annotations

import re
from enum import StrEnum
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import Field, StringConstraints, field_validator, model_validator

from forebay.config.section import Name, Seconds, Secret, Section, clash

__all__ = ["ClientTLS", "Engine", "EngineKind", "Role"]


class ClientTLS(Section):
    ca: Path | None = None
    """PEM file with the authorities to trust instead of the system's."""
    server_name: str | None = None
    """Name to verify instead of the URL's host."""
    verify: bool = True
    """False accepts any certificate; said in the log at every start."""


VISIBLE = re.compile(r"[!-~]+")


class EngineKind(StrEnum):
    VLLM = "vllm"
    OPENAI = "openai"


class Role(StrEnum):
    """What an engine does of a request."""

    BOTH = "both"
    PREFILL = "prefill"
    DECODE = "decode"


_HAND_OVER = frozenset({"vllm", "sglang", "auto"})


class Engine(Section):
    name: Name
    """Its label in metrics, logs and headers."""
    url: str
    """http:// or https:// and a host, without `/v1`; a path is kept as a prefix."""
    kind: EngineKind = EngineKind.VLLM
    """What it is: its metrics, health check and refusals are read accordingly."""
    models: tuple[Name, ...] = ()
    """Models it serves, by the engine's own names; empty: asked of the engine at /v1/models."""
    api_key: Secret | None = Field(default=None, repr=False)
    """Sent upstream as a bearer token; write ${VAR}."""
    tls: ClientTLS = ClientTLS()
    """How an https:// url is verified."""
    max_connections: Annotated[int, Field(ge=1, le=65_535)] = 8_192
    """Most connections open to it at once, idle ones included."""
    max_idle: Annotated[int, Field(ge=0, le=65_535)] = 256
    """Most idle connections kept."""
    health_interval: Seconds = 5.0
    """Seconds between health checks."""
    health_timeout: Seconds = 2.0
    """A health check that takes longer has failed."""
    unhealthy_after: Annotated[int, Field(ge=1, le=100)] = 2
    """Consecutive failed checks before it is taken out."""
    max_num_seqs: Annotated[int, Field(ge=1, le=65_536)] = 256
    """Sequences it runs at once (vLLM: --max-num-seqs); admission sends no more."""
    concurrency: Annotated[int, Field(ge=1, le=65_536)] | None = None
    """Sequences it is to run at once while the queue is short: a soft cap that admission.scale moves, up to
    max_num_seqs. None: no such cap."""
    max_num_batched_tokens: Annotated[int, Field(ge=1, le=1 << 24)] = 2_048
    """Tokens of one of its steps (vLLM: --max-num-batched-tokens)."""
    kv_tokens: Annotated[int, Field(ge=1, le=1 << 40)] | None = None
    """Tokens its KV cache holds; asked of the engine's metrics where not given."""
    prefill_tokens_per_s: Annotated[float, Field(gt=0, le=1e9)] = 8_000.0
    """How fast it prefills, to begin with: what it really does is learned."""
    decode_step: Seconds = 0.02
    """Seconds of one of its decode steps, to begin with."""
    role: Role = Role.BOTH
    """prefill: computes prompts that other engines of its models decode, and is sent whole requests only where none of
    those is left. decode, both: is sent all others; a decode engine of SGLang only where a prefill engine is there."""
    bootstrap_host: Annotated[str, StringConstraints(pattern=r"^[!-~]{1,255}$")] | None = None
    """SGLang, role prefill: the host at which decode engines find it; None: the url's."""
    bootstrap_port: Annotated[int, Field(ge=1, le=65_535)] = 8_998
    """The port there (SGLang: --disaggregation-bootstrap-port, whose default this is)."""

    @field_validator("url")
    @classmethod
    def _url(cls, value: str) -> str:
        try:
            u = urlsplit(value)
        except ValueError:
            raise ValueError("an engine's url starts with http:// or https:// and names a host") from None
        if u.scheme not in ("http", "https") or not u.hostname or not VISIBLE.fullmatch(value):
            raise ValueError("an engine's url starts with http:// or https:// and names a host")
        if u.query or u.fragment or u.username or u.password:
            raise ValueError("an engine's url has no query, fragment or user; put the key in api_key")
        if u.path.rstrip("/").endswith("/v1"):
            raise ValueError("leave /v1 off: it is added to each request's path")
        try:
            port = u.port
        except ValueError:
            port = 0
        if port == 0:
            raise ValueError("an engine's url has a port from 1 to 65535")
        return value.rstrip("/")

    @model_validator(mode="after")
    def _within_the_engine(self) -> Engine:
        if self.role is not Role.BOTH and self.kind not in _HAND_OVER:
            raise clash(f"role {self.role} is for engines that hand KV over: kind vllm or sglang, not {self.kind}")
        if self.concurrency is not None and self.concurrency > self.max_num_seqs:
            raise clash(f"concurrency must not be more than max_num_seqs ({self.max_num_seqs:,})")
        return self

    @field_validator("api_key")
    @classmethod
    def _sendable(cls, value: str | None) -> str | None:
        if value is not None and not VISIBLE.fullmatch(value):
            raise ValueError("an api_key is printable ASCII without spaces or line ends")
        return value

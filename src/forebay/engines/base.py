"""What the gateway needs of a kind of engine: one small interface, one adapter a kind.

An adapter is data and pure functions; the connections and the clock belong to whoever calls it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Final, Protocol

from forebay.config.section import Class
from forebay.errors import Outcome

_NO_FACTS: Final = frozenset(("running", "waiting", "swapped", "kv_usage", "labelled", "loras", "loaded"))
"""What changes from look to look. All else in a report is a fact of the engine's life, or a counter."""
_COUNTERS: Final = ("preemptions", "prefix_queries", "prefix_hits", "done")


@dataclass(frozen=True, slots=True)
class EngineReport:
    """What an engine says of itself. None stands for "not said", never for 0."""

    running: int | None = None
    """Requests in the running batch."""
    waiting: int | None = None
    swapped: int | None = None
    """Requests whose KV cache was moved out to make room: begun, and not running."""
    kv_usage: float | None = None
    """Share of the KV cache in use, 0 to 1. What can be evicted at once is not in use."""
    kv_capacity_tokens: int | None = None
    """Of all data-parallel ranks together."""
    block_size: int | None = None
    """Tokens a KV block, which is also what the prefix cache matches by."""
    preemptions: int | None = None
    """Ever since the engine started."""
    prefix_queries: int | None = None
    """Prompt tokens looked up in the prefix cache, ever since the engine started."""
    prefix_hits: int | None = None
    """Of these, tokens found."""
    done: int | None = None
    """A counter of its work, in a unit of its own: only good to see that it began anew."""
    started_at: float | None = None
    """Unix time."""
    max_num_seqs: int | None = None
    """Sequences it runs at once, all ranks together."""
    max_model_len: int | None = None
    """Tokens of prompt and answer together."""
    version: str | None = None
    models: tuple[str, ...] | None = None
    """Names under which it serves what it holds; without its LoRA adapters."""
    labelled: tuple[str, ...] | None = None
    """Models that its metrics are about: the first name of each."""
    adapters: tuple[str, ...] | None = None
    """LoRA adapters that it may be asked for by name."""
    loras: tuple[str, ...] | None = None
    """LoRA adapters at work on it now, running or waiting: they are in its memory."""
    max_loras: int | None = None
    """LoRA adapters that fit into one batch."""
    loaded: tuple[str, ...] | None = None
    """Models in memory, where an engine loads what it is asked for."""
    low_first: bool | None = None
    """Whether a smaller `priority` goes first, where it has such a setting."""

    def over(self, older: EngineReport) -> EngineReport:
        """This report, with what it does not say taken from an older one, where that still holds."""
        return replace(
            self,
            **{
                f.name: value
                for f in fields(self)
                if f.name not in _NO_FACTS
                and getattr(self, f.name) is None
                and (value := getattr(older, f.name)) is not None
            },
        )

    def restarted(self, before: EngineReport) -> bool:
        """Whether the engine began anew since that report: another start time, or a counter that fell."""
        ours, theirs = self.started_at, before.started_at
        if ours is not None and theirs is not None:
            return abs(ours - theirs) > 1.0
        return any(
            now < then
            for name in _COUNTERS
            if (now := getattr(self, name)) is not None and (then := getattr(before, name)) is not None
        )


NOTHING: Final = EngineReport()


@dataclass(frozen=True, slots=True)
class Notes:
    """The adapter's row in docs/engines.md: what the code's data cannot say by itself."""

    title: str
    load: str
    """How load and KV use are read, units, version differences."""
    overload: str
    abort: str
    priority: str
    cached: str
    """How cached tokens show in usage."""
    capacity: str
    """Where block size and KV capacity are found."""
    lora: str
    restart: str
    sources: str
    """Repositories and versions that it was written after."""


class Adapter(Protocol):
    """One kind of engine."""

    @property
    def kind(self) -> str: ...

    @property
    def notes(self) -> Notes: ...

    @property
    def health_path(self) -> bytes:
        """Asked with GET; 200 is healthy."""
        ...

    @property
    def models_path(self) -> bytes:
        """Asked with GET for what it serves, in OpenAI's list shape."""
        ...

    @property
    def metrics_paths(self) -> tuple[bytes, ...]:
        """Pages that say its load, best first: the first that answers is kept. Empty where it has none."""
        ...

    @property
    def metrics_path(self) -> bytes | None:
        """The first of them."""
        ...

    @property
    def info_paths(self) -> tuple[tuple[bytes, ...], ...]:
        """Pages with what stays the same while it runs, read seldom: of each group the first that answers."""
        ...

    @property
    def prefixes(self) -> tuple[str, ...]:
        """How its metrics' names begin."""
        ...

    @property
    def says(self) -> tuple[str, ...]:
        """Fields of EngineReport that a version we know fills."""
        ...

    @property
    def least_interval(self) -> float:
        """Seconds at least between two looks at its metrics."""
        ...

    @property
    def patience(self) -> float:
        """Seconds that a health check or a look must be given at least: a sound engine may take so long."""
        ...

    @property
    def needs(self) -> str:
        """What to start it with, so that it says its load; "" where it always does."""
        ...

    def report(self, metrics: str) -> EngineReport:
        """Any of `metrics_paths` read. Unknown names are left out, nothing is guessed."""
        ...

    def info(self, path: bytes, page: bytes) -> EngineReport:
        """A page of `info_paths` read; what cannot be read says nothing."""
        ...

    def refused(self, status: int, said: bytes = b"") -> Outcome | None:
        """What an error of this engine means: OVERLOADED for back-pressure, ENGINE_ERROR for a failure that another
        engine may not have, None for an answer that is the client's to read. `said`: the error's body, or the data of
        an error event in a 200 stream; `status` is then what the event names, or 502."""
        ...

    def credentials(self, api_key: str) -> bytes:
        """The header lines that carry the key, each with its CRLF."""
        ...

    def priority(self, cls: Class, low_first: bool | None = None) -> int | None:
        """The body's `priority` for a class; None where the engine has no such field. `low_first` as in its report."""
        ...

    def abort(self, request_id: str) -> tuple[bytes, bytes] | None:
        """Path and JSON body of a POST that ends a request beside closing its connection; None where there is none."""
        ...

    def cached_tokens(self, answer: Mapping[str, object]) -> int | None:
        """Prompt tokens that came from the prefix cache, by a decoded answer or last event; None where it is silent."""
        ...

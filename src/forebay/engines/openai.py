"""Any server with OpenAI's API: health is that its model list answers; it has no metrics we know.

The other adapters begin here, since each of these engines speaks OpenAI's API, and say what is theirs.

Sources: OpenAI API reference, "Error codes" (429 with `insufficient_quota` is a spent budget, not a full queue) and
"Chat completion object" (`usage.prompt_tokens_details.cached_tokens`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Final

from forebay.config.section import Class
from forebay.engines import pages
from forebay.engines.base import NOTHING, EngineReport, Notes
from forebay.engines.prometheus import Metric, Reader, Samples
from forebay.errors import Outcome

SPENT: Final = (b"insufficient_quota", b"billing_hard_limit_reached")
"""In a 429: no waiting helps, another engine may."""


class OpenAIAdapter:
    kind: ClassVar[str] = "openai"
    notes: ClassVar[Notes] = Notes(
        title="OpenAI-style API",
        load="none: its own books alone",
        overload="429, 503; 429 with `insufficient_quota` counts as a failure of this upstream",
        abort="closing the connection; what was generated, or all of it, may be billed",
        priority="none",
        cached="`usage.prompt_tokens_details.cached_tokens`",
        capacity="not told: `kv_tokens`, `max_num_seqs`",
        lora="not told",
        restart="not seen",
        sources="OpenAI API reference, error codes and chat completion object",
    )
    health_path: ClassVar[bytes] = b"/v1/models"
    models_path: ClassVar[bytes] = b"/v1/models"
    metrics_paths: ClassVar[tuple[bytes, ...]] = ()
    info_paths: ClassVar[tuple[tuple[bytes, ...], ...]] = ()
    prefixes: ClassVar[tuple[str, ...]] = ()
    says: ClassVar[tuple[str, ...]] = ()
    least_interval: ClassVar[float] = 0.0
    patience: ClassVar[float] = 0.0
    metrics: ClassVar[tuple[Metric, ...]] = ()
    needs: ClassVar[str] = ""
    also: ClassVar[tuple[str, ...]] = ()
    """Names that the adapter reads beside `metrics`."""

    def __init__(self) -> None:
        names = {name for metric in self.metrics for name in metric.names}
        self._reader = Reader((*names, *self.also)) if names else None

    @property
    def metrics_path(self) -> bytes | None:
        return self.metrics_paths[0] if self.metrics_paths else None

    def samples(self, page: str) -> Samples:
        return self._reader.read(page) if self._reader is not None else {}

    def report(self, metrics: str) -> EngineReport:
        return NOTHING

    def info(self, path: bytes, page: bytes) -> EngineReport:
        return NOTHING

    def refused(self, status: int, said: bytes = b"") -> Outcome | None:
        if status == 429 and any(word in said for word in SPENT):
            return Outcome.ENGINE_ERROR
        if status in (429, 503):
            return Outcome.OVERLOADED
        if status >= 500 or status in (401, 403, 407) or 300 <= status < 400:
            return Outcome.ENGINE_ERROR
        return None

    def credentials(self, api_key: str) -> bytes:
        return b"authorization: Bearer %b\r\n" % api_key.encode()

    def priority(self, cls: Class, low_first: bool | None = None) -> int | None:
        return None

    def abort(self, request_id: str) -> tuple[bytes, bytes] | None:
        return None

    def cached_tokens(self, answer: Mapping[str, object]) -> int | None:
        usage = pages.fields(answer.get("usage"))
        return pages.tokens(pages.fields(usage.get("prompt_tokens_details")).get("cached_tokens"))

    def __repr__(self) -> str:
        return f"<{type(self).__name__}>"


def listed(page: bytes) -> EngineReport:
    """A model list with `parent` (of a LoRA adapter) and `max_model_len`, as vLLM and SGLang have it."""
    cards = pages.model_cards(page)
    lengths = [n for card in cards if (n := pages.whole(card.get("max_model_len"))) is not None]
    return EngineReport(
        models=pages.names(card.get("id") for card in cards if card.get("parent") is None) if cards else None,
        adapters=pages.names(card.get("id") for card in cards if card.get("parent") is not None) if cards else None,
        max_model_len=min(lengths, default=None),
    )

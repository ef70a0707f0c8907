"""What the policy knows of a request, and what it decided about it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from forebay.config.models import Class

if TYPE_CHECKING:
    from forebay.policy.engine_books import EngineBooks

__all__ = ["Ask", "Class", "Stage"]

_MOST: Final = 1 << 40
"""Tokens; more means no bound, and is beyond what a float divides by."""
_NOWHERE: Final[Mapping[str, int]] = {}


class Stage(Enum):
    NEW = "new"
    WAITING = "waiting"
    ADMITTED = "admitted"  # on an engine, no token yet
    ANSWERING = "answering"
    ENDED = "ended"


class Ask:
    """One request. The driver fills in what came with it; the rest is the policy's to write and anyone's to read.

    `prompt_tokens` are counted or estimated; `max_tokens` bounds each of `n` answers, None where nothing does.
    `deadline` is the latest moment (monotonic seconds) at which it may still be admitted, by the rules that it waits
    under; `latest`: as the driver gave it. `ttft_slo` is in seconds
    after `arrival`. `engines`: who could serve it. `streams`: its
    first token can be seen. `prefix`: the chain of its prompt's blocks (`prefix.chain`), each of `block_tokens` tokens.
    `session`: a number that its session's requests share, or 0. `tag` is the driver's.
    """

    __slots__ = (
        "admitted_at",
        "anonymous",
        "arrival",
        "block_tokens",
        "bound",
        "cached",
        "charged",
        "charged_as",
        "cls",
        "copies",
        "deadline",
        "engine",
        "engines",
        "expected",
        "first_at",
        "holder",
        "key",
        "latest",
        "matched",
        "max_tokens",
        "model",
        "n",
        "prefill",
        "prefix",
        "produced",
        "prompt_tokens",
        "session",
        "stage",
        "streams",
        "tag",
        "tenant",
        "ttft_slo",
        "work",
    )

    def __init__(
        self,
        key: int,
        *,
        prompt_tokens: int,
        arrival: float,
        cls: Class = Class.NORMAL,
        tenant: str = "",
        model: str = "",
        max_tokens: int | None = None,
        n: int = 1,
        deadline: float = float("inf"),
        ttft_slo: float = float("inf"),
        engines: tuple[str, ...] = (),
        anonymous: bool = False,
        streams: bool = True,
        prefix: Sequence[int] = (),
        block_tokens: float = 0.0,
        session: int = 0,
        tag: Any = None,
    ) -> None:
        self.key = key
        self.prompt_tokens = prompt_tokens
        self.arrival = arrival
        self.cls = cls
        self.tenant = tenant
        self.model = model
        self.max_tokens = max_tokens if max_tokens is None or max_tokens < _MOST else _MOST
        self.n = n
        self.deadline = self.latest = deadline
        self.ttft_slo = ttft_slo
        self.engines = engines
        self.anonymous = anonymous
        self.streams = streams
        self.prefix = prefix
        self.block_tokens = block_tokens
        self.session = session
        self.tag = tag
        self.stage = Stage.NEW
        self.engine = ""
        self.holder: EngineBooks | None = None
        """The books that it is in."""
        self.admitted_at = -1.0
        self.first_at = -1.0
        """When its first token was seen; less than 0: it was not."""
        self.expected = 0.0
        """Output tokens predicted when it was admitted."""
        self.bound = 0.0
        """TTFT promised when it was admitted, seconds after that."""
        self.charged = 0.0
        self.charged_as = cls
        """Tokens of service its tenant was charged."""
        self.prefill = ""
        """The engine that computes its prompt, where its own does not."""
        self.produced = 0
        """Output tokens so far."""
        self.matched: Mapping[str, int] = _NOWHERE
        """Blocks of its prefix that each engine is taken to hold."""
        self.cached: Mapping[str, int] = _NOWHERE
        """Prompt tokens that are believed to be cached, by engine."""
        self.copies = 1
        """Engines that have as much of its prefix as any."""
        self.work = prompt_tokens
        """Prompt tokens to compute where most of them is cached."""

    def __repr__(self) -> str:
        return f"<Ask {self.key} {self.cls.value} {self.prompt_tokens} tokens, {self.stage.value}>"

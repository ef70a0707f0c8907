"""What workers, the admin process and the helper process say to each other about cached answers.

Over the Unix socket `cache.sock` in the run directory; four bytes of length (big-endian), then MessagePack. Whoever
connects asks, each question with a number `n` of its own; answers carry that number and may come in another order. The
helper says `Drop` by itself, to everyone connected. Scopes and exact keys are digests of `cache.key`; an answer is
`cache.answers.Answer`, encoded, and opaque here.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path

import msgspec


def cache_socket(state_dir: Path) -> Path:
    return state_dir / "run" / "cache.sock"


class Kind(StrEnum):
    """Of an answer from a cache; the header x-forebay-cache says it."""

    EXACT = "exact"  # the same request
    SEMANTIC = "semantic"  # a question that means the same
    STALE = "stale"  # the same request, past its time; a fresh answer is being fetched
    FLIGHT = "flight"  # another request's answer, while it came
    MISS = "miss"
    BYPASS = "bypass"  # not looked for


class Find(msgspec.Struct, array_like=True, tag="f", gc=False):
    n: int
    exact: bytes
    """16 bytes."""
    scope: bytes
    """16 bytes; b"": only an equal request is looked for."""
    question: str
    partition: str
    """Whose, for people and statistics: the account at the level that shares, and the model."""
    budget: float
    """Seconds; what takes longer is a miss."""
    writer: bytes = b""
    """Who asks, as in `answers.Answer`."""


class Found(msgspec.Struct, array_like=True, tag="F", gc=False):
    n: int
    kind: Kind
    """exact, semantic, stale or miss."""
    answer: bytes = b""
    entry: str = ""
    """Of the answer; of a miss, the neighbour that was near."""
    similarity: float = 0.0
    """Cosine, of semantic and of a near miss."""
    score: float = 0.0
    """The verifier's: how sure it is that the two mean the same."""
    ticket: int = 0
    """Not 0: the engine's answer shall be compared with the neighbour's; hand it back in `Store` or `Unanswered`."""
    why: str = ""
    """Of a near miss or a question that was not looked for: number, negation, entity, …, threshold, long, language,
    budget. Of a hit with a ticket: sampled, reverified."""
    seconds: float = 0.0
    """Of the helper's own work for it: what it cost."""


class Store(msgspec.Struct, array_like=True, tag="s", gc=False):
    """An answer that is whole and may be given again. Not answered."""

    exact: bytes
    scope: bytes
    question: str
    partition: str
    answer: bytes
    ticket: int = 0


class Unanswered(msgspec.Struct, array_like=True, tag="u", gc=False):
    """Nothing came of a ticket. Not answered."""

    ticket: int


class Purge(msgspec.Struct, array_like=True, tag="p", gc=False):
    """Forget what fits all that is given; nothing given: everything. Answered by `Purged`; everyone gets a `Drop`."""

    n: int
    entry: str = ""
    tag: str = ""
    source: str = ""
    partition: str = ""
    """Or what it begins with, up to a slash: "acme" is all of that organisation."""
    model: str = ""
    version: str = ""
    like: str = ""
    """A question; entries at least `at_least` alike."""
    at_least: float = 0.9


class Purged(msgspec.Struct, array_like=True, tag="P", gc=False):
    n: int
    count: int


class Drop(msgspec.Struct, array_like=True, tag="d", gc=False):
    """Answers that must not be given any more. `entries` is None: whatever fits `purge`'s fields, which a worker knows
    of its own answers."""

    purge: Purge | None = None
    entries: tuple[str, ...] = ()


class Feedback(msgspec.Struct, array_like=True, tag="b", gc=False):
    """A caller's word on an answer it was given. Bad: the entry goes, and the pair teaches. Answered by `Heard`."""

    n: int
    entry: str
    partition: str
    """The caller's: of another's entry it has no say."""
    good: bool
    question: str = ""
    """What it had asked, where known."""


class Heard(msgspec.Struct, array_like=True, tag="B", gc=False):
    n: int
    known: bool
    """There was such an entry in that partition."""


class Look(msgspec.Struct, array_like=True, tag="l", gc=False):
    """Statistics, or entries: for people. Answered by `Seen`."""

    n: int
    what: str
    """stats, or entries."""
    partition: str = ""
    like: str = ""
    entry: str = ""
    most: int = 50


class Seen(msgspec.Struct, array_like=True, tag="L", gc=False):
    n: int
    json: bytes


class Failed(msgspec.Struct, array_like=True, tag="x", gc=False):
    """It could not be done; `why` is for the log and for people."""

    n: int
    why: str


Said = Find | Store | Unanswered | Purge | Feedback | Look
"""To the helper."""
Answered = Found | Purged | Drop | Heard | Seen | Failed
"""By the helper."""

"""What a worker writes into its journal, record by record, and what the database's entries are made of.

An attempt is one call of an engine for a request (of P/D legs, each is one). It has a number, `seq`, unique within its
journal's owner; (owner, seq) names it everywhere. It is reserved once, before it is sent, and settled exactly once: the
first settlement counts. A request's attempts share `request`, the `seq` of the first. Records are MessagePack arrays;
fields are only ever added at the end. Times are seconds since the Unix epoch; money is in nano-units (`ledger.money`).
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from forebay.ledger.tokens import Tokens


class How(StrEnum):
    """How a settlement is known."""

    EXACT = "exact"  # the engine's own usage; or it cost the engine nothing
    ESTIMATED = "estimated"  # the client left, the stream was cut, the gateway died: from what was delivered
    UNPRICED = "unpriced"  # the tokens are known, a price is not: `cost` is None, never 0
    CACHE = "cache"  # answered from a cache; `avoided` is what it would have cost


class Account(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="a"):
    """Who pays, said once in each segment of a journal: later records name it by `n`."""

    n: int
    key: str
    """The key's id; "anonymous" where none was shown."""
    key_name: str
    organisation: str
    department: str
    project: str
    user: str
    """"" for a level that was not given."""


class Priced(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="c"):
    """A price as it was applied, said once in each segment: `price` is `ledger.pricing.Price` as JSON."""

    n: int
    price: bytes


class Reserved(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="r"):
    seq: int
    request: int
    at: float
    id: str
    """The request's X-Request-Id: a client's own word where it sent one, so not unique."""
    account: int
    route: str
    model: str
    """As asked for."""
    served: str
    """By the engine's own name."""
    engine: str
    tier: str
    class_: str
    end_user: str
    """The `user` field of the request; "" for none."""
    labels: tuple[tuple[str, str], ...]
    """Request metadata and tags that are allocated on, sorted by name."""
    prompt: int
    """Prompt tokens, as estimated."""
    most: int
    """Completion tokens held."""
    held: int
    """Money held."""
    price: int = 0
    """`Priced.n` that its estimate would be settled at; 0: none is known."""


class Progress(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="p"):
    """What was delivered so far of streams under way, now and then: an orphan is estimated by it."""

    at: float
    live: tuple[tuple[int, int], ...]
    """(seq, completion tokens)."""


class Settled(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="s"):
    seq: int
    at: float
    tokens: Tokens
    how: How
    cost: int | None
    """None exactly where `how` is unpriced."""
    price: int
    """`Priced.n`; 0 where nothing was priced."""
    outcome: str
    """`errors.Outcome`."""
    ttft: float = 0.0
    """Seconds to the first content; 0: there was none."""
    seconds: float = 0.0
    """From the request's arrival to its end."""
    kv: int = 0
    """KV token-seconds, of self-hosted engines."""
    avoided: int = 0
    note: str = ""
    """Why it is not as the engine said: "usage_absurd", "usage_twice", …; "" where it is."""


class Hit(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="h"):
    """An answer from a cache: reserved and settled at once, `how` is cache."""

    reserved: Reserved
    settled: Settled


class Adjusted(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="j"):
    """A correction of something settled before: an hourly reconciliation, a maker's invoice. Positive: it cost more."""

    seq: int
    at: float
    adjusts: int
    """The `seq` it corrects; 0: a whole account over `since` to `until`."""
    cost: int
    reason: str
    account: int = 0
    since: float = 0.0
    until: float = 0.0


class Began(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="b"):
    """The first record of a segment."""

    owner: str
    """16 hexadecimal digits, random: this journal's, for as long as its state directory lives."""
    boot: str
    """A worker's life: an attempt that was reserved in another, and not settled, is an orphan."""
    segment: int
    next_seq: int
    currency: str
    at: float
    follows: int = 0
    """The segment that this one goes on from; 0: none."""
    counts: int = 0
    """Its bytes that are known to be on disk. What stands behind them, and in segments between, is said again here."""


Record = Account | Priced | Reserved | Progress | Settled | Hit | Adjusted | Began

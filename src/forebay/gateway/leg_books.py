"""The books of an attempt in two legs: a prompt that one engine computes, and an answer that another one makes of it.

Each leg is an entry of its own, at its own engine's price; together they have every token once. The prompt's are the
prefill engine's, the answer's the decode engine's. Memory is held on both: by the prompt on the first from its call to
the first content, by prompt and answer on the second from when it is told where the prompt is.
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from forebay.gateway.accounting import NOTHING, Count
from forebay.ledger.pricing import Price
from forebay.ledger.tokens import Tokens

PREFILLED: Final = "prefilled"
"""How a prefill engine's leg ends where the whole request ends well: the request is counted as such once."""


class Leg:
    """That of the prefill engine. Times are monotonic seconds, 0 for one that has not come."""

    __slots__ = ("began", "cached", "fetched", "handed", "price", "seq", "used")

    def __init__(self, seq: int, price: Price | None, began: float) -> None:
        self.seq = seq
        """Its number in the journal; 0: it is in no book."""
        self.price = price
        self.began = began
        self.handed = 0.0
        """When the decode engine was told where the prompt is."""
        self.fetched = 0.0
        """When its first content was there."""
        self.cached: int | None = None
        """Prompt tokens that the prefill engine found in its cache; None: it does not say, and the decode engine's word
        counts."""
        self.used = True
        """False: the decode engine has to compute the prompt itself after all."""


def parts_of(count: Count, leg: Leg) -> tuple[Count, Count]:
    """What the legs have of a request's tokens."""
    tokens, exact, note = count.tokens, count.exact, count.note
    prompt = replace(tokens, output=0, reasoning=0, audio_output=0, images=0)
    if leg.cached is not None:  # what the decode engine calls cached is what it was handed
        both = prompt.input + prompt.cached
        cached = min(max(leg.cached, 0), both)
        prompt = replace(prompt, input=both - cached, cached=cached)
    if not leg.handed:  # the decode engine had none of it
        return Count(prompt, exact, note), NOTHING
    answer = Tokens(
        output=tokens.output, reasoning=tokens.reasoning, audio_output=tokens.audio_output, images=tokens.images
    )
    return Count(prompt, exact, note), Count(answer, exact, note)


def kv_of_both(tokens: Tokens, leg: Leg, now: float) -> tuple[int, int]:
    """KV token-seconds of the legs of an attempt that ends now. An answer grows evenly."""
    held = (leg.fetched or now) - leg.began
    decoding = now - leg.handed if leg.handed else 0.0
    return round(held * tokens.prompt), round(decoding * (tokens.prompt + tokens.completion / 2))

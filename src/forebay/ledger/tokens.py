"""Tokens by kind. The kinds do not overlap: what was read from a cache is not in `input`, reasoning not in `output`."""

from __future__ import annotations

from typing import Final

import msgspec

MOST_TOKENS: Final = 1 << 40
"""More of a kind than any answer has; what an engine says beyond it is that."""


class Tokens(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """Counts from 0. All but `images` are tokens."""

    input: int = 0
    """Computed, of the prompt."""
    cached: int = 0
    """Read from the maker's prompt cache."""
    cache_write: int = 0
    """Written to it, as Anthropic bills them (for 5 minutes)."""
    cache_write_long: int = 0
    """Written to it for an hour."""
    output: int = 0
    """Said in the answer."""
    reasoning: int = 0
    """Thought before it."""
    audio_input: int = 0
    audio_output: int = 0
    image_input: int = 0
    images: int = 0
    """Pictures made, by number."""

    @property
    def prompt(self) -> int:
        return self.input + self.cached + self.cache_write + self.cache_write_long + self.audio_input + self.image_input

    @property
    def completion(self) -> int:
        return self.output + self.reasoning + self.audio_output

    @property
    def total(self) -> int:
        return self.prompt + self.completion


KINDS: Final = tuple(Tokens.__struct_fields__)
"""In the order of the fields."""
NO_TOKENS: Final = Tokens()

"""A price made ready for every request: whole numbers, one multiplication a kind of token, one rounding a line."""

from __future__ import annotations

from typing import Final

from mypy_extensions import mypyc_attr

from forebay.ledger.money import MOST, rounded

Counts = tuple[int, ...]
"""Tokens by kind, in the order of `tokens.KINDS`."""
Bound = tuple[int, int, int, int, int, int]
"""(above, most of a prompt token, of a completion token, of an image, of a request, of KV) of one scale."""
_INPUT: Final = 0
_CACHED: Final = 1
_CACHE_WRITE: Final = 2
_CACHE_WRITE_LONG: Final = 3
_OUTPUT: Final = 4
_REASONING: Final = 5
_AUDIO_INPUT: Final = 6
_AUDIO_OUTPUT: Final = 7
_IMAGE_INPUT: Final = 8


def prompt_of(counts: Counts) -> int:
    """As `Tokens.prompt`."""
    return (
        counts[_INPUT]
        + counts[_CACHED]
        + counts[_CACHE_WRITE]
        + counts[_CACHE_WRITE_LONG]
        + counts[_AUDIO_INPUT]
        + counts[_IMAGE_INPUT]
    )


def completion_of(counts: Counts) -> int:
    """As `Tokens.completion`."""
    return counts[_OUTPUT] + counts[_REASONING] + counts[_AUDIO_OUTPUT]


@mypyc_attr(allow_interpreted_subclasses=True)
class Costly:
    """What tokens may cost: a price, or several of which one will count."""

    def most(self, prompt: int, completion: int, /) -> int:
        """Nano-units that so many tokens cost at most; never falls where `completion` rises."""
        raise NotImplementedError


class Tariff(Costly):
    """Of one `pricing.Price`, which says what each part means."""

    __slots__ = (
        "_above",
        "_bounds",
        "_bounds_without_audio",
        "_denominator",
        "_kv",
        "_pace",
        "_request",
        "_rows",
        "_unknown",
        "uses_kv",
    )

    def __init__(
        self,
        above: tuple[int, ...],
        rows: tuple[Counts, ...],
        denominator: int,
        unknown: tuple[int, ...],
        request: int,
        kv: int,
        bounds: tuple[Bound, ...],
        bounds_without_audio: tuple[Bound, ...],
        pace: tuple[float, float] | None,
    ) -> None:
        """`above`, `rows`, `bounds`: one of each scale, ascending. `unknown`: places in a row that have no price.
        `request`, `kv`: places of these."""
        self._above = above
        self._rows = rows
        self._denominator = denominator
        self._unknown = unknown
        self._request = request
        self._kv = kv
        self._bounds = bounds
        self._bounds_without_audio = bounds_without_audio
        self._pace = pace
        self.uses_kv = any(row[kv] for row in rows)

    def cost(self, counts: Counts, kv: int) -> int | None:
        """As `Price.cost`."""
        for place in self._unknown:
            if counts[place]:
                return None
        rows = self._rows
        row = rows[0]
        if len(rows) > 1:
            prompt = prompt_of(counts)
            for i in range(1, len(rows)):
                if prompt <= self._above[i]:
                    break
                row = rows[i]
        total = 0
        some = False
        for i in range(len(counts)):
            count = counts[i]
            if count:
                some = True
                total += count * row[i]
        if kv:
            total += kv * row[self._kv]
        if some:
            total += row[self._request]
        found = rounded(total, self._denominator)
        return found if found < MOST else MOST

    def most(self, prompt: int, completion: int, /) -> int:
        """As `Price.most`, of no images and any audio."""
        return self._most(self._bounds, prompt, completion, 0)

    def most_of(self, prompt: int, completion: int, images: int, audio: bool) -> int:
        """As `Price.most`."""
        return self._most(self._bounds if audio else self._bounds_without_audio, prompt, completion, images)

    def _most(self, bounds: tuple[Bound, ...], prompt: int, completion: int, images: int) -> int:
        kv = 0
        if self._pace is not None and self.uses_kv:
            first, other = self._pace
            kv = int((prompt + completion) * (prompt * first + completion * other)) + 1
        total = 0
        for above, of_prompt, of_completion, of_image, of_request, of_kv in bounds:
            if above and prompt <= above:
                break
            found = prompt * of_prompt + completion * of_completion + of_request
            if images:
                found += images * of_image
            if kv:
                found += kv * of_kv
            if found > total:
                total = found
        held = rounded(total, self._denominator)
        return held if held < MOST else MOST

    def __repr__(self) -> str:
        return f"<Tariff {len(self._rows)} scales in 1/{self._denominator:,}>"

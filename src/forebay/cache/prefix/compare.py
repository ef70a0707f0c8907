"""How far two texts are the same, and in what they vary where they go on being the same afterwards.

No alignment of whole texts: the first difference is found at the speed of C, then where both go on alike. A time, an id
or a number at that place is taken whole. For anything else a piece of what follows in the one is looked for in the
other, a little further on each time.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from forebay.cache.prefix.kinds import kind_of, machine_made, shape

MOST: Final = 16
"""Variations of a text that are looked for; with more it is another text."""
ANCHOR: Final = 24
"""Characters that must be alike after a variation; after a short one, `_NEAR_ANCHOR`."""
_FAR: Final = 16_384
"""Characters that a variation may have."""
_SURE: Final = 96
"""Where prompts repeat themselves, fewer characters are alike in the wrong place."""
_NEAR: Final = 64
_NEAR_ANCHOR: Final = 8
_SKIPS: Final = (0, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, *(1 << n for n in range(10, 15)))
_NEAR_SKIPS: Final = (*range(9), *range(10, 33, 2))
_EFFORT: Final = 64
"""Searches of `_FAR` characters that a comparison may take: they are most of its time."""
_VARIED: Final = 5
"""Different characters that a piece must have to be looked for: a ruled line is alike everywhere."""


class Varying(NamedTuple):
    at: int
    """Character of the text."""
    kind: str
    shape: str
    after: int
    """Characters after it that are alike, up to the next."""


class Compared(NamedTuple):
    first: int
    """Characters up to the first difference."""
    common: int
    """Characters alike in all, what follows variations with them."""
    varying: tuple[Varying, ...]
    whole: bool
    """Whether they are alike to the end, but for the variations."""
    end: int
    """Where it stopped, in characters of the text."""


def shared(a: str, i: int, b: str, j: int) -> int:
    """How many characters are alike from a[i] and b[j] on."""
    most = min(len(a) - i, len(b) - j)
    low, step = 0, 256
    while low < most:
        step = min(step, most - low)
        if a[i + low : i + low + step] != b[j + low : j + low + step]:
            break
        low += step
        step = min(step * 4, 1 << 16)
    else:
        return most
    high = low + step
    while high - low > 1:
        middle = (low + high) // 2
        if a[i + low : i + middle] == b[j + low : j + middle]:
            low = middle
        else:
            high = middle
    return low


class _Effort:
    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left = _EFFORT


def compare(known: str, text: str) -> Compared:
    found = _walk(known, text, near=True)
    # Many short agreements may be chance, and hide where the long one begins.
    return found if found.whole or not found.varying else max(found, _walk(known, text, near=False), key=_common)


def roughly(known: str, text: str) -> int:
    """Characters alike, found more quickly: short agreements between variations are passed over."""
    return _walk(known, text, near=False).common


def _common(found: Compared) -> int:
    return found.common


def _walk(known: str, text: str, *, near: bool) -> Compared:
    found: list[tuple[int, str, str]] = []
    runs: list[int] = []
    i = j = 0
    first = -1
    whole = False
    effort = _Effort()
    while True:
        n = shared(known, i, text, j)
        i, j = i + n, j + n
        runs.append(n)
        if first < 0:
            first = n
        if i == len(known) and j == len(text):
            whole = True
            break
        if len(found) == MOST:
            break
        gap = _gap(known, i, text, j, effort, near=near)
        if gap is None:
            break
        back, i, end, kind = gap
        back = min(back, n)
        start = j - back
        runs[-1] -= back
        found.append((start, kind, shape(text[start:end])))
        j = end
    varying = tuple([Varying(*one, run) for one, run in zip(found, runs[1:], strict=True)])
    return Compared(first, max(0, sum(runs)), varying, whole, j)


def _gap(known: str, i: int, text: str, j: int, effort: _Effort, *, near: bool) -> tuple[int, int, int, str] | None:
    """(characters before the difference that belong to what varies, its end in either, its kind). None: they do not go
    on alike."""
    ours, theirs = machine_made(text, j), machine_made(known, i)
    if ours is not None and theirs is not None and ours.kind == theirs.kind and j - ours.start == i - theirs.start:
        ends = theirs.end, ours.end
        alike = shared(known, theirs.end, text, ours.end)
        if alike >= (1 if near else ANCHOR) or ends == (len(known), len(text)):
            return j - ours.start, theirs.end, ours.end, ours.kind
    met = _meet(known, i, text, j, _NEAR_SKIPS, _NEAR_ANCHOR, _NEAR, _Effort()) if near else None
    for size in (_SURE, ANCHOR):
        met = met or _meet(known, i, text, j, _SKIPS, size, _FAR, effort)
    if met is None:
        return None
    a, b = met
    piece = text[j:b] if b - j >= a - i else known[i:a]
    return 0, a, b, ours.kind if ours is not None and ours.end >= b > ours.start else kind_of(piece)


def _meet(
    known: str, i: int, text: str, j: int, skips: tuple[int, ...], size: int, most: int, effort: _Effort
) -> tuple[int, int] | None:
    """Where they are alike again for `size` characters, at most `most` of the text further on."""
    for skip in skips:
        anchor = known[i + skip : i + skip + size]
        if len(anchor) < size or not effort.left:
            return None
        if len(set(anchor)) < _VARIED:
            continue
        effort.left -= 1
        at = text.find(anchor, j, j + most)
        if at >= 0:
            a, b = i + skip, at
            while a > i and b > j and known[a - 1] == text[b - 1]:
                a, b = a - 1, b - 1
            return a, b
    return None

"""English-like sentences out of a seed. Every word and every mark is one token of `tokens`, so counts add up."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Final


def _list(text: str) -> tuple[str, ...]:
    return tuple(text.split())


_ADJECTIVES: Final = _list(
    "cold old deep wide calm still low high dark clear broad quick slow swift green grey pale warm dry vast small "
    "great long short lone steep damp mild stern plain young grand"
)
_NOUNS: Final = _list(
    "river water stone light night house tower field weir gate lake dam mill canal storm flood wheel basin pond reed "
    "heron boat rope wall hill town road crew clerk guard bank tide cloud rain snow frost dawn dusk wind fish otter"
)
_VERBS: Final = _list(
    "held took gave found moved kept fed met left saw drew led cut bore swept sent woke faced drove chose built broke "
    "shook knew wore hid lit"
)
_PLACES: Final = _list("past under over near above below along into at by on from")
_TIMES: Final = _list("Then Later Now Soon Once Today Here There Still Yet")
_STRANGE: Final = _list("café naïve 水 库 流 🌊 über señor été ½")


def seed_of(*parts: object) -> int:
    """A 32-bit seed that is the same on every machine."""
    return zlib.crc32("\x1f".join(map(str, parts)).encode("utf-8", "surrogatepass"))


def _numbers(seed: int) -> Iterator[int]:
    """A linear congruential generator's upper bits (Knuth, MMIX constants)."""
    state = seed ^ 0x9E3779B97F4A7C15
    while True:
        state = (state * 6364136223846793005 + 1442695040888963407) & 0xFFFFFFFFFFFFFFFF
        yield state >> 33


def _sentence(draw: Iterator[int]) -> list[str]:
    def one(of: tuple[str, ...]) -> str:
        return " " + of[next(draw) % len(of)]

    def noun() -> list[str]:
        return [" the", one(_ADJECTIVES), one(_NOUNS)] if next(draw) % 3 else [" the", one(_NOUNS)]

    out = [" " + _TIMES[next(draw) % len(_TIMES)]] if next(draw) % 4 == 0 else []
    out += [*noun(), one(_VERBS), *noun()]
    if next(draw) % 2:
        out += [one(_PLACES), *noun()]
    if next(draw) % 3 == 0:
        out += [",", " and", *noun(), one(_VERBS), *noun()]
    out[0] = " " + out[0][1:].capitalize()
    out.append(".")
    return out


def sentences(seed: int, tokens: int, *, whole: bool = False) -> list[str]:
    """`tokens` pieces of text, the first without its leading space; `whole`: on to the end of the last sentence."""
    draw = _numbers(seed)
    out: list[str] = []
    while len(out) < tokens:
        out += _sentence(draw)
    if not whole:
        del out[tokens:]
    if out:
        out[0] = out[0].lstrip()
    return out


def strange(seed: int, tokens: int, *, whole: bool = False) -> list[str]:
    """Pieces that are more than one byte a character in places; `whole` ends them with a full stop."""
    draw = _numbers(seed)
    out = [" " + _STRANGE[next(draw) % len(_STRANGE)] for _ in range(tokens)]
    return [*out, "."] if whole else out


def draw_between(seed: int, low: int, high: int) -> int:
    """A number from low to high, both included."""
    return low + next(_numbers(seed ^ 0x5BD1E995)) % (high - low + 1)


def unit(seed: int) -> float:
    """A number in [0, 1)."""
    return next(_numbers(seed)) / (1 << 31)

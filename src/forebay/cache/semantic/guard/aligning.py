"""What two questions share, token by token, and what is left over on either side."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from forebay.cache.semantic.guard.forms import derived
from forebay.cache.semantic.guard.reading import Token

__all__ = ["Aligned", "align", "changed", "exchanged", "sequence", "weigh"]

_COUNTED: Final = frozenset({"number", "char"})
"""Said twice they are something else than said once: 喜出望外, 喜出望外的望."""


@dataclass(slots=True)
class Aligned:
    pairs: list[tuple[int, int]]
    left: list[Token]
    right: list[Token]
    synonyms: int
    derived: int
    equal: float
    again: int = 0
    """Tokens that are left over, but whose meaning is among what is shared."""


def align(one: tuple[Token, ...], other: tuple[Token, ...]) -> Aligned:
    """Counterparts: equal, then of one meaning, then forms of one word."""
    pairs: list[tuple[int, int]] = []
    places: dict[str, list[int]] = {}
    for at, token in enumerate(other):
        places.setdefault(token.key, []).append(at)
    free = [True] * len(other)
    rest: list[int] = []
    equal = 0.0
    for at, token in enumerate(one):
        same = places.get(token.key)
        if same:
            near = same[0] if len(same) == 1 else min(same, key=lambda place, at=at: abs(place - at))  # type: ignore[misc]
            same.remove(near)
            pairs.append((at, near))
            free[near] = False
            equal += token.weight
        else:
            rest.append(at)
    synonyms = forms = again = 0
    lonely: list[int] = []
    for at in rest:
        token = one[at]
        best = -1
        for place, match in enumerate(other):
            if (
                free[place]
                and not token.senses.isdisjoint(match.senses)
                and (best < 0 or match.weight > other[best].weight)
            ):
                best = place
        if best >= 0:
            pairs.append((at, best))
            free[best] = False
            if token.weight and other[best].weight:
                synonyms += 1
        else:
            lonely.append(at)
    left: list[Token] = []
    for at in lonely:
        token = one[at]
        if token.sort in ("word", "name", "acronym") and token.key.isascii():
            root, start = derived(token.key), token.key[:3]
            for place, match in enumerate(other):
                if (
                    free[place]
                    and match.sort in ("word", "name", "acronym")
                    and match.key.startswith(start)
                    and ((derived(match.key) == root and not match.kinds) or _typed_wrong(token, match))
                ):
                    pairs.append((at, place))
                    free[place] = False
                    forms += 1
                    break
            else:
                left.append(token)
        else:
            left.append(token)
    right = [token for place, token in enumerate(other) if free[place]]
    if left or right:
        said = frozenset[str]().union(
            *(senses for at, place in pairs for senses in (one[at].senses & other[place].senses,))
        )
        every = left + right
        left = [token for token in left if token.sort in _COUNTED or said.isdisjoint(token.senses)]
        right = [token for token in right if token.sort in _COUNTED or said.isdisjoint(token.senses)]
        kept = {id(token) for token in left + right}
        again = sum(token.weight > 0.3 and id(token) not in kept for token in every)
    pairs.sort()
    return Aligned(pairs, left, right, synonyms, forms, equal, again)


def _typed_wrong(one: Token, other: Token) -> bool:
    """One of them is a known word, the other none, a single letter away from it."""
    short, long = sorted((one.key, other.key), key=len)
    if (
        one.known == other.known
        or len(short) < 4
        or len(long) - len(short) > 1
        or one.sort == "name"
        or short[0] != long[0]
    ):
        return False
    at = 0
    while at < len(short) and short[at] == long[at]:
        at += 1
    if len(short) < len(long):
        return short[at:] == long[at + 1 :]
    return short[at + 1 :] == long[at + 1 :] or (
        short[at : at + 2] == long[at : at + 2][::-1] and short[at + 2 :] == long[at + 2 :]
    )


def weigh(tokens: list[Token]) -> bool:
    """Whether any of them says something."""
    return any(token.weight > 0.3 for token in tokens)


def changed(one: tuple[str, ...], other: tuple[str, ...]) -> bool:
    """They are equal but for one run of words (of at most three) in one place: exchanged, put in or left out."""
    short, long = (one, other) if len(one) <= len(other) else (other, one)
    count = len(short)
    head = 0
    while head < count and short[head] == long[head]:
        head += 1
    tail = 0
    while tail < count - head and short[-1 - tail] == long[-1 - tail]:
        tail += 1
    return count - head - tail <= 2 and len(long) - head - tail <= 3 and 2 * (head + tail) >= count


def exchanged(one: tuple[Token, ...], other: tuple[Token, ...], aligned: Aligned) -> float:
    """Weight of tokens that stand in the place of others: what is before and after them is aligned."""
    gone = {id(token) for token in aligned.left}
    come = {id(token) for token in aligned.right}
    partner = dict(aligned.pairs)
    total = 0.0
    before = -1
    run: list[Token] = []
    for at, token in enumerate((*one, None)):
        if token is not None and at not in partner:
            if id(token) in gone and token.weight > 0.3:
                run.append(token)
            continue
        place = partner[at] if token is not None else len(other)
        if run:
            between = [match for match in other[before + 1 : place] if id(match) in come and match.weight > 0.3]
            if between and place > before:
                total += min(sum(max(t.weight, 0.6) for t in run), sum(max(t.weight, 0.6) for t in between))
        run = []
        before = place
    return total


def sequence(one: tuple[Token, ...], other: tuple[Token, ...]) -> float:
    """Longest common subsequence of equal tokens, by the longer text; of the first 40 tokens."""
    a = [token.key for token in one[:40]]
    b = [token.key for token in other[:40]]
    if not a or not b:
        return 0.0
    row = [0] * (len(b) + 1)
    for key in a:
        diagonal = 0
        for at, match in enumerate(b, start=1):
            above = row[at]
            if key == match:
                row[at] = diagonal + 1
            elif row[at - 1] > above:
                row[at] = row[at - 1]
            diagonal = above
    return row[-1] / max(len(a), len(b))

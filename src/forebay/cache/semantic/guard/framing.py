"""How a question speaks of who and what: pronouns and little words that mostly say nothing.

Two questions that are equal but for these do not differ in form alone: 你最喜欢的歌 and 我最喜欢的歌, 她喜欢我 and
我喜欢她, 有专科吗 and 是专科吗. Seldom is that a reason by itself; the verifier rates it. What is asked for says
which of them are mere form: 我怎么退款 and 怎么退款 ask the same, 我睡觉了 and 睡觉了 do not say the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

__all__ = ["PRONOUNS", "Framing", "differs", "parted"]

PRONOUNS: Final[Mapping[str, str]] = MappingProxyType(
    {
        word: person
        for person, some in {
            "first": "i me we us myself ourselves 我 我们 咱 咱们 俺 本人",
            "second": "you yourself yourselves 你 您 你们",
            "he": "he him his 他 他的",
            "she": "she her hers 她 她的",
            "who": "谁",
        }.items()
        for word in some.split()
    }
)
_ANYBODY: Final = frozenset({"how", "fix", "possible", "whereto"})
"""What is asked for does not depend on who is said to do it: "how do you", "how do I"."""
_MINE: Final = _ANYBODY | {"when", "amount", "length", "why", "count", "much"}
"""What is asked for is the same whether one says that it is one's own."""
_DOING: Final = (_ANYBODY - {"fix"}) | {"amount", "length"}
"""… is the same whether one wants to or does it; but 我想离婚怎么办 is not 我离婚了怎么办."""
_CLEAR: Final = _MINE | {"where", "what", "which", "who", "rate", "happens", "what do"}


class Framing(NamedTuple):
    subjects: frozenset[str]
    objects: frozenset[str]
    """Pronouns by what stands beside them: nothing that says anything follows an object in its clause."""
    persons: tuple[str, ...]
    """In order."""
    weak: tuple[str, ...]
    """Little words that say something, in order of the alphabet."""
    wish: tuple[str, ...]
    """… that say nothing where both ask how."""
    marks: tuple[str, ...]
    """… that say nothing where both ask by a question word."""
    has: bool
    """有 stands in it."""
    equals: bool
    """是 stands in it."""
    asked: tuple[str, ...]
    """What 什么 goes with, "" for the end; "=" where 是 stands beside it."""
    denied: frozenset[str]
    """Meanings of what is negated."""
    acts: frozenset[str]
    """Light verbs right after how: 怎么用, 怎么看."""
    grains: frozenset[str]
    """Of the time that is asked for: year, month, day, hour, where it is said."""
    best: bool
    """It asks for the best, the easiest way, not for one."""
    quoting: bool
    """It asks about words: what they mean, how they are written. Then all of them count."""


def differs(one: Framing, other: Framing, mine: frozenset[str], yours: frozenset[str], chinese: bool) -> int:
    """How many differences. `mine`, `yours`: what they ask for."""
    both = mine & yours
    quoting = one.quoting or other.quoting
    anybody = not quoting and not both.isdisjoint(_ANYBODY)
    count = _apart(one.weak, other.weak) + bool(one.asked and other.asked and one.asked != other.asked)
    count += bool(one.denied and other.denied and one.denied.isdisjoint(other.denied))
    count += one.acts != other.acts and "how" in both
    if quoting or both.isdisjoint(_DOING):
        count += _apart(one.wish, other.wish) if "fix" not in both else bool(one.wish) != bool(other.wish)
    if quoting or both.isdisjoint(_CLEAR):
        count += _apart(one.marks, other.marks)
    persons, others = one.subjects | one.objects, other.subjects | other.objects
    for person in ("first", "second"):
        facing = "second" if person == "first" else "first"
        if person in persons and person not in others and facing in others and facing not in persons:
            count += not anybody
        elif chinese and (person in persons) != (person in others) and not anybody:
            count += quoting or person == "second" or both.isdisjoint(_MINE)
        moved = (person in one.objects) != (person in other.objects)
        count += moved and (person == "first" or person in persons & others)
    if {"first", "second"} <= persons & others:
        count += _two(one.persons) != _two(other.persons)
    elif chinese and not anybody:
        count += abs(len(_two(one.persons)) - len(_two(other.persons))) > 1
    if "who" in persons & others and not (one.equals or other.equals):
        count += one.objects != other.objects and ("who" in one.objects) != ("who" in other.objects)
    count += (one.has and not one.equals and other.equals and not other.has) or (
        other.has and not other.equals and one.equals and not one.has
    )
    return count


def _apart(one: tuple[str, ...], other: tuple[str, ...]) -> int:
    if one == other:
        return 0
    mine, yours = Counter(one), Counter(other)
    return ((mine - yours) + (yours - mine)).total()


def _two(persons: tuple[str, ...]) -> list[str]:
    return [person for person in persons if person in ("first", "second")]


def parted(one: Framing, other: Framing) -> bool:
    """He in one, she in the other."""
    pair = frozenset({"he", "she"})
    mine, yours = (one.subjects | one.objects) & pair, (other.subjects | other.objects) & pair
    return bool(mine and yours and mine.isdisjoint(yours))

"""Who does what to whom: the order of what two questions share, as far as it matters."""

from __future__ import annotations

from typing import Final

from forebay.cache.semantic.guard.aligning import Aligned, weigh
from forebay.cache.semantic.guard.forms import words
from forebay.cache.semantic.guard.lexicon import LEXICON
from forebay.cache.semantic.guard.reading import Reading, Token

__all__ = ["order", "reordered", "same_roles"]

LONG: Final = 10
"""Shared tokens from which another order is never mere form: what belongs to what has changed, or cannot be told."""
LATIN: Final = 4
"""The same where nothing else differs and words stand in the order of English, which says who does what."""
_DIRECTED: Final = frozenset({"from", "to", "than", "by", "before", "after", "over"})
_CONTRARY_ROLES: Final = ({"from", "to"}, {"to", "by"}, {"before", "after"})
_PEOPLE: Final = frozenset(
    words(
        "男人 女人 男生 女生 男孩 女孩 老公 老婆 丈夫 妻子 爸爸 妈妈 父亲 母亲 儿子 女儿 孩子 小孩 宝宝 老师 学生 同学 "
        "朋友 男朋友 女朋友 男友 女友 老板 员工 医生 病人 父母 家长 婆婆 媳妇 领导 同事 别人 警察 司机 老人"
    )
)
"""Who stands before a word does it, who stands after it has it done to them."""
_WITHIN: Final = frozenset({"of", "for", "in", "on", "at", "de"})


def order(one: Reading, other: Reading, aligned: Aligned) -> tuple[float, bool, bool]:
    """Share of the aligned pairs that stand the other way round; whether that changes who does what to whom; and
    whether two neighbours have changed places, of which one may belong to the other: 手机游戏, 游戏手机."""
    pairs = [(at, place) for at, place in aligned.pairs if min(one.tokens[at].weight, other.tokens[place].weight) > 0.3]
    chinese = one.chinese + other.chinese >= 1
    whole = not (weigh(aligned.left) or weigh(aligned.right)) and (chinese or not (one.clauses or other.clauses))
    count = len(pairs)
    inverted = 0
    swapped = turned = False
    both_linked = one.linked and other.linked
    tokens, others = one.tokens, other.tokens
    roles = _swapped_roles(one, other, aligned)
    if (passive := _passive(tokens, others, pairs)) is not None:
        return 0.0, passive or roles, False
    for i in range(count):
        for j in range(i + 1, count):
            if pairs[i][1] < pairs[j][1]:
                continue
            inverted += 1
            x, y = tokens[pairs[i][0]], tokens[pairs[j][0]]
            a, b = others[pairs[i][1]], others[pairs[j][1]]
            if both_linked:
                continue
            if chinese and pairs[i][1] == pairs[j][1] + 1 and pairs[j][0] - pairs[i][0] == j - i:
                turned = turned or j == i + 1
                acts = not (x.role or y.role or a.role or b.role) and "number" not in (x.sort, y.sort)
                if acts and (x.key in _PEOPLE) != (y.key in _PEOPLE):  # 男人吻, 吻男人
                    swapped = swapped or all(tokens[pairs[k][0]].sort == "char" for k in range(i + 1, j))
            if (
                not x.kinds.isdisjoint(y.kinds)
                or _opposite(x, y)
                or (x.sort == y.sort and x.sort in ("name", "number"))
            ):
                kept = x.role == a.role and y.role == b.role and not _DIRECTED.isdisjoint((x.role, y.role))
                swapped = swapped or (not kept and x.key != y.key)
            elif len(x.key) == len(y.key) == 1 and pairs[j][0] == pairs[i][0] + 1 and pairs[i][1] == pairs[j][1] + 1:
                swapped = swapped or x.key != y.key
            elif whole and j > i + 1 and any(pairs[j][1] < pairs[k][1] < pairs[i][1] for k in range(i + 1, j)):
                loose = not _WITHIN.isdisjoint((x.role, y.role, a.role, b.role))
                swapped = swapped or not loose
    if count > LATIN and inverted and whole and not both_linked and not chinese:
        swapped = True
    if count > LONG and inverted and not (weigh(aligned.left) and weigh(aligned.right)):
        swapped = True
    return (
        2 * inverted / (count * (count - 1)) if count > 1 else 0.0,
        swapped or roles or _swapped_counts(one, other, pairs),
        turned,
    )


def reordered(one: Reading, other: Reading) -> bool:
    """The very same words in another order, in English: more than a part moved to the other end ("on Mondays, …") or
    two things that change places about an "and"."""
    a, b = one.pieces, other.pieces
    if len(a) != len(b) or a == b or len(a) <= LATIN or one.chinese + other.chinese >= 1 or sorted(a) != sorted(b):
        return False
    if any(a[at:] + a[:at] == b for at in range(1, len(a))):
        return False
    head = next(at for at, (x, y) in enumerate(zip(a, b, strict=True)) if x != y)
    tail = next(at for at, (x, y) in enumerate(zip(reversed(a), reversed(b), strict=True)) if x != y)
    span, turned = a[head : len(a) - tail], b[head : len(b) - tail]
    return not any(
        word in ("and", "or") and (*span[at + 1 :], word, *span[:at]) == turned for at, word in enumerate(span)
    )


def same_roles(one: Reading, other: Reading, aligned: Aligned) -> bool:
    for at, place in aligned.pairs:
        mine, yours = one.tokens[at].role, other.tokens[place].role
        if mine != yours and mine and yours and not (_DIRECTED | {"with"}).isdisjoint((mine, yours)):
            return False
    return True


def _opposite(one: Token, other: Token) -> bool:
    opposite = LEXICON.opposite
    return any(
        (poles := opposite.get(sense)) is not None and not poles.isdisjoint(other.senses) for sense in one.senses
    )


def _alike(one: Token, other: Token) -> bool:
    """They could change places in a sentence."""
    if _opposite(one, other):
        return True
    return not one.kinds.isdisjoint(other.kinds) or one.sort == other.sort == "name" or not (one.known or other.known)


def _passive(tokens: tuple[Token, ...], others: tuple[Token, ...], pairs: list[tuple[int, int]]) -> bool | None:
    """Whether the doer that one side names with "by" is not the doer on the other; None: neither does, or both do."""
    for at, place in pairs:
        by_one, by_other = tokens[at].role == "by", others[place].role == "by"
        if by_one == by_other:
            continue
        doer = tokens[at]
        likes = [(x, y) for x, y in pairs if x != at and _alike(doer, tokens[x])]
        if likes:
            return any(x < at and y < place for x, y in likes)
    return None


def _swapped_roles(one: Reading, other: Reading, aligned: Aligned) -> bool:
    """What is "to" one thing is "to" another that both questions name."""
    tokens, others = one.tokens, other.tokens
    partner = dict(aligned.pairs)
    back = {place: at for at, place in aligned.pairs}
    for at, token in enumerate(tokens):
        if token.role not in _DIRECTED or at not in partner:
            continue
        there = others[partner[at]]
        if there.role == token.role:
            continue
        if {token.role, there.role} in _CONTRARY_ROLES:
            return True
        for place, match in enumerate(others):
            if match.role == token.role and place in back and tokens[back[place]].role != token.role:
                return True
    return False


def _swapped_counts(one: Reading, other: Reading, pairs: list[tuple[int, int]]) -> bool:
    """2 adults and 3 children; 3 adults and 2 children."""
    partner = dict(pairs)
    back = frozenset(place for _, place in pairs)
    for at, place in pairs:
        if one.tokens[at].sort == "number" and at + 1 in partner and place + 1 < len(other.tokens):
            counted = partner[at + 1]
            if counted != place + 1 and counted and other.tokens[counted - 1].sort == "number" and counted - 1 != place:
                return True
            if counted != place + 1 and place + 1 in back and _alike(one.tokens[at + 1], other.tokens[place + 1]):
                return True  # 一个男人和两个女人: the first number is not always read as one
    return False

"""Two questions: what differs between them, and whether that changes the answer.

Pure; about 100 µs a pair. What two questions share is aligned first (equal words, words of one meaning, forms of one
word); what is left over on either side, and how each is framed, decides.
"""

from __future__ import annotations

from collections import Counter
from typing import Final, NamedTuple

from forebay.cache.semantic.guard.aligning import Aligned, align, changed, exchanged, sequence, weigh
from forebay.cache.semantic.guard.asking import asked_for
from forebay.cache.semantic.guard.forms import words
from forebay.cache.semantic.guard.framing import differs, parted
from forebay.cache.semantic.guard.lexicon import LEXICON
from forebay.cache.semantic.guard.ordering import order, reordered, same_roles
from forebay.cache.semantic.guard.reading import Reading, Token, read

__all__ = ["FEATURES", "Verdict", "compare"]

FEATURES: Final = (
    "equal",  # share of the content, by weight, in equal words, 0–1
    "covered",  # … in equal words, words of one meaning, forms of one word
    "covered_less",  # the same, of the side that is covered less
    "grams",  # Dice of pairs of characters
    "sequence",  # longest common sequence of tokens, by the longer one
    "lengths",  # shorter by longer, in tokens
    "tokens",  # of both, on average, by 10
    "left_asked",  # weight of tokens without a counterpart
    "left_known",
    "left_both",  # the lesser of the two: something is exchanged
    "unknown_left",  # tokens left over that are in no lexicon
    "exchanged",  # tokens exchanged for others in the same place
    "synonyms",  # aligned by meaning
    "derived",  # aligned by form; of what is identical also neighbours that changed places, the best way for a way
    "light",  # weight of light words left over
    "question",  # 0 the same, 0.5 may be, 1 not the same sort
    "modality",
    "tense",
    "person",
    "negation",  # parity differs
    "negated",  # either holds a negation
    "antonyms",
    "rivals",  # left over words of one kind: two towns, two colours
    "entities",  # names and ids left over
    "numbers",  # left over
    "scopes",  # only, all, another, … on one side
    "framed",  # pronouns and little words that differ, words said twice
    "order",  # share of aligned pairs that stand the other way round
    "conflict",
    "identical",
    "chinese",
    "two_languages",
    "bare",  # nothing is left over that says something, no word is another: what differs is only what follows
    "bare_light",
    "bare_framed",
)


class Verdict(NamedTuple):
    conflict: str
    """The first hard reason why the answers differ (number, date, entity, …); "": none is known."""
    identical: bool
    """They differ in nothing but form."""
    features: tuple[float, ...]
    """As `FEATURES`."""


_SHORT: Final = 7
"""Tokens up to which another order alone says nothing."""
_SOFT_SCOPES: Final = frozenset(
    words(
        "before after until within since again still already self both either same another all part outside always "
        "instead permanently temporarily"
    )
)
_PREFIXES: Final = ("un", "in", "im", "ir", "il", "non", "dis")
_ENDING: Final = " .?!~"
"""Of a question, which say nothing more."""
_LIGHT_ACTS: Final = frozenset(words("用 使用 看 说 给 让 得到 知道"))
_DATES: Final = frozenset({"weekday", "month", "day", "season", "holiday", "period"})
_FAILING: Final = frozenset(
    words("fail failur problem troubl issu error difficulty unsuccessful 失败 出错 报错 异常 问题 故障 失灵 失效")
)


def compare(asked: str | Reading, known: str | Reading) -> Verdict:
    """How two questions differ. A text that is compared several times is `read` once."""
    one = read(asked) if isinstance(asked, str) else asked
    other = read(known) if isinstance(known, str) else known
    if one.long or other.long:
        equal = one.text == other.text
        return Verdict("" if equal else "long", equal, (0.0,) * len(FEATURES))
    turned = other.text < one.text  # both ways are one comparison
    if turned:
        one, other = other, one
    aligned = align(one.tokens, other.tokens)
    left, right = aligned.left, aligned.right
    antonyms, contrary = _antonyms(one, other, left, right)
    antonyms = antonyms or _facing(one, other, aligned)
    rivals, rival = _rivals(left, right)
    parity = (one.negations + other.negations + contrary + _failing(one, other, left, right)) % 2
    question = asked_for(one, other)
    modality = _sets(one.modals, other.modals)
    tense = _tense(one.tenses, other.tenses)
    person = 1.0 if parted(one.framing, other.framing) else _person(one, other)
    framed = aligned.again + differs(
        one.framing, other.framing, one.questions, other.questions, one.chinese + other.chinese > 1
    )
    framed += (not same_roles(one, other, aligned)) + (one.linked != other.linked)
    framed += ("whether" in one.questions) != ("whether" in other.questions)
    scopes = list((Counter(one.scopes) - Counter(other.scopes)).elements())
    scopes += (Counter(other.scopes) - Counter(one.scopes)).elements()
    if {"before", "after"} <= set(scopes):
        scopes.append("order")
    if scopes == ["after"] and "了" in one.framing.marks + other.framing.marks:
        scopes = []  # 到期后怎么续, 到期了怎么续
    if scopes == ["most"]:
        scopes = _without_limit(left, right)
    numbers = _numbers(left, right)
    entities = [token for token in (*left, *right) if token.sort in ("name", "id", "acronym")]
    inversions, swapped, turned_round = order(one, other, aligned)
    swapped = swapped or reordered(one, other)
    heavy_left = sum(token.weight for token in left if token.sort != "light")
    heavy_right = sum(token.weight for token in right if token.sort != "light")
    light = sum(token.weight for token in (*left, *right) if token.sort == "light")
    weight_one = sum(token.weight for token in one.tokens) or 1.0
    weight_other = sum(token.weight for token in other.tokens) or 1.0
    left_all = sum(token.weight for token in left)
    right_all = sum(token.weight for token in right)
    in_place = exchanged(one.tokens, other.tokens, aligned)
    two_languages = abs(one.chinese - other.chinese) > 0.6
    same = not left_all and not right_all
    foreign = one.foreign or other.foreign
    minimal = heavy_left == heavy_right == 0.0
    minimal_pair = changed(one.pieces, other.pieces)
    entities = [t for t in entities if t.sort != "acronym" or minimal_pair or (weigh(left) and weigh(right))]

    conflict = ""
    if two_languages:
        conflict = "language"
    elif numbers:
        conflict = _which_number(numbers)
    elif any(token.sort == "id" for token in entities):
        conflict = "id"
    elif parity:
        conflict = "negation"
    elif antonyms:
        conflict = "antonym"
    elif rivals:
        conflict = "date" if rival in _DATES else "antonym" if rival == "reverse" else "entity"
    elif entities:
        conflict = "entity"
    elif swapped:
        conflict = "order"
    elif scopes and (minimal_pair or minimal or not _SOFT_SCOPES.issuperset(scopes)):
        conflict = "scope word"
    elif question == 1.0:
        conflict = "question type"
    elif modality == 1.0 and (minimal or "must" in one.modals | other.modals):
        conflict = "modality"
    elif person == 1.0:
        conflict = "person"
    elif tense == 1.0 and minimal:
        conflict = "tense"
    elif (minimal_pair and ((weigh(left) and weigh(right)) or (minimal and _acts(left, right)))) or (
        foreign and (weigh(left) or weigh(right))
    ):
        conflict = "word"
    elif minimal_pair and (weigh(left) or weigh(right)):
        conflict = "narrower"
    identical = (
        not conflict
        and same
        and not (question or modality or tense or person or framed)
        and any(one.tokens[at].weight > 0.3 for at, _ in aligned.pairs)
        and (not inversions or (len(aligned.pairs) <= _SHORT and not one.scopes))
        and (inversions <= 0.5 or one.chinese + other.chinese < 1 or not (one.clauses or other.clauses))
    ) or one.text.rstrip(_ENDING) == other.text.rstrip(_ENDING)
    if identical:
        conflict = ""
    bare = minimal and not aligned.synonyms and not aligned.derived
    features = (
        2 * aligned.equal / (weight_one + weight_other),
        1 - (left_all + right_all) / (weight_one + weight_other),
        1 - max(left_all / weight_one, right_all / weight_other),
        2 * len(one.grams & other.grams) / (len(one.grams) + len(other.grams) or 1),
        sequence(one.tokens, other.tokens),
        min(len(one.tokens), len(other.tokens)) / (max(len(one.tokens), len(other.tokens)) or 1),
        (len(one.tokens) + len(other.tokens)) / 20,
        heavy_right if turned else heavy_left,
        heavy_left if turned else heavy_right,
        min(heavy_left, heavy_right),
        float(sum(not token.known for token in (*left, *right))),
        in_place,
        float(aligned.synonyms),
        float(aligned.derived + (identical and (turned_round or one.framing.best != other.framing.best))),
        light,
        question,
        modality,
        tense,
        person,
        float(parity),
        float(bool(one.negations or other.negations)),
        float(antonyms),
        float(rivals),
        float(len(entities)),
        float(len(numbers)),
        float(len(scopes)),
        float(framed),
        inversions,
        float(bool(conflict)),
        float(identical),
        (one.chinese + other.chinese) / 2,
        float(two_languages),
        float(bare),
        light if bare else 0.0,
        float(min(framed, 3)) if bare else 0.0,
    )
    return Verdict(conflict, identical, features)


def _acts(left: list[Token], right: list[Token]) -> bool:
    """What is done is said by a light verb, and by another on each side: 怎么用, 怎么看."""
    mine, yours = (frozenset(t.key for t in side) & _LIGHT_ACTS for side in (left, right))
    return bool(left and right and (mine or yours) and mine.isdisjoint(yours))


def _without_limit(left: list[Token], right: list[Token]) -> list[str]:
    """ "At most" on one side may be "the limit" on the other, which is no leftover then."""
    for side in (left, right):
        for token in side:
            if not token.senses.isdisjoint(("limit", "限额", "额度")):
                side.remove(token)
                return []
    return ["most"]


def _failing(one: Reading, other: Reading, left: list[Token], right: list[Token]) -> int:
    """1 where one side says by a word that it fails, and the other by a negation; the word is then no leftover."""
    if (one.negations + other.negations) % 2 == 0:
        return 0
    side = left if one.negations < other.negations else right
    for token in side:
        if token.key in _FAILING:
            side.remove(token)
            return 1
    return 0


def _antonyms(one: Reading, other: Reading, left: list[Token], right: list[Token]) -> tuple[int, int]:
    """Antonyms among the leftovers, and how many of them are a negation written as a prefix (which is taken off the
    leftovers, as it counts as one)."""
    opposite = LEXICON.opposite
    count = contrary = 0
    if not right:
        return 0, 0
    for token in tuple(left):
        poles = [found for sense in token.senses if (found := opposite.get(sense)) is not None]
        for match in right:
            if _prefixed(token.key, match.key):
                contrary += 1
            elif poles and not all(pole.isdisjoint(match.senses) for pole in poles):
                count += 1
            else:
                continue
            left.remove(token)
            right.remove(match)
            break
    return count, contrary


def _facing(one: Reading, other: Reading, aligned: Aligned) -> int:
    """A leftover is the opposite of what both questions say: 外地的卡可以注销吗, 外地的卡可以在本地注销吗."""
    opposite = LEXICON.opposite
    for token in (*aligned.left, *aligned.right):
        for sense in token.senses:
            poles = opposite.get(sense)
            if poles is not None and any(
                not poles.isdisjoint(one.tokens[at].senses) and not poles.isdisjoint(other.tokens[place].senses)
                for at, place in aligned.pairs
            ):
                return 1
    return 0


def _prefixed(one: str, other: str) -> bool:
    short, long = (one, other) if len(one) < len(other) else (other, one)
    if not long.isascii() or len(short) < 3:
        return False
    if long.endswith(short):
        return long[: -len(short)] in _PREFIXES
    return long.endswith("less") and (long[:-4] == short or (short.endswith("ful") and long[:-4] == short[:-3]))


def _rivals(left: list[Token], right: list[Token]) -> tuple[int, str]:
    """Leftovers of one kind on both sides, or a name of a kind on one side alone, and of which kind."""
    count = 0
    kind = ""
    for token in left:
        if token.kinds and any(not token.kinds.isdisjoint(match.kinds) for match in right):
            count += 1
            kind = kind or min(token.kinds)
    if not count:
        for side, facing in ((left, right), (right, left)):
            for token in side:
                named = token.kinds & _NAMING
                if named and (named - {"reverse", "aspect"} or not weigh(facing)):
                    count += 1
                    kind = kind or min(named)
    return count, kind


_NAMING: Final = frozenset(
    words("place country language brand weekday month day season holiday currency colour person period reverse aspect")
)


def _numbers(left: list[Token], right: list[Token]) -> list[Token]:
    """Numbers without a counterpart. A 1 (one, a) on one side alone says nothing."""
    found = [token for token in (*left, *right) if token.sort == "number"]
    if len(found) == 1 and found[0].key in ("1", "times:1"):
        for side in (left, right):
            if found[0] in side:
                side.remove(found[0])
        return []
    return found


def _which_number(numbers: list[Token]) -> str:
    key = numbers[0].key
    dimension = key.partition(":")[0] if ":" in key else ""
    if dimension in ("time", "day", "month"):
        return "date"
    if (
        dimension
        and dimension != "ord"
        and len(numbers) == 2
        and ":" in numbers[1].key
        and (numbers[1].key.partition(":")[0] != dimension)
    ):
        return "unit"
    return "number"


def _person(one: Reading, other: Reading) -> float:
    """0 the same, 0.5 perhaps another, 1 another person's. "My" and nothing are one; so are "how do you" and "I"."""
    mine, yours = (
        {"second"} & set(r.persons) if not r.questions & {"how", "fix"} else set[str]() for r in (one, other)
    )
    if ("third" in one.persons) != ("third" in other.persons):
        return 1.0 if "first" in one.persons | other.persons else 0.5
    if mine != yours:
        return 1.0 if "first" in (other.persons if mine else one.persons) else 0.5
    return 0.0


def _tense(one: frozenset[str], other: frozenset[str]) -> float:
    """As `_sets`; the present and no tense are one."""
    if "past" in one | other and not one & other:
        return 1.0 if one and other else 0.5
    return _sets(one - {"present"}, other - {"present"})


def _sets(one: frozenset[str], other: frozenset[str]) -> float:
    """0 equal, 0.5 one says nothing, 1 they say different things."""
    if one == other:
        return 0.0
    if not one or not other:
        return 0.5
    return 1.0 if one.isdisjoint(other) else 0.5

"""Two questions: what differs between them, and whether that changes the answer.

Pure; about 100 µs a pair. What two questions share is aligned first (equal words, words of one meaning, forms of one
word); what is left over on either side, and how each is framed, decides.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Final, NamedTuple

from forebay.cache.semantic.guard.forms import derived, words
from forebay.cache.semantic.guard.lexicon import LEXICON
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
    "derived",  # aligned by form
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
    "order",  # share of aligned pairs that stand the other way round
    "conflict",
    "identical",
    "chinese",
    "two_languages",
)


class Verdict(NamedTuple):
    conflict: str
    """The first hard reason why the answers differ (number, date, entity, …); "": none is known."""
    identical: bool
    """They differ in nothing but form."""
    features: tuple[float, ...]
    """As `FEATURES`."""


_RANK: Final = ("whether", "possible", "what", "what do", "which")
_FINE: Final = frozenset(
    frozenset(pair)
    for pair in (
        ("what", "which"),
        ("how", "fix"),
        ("what", "fix"),
        ("how", "possible"),
        ("whether", "possible"),
        ("what", "how"),
        ("what", "define"),
        ("how", "whereto"),
        ("where", "whereto"),
        ("amount", "count"),
        ("what", "happens"),
        ("what", "what do"),
        ("what do", "how"),
        ("what do", "which"),
    )
)
_MEASURES: Final = frozenset(words("amount count length often far old tall large heavy fast deep hot"))
_SOFT_SCOPES: Final = frozenset(
    words("during again still already self both either same another all part outside always instead within permanently")
)
_DIRECTED: Final = frozenset({"from", "to", "than", "by", "before", "after", "over"})
_CONTRARY_ROLES: Final = ({"from", "to"}, {"to", "by"}, {"before", "after"})
_PREFIXES: Final = ("un", "in", "im", "ir", "il", "non", "dis")
_VAGUE: Final = frozenset({"what", "which", "what do"})
_DATES: Final = frozenset({"weekday", "month", "day", "season", "holiday", "period"})
_FAILING: Final = frozenset(
    words("fail failur problem troubl issu error difficulty unsuccessful 失败 出错 报错 异常 问题 故障 失灵 失效")
)
_SOON: Final = frozenset(
    words("tak arriv receiv deliver finish complet process review shipment get 收到 到账 完成 配送 办理 审核 领取 生效")
)
_WITHIN: Final = frozenset({"of", "for", "in", "on", "at", "de"})


@dataclass(slots=True)
class _Aligned:
    pairs: list[tuple[int, int]]
    left: list[Token]
    right: list[Token]
    synonyms: int
    derived: int
    equal: float


def compare(asked: str | Reading, known: str | Reading) -> Verdict:
    """How two questions differ. A text that is compared several times is `read` once."""
    one = read(asked) if isinstance(asked, str) else asked
    other = read(known) if isinstance(known, str) else known
    aligned = _align(one.tokens, other.tokens)
    left, right = aligned.left, aligned.right
    antonyms, contrary = _antonyms(one, other, left, right)
    rivals, rival = _rivals(left, right)
    parity = (one.negations + other.negations + contrary + _failing(one, other, left, right)) % 2
    question = _question(one, other, aligned)
    modality = _sets(one.modals, other.modals)
    tense = _sets(one.tenses, other.tenses)
    person = _sets(one.persons, other.persons)
    scopes = list((Counter(one.scopes) - Counter(other.scopes)).elements())
    scopes += (Counter(other.scopes) - Counter(one.scopes)).elements()
    numbers = _numbers(left, right)
    entities = [token for token in (*left, *right) if token.sort in ("name", "id", "acronym")]
    inversions, swapped = _order(one, other, aligned)
    heavy_left = sum(token.weight for token in left if token.sort != "light")
    heavy_right = sum(token.weight for token in right if token.sort != "light")
    light = sum(token.weight for token in (*left, *right) if token.sort == "light")
    weight_one = sum(token.weight for token in one.tokens) or 1.0
    weight_other = sum(token.weight for token in other.tokens) or 1.0
    left_all = sum(token.weight for token in left)
    right_all = sum(token.weight for token in right)
    exchanged = _exchanged(one, other, aligned)
    two_languages = abs(one.chinese - other.chinese) > 0.6
    same = not left_all and not right_all
    minimal = heavy_left == heavy_right == 0.0

    changed = _changed(one.pieces, other.pieces)
    entities = [t for t in entities if t.sort != "acronym" or changed or (_has(left) and _has(right))]

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
    elif scopes and (changed or minimal or not _SOFT_SCOPES.issuperset(scopes)):
        conflict = "scope word"
    elif question == 1.0:
        conflict = "question type"
    elif modality == 1.0 and (minimal or "must" in one.modals | other.modals):
        conflict = "modality"
    elif person == 1.0:
        conflict = "person"
    elif tense == 1.0 and minimal:
        conflict = "tense"
    elif changed and _has(left) and _has(right):
        conflict = "word"
    elif changed and (_has(left) or _has(right)):
        conflict = "narrower"
    identical = (
        not conflict
        and same
        and not (question or modality or tense or person)
        and bool(one.tokens)
        and _same_roles(one, other, aligned)
    ) or one.text == other.text
    if identical:
        conflict = ""
    features = (
        2 * aligned.equal / (weight_one + weight_other),
        1 - (left_all + right_all) / (weight_one + weight_other),
        1 - max(left_all / weight_one, right_all / weight_other),
        2 * len(one.grams & other.grams) / (len(one.grams) + len(other.grams) or 1),
        _sequence(one.tokens, other.tokens),
        min(len(one.tokens), len(other.tokens)) / (max(len(one.tokens), len(other.tokens)) or 1),
        (len(one.tokens) + len(other.tokens)) / 20,
        heavy_left,
        heavy_right,
        min(heavy_left, heavy_right),
        float(sum(not token.known for token in (*left, *right))),
        exchanged,
        float(aligned.synonyms),
        float(aligned.derived),
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
        inversions,
        float(bool(conflict)),
        float(identical),
        (one.chinese + other.chinese) / 2,
        float(two_languages),
    )
    return Verdict(conflict, identical, features)


def _align(one: tuple[Token, ...], other: tuple[Token, ...]) -> _Aligned:
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
    synonyms = forms = 0
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
            root = derived(token.key)
            for place, match in enumerate(other):
                if (
                    free[place]
                    and match.sort in ("word", "name", "acronym")
                    and match.key.isascii()
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
        left = [token for token in left if token.sort == "number" or said.isdisjoint(token.senses)]
        right = [token for token in right if token.sort == "number" or said.isdisjoint(token.senses)]
    pairs.sort()
    return _Aligned(pairs, left, right, synonyms, forms, equal)


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


def _has(tokens: list[Token]) -> bool:
    return any(token.weight > 0.3 for token in tokens)


def _changed(one: tuple[str, ...], other: tuple[str, ...]) -> bool:
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


def _same_roles(one: Reading, other: Reading, aligned: _Aligned) -> bool:
    for at, place in aligned.pairs:
        mine, yours = one.tokens[at].role, other.tokens[place].role
        if mine != yours and mine and yours and not (_DIRECTED | {"with"}).isdisjoint((mine, yours)):
            return False
    return True


def _antonyms(one: Reading, other: Reading, left: list[Token], right: list[Token]) -> tuple[int, int]:
    """Antonyms among the leftovers, and how many of them are a negation written as a prefix (which is taken off the
    leftovers, as it counts as one)."""
    opposite = LEXICON.opposite
    count = contrary = 0
    for token in tuple(left):
        for match in tuple(right):
            if _prefixed(token.key, match.key):
                contrary += 1
            elif not any(
                (poles := opposite.get(sense)) is not None and not poles.isdisjoint(match.senses)
                for sense in token.senses
            ):
                continue
            else:
                count += 1
            left.remove(token) if token in left else None
            right.remove(match)
            break
    return count, contrary


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
                if named and (named != {"reverse"} or not _has(facing)):
                    count += 1
                    kind = kind or min(named)
    return count, kind


_NAMING: Final = frozenset(
    words("place country language brand weekday month day season holiday currency colour person period reverse")
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


def _sets(one: frozenset[str], other: frozenset[str]) -> float:
    """0 equal, 0.5 one says nothing, 1 they say different things."""
    if one == other:
        return 0.0
    if not one or not other:
        return 0.5
    return 1.0 if one.isdisjoint(other) else 0.5


def _question(one: Reading, other: Reading, aligned: _Aligned) -> float:
    mine, yours = _asks(one.questions), _asks(other.questions)
    if mine == yours:
        return 0.0
    if not mine or not yours:
        return 0.5
    if not mine.isdisjoint(yours):
        return 0.5
    both = mine | yours
    if (mine <= _VAGUE or yours <= _VAGUE) and not {"why", "what do"} <= both:
        for at, place in aligned.pairs:  # "what is the reason" asks why
            if "stand-in" in (one.tokens[at].sort, other.tokens[place].sort):
                return 0.0
    for a in mine:
        for b in yours:
            if frozenset((a, b)) in _FINE or ({a, b} & _VAGUE and {a, b} & _MEASURES):
                return 0.5
            if "which" in (a, b) and {a, b} & {"where", "who", "when", "whereto"}:
                return 0.5
            if {a, b} == {"when", "length"} and _soon(one) and _soon(other):
                return 0.5
            if {a, b} == {"amount", "how"} and _costs(one) and _costs(other):
                return 0.5
    return 1.0


def _soon(reading: Reading) -> bool:
    """It is about how long something takes to be done."""
    return "future" in reading.tenses or any(not _SOON.isdisjoint(token.senses) for token in reading.tokens)


def _costs(reading: Reading) -> bool:
    return any("费用" in token.senses or "cost" in token.senses for token in reading.tokens)


def _asks(questions: frozenset[str]) -> frozenset[str]:
    """What is asked for: "can you tell me when" asks when."""
    for vague in _RANK:
        if len(questions) > 1 and vague in questions:
            questions = questions - {vague}
    return questions


def _order(one: Reading, other: Reading, aligned: _Aligned) -> tuple[float, bool]:
    """Share of the aligned pairs that stand the other way round, and whether that changes who does what to whom."""
    pairs = [(at, place) for at, place in aligned.pairs if min(one.tokens[at].weight, other.tokens[place].weight) > 0.3]
    whole = not (_has(aligned.left) or _has(aligned.right) or one.clauses or other.clauses)
    count = len(pairs)
    inverted = 0
    swapped = False
    both_linked = one.linked and other.linked
    tokens, others = one.tokens, other.tokens
    roles = _swapped_roles(one, other, aligned)
    if (passive := _passive(tokens, others, pairs)) is not None:
        return 0.0, passive or roles
    for i in range(count):
        for j in range(i + 1, count):
            if pairs[i][1] < pairs[j][1]:
                continue
            inverted += 1
            x, y = tokens[pairs[i][0]], tokens[pairs[j][0]]
            a, b = others[pairs[i][1]], others[pairs[j][1]]
            if both_linked:
                continue
            if not x.kinds.isdisjoint(y.kinds) or (x.sort == y.sort and x.sort in ("name", "number")):
                kept = x.role == a.role and y.role == b.role and not _DIRECTED.isdisjoint((x.role, y.role))
                swapped = swapped or (not kept and x.key != y.key)
            elif x.sort == y.sort == "char" and pairs[j][0] == pairs[i][0] + 1 and pairs[i][1] == pairs[j][1] + 1:
                swapped = swapped or x.key != y.key
            elif whole and j > i + 1 and any(pairs[j][1] < pairs[k][1] < pairs[i][1] for k in range(i + 1, j)):
                loose = not _WITHIN.isdisjoint((x.role, y.role, a.role, b.role))
                swapped = swapped or not loose
    return (2 * inverted / (count * (count - 1)) if count > 1 else 0.0), swapped or roles or _swapped_counts(
        one, other, pairs
    )


def _alike(one: Token, other: Token) -> bool:
    """They could change places in a sentence."""
    if any(not LEXICON.opposite.get(sense, other.kinds).isdisjoint(other.senses) for sense in one.senses):
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


def _swapped_roles(one: Reading, other: Reading, aligned: _Aligned) -> bool:
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
    for at, place in pairs:
        if one.tokens[at].sort == "number" and at + 1 in partner and place + 1 < len(other.tokens):
            counted = partner[at + 1]
            if counted != place + 1 and counted and other.tokens[counted - 1].sort == "number" and counted - 1 != place:
                return True
    return False


def _exchanged(one: Reading, other: Reading, aligned: _Aligned) -> float:
    """Weight of tokens that stand in the place of others: what is before and after them is aligned."""
    gone = {id(token) for token in aligned.left}
    come = {id(token) for token in aligned.right}
    partner = dict(aligned.pairs)
    total = 0.0
    before = -1
    run: list[Token] = []
    for at, token in enumerate((*one.tokens, None)):
        if token is not None and at not in partner:
            if id(token) in gone and token.weight > 0.3:
                run.append(token)
            continue
        place = partner[at] if token is not None else len(other.tokens)
        if run:
            between = [match for match in other.tokens[before + 1 : place] if id(match) in come and match.weight > 0.3]
            if between and place > before:
                total += min(sum(max(t.weight, 0.6) for t in run), sum(max(t.weight, 0.6) for t in between))
        run = []
        before = place
    return total


def _sequence(one: tuple[Token, ...], other: tuple[Token, ...]) -> float:
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

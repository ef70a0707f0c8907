"""What sort of answer two questions ask for."""

from __future__ import annotations

from typing import Final

from forebay.cache.semantic.guard.forms import words
from forebay.cache.semantic.guard.reading import Reading

__all__ = ["asked_for"]

_RANK: Final = ("whether", "possible", "what", "what do", "which")
_FINE: Final = frozenset(
    frozenset(pair)
    for pair in (
        ("what", "which"),
        ("how", "fix"),
        ("how", "rate"),
        ("rate", "whether"),
        ("what", "rate"),
        ("which", "rate"),
        ("what", "fix"),
        ("how", "possible"),
        ("whether", "possible"),
        ("what", "how"),
        ("what", "define"),
        ("how", "whereto"),
        ("where", "whereto"),
        ("amount", "count"),
        ("much", "what"),
        ("much", "count"),
        ("much", "amount"),
        ("much", "which"),
        ("what", "happens"),
        ("what", "what do"),
        ("what do", "how"),
        ("what do", "which"),
    )
)
_MEASURES: Final = frozenset(words("amount count length often far old tall large heavy fast deep hot"))
_COSTS: Final = frozenset({"cost", "费用"})
_VAGUE: Final = frozenset({"what", "which", "what do", "much"})
_SOON: Final = frozenset(
    words("tak arriv receiv deliver finish complet process review shipment get 收到 到账 完成 配送 办理 审核 领取 生效")
)


def asked_for(one: Reading, other: Reading) -> float:
    mine, yours = _asks(one.questions), _asks(other.questions)
    if "how" in mine and "how" in yours and one.framing.quoting != other.framing.quoting:
        return 1.0  # 鸡蛋怎么打碎, 鸡蛋打碎了怎么说
    grains, others = one.framing.grains, other.framing.grains
    if grains and others and grains.isdisjoint(others):
        return 1.0  # 哪一年开学, 哪一天开学
    if mine == yours:
        return 0.0
    if not mine or not yours:
        return 0.5
    if not mine.isdisjoint(yours):
        return 0.5
    both = mine | yours
    if (mine <= _VAGUE or yours <= _VAGUE) and not {"why", "what do"} <= both and _named(one, other):
        return 0.0
    for a in mine:
        for b in yours:
            if {a, b} == {"how", "what"} and (_thing(one) or _thing(other)):
                return 1.0
            if frozenset((a, b)) in _FINE or ({a, b} & _VAGUE and {a, b} & _MEASURES):
                return 0.5
            if {a, b} == {"how", "why"} and one.negations % 2 and other.negations % 2:
                return 0.5  # 怎么打不开, 为什么打不开
            if "which" in (a, b) and {a, b} & {"where", "who", "when", "whereto"}:
                return 0.5
            if {a, b} == {"when", "length"} and _soon(one) and _soon(other):
                return 0.5
            if {a, b} in ({"amount", "how"}, {"much", "how"}) and _costs(one) and _costs(other):
                return 0.5
    return 1.0


def _named(one: Reading, other: Reading) -> bool:
    """What one side asks by a question word, the other names: "what is the reason" asks why."""
    for asking, naming in ((one, other), (other, one)):
        asked = [token for token in asking.tokens if token.sort == "stand-in"]
        said = frozenset[str]().union(*(token.senses for token in asking.tokens if token.sort != "stand-in"))
        if any(
            not token.senses.isdisjoint(name.senses) and said.isdisjoint(name.senses)
            for token in asked
            for name in naming.tokens
            if name.sort != "stand-in"
        ):
            return True
    return False


def _thing(reading: Reading) -> bool:
    """什么 stands before what is asked for: 什么茶."""
    return any(key not in ("", "=") for key in reading.framing.asked)


def _soon(reading: Reading) -> bool:
    """It is about how long something takes to be done."""
    return "future" in reading.tenses or any(not _SOON.isdisjoint(token.senses) for token in reading.tokens)


def _costs(reading: Reading) -> bool:
    return any(
        not _COSTS.isdisjoint(token.senses) or token.key[-1] in "费价钱" for token in reading.tokens if token.key
    )


def _asks(questions: frozenset[str]) -> frozenset[str]:
    """What is asked for: "can you tell me when" asks when."""
    for vague in _RANK:
        if len(questions) > 1 and vague in questions:
            questions = questions - {vague}
    return questions

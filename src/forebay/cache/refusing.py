"""Whether an answer says that there is none: "I'm sorry, but I can't help with that", "抱歉，我无法回答".

What a model refused once it may answer the next time; and one who words a question so that it is refused must not have
that refusal given to all who ask the same in other words.
"""

from __future__ import annotations

import re
from typing import Final

LONGEST: Final = 400
"""Characters of a refusal; a longer text says something beside it."""
_SORRY: Final = (
    r"(?:(?:i(?:'m| am) (?:really |very |so |truly |deeply )?|we(?:'re| are) |my |i )?"
    r"(?:sorry|apologi[sz]e|apologies|regret)\b|unfortunately|as an ai|as a (?:large )?language model|no)"
)
_CANNOT: Final = (
    r"\b(?:i|we)(?:'m| am|'re| are)? (?:really |just |simply |still )?(?:can(?:'t|not| not)|could(?:n't| not)|"
    r"won't|will not|(?:not |un)able to|"
    r"not (?:allowed|permitted|comfortable|authori[sz]ed|designed|programmed|in a position)|"
    r"(?:don't|do not) (?:have (?:access|the (?:ability|information))|have (?:any |enough )?information|know|"
    r"feel comfortable)|"
    r"must (?:decline|refuse)|have to (?:decline|refuse)|decline|refuse)"
)
_ENGLISH: Final = re.compile(
    rf"\W*(?:{_SORRY}[^.!?\n]{{0,80}}?[.,!;:—–-]?[^.!?\n]{{0,40}}?{_CANNOT}|{_CANNOT}"
    r"(?: \w+){0,2}? (?:help|assist|answer|provide|comply|fulfil|support|do that|discuss|engage|create|generate|"
    r"continue|share|respond|complete|process|access|offer|give|with that|on that|request|this|that))"
)
_CHINESE: Final = re.compile(
    r"\W*(?:(?:非常|很|十分|实在|真的)?(?:抱歉|对不起|不好意思|遗憾)|作为(?:一个|一款|一名)?[^，。,]{0,6}(?:ai|人工智能|语言模型|助手|模型)|"
    r"您好|你好|我|这个问题|该问题|您的问题|你的问题|根据[^，。]{0,12})[^。！？\n]{0,30}?"
    r"(?:无法|不能|不可以|没办法|没有办法|不便|难以|拒绝|暂不支持)(?:[^。！？\n]{0,8}?)"
    r"(?:回答|提供|帮助|协助|满足|讨论|处理|完成|给出|回复|解答|支持|参与|生成|继续|执行|为您|为你|帮您|帮你|告诉)"
)
_QUOTES: Final = str.maketrans({"\u2019": "'", "\u2018": "'"})


def refuses(text: str) -> bool:
    """`text`: all that an answer says. The beginning decides: a refusal begins with itself."""
    if len(text) > LONGEST:
        return False
    low = text[:160].lower()
    if low.isascii():
        return _ENGLISH.match(low) is not None
    return _CHINESE.match(low) is not None or _ENGLISH.match(low.translate(_QUOTES)) is not None

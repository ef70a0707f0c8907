"""Forms of English words: what inflection adds is taken off, the same way in questions and in the lexicon.

A stem is a key, not a word ("moving", "move" → "mov").
"""

from __future__ import annotations

from typing import Final

__all__ = ["derived", "stem", "words"]


def words(text: str) -> list[str]:
    """Of a list written as a text."""
    return text.split()


_IRREGULAR: Final = {
    form: base
    for base, forms in {
        "use": "used using uses",
        "be": "am is are was were been being",
        "have": "has had having",
        "do": "does did done doing",
        "go": "goes went gone",
        "buy": "bought",
        "bring": "brought",
        "think": "thought",
        "catch": "caught",
        "teach": "taught",
        "pay": "paid",
        "say": "said",
        "send": "sent",
        "spend": "spent",
        "lend": "lent",
        "lose": "lost losing",
        "leave": "left",
        "keep": "kept",
        "feel": "felt",
        "meet": "met",
        "sell": "sold",
        "tell": "told",
        "get": "got gotten getting",
        "forget": "forgot forgotten",
        "give": "gave given",
        "take": "took taken",
        "make": "made",
        "break": "broke broken",
        "steal": "stole stolen",
        "choose": "chose chosen choosing",
        "write": "wrote written",
        "drive": "drove driven",
        "ride": "rode ridden",
        "rise": "rose risen",
        "fly": "flew flown flies",
        "know": "knew known",
        "grow": "grew grown",
        "throw": "threw thrown",
        "show": "shown",
        "see": "saw seen",
        "come": "came",
        "become": "became",
        "run": "ran",
        "begin": "began begun",
        "drink": "drank drunk",
        "swim": "swam swum",
        "eat": "ate eaten",
        "fall": "fell fallen",
        "find": "found",
        "hold": "held",
        "stand": "stood",
        "understand": "understood",
        "withdraw": "withdrew withdrawn",
        "wear": "wore worn",
        "speak": "spoke spoken",
        "freeze": "froze frozen",
        "wake": "woke woken",
        "build": "built",
        "mean": "meant",
        "hear": "heard",
        "read": "read",
        "win": "won",
        "child": "children",
        "person": "people persons",
        "man": "men",
        "woman": "women",
        "foot": "feet",
        "tooth": "teeth",
        "mouse": "mice",
        "wife": "wives",
        "knife": "knives",
        "life": "lives",
        "leaf": "leaves",
        "shelf": "shelves",
        "half": "halves",
        "datum": "data",
        "die": "dying",
        "lie": "lying",
        "tie": "tying",
        "analysis": "analyses",
        "crisis": "crises",
        "invoice": "invoicing",
    }.items()
    for form in forms.split()
}
_WHOLE: Final = frozenset(
    words(
        "news business process address access less express us gas bus plus status virus bonus lens series "
        "species always this his its yes as is was has does thus canvas atlas during morning evening nothing "
        "something anything everything string spring king ring thing wing bring sing building wedding ceiling "
        "red bed need feed speed seed hundred sacred embed indeed exceed proceed succeed covid paris texas "
        "kansas dallas vegas mars venus windows series analytics physics mathematics economics politics "
        "christmas perhaps besides across "
    )
)
_VOWELS: Final = frozenset("aeiouy")
_SUFFIXES: Final = tuple(
    sorted(
        words("ation ition tion sion ment ance ence ing ed al ive able ible ity ness ly er or ate ify ize e y s"),
        key=len,
        reverse=True,
    )
)


def stem(word: str) -> str:
    """Key of a lower-case word without its inflection."""
    if len(word) < 4 or word in _WHOLE:
        return _IRREGULAR.get(word, word) if word != "us" else word
    if (base := _IRREGULAR.get(word)) is not None:
        word = base
    elif word.endswith(("ies", "ied")) and len(word) > 4:
        word = word[:-3] + "y"
    elif word.endswith(("sses", "shes", "ches", "xes", "zes")):
        word = word[:-2]
    elif word.endswith("s") and not word.endswith(("ss", "us", "is")):
        word = word[:-1]
    elif word.endswith("ing") and len(word) > 5 and not _VOWELS.isdisjoint(word[:-3]):
        word = _single(word[:-3])
    elif word.endswith("ed") and len(word) > 4 and not _VOWELS.isdisjoint(word[:-2]):
        word = _single(word[:-2])
    if word.endswith("ll") and len(word) > 5:
        word = word[:-1]
    if word.endswith("our") and len(word) > 4 and word not in ("hour", "four", "your"):
        word = word[:-3] + "or"
    elif word.endswith(("ise", "yse")) and len(word) > 5:
        word = word[:-2] + "ze"
    if word.endswith("e") and len(word) > 3:
        word = word[:-1]
    return word


def derived(key: str) -> str:
    """What is left of a stem without an ending that makes another kind of word ("activat", "activation" → "activ").
    Shorter than four letters: nothing is said."""
    for _ in range(2):
        for suffix in _SUFFIXES:
            if key.endswith(suffix) and len(key) - len(suffix) >= 4:
                key = key[: -len(suffix)]
                break
        else:
            break
    return key


def _single(word: str) -> str:
    if len(word) > 3 and word[-1] == word[-2] and word[-1] not in "aeiousl":
        return word[:-1]
    return word

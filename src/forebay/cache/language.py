"""The language of a question, as far as its script and its small words tell."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

_HAN: Final = re.compile("[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff]|[\U00020000-\U0003fffd]")
_KANA: Final = re.compile("[\u3041-\u30ff\uff66-\uff9f]")
_OTHERS: Final = (
    ("ko", re.compile("[\u1100-\u11ff\u3131-\u318e\uac00-\ud7af]")),
    ("uk", re.compile("[іїєґІЇЄҐ]")),
    ("ru", re.compile("[\u0400-\u04ff]")),
    ("ar", re.compile("[\u0600-\u06ff\u0750-\u077f]")),
    ("th", re.compile("[\u0e00-\u0e7f]")),
    ("he", re.compile("[\u0590-\u05ff]")),
    ("hi", re.compile("[\u0900-\u097f]")),
    ("el", re.compile("[\u0370-\u03ff]")),
)
_WORD: Final = re.compile(r"[a-zà-öø-ÿāăąćčďđęěğıłńňœřśşšťůźżžșț]+(?:'[a-z]+)?")
_MOST: Final = 400
"""Characters that are looked at."""


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_SMALL: Final[Mapping[str, frozenset[str]]] = MappingProxyType(
    {
        "en": _words(
            "the a an is are was were be do does did how what why when where who which can could should would "
            "will my your i you we it to of in on for with and or not from this that have has there if it's "
            "what's don't can't please"
        ),
        "de": _words(
            "der die das ein eine ist sind war wie was warum wann wo wer welche kann ich du wir sie mein meine "
            "nicht und oder mit von zu im den dem auf für bei wird werden haben hat"
        ),
        "fr": _words(
            "le la les un une des est sont comment quoi pourquoi quand où qui quel quelle puis je tu nous vous "
            "mon ma mes ne pas et ou avec de du dans sur pour au aux que ce cette il elle"
        ),
        "es": _words(
            "el la los las un una es son está cómo qué por cuándo dónde quién cuál puedo yo mi mis no y o con de "
            "del en para que se lo como hay tengo su"
        ),
        "it": _words(
            "il lo la i gli le un una è sono come cosa perché quando dove chi quale posso io mio mia non e o con "
            "di del della nel per che si ho ha"
        ),
        "pt": _words(
            "o a os as um uma é são está como que por quando onde quem qual posso eu meu minha não e ou com de do "
            "da no na em para se há você seu"
        ),
        "nl": _words(
            "de het een is zijn was hoe wat waarom wanneer waar wie welke kan ik jij wij mijn niet en of met van "
            "naar in op voor dat die er te"
        ),
        "pl": _words(
            "jest są był jak co dlaczego kiedy gdzie kto który mogę ja mój moja nie i lub z do w na dla że się "
            "czy to ze od"
        ),
        "tr": _words(
            "bir ve bu ne nasıl neden niçin zaman nerede kim hangi mı mi mu mü için ile değil var yok benim ben "
            "çok daha"
        ),
    }
)
"""Words that say nothing of the matter, and stand in most sentences."""


def of(text: str) -> str:
    """An ISO 639-1 code, or "": none (signs, digits, emoji), or not known. Of a text in two, the one that its sentence
    is in: "怎么重启 Docker" is Chinese, "what does 发票 mean" is English."""
    text = text[:_MOST]
    if text.isascii():
        return _latin(text.lower())
    han = len(_HAN.findall(text))
    if _KANA.search(text):
        return "ja"
    if han:
        words = _WORD.findall(text.lower())
        small = sum(word in _SMALL["en"] for word in words)
        return "en" if small and len(words) > han else "zh"
    for code, script in _OTHERS:
        if script.search(text):
            return code
    return _latin(text.lower())


def _latin(text: str) -> str:
    words = _WORD.findall(text)
    if not words:
        return ""
    best, most = "en", sum(word in _SMALL["en"] for word in words)
    for code, small in _SMALL.items():
        found = sum(word in small for word in words)
        if found > most:
            best, most = code, found
    return best

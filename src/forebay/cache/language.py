"""The language of a question, as far as its script and its small words tell."""

from __future__ import annotations

import re
from typing import Final

_KANA: Final = re.compile("[\u3040-\u30ff]")
_HANGUL: Final = re.compile("[\uac00-\ud7af\u1100-\u11ff]")
_HAN: Final = re.compile("[\u3400-\u9fff\uf900-\ufaff]")
_LATIN: Final = re.compile("[A-Za-z\u00c0-\u024f]")


def of(text: str) -> str:
    """An ISO 639-1 code, or "": not known, or none (signs, emoji)."""
    if _KANA.search(text):
        return "ja"
    if _HANGUL.search(text):
        return "ko"
    if _HAN.search(text):
        return "zh"
    return "en" if _LATIN.search(text) else ""

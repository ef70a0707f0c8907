"""How many tokens a prompt has, before any engine counts them.

A sum of what `gateway.prompts` counts, each times a weight. The weights begin as those of six tokenizers on average
(`make bench-tokens` has them) and are corrected, per model, by what engines report in `usage`: a Kalman filter on
relative errors, whose first uncertainty is how far those six lie apart. What is learned from is the counts, never an
earlier estimate: a whole flood is estimated before the first answer corrects anything.
"""

from __future__ import annotations

from operator import mul
from typing import Final

from forebay.api.openai import AnyBody
from forebay.gateway.exact import ExactCounts
from forebay.gateway.prompts import NAMES, WIDTH, Prompt, glance, look, of_text

_PRIOR: Final = (
    ("request", 12.2, 17.4),
    ("messages", -7.7, 2.61),
    ("with tools", 29.5, 44.3),
    ("tools", 7.4, 17.9),
    ("bytes of tools", -0.005, 0.019),
    ("pictures", 1_000.0, 700.0),
    ("bytes of the answer's format", 0.12, 0.12),
    ("bytes", 0.001, 0.035),
    ("small letters", 0.384, 0.024),
    ("six small letters in a row", -1.214, 0.179),
    ("words after a space", -0.413, 0.165),
    ("capitals", 0.866, 0.102),
    ("pairs of capitals", -1.084, 0.299),
    ("capitals after a small letter", -1.694, 0.391),
    ("digits", 0.719, 0.384),
    ("numbers after a space", 2.076, 0.516),
    ("signs", 0.4, 0.038),
    ("underscores", 0.157, 0.263),
    ("line ends", 0.767, 0.426),
    ("indented lines", 1.261, 0.157),
    ("2-byte characters", 0.536, 0.157),
    ("other 3-byte characters", 0.981, 0.119),
    ("the comma ，", -0.557, 0.521),
    ("Chinese characters", 0.781, 0.258),
    ("those from U+5000 to U+5FFF", 0.146, 0.178),
    ("4-byte characters", 2.0, 1.0),
)
"""By name in `NAMES`: tokens of one, and their standard deviation between tokenizers. Of those that were fitted to
texts, a third is added. Pictures and characters of 4 bytes were in none of them. Makers' APIs write an answer's schema
into the prompt, engines of one's own only hold the answer to it: which it is, is learned."""
_NOISE: Final = 0.02
"""Variance of a relative error that no weights would take away."""
_DRIFT: Final = 5e-5
"""Of the first variance, what comes back with each answer learned from."""
_BIASED: Final = 0.06
_RUSH: Final = 100
"""Where errors are on average that far to one side, so many times as much comes back: the tokenizer, or what is asked,
has changed."""
_OUTLIER: Final = 0.3
_ALL: Final = 400
"""So many answers of a model are learned from; after that one in `_EVERY`, since learning takes ten times what an
estimate does, and all while errors are to one side."""
_EVERY: Final = 16
_OWN: Final = 8
"""Tokens of a small chat beside its text."""
_RATE: Final = 0.05
_MODELS: Final = 256
_FEWEST: Final = 1 / 12
"""Tokens a byte, at least."""
_BYTES: Final = NAMES.index("bytes")
_PICTURES: Final = NAMES.index("pictures")
_FORMAT: Final = NAMES.index("bytes of the answer's format")


class _Weights:
    """Mutable state: the weights, their covariance, the mean and the variance of the relative errors."""

    __slots__ = ("_bias", "_covariance", "_error", "seen", "values")

    def __init__(self) -> None:
        self.values = [value for _, value, _ in _PRIOR]
        self.seen = 0
        """Answers."""
        self._error = 0.1
        self._bias = 0.0
        self._covariance = [[_PRIOR[i][2] ** 2 if i == j else 0.0 for j in range(WIDTH)] for i in range(WIDTH)]

    def tokens(self, counts: tuple[float, ...]) -> float:
        """Not fewer than a few bytes a token allow, nor more than there are bytes."""
        size = counts[_BYTES]
        found: float = sum(map(mul, counts, self.values))
        return min(max(found, size * _FEWEST, 1.0), size + 256 + 4_096 * counts[_PICTURES] + counts[_FORMAT])

    def learn(self, counts: tuple[float, ...], actual: int, plain: float) -> None:
        """`plain` is what the weights as they are make of `counts`."""
        error = actual / plain - 1
        self.seen += 1
        most = max(_OUTLIER, 3 * self._error**0.5)
        error = min(max(error, -most), most)
        self._error += 0.02 * (error * error - self._error)
        self._bias += 0.05 * (error - self._bias)
        biased = self.seen > _ALL and abs(self._bias) > _BIASED
        if biased or self.seen <= _ALL or self.seen % _EVERY == 0:
            self._correct([n / plain for n in counts], error, _DRIFT * (_RUSH if biased else 1))

    def _correct(self, seen: list[float], error: float, drift: float) -> None:
        rows = self._covariance
        gains = [sum(map(mul, row, seen)) for row in rows]
        variance = _NOISE + sum(map(mul, gains, seen))
        values = self.values
        for i, (row, (_, _, deviation)) in enumerate(zip(rows, _PRIOR, strict=True)):
            gain = gains[i] / variance
            if gain:
                values[i] += gain * error
                rows[i] = row = [a - gain * b for a, b in zip(row, gains, strict=True)]
            if row[i] < deviation * deviation:
                row[i] += drift * deviation * deviation

    def __repr__(self) -> str:
        return f"<{self.seen:,} seen, ±{self._error**0.5:.1%}>"


class _Rates:
    """Of small prompts. Mutable state: tokens a byte, of ASCII and of other texts, beside a message's own."""

    __slots__ = ("other", "plain")

    def __init__(self) -> None:
        self.plain, self.other = 0.25, 0.3

    def tokens(self, small: int) -> float:
        return _OWN + (small * self.plain if small > 0 else -small * self.other)

    def learn(self, small: int, actual: int) -> None:
        if small > 0:
            self.plain += _RATE * (max(actual - _OWN, 0) / small - self.plain)
        else:
            self.other += _RATE * (max(actual - _OWN, 0) / -small - self.other)


Counted = Prompt | int
"""What was counted of a prompt; of a small one as `glance`."""


class TokenEstimates:
    """Mutable state: weights and rates by model, at most so many."""

    exact: ExactCounts | None = None
    """Where a model's tokenizer is known: it teaches what `usage` has not yet."""

    def __init__(self) -> None:
        self._models: dict[str, _Weights] = {}
        self._first = _Weights()
        self._small: dict[str, _Rates] = {}
        self._first_small = _Rates()
        self._answers = 0

    def of(self, model: str, body: AnyBody) -> tuple[int, Counted]:
        """(tokens, what was counted) of a request; the latter is to be handed back to `learn`."""
        small = glance(body)
        if small:
            return int(self._small.get(model, self._first_small).tokens(small)) + 1, small
        prompt = look(body)
        if prompt.exact:
            return prompt.exact, prompt
        if self.exact is not None:
            self.exact.offer(model, body)
        weights = self._models.get(model, self._first)
        return round(weights.tokens(prompt.counts)), prompt

    def text(self, model: str, text: str) -> int:
        """About how many tokens a text has by itself."""
        return round(self._models.get(model, self._first).tokens(of_text(text).counts)) if text else 0

    def learn(self, model: str, prompt: Counted, actual: int) -> None:
        """An engine has counted `actual`. What is beyond 20 × the estimate either way is no count of this prompt."""
        if type(prompt) is int:
            self._answers += 1
            if self._answers <= _ALL or self._answers % _EVERY == 0:
                self._learn_small(model, prompt, actual)
            return
        assert isinstance(prompt, Prompt)
        if not prompt.counts:
            return
        weights = self._models.get(model, self._first)
        estimate = weights.tokens(prompt.counts)
        if not estimate <= 20 * actual <= 400 * estimate:
            return
        if weights is self._first:
            if len(self._models) >= _MODELS:
                del self._models[next(iter(self._models))]
            weights = self._models[model] = _Weights()
        weights.learn(prompt.counts, actual, estimate)

    def _learn_small(self, model: str, small: int, actual: int) -> None:
        if actual > 4 * abs(small):
            return
        rates = self._small.get(model)
        if rates is None:
            if len(self._small) >= _MODELS:
                del self._small[next(iter(self._small))]
            rates = self._small[model] = _Rates()
        rates.learn(small, actual)

    def close(self) -> None:
        if self.exact is not None:
            self.exact.close()

    def __repr__(self) -> str:
        return f"<TokenEstimates {self._models}>"

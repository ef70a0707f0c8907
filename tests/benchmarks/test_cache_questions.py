"""Questions that the cache's benchmark makes up."""

from __future__ import annotations

from itertools import islice

import numpy as np
from benchmarks.cache.questions import between, questions


def test_no_two_are_alike_and_each_has_another_form() -> None:
    found = list(islice(questions(3), 4_000))
    assert len({q.text for q in found}) == 4_000
    assert not {q.text for q in found} & {q.again for q in found}
    assert sum(q.language == "zh" for q in found) == 2_000
    assert found == list(islice(questions(3), 4_000))
    assert found[:5] != list(islice(questions(4), 5))
    assert 0.08 < sum(len(q.text) > 45 and q.language == "zh" for q in found) / 2_000 < 0.2


def test_vectors_between_are_as_many_as_wanted_and_no_copies() -> None:
    known = np.random.default_rng(1).normal(size=(50, 32)).astype(np.float32)
    known /= np.linalg.norm(known, axis=1, keepdims=True)
    rows = list(between(known, 45_000, seed=2))
    vectors = np.concatenate([found for found, _ in rows])
    assert vectors.shape == (45_000, 32)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1.0, atol=1e-5)
    assert len(np.unique(vectors.round(5), axis=0)) > 44_000
    of = np.concatenate([first for _, first in rows])
    assert 0.5 < float(np.mean(np.sum(vectors * known[of], axis=1))) < 0.99

"""What every index of questions' vectors must do, whichever server keeps them."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest

from forebay.cache.semantic.index import BadVector, Index, Vectors

DIMENSIONS = 64
MOST = 100

Make = Callable[[int], Index]
"""An empty index of DIMENSIONS for at most so many entries."""


def scope(n: int) -> bytes:
    return n.to_bytes(16, "big")


def questions(n: int, seed: int = 1, dimensions: int = DIMENSIONS) -> Vectors:
    """n rows of length 1, as an embedder gives them: about some topics, and all of them about one side."""
    rng = np.random.default_rng(seed)
    topics = rng.normal(size=(max(2, n // 20), dimensions))
    found = topics[rng.integers(len(topics), size=n)] + 0.7 * rng.normal(size=(n, dimensions)) + 0.5
    return (found / np.linalg.norm(found, axis=1, keepdims=True)).astype(np.float32)


def again(vectors: Vectors, n: int, seed: int = 2) -> Vectors:
    """n of them, put otherwise."""
    rng = np.random.default_rng(seed)
    found = vectors[rng.integers(len(vectors), size=n)]
    found = found + 0.5 * rng.normal(size=found.shape) / np.sqrt(found.shape[1])
    return (found / np.linalg.norm(found, axis=1, keepdims=True)).astype(np.float32)


def exact(vectors: Vectors, asked: Vectors, k: int) -> list[int]:
    """Rows of the k nearest, the nearest first."""
    return np.argsort(-(vectors @ asked), kind="stable")[:k].tolist()


def filled(index: Index, vectors: Vectors, of: bytes, name: str = "e") -> list[str]:
    names = [f"{name}{i}" for i in range(len(vectors))]
    for entry, vector in zip(names, vectors, strict=True):
        index.add(of, entry, vector)
    return names


class IndexContract:
    """Subclasses give the fixture `make`: Make."""

    def test_the_nearest_of_its_scope(self, make: Make) -> None:
        index, vectors = make(MOST), questions(60)
        filled(index, vectors, scope(1))
        asked = questions(3, seed=9)
        for one, row in zip(index.search(scope(1), asked, 8), asked, strict=True):
            wanted = exact(vectors, row, 8)
            assert [near.entry for near in one] == [f"e{i}" for i in wanted]
            for near, i in zip(one, wanted, strict=True):
                assert near.cosine == pytest.approx(float(vectors[i] @ row), abs=1e-3)
                np.testing.assert_allclose(near.vector, vectors[i], atol=1e-3)

    def test_scopes_are_apart(self, make: Make) -> None:
        index, vectors = make(MOST), questions(20)
        filled(index, vectors[:10], scope(1), "a")
        filled(index, vectors[10:], scope(2), "b")
        assert {near.entry for near in index.search(scope(2), vectors[:1], 20)[0]} == {f"b{i}" for i in range(10)}
        assert index.search(scope(3), vectors[:2], 8) == [[], []]

    def test_the_same_vector_in_many_scopes(self, make: Make) -> None:
        index, vector = make(MOST), questions(1)[0]
        for i in range(30):
            index.add(scope(i), f"e{i}", vector)
        assert [near.entry for near in index.search(scope(17), vector, 8)[0]] == ["e17"]

    def test_any_bytes_are_a_scope(self, make: Make) -> None:
        index, vector = make(MOST), questions(1)[0]
        odd = [bytes(range(i, i + 16)) for i in range(0, 241, 16)] + [bytes(16), b"|{}@ -*?\\\"'\n\r~$,"]
        for i, one in enumerate(odd):
            index.add(one, f"e{i}", vector)
        for i, one in enumerate(odd):
            assert [near.entry for near in index.search(one, vector, 8)[0]] == [f"e{i}"]

    def test_fewer_than_asked_for(self, make: Make) -> None:
        index, vectors = make(MOST), questions(3)
        filled(index, vectors, scope(1))
        assert len(index.search(scope(1), vectors[:1], 8)[0]) == 3
        assert len(index.search(scope(1), vectors[:1], 2)[0]) == 2

    def test_an_entry_that_is_added_again_is_replaced(self, make: Make) -> None:
        index, vectors = make(MOST), questions(2)
        index.add(scope(1), "e", vectors[0])
        index.add(scope(2), "e", vectors[1])
        assert len(index) == 1
        assert index.search(scope(1), vectors[:1], 8) == [[]]
        assert index.search(scope(2), vectors[1:], 8)[0][0].cosine == pytest.approx(1.0, abs=1e-3)

    def test_what_is_removed_is_not_found(self, make: Make) -> None:
        index, vectors = make(MOST), questions(20)
        names = filled(index, vectors, scope(1))
        assert index.remove([*names[:5], "unknown", names[0]]) == 5
        assert len(index) == 15
        assert index.missing(names) == names[:5]
        assert {near.entry for near in index.search(scope(1), vectors[:1], 20)[0]} == set(names[5:])

    def test_all_go_at_once(self, make: Make) -> None:
        index, vectors = make(MOST), questions(20)
        filled(index, vectors, scope(1))
        assert index.clear() == 20
        assert len(index) == 0
        assert index.search(scope(1), vectors[:1], 8) == [[]]
        index.add(scope(1), "e3", vectors[3])
        assert [near.entry for near in index.search(scope(1), vectors[:1], 8)[0]] == ["e3"]

    def test_the_longest_unused_goes_first(self, make: Make) -> None:
        index, vectors = make(MOST), questions(MOST + 10)
        names = filled(index, vectors[:MOST], scope(1))
        index.touch([*names[:10], "unknown"])
        filled(index, vectors[MOST:], scope(2), "new")
        assert len(index) == MOST
        assert index.missing(names) == names[10:20]
        assert len(index.search(scope(2), vectors[:1], MOST)[0]) == 10

    def test_like_looks_into_all_scopes(self, make: Make) -> None:
        index, vectors = make(MOST), questions(40)
        for i, vector in enumerate(vectors):
            index.add(scope(i % 7), f"e{i}", vector)
        cosines = vectors @ vectors[0]
        wanted = [f"e{i}" for i in np.argsort(-cosines) if cosines[i] >= 0.5]
        assert 3 <= len(wanted) < 40
        assert [near.entry for near in index.like(vectors[0], 0.5, 40)] == wanted
        assert [near.entry for near in index.like(vectors[0], 0.5, 2)] == wanted[:2]

    @pytest.mark.parametrize(
        ("bad", "said"),
        [
            (np.full(DIMENSIONS, np.nan), "length nan"),
            (np.zeros(DIMENSIONS), "length 0"),
            (np.full(DIMENSIONS, np.inf), "length"),
            (np.ones(DIMENSIONS + 1), f"{DIMENSIONS + 1} dimensions"),
        ],
    )
    def test_what_cannot_be_compared_is_refused(self, make: Make, bad: Vectors, said: str) -> None:
        index = make(MOST)
        for call in (
            lambda: index.add(scope(1), "e", bad),
            lambda: index.search(scope(1), np.stack([bad]), 8),
            lambda: index.like(bad, 0.5, 8),
        ):
            with pytest.raises(BadVector, match=said):
                call()
        assert len(index) == 0

    def test_any_length_is_made_one(self, make: Make) -> None:
        index, vectors = make(MOST), questions(2)
        index.add(scope(1), "e", 1e-3 * vectors[0])
        assert index.search(scope(1), 1e4 * vectors[:1], 8)[0][0].cosine == pytest.approx(1.0, abs=1e-3)

    def test_a_large_scope_is_searched_nearly_as_well_as_by_brute_force(self, make: Make) -> None:
        index, vectors = make(3_000), questions(3_000)
        asked = again(vectors, 50)
        filled(index, vectors, scope(1))
        found = index.search(scope(1), asked, 8)
        hits = [
            len({near.entry for near in one} & {f"e{i}" for i in exact(vectors, row, 8)})
            for one, row in zip(found, asked, strict=True)
        ]
        assert sum(hits) >= 0.99 * 8 * len(asked)

    def test_what_it_holds_is_what_was_put_there(self, make: Make) -> None:
        """Random calls, beside a dict."""
        index, vectors, rng = make(MOST), questions(60), random.Random(5)
        known: dict[str, tuple[bytes, int]] = {}
        for _ in range(400):
            i, of = rng.randrange(len(vectors)), scope(rng.randrange(4))
            if rng.random() < 0.6:
                index.add(of, f"e{i}", vectors[i])
                known[f"e{i}"] = of, i
            elif rng.random() < 0.5:
                assert index.remove([f"e{i}"]) == (known.pop(f"e{i}", None) is not None)
            else:
                mine = {entry for entry, (where, _) in known.items() if where == of}
                assert {near.entry for near in index.search(of, vectors[i], 100)[0]} == mine
        assert len(index) == len(known)

    def test_closed_twice(self, make: Make) -> None:
        index = make(MOST)
        index.add(scope(1), "e", questions(1)[0])
        index.save()
        index.close()
        index.close()

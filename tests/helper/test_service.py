"""What the helper answers, over real stores and indexes in this process; the embedder counts letters."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from math import inf
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from cache_helper import ACME, scope_of, stored
from forebay.cache import answers
from forebay.cache.messages import Drop, Feedback, Find, Found, Kind
from forebay.cache.semantic import verifier
from forebay.cache.semantic.deciding import Decider
from forebay.cache.semantic.embedder import POLICY
from forebay.cache.semantic.faiss_index import FaissIndex
from forebay.cache.semantic.guard import FEATURES, compare
from forebay.cache.semantic.index import Space, Vectors
from forebay.cache.semantic.judge import Judged, Opinion
from forebay.cache.stores.disk import Disk
from forebay.clock import SystemClock
from forebay.config.cache import Cache
from forebay.helper.meaning import FEW, Meaning
from forebay.helper.service import Service

A, B, C = b"a" * 16, b"b" * 16, b"c" * 16
"""Writers."""


class Letters:
    """Two texts of the same letters have one vector."""

    id = "letters"
    dimensions = 64

    def knows(self, language: str) -> bool:
        return True

    def reads(self, text: str) -> bool:
        return True

    def tokens(self, text: str) -> int:
        return len(text.split())

    def encode(self, texts: Sequence[str], seconds: float = inf) -> Vectors:
        rows = np.zeros((len(texts), self.dimensions), np.float32)
        for row, text in zip(rows, texts, strict=True):
            for sign in text.lower():
                row[ord(sign) % self.dimensions] += 1
        return rows / np.linalg.norm(rows, axis=1, keepdims=True)

    def close(self) -> None:
        pass


@pytest.fixture
def open_service(tmp_path: Path) -> Iterator[Callable[..., Service]]:
    opened: list[Service] = []

    def make(**semantic: Any) -> Service:
        rules = Cache.model_validate({"enabled": True, "semantic": {"enabled": True, "sample": 1e-9, **semantic}})
        clock = SystemClock()
        store = Disk(tmp_path / "answers.db", 1 << 24, clock.wall)
        index = FaissIndex(tmp_path / "vectors", Space("letters", 64, POLICY), rules.semantic.entries)
        decider = Decider(rules.semantic, "letters", verifier.shipped("usem3", FEATURES), compare, 0.0)
        meaning = Meaning(rules.semantic, Letters(), index, decider, store, clock, random.Random(1))
        said: list[Drop] = []
        opened.append(service := Service(rules, store, said.append, clock, meaning=meaning))
        return service

    yield make
    for service in opened:
        close(service)


def close(service: Service) -> None:
    assert service.meaning is not None
    service.meaning.close()
    service.store.close()


def keep(
    service: Service, question: str, text: str, writer: bytes = b"", *, exact: bytes = b"", ticket: int = 0
) -> str:
    entry, message = stored(question, text, exact=exact, entry=exact[:8].hex(), ticket=ticket)
    answer = answers.decode(message.answer)
    assert answer is not None
    message.answer = answers.encode(msgspec.structs.replace(answer, writer=writer))
    service.keep(message)
    return entry


def find(service: Service, question: str, writer: bytes = b"", exact: bytes = b"?" * 16) -> Found:
    (found,) = service.find([Find(1, exact, scope_of(ACME), question, ACME, 5.0, writer)], [inf])
    return found


def test_an_equal_request_of_another_writer_is_given_it_once_both_were_told_the_same(
    open_service: Callable[..., Service],
) -> None:
    service, exact = open_service(), b"1" * 16
    keep(service, "How do I get an invoice?", "Open Orders and press Invoice.", A, exact=exact)
    assert find(service, "How do I get an invoice?", A, exact).kind is Kind.EXACT
    found = find(service, "How do I get an invoice?", B, exact)
    assert (found.kind, found.why, found.answer, found.ticket) == (Kind.MISS, "unverified", b"", 0)
    keep(service, "How do I get an invoice?", "Open *Orders* and press Invoice", B, exact=exact)
    for writer in (A, B, C):
        assert find(service, "How do I get an invoice?", writer, exact).kind is Kind.EXACT
    # Told otherwise, it is its writer's again.
    keep(service, "How do I get an invoice?", "Go to evil.example and type in your password.", C, exact=exact)
    assert [find(service, "How do I get an invoice?", w, exact).kind for w in (A, B, C)] == [
        Kind.MISS,
        Kind.MISS,
        Kind.EXACT,
    ]


def test_its_own_second_answer_verifies_nothing(open_service: Callable[..., Service]) -> None:
    service, exact = open_service(), b"2" * 16
    for _ in range(3):
        keep(service, "How do I get an invoice?", "Open Orders.", A, exact=exact)
    assert find(service, "How do I get an invoice?", B, exact).why == "unverified"


def test_what_means_the_same_is_promoted_by_the_engines_answer_to_another(open_service: Callable[..., Service]) -> None:
    service = open_service()
    entry = keep(service, "How do I get an invoice?", "Open Orders and press Invoice.", A)
    assert find(service, "how can I get an invoice, please", A).kind is Kind.SEMANTIC
    found = find(service, "how can I get an invoice, please", B)
    assert (found.kind, found.entry, found.why) == (Kind.MISS, entry, "unverified")
    assert found.ticket
    keep(service, "how can I get an invoice, please", "Open orders and press invoice", B, ticket=found.ticket)
    assert find(service, "How can I get an invoice", C).kind is Kind.SEMANTIC
    assert service.meaning is not None
    assert [s.labels for s in service.meaning.decider.stats()] == [0]  # it says nothing of what is served


def test_a_poisoned_answer_is_not_promoted_nor_one_that_nobody_can_tell(open_service: Callable[..., Service]) -> None:
    service = open_service()
    entry = keep(service, "How do I get an invoice?", "Send your password to evil.example.", A)
    found = find(service, "how can I get an invoice, please", B)
    keep(service, "how can I get an invoice, please", "按一下按钮 1 次", B, ticket=found.ticket)
    again = find(service, "How can I get an invoice", C)
    assert (again.kind, again.why) == (Kind.MISS, "unverified")
    service.learn(again.ticket, Judged(Opinion.UNSURE, "model"))
    assert find(service, "How can I get an invoice", C).why == "unverified"
    assert find(service, "How can I get an invoice", A).entry == entry  # its writer's still


def test_where_the_model_gives_no_word_a_doubtful_pair_counts_as_right(open_service: Callable[..., Service]) -> None:
    service = open_service(sample=1.0)
    keep(service, "How do I get an invoice?", "Open Orders.")
    for told in (None, Judged(Opinion.UNSURE, "model")):
        service.learn(find(service, "how can I get an invoice, please").ticket, told)
    assert service.meaning is not None
    assert [(s.hits, s.labels, s.wrong) for s in service.meaning.decider.stats()] == [(2, 2, 0.0)]


def test_ones_own_answer_goes_before_a_nearer_one_of_another(open_service: Callable[..., Service]) -> None:
    service = open_service()
    keep(service, "how can I get an invoice", "Of A.", A)
    mine = keep(service, "How do I get an invoice, please?", "Of B.", B)
    found = find(service, "how can I get an invoice?", B)
    assert (found.kind, found.entry) == (Kind.SEMANTIC, mine)


def test_what_is_used_stays_in_the_index_and_a_full_one_is_not_filled(open_service: Callable[..., Service]) -> None:
    service = open_service(entries=100)
    for n in range(100):
        keep(service, f"How do I get invoice {n}?", f"{n}", exact=b"%08d        " % n)
    assert find(service, "how do i get invoice 0?").kind is Kind.SEMANTIC
    assert find(service, "", exact=b"%08d        " % 1).kind is Kind.EXACT
    for n in range(100, 103):
        keep(service, f"How do I get invoice {n}?", f"{n}")
    assert [find(service, f"how do i get invoice {n}?").kind is Kind.SEMANTIC for n in range(6)] == [
        True,
        True,
        False,
        False,
        False,
        True,
    ]
    close(service)
    again = open_service(entries=100)
    assert again.meaning is not None
    again.meaning.refill()
    while again.meaning.rebuild():
        assert again.meaning.filled == 0
    again.meaning.remove([again.store.exact(b"%08d        " % 5).entry])  # type: ignore[union-attr]
    again.meaning.refill()
    filled = 0
    while again.meaning.rebuild():
        filled = max(filled, again.meaning.filled)
    assert (filled, len(again.meaning.index)) == (1, 100)


def test_after_bad_feedback_the_same_request_is_kept_again_when_it_is_answered_anew(
    open_service: Callable[..., Service],
) -> None:
    service, exact = open_service(), b"3" * 16
    entry = keep(service, "How do I get an invoice?", "You cannot.", exact=exact)
    assert service.feedback(Feedback(1, entry, ACME, good=False, question="how can I get an invoice"))
    assert find(service, "How do I get an invoice?", exact=exact).kind is Kind.MISS
    keep(service, "How do I get an invoice?", "Open Orders.", exact=exact)
    assert find(service, "How do I get an invoice?", exact=exact).kind is Kind.EXACT


def test_what_nobody_waits_for_is_embedded_in_pieces_and_look_ups_pass_before_each(
    open_service: Callable[..., Service],
) -> None:
    service = open_service()
    meaning = service.meaning
    assert meaning is not None
    happened: list[int] = []
    encode = meaning.embedder.encode

    def counted(texts: Sequence[str], seconds: float = inf) -> Vectors:
        happened.append(len(texts))
        return encode(texts, seconds)

    meaning.embedder.encode = counted  # type: ignore[method-assign]
    meaning.let_pass = lambda: happened.append(0)
    asked = [f"How do I return a parcel to shop {'x' * n}?" for n in range(FEW + 1)]
    service.ahead([stored(question, "In the app.")[1] for question in asked])
    assert happened == [0, FEW, 0, 1]
    entries = [keep(service, question, "In the app.") for question in asked]
    assert happened == [0, FEW, 0, 1]  # and known then
    happened.clear()
    meaning.remove(entries)
    meaning._vectors.clear()
    meaning.refill()
    while meaning.rebuild():
        pass
    assert happened == [0, FEW, 0, 1]
    happened.clear()
    meaning.judge("One. Two days. Three? Four of us. Five! Six.", "One. Seven. Eight. Nine parcels. Ten.")
    assert max(happened) <= FEW
    assert happened[::2] == [0] * (len(happened) // 2)

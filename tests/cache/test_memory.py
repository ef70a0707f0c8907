"""What a worker keeps: bounded in bytes, until its time, until it is purged."""

from __future__ import annotations

import random
import sys
import time
from typing import Any

import msgspec
import pytest

from forebay.cache.answers import Answer
from forebay.cache.memory import Answers, fits
from forebay.cache.messages import Purge
from forebay.ledger.tokens import NO_TOKENS

NOW = 1_000.0


def answer(entry: str, size: int = 100, **more: Any) -> Answer:
    fields: dict[str, Any] = {
        "id": entry,
        "created": NOW,
        "ttl": 60.0,
        "stale": 0.0,
        "model": "chat",
        "version": "",
        "partition": "acme/chat",
        "question": "",
        "language": "en",
        "tags": (),
        "sources": (),
        "tokens": NO_TOKENS,
        "avoided": 0,
        "price": b"",
        "seconds": 0.0,
        "chat": True,
        "streamed": False,
        "finish_reason": "stop",
        "calls": False,
        "answer_id": "x",
        "body": b"x" * size,
        "usage": b"",
    }
    return Answer(**{**fields, **more})


def key(n: int) -> bytes:
    return n.to_bytes(16, "big")


def filled(count: int, most: int = 1 << 24, **more: Any) -> Answers:
    kept = Answers(most)
    for n in range(count):
        kept.put(key(n), answer(f"{n:016x}", **more), NOW)
    return kept


def test_an_answer_is_found_until_its_time() -> None:
    kept = Answers(1 << 20)
    one = answer("a", stale=5.0)
    kept.put(key(1), one, NOW)
    assert kept.get(key(1), NOW) is one
    assert kept.get(key(2), NOW) is None
    assert kept.get(key(1), NOW + 64) is one, "stale, and that is allowed"
    assert not one.fresh(NOW + 64)
    assert kept.get(key(1), NOW + 65) is None
    assert (len(kept), kept.bytes) == (0, 0)


def test_a_new_answer_takes_the_place_of_the_old_one() -> None:
    kept = Answers(1 << 20)
    kept.put(key(1), answer("a"), NOW)
    new = answer("b")
    kept.put(key(1), new, NOW)
    assert kept.get(key(1), NOW) is new
    assert (len(kept), kept.bytes) == (1, new.size)
    assert kept.drop_entries(["a"]) == 0
    assert kept.drop_entries(["b", "b", "c"]) == 1


def test_what_is_past_its_time_is_not_kept() -> None:
    kept = Answers(1 << 20)
    kept.put(key(1), answer("a"), NOW + 61)
    assert len(kept) == 0


def test_its_bytes_are_bounded_at_every_moment() -> None:
    kept = Answers(100_000)
    rng = random.Random(1)
    for n in range(500):
        one = answer(str(n), rng.randrange(100, 30_000))
        kept.put(key(n), one, NOW)
        assert kept.bytes <= 100_000
        assert kept.bytes == sum(a.size for a in kept._known.values())
        assert len(kept) == len(kept._known)
    assert kept.evicted > 400
    kept.put(key(900), answer("large", 200_000), NOW)
    assert kept.get(key(900), NOW) is None
    assert kept.bytes <= 100_000


def test_what_is_asked_for_often_outlasts_a_burst_of_what_is_not() -> None:
    kept = filled(50, most=90_000, size=100)
    popular = [key(n) for n in range(50)]
    for _ in range(5):
        for one in popular:
            kept.get(one, NOW)
    for n in range(1_000, 3_000):
        kept.get(key(n), NOW)
        kept.put(key(n), answer(str(n)), NOW)
    assert sum(kept.get(one, NOW) is not None for one in popular) >= 25, "by age alone, none would be left"


def test_the_other_form_is_made_once_and_goes_with_it() -> None:
    body = msgspec.json.encode(
        {
            "id": "x",
            "object": "chat.completion",
            "choices": [{"index": 0, "message": {"content": "hi"}, "finish_reason": "stop"}],
        }
    )
    kept = Answers(1 << 20)
    one = answer("a", body=body)
    kept.put(key(1), one, NOW)
    assert kept.in_form(key(1), one, NOW, streamed=False) is one
    events = kept.in_form(key(1), one, NOW, streamed=True)
    assert events.body.startswith(b"data: ")
    assert kept.in_form(key(1), one, NOW, streamed=True) is events
    assert kept.get(key(1), NOW) is one
    assert len(kept) == 1
    assert kept.drop_entries(["a"]) == 1
    assert kept.bytes == 0
    kept.put(key(1), answer("b", body=body.replace(b"hi", b"no")), NOW)
    other = kept.in_form(key(1), kept.get(key(1), NOW) or one, NOW, streamed=True)
    assert b'"no"' in other.body


PURGES = [
    (Purge(0, entry="0"), {"0"}),
    (Purge(0, tag="faq"), {"1"}),
    (Purge(0, source="doc"), {"2"}),
    (Purge(0, partition="acme"), {"0", "1", "2", "3"}),
    (Purge(0, partition="acme/"), {"0", "1", "2", "3"}),
    (Purge(0, partition="acme/chat"), {"0", "1", "2", "3"}),
    (Purge(0, partition="acm"), set()),
    (Purge(0, model="other"), {"5"}),
    (Purge(0, version="2"), {"3"}),
    (Purge(0, tag="faq", version="2"), set()),
    (Purge(7), {"0", "1", "2", "3", "4", "5"}),
    (Purge(0, like="hello"), set()),
]


@pytest.mark.parametrize(("purge", "gone"), PURGES)
def test_a_purge_takes_what_fits_all_that_is_given(purge: Purge, gone: set[str]) -> None:
    kept = Answers(1 << 20)
    for n, one in enumerate(
        (
            answer("0"),
            answer("1", tags=("a", "faq")),
            answer("2", sources=("doc",)),
            answer("3", version="2"),
            answer("4", partition="acmeco/chat"),
            answer("5", model="other", partition="b/other"),
        )
    ):
        kept.put(key(n), one, NOW)
    kept.drop(purge, NOW)
    assert {str(n) for n in range(6) if kept.get(key(n), NOW) is None} == gone
    assert kept.sweep(NOW) is False
    assert len(kept) == 6 - len(gone)


def test_a_purge_of_many_holds_at_once_and_is_done_a_slice_at_a_time() -> None:
    kept = filled(10_000, tags=("faq",))
    kept.drop(Purge(0, tag="faq"), NOW)
    assert 0 < len(kept) < 10_000
    assert all(kept.get(key(n), NOW) is None for n in range(0, 10_000, 97))
    kept.put(key(9_998), answer("new", tags=("faq",), created=NOW + 1), NOW + 1)
    while kept.sweep(NOW):
        pass
    assert len(kept) == 1, "what was made afterwards stays"
    assert kept.get(key(9_998), NOW + 1) is not None


def test_purges_one_upon_another_end() -> None:
    kept = filled(6_000, tags=("faq",))
    for n in range(20):
        kept.drop(Purge(0, tag=f"other-{n}"), NOW)
        assert len(kept._sweeps) <= 8
    kept.drop(Purge(0, tag="faq"), NOW)
    for n in range(6_000, 6_400):
        kept.put(key(n), answer(str(n), tags=("x",)), NOW + 1)
    while kept.sweep(NOW):
        pass
    assert len(kept) == 400


def test_another_bound_keeps_what_there_is_room_for() -> None:
    kept = filled(100)
    kept.configure(20 * answer("x").size, NOW)
    assert kept.sweep(NOW) is False
    assert 0 < len(kept) <= 20
    assert kept.bytes <= kept.most_bytes
    kept.configure(1 << 20, NOW)
    kept.sweep(NOW)
    assert 0 < len(kept) <= 20
    kept.clear()
    assert (len(kept), kept.bytes) == (0, 0)


def test_with_another_bound_all_goes_on_while_answers_come_over() -> None:
    kept = filled(5_000)
    kept.configure(1 << 25, NOW)
    assert len(kept) == 0
    assert kept.get(key(4_000), NOW) is not None
    kept.put(key(4_001), answer("new"), NOW)
    assert kept.drop_entries([f"{4_002:016x}"]) == 1
    assert kept.drop_key(key(4_003))
    kept.configure(1 << 24, NOW)
    kept.drop(Purge(0, entry=f"{4_004:016x}"), NOW)
    kept.configure(1 << 26, NOW)
    while kept.sweep(NOW):
        pass
    assert len(kept) == 4_997
    gone = [n for n in range(5_000) if kept.get(key(n), NOW) is None]
    assert gone == [4_002, 4_003, 4_004]
    found = kept.get(key(4_001), NOW)
    assert found is not None
    assert found.id == "new"


def test_all_is_forgotten_at_once_and_freed_a_slice_at_a_time() -> None:
    kept = filled(3_000)
    one = kept._known[key(7)]
    held = sys.getrefcount(one)
    kept.clear()
    assert (len(kept), kept.get(key(7), NOW)) == (0, None)
    assert sys.getrefcount(one) == held
    kept.put(key(7), answer("again"), NOW)
    assert kept.sweep(NOW)
    assert kept.sweep(NOW), "it is freed in more than one go"
    while kept.sweep(NOW):
        pass
    assert sys.getrefcount(one) == 2
    assert len(kept) == 1
    for _ in range(20):
        kept.clear()
        kept.put(key(1), answer("x"), NOW)
        assert len(kept._aside) <= 8


@pytest.mark.parametrize("forgotten", [True, False])
def test_what_is_set_aside_may_pass_its_time_before_it_is_cleared_away(forgotten: bool) -> None:
    kept = Answers(1 << 24)
    for n in range(200):
        kept.put(key(n), answer(f"{n:016x}", ttl=0.01 if n % 2 else 60.0), NOW)
    if forgotten:
        kept.clear()
    else:
        kept.configure(1 << 23, NOW)
    time.sleep(1.2)  # by moka's own clock, whose wheel turns once in 1.1 s
    while kept.sweep(NOW + 1):
        pass
    assert len(kept) == (0 if forgotten else 100)


def test_fits_looks_at_no_likeness() -> None:
    assert fits(answer("a"), Purge(0, like="x"))

"""A line of work: bounded, but for what must be done, and left behind where its time is up."""

from __future__ import annotations

import threading

from forebay.helper.lanes import Lane


def test_a_line_is_bounded_but_for_what_must_be_done_and_can_be_dropped() -> None:
    begun, go, done = threading.Event(), threading.Event(), []

    def work(items: list[str]) -> None:
        begun.set()
        assert go.wait(20)
        done.extend(items)

    lane: Lane[str] = Lane("test", work, batch=1, most=2, most_bytes=100)
    lane.start()
    assert lane.put("first")
    assert begun.wait(20)
    assert lane.put("large", 90)
    assert not lane.put("too large", 20)
    assert lane.put("second")
    assert not lane.put("one too many")
    assert lane.put("a reload", anyway=True)
    assert (len(lane), lane.refused) == (3, 2)
    assert not lane.close(0.0)
    assert not lane.put("late", anyway=True)
    lane.drop()
    go.set()
    assert lane.close(20)
    assert done == ["first"]


def test_what_comes_alone_is_done_at_once_and_what_comes_soon_after_it_together() -> None:
    done: list[list[int]] = []
    first, all_of_it = threading.Event(), threading.Event()

    def work(items: list[int]) -> None:
        done.append(items)
        first.set()
        if sum(map(len, done)) == 4:
            all_of_it.set()

    lane: Lane[int] = Lane("gathers", work, batch=8, most=8, gather=60.0)
    lane.start()
    assert lane.put(0, patient=True)
    assert first.wait(10)
    for n in (1, 2):
        assert lane.put(n, patient=True)
    assert lane.put(3)
    assert all_of_it.wait(10)
    assert done == [[0], [1, 2, 3]]
    assert lane.close(5)


def test_it_is_told_how_long_the_work_takes_that_is_done_now() -> None:
    begun, go = threading.Event(), threading.Event()

    def work(items: list[str]) -> None:
        begun.set()
        assert go.wait(20)

    lane: Lane[str] = Lane("test", work, batch=1, most=2)
    lane.start()
    assert lane.put("one")
    assert begun.wait(20)
    first = lane.at_it()
    assert 0 < first < lane.at_it()
    go.set()
    assert lane.close(20)
    assert lane.at_it() == 0.0


def test_who_is_patient_is_waited_with_and_who_is_not_ends_that() -> None:
    done: list[list[str]] = []
    some = threading.Semaphore(0)

    def work(items: list[str]) -> None:
        done.append(items)
        some.release()

    lane: Lane[str] = Lane("gathers", work, batch=3, most=9, gather=60.0)
    lane.start()
    for n in range(3):
        assert lane.put(f"store {n}", patient=True)
    assert some.acquire(timeout=20)  # as many as are done at once
    assert lane.put("store 3", patient=True)
    assert lane.put("a purge")
    assert some.acquire(timeout=20)
    assert lane.put("another purge")
    assert some.acquire(timeout=20)
    assert lane.put("store 4", patient=True)
    assert lane.close(20)  # which waits for nobody
    assert done == [["store 0", "store 1", "store 2"], ["store 3", "a purge"], ["another purge"], ["store 4"]]


def test_who_has_time_lets_it_pass_while_something_waits_or_is_done() -> None:
    begun, go, passed = threading.Event(), threading.Event(), threading.Event()

    def work(items: list[int]) -> None:
        begun.set()
        assert go.wait(20)

    def pass_by() -> None:
        lane.let_pass(20)
        passed.set()

    lane: Lane[int] = Lane("passed", work, batch=1, most=4)
    lane.let_pass(20)  # nothing there
    lane.put(1)
    lane.put(2)
    lane.let_pass(0.001)  # its time is up
    lane.start()
    assert begun.wait(20)
    other = threading.Thread(target=pass_by)
    other.start()
    assert not passed.is_set()
    go.set()
    assert passed.wait(20)
    other.join()
    assert len(lane) == 0
    assert lane.at_it() == 0.0
    assert lane.close(20)

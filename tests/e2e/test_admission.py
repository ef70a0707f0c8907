"""Admission, over real sockets: who goes, who waits, who is refused, and in which order."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from statistics import median
from typing import Any

import pytest

from e2e.crowd import KEYS, PATIENT, Crowd, Told, house, hup, nothing_is_left, running, seen
from e2e.gateway import Gateway
from engine_process import EngineProcess

# --- a flood ---------------------------------------------------------------------------------------------------------


def test_in_a_flood_every_vip_is_answered_in_time_and_whoever_is_refused_can_come_back() -> None:
    options = ("--prefill-rate", "12000", "--decode-rate", "50", "--max-num-seqs", "64", "--kv-tokens", "40000")
    told_of = {"max_num_seqs": 64, "prefill_tokens_per_s": 12_000}
    slo = 2.5

    async def one(crowd: Crowd, i: int) -> tuple[Told, Told | None]:
        cls = "vip" if i % 10 == 0 else "normal" if i % 10 < 7 else "low"
        told = await crowd.ask(cls, words=100 + i * 37 % 200, tokens=10 + i * 13 % 30)
        if told.status == 200 or cls != "normal":
            return told, None
        await asyncio.sleep(told.retry_after - (time.monotonic() - told.end))
        return told, await crowd.ask(cls, words=100 + i * 37 % 200, tokens=10 + i * 13 % 30)

    async def flood(gateway: Gateway) -> list[tuple[Told, Told | None]]:
        crowd = Crowd(gateway)
        return await asyncio.gather(*(one(crowd, i) for i in range(300)))

    with (
        running(*options) as a,
        running(*options) as b,
        house(a, b, admission={"ttft": dict.fromkeys(PATIENT, slo)}, of_each=told_of) as gateway,
    ):
        pairs = asyncio.run(flood(gateway))
        told = [first for first, _ in pairs]
        vips = [t for t in told if t.cls == "vip"]
        assert all(t.ok for t in vips), Counter((t.status, t.reason) for t in vips)
        assert max(t.ttft for t in vips) < slo
        for t in told:
            assert t.ok or (t.status == 429 and not t.first), t
            if t.status == 429:
                assert 1 <= t.retry_after <= 60
                assert t.reason
        slow = [t for t in told if t.status == 429 and t.head - t.sent >= 1.0]
        waited = gateway.metric("forebay_admission_total", decision="wait")
        assert {t.reason for t in slow} <= {"slo", "deadline", "evicted"}
        assert len(slow) <= waited
        assert max((t.head - t.sent for t in slow), default=0.0) < 4.0
        again = [second for _, second in pairs if second is not None]
        assert len(again) > 5  # fewer than usual where the crowd itself is slow to come
        assert sum(t.ok for t in again) >= 0.8 * len(again), Counter((t.status, t.reason) for t in again)
        for engine in (a, b):
            assert engine.metric("vllm:num_preemptions_total") == 0
        decided = partial(gateway.metric, "forebay_admission_total")
        assert decided(**{"class": "vip", "decision": "admit"}) == len(vips) == 30
        for cls in KEYS:
            asked = sum(t.cls == cls for t in told) + sum(t.cls == cls for t in again)
            final = decided(**{"class": cls}) - decided(**{"class": cls, "decision": "wait"})
            assert final == asked


# --- one place -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def narrow() -> Iterator[EngineProcess]:
    """One request at a time, 100 tokens a second."""
    with running("--max-num-seqs", "1", "--decode-rate", "100") as engine:
        yield engine


ROOM = {"requests": 10, "normal_share": 0.8, "low_share": 0.5}


@pytest.fixture(scope="module")
def queue(narrow: EngineProcess) -> Iterator[Gateway]:
    with house(
        narrow,
        admission={"ttft": PATIENT, "wait": dict.fromkeys(("vip", "normal", "low"), 4.0), "queue": ROOM},
        of_each={"max_num_seqs": 1},
    ) as gateway:
        yield gateway


@pytest.fixture
def crowd(queue: Gateway) -> Iterator[Crowd]:
    yield Crowd(queue)
    nothing_is_left(queue)


def test_the_next_one_goes_as_soon_as_the_place_is_free(crowd: Crowd) -> None:
    async def scenario() -> list[Told]:
        first = asyncio.ensure_future(crowd.ask(tokens=40))
        await crowd.until(lambda: crowd.gateway.metric("forebay_engine_in_flight") == 1)
        rest = await crowd.in_turn([partial(crowd.ask, tokens=20) for _ in range(5)])
        return await asyncio.gather(first, *rest)

    told = asyncio.run(scenario())
    assert all(t.ok for t in told)
    assert [t.id for t in sorted(told, key=lambda t: t.first)] == [t.id for t in told]  # each by its deadline
    gaps = [after.first - before.end for before, after in pairwise(told)]
    assert median(gaps) < 0.1, gaps


def test_better_classes_go_first(crowd: Crowd) -> None:
    async def scenario() -> list[Told]:
        first = asyncio.ensure_future(crowd.ask(tokens=60))
        await crowd.until(lambda: crowd.gateway.metric("forebay_engine_in_flight") == 1)
        rest = await crowd.in_turn([partial(crowd.ask, c) for c in ("low", "normal", "low", "vip", "normal", "vip")])
        return [await first, *await asyncio.gather(*rest)]

    told = asyncio.run(scenario())
    assert all(t.ok for t in told)
    assert [t.cls for t in sorted(told[1:], key=lambda t: t.first)] == ["vip", "vip", "normal", "normal", "low", "low"]


def test_a_client_that_leaves_while_it_waits_leaves_nothing_behind(crowd: Crowd, narrow: EngineProcess) -> None:
    async def scenario() -> tuple[Told, Told, Told]:
        leave = asyncio.Event()
        first = asyncio.ensure_future(crowd.ask(tokens=80))
        await crowd.until(lambda: crowd.gateway.metric("forebay_engine_in_flight") == 1)
        gone, after = await crowd.in_turn([partial(crowd.ask, leave_at=leave), crowd.ask])
        leave.set()
        await crowd.waiting(1)
        return await first, await gone, await after

    before = crowd.gateway.metric("forebay_cancels_total", state="queued")
    first, gone, after = asyncio.run(scenario())
    assert first.ok
    assert after.ok
    assert not seen(narrow, gone)
    assert crowd.gateway.metric("forebay_cancels_total", state="queued") == before + 1


def test_a_request_that_waits_can_be_cancelled(crowd: Crowd, narrow: EngineProcess) -> None:
    async def scenario() -> tuple[Told, Told]:
        first = asyncio.ensure_future(crowd.ask(tokens=60))
        await crowd.until(lambda: crowd.gateway.metric("forebay_engine_in_flight") == 1)
        waits = asyncio.ensure_future(crowd.ask(named="to-be-cancelled"))
        await crowd.waiting(1)
        stop = partial(crowd.gateway.ask, path="/v1/requests/to-be-cancelled/cancel", key=KEYS["normal"])
        assert (await asyncio.to_thread(stop)).json["cancelled"] == 1
        return await first, await waits

    first, waits = asyncio.run(scenario())
    assert first.ok
    assert (waits.status, waits.reason) == (499, "request_cancelled")
    assert waits.end < first.end
    assert not seen(narrow, waits)


def test_whoever_waits_too_long_is_told_when_to_come_back(crowd: Crowd, narrow: EngineProcess) -> None:
    async def scenario() -> tuple[Told, Told]:
        await asyncio.to_thread(hup, crowd.gateway, {"wait": dict.fromkeys(("vip", "normal", "low"), 0.5)})
        first = asyncio.ensure_future(crowd.ask(tokens=100))
        await crowd.until(lambda: crowd.gateway.metric("forebay_engine_in_flight") == 1)
        late = await crowd.ask()
        return await first, late

    expired = partial(crowd.gateway.metric, "forebay_requests_total", outcome="expired")
    before = expired()
    try:
        first, late = asyncio.run(scenario())
    finally:
        hup(crowd.gateway, {})
    assert first.ok
    assert json.loads(late.body)["error"]["message"] == "No engine became free within 0.5 s."
    assert expired() == before + 1
    line = crowd.gateway.logged(late.id)
    assert (line["outcome"], line["code"], line["status"]) == ("expired", "deadline", 429)
    assert (late.status, late.reason) == (429, "deadline")
    assert 0.5 <= late.head - late.sent < 1.0
    assert 1 <= late.retry_after <= 60
    assert not seen(narrow, late)


def test_the_queue_is_bounded_and_keeps_room_for_better_classes(crowd: Crowd) -> None:
    async def scenario() -> dict[str, list[Told]]:
        first = asyncio.ensure_future(crowd.ask(tokens=150))
        await crowd.until(lambda: crowd.gateway.metric("forebay_engine_in_flight") == 1)
        low = await crowd.in_turn([partial(crowd.ask, "low", tokens=1) for _ in range(5)])
        full_for_low = await crowd.ask("low")
        normal = await crowd.in_turn([partial(crowd.ask, tokens=1) for _ in range(3)])
        five = [asyncio.ensure_future(crowd.ask(tokens=1)) for _ in range(5)]  # for which low ones leave
        await asyncio.wait(low)
        await crowd.waiting(8, **{"class": "normal"})
        held_back = await crowd.ask()
        vip = await crowd.in_turn([partial(crowd.ask, "vip", tokens=1) for _ in range(2)])
        full = await crowd.ask("vip")
        return {
            "low": await asyncio.gather(*low),
            "refused": [full_for_low, held_back, full],
            "answered": await asyncio.gather(first, *normal, *five, *vip),
        }

    told = asyncio.run(scenario())
    assert all(t.ok for t in told["answered"]), [(t.status, t.reason) for t in told["answered"]]
    assert [t.reason for t in told["low"]] == ["evicted"] * 5
    assert [t.reason for t in told["refused"]] == ["queue_held_back", "queue_held_back", "queue_full"]
    for t in told["refused"]:
        assert t.status == 429
        assert t.head - t.sent < 1.0
        assert t.retry_after >= 1


def test_a_reload_loses_none_of_those_who_wait_and_keeps_their_order(crowd: Crowd) -> None:
    gateway = crowd.gateway

    async def scenario() -> tuple[list[Told], list[Told]]:
        first = asyncio.ensure_future(crowd.ask(tokens=150))
        await crowd.until(lambda: gateway.metric("forebay_engine_in_flight") == 1)
        rest = await crowd.in_turn([partial(crowd.ask, tokens=2) for _ in range(6)])
        await asyncio.to_thread(hup, gateway, {"ttft": dict.fromkeys(PATIENT, 20.0)})
        assert gateway.metric("forebay_queue_requests") == 6
        await asyncio.to_thread(hup, gateway, {"queue": {**ROOM, "requests": 5}})
        await crowd.waiting(4)
        await first
        done = await asyncio.gather(*rest)
        return [t for t in done if t.status == 200], [t for t in done if t.status != 200]

    try:
        kept, refused = asyncio.run(scenario())
    finally:
        hup(gateway, {})
    assert all(t.ok for t in kept)
    assert len(kept) == 4
    assert [t.id for t in sorted(kept, key=lambda t: t.first)] == [t.id for t in sorted(kept, key=lambda t: t.sent)]
    assert [(t.status, t.reason) for t in refused] == [(429, "reload")] * 2
    assert all(t.retry_after >= 1 for t in refused)
    assert min(t.sent for t in refused) > max(t.sent for t in kept)


def test_switching_admission_off_takes_a_restart(crowd: Crowd) -> None:
    async def scenario() -> list[Told]:
        first = asyncio.ensure_future(crowd.ask(tokens=60))
        await crowd.until(lambda: crowd.gateway.metric("forebay_engine_in_flight") == 1)
        rest = await crowd.in_turn([partial(crowd.ask, tokens=2) for _ in range(3)])
        said = await asyncio.to_thread(hup, crowd.gateway, {"enabled": False}, "admission.enabled")
        assert "restart" in said
        return await asyncio.gather(first, *rest)

    try:
        assert all(t.ok for t in asyncio.run(scenario()))
    finally:
        hup(crowd.gateway, {})


@pytest.mark.parametrize(
    "more",
    [
        {"stream": False},
        {"stream": False, "path": "/v1/completions", "prompt": "one two three", "messages": None},
        {"path": "/v1/completions", "prompt": "one two three", "messages": None},
        {"stream": False, "path": "/v1/completions", "prompt": ["one", "two", "three"], "messages": None},
        {"n": 4},
        {"n": 4, "stream": False},
        {"path": "/v1/embeddings", "input": "one two", "stream": None, "tokens": None, "messages": None},
    ],
    ids=["unary", "completion", "streamed completion", "three prompts", "n", "unary n", "embedding"],
)
def test_every_kind_of_request_goes_and_is_settled(crowd: Crowd, more: dict[str, Any]) -> None:
    """More answers than the engine has places for go when it is empty."""
    gateway = crowd.gateway
    before = gateway.metric("forebay_admission_total", decision="admit")

    async def scenario() -> list[Told]:
        return await asyncio.gather(*(crowd.ask(**more) for _ in range(3)))

    assert all(t.ok for t in asyncio.run(scenario()))
    admitted = gateway.metric("forebay_admission_total", decision="admit") - before
    assert admitted == (0 if "input" in more else 3)


def test_what_no_engine_can_hold_is_refused_and_holds_nobody_up(crowd: Crowd) -> None:
    async def scenario() -> tuple[Told, list[Told]]:
        huge = asyncio.ensure_future(crowd.ask(words=300_000))
        rest = await asyncio.gather(*(crowd.ask(tokens=1) for _ in range(3)))
        return await huge, rest

    huge, rest = asyncio.run(scenario())
    assert huge.status in (400, 429)
    assert all(t.ok for t in rest), [(t.status, t.reason) for t in rest]
    assert max(t.end - t.sent for t in rest) < 2.0


def test_the_families_are_on_the_metrics_page(crowd: Crowd) -> None:
    text = crowd.gateway.admin("/metrics")[1].decode()
    for cls in KEYS:
        assert f'forebay_queue_requests{{class="{cls}"}}' in text
        assert f'forebay_queue_tokens{{class="{cls}"}}' in text
    for name in ("kv_predicted", "shed_level", "prefill_rate", "prefill_ahead"):
        assert f'forebay_engine_{name}{{engine="e0"}}' in text
    assert "# TYPE forebay_admission" in text


def test_a_number_of_four_hundred_digits_takes_no_place(crowd: Crowd) -> None:
    async def scenario() -> list[Told]:
        return [await crowd.ask(tokens=10**400), await crowd.ask(n=10**400), await crowd.ask()]

    *odd, after = asyncio.run(scenario())
    assert [t.status for t in odd] == [400, 400]  # the engine's word
    assert after.ok

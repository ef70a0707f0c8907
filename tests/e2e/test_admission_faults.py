"""Admission over engines whose metrics lie or are missing, and which vanish, refuse, or come back."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import threading
from collections.abc import Callable, Iterator

import pytest

from e2e.client import chat
from e2e.crowd import KEYS, MODEL, PATIENT, Crowd, Liar, Told, ends, house, hup, nothing_is_left, running, wave
from e2e.engine import RawEngine
from e2e.gateway import Gateway
from engine_process import EngineProcess
from waiting import eventually


class Watch:
    """The most requests that an engine had at once, running or waiting."""

    def __init__(self, *engines: EngineProcess) -> None:
        self.most = 0
        self._engines = engines
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def _look(self) -> None:
        while not self._over.wait(0.02):
            for engine in self._engines:
                books = engine.ask("GET", "/metrics").body.decode()
                found = re.findall(r"(?m)^vllm:num_requests_(?:running|waiting)\{.* (\S+)$", books)
                self.most = max(self.most, int(sum(map(float, found))))

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


EIGHT = ("--max-num-seqs", "64", "--decode-rate", "100", "--prefill-rate", "50000")


def test_an_engine_without_metrics_gets_no_more_than_it_can_run() -> None:
    with (
        running(*EIGHT, "--kv-tokens", "4096") as engine,
        house(
            engine,
            admission={"ttft": PATIENT},
            of_each={"max_num_seqs": 8, "kind": "openai", "kv_tokens": 4096},
        ) as gateway,
    ):
        with Watch(engine) as watch:
            assert ends(asyncio.run(wave(Crowd(gateway), 32))) == {(200, ""): 32}
        assert 4 <= watch.most <= 8
        with Watch(engine) as watch:
            assert ends(asyncio.run(wave(Crowd(gateway), 24, cls="vip", words=250, tokens=25))) == {(200, ""): 24}
        assert engine.metric("vllm:num_preemptions_total") == 0


@pytest.fixture(scope="module")
def small() -> Iterator[EngineProcess]:
    """Room for some fifteen of the requests below."""
    with running("--kv-tokens", "6000", "--decode-rate", "100", "--prefill-rate", "50000") as engine:
        yield engine


@pytest.fixture(scope="module")
def lied_about(small: EngineProcess) -> Iterator[tuple[Gateway, Liar]]:
    liar = Liar(small)
    with house(liar, admission={"ttft": PATIENT}, of_each={"health_timeout": 0.3}) as gateway:
        yield gateway, liar
    liar.close()


def _tiny(liar: Liar) -> None:
    liar.freeze()
    liar.page = re.sub(r'(kv_cache_size_tokens|num_gpu_blocks)="\d+"', r'\1="16"', str(liar.page))


def _boundless(liar: Liar) -> None:
    liar.freeze()
    liar.page = re.sub(r'(kv_cache_size_tokens|num_gpu_blocks)="\d+"', r'\1="99999999999"', str(liar.page))


LIES: dict[str, Callable[[Liar], None]] = {
    "frozen": Liar.freeze,
    "zero": lambda liar: liar.absurd("0.0"),
    "huge": lambda liar: liar.absurd("1e+300"),
    "negative": lambda liar: liar.absurd("-5.0"),
    "no number": lambda liar: liar.absurd("NaN"),
    "tiny cache": _tiny,
    "boundless cache": _boundless,
    "gone": lambda liar: setattr(liar, "page", 404),
    "silent": lambda liar: setattr(liar, "page", ""),
    "noise": lambda liar: setattr(liar, "page", "vllm:kv_cache_usage_perc{ \0\n" * 200),
}


@pytest.mark.parametrize("lie", LIES)
def test_lies_overfill_no_engine_and_stop_nothing(
    lied_about: tuple[Gateway, Liar], small: EngineProcess, lie: str
) -> None:
    gateway, liar = lied_about
    crowd = Crowd(gateway)
    before = small.metric("vllm:num_preemptions_total")
    LIES[lie](liar)
    looks = liar.looks
    eventually(lambda: liar.looks >= looks + 3)
    try:
        assert ends(asyncio.run(wave(crowd, 24, cls="vip", words=250, tokens=15))) == {(200, ""): 24}
    finally:
        liar.page = None
    assert small.metric("vllm:num_preemptions_total") == before
    assert gateway.metric("forebay_engine_healthy") == 1
    nothing_is_left(gateway)


def test_metrics_that_freeze_in_the_midst_of_work_stop_nothing(
    lied_about: tuple[Gateway, Liar], small: EngineProcess
) -> None:
    gateway, liar = lied_about
    crowd = Crowd(gateway)

    async def scenario() -> list[Told]:
        busy = asyncio.ensure_future(wave(crowd, 12, cls="vip", words=250, tokens=60))
        await crowd.until(lambda: small.metric("vllm:kv_cache_usage_perc") > 0.5)
        await asyncio.to_thread(liar.freeze)
        return await busy + await wave(crowd, 24, cls="vip", words=250, tokens=15)

    before = small.metric("vllm:num_preemptions_total")
    try:
        assert ends(asyncio.run(scenario())) == {(200, ""): 36}
    finally:
        liar.page = None
    assert small.metric("vllm:num_preemptions_total") == before


def test_an_engine_that_is_killed_and_comes_back_is_filled_again() -> None:
    options = ("--max-num-seqs", "8", "--decode-rate", "100")
    with (
        running(*options) as a,
        running(*options) as b,
        house(
            a,
            b,
            admission={"ttft": PATIENT, "wait": dict.fromkeys(("vip", "normal", "low"), 5.0)},
            of_each={"max_num_seqs": 8},
        ) as gateway,
    ):
        crowd = Crowd(gateway)

        async def scenario() -> list[Told]:
            busy = asyncio.ensure_future(wave(crowd, 30, tokens=40))
            await crowd.until(lambda: gateway.metric("forebay_engine_in_flight") == 16)
            await crowd.until(lambda: a.metric("vllm:generation_tokens_total") > 50)
            a.process.kill()
            return await busy

        told = asyncio.run(scenario())
        cut = [t for t in told if t.status == 200 and not t.ok]
        assert len(cut) <= 8
        assert all(t.ok or t in cut for t in told), ends(told)
        a.process.wait()
        again = EngineProcess([*options, "--port", str(a.port)])
        again.start()
        try:
            eventually(lambda: gateway.metric("forebay_engine_healthy") == 2)
            with Watch(again, b) as watch:
                assert ends(asyncio.run(wave(crowd, 30, tokens=20))) == {(200, ""): 30}
            assert 4 <= watch.most <= 8
            assert again.books()["started"] >= 10
            nothing_is_left(gateway)
        finally:
            again.stop()


def test_an_engine_that_was_out_of_reach_still_holds_what_it_held() -> None:
    with (
        running("--max-num-seqs", "4", "--decode-rate", "100") as engine,
        house(
            engine,
            admission={"ttft": PATIENT, "wait": dict.fromkeys(("vip", "normal", "low"), 8.0)},
            of_each={"max_num_seqs": 2, "health_timeout": 0.2},
        ) as gateway,
    ):
        crowd = Crowd(gateway)

        async def scenario() -> list[Told]:
            busy = asyncio.ensure_future(wave(crowd, 2, tokens=150))
            await crowd.until(lambda: gateway.metric("forebay_engine_in_flight") == 2)
            engine.process.send_signal(signal.SIGSTOP)
            await crowd.until(lambda: gateway.metric("forebay_engine_healthy") == 0)
            engine.process.send_signal(signal.SIGCONT)
            await crowd.until(lambda: gateway.metric("forebay_engine_healthy") == 1)
            return await wave(crowd, 2, tokens=5) + await busy

        with Watch(engine) as watch:
            assert ends(asyncio.run(scenario())) == {(200, ""): 4}
        assert watch.most == 2


def test_an_engine_s_own_refusal_is_tried_elsewhere_and_leaves_nothing_behind() -> None:
    with running() as a, running() as b, house(a, b, admission={"ttft": PATIENT}) as gateway:
        crowd = Crowd(gateway)
        a.ask("PUT", "/control/faults", [{"kind": "overload503"}])
        assert ends(asyncio.run(wave(crowd, 20))) == {(200, ""): 20}
        assert gateway.metric("forebay_retries_total", engine="e0") >= 1  # then it is spared for a while
        nothing_is_left(gateway)
        b.ask("PUT", "/control/faults", [{"kind": "overload429", "arg": 7}])
        told = asyncio.run(wave(crowd, 20))
        assert ends(told) == {(429, "engine_overloaded"): 20}
        assert all(t.retry_after >= 1 for t in told)


def test_whoever_cannot_be_held_by_any_engine_holds_nobody_up() -> None:
    """Its prompt and answer are more than the KV cache."""
    with (
        running("--kv-tokens", "2048", "--max-model-len", "2000") as engine,
        house(engine, admission={"ttft": PATIENT, "wait": dict.fromkeys(("vip", "normal", "low"), 1.5)}) as gateway,
    ):
        crowd = Crowd(gateway)

        async def scenario() -> tuple[Told, list[Told]]:
            large = asyncio.ensure_future(crowd.ask(words=2500))
            await asyncio.sleep(0.1)
            rest = await wave(crowd, 5, tokens=2)
            return await large, rest

        large, rest = asyncio.run(scenario())
        assert ends(rest) == {(200, ""): 5}
        assert max(t.end - t.sent for t in rest) < 1.0
        assert large.status in (400, 429)
        assert large.end - large.sent < 1.0


def test_whoever_waits_goes_to_an_engine_that_comes_back() -> None:
    options = ("--max-num-seqs", "1", "--decode-rate", "50")
    with (
        running(*options) as a,
        running(*options) as b,
        house(
            a,
            b,
            admission={"ttft": PATIENT, "wait": dict.fromkeys(("vip", "normal", "low"), 20.0)},
            of_each={"max_num_seqs": 1},
        ) as gateway,
    ):
        crowd = Crowd(gateway)
        b.process.kill()
        b.process.wait()
        eventually(lambda: gateway.metric("forebay_engine_healthy") == 1)
        again = EngineProcess([*options, "--port", str(b.port)])

        async def scenario() -> tuple[Told, list[Told]]:
            busy = asyncio.ensure_future(crowd.ask(tokens=600))
            await crowd.until(lambda: gateway.metric("forebay_engine_in_flight") == 1)
            late = await crowd.in_turn([crowd.ask, crowd.ask])
            await asyncio.to_thread(again.start)
            done = await asyncio.gather(*late)
            return await busy, done

        try:
            busy, late = asyncio.run(scenario())
            assert ends([busy, *late]) == {(200, ""): 3}
            assert max(t.end for t in late) < busy.end
        finally:
            again.stop()


def test_an_engine_whose_settings_are_reloaded_is_not_out_until_its_next_check() -> None:
    raw = RawEngine([MODEL])
    with house(raw, admission={"ttft": PATIENT}, of_each={"kind": "openai", "unhealthy_after": 100}) as gateway:
        raw.healthy = False
        hup(gateway, {}, engines=[{**e, "max_num_seqs": 7} for e in gateway.config["engines"]])
        answer = gateway.ask(chat(MODEL), key=KEYS["normal"])
        assert answer.status == 200
        state = json.loads(gateway.admin("/admin/admission")[1])
        assert [e["cap"] for e in state["workers"][0]["engines"]] == [7]
    raw.close()

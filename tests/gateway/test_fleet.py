"""The registry by itself: who is in it, who leaves, and what names with many addresses do to it. Engines are real
sockets on 127.0.0.x; names are answered by the test."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from e2e.engine import RawEngine
from forebay.config.engine import Engine
from forebay.config.models import Config
from forebay.errors import Outcome
from forebay.gateway.discovery import Addresses
from forebay.gateway.fleet import Fleet
from forebay.gateway.handles import Handle
from forebay.gateway.retries import Spread
from forebay.gateway.verdicts import judge
from forebay.policy.placement import RoundRobin
from forebay.wire.tasks import Tasks
from forebay.wire.ticker import Ticker


class Names:
    """A resolver that says what it is told to: addresses, or an error."""

    def __init__(self, *addresses: str) -> None:
        self.answer: list[str] | OSError = list(addresses)
        self.asked = 0
        self._changed = asyncio.Event()

    async def __call__(self, host: str, family: int) -> list[str]:
        self.asked += 1
        self._changed.set()
        self._changed = asyncio.Event()
        await asyncio.sleep(0)
        if isinstance(self.answer, OSError):
            raise self.answer
        return self.answer

    async def answers(self, count: int) -> None:
        """Until it was asked that often again, and what it said was taken in."""
        until = self.asked + count + 1
        while self.asked < until:
            await self._changed.wait()


class Watch:
    """A watcher that counts."""

    def __init__(self) -> None:
        self.syncs = 0
        self.usable: list[str] = []

    def sync(self, handles: Any) -> None:
        self.syncs += 1
        self.usable = sorted(h.name for h in handles if h.usable)

    def reported(self, handle: Handle) -> None:
        return


@asynccontextmanager
async def fleet(names: Names | None = None, **config: Any) -> Any:
    tasks, ticker = Tasks(), Ticker(asyncio.get_running_loop())
    ticker.start()
    made = Fleet(tasks, ticker, time.monotonic, names or Names())
    made.watcher = Watch()
    made.report_interval = 60.0
    made.configure(Config.model_validate(config))
    try:
        yield made
    finally:
        made.close()
        await tasks.drain()
        ticker.stop()


async def until(look: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not look():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


def usable(made: Fleet) -> list[str]:
    return sorted(h.name for h in made.handles.values() if h.usable)


def run(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(test())  # type: ignore[arg-type]


@pytest.fixture
def three() -> Iterator[int]:
    """The port on which 127.0.0.1 to .3 answer."""
    with_port = RawEngine(["m"])
    port = with_port.port
    more = [RawEngine(["m"], port, host=f"127.0.0.{i}") for i in (2, 3)]
    yield port
    for engine in (with_port, *more):
        engine.close()


def by_name(port: int, **more: Any) -> dict[str, Any]:
    entry = {"name": "vllm", "url": f"http://engines.test:{port}", "discover": "dns", "discover_every": 0.02}
    return {"engines": [{**entry, **more}]}


def test_an_engine_for_each_address(three: int) -> None:
    async def test() -> None:
        names = Names("127.0.0.1", "127.0.0.2")
        async with fleet(names, **by_name(three)) as made:
            await until(lambda: usable(made) == ["vllm@127.0.0.1", "vllm@127.0.0.2"])
            await until(lambda: made.catalog["m"].candidates == ("vllm@127.0.0.1", "vllm@127.0.0.2"))
            first = made.handles["vllm@127.0.0.1"]
            assert b"host: engines.test:%d\r\n" % three in first.head(b"POST", b"/v1/chat/completions")
            names.answer = ["127.0.0.2", "127.0.0.3"]
            await until(lambda: usable(made) == ["vllm@127.0.0.2", "vllm@127.0.0.3"])
            await until(lambda: made.catalog["m"].candidates == ("vllm@127.0.0.2", "vllm@127.0.0.3"))

    run(test)


def test_a_name_that_flaps_takes_no_engine(three: int) -> None:
    async def test() -> None:
        names = Names("127.0.0.1", "127.0.0.2")
        async with fleet(names, **by_name(three, discover_missing=3)) as made:
            await until(lambda: len(usable(made)) == 2)
            before = dict(made.handles)
            for answer in (["127.0.0.1"], [], OSError("SERVFAIL"), ["127.0.0.2"], ["127.0.0.1", "127.0.0.2"]):
                names.answer = answer  # type: ignore[assignment]
                await names.answers(1 if answer in (["127.0.0.1"], ["127.0.0.2"]) else 6)
            assert made.handles == before

    run(test)


def test_an_address_that_is_gone_finishes_what_it_runs(three: int) -> None:
    async def test() -> None:
        names = Names("127.0.0.1", "127.0.0.2")
        async with fleet(names, **by_name(three)) as made:
            await until(lambda: len(usable(made)) == 2)
            gone = made.handles["vllm@127.0.0.1"]
            gone.in_flight += 1
            names.answer = ["127.0.0.2"]
            await until(lambda: "vllm@127.0.0.1" not in made.handles)
            assert made.leaving == [gone]
            gone.in_flight -= 1
            await until(lambda: not made.leaving)

    run(test)


def test_no_address_is_an_engine_that_is_not_there(three: int) -> None:
    async def test() -> None:
        names = Names()
        names.answer = OSError("NXDOMAIN")
        async with fleet(names, **by_name(three)) as made:
            await names.answers(1)
            [(engine, why)] = made.unresolved()
            assert (engine.name, why) == ("vllm", "OSError: NXDOMAIN")
            names.answer = ["127.0.0.1"]
            await until(lambda: usable(made) == ["vllm@127.0.0.1"])
            assert not list(made.unresolved())

    run(test)


def test_drained_by_its_name_or_by_one_address(three: int) -> None:
    async def test() -> None:
        async with fleet(Names("127.0.0.1", "127.0.0.2"), **by_name(three)) as made:
            await until(lambda: len(usable(made)) == 2)
            made.set_live([], ["vllm@127.0.0.1"])
            assert usable(made) == ["vllm@127.0.0.2"]
            await until(lambda: made.watcher.usable == ["vllm@127.0.0.2"])  # changes come in flocks on a busy machine
            made.set_live([], ["vllm"])
            assert usable(made) == []
            await until(lambda: made.catalog["m"].candidates == ())
            assert {h.state for h in made.handles.values()} == {"draining"}
            made.set_live([], [])
            assert len(usable(made)) == 2

    run(test)


def test_added_live_and_taken_away(three: int) -> None:
    async def test() -> None:
        async with fleet() as made:
            entry = {"url": f"http://127.0.0.1:{three}", "health_interval": 0.1}
            made.set_live([Engine.model_validate({"name": "late", **entry})], [])
            await until(lambda: usable(made) == ["late"])
            made.configure(Config.model_validate({"engines": [{"name": "late", **entry, "url": "http://127.0.0.9:1"}]}))
            assert (made.handles["late"].config.url, usable(made)) == ("http://127.0.0.9:1", [])  # the file's wins
            made.configure(Config())
            await until(lambda: usable(made) == ["late"])
            made.set_live([], [])
            assert not made.handles

    run(test)


def test_an_engine_that_is_back_begins_with_a_tenth_of_its_share(three: int) -> None:
    async def test() -> None:
        entries = [{"name": f"e{i}", "url": f"http://127.0.0.{i}:{three}", "models": ["m"]} for i in (1, 2)]
        async with fleet(engines=entries, health={"slow_start": 3_600}) as made:
            await until(lambda: len(usable(made)) == 2)
            placement, candidates = RoundRobin(), made.catalog["m"].candidates

            def chosen(name: str) -> int:
                names = (placement.choose("m", candidates, 0.0) or "" for _ in range(1_000))
                return sum(
                    (made.instead(placement, "m", candidates, n) if n in made.eased else n) == name for n in names
                )

            assert chosen("e1") == 500
            made.handles["e1"].breaker.warm_up(time.monotonic())
            made.eased.add("e1")
            assert 30 <= chosen("e1") <= 150
            made.rests(made.handles["e1"], 5.0)
            assert chosen("e1") == 0
            made.rests(made.handles["e2"], 5.0)
            assert chosen("e1") == 500  # all rest: they are asked all the same

    run(test)


def test_why_it_gets_no_requests_is_said_once_and_stays(three: int, caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        entries = [
            {"name": f"e{i}", "url": f"http://127.0.0.{i}:{three}", "models": ["m"], "health_interval": 0.05}
            for i in (1, 2)
        ]
        async with fleet(engines=entries) as made:
            await until(lambda: len(usable(made)) == 2)
            handle = made.handles["e1"]
            made.silent(handle, "it is silent")
            checks = handle.checks
            await until(lambda: handle.checks > checks + 1)  # its health checks go well all the while
            assert (handle.state, handle.wrong) == ("stalled", "it is silent")
            judge(made, handle, Outcome.OK, 0, "", 0.0)  # one sent before ends well, between two looks at the silent
            assert (handle.state, handle.wrong) == ("healthy", "")

    run(test)


def test_one_that_was_healthy_and_is_not_has_answered_before(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        engine = RawEngine(["m"])
        entry = {"name": "e", "url": f"http://127.0.0.1:{engine.port}", "health_interval": 0.05, "unhealthy_after": 1}
        try:
            async with fleet(engines=[entry]) as made:
                await until(lambda: usable(made) == ["e"])
                handle = made.handles["e"]
                handle.expected_until = 0.0
                engine.healthy = False
                with caplog.at_level(logging.WARNING, "forebay.engines"):
                    await until(lambda: handle.state == "unhealthy")
                    why = handle.wrong
                    handle.why = ""
                    await until(lambda: handle.wrong == why)  # another check
                assert "engine e is out: " in caplog.text
                assert "has not answered yet" not in caplog.text
        finally:
            engine.close()

    run(test)


def test_a_flock_of_changes_is_one_for_the_watcher() -> None:
    """Two thousand engines become healthy one by one; catalogue and watcher are not told two thousand times."""

    async def test() -> None:
        engine = RawEngine(["m"])
        entries = [{"name": f"e{i}", "url": f"http://127.0.0.1:{engine.port}", "models": ["m"]} for i in range(2_000)]
        try:
            async with fleet(engines=entries, admission={"report_interval": 60}) as made:
                for handle in made.handles.values():
                    handle.succeeded()
                    handle.refresh()
                    made.rebuild()
                await until(lambda: len(made.watcher.usable) == 2_000)
                assert made.watcher.syncs < 100
        finally:
            engine.close()

    run(test)


# --- what is known of a name -----------------------------------------------------------------------------------------


def test_addresses_are_bounded_and_the_known_stay() -> None:
    known = Addresses(most=2, missing=2)
    assert known.heard(["10.0.0.9", "10.0.0.5", "10.0.0.7"])
    assert (list(known), known.left_out) == (["10.0.0.5", "10.0.0.7"], 1)
    assert not known.heard(["10.0.0.1", "10.0.0.5", "10.0.0.7"])
    assert not known.heard(["10.0.0.1", "10.0.0.7"])
    assert known.heard(["10.0.0.1", "10.0.0.7"])
    assert list(known) == ["10.0.0.7", "10.0.0.1"]


def test_what_is_no_address_is_not_believed() -> None:
    known = Addresses(most=4, missing=1)
    assert known.heard(["fd00::1", "not an address", "10.0.0.1"])
    assert not known.heard(["nonsense"])
    assert sorted(known) == ["10.0.0.1", "fd00::1"]


def test_many_retries_at_once_are_spread_and_few_are_not() -> None:
    spread = Spread(seed=1)
    assert [spread.delay(0.0) for _ in range(8)] == [0.0] * 8
    late = [spread.delay(0.001) for _ in range(300)]
    assert all(0 < d <= 0.25 for d in late)
    assert max(late) > 0.2
    assert spread.delay(1.0) == 0.0

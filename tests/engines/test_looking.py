"""The gateway's looks at an engine, over real sockets: what it takes it for, what it reads, what it warns of, once."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from engines.served import Clock, Pages, engine
from forebay.config.engine import EngineKind
from forebay.engines.base import NOTHING
from forebay.gateway import checking
from forebay.gateway.fetch import FetchFailed
from forebay.gateway.handles import Handle
from forebay.gateway.looking import BACK_OFF, INFO_EVERY, MAX_PAGE, identify, look_at, pause
from forebay.wire.tasks import Tasks

DATA = Path(__file__).parents[1] / "data" / "engines"
VLLM = (DATA / "vllm-0.32.0-metrics.txt").read_bytes()
SGLANG = (DATA / "sglang-metrics.txt").read_bytes()
LLAMACPP = (DATA / "llamacpp-metrics.txt").read_bytes()
VLLM_MODELS = (DATA / "vllm-0.32.0-models.json").read_bytes()


def vllm(**pages: bytes) -> Pages:
    return Pages({"/health": b"", "/v1/models": VLLM_MODELS, "/version": b'{"version":"0.32.0"}', "/metrics": VLLM})


def sglang() -> Pages:
    return Pages(
        {
            "/health": b"",
            "/v1/models": b'{"data":[{"id":"qwen","owned_by":"sglang","parent":null,"max_model_len":32768}]}',
            "/server_info": (DATA / "sglang-server_info.json").read_bytes(),
            "/metrics": SGLANG,
        }
    )


Scenario = Callable[[Handle, Clock], Awaitable[None]]


def play(pages: Pages, scenario: Scenario, **entry: object) -> None:
    async def run() -> None:
        async with engine(pages, **entry) as (handle, clock):
            await scenario(handle, clock)

    asyncio.run(run())


async def again(handle: Handle, clock: Clock, seconds: float = BACK_OFF) -> None:
    clock.now += seconds
    await look_at(handle, clock())


@pytest.fixture
def warned(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    caplog.set_level(logging.INFO, "forebay.engines")

    def found() -> list[str]:
        return [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]

    return found


# --- what it is ------------------------------------------------------------------------------------------------------


def test_auto_finds_vllm_with_one_question_and_reads_it(warned: Callable[[], list[str]]) -> None:
    pages = vllm()

    async def scenario(handle: Handle, clock: Clock) -> None:
        assert handle.look.kind is EngineKind.VLLM
        assert pages.asked[:2] == ["/v1/models", "/health"]
        assert not {"/props", "/info", "/server_info", "/api/version"} & set(pages.asked)
        assert (handle.healthy, handle.models) == (True, ("tiny",))
        report = handle.report
        assert (report.kv_capacity_tokens, report.version, report.max_model_len) == (524_288, "0.32.0", 2048)

    play(pages, scenario)
    assert warned() == []


@pytest.mark.parametrize(
    ("pages", "kind", "last"),
    [
        ({"/metrics": (DATA / "tgi-metrics.txt").read_bytes()}, EngineKind.TGI, "/metrics"),
        ({"/props": (DATA / "llamacpp-props.json").read_bytes()}, EngineKind.LLAMACPP, "/props"),
        ({"/server_info": (DATA / "sglang-server_info.json").read_bytes()}, EngineKind.SGLANG, "/server_info"),
        ({"/info": (DATA / "tgi-info.json").read_bytes()}, EngineKind.TGI, "/info"),
        ({"/api/version": b'{"version":"0.33.0"}'}, EngineKind.OLLAMA, "/api/version"),
        ({}, EngineKind.OPENAI, "/api/version"),
    ],
    ids=["tgi", "llamacpp", "sglang", "tgi without metrics", "ollama", "unknown"],
)
def test_auto_asks_on_only_until_the_first_certain_answer(pages: dict[str, bytes], kind: EngineKind, last: str) -> None:
    order = ["/v1/models", "/metrics", "/props", "/server_info", "/info", "/api/version"]
    made = Pages({"/health": b"", "/v1/models": b'{"data":[{"id":"m"}]}', **pages})

    async def scenario(handle: Handle, clock: Clock) -> None:
        assert handle.look.kind is kind
        assert made.asked[: order.index(last) + 1] == order[: order.index(last) + 1]
        assert handle.healthy

    play(made, scenario)


def test_auto_does_not_settle_on_an_engine_that_is_not_ready() -> None:
    pages = vllm()
    pages.pages["/v1/models"] = (503, b"loading")

    async def scenario(handle: Handle, clock: Clock) -> None:
        assert (handle.healthy, handle.look.kind) == (False, None)
        assert set(pages.asked) == {"/v1/models"}
        with pytest.raises(FetchFailed, match="503"):
            await identify(handle)
        pages.pages["/v1/models"] = VLLM_MODELS
        await identify(handle)
        assert handle.look.kind is EngineKind.VLLM
        count = len(pages.asked)
        await identify(handle)
        assert len(pages.asked) == count

    play(pages, scenario)


def test_another_engine_behind_the_same_url_is_noticed(warned: Callable[[], list[str]]) -> None:
    pages = vllm()

    async def scenario(handle: Handle, clock: Clock) -> None:
        pages.pages = sglang().pages
        assert b"bearer" not in handle.head(b"GET", b"/x").lower()
        await again(handle, clock)  # sglang's metrics
        assert handle.report == NOTHING
        await identify(handle)
        assert handle.look.kind is EngineKind.SGLANG
        await again(handle, clock)
        assert handle.report.running == 12
        assert (handle.report.low_first, handle.report.max_num_seqs) == (True, 256)

    play(pages, scenario)
    assert warned() == [
        "engine e: it reports sglang: metrics: it is not vLLM; its load and KV use are not known, requests go on by "
        "the gateway's own books"
    ]


def test_a_failed_check_asks_again_what_it_is() -> None:
    pages = vllm()

    async def scenario(handle: Handle, clock: Clock) -> None:
        assert handle.failed("reset")
        pages.pages = sglang().pages
        await identify(handle)
        assert handle.look.kind is EngineKind.SGLANG
        assert handle.models == ()  # to be asked anew

    play(pages, scenario)


def test_a_look_that_was_under_way_when_it_became_another_engine_is_dropped() -> None:
    pages = vllm()

    async def scenario(handle: Handle, clock: Clock) -> None:
        pages.hook = lambda path: handle.become(EngineKind.SGLANG) if path == "/metrics" else None
        await again(handle, clock)
        assert handle.adapter.kind == "sglang"
        assert handle.report == NOTHING

    play(pages, scenario)


def test_a_configured_kind_is_never_doubted() -> None:
    pages = sglang()

    async def scenario(handle: Handle, clock: Clock) -> None:
        await identify(handle)
        assert handle.adapter.kind == "vllm"
        assert handle.look.kind is None

    play(pages, scenario, kind="vllm")


def test_the_key_goes_where_the_kind_wants_it() -> None:
    pages = Pages({"/v1/models": b'{"data":[{"type":"model","id":"claude","display_name":"C"}]}'})

    async def scenario(handle: Handle, clock: Clock) -> None:
        assert handle.look.kind is EngineKind.ANTHROPIC
        assert "authorization: Bearer secret" in pages.heads[0]
        assert "x-api-key: secret\r\nanthropic-version: 2023-06-01" in pages.heads[-1]
        assert "authorization" not in pages.heads[-1]

    play(pages, scenario, api_key="secret")


# --- what it says ----------------------------------------------------------------------------------------------------


def test_sglang_without_metrics_is_read_from_its_loads(warned: Callable[[], list[str]]) -> None:
    pages = sglang()
    pages.pages["/v1/loads"] = (DATA / "sglang-loads.json").read_bytes()
    del pages.pages["/metrics"]

    async def scenario(handle: Handle, clock: Clock) -> None:
        report = handle.report
        assert (report.running, report.kv_usage, report.block_size, report.max_num_seqs) == (7, 0.5, 64, 256)
        await again(handle, clock)
        assert pages.asked[-1] == "/v1/loads"
        assert pages.asked.count("/metrics") == 1

    play(pages, scenario, kind="sglang")
    assert warned() == []


def test_an_older_name_of_a_page_is_asked_for_where_the_new_one_is_not_there() -> None:
    pages = sglang()
    pages.pages["/get_server_info"] = pages.pages.pop("/server_info")

    async def scenario(handle: Handle, clock: Clock) -> None:
        assert handle.report.version == "0.5.23"

    play(pages, scenario, kind="sglang")


def test_what_stays_the_same_is_read_seldom() -> None:
    pages = vllm()

    async def scenario(handle: Handle, clock: Clock) -> None:
        for _ in range(5):
            await again(handle, clock, 1.0)
        assert (pages.asked.count("/metrics"), pages.asked.count("/version")) == (6, 1)
        await again(handle, clock, INFO_EVERY)
        assert pages.asked.count("/version") == 2

    play(pages, scenario, kind="vllm")


def test_llamacpp_is_never_looked_at_more_often_than_it_bears() -> None:
    pages = Pages({"/health": b"", "/v1/models": b'{"data":[{"id":"m"}]}', "/metrics": LLAMACPP})

    async def scenario(handle: Handle, clock: Clock) -> None:
        for _ in range(30):
            await again(handle, clock, 0.25)
        assert pages.asked.count("/metrics") == 6
        rng = random.Random(0)
        assert min(pause(handle, 0.25, rng) for _ in range(100)) >= 1.5
        assert max(pause(handle, 9.0, rng) for _ in range(100)) <= 9.9

    play(pages, scenario, kind="llamacpp")


def test_a_restart_and_another_size_of_the_cache_are_noticed(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "forebay.engines")
    pages = vllm()

    async def scenario(handle: Handle, clock: Clock) -> None:
        pages.pages["/metrics"] = VLLM.replace(b"1.79595764766e+09", b"1.79595999999e+09").replace(b"524288", b"262144")
        await again(handle, clock)
        assert (handle.look.restarts, handle.report.kv_capacity_tokens) == (1, 262_144)
        pages.pages["/metrics"] = pages.pages["/metrics"].replace(b"262144", b"131072")
        await again(handle, clock)
        assert (handle.look.restarts, handle.report.kv_capacity_tokens) == (1, 131_072)

    play(pages, scenario, kind="vllm")
    assert [r.getMessage() for r in caplog.records if "healthy" not in r.getMessage()] == [
        "engine e has started anew: its caches are empty",
        "engine e: its KV cache holds 131,072 tokens now, 262,144 before",
    ]


def test_several_engines_behind_one_url(warned: Callable[[], list[str]]) -> None:
    pages = vllm()
    other = VLLM.replace(b"1.79595764766e+09", b"1.79595999999e+09")

    async def scenario(handle: Handle, clock: Clock) -> None:
        for i in range(12):
            pages.pages["/metrics"] = other if i % 2 == 0 else VLLM
            await again(handle, clock, 1.0)
        assert handle.look.restarts == 3

    play(pages, scenario, kind="vllm")
    assert warned() == ["engine e: answers as several engines in turn; give each an entry of its own"]


OWN_BOOKS = "its load and KV use are not known, requests go on by the gateway's own books"


@pytest.mark.parametrize(
    ("page", "why"),
    [
        ((404, b""), "GET /metrics: it answered 404"),
        ((200, b"<!DOCTYPE html><html><body>hello</body></html>"), "GET /metrics answers HTML"),
        ((200, b"# nothing\nup 1\n"), "GET /metrics has none of the names known of vLLM"),
        ((200, b"x" * (MAX_PAGE + 1)), "GET /metrics: it answered more than 2,097,152 bytes"),
        ((200, SGLANG), "it reports sglang: metrics: it is not vLLM"),
        ((200, VLLM.replace(b'"tiny"', b'"huge"')), "its metrics are about 'huge', and it serves 'tiny'"),
    ],
    ids=["none", "html", "unknown", "too large", "another engine's", "another model's"],
)
def test_a_page_of_no_use_costs_knowledge_and_one_warning(
    page: tuple[int, bytes], why: str, warned: Callable[[], list[str]]
) -> None:
    pages = vllm()
    pages.pages["/metrics"] = page

    async def scenario(handle: Handle, clock: Clock) -> None:
        handle.in_flight = 1
        for _ in range(3):
            await again(handle, clock)
        handle.in_flight = 0
        assert handle.healthy
        assert (handle.report.running, handle.report.kv_usage, handle.report.kv_capacity_tokens) == (None, None, None)
        asked = pages.asked.count("/metrics")
        assert asked == 4
        if "serves" not in why:
            await again(handle, clock, 1.0)
            assert pages.asked.count("/metrics") == asked  # it backs off
        pages.pages["/metrics"] = VLLM
        await again(handle, clock)
        assert (handle.report.running, handle.report.kv_capacity_tokens) == (0, 524_288)

    play(pages, scenario, kind="vllm")
    assert warned() == [f"engine e: {why}; {OWN_BOOKS}"]


def test_what_a_version_does_not_say_is_named_once(warned: Callable[[], list[str]]) -> None:
    pages = vllm()
    pages.pages["/metrics"] = VLLM.replace(b"vllm:kv_cache_usage_perc", b"vllm:kv_cache_share").replace(
        b"vllm:cache_config_info", b"vllm:cache_settings"
    )

    async def scenario(handle: Handle, clock: Clock) -> None:
        await again(handle, clock)
        assert handle.report.running == 0

    play(pages, scenario, kind="vllm")
    assert warned() == ["engine e: its metrics do not say kv_usage, kv_capacity_tokens, block_size"]


def test_a_model_that_it_does_not_list(warned: Callable[[], list[str]]) -> None:
    async def scenario(handle: Handle, clock: Clock) -> None:
        await again(handle, clock, INFO_EVERY)
        assert handle.models == ("tiny", "other")

    play(vllm(), scenario, kind="vllm", models=["tiny", "other"])
    assert warned() == ["engine e: does not list the model 'other' that its entry names"]


def test_an_engine_that_is_away_keeps_its_facts_and_loses_its_load() -> None:
    pages = vllm()

    async def scenario(handle: Handle, clock: Clock) -> None:
        handle.config = handle.config.model_copy(update={"url": "http://127.0.0.1:1"})
        handle.pool.close()
        await again(handle, clock)
        assert (handle.report.running, handle.report.kv_usage) == (None, None)
        assert (handle.report.kv_capacity_tokens, handle.report.done) == (524_288, 9_500)

    play(pages, scenario, kind="vllm")


@pytest.mark.parametrize("page", [b"[]", b""], ids=["steps", "prometheus"])
def test_an_engine_with_nothing_to_do_may_have_nothing_to_say(page: bytes, warned: Callable[[], list[str]]) -> None:
    steps = (DATA / "trtllm-metrics.json").read_bytes()
    pages = Pages({"/health": b"", "/v1/models": b'{"data":[{"id":"m"}]}', "/version": b"{}", "/metrics": steps})

    async def scenario(handle: Handle, clock: Clock) -> None:
        assert handle.report.running == 3
        pages.pages["/metrics"] = page
        for _ in range(5):
            await again(handle, clock)
        assert (handle.report.running, handle.report.kv_capacity_tokens) == (None, 32_000)
        assert warned() == []
        handle.in_flight = 1
        for _ in range(5):
            await again(handle, clock)
        handle.in_flight = 0

    play(pages, scenario, kind="trtllm")
    assert warned() == [
        "engine e: GET /metrics has none of the names known of TensorRT-LLM (set return_perf_metrics or "
        f"enable_iter_perf_stats in its configuration); {OWN_BOOKS}"
    ]


def test_an_engine_before_its_first_request_is_not_said_to_lack_anything(warned: Callable[[], list[str]]) -> None:
    pages = Pages(
        {"/health": b"", "/v1/models": b'{"data":[{"id":"m"}]}', "/metrics": b"tgi_batch_max_total_tokens 9\n"}
    )

    async def scenario(handle: Handle, clock: Clock) -> None:
        assert handle.report.kv_capacity_tokens == 9

    play(pages, scenario, kind="tgi")
    assert warned() == []


def test_a_look_that_fails_inside_the_gateway_is_followed_by_another(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else its engine would be looked at no more, and be lost."""
    monkeypatch.setattr(checking, "AFTER_DEFECT", 0.0)

    async def run() -> int:
        tasks, again = Tasks(), asyncio.Event()
        looks = 0

        async def look(handle: Handle) -> float:
            nonlocal looks
            looks += 1
            if looks == 1:
                raise OverflowError("int too large to convert to float")
            again.set()
            return 60.0

        async with engine(Pages({})) as (handle, _):
            rounds = checking.Rounds(tasks, look)
            rounds.begin(handle)
            await asyncio.wait_for(again.wait(), 10)
            rounds.end(handle)
            await tasks.drain()
        return looks

    assert asyncio.run(run()) == 2
    assert [r.getMessage() for r in caplog.records if r.levelno >= logging.ERROR] == [
        "looking at engine e failed inside"
    ]

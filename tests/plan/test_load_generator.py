"""The load generator against real sockets: the mock upstream where answers go well, a scripted one where not."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Any

import pytest
import uvloop
from benchmarks.mock_upstream import MockUpstream, listen

from forebay.plan.load import COMPLETIONS, Load, Plan, Result, Slo
from forebay.plan.load.callers import Callers
from forebay.plan.target import LoadError, Target, models
from forebay.sim.workloads.mix import Mix

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
WORD = b'data: {"choices":[{"index":0,"delta":{"content":"a"}}]}\n\n'
DONE = b"data: [DONE]\n\n"


def answer(status: bytes, body: bytes, *headers: bytes) -> bytes:
    lines = [b"HTTP/1.1 " + status, b"content-length: %d" % len(body), b"connection: close", *headers]
    return b"\r\n".join([*lines, b"", body])


async def request_of(reader: asyncio.StreamReader) -> bytes:
    """One whole request's body."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = next((x for x in head.lower().split(b"\r\n") if x.startswith(b"content-length:")), b":0")
    return await reader.readexactly(int(length.split(b":")[1]))


def against_mock(plan: Plan, *, interval: float = 0.001) -> tuple[Result, dict[str, int]]:
    """Run the plan against the mock upstream; the result and what the mock counted afterwards."""

    async def run() -> tuple[Result, dict[str, int]]:
        mock = MockUpstream(interval=interval)
        server = await listen(mock, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        try:
            result = await Load(Target.parse(f"http://127.0.0.1:{port}"), plan).run()
            return result, mock.counts()
        finally:
            server.close()
            mock.stop()

    return uvloop.run(run())


def against_script(
    plan: Plan, serve: Serve, act: Callable[[Load], Awaitable[None]] | None = None, **around: Any
) -> Result:
    """Run the plan against a server that treats each connection as `serve` does."""

    async def run() -> Result:
        async def one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                await serve(reader, writer)
            except (ConnectionError, asyncio.IncompleteReadError):
                pass
            finally:
                writer.close()

        server = await asyncio.start_server(one, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        try:
            load = Load(Target.parse(f"http://127.0.0.1:{port}"), plan, **around)
            running = asyncio.ensure_future(load.run())
            if act is not None:
                await act(load)
            return await running
        finally:
            server.close()

    return uvloop.run(run())


def says(data: bytes) -> Serve:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request_of(reader)
        writer.write(data)
        await writer.drain()

    return serve


async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(1 << 20)
    await reader.read()  # until the other side leaves


def test_a_closed_loop_completes_every_stream_and_keeps_its_width() -> None:
    result, mock = against_mock(Plan("mock", concurrency=7, requests=40, max_tokens=5))
    assert (result.sent, result.completed, result.failed) == (40, 40, 0)
    assert result.peak_in_flight == 7
    assert (mock["streams"], mock["events"], mock["active"]) == (40, 200, 0)
    assert (result.output_tokens, result.prompt_tokens) == (200, 40 * 41)
    assert (result.ttft.count, result.e2e.count) == (40, 40)
    assert result.itl.count == 40 * 4, "gaps between five words; the finish event is no token"
    assert result.tpot.count == 40
    assert sum(one.tokens for one in result.timeline.slices) == 200
    assert sum(one.completed for one in result.timeline.slices) == 40
    assert 0 < result.ttft.largest <= result.e2e.largest < 10


def test_uniform_arrivals_leave_at_their_times_whatever_becomes_of_them() -> None:
    times: list[float] = []

    async def note(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request_of(reader)
        times.append(monotonic())
        await reader.read()

    result = against_script(Plan("m", rate=100, arrivals="uniform", requests=50, timeout=1.5), note)
    assert (result.sent, result.errors) == (50, {"timeout": 50})
    assert result.peak_in_flight == 50, "no arrival waited for an answer"
    assert min(result.timeline.at(at).in_flight for at in (0.3, 0.55, 0.8, 1.05, 1.3)) > 0, "looked at or not"
    assert times[-1] - times[0] == pytest.approx(0.49, abs=0.25)


def test_poisson_arrivals_have_the_asked_rate_and_are_the_same_for_the_same_seed() -> None:
    one, _ = against_mock(Plan("mock", rate=400, seconds=1.0, max_tokens=1, seed=5))
    again, _ = against_mock(Plan("mock", rate=400, seconds=1.0, max_tokens=1, seed=5))
    other, _ = against_mock(Plan("mock", rate=400, seconds=1.0, max_tokens=1, seed=6))
    assert one.sent == again.sent != other.sent
    assert 320 < one.sent < 480
    assert one.completed == one.sent


def test_two_thousand_streams_run_at_once() -> None:
    result, mock = against_mock(Plan("mock", concurrency=2_000, requests=2_000, max_tokens=3), interval=0.5)
    assert (result.completed, result.errors, result.peak_in_flight) == (2_000, {}, 2_000)
    assert mock["streams"] == 2_000


def test_each_request_has_its_own_prompt_of_the_asked_length() -> None:
    bodies: list[bytes] = []

    async def note(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        bodies.append(await request_of(reader))
        writer.write(STREAM + WORD + DONE)

    plan = Plan("m", concurrency=1, requests=20, prompt_tokens=200, max_tokens=9, extra={"ignore_eos": True})
    assert against_script(plan, note).completed == 20
    found = [json.loads(b) for b in bodies]
    prompts = {b["messages"][0]["content"] for b in found}
    assert len(prompts) == 20
    assert {len(p.split()) for p in prompts} == {200}
    assert all(b["max_tokens"] == 9 and b["stream"] is True and b["ignore_eos"] is True for b in found)


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (answer(b"429 x", b'{"error":{"code":"rate_limit_exceeded"}}'), "status 429 rate_limit_exceeded"),
        (answer(b"500 x", b'{"error":{"type":"InternalServerError","code":500}}'), "status 500 InternalServerError"),
        (answer(b"502 x", b"<html>"), "status 502"),
        (answer(b"200 OK", b"{}", b"content-type: application/json"), "not_a_stream"),
        (STREAM + WORD + WORD, "no_done"),
        (STREAM + DONE, "no_content"),
        (STREAM + WORD + b'data: {"error":{"message":"x","code":"engine_cut"}}\n\n' + DONE, "error_event engine_cut"),
        (STREAM + b"data: {nonsense\n\n" + DONE, "bad_event"),
        (STREAM.replace(b"connection: close", b"content-length: 9999") + WORD, "cut"),
        (b"hello\r\n\r\n", "garbage"),
        (b"", "reset"),
    ],
)
def test_each_way_to_fail_has_its_kind(data: bytes, kind: str) -> None:
    result = against_script(Plan("m", concurrency=2, requests=6), says(data))
    assert result.errors == {kind: 6}
    assert (result.completed, result.e2e.count) == (0, 0)


def test_retry_after_is_noted() -> None:
    refusal = answer(b"429 Too Many", b"{}", b"retry-after: 7")
    result = against_script(Plan("m", concurrency=1, requests=3), says(refusal))
    assert (result.retry_after.count, result.retry_after.largest) == (3, 7.0)


def test_kinds_of_error_are_bounded() -> None:
    codes = iter(range(1_000))

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request_of(reader)
        writer.write(answer(b"400 x", b'{"error":{"code":"c%d"}}' % next(codes)))

    result = against_script(Plan("m", concurrency=4, requests=90), serve)
    assert len(result.errors) == 51
    assert result.errors["other"] == 40


def test_a_stream_in_single_bytes_is_the_same_stream() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request_of(reader)
        for byte in STREAM + WORD * 3 + DONE:
            writer.write(bytes([byte]))
            await writer.drain()

    result = against_script(Plan("m", concurrency=1, requests=2), serve)
    assert (result.completed, result.output_tokens, result.itl.count) == (2, 6, 4)


def test_nobody_there_is_a_connect_error() -> None:
    async def run() -> Result:
        server = await asyncio.start_server(lambda r, w: None, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        server.close()
        await server.wait_closed()
        return await Load(Target.parse(f"http://127.0.0.1:{port}"), Plan("m", concurrency=1, requests=3)).run()

    assert uvloop.run(run()).errors == {"connect": 3}


def test_arrivals_over_what_the_process_may_open_are_counted_not_queued() -> None:
    result = against_script(Plan("m", rate=2_000, requests=30, max_in_flight=5, timeout=1.0), silent)
    assert result.errors == {"client_full": 25, "timeout": 5}


def test_an_interrupted_load_drops_what_is_under_way() -> None:
    left = []
    arrived = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request_of(reader)
        left.append(False)
        if len(left) == 4:
            arrived.set()
        try:
            await reader.read()
        finally:
            left.remove(False)

    async def interrupt(load: Load) -> None:
        await arrived.wait()
        load.interrupt()

    result = against_script(Plan("m", concurrency=4, requests=100), serve, interrupt)
    assert (result.interrupted, result.sent, result.completed, result.failed) == (True, 4, 0, 0)


# --- the server it is pointed at -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "host", "prefix"),
    [
        ("http://127.0.0.1:8080", "127.0.0.1:8080", ""),
        ("http://127.0.0.1:8080/v1/", "127.0.0.1:8080", ""),
        ("https://example.test/llm/v1", "example.test:443", "/llm"),
        ("http://[::1]:9", "[::1]:9", ""),
    ],
)
def test_a_url_is_taken_with_or_without_v1(url: str, host: str, prefix: str) -> None:
    target = Target.parse(url)
    assert (str(target.origin), target.prefix, target.origin.tls is not None) == (host, prefix, url[4] == "s")


@pytest.mark.parametrize(
    "url", ["", "127.0.0.1:80", "ftp://x", "http://", "http://u:p@h", "http://h:99999", "http://h?q=1"]
)
def test_what_is_no_servers_url_is_refused(url: str) -> None:
    with pytest.raises(LoadError):
        Target.parse(url)


@pytest.mark.parametrize(
    ("data", "key", "message"),
    [
        (answer(b"401 x", b"{}"), None, "answered 401 to no key: set FOREBAY_API_KEY"),
        (answer(b"403 x", b"{}"), "secret", "answered 403 to the key in FOREBAY_API_KEY"),
        (
            answer(b"404 x", b"nginx"),
            None,
            "is no OpenAI-compatible server: GET /v1/models answered 404, not a model list",
        ),
        (answer(b"200 OK", b"<html>"), None, "is no OpenAI-compatible server"),
        (b"SSH-2.0\r\n", None, "cannot be reached: garbage"),
        (b"", None, "cannot be reached: reset"),
    ],
)
def test_a_server_that_will_not_do_is_named_with_its_reason(data: bytes, key: str | None, message: str) -> None:
    with pytest.raises(LoadError) as e:
        uvloop.run(_models(says(data), key))
    assert message in str(e.value)
    assert "secret" not in str(e.value)


def test_a_silent_server_is_given_up() -> None:
    with pytest.raises(LoadError, match=r"did not answer GET /v1/models within 0\.3 s"):
        uvloop.run(_models(silent, None, seconds=0.3))


def test_models_are_listed() -> None:
    found = answer(b"200 OK", b'{"object":"list","data":[{"id":"a"},{"id":"b","x":1}]}')
    assert uvloop.run(_models(says(found), None)) == ["a", "b"]


async def _models(serve: Serve, key: str | None, seconds: float = 10.0) -> list[str]:
    async def one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await serve(reader, writer)
        finally:
            writer.close()

    server = await asyncio.start_server(one, "127.0.0.1", 0)
    try:
        port = server.sockets[0].getsockname()[1]
        return await models(Target.parse(f"http://127.0.0.1:{port}"), key, seconds)
    finally:
        server.close()


# --- the plan --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"requests": 1}, "either a rate"),
        ({"requests": 1, "rate": 1.0, "concurrency": 1}, "either a rate"),
        ({"rate": 1.0}, "a number of requests, a duration, or both"),
        ({"requests": 1, "rate": 0.0}, "rate must be more than 0, not 0"),
        ({"requests": 1, "rate": float("nan")}, "rate must be more than 0, not nan"),
        ({"requests": 0, "rate": 1.0}, "requests must be more than 0"),
        ({"requests": 1, "rate": 1.0, "max_tokens": -1}, "max-tokens must be more than 0, not -1"),
        ({"requests": 1, "concurrency": 9, "max_in_flight": 8}, "over the 8 connections"),
    ],
)
def test_a_plan_that_makes_no_sense_is_refused(fields: dict[str, float], message: str) -> None:
    with pytest.raises(LoadError, match=message):
        Plan("m", **fields)  # type: ignore[arg-type]


# --- what latencies count from, and what becomes of refusals ---------------------------------------------------------


def test_a_stall_counts_for_every_request_that_was_due_in_it() -> None:
    """No coordinated omission: server and generator stand still together for 0.4 s, and thirty-odd requests that were
    to leave then have waited, although each was answered at once when it left."""
    n = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal n
        await request_of(reader)
        n += 1
        if n == 10:
            time.sleep(0.4)  # noqa: ASYNC251 - the whole loop stands still, as an overloaded machine does
        writer.write(STREAM + WORD + DONE)

    result = against_script(Plan("m", rate=100, arrivals="uniform", requests=60), serve)
    assert result.completed == 60
    late = 1 - result.ttft.whole().below(0.1)
    assert late * 60 >= 25, "those due in the first 0.3 s of the stall"
    assert result.lag.largest > 0.3


def test_retry_after_is_obeyed_and_its_wait_is_the_request_s() -> None:
    refused: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        body = await request_of(reader)
        if body in refused:
            writer.write(STREAM + WORD + WORD + DONE)
        else:
            refused.append(body)
            writer.write(answer(b"429 x", b'{"error":{"code":"slo"}}', b"retry-after: 0.2"))

    plan = Plan("m", rate=100, requests=5, retries=1)
    result = against_script(plan, serve)
    assert (result.sent, result.completed, result.errors) == (5, 5, {})
    assert (result.retried, result.rescued, result.retry_after.count) == (5, 5, 5)
    assert result.ttft.least >= 0.198  # uvloop counts in whole milliseconds, from when its round began
    refused.clear()
    assert against_script(Plan("m", rate=100, requests=5), serve).errors == {"status 429 slo": 5}


@pytest.mark.parametrize(
    ("headers", "why"),
    [
        ((b"retry-after: 0", b"x-should-retry: false"), "told not to"),
        ((), "not told when"),
        ((b"retry-after: 30",), "it would be over its timeout"),
        ((b"retry-after: soon",), "no time"),
    ],
)
def test_a_refusal_is_final_where_retrying_makes_no_sense(headers: tuple[bytes, ...], why: str) -> None:
    result = against_script(
        Plan("m", concurrency=2, requests=4, retries=3, timeout=20), says(answer(b"429 x", b"{}", *headers))
    )
    assert (result.errors, result.retried) == ({"status 429": 4}, 0), why


def test_a_date_as_retry_after_is_understood() -> None:
    past = against_script(
        Plan("m", concurrency=1, requests=1),
        says(answer(b"503 x", b"{}", b"retry-after: Wed, 21 Oct 2015 07:28:00 GMT")),
    )
    assert (past.retry_after.count, past.retry_after.largest) == (1, 0.0)


def test_goodput_counts_what_keeps_all_of_the_slo() -> None:
    plan = Plan("mock", concurrency=4, requests=20, max_tokens=5, slo=Slo(ttft=5.0, tpot=5.0, e2e=5.0))
    assert against_mock(plan)[0].good == 20
    tight = Plan("mock", concurrency=4, requests=20, max_tokens=5, slo=Slo(ttft=5.0, e2e=1e-6))
    result, _ = against_mock(tight)
    assert (result.completed, result.good) == (20, 0)
    assert Slo(ttft=1.0, ttft_per_1k=0.5).keeps(2_000, 1.9, None, 9.0)
    assert not Slo(ttft=1.0, ttft_per_1k=0.5).keeps(2_000, 2.1, None, 9.0)


def test_each_tenant_has_its_key_and_each_class_its_header() -> None:
    seen: list[tuple[bytes, bytes]] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        lines = dict(line.split(b": ", 1) for line in head.split(b"\r\n")[1:] if line)
        await reader.readexactly(int(lines[b"content-length"]))
        seen.append((lines[b"authorization"], lines[b"x-priority"]))
        writer.write(STREAM + WORD + DONE)

    callers = Callers(None, {"a": "sk-a", "b": "sk-b"}, say_class=True)
    plan = Plan(
        "m",
        concurrency=1,
        requests=40,
        tenants=Mix(("a", "b"), (1.0, 1.0)),
        classes=Mix(("vip", "low"), (1.0, 1.0)),
    )
    result = against_script(plan, serve, callers=callers)
    assert set(seen) == {(b"Bearer sk-" + t, c) for t in (b"a", b"b") for c in (b"vip", b"low")}
    assert {name: one.sent for name, one in result.tenants.items()} == {
        "a": sum(t == b"Bearer sk-a" for t, _ in seen),
        "b": sum(t == b"Bearer sk-b" for t, _ in seen),
    }
    assert {name: one.completed for name, one in result.classes.items()} == {
        "vip": sum(c == b"vip" for _, c in seen),
        "low": sum(c == b"low" for _, c in seen),
    }


def test_completions_are_asked_for_by_their_path_and_text_is_content() -> None:
    text = b'data: {"choices":[{"index":0,"text":"a","finish_reason":null}]}\n\n'
    end = b'data: {"choices":[{"index":0,"text":"b","finish_reason":"length"}]}\n\n'

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"POST /v1/completions ")
        writer.write(STREAM + text + text + end + DONE)

    result = against_script(Plan("m", concurrency=1, requests=2, path=COMPLETIONS), serve)
    assert (result.completed, result.output_tokens, result.itl.count) == (2, 6, 4)


def test_a_run_that_is_hopeless_is_ended() -> None:
    def judge(load: Load) -> str:
        return "enough" if load.overdue() >= 3 else ""

    result = against_script(Plan("m", rate=100, requests=500, slo=Slo(ttft=0.01), timeout=60), silent, hopeless=judge)
    assert (result.given_up, result.completed) == ("enough", 0)
    assert result.seconds < 5


def test_an_answer_in_a_coding_nobody_asked_for_is_named() -> None:
    coded = STREAM.replace(b"connection: close", b"connection: close\r\ncontent-encoding: gzip")
    assert against_script(Plan("m", concurrency=1, requests=2), says(coded + b"\x1f\x8b...")).errors == {
        "compressed": 2
    }


def test_usage_that_cannot_be_is_not_counted() -> None:
    usage = b'data: {"choices":[],"usage":{"prompt_tokens":-5,"completion_tokens":-50}}\n\n'
    result = against_script(Plan("m", concurrency=1, requests=1), says(STREAM + WORD + WORD + usage + DONE))
    assert (result.completed, result.output_tokens, result.prompt_tokens) == (1, 2, 0)


@pytest.mark.parametrize(
    "value", [b"Mon, 01 Jan 99999999999999999999 00:00:00 GMT", b"soon", b"nan", b"", b"Mon, 99 Foo 2020 00:00:00"]
)
def test_a_retry_after_that_says_nothing_is_none(value: bytes) -> None:
    refusal = answer(b"429 x", b"{}", b"retry-after: " + value)
    result = against_script(Plan("m", concurrency=1, requests=1, retries=2), says(refusal))
    assert (result.errors, result.retry_after.count, result.retried) == ({"status 429": 1}, 0, 0)


def test_a_load_that_was_interrupted_before_it_ran_sends_nothing() -> None:
    async def run() -> Result:
        load = Load(Target.parse("http://127.0.0.1:1"), Plan("m", rate=1e6, requests=5))
        load.interrupt()
        return await load.run()

    result = uvloop.run(run())
    assert (result.interrupted, result.sent) == (True, 0)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("http://user:hunter2@h:99999", "'http://h:99999' is not a URL"),
        ("user:hunter2@h:80", "'h:80' is not a server's URL"),
        ("http://h/日本", "xn--"),
        ("http://h/a b", "%20"),
    ],
)
def test_a_url_that_is_refused_is_shown_without_its_password(url: str, shown: str) -> None:
    with pytest.raises(LoadError) as e:
        Target.parse(url)
    assert shown in str(e.value)
    assert "hunter2" not in str(e.value)


def test_a_process_that_stands_still_is_noticed_in_a_closed_loop_too() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request_of(reader)
        time.sleep(0.6)  # noqa: ASYNC251 - the loop of the load is this one
        writer.write(STREAM + WORD + DONE)

    result = against_script(Plan("m", concurrency=1, requests=1), serve)
    assert result.completed == 1
    late = [result.loop_lag.percentile(p) or 0.0 for p in (50, 99)]
    assert late[1] > 0.4, "it was half a second late"
    assert late[0] > 0.05, "most of the beats that were due were missed"

"""What the gateway takes for granted of an engine, asked of emulated and real ones alike: what holds of the one and
not of the other is a defect of the emulation, or of what is written about that kind of engine in `servers.TRAITS`."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from engines.servers import BLOCK, BLOCKS, CHAT, COMPLETIONS, CONTEXT, QUEUE, SLOTS, Server, opened
from forebay.engines.registry import adapter
from forebay.errors import Outcome
from waiting import eventually, read_until

ROUTES = (CHAT, COMPLETIONS)
LONG = 1_500
"""Tokens of an answer that is still under way when we have looked."""


@pytest.fixture(autouse=True)
def idle_before_and_after(subject: Server) -> Iterator[None]:
    eventually(lambda: subject.busy() == (0, 0))
    yield
    eventually(lambda: subject.busy() == (0, 0))


def usage_of(subject: Server, path: str, text: str, tokens: int = 4) -> dict[str, Any]:
    answer = subject.post(path, text=text, max_tokens=tokens)
    assert answer.status == 200, answer
    found: dict[str, Any] = answer.json()["usage"]
    return found


# --- what is asked of it before any request --------------------------------------------------------------------------


def test_it_is_healthy(subject: Server) -> None:
    path = adapter(subject.engine_kind).health_path.decode()
    assert subject.ask("GET", path).status == 200


def test_it_names_its_models(subject: Server) -> None:
    answer = subject.ask("GET", adapter(subject.engine_kind).models_path.decode())
    assert answer.status == 200 and [m["id"] for m in answer.json()["data"]] == [subject.model]


def test_its_metrics_are_read(subject: Server) -> None:
    """Whatever it does not measure is None, never 0."""
    if adapter(subject.engine_kind).metrics_path is None:
        pytest.skip(f"there is no adapter that reads the metrics of {subject.kind}")
    report = subject.report()
    said = {name for name in ("running", "waiting", "kv_usage", "kv_capacity_tokens", "block_size")
            if getattr(report, name) is not None}  # fmt: skip
    assert said == subject.traits.measures
    assert (report.running, report.waiting) == (0, 0)
    if "kv_capacity_tokens" in said:
        assert (report.block_size, report.kv_capacity_tokens) == (BLOCK, BLOCK * BLOCKS)
        assert report.kv_usage is not None and report.kv_usage < 0.05


# --- answers ---------------------------------------------------------------------------------------------------------


def test_a_whole_chat(subject: Server) -> None:
    answer = subject.post(CHAT, max_tokens=5)
    assert answer.status == 200 and answer.headers["content-type"].startswith("application/json")
    body = answer.json()
    (choice,) = body["choices"]
    assert (body["object"], choice["index"], choice["finish_reason"]) == ("chat.completion", 0, "length")
    assert choice["message"]["role"] == "assistant" and isinstance(choice["message"]["content"], str)
    usage = body["usage"]
    assert usage["completion_tokens"] == 5 and usage["prompt_tokens"] > 0
    assert usage["total_tokens"] == usage["prompt_tokens"] + 5


def test_a_whole_completion(subject: Server) -> None:
    body = subject.post(COMPLETIONS, max_tokens=5).json()
    (choice,) = body["choices"]
    assert (body["object"], choice["finish_reason"], body["usage"]["completion_tokens"]) == (
        "text_completion",
        "length",
        5,
    )
    assert isinstance(choice["text"], str)


@pytest.mark.parametrize("usage", [True, False])
@pytest.mark.parametrize("path", ROUTES)
def test_a_stream(subject: Server, path: str, usage: bool) -> None:
    answer = subject.post(path, max_tokens=6, stream=True, stream_options={"include_usage": usage})
    assert answer.status == 200 and answer.headers["content-type"].startswith("text/event-stream")
    chunks = answer.chunks()
    if path == COMPLETIONS and not subject.traits.completion_usage_apart:
        chunks.append({**chunks[-1], "choices": []})
        usage = True
    assert len({c["id"] for c in chunks}) == 1 and {c["model"] for c in chunks} == {subject.model}
    last = chunks.pop() if usage else None
    if last is not None:
        assert last["choices"] == []
        assert last["usage"]["completion_tokens"] == 6 and last["usage"]["prompt_tokens"] > 0
    choices = [c for chunk in chunks for c in chunk["choices"]]
    assert [c["finish_reason"] for c in choices if c["finish_reason"]] == ["length"]
    assert choices[-1]["finish_reason"] == "length", "after the end nothing comes but usage"
    if path == CHAT:
        assert choices[0]["delta"]["role"] == "assistant"
        assert not choices[0]["delta"].get("content"), "the first event may be there long before a token is"
        assert "".join(c["delta"].get("content") or "" for c in choices)
    else:
        assert "".join(c["text"] for c in choices)


@pytest.mark.parametrize("path", ROUTES)
def test_a_stream_says_usage_only_where_asked(subject: Server, path: str) -> None:
    chunks = subject.post(path, max_tokens=3, stream=True).chunks()
    always = path == COMPLETIONS and not subject.traits.completion_usage_apart
    assert [i for i, c in enumerate(chunks) if c.get("usage")] == ([len(chunks) - 1] if always else [])


def test_a_prompt_sent_again_is_cached(subject: Server) -> None:
    if not subject.traits.cached_told:
        pytest.fail("a kind that does not say what was cached is to be described in TRAITS and here")
    text = "The quick brown fox jumps over the lazy dog. " * 60
    first = usage_of(subject, CHAT, f"{subject.port} {text}")
    second = usage_of(subject, CHAT, f"{subject.port} {text}")
    assert first["prompt_tokens"] == second["prompt_tokens"] > 4 * BLOCK
    details = [u["prompt_tokens_details"]["cached_tokens"] for u in (first, second)]
    assert details[0] < BLOCK
    assert second["prompt_tokens"] - 2 * BLOCK <= details[1] < second["prompt_tokens"]


# --- refusals --------------------------------------------------------------------------------------------------------


def message_of(body: bytes) -> str:
    """Of an error in OpenAI's shape."""
    error = json.loads(body)["error"]
    assert isinstance(error["message"], str) and error["message"] and error["type"]
    found: str = error["message"]
    return found


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("path", ROUTES)
def test_a_prompt_that_is_too_long_is_the_clients_fault(subject: Server, path: str, stream: bool) -> None:
    """Before the stream's head, so that the gateway can pass it on as it is."""
    answer = subject.post(path, text="word " * (2 * CONTEXT), max_tokens=4, stream=stream)
    assert answer.status == 400 and adapter(subject.engine_kind).refused(400) is None
    assert str(CONTEXT) in message_of(answer.body).replace(",", "")


def test_an_unknown_model(subject: Server) -> None:
    answer = subject.post(CHAT, model="nonesuch", max_tokens=2)
    if subject.traits.names_checked:
        assert answer.status == 404 and "nonesuch" in message_of(answer.body)
    else:
        assert answer.status == 200, answer


@pytest.mark.parametrize("raw", [b"{", b'"hi"', b"[]"])
def test_a_body_that_is_no_object(subject: Server, raw: bytes) -> None:
    answer = subject.ask("POST", CHAT, raw)
    assert answer.status == 400 and adapter(subject.engine_kind).refused(400) is None
    assert message_of(answer.body)


# --- load ------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def crowd(subject: Server, count: int, **more: Any) -> Iterator[list[socket.socket]]:
    """So many streams under way, or waiting."""
    with contextlib.ExitStack() as held:
        yield [
            held.enter_context(contextlib.closing(subject.open(stream=True, max_tokens=LONG, **more)))
            for _ in range(count)
        ]


def test_its_metrics_move_under_load(subject: Server) -> None:
    with crowd(subject, SLOTS + 2):
        eventually(lambda: subject.busy() == (SLOTS, 2))
        if "kv_usage" in subject.traits.measures:
            eventually(lambda: (subject.report().kv_usage or 0) >= SLOTS / BLOCKS)
    eventually(lambda: subject.busy() == (0, 0))


def test_over_its_limit_it_says_that_it_is_full(subject: Server) -> None:
    """Before any body, also of a stream, and in words that its adapter knows for back-pressure."""
    if not subject.traits.limited:
        pytest.skip("it queues without a limit")
    with crowd(subject, QUEUE):
        eventually(lambda: sum(subject.busy()) == QUEUE)
        for stream in (True, False):
            answer = subject.post(max_tokens=2, stream=stream)
            assert adapter(subject.engine_kind).refused(answer.status) is Outcome.OVERLOADED
            assert message_of(answer.body)


def test_lower_priority_numbers_go_first(subject: Server) -> None:
    if not subject.traits.prioritised:
        pytest.skip("it has no priorities")
    with crowd(subject, SLOTS) as running:
        eventually(lambda: subject.busy() == (SLOTS, 0))
        late, early = (subject.open(stream=True, max_tokens=LONG, priority=p) for p in (5, 1))
        with contextlib.closing(late), contextlib.closing(early):
            eventually(lambda: subject.busy() == (SLOTS, 2))
            running[0].close()
            eventually(lambda: subject.busy() == (SLOTS, 1))
            assert tokens_of(early) and not tokens_of(late, wait=False)


def tokens_of(sock: socket.socket, *, wait: bool = True) -> bool:
    """Whether a content has come, or does."""
    sock.settimeout(20 if wait else 0.0)
    data = b""
    while b'"content":"' not in data.replace(b'"content":""', b""):
        try:
            more = sock.recv(65_536)
        except BlockingIOError:
            return False
        assert more, data
        data += more
    return True


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("path", ROUTES)
def test_a_client_that_leaves_takes_its_work_along(subject: Server, path: str, stream: bool) -> None:
    """While it runs. How soon is measured by `make campaign-leave`."""
    with contextlib.closing(subject.open(path, stream=stream, max_tokens=LONG)):
        eventually(lambda: subject.busy() == (1, 0))
    eventually(lambda: subject.busy() == (0, 0), every=subject.traits.look_every)


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("path", ROUTES)
def test_a_client_that_leaves_the_queue(subject: Server, path: str, stream: bool) -> None:
    """It is out of it, while the others go on; or its work is done in its turn for nobody: such an engine should get no
    more than it runs at once."""
    with crowd(subject, SLOTS):
        eventually(lambda: subject.busy() == (SLOTS, 0))
        with contextlib.closing(subject.open(path, stream=stream, max_tokens=4)):
            eventually(lambda: subject.busy() == (SLOTS, 1))
        if subject.traits.queue_watched:
            eventually(lambda: subject.busy() == (SLOTS, 0))
        else:
            assert subject.busy() == (SLOTS, 1)


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
def test_a_stream_that_waits_has_a_head_or_has_none(subject: Server, stream: bool) -> None:
    """What a first-byte time-out means differs."""
    with crowd(subject, SLOTS):
        eventually(lambda: subject.busy() == (SLOTS, 0))
        with contextlib.closing(subject.open(stream=stream, max_tokens=4)) as waiting:
            eventually(lambda: subject.busy() == (SLOTS, 1))
            if stream and subject.traits.streams_at_once:
                assert waiting.recv(12) == b"HTTP/1.1 200"
            else:
                waiting.setblocking(False)
                with pytest.raises(BlockingIOError):
                    waiting.recv(1)


def test_half_closing_is_leaving(subject: Server) -> None:
    """Of every engine that we know, so the gateway never shuts its side of a connection down before the answer is
    there."""
    with contextlib.closing(opened(subject.port, CHAT, subject.body(max_tokens=LONG))) as sock:
        eventually(lambda: subject.busy() == (1, 0))
        sock.shutdown(socket.SHUT_WR)
        eventually(lambda: subject.busy() == (0, 0), every=subject.traits.look_every)
        with contextlib.suppress(ConnectionResetError):
            assert b'"finish_reason"' not in read_until(sock, b"\0")

"""The mock upstream over real sockets: vLLM's shapes, one event at a time."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import pytest
import uvloop
from benchmarks.mock_upstream import MockUpstream, listen

T = TypeVar("T")
Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter, MockUpstream], Awaitable[T]]


def talk(act: Talk[T], *, interval: float = 0.001) -> T:
    async def run() -> T:
        mock = MockUpstream(interval=interval)
        server = await listen(mock, "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        try:
            return await act(reader, writer, mock)
        finally:
            writer.close()
            server.close()
            mock.stop()

    return uvloop.run(run())


def post(fields: dict[str, Any], *, chunked: bool = False) -> bytes:
    body = json.dumps({"model": "mock", "messages": [], **fields}).encode()
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n"
    if chunked:
        half = len(body) // 2
        parts = b"".join(b"%x\r\n%b\r\n" % (len(p), p) for p in (body[:half], body[half:]))
        return head + b"Transfer-Encoding: chunked\r\n\r\n" + parts + b"0\r\n\r\n"
    return head + b"Content-Length: %d\r\n\r\n" % len(body) + body


async def unary_of(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
    return int(head.split()[1]), await reader.readexactly(length)


async def stream_of(reader: asyncio.StreamReader) -> list[bytes]:
    """The chunks of a stream, each the data of one write."""
    head = await reader.readuntil(b"\r\n\r\n")
    assert b"content-type: text/event-stream" in head
    chunks = []
    while size := int(await reader.readline(), 16):
        chunks.append(await reader.readexactly(size))
        await reader.readexactly(2)
    assert await reader.readexactly(2) == b"\r\n"
    return chunks


def events(chunks: list[bytes]) -> list[Any]:
    assert all(c.startswith(b"data: ") and c.endswith(b"\n\n") and c.count(b"\n\n") == 1 for c in chunks)
    return [c[6:-2] if c == b"data: [DONE]\n\n" else json.loads(c[6:-2]) for c in chunks]


@pytest.mark.parametrize("usage", [False, True])
def test_a_stream_has_role_content_finish_usage_if_asked_and_done(usage: bool) -> None:
    async def act(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, mock: MockUpstream) -> list[bytes]:
        fields: dict[str, Any] = {"stream": True, "max_tokens": 3}
        if usage:
            fields["stream_options"] = {"include_usage": True}
        writer.write(post(fields))
        return await stream_of(reader)

    found = events(talk(act))
    assert found[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert [e["choices"][0]["delta"]["content"] for e in found[1:4]] == [" word0", " word1", " word2"]
    assert found[4]["choices"][0]["finish_reason"] == "stop"
    assert found[-1] == b"[DONE]"
    assert len(found) == (7 if usage else 6)
    if usage:
        assert found[5]["choices"] == []
        assert found[5]["usage"] == {"prompt_tokens": 41, "total_tokens": 44, "completion_tokens": 3}


def test_events_of_a_stream_are_never_written_together() -> None:
    async def act(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, mock: MockUpstream) -> list[bytes]:
        writer.write(post({"stream": True, "max_tokens": 20}))
        reads = []
        while not (reads and reads[-1].endswith(b"0\r\n\r\n")):
            reads.append(await reader.read(1 << 20))
        return reads

    reads = talk(act, interval=0.02)
    assert max(r.count(b'"content":" word') for r in reads) == 1
    assert sum(r.count(b'"content":" word') for r in reads) == 20


def test_pipelined_requests_are_answered_in_order() -> None:
    async def act(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter, mock: MockUpstream
    ) -> tuple[int, list[bytes], int, dict[str, int]]:
        writer.write(post({}) + post({"stream": True, "max_tokens": 2}) + b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        first, _ = await unary_of(reader)
        stream = await stream_of(reader)
        last, _ = await unary_of(reader)
        return first, stream, last, mock.counts()

    first, stream, last, counts = talk(act)
    assert (first, len(stream), last) == (200, 5, 200)
    assert (counts["unary"], counts["streams"], counts["events"], counts["active"]) == (1, 1, 2, 0)


@pytest.mark.parametrize("step", [1, 7])
@pytest.mark.parametrize("chunked", [False, True])
def test_a_request_may_come_in_pieces(step: int, chunked: bool) -> None:
    async def act(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter, mock: MockUpstream
    ) -> tuple[tuple[int, bytes], tuple[int, bytes]]:
        data = post({}, chunked=chunked)
        for i in range(0, len(data), step):
            writer.write(data[i : i + step])
            await asyncio.sleep(0)
        first = await unary_of(reader)
        writer.write(post({}, chunked=chunked))
        return first, await unary_of(reader)

    (status, body), again = talk(act)
    assert status == 200
    assert json.loads(body)["usage"]["completion_tokens"] == 36
    assert again == (status, body)


@pytest.mark.parametrize(
    ("fault", "status", "kind"), [("error", 500, "InternalServerError"), ("busy", 503, "ServiceUnavailableError")]
)
def test_a_fault_asked_for_is_answered(fault: str, status: int, kind: str) -> None:
    async def act(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, mock: MockUpstream) -> tuple[int, bytes]:
        writer.write(post({"mock_fault": fault}))
        return await unary_of(reader)

    got, body = talk(act)
    assert (got, json.loads(body)["error"]["type"]) == (status, kind)


def test_a_cut_stream_breaks_off_after_half_of_its_events() -> None:
    async def act(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter, mock: MockUpstream
    ) -> tuple[bytes, dict[str, int]]:
        writer.write(post({"stream": True, "max_tokens": 8, "mock_fault": "cut"}))
        data = b""
        try:
            while part := await reader.read(1 << 16):
                data += part
        except ConnectionResetError:
            pass
        return data, mock.counts()

    data, counts = talk(act)
    assert data.count(b'"content":" word') == 4
    assert b"[DONE]" not in data
    assert (counts["active"], counts["streams"], counts["errors"]) == (0, 0, 1)


def test_a_client_that_leaves_ends_its_stream() -> None:
    async def act(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, mock: MockUpstream) -> dict[str, int]:
        writer.write(post({"stream": True, "max_tokens": 1_000_000}))
        await reader.readuntil(b"word1")
        assert mock.counts()["active"] == 1
        writer.close()
        while mock.counts()["active"]:  # noqa: ASYNC110 - the mock has no event for it
            await asyncio.sleep(0.001)
        return mock.counts()

    counts = talk(act)
    assert (counts["cancelled"], counts["connections"]) == (1, 0)


def test_vllms_small_routes_are_there() -> None:
    async def act(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter, mock: MockUpstream
    ) -> dict[str, tuple[int, bytes]]:
        found = {}
        for path in ("/health", "/v1/models", "/metrics", "/nope"):
            writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            found[path] = await unary_of(reader)
        return found

    found = talk(act)
    assert [status for status, _ in found.values()] == [200, 200, 200, 404]
    assert json.loads(found["/v1/models"][1])["data"][0]["id"] == "mock"
    assert b'vllm:num_requests_running{engine="0",model_name="mock"} 0.0' in found["/metrics"][1]

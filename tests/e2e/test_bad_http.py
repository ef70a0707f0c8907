"""What is not HTTP, or could be read in two ways, is refused, and nothing of it reaches an engine."""

from __future__ import annotations

import json
import threading
import time

import pytest

from e2e.client import CHAT, KEY, Answer, chat, new_id, request
from e2e.conftest import Engines
from e2e.engine import Talk, reply_ok
from e2e.gateway import Gateway

BODY = json.dumps(chat()).encode()
SIZE = len(BODY)
LENGTH = b"Content-Length: %d\r\n" % SIZE
CHUNKED = b"Transfer-Encoding: chunked\r\n"
CHUNKS = b"%x\r\n%b\r\n0\r\n\r\n" % (SIZE, BODY)
NEXT = request(chat(), x_test="smuggled")
POST = b"POST /v1/chat/completions HTTP/1.1"


def head(*lines: bytes, first: bytes = POST, host: bytes = b"Host: g\r\n") -> bytes:
    auth = b"Authorization: Bearer %b\r\nX-Test: first\r\n" % KEY.encode()
    return first + b"\r\n" + host + auth + b"".join(lines) + b"\r\n"


def coded(value: bytes) -> bytes:
    return head(b"Transfer-Encoding: " + value + b"\r\n") + CHUNKS


def sized(value: bytes) -> bytes:
    return head(b"Content-Length: " + value + b"\r\n") + BODY


def field(line: bytes) -> bytes:
    return head(line, LENGTH) + BODY


def chunked(size: bytes, after: bytes = b"\r\n0\r\n\r\n") -> bytes:
    return head(CHUNKED) + size + b"\r\n" + BODY + after


def first(line: bytes) -> bytes:
    return head(LENGTH, first=line) + BODY


BOTH = "Transfer-Encoding can't be present with Content-Length"
BOTH_TOO = "Content-Length can't be present with Transfer-Encoding"
BAD_LENGTH = "Invalid character in Content-Length"
BAD_CODING = "Invalid `Transfer-Encoding` header value"
ONLY_CHUNKED = "the only Transfer-Encoding understood is chunked"
BAD_VALUE = "Invalid header value char"
BAD_NAME = "Invalid header token"
BAD_SIZE = "Invalid character in chunk size"
N = b"%x" % SIZE
UPGRADE = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\r\n"
VERSION = "version {} is not spoken here, only 1.1 and 1.0"

REFUSED: dict[str, tuple[bytes, int, str]] = {
    # Two ways to say where the body ends.
    "length then chunked": (head(LENGTH, CHUNKED) + CHUNKS, 400, BOTH),
    "chunked then length": (head(CHUNKED, LENGTH) + CHUNKS, 400, BOTH_TOO),
    "chunked then length 0": (head(CHUNKED, b"Content-Length: 0\r\n") + CHUNKS, 400, BOTH_TOO),
    "length in a trailer": (
        head(CHUNKED) + CHUNKS[:-2] + b"Content-Length: 5\r\n\r\n",
        400,
        BOTH_TOO,
    ),
    "coding in a trailer": (head(CHUNKED) + CHUNKS[:-2] + CHUNKED + b"\r\n", 400, BAD_CODING),
    # Content-Length.
    "the same length twice": (head(LENGTH, LENGTH) + BODY, 400, "Duplicate Content-Length"),
    "two lengths": (head(LENGTH, b"Content-Length: 3\r\n") + BODY, 400, "Duplicate Content-Length"),
    "a list of lengths": (sized(b"%d, %d" % (SIZE, SIZE)), 400, BAD_LENGTH),
    "length +": (sized(b"+%d" % SIZE), 400, BAD_LENGTH),
    "length -": (sized(b"-%d" % SIZE), 400, BAD_LENGTH),
    "length hex": (sized(b"0x%x" % SIZE), 400, BAD_LENGTH),
    "length with a space": (sized(b"6 8"), 400, BAD_LENGTH),
    "length with ;": (sized(b"%d;" % SIZE), 400, BAD_LENGTH),
    "length empty": (sized(b""), 400, "Empty Content-Length"),
    "length with a fraction": (sized(b"%d.0" % SIZE), 400, BAD_LENGTH),
    "length with an exponent": (sized(b"1e2"), 400, BAD_LENGTH),
    "length with _": (sized(b"1_0"), 400, BAD_LENGTH),
    "length in other digits": (sized("٦٨".encode()), 400, BAD_LENGTH),
    "length beyond 64 bits": (sized(b"99999999999999999999"), 400, "Content-Length overflow"),
    "length after a vertical tab": (sized(b"\x0b%d" % SIZE), 400, BAD_LENGTH),
    "length before a NUL": (sized(b"%d\0" % SIZE), 400, BAD_LENGTH),
    # Transfer-Encoding.
    "coding xchunked": (coded(b"xchunked"), 501, ONLY_CHUNKED),
    "coding identity": (coded(b"identity"), 501, ONLY_CHUNKED),
    "coding gzip, chunked": (coded(b"gzip, chunked"), 501, ONLY_CHUNKED),
    "coding chunked, identity": (coded(b"chunked, identity"), 400, BAD_CODING),
    "coding chunked twice": (coded(b"chunked, chunked"), 400, BAD_CODING),
    "coding quoted": (coded(b'"chunked"'), 501, ONLY_CHUNKED),
    "coding with a parameter": (coded(b"chunked;q=1"), 501, ONLY_CHUNKED),
    "coding empty": (coded(b""), 400, "Empty Transfer-Encoding"),
    "coding with a comma after": (coded(b"chunked,"), 400, BAD_CODING),
    "coding with a comma before": (coded(b",chunked"), 501, ONLY_CHUNKED),
    "coding after a vertical tab": (coded(b"\x0bchunked"), 400, BAD_VALUE),
    "coding before a NUL": (coded(b"chunked\0"), 400, BAD_VALUE),
    "coding after a no-break space": (coded(b"\xa0chunked"), 501, ONLY_CHUNKED),
    "coding in two fields": (head(CHUNKED, CHUNKED) + CHUNKS, 400, BAD_CODING),
    "chunked, then identity in a field": (
        head(CHUNKED, b"Transfer-Encoding: identity\r\n") + CHUNKS,
        400,
        BAD_CODING,
    ),
    "identity, then chunked in a field": (
        head(b"Transfer-Encoding: identity\r\n", CHUNKED) + CHUNKS,
        501,
        ONLY_CHUNKED,
    ),
    "gzip, then chunked in a field": (head(b"Transfer-Encoding: gzip\r\n", CHUNKED) + CHUNKS, 501, ONLY_CHUNKED),
    "chunked in HTTP/1.0": (
        head(CHUNKED, first=POST[:-1] + b"0") + CHUNKS,
        400,
        "Transfer-Encoding in an HTTP/1.0 request",
    ),
    # Spaces, folds, bare CR and LF, control characters.
    "space before the colon of the coding": (
        head(b"Transfer-Encoding : chunked\r\n") + CHUNKS,
        400,
        "Invalid header field char",
    ),
    "space before the colon of the length": (
        head(b"Content-Length : %d\r\n" % SIZE) + BODY,
        400,
        "Invalid header field char",
    ),
    "folded coding": (head(b"Transfer-Encoding:\r\n chunked\r\n") + CHUNKS, 400, BAD_VALUE),
    "folded field": (
        head(b"X-A: b\r\n Transfer-Encoding: chunked\r\n") + CHUNKS,
        400,
        "Unexpected whitespace after header value",
    ),
    "fold in the first field": (
        POST + b"\r\n Transfer-Encoding: chunked\r\nHost: g\r\n\r\n" + CHUNKS,
        400,
        "Unexpected space after start line",
    ),
    "coding behind a bare LF": (
        field(b"X-A: b\nTransfer-Encoding: chunked\r\n"),
        400,
        "Missing expected CR after header value",
    ),
    "coding behind a bare CR": (
        field(b"X-A: b\rTransfer-Encoding: chunked\r\n"),
        400,
        "Missing expected LF after header value",
    ),
    "bare CR in a value": (field(b"X-A: b\rc\r\n"), 400, "Missing expected LF after header value"),
    "CR CR LF": (field(b"X-A: b\r\r\n"), 400, "Missing expected LF after header value"),
    "NUL in a value": (field(b"X-A: b\0c\r\n"), 400, BAD_VALUE),
    "NUL in a name": (field(b"X\0A: b\r\n"), 400, BAD_NAME),
    "control character in a value": (field(b"X-A: b\x01c\r\n"), 400, BAD_VALUE),
    "DEL in a value": (field(b"X-A: b\x7fc\r\n"), 400, BAD_VALUE),
    "space in a name": (field(b"X A: b\r\n"), 400, BAD_NAME),
    "name beyond ASCII": (field(b"X\xff: b\r\n"), 400, BAD_NAME),
    "no name": (field(b": b\r\n"), 400, BAD_NAME),
    "no colon": (field(b"XA\r\n"), 400, BAD_NAME),
    "LF everywhere": (head(LENGTH).replace(b"\r\n", b"\n") + BODY, 400, "Expected CRLF after version"),
    "LF at the end of the head": (head(LENGTH)[:-2] + b"\n" + BODY, 400, "Invalid header field char"),
    "CR at the end of the head": (head(LENGTH)[:-2] + b"\r" + BODY, 400, "Expected LF after headers"),
    # Chunks.
    "size 0x": (chunked(b"0x" + N), 400, BAD_SIZE),
    "size +": (chunked(b"+" + N), 400, BAD_SIZE),
    "size -": (chunked(b"-" + N), 400, BAD_SIZE),
    "size after a space": (chunked(b" " + N), 400, BAD_SIZE),
    "size before a space": (chunked(N + b" "), 400, BAD_SIZE),
    "size before a tab": (chunked(N + b"\t"), 400, BAD_SIZE),
    "size with a comma": (chunked(N + b","), 400, BAD_SIZE),
    "size with _": (chunked(N + b"_"), 400, BAD_SIZE),
    "size empty": (chunked(b""), 400, BAD_SIZE),
    "size not hex": (chunked(b"g"), 400, BAD_SIZE),
    "size beyond 64 bits": (chunked(b"ffffffffffffffff" + N), 400, "Chunk size overflow"),
    "size and a bare LF": (chunked(N + b"\n"), 400, "Missing expected CR after chunk size"),
    "size and CR CR LF": (chunked(N + b"\r"), 400, "Expected LF after chunk size"),
    "extension of nothing": (chunked(N + b";"), 400, "Invalid character in chunk extensions"),
    "extension and a bare LF": (chunked(N + b";a\nb"), 400, "Missing expected CR after chunk extension name"),
    "extension with LF in quotes": (
        chunked(N + b';a="\n"'),
        400,
        "Invalid character in chunk extensions quoted value",
    ),
    "extension with NUL": (chunked(N + b";\0"), 400, "Invalid character in chunk extensions name"),
    "data and a bare LF": (chunked(N, b"\n0\r\n\r\n"), 400, "Missing expected CR after chunk data"),
    "data and a bare CR": (chunked(N, b"\r0\r\n\r\n"), 400, "Expected LF after chunk data"),
    "data and no line end": (chunked(N, b"0\r\n\r\n"), 400, "Expected LF after chunk data"),
    "data longer than its size": (chunked(N, b"xx\r\n0\r\n\r\n"), 400, "Expected LF after chunk data"),
    "last chunk and a bare LF": (chunked(N, b"\r\n0\n\r\n"), 400, "Missing expected CR after chunk size"),
    "end and a bare LF": (chunked(N, b"\r\n0\r\n\n"), 400, "Invalid header field char"),
    "trailer with a space before the colon": (head(CHUNKED) + CHUNKS[:-2] + b"X : y\r\n\r\n", 400, BAD_NAME),
    "trailer with a bare LF": (
        head(CHUNKED) + CHUNKS[:-2] + b"X: y\n\r\n",
        400,
        "Missing expected CR after header value",
    ),
    "trailer with NUL": (head(CHUNKED) + CHUNKS[:-2] + b"X: \0\r\n\r\n", 400, BAD_VALUE),
    # Host, Authorization, Content-Type: once.
    "no Host": (head(LENGTH, host=b"") + BODY, 400, "an HTTP/1.1 request needs a Host header"),
    "two Hosts": (field(b"Host: h\r\n"), 400, "more than one host header"),
    "the same Host twice": (field(b"Host: g\r\n"), 400, "more than one host header"),
    "two Authorizations": (field(b"Authorization: Bearer other\r\n"), 400, "more than one authorization header"),
    "two Content-Types": (
        field(b"Content-Type: application/json\r\nContent-Type: text/plain\r\n"),
        400,
        "more than one content-type header",
    ),
    # Request lines.
    "a space in the target": (
        first(b"POST /v1/chat completions HTTP/1.1"),
        400,
        "Expected HTTP/, RTSP/ or ICE/",
    ),
    "a tab after the method": (first(b"POST\t/v1/chat/completions HTTP/1.1"), 400, "Expected space after method"),
    "NUL in the target": (first(b"POST /v1/chat/completions\0 HTTP/1.1"), 400, "Invalid char in url path"),
    "the target beyond ASCII": (first(b"POST /v1/\xff HTTP/1.1"), 400, "Invalid char in url path"),
    "CR in the request line": (first(b"POST /v1/chat/completions\r HTTP/1.1"), 400, "Expected CRLF"),
    "a target without a slash": (first(b"POST v1/chat/completions HTTP/1.1"), 400, "Unexpected char in url schema"),
    "no version": (first(b"POST /v1/chat/completions"), 505, VERSION.format("0.9")),
    "HTTP/0.9": (first(POST[:-3] + b"0.9"), 505, VERSION.format("0.9")),
    "HTTP/1.2": (first(POST[:-3] + b"1.2"), 400, "Invalid HTTP version"),
    "HTTP/2.0": (first(POST[:-3] + b"2.0"), 505, VERSION.format("2.0")),
    "HTTP/3.0": (first(POST[:-3] + b"3.0"), 400, "Invalid HTTP version"),
    "HTTP/2": (first(POST[:-3] + b"2"), 400, "Expected dot"),
    "HTTP/11.1": (first(POST[:-3] + b"11.1"), 400, "Expected dot"),
    "HTTP/1.1x": (first(POST + b"x"), 400, "Expected CRLF after version"),
    "a space after the version": (first(POST + b" "), 400, "Expected CRLF after version"),
    "http/1.1": (first(b"POST /v1/chat/completions http/1.1"), 400, "Expected HTTP/, RTSP/ or ICE/"),
    "ICE/1.0": (
        first(b"POST /v1/chat/completions ICE/1.0"),
        400,
        "Expected SOURCE method for ICE/x.x request",
    ),
    "a method in lower case": (first(b"post /v1/chat/completions HTTP/1.1"), 400, "Invalid method encountered"),
    "a method nobody knows": (first(b"FOO /v1/chat/completions HTTP/1.1"), 400, "Invalid method encountered"),
    "CONNECT": (first(b"CONNECT other.example:443 HTTP/1.1"), 405, "CONNECT is not spoken here"),
    "CONNECT without a body": (
        head(first=b"CONNECT other.example:443 HTTP/1.1"),
        405,
        "CONNECT is not spoken here",
    ),
    # Expect.
    "an unknown expectation": (field(b"Expect: 200-ok\r\n"), 417, "the only expectation understood is 100-continue"),
    "two expectations": (
        field(b"Expect: 100-continue, x\r\n"),
        417,
        "the only expectation understood is 100-continue",
    ),
    # Upgrade, as Java's client offers it with a first request: ignored, and no way around the rest.
    "upgrade, length and chunked": (head(UPGRADE, CHUNKED, LENGTH) + CHUNKS, 400, BOTH_TOO),
    "upgrade and two lengths": (
        head(UPGRADE, LENGTH, b"Content-Length: 3\r\n") + BODY,
        400,
        "Duplicate Content-Length",
    ),
    "upgrade and gzip": (head(UPGRADE, b"Transfer-Encoding: gzip\r\n") + CHUNKS, 501, ONLY_CHUNKED),
    "upgrade, identity, then chunked": (
        head(UPGRADE, b"Transfer-Encoding: identity\r\n", CHUNKED) + CHUNKS,
        501,
        ONLY_CHUNKED,
    ),
    "upgrade and a bad size": (head(UPGRADE, CHUNKED) + b"0x5\r\n", 400, BAD_SIZE),
    # Other protocols.
    "TLS": (bytes.fromhex("16030100f8010000f40303") + b"a" * 200, 400, "Invalid method encountered"),
    "SSH": (b"SSH-2.0-OpenSSH_9.9\r\n", 400, "Invalid method encountered"),
    "zeros": (b"\0" * 1000, 400, "Invalid method encountered"),
}


@pytest.fixture(autouse=True)
def _nothing_smuggled_yet(engines: Engines) -> None:
    with engines.raw.changed:
        engines.raw.seen.pop("smuggled", None)


def refused(answer: Answer, status: int, detail: str) -> None:
    assert (answer.status, answer.message) == (status, f"Malformed HTTP: {detail}.")
    kind = "invalid_request_error" if status < 500 else "api_error"
    assert (answer.error["type"], answer.error["code"], answer.error["param"]) == (kind, "bad_http", None)
    assert answer.get("connection") == "close"
    assert answer.get("x-forebay-reason") == "bad_http"
    assert answer.whole


def nothing_more_arrives(gateway: Gateway, engines: Engines, before: int) -> None:
    """The engines have had no request since `before`: one sent now is the next to arrive."""
    assert gateway.ask(chat(), x_test="fence").status == 200
    assert engines.raw.total() == before + 1
    assert not engines.raw.requests("smuggled")


@pytest.mark.parametrize("how", ["at once", "bytewise"])
@pytest.mark.parametrize("name", REFUSED)
def test_refused_and_closed(gateway: Gateway, engines: Engines, name: str, how: str) -> None:
    data, status, detail = REFUSED[name]
    before = engines.raw.total()
    with gateway.client() as client:
        if how == "at once":
            client.try_send(data + NEXT)
        else:
            for i in range(len(data)):
                if not client.try_send(data[i : i + 1]):
                    break
            client.try_send(NEXT)
        refused(client.read(), status, detail)
        client.closed()
    nothing_more_arrives(gateway, engines, before)


@pytest.mark.parametrize(
    "line", [b"POST /v1/chat/completions RTSP/1.0", b"SOURCE /v1/chat/completions ICE/1.0", b"DESCRIBE /v1 RTSP/1.0"]
)
def test_other_protocols_in_http_s_clothes(gateway: Gateway, engines: Engines, line: bytes) -> None:
    """Whatever the answer, it is the last one on its connection."""
    with gateway.client() as client:
        client.try_send(first(line) + NEXT)
        client.read()
        client.closed()
    assert not engines.raw.requests("smuggled")


def test_http_2_preface(gateway: Gateway) -> None:
    """A client that speaks HTTP/2 at once gets an answer it can show, then the close."""
    with gateway.client() as client:
        client.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0")
        answer = client.read()
        assert answer.status in (400, 505)
        assert answer.error["code"] == "bad_http"
        client.closed()


SERVED: dict[str, bytes] = {
    "as usual": head(LENGTH) + BODY,
    "leading zeros in the length": sized(b"00%d" % SIZE),
    "spaces around the length": sized(b" \t%d\t" % SIZE),
    "coding in capitals": coded(b"CHUNKED"),
    "coding after a tab": coded(b"\tchunked"),
    "sizes in capitals": head(CHUNKED) + CHUNKS.upper().replace(BODY.upper(), BODY),
    "one byte a chunk": head(CHUNKED) + b"".join(b"1\r\n%c\r\n" % b for b in BODY) + b"0\r\n\r\n",
    "leading zeros in a size": chunked(b"0000000000000000000" + N),
    "an extension": chunked(N + b';a=b;c="d e"'),
    "a trailer": head(CHUNKED) + CHUNKS[:-2] + b"X-Sum: 1\r\nAuthorization: Bearer other\r\nHost: h\r\n\r\n",
    "an empty line before": b"\r\n" + head(LENGTH) + BODY,
    "the absolute form": first(b"POST http://other.example/v1/chat/completions HTTP/1.1"),
    "the absolute form of https": first(b"POST HTTPS://other.example:1/v1/chat/completions HTTP/1.1"),
    "a query": first(b"POST /v1/chat/completions?api-version=2024-06-01 HTTP/1.1"),
    "a value beyond ASCII": field(b"X-A: \xe9\r\n"),
    "an underscore is another name": field(b"Transfer_Encoding: chunked\r\n"),
    "an empty Host": head(LENGTH, host=b"Host:\r\n") + BODY,
    "an upgrade with a length": head(UPGRADE, LENGTH) + BODY,
    "an upgrade with chunks": head(UPGRADE, CHUNKED) + CHUNKS,
    "an upgrade to websocket": head(b"Connection: Upgrade\r\nUpgrade: websocket\r\n", LENGTH) + BODY,
}


@pytest.mark.parametrize("how", ["at once", "bytewise"])
@pytest.mark.parametrize("name", SERVED)
def test_served_and_kept(gateway: Gateway, engines: Engines, name: str, how: str) -> None:
    """What the grammar allows is served, the engine gets the body as it was, and the connection goes on."""
    data = SERVED[name]
    engines.raw.seen.pop("first", None)
    with gateway.client() as client:
        for piece in [data] if how == "at once" else [data[i : i + 1] for i in range(len(data))]:
            client.send(piece)
        assert client.read().status == 200
        test = new_id("next")
        client.send(request(chat(), x_test=test))
        assert client.read().status == 200
    got = engines.raw.one("first")
    assert got.body == BODY
    assert got.get("content-length") == str(SIZE)
    assert got.get("host") == f"127.0.0.1:{engines.raw.port}"
    for name in ("transfer-encoding", "upgrade", "http2-settings", "connection", "x-sum", "trailer"):
        assert got.get(name) is None
    engines.raw.one(test)


@pytest.mark.parametrize("coding", ["length", "chunked"])
@pytest.mark.parametrize("count", [2, 3])
def test_upgrade_offers_in_a_row(gateway: Gateway, engines: Engines, coding: str, count: int) -> None:
    """Each is a request of its own, whatever stands in one segment."""
    engines.raw.seen.pop("first", None)
    one = head(UPGRADE, LENGTH) + BODY if coding == "length" else head(UPGRADE, CHUNKED) + CHUNKS
    test = new_id("upgrade")
    with gateway.client() as client:
        client.send(one * count + request(chat(), x_test=test))
        for _ in range(count + 1):
            assert client.read().status == 200
    assert [r.body for r in engines.raw.requests("first")] == [BODY] * count
    engines.raw.one(test)


def test_upgrade_and_close(gateway: Gateway) -> None:
    with gateway.client() as client:
        client.send(head(b"Connection: Upgrade, close\r\nUpgrade: h2c\r\n", LENGTH) + BODY)
        answer = client.read()
        assert (answer.status, answer.get("connection")) == (200, "close")
        client.closed()


def test_upgrade_offer_that_is_refused(gateway: Gateway) -> None:
    with gateway.client() as client:
        client.send(request(chat(), key="wrong-key-0123456789abcdef", Upgrade="h2c", Connection="Upgrade"))
        assert client.read().status == 401
        client.send(request(chat()))
        assert client.read().status == 200


# --- versions, methods ----------------------------------------------------------------------------------------------


def test_http_1_0_is_closed(gateway: Gateway) -> None:
    with gateway.client() as client:
        client.send(request(chat(), version="1.0"))
        answer = client.read()
        assert (answer.status, answer.whole) == (200, True)
        client.closed()


def test_http_1_0_stream_ends_with_the_connection(gateway: Gateway) -> None:
    with gateway.client() as client:
        client.send(request(chat(stream=True), version="1.0"))
        answer = client.read()
        assert (answer.status, answer.get("transfer-encoding"), answer.get("content-length")) == (200, None, None)
        assert answer.body.endswith(b"data: [DONE]\n\n")


def test_http_1_0_asked_to_keep(gateway: Gateway) -> None:
    """Without `Connection: keep-alive` in the answer such a client waits for the close, so one of both must come."""
    with gateway.client() as client:
        client.send(request(chat(), version="1.0", Connection="keep-alive"))
        answer = client.read()
        assert answer.status == 200
        if (answer.get("connection") or "").lower() == "keep-alive":
            client.send(request(chat(), version="1.0"))
            assert client.read().status == 200
        else:
            client.closed()


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "PATCH", "HEAD", "TRACE"])
@pytest.mark.parametrize("path", [CHAT, "/v1/completions", "/v1/embeddings"])
def test_wrong_method(gateway: Gateway, method: str, path: str) -> None:
    answer = gateway.ask(path=path, method=method)
    assert (answer.status, answer.get("allow")) == (405, "POST")
    if method != "HEAD":
        assert answer.message == f"{method} is not allowed on {path}; use POST."


# --- Expect: 100-continue --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", [LENGTH, CHUNKED])
@pytest.mark.parametrize("word", [b"100-continue", b"100-Continue"])
def test_continue(gateway: Gateway, how: bytes, word: bytes) -> None:
    with gateway.client() as client:
        client.send(head(b"Expect: " + word + b"\r\n", how))
        assert client.head().status == 100
        client.send(BODY if how is LENGTH else CHUNKS)
        assert client.head().status == 200


def test_no_continue_for_what_is_refused_by_its_head(gateway: Gateway) -> None:
    with gateway.client() as client:
        client.send(head(b"Expect: 100-continue\r\n", LENGTH, first=b"POST /v1/nowhere HTTP/1.1"))
        answer = client.head()
        client.body(answer)
        assert (answer.status, answer.get("connection")) == (404, "close")
        client.closed()


def test_no_continue_for_http_1_0(gateway: Gateway) -> None:
    with gateway.client() as client:
        client.send(head(b"Expect: 100-continue\r\n", LENGTH, first=POST[:-1] + b"0") + BODY)
        assert client.head().status == 200


def test_continue_waits_for_the_answer_before_it(gateway: Gateway, engines: Engines) -> None:
    go = threading.Event()
    test = new_id("slow")

    def slow(talk: Talk) -> None:
        assert go.wait(20)
        reply_ok(talk)

    engines.raw.scripts[test] = slow
    with gateway.client() as client:
        client.send(request(chat(), x_test=test))
        engines.raw.wait_for(test)
        client.send(head(b"Expect: 100-continue\r\n", LENGTH))
        go.set()
        assert client.read().status == 200
        assert client.head().status == 100
        client.send(BODY)
        assert client.read().status == 200


# --- sizes -----------------------------------------------------------------------------------------------------------

HEAD_TOO_LARGE = "The request head is over the limit of 16,384 bytes (limits.header_bytes)."


@pytest.mark.parametrize(
    "extra",
    [
        b"X-A: " + b"b" * 20_000 + b"\r\n",
        b"X" * 20_000 + b": b\r\n",
        b"".join(b"X-%d: %b\r\n" % (i, b"c" * 400) for i in range(50)),
        b"X-A: " + b"b" * 3_000_000,
        b"X" * 3_000_000,
    ],
    ids=["one long value", "one long name", "many", "a value without an end", "a name without an end"],
)
def test_head_too_large(gateway: Gateway, engines: Engines, extra: bytes) -> None:
    before = engines.raw.total()
    with gateway.client() as client:
        client.try_send(head(LENGTH, extra)[:-2] + (b"\r\n" + BODY if len(extra) < 1_000_000 else b""))
        answer = client.read()
        assert (answer.status, answer.message, answer.get("connection")) == (431, HEAD_TOO_LARGE, "close")
        assert answer.error["code"] == "headers_too_large"
    nothing_more_arrives(gateway, engines, before)


@pytest.mark.parametrize("size", [20_000, 3_000_000])
def test_target_too_large(gateway: Gateway, size: int) -> None:
    with gateway.client() as client:
        client.try_send(b"GET /" + b"a" * size + b" HTTP/1.1\r\nHost: g\r\n\r\n")
        answer = client.read()
        assert (answer.status, answer.message) == (431, HEAD_TOO_LARGE)


@pytest.mark.parametrize("count", [61, 500, 5_000])
def test_too_many_headers(gateway: Gateway, engines: Engines, count: int) -> None:
    """The message names the limit that was passed."""
    before = engines.raw.total()
    with gateway.client() as client:
        client.try_send(head(LENGTH, *[b"a: b\r\n"] * count) + BODY)
        answer = client.read()
        assert (answer.status, answer.error["code"]) == (431, "headers_too_large")
        if count * 6 < 16_384:
            assert "limits.header_count" in answer.message
    nothing_more_arrives(gateway, engines, before)


def test_as_many_headers_as_allowed(gateway: Gateway) -> None:
    with gateway.client() as client:
        client.send(head(LENGTH, *[b"a: b\r\n"] * 56) + BODY)  # and Host, Authorization, X-Test
        assert client.read().status == 200


BODY_TOO_LARGE = "The body is over the limit of 65,536 bytes (limits.body_bytes)."


@pytest.mark.parametrize("size", [65_537, 10_000_000, 1 << 50])
def test_body_too_large_by_its_length(hasty: Gateway, size: int) -> None:
    """Refused by the head alone."""
    with hasty.client() as client:
        client.send(head(b"Content-Length: %d\r\n" % size))
        answer = client.read()
        assert (answer.status, answer.message) == (413, BODY_TOO_LARGE)
        assert (answer.error["code"], answer.get("connection")) == ("body_too_large", "close")
        client.closed()


@pytest.mark.parametrize("size", [65_537, 2_000_000])
def test_body_too_large_by_its_chunks(hasty: Gateway, engines: Engines, size: int) -> None:
    before = engines.raw.total()
    with hasty.client() as client:
        data = b"".join(b"400\r\n%b\r\n" % (b"a" * 1024) for _ in range(size // 1024)) + b"400\r\n" + b"a" * 1024
        client.try_send(head(CHUNKED) + data + b"\r\n0\r\n\r\n" + NEXT)
        answer = client.read()
        assert (answer.status, answer.message, answer.get("connection")) == (413, BODY_TOO_LARGE, "close")
        client.closed()
    assert engines.raw.total() == before


def test_body_as_large_as_allowed(hasty: Gateway, engines: Engines) -> None:
    body = chat(pad="")
    body["pad"] = "x" * (65_536 - len(json.dumps(body)))
    test = new_id("limit")
    assert hasty.ask(body, x_test=test).status == 200
    assert len(engines.raw.one(test).body) == 65_536


def test_20_mb_pass_intact(gateway: Gateway, engines: Engines) -> None:
    text = "".join(f"{i:x}é" for i in range(3_200_000))
    body = json.dumps(chat(pad=text), ensure_ascii=False).encode()
    assert len(body) > 20_000_000
    test = new_id("large")
    assert gateway.ask(body, x_test=test).status == 200
    assert engines.raw.one(test).body == body
    chunked_test = new_id("large")
    step = 777_777
    pieces = [body[i : i + step] for i in range(0, len(body), step)]
    with gateway.client() as client:
        auth = b"Authorization: Bearer %b\r\nX-Test: %b\r\n" % (KEY.encode(), chunked_test.encode())
        client.send(POST + b"\r\nHost: g\r\n" + auth + CHUNKED + b"\r\n")
        client.send(*(b"%x\r\n%b\r\n" % (len(p), p) for p in pieces), b"0\r\n\r\n")
        assert client.read().status == 200
    assert engines.raw.one(chunked_test).body == body


def test_more_framing_than_body(gateway: Gateway, engines: Engines) -> None:
    """Endless extensions and trailers are bounded."""
    for data, status in (
        (b"1;" + b"a" * 2_000_000, 400),
        (b"1\r\n{\r\n0\r\n" + b"X: y\r\n" * 400_000, 431),
        (b"1\r\n{\r\n0\r\nX: " + b"y" * 2_000_000, 400),
    ):
        before = engines.raw.total()
        with gateway.client() as client:
            client.try_send(head(CHUNKED) + data)
            answer = client.read()
            if status == 400:
                refused(answer, 400, "more framing than body")
            assert answer.status == status
        nothing_more_arrives(gateway, engines, before)


def test_truncated_body(gateway: Gateway, engines: Engines) -> None:
    """The client closes within its body: nothing is sent to an engine."""
    before = engines.raw.total()
    for part in (head(LENGTH) + BODY[:-1], head(CHUNKED) + CHUNKS[:-1], head(CHUNKED) + CHUNKS[:-5], head(LENGTH)[:-2]):
        with gateway.client() as client:
            client.send(part)
            client.sock.shutdown(1)
            client.closed()
    nothing_more_arrives(gateway, engines, before)


# --- pipelining, keep-alive -----------------------------------------------------------------------------------------


def pipelined(tests: list[str], **fields: object) -> bytes:
    return b"".join(request(chat(**fields), x_test=t, x_request_id=t) for t in tests)


@pytest.mark.parametrize("count", [2, 8, 9, 40])
@pytest.mark.parametrize("how", ["one segment", "one each", "bytewise"])
def test_pipelined_in_order(gateway: Gateway, engines: Engines, count: int, how: str) -> None:
    tests = [new_id("pipe") for _ in range(count)]
    data = pipelined(tests)
    with gateway.client() as client:
        if how == "one segment":
            client.send(data)
        elif how == "one each":
            client.send(*(pipelined([t]) for t in tests))
        else:
            client.send(*(data[i : i + 1] for i in range(len(data))))
        answers = [client.read() for _ in tests]
    assert [a.status for a in answers] == [200] * count
    assert [a.get("x-request-id") for a in answers] == tests
    for test in tests:
        engines.raw.one(test)


def test_pipelined_answers_keep_their_order(gateway: Gateway, engines: Engines) -> None:
    """The second is refused at once and the first takes its time: the second's answer waits."""
    test = new_id("slow")

    def slow(talk: Talk) -> None:
        time.sleep(0.3)
        reply_ok(talk)

    engines.raw.scripts[test] = slow
    with gateway.client() as client:
        client.send(pipelined([test]) + request(b"[]") + request(path="/v1/models", method="GET") + pipelined(["last"]))
        answers = [client.read() for _ in range(4)]
    assert [a.status for a in answers] == [200, 400, 200, 200]
    assert answers[0].get("x-request-id") == test
    assert answers[3].get("x-request-id") == "last"


def test_heads_are_not_mixed_up(gateway: Gateway, engines: Engines) -> None:
    """Two different requests in one segment, then each again: whatever is remembered of a head is its own."""
    one, two = new_id("mix"), new_id("mix")
    first_request = request(chat(), x_test=one)
    body = {"model": "raw", "prompt": "Hi"}
    second_request = request(body, "/v1/completions", x_test=two)
    with gateway.client() as client:
        for data in (first_request + second_request, first_request, second_request, first_request):
            client.send(data)
            for _ in range(data.count(b"HTTP/1.1")):
                assert client.read().status == 200
    assert [r.line for r in engines.raw.requests(one)] == [POST] * 3
    assert [r.json for r in engines.raw.requests(one)] == [chat()] * 3
    assert [r.line for r in engines.raw.requests(two)] == [b"POST /v1/completions HTTP/1.1"] * 2
    assert [r.json for r in engines.raw.requests(two)] == [body] * 2


def test_pipelined_with_bad_http_behind(gateway: Gateway) -> None:
    """What came before is answered, then the refusal, then the close."""
    with gateway.client() as client:
        client.send(pipelined(["a", "b"]) + head(LENGTH, CHUNKED) + CHUNKS)
        assert [client.read().get("x-request-id") for _ in range(2)] == ["a", "b"]
        refused(client.read(), 400, BOTH)
        client.closed()


def test_pipelined_streams(gateway: Gateway) -> None:
    with gateway.client() as client:
        client.send(pipelined(["a", "b", "c"], stream=True))
        for name in "abc":
            answer = client.read()
            assert (answer.status, answer.get("x-request-id"), answer.whole) == (200, name, True)
            assert answer.body.endswith(b"data: [DONE]\n\n")


@pytest.mark.parametrize("ahead", [2, 30, 400])
@pytest.mark.parametrize("how", ["close", "half-close", "reset"])
def test_leaving_while_pipelined_ahead(gateway: Gateway, engines: Engines, ahead: int, how: str) -> None:
    """The engine's connection is closed at once, and what was sent ahead is never begun."""
    first_test, rest = new_id("leave"), new_id("ahead")
    gone = threading.Event()

    def hang(talk: Talk) -> None:
        talk.wait_gone()
        gone.set()

    engines.raw.scripts[first_test] = hang
    client = gateway.client()
    client.send(request(chat(), x_test=first_test))
    engines.raw.wait_for(first_test)
    client.try_send(request(chat(), x_test=rest) * ahead)
    if how == "half-close":
        client.sock.shutdown(1)
    elif how == "reset":
        client.sock.setsockopt(1, 13, b"\1\0\0\0\0\0\0\0")
    if how != "half-close":
        client.close()
    assert gone.wait(60)
    client.close()
    assert gateway.ask(chat(), x_test=new_id()).status == 200
    assert not engines.raw.requests(rest)


def test_keep_alive(gateway: Gateway) -> None:
    with gateway.client() as client:
        for i in range(20):
            client.send(request(chat(stream=bool(i % 2))))
            answer = client.read()
            assert (answer.status, answer.whole, answer.get("connection")) == (200, True, None)


@pytest.mark.parametrize("word", ["close", "Close", "close, x-a"])
@pytest.mark.parametrize("body", [chat(), chat(stream=True), chat("nobody")])
def test_connection_close(gateway: Gateway, engines: Engines, word: str, body: dict[str, object]) -> None:
    with gateway.client() as client:
        client.send(request(body, Connection=word) + NEXT)
        answer = client.read()
        assert (answer.get("connection"), answer.whole) == ("close", True)
        client.closed()
    assert not engines.raw.requests("smuggled")

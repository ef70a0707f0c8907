"""Which headers pass, both ways: all but those of one connection, those of the caller's own, and the gateway's."""

from __future__ import annotations

import gzip

import pytest

from e2e.client import KEY, chat, new_id, request
from e2e.conftest import ENGINE_KEY, Engines
from e2e.engine import ANSWER, DONE, ROLE, Received, chunk, delta, event, says, stream_head, whole
from e2e.gateway import Gateway

LAST = event(delta({"content": "Hi"}, "stop"))


def forwarded(gateway: Gateway, engines: Engines, *lines: bytes, model: str = "raw") -> Received:
    test = new_id("headers")
    data = request(chat(model), x_test=test)
    head, _, body = data.partition(b"\r\n\r\n")
    with gateway.client() as client:
        client.send(b"\r\n".join([head, *lines, b"", body]))
        answer = client.read()
        assert answer.status == 200, answer
    return engines.raw.one(test)


OWN = {"host", "accept-encoding", "authorization", "x-test", "content-type", "x-request-id", "content-length"}


def names(got: Received) -> set[str]:
    return {n for n, _ in got.headers}


def test_what_the_engine_gets_of_a_plain_request(gateway: Gateway, engines: Engines) -> None:
    got = forwarded(gateway, engines)
    assert names(got) == OWN
    assert len(got.headers) == len(OWN)
    assert got.line == b"POST /v1/chat/completions HTTP/1.1"
    assert got.get("host") == f"127.0.0.1:{engines.raw.port}"
    assert (got.get("accept-encoding"), got.get("content-type")) == ("identity", "application/json")
    assert got.get("authorization") == f"Bearer {ENGINE_KEY}"


@pytest.mark.parametrize(
    "line",
    [
        b"Connection: keep-alive",
        b"Keep-Alive: timeout=5",
        b"Proxy-Connection: keep-alive",
        b"Proxy-Authorization: Basic eDp5",
        b"TE: trailers, deflate",
        b"Trailer: X-Sum",
        b"Accept-Encoding: gzip, br",
        b"api-key: another",
        b"x-api-key: another",
        b"Cookie: a=b",
        b"Origin: https://app.example",
        b"Referer: https://app.example/chat",
        b"Forwarded: for=192.0.2.1",
        b"X-Forwarded-For: 192.0.2.1",
        b"X-Forwarded-Host: app.example",
        b"X-Forwarded-Proto: https",
        b"X-Real-IP: 192.0.2.1",
        b"X-Priority: low",
        b"X-User-Tier: low",
        b"Expect: 100-continue",
        b"HTTP2-Settings: AAAA",
        b"X-Request-Id: mine",
        b"X-Forebay-Tags: team=search",
    ],
)
def test_not_passed_on(gateway: Gateway, engines: Engines, line: bytes) -> None:
    got = forwarded(gateway, engines, line)
    assert names(got) == OWN
    assert len(got.headers) == len(OWN)
    assert got.get("accept-encoding") == "identity"
    assert got.get("authorization") == f"Bearer {ENGINE_KEY}"


@pytest.mark.parametrize(
    "lines",
    [
        [b"Connection: X-A, X-B", b"X-A: 1", b"X-B: 2"],
        [b"Connection: x-a,x-b", b"X-A: 1", b"x-b: 2"],
        [b"Connection: keep-alive ,\tX-A", b"X-A: 1"],
        [b"X-A: 1", b"Connection: close, X-A"],
        [b"Connection: X-A", b"Connection: X-B", b"X-A: 1", b"X-B: 2"],
        [b"Connection: X-A", b"X-A: 1", b"Connection: keep-alive"],
        [b"Connection: ,,X-A,", b"X-A: 1", b"X-A: 2"],
    ],
    ids=range(7),
)
def test_names_in_connection(gateway: Gateway, engines: Engines, lines: list[bytes]) -> None:
    """Also where it is given in several fields."""
    assert names(forwarded(gateway, engines, *lines)) == OWN


@pytest.mark.parametrize(
    "word",
    ["content-length", "host", "content-type", "authorization", "x-request-id", "accept-encoding", "transfer-encoding"],
)
def test_connection_takes_nothing_that_is_the_gateway_s(gateway: Gateway, engines: Engines, word: str) -> None:
    got = forwarded(gateway, engines, b"Connection: " + word.encode())
    assert names(got) == OWN
    assert got.json == chat()


def test_everything_else_passes(gateway: Gateway, engines: Engines) -> None:
    """In order, with its case of values, twice where it is twice."""
    lines = [
        (b"User-Agent", b"OpenAI/Python 1.60.0"),
        (b"Accept", b"application/json"),
        (b"X-Stainless-Retry-Count", b"0"),
        (b"traceparent", b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
        (b"OpenAI-Organization", b"org-1"),
        (b"X-Twice", b"one"),
        (b"X-Empty", b""),
        (b"X-Twice", b"two, three"),
        (b"X-Bytes", b"caf\xe9 \xe2\x98\x95"),
        (b"X-Long", b"l" * 5000),
    ]
    got = forwarded(gateway, engines, *(n + b": " + v for n, v in lines))
    wanted = [(n.decode().lower(), v.decode("latin-1")) for n, v in lines]
    assert [h for h in got.headers if h[0] not in OWN] == wanted


def test_headers_change_within_a_connection(gateway: Gateway, engines: Engines) -> None:
    """Nothing of an earlier request's head is left in a later one."""
    sent = [("a", "1"), ("a", "1"), ("b", "2"), ("a", "3"), ("a", "1")]
    tests = [new_id("change") for _ in sent]
    with gateway.client() as client:
        for test, (name, value) in zip(tests, sent, strict=True):
            client.send(request(chat(), x_test=test, headers={f"X-{name}": value}))
            assert client.read().status == 200
    for test, (name, value) in zip(tests, sent, strict=True):
        got = engines.raw.one(test)
        assert [h for h in got.headers if h[0] not in OWN] == [(f"x-{name}", value)]


def test_bodies_change_under_one_head(gateway: Gateway, engines: Engines) -> None:
    test = new_id("change")
    words = ["a", "bb", "a", "x" * 1000, "ccc", "", "dd"]
    with gateway.client() as client:
        for word in words:
            client.send(request(chat(user=word), x_test=test))
            assert client.read().status == 200
    assert [r.json["user"] for r in engines.raw.requests(test)] == words


def test_prefix_of_the_engine_s_url(gateway: Gateway, engines: Engines) -> None:
    got = forwarded(gateway, engines, model="raw-below")
    assert got.line == b"POST /some/where/v1/chat/completions HTTP/1.1"
    assert got.get("authorization") is None
    assert KEY not in repr(got.headers)


# --- on the way back --------------------------------------------------------------------------------------------------

NOT_BACK = [
    "connection: x-hop",
    "x-hop: 1",
    "keep-alive: timeout=5",
    "proxy-authenticate: Basic",
    "trailer: x-sum",
    "upgrade: h2c",
    "server: uvicorn",
    "date: Mon, 01 Jan 2001 00:00:00 GMT",
    "set-cookie: a=b",
    "vary: Origin",
    "alt-svc: h3",
    "strict-transport-security: max-age=1",
    "access-control-allow-origin: *",
    "access-control-allow-credentials: true",
    "x-request-id: theirs",
    "x-ratelimit-remaining-tokens: 3",
    "x-forebay-max-tokens: 3",
]
BACK = ["x-engine: a", "x-engine: b", "openai-processing-ms: 12", "x-bytes: caf\xe9"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("status", [200, 400])
def test_headers_of_an_answer(gateway: Gateway, engines: Engines, stream: bool, status: int) -> None:
    test = new_id("back")
    lines = [*NOT_BACK, *BACK]
    if stream and status == 200:
        script = says(stream_head(*lines), chunk(ROLE + LAST + DONE), b"0\r\n\r\n")
    else:
        script = says(whole(status, ANSWER, *lines))
    engines.raw.scripts[test] = script
    answer = gateway.ask(chat(stream=stream), x_test=test, x_request_id=test)
    assert (answer.status, answer.whole) == (status, True)
    own = {"content-type", "content-length", "transfer-encoding", "x-request-id", "date"}
    back = [tuple(line.split(": ", 1)) for line in BACK]
    assert [h for h in answer.headers if h[0] not in own] == back
    assert answer.get("x-request-id") == test
    assert not (answer.get("date") or "").startswith("Mon, 01 Jan 2001")
    assert (answer.get("content-length") is None) is (stream and status == 200)


def test_answers_change_within_a_connection(gateway: Gateway, engines: Engines) -> None:
    """Each answer has its own head and body, however like the one before it its head is."""
    date = "date: Mon, 01 Jan 2001 00:00:0{} GMT"
    short, long = ANSWER, ANSWER[:-1] + b', "pad": "' + b"x" * 2_000 + b'"}'
    told: list[tuple[int, bytes, list[str]]] = [
        (200, short, [date.format(0)]),
        (200, long, [date.format(0)]),
        (200, short, [date.format(1)]),
        (200, short, [date.format(1), "x-engine: a"]),
        (200, long, [date.format(1), "x-engine: b"]),
        (400, b'{"error": {"message": "no"}}', [date.format(1), "x-engine: b"]),
        (200, short, ["x-engine: b", date.format(1)]),
        (200, gzip.compress(long), ["x-engine: b", date.format(1), "content-encoding: gzip"]),
        (200, short, ["connection: x-engine", "x-engine: b", date.format(1)]),
        (200, long, ["x-engine: b", date.format(1)]),
    ]
    test = new_id("back")
    with gateway.client() as client:
        for status, body, lines in told * 2:
            engines.raw.scripts[test] = says(whole(status, body, *lines))
            client.send(request(chat(), x_test=test))
            answer = client.read()
            plain = gzip.decompress(body) if body.startswith(b"\x1f\x8b") else body
            assert (answer.status, answer.body, answer.whole) == (status, plain, True)
            named = [x.removeprefix("x-engine: ") for x in lines if x.startswith("x-engine")]
            hidden = any(x.startswith("connection") for x in lines)
            assert [v for n, v in answer.headers if n == "x-engine"] == ([] if hidden else named)

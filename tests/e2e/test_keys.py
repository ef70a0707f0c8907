"""Who may call: keys of the configuration and of the database, their classes, and those who guess."""

from __future__ import annotations

import json
import time

import pytest

from e2e.client import CHAT, KEY, Answer, chat, new_id, request
from e2e.conftest import ENGINE_KEY, LOW_KEY, RAISE_KEY, Engines
from e2e.gateway import Gateway
from waiting import eventually

NO_KEY = ("missing_api_key", "No API key given. Send it as 'Authorization: Bearer <key>'.")
BAD_SCHEME = ("invalid_api_key", "The Authorization header must be 'Bearer <key>'.")
WRONG = ("invalid_api_key", "The API key is not known here.")


def refused(answer: Answer, code: str, message: str) -> None:
    assert answer.status == 401
    assert answer.error == {"message": message, "type": "authentication_error", "param": None, "code": code}
    assert (answer.get("www-authenticate"), answer.get("x-should-retry")) == ("Bearer", "false")


def somewhere(_next: list[int] = [0]) -> dict[str, str]:  # noqa: B006 - a counter
    """An address of its own, for failed keys are counted by it."""
    _next[0] += 1
    return {"X-Forwarded-For": f"198.51.{_next[0] // 250}.{_next[0] % 250 + 1}"}


@pytest.mark.parametrize(("path", "method"), [(CHAT, "POST"), ("/v1/models", "GET"), ("/v1/models/raw", "GET")])
def test_no_key(gateway: Gateway, path: str, method: str) -> None:
    refused(gateway.ask(chat() if method == "POST" else None, path, method, key=None), *NO_KEY)


@pytest.mark.parametrize(
    "key",
    ["wrong-key-0123456789abcdef", KEY[:-1], KEY + "x", KEY.upper(), "x" * 10_000, "\xe9" * 20, KEY + ", " + KEY],
    ids=range(7),
)
def test_wrong_key(gateway: Gateway, engines: Engines, key: str) -> None:
    before = engines.raw.total()
    refused(gateway.ask(chat(), key=key, headers=somewhere()), *WRONG)
    assert engines.raw.total() == before


@pytest.mark.parametrize(
    "value", [f"Basic {KEY}", f"Token {KEY}", KEY, "Bearer", f"Bearer:{KEY}", f"Digest username={KEY}", f"Bearer{KEY}"]
)
def test_wrong_scheme(gateway: Gateway, value: str) -> None:
    refused(gateway.ask(chat(), key=None, Authorization=value), *BAD_SCHEME)


@pytest.mark.parametrize("value", ["Bearer ", "Bearer \t"])
def test_empty_key(gateway: Gateway, value: str) -> None:
    answer = gateway.ask(chat(), key=None, Authorization=value)
    assert answer.status == 401
    assert (answer.error["code"], answer.message) in (NO_KEY, BAD_SCHEME)


@pytest.mark.parametrize("value", [f"bearer {KEY}", f"BEARER {KEY}", f"Bearer   {KEY}  "])
def test_scheme_in_any_case(gateway: Gateway, value: str) -> None:
    assert gateway.ask(chat(), key=None, Authorization=value).status == 200


@pytest.mark.parametrize("name", ["api-key", "x-api-key", "Api-Key", "X-API-Key"])
def test_key_in_another_header(gateway: Gateway, name: str) -> None:
    assert gateway.ask(chat(), key=None, headers={name: KEY}).status == 200
    refused(gateway.ask(chat(), key=None, headers={name: "wrong-key-0123456789abcdef", **somewhere()}), *WRONG)


def test_authorization_comes_first(gateway: Gateway) -> None:
    refused(gateway.ask(chat(), key="wrong-key-0123456789abcdef", headers={"api-key": KEY, **somewhere()}), *WRONG)


def test_refused_keys_keep_the_connection(gateway: Gateway) -> None:
    with gateway.client() as client:
        client.send(request(chat(), key="wrong-key-0123456789abcdef", headers=somewhere()))
        assert client.read().status == 401
        client.send(request(chat()))
        assert client.read().status == 200


def test_refused_before_the_body(gateway: Gateway) -> None:
    """A large body is not waited for."""
    with gateway.client() as client:
        head = request(chat(), key="wrong-key-0123456789abcdef", headers=somewhere()).partition(b"\r\n\r\n")[0]
        length = f"Content-Length: {len(json.dumps(chat()))}".encode()
        assert length in head
        client.send(head.replace(length, b"Content-Length: 20000000") + b"\r\n\r\n{")
        answer = client.read()
        assert (answer.status, answer.get("connection")) == (401, "close")
        client.closed()


# --- keys of the database -------------------------------------------------------------------------------------------


def create(gateway: Gateway, name: str, *arguments: str) -> tuple[str, str]:
    """A new key's text and id."""
    made = json.loads(gateway.cli("key", "create", "--name", name, "--json", *arguments))
    return made["key"], made["record"]["id"]


def test_key_s_life(gateway: Gateway) -> None:
    """Made and revoked while the gateway runs; a kept connection is no way around."""
    key, key_id = create(gateway, "life")
    eventually(lambda: gateway.ask(chat(), key=key, headers=somewhere()).status == 200)
    with gateway.client() as client:
        for _ in range(3):
            client.send(request(chat(), key=key))
            assert client.read().status == 200
        gateway.cli("key", "revoke", key_id)
        revoked = ("revoked_api_key", "The API key was revoked. Ask for a new one.")
        eventually(lambda: gateway.ask(chat(), key=key).status == 401)
        client.send(request(chat(), key=key))
        refused(client.read(), *revoked)
    refused(gateway.ask(chat(), key=key), *revoked)


def test_expired_key(gateway: Gateway) -> None:
    key, _ = create(gateway, "short", "--expires", "8s")
    eventually(lambda: gateway.ask(chat(), key=key, headers=somewhere()).status == 200)
    end = time.time() + 60
    with gateway.client() as client:
        while True:
            client.send(request(chat(), key=key))
            answer = client.read()
            if answer.status != 200:
                break
            assert time.time() < end
            time.sleep(0.1)
    code = answer.error["code"]
    assert code == "expired_api_key"
    assert answer.message.startswith("The API key expired on 20")
    assert answer.message.endswith(" UTC. Ask for a new one.")
    refused(gateway.ask(chat(), key=key), code, answer.message)


def test_key_for_some_models(gateway: Gateway) -> None:
    key, _ = create(gateway, "some", "--models", "raw-alias,forebay-sim")
    eventually(lambda: gateway.ask(path="/v1/models", method="GET", key=key, headers=somewhere()).status == 200)
    assert gateway.models(key) == ["forebay-sim", "raw-alias"]
    assert gateway.ask(chat("raw-alias"), key=key).status == 200
    answer = gateway.ask(chat("raw"), key=key)
    assert (answer.status, answer.message) == (
        404,
        "The model 'raw' does not exist here or your key may not use it. Known models: forebay-sim, raw-alias.",
    )


# --- those who guess ------------------------------------------------------------------------------------------------

TOO_MANY = "Too many requests with unknown API keys from this address."


def guess(gateway: Gateway, **headers: str) -> Answer:
    return gateway.ask(
        chat(), key=new_id("guess-0123456789abcdef"), headers={k.replace("_", "-"): v for k, v in headers.items()}
    )


def limited(answer: Answer) -> None:
    assert (answer.status, answer.message) == (429, TOO_MANY)
    assert (answer.error["type"], answer.error["code"]) == ("rate_limit_error", "too_many_failed_keys")
    assert 1 <= int(answer.get("retry-after") or 0) <= 60


def test_failed_keys_are_limited_by_address(gateway: Gateway) -> None:
    """Five a minute are configured. Others, and good keys from the same address, are not touched."""
    here, there = {"X_Forwarded_For": "203.0.113.7"}, {"X_Forwarded_For": "203.0.113.8"}
    for _ in range(5):
        refused(guess(gateway, **here), *WRONG)
    limited(guess(gateway, **here))
    refused(guess(gateway, **there), *WRONG)
    assert gateway.ask(chat(), headers={"X-Forwarded-For": "203.0.113.7"}).status == 200


@pytest.mark.parametrize(
    ("value", "counted"),
    [
        ("203.0.113.20", "203.0.113.20"),
        ("6.6.6.6, 203.0.113.21", "203.0.113.21"),
        ("6.6.6.6, 203.0.113.22, 127.0.0.1", "203.0.113.22"),
        ("203.0.113.23:4711", "203.0.113.23"),
        ("[2001:db8::1]:4711", "2001:db8::1"),
        ("2001:db8::2", "2001:db8::2"),
    ],
)
def test_the_last_hop_that_is_no_proxy_counts(gateway: Gateway, value: str, counted: str) -> None:
    """What a client writes at the front of X-Forwarded-For is not believed."""
    for _ in range(5):
        refused(guess(gateway, X_Forwarded_For=value), *WRONG)
    limited(guess(gateway, X_Forwarded_For=counted))


def test_forwarded_for_in_two_fields(gateway: Gateway) -> None:
    data = request(chat(), key="wrong-key-0123456789abcdef")
    both = b"\r\nX-Forwarded-For: 6.6.6.%d\r\nX-Forwarded-For: 203.0.113.30\r\n\r\n"
    for i in range(5):
        refused(gateway.raw(data.replace(b"\r\n\r\n", both % i, 1)), *WRONG)
    limited(guess(gateway, X_Forwarded_For="203.0.113.30"))


def test_forwarded_for_is_not_believed_of_others(hasty: Gateway) -> None:
    """Without a trusted proxy the address is the connection's, whatever the header says."""
    statuses = [guess(hasty, X_Forwarded_For=f"203.0.113.{i}").status for i in range(5)]
    assert statuses == [401, 401, 401, 429, 429]


def test_forwarded_for_is_believed_only_where_the_listener_trusts(gateway: Gateway) -> None:
    """The second listener names no trusted proxy; the first one's are not its own."""
    statuses = []
    for i in range(7):
        with gateway.client(port=1) as client:
            headers = {"X-Forwarded-For": f"203.0.113.{100 + i}"}
            client.send(request(chat(), key=new_id("guess-0123456789abcdef"), headers=headers))
            statuses.append(client.read().status)
    assert statuses[-2:] == [429, 429]


# --- classes ---------------------------------------------------------------------------------------------------------


def class_of(gateway: Gateway, key: str, **headers: str) -> str:
    request_id = new_id("class")
    answer = gateway.ask(chat(), key=key, x_request_id=request_id, **headers)
    assert answer.status == 200
    return str(gateway.logged(request_id)["class"])


@pytest.mark.parametrize(
    ("key", "headers", "wanted"),
    [
        (KEY, {}, "normal"),
        (KEY, {"X_Priority": "low"}, "low"),
        (KEY, {"X_User_Tier": "low"}, "low"),
        (KEY, {"X_Priority": "LOW "}, "low"),
        (KEY, {"X_Priority": "normal"}, "normal"),
        (KEY, {"X_Priority": "vip"}, "normal"),
        (KEY, {"X_Priority": "vip", "X_User_Tier": "low"}, "low"),
        (LOW_KEY, {"X_Priority": "vip"}, "low"),
        (LOW_KEY, {"X_User_Tier": "normal"}, "low"),
        (RAISE_KEY, {}, "low"),
        (RAISE_KEY, {"X_Priority": "vip"}, "vip"),
        (RAISE_KEY, {"X_User_Tier": "normal"}, "normal"),
    ],
)
def test_class(gateway: Gateway, key: str, headers: dict[str, str], wanted: str) -> None:
    assert class_of(gateway, key, **headers) == wanted


def test_class_changes_within_a_connection(gateway: Gateway) -> None:
    with gateway.client() as client:
        for header, wanted in (("low", "low"), ("vip", "vip"), ("low", "low"), ("normal", "normal")):
            request_id = new_id("class")
            client.send(request(chat(), key=RAISE_KEY, X_Priority=header, x_request_id=request_id))
            assert client.read().status == 200
            assert gateway.logged(request_id)["class"] == wanted


@pytest.mark.parametrize("value", ["urgent", "1", "", "vip,low", "x" * 200])
def test_class_nobody_knows(gateway: Gateway, value: str) -> None:
    answer = gateway.ask(chat(), X_Priority=value)
    shown = value if len(value) <= 80 else value[:80] + "…"
    assert (answer.status, answer.message) == (400, f"x-priority must be vip, normal or low, not '{shown}'.")
    assert answer.error["param"] == "x-priority"


# --- keys in flight -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["Authorization", "api-key", "x-api-key"])
def test_the_caller_s_key_goes_no_further(gateway: Gateway, engines: Engines, name: str) -> None:
    test = new_id("secret")
    value = f"Bearer {KEY}" if name == "Authorization" else KEY
    assert gateway.ask(chat(), key=None, headers={name: value}, x_test=test).status == 200
    got = engines.raw.one(test)
    assert got.get("authorization") == f"Bearer {ENGINE_KEY}"
    assert KEY not in repr(got.headers)
    assert gateway.ask(chat("raw-below"), key=None, headers={name: value}, x_test=test + "b").status == 200
    got = engines.raw.one(test + "b")
    assert got.get("authorization") is None
    assert KEY not in repr(got.headers)


def test_no_key_in_the_log(gateway: Gateway) -> None:
    request_id = new_id("log")
    gateway.ask(chat(), key=None, x_request_id=request_id, Authorization=f"Basic {KEY}")
    gateway.logged(request_id)
    text = gateway.log.read_text()
    assert KEY not in text
    assert ENGINE_KEY not in text


def test_two_keys_on_one_connection(gateway: Gateway) -> None:
    """Each request is its own key's, also where the heads are of one length and stand in one segment."""
    keys = [RAISE_KEY, RAISE_KEY[:-1] + "e"]
    bodies = [request(chat(), key=k, headers=somewhere()) for k in keys]
    with gateway.client() as client:
        for order in ((0, 1), (1, 0), (0, 0)):
            client.send(bodies[order[0]] + bodies[order[1]])
            assert [client.read().status for _ in order] == [(200, 401)[i] for i in order]
        for i in (0, 1, 0, 1):
            client.send(bodies[i])
            assert client.read().status == (200, 401)[i]

"""What each kind of receiver is sent, and what its answers mean."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from typing import Any
from urllib.parse import parse_qs, urlsplit

import msgspec
import pytest

from forebay.admin.payloads import Answer, Fate, masked, post_of, signature, verdict
from forebay.config.alerts import Every, Receiver, Severity
from forebay.ledger.alerts import Alert, Scope, Window

NOW = 1_790_000_000.25
TOKEN = "5f0c9a7de1b24c33"
ALERT = Alert(
    id="00112233445566778899aabbccddeeff",
    rule="burst",
    severity=Severity.WARNING,
    title="12,000 tokens in a minute: key ci (acme)",
    text="Key ci <!channel> & co used 12,000 tokens.",
    at=NOW,
    scope=Scope("key", ("acme", "", "bot", "", "ci"), "0a1b"),
    window=Window(Every.DAY, 1_789_920_000.0, 1_790_006_400.0, "UTC"),
    data={"tokens": 12_000, "bound": 10_000, "seconds": 60},
)


def receiver(kind: str, **more: Any) -> Receiver:
    return Receiver.model_validate({"name": "r", "kind": kind, "url": f"https://hooks.example/send/{TOKEN}", **more})


def answer(status: int = 200, body: object = b"", **headers: str) -> Answer:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return Answer(status, {k.replace("_", "-"): v for k, v in headers.items()}, data)


def test_the_generic_payload_is_as_documented() -> None:
    post = post_of(receiver("webhook"), ALERT, NOW)
    assert json.loads(post.body) == {
        "version": 1,
        "id": "00112233445566778899aabbccddeeff",
        "type": "burst",
        "severity": "warning",
        "time": "2026-09-21T14:13:20Z",
        "title": "12,000 tokens in a minute: key ci (acme)",
        "text": "Key ci <!channel> & co used 12,000 tokens.",
        "scope": {
            "level": "key",
            "organisation": "acme",
            "department": None,
            "project": "bot",
            "user": None,
            "key": "ci",
            "id": "0a1b",
        },
        "window": {"kind": "day", "since": "2026-09-20T16:00:00Z", "until": "2026-09-21T16:00:00Z", "zone": "UTC"},
        "data": {"tokens": 12_000, "bound": 10_000, "seconds": 60},
    }
    assert post.headers["webhook-id"] == ALERT.id
    assert post.headers["webhook-timestamp"] == "1790000000"
    assert "webhook-signature" not in post.headers


def test_the_signature_is_that_of_standard_webhooks() -> None:
    """The example of the specification."""
    secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
    body = b'{"test": 2432232314}'
    assert (
        signature(secret, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, body)
        == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
    )


def test_slack_cannot_be_made_to_call_a_channel() -> None:
    nasty = Alert(**{f: getattr(ALERT, f) for f in ALERT.__struct_fields__} | {"title": "<!channel> & co" + "x" * 200})
    body = json.loads(post_of(receiver("slack"), nasty, NOW).body)
    assert body["text"].startswith("Forebay warning: &lt;!channel&gt; &amp; co")
    header, section = (block["text"] for block in body["blocks"])
    assert (header["type"], section["type"]) == ("plain_text", "plain_text")
    assert len(header["text"]) <= 150
    assert section["text"] == ALERT.text


def test_feishu_is_signed_in_the_body() -> None:
    body = json.loads(post_of(receiver("feishu", secret="robot-secret"), ALERT, NOW).body)
    assert body["timestamp"] == "1790000000"
    right = hmac.new(b"1790000000\nrobot-secret", b"", hashlib.sha256).digest()
    assert body["sign"] == base64.b64encode(right).decode()
    assert body["card"]["header"]["title"]["content"] == f"Forebay warning: {ALERT.title}"
    assert body["card"]["elements"][0]["text"] == {"tag": "plain_text", "content": ALERT.text}
    assert "sign" not in json.loads(post_of(receiver("feishu"), ALERT, NOW).body)


def test_dingtalk_is_signed_in_the_query() -> None:
    robot = receiver("dingtalk", secret="SECrobot", url="https://oapi.example/robot/send?access_token=" + TOKEN)
    post = post_of(robot, ALERT, NOW)
    query = parse_qs(urlsplit(post.url).query)
    assert query["access_token"] == [TOKEN]
    assert query["timestamp"] == ["1790000000250"]
    right = hmac.new(b"SECrobot", b"1790000000250\nSECrobot", hashlib.sha256).digest()
    assert query["sign"] == [base64.b64encode(right).decode()]
    assert json.loads(post.body)["text"]["content"] == f"Forebay warning: {ALERT.title}\n{ALERT.text}"


@pytest.mark.parametrize(
    ("kind", "got", "fate"),
    [
        ("webhook", answer(200), Fate.DELIVERED),
        ("webhook", answer(204), Fate.DELIVERED),
        ("webhook", answer(400), Fate.REFUSED),
        ("webhook", answer(404), Fate.REFUSED),
        ("webhook", answer(408), Fate.AGAIN),
        ("webhook", answer(429), Fate.AGAIN),
        ("webhook", answer(500), Fate.AGAIN),
        ("webhook", answer(503), Fate.AGAIN),
        ("webhook", answer(302, location="https://elsewhere.example/x"), Fate.REFUSED),
        ("slack", answer(200, b"ok"), Fate.DELIVERED),
        ("slack", answer(403, b"invalid_token"), Fate.REFUSED),
        ("feishu", answer(200, {"code": 0, "msg": "success"}), Fate.DELIVERED),
        ("feishu", answer(200, {"StatusCode": 0, "StatusMessage": "success"}), Fate.DELIVERED),
        ("feishu", answer(200, {"code": 19021, "msg": "sign match fail"}), Fate.REFUSED),
        ("feishu", answer(200, {"code": 11232, "msg": "frequency limited"}), Fate.AGAIN),
        ("feishu", answer(400, {"code": 9499, "msg": "too many request", "data": {}}), Fate.AGAIN),
        ("feishu", answer(400, {"code": 11232, "msg": "frequency limited"}), Fate.AGAIN),
        ("feishu", answer(400, {"code": 9499, "msg": "Bad Request", "data": {}}), Fate.REFUSED),
        ("feishu", answer(200, {"code": 9499, "msg": "Bad Request", "data": {}}), Fate.REFUSED),
        ("feishu", answer(400, b"<html>"), Fate.REFUSED),
        ("feishu", answer(400, {"code": 0}), Fate.REFUSED),
        ("feishu", answer(200, b"<html>"), Fate.AGAIN),
        ("feishu", answer(200, [1]), Fate.AGAIN),
        ("dingtalk", answer(200, {"errcode": 0, "errmsg": "ok"}), Fate.DELIVERED),
        ("dingtalk", answer(200, {"errcode": 310000, "errmsg": "sign not match"}), Fate.REFUSED),
        ("dingtalk", answer(200, {"errcode": 130101, "errmsg": "send too fast"}), Fate.AGAIN),
        ("dingtalk", answer(200, {}), Fate.AGAIN),
    ],
)
def test_what_an_answer_means(kind: str, got: Answer, fate: Fate) -> None:
    found = verdict(receiver(kind), got)
    assert found.fate is fate
    assert found.said.startswith(str(got.status))


def test_dingtalk_is_left_alone_for_as_long_as_it_takes_nothing() -> None:
    assert verdict(receiver("dingtalk"), answer(200, {"errcode": 130101, "errmsg": "send too fast"})).after == 600
    assert verdict(receiver("dingtalk"), answer(200, {"errcode": -1, "errmsg": "system busy"})).after is None


@pytest.mark.parametrize("char", ["x", "团", "🤖", '"', "\x1f", "\ud800"])
@pytest.mark.parametrize("kind", ["slack", "feishu", "dingtalk"])
def test_a_message_is_never_longer_than_its_receiver_takes(kind: str, char: str) -> None:
    long = msgspec.structs.replace(ALERT, title=char * 4_000, text="It says: " + char * 9_000)
    body = post_of(receiver(kind, **({} if kind == "slack" else {"secret": "robot-secret"})), long, NOW).body
    assert len(body) <= 20_000
    found = json.loads(body)
    text = {
        "slack": lambda: found["blocks"][1]["text"]["text"],
        "feishu": lambda: found["card"]["elements"][0]["text"]["content"],
        "dingtalk": lambda: found["text"]["content"].partition("\n")[2],
    }[kind]()
    assert text.startswith("It says: ")
    assert text.endswith("…")
    assert 1_000 < len(text) <= 3_000


@pytest.mark.parametrize(("value", "seconds"), [("7", 7.0), ("0", 0.0), ("soon", None), ("-1", None), ("9" * 12, None)])
def test_retry_after(value: str, seconds: float | None) -> None:
    assert verdict(receiver("webhook"), answer(503, retry_after=value)).after == seconds


def test_nothing_secret_is_shown() -> None:
    shy = receiver("webhook", secret="whsec_" + base64.b64encode(b"0123456789abcdef").decode())
    assert shy.secret is not None
    echo = f"no route POST /send/{TOKEN} at {shy.url} for {shy.secret} ({shy.secret.removeprefix('whsec_')})"
    for text in (
        masked(shy, echo),
        verdict(shy, answer(500, echo.encode())).said,
        verdict(shy, answer(302, location=f"https://x.example/{TOKEN}")).said,
        repr(shy),
        repr(post_of(shy, ALERT, NOW)),
    ):
        assert TOKEN not in text, text
        assert "MDEyMzQ1" not in text, text

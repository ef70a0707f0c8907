"""Bodies that cannot be served: each with its status, message and field, and none of them reaches an engine."""

from __future__ import annotations

import json
from typing import Any

import pytest

from e2e.client import CHAT, KEY, Answer, chat, new_id, request
from e2e.conftest import SIM_KEY, Engines
from e2e.gateway import Gateway

COMPLETIONS = "/v1/completions"
EMBEDDINGS = "/v1/embeddings"
MODELS = "away, forebay-sim, gpt-5, raw, raw-alias, raw-below, raw-counted, raw-set, raw-vendor, twin"


def check(answer: Answer, status: int, code: str, message: str, param: str | None = None) -> None:
    assert (answer.status, answer.message) == (status, message)
    kind = {400: "invalid_request_error", 404: "invalid_request_error", 415: "invalid_request_error"}[status]
    assert answer.error == {"message": message, "type": kind, "param": param, "code": code}
    assert answer.get("x-forebay-reason") == code
    assert answer.get("x-request-id")
    assert answer.whole


NOT_JSON: list[tuple[bytes, str]] = [
    (b"", "it is empty"),
    (b" ", "Input data was truncated"),
    (b"hello", "invalid character (byte 0)"),
    (b"{", "Input data was truncated"),
    (b'{"model": "raw"', "Input data was truncated"),
    (b'{"model": "raw", "messages": [1}', "expected ',' or ']' (byte 31)"),
    (b'{"model": "raw",}', "trailing comma in object (byte 16)"),
    (b'{"model" "raw"}', "expected ':' (byte 9)"),
    (b"{'model': 'raw'}", "object keys must be strings (byte 1)"),
    (b'{"model": "raw"} x', "trailing characters (byte 18)"),
    (b'{"model": "raw"}{"model": "raw"}', "trailing characters (byte 17)"),
    (b'{"model": "raw", "n": NaN}', "invalid character (byte 22)"),
    (b'{"model": "raw", "n": 01}', "invalid number (byte 23)"),
    (b'{"model": "a\x00b"}', "invalid character (byte 12)"),
    (b'\x00{"model": "raw"}', "invalid character (byte 0)"),
    (b'{"model": "raw"}\x00', "trailing characters (byte 17)"),
    (b'{"model": "a\nb"}', "invalid character (byte 12)"),
    (b'{"model": "\\x"}', "invalid escape character in string (byte 13)"),
    (b'{"model": "\\u12"}', "invalid character in unicode escape (byte 16)"),
    (b'{"model": "\xff"}', "it is not UTF-8 (byte 11)"),
    (b'{"model": "raw", "\xc3\x28": 1}', "it is not UTF-8 (byte 18)"),
    (b'{"model": "raw", "x": "\xed\xa0\x80"}', "it is not UTF-8 (byte 23)"),
    (b'{"model": "raw", "x": "\xc0\xaf"}', "it is not UTF-8 (byte 23)"),
    (b'\xef\xbb\xbf{"model": "raw"}', "invalid character (byte 0)"),
    ('{"model": "raw"}'.encode("utf-16"), "it is not UTF-8 (byte 0)"),
    (b'{"model": "raw", "messages": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "it is nested too deeply"),
    (b'{"x": ' * 100_000 + b"1" + b"}" * 100_000, "it is nested too deeply"),
    (b'{"model": "\\ud800 and more"}', "unexpected end of escaped utf-16 surrogate pair (byte 17)"),
]


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, EMBEDDINGS])
@pytest.mark.parametrize(("body", "detail"), NOT_JSON, ids=[str(b[:24]) for b, _ in NOT_JSON])
def test_not_json(gateway: Gateway, engines: Engines, body: bytes, detail: str, path: str) -> None:
    before = engines.raw.total()
    check(gateway.ask(body, path), 400, "invalid_json", f"The body is not valid JSON: {detail}.")
    assert engines.raw.total() == before


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, EMBEDDINGS])
@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b"[]", "an array"),
        (b'[{"model": "raw"}]', "an array"),
        (b'"model"', "a string"),
        (b"1", "an integer"),
        (b"1.5", "a number"),
        (b"true", "true or false"),
        (b"null", "null"),
    ],
)
def test_not_an_object(gateway: Gateway, body: bytes, kind: str, path: str) -> None:
    check(gateway.ask(body, path), 400, "wrong_type", f"The body must be a JSON object, not {kind}.")


CONTENT = {CHAT: "messages", COMPLETIONS: "prompt", EMBEDDINGS: "input"}
FIXES = {
    "messages": 'an array such as [{"role": "user", "content": "…"}]',
    "prompt": "a string, or an array of strings or tokens",
    "input": "a string, or an array of strings or tokens",
}
VALID: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}], "prompt": "Hi", "input": "Hi"}


def body_of(path: str, **fields: Any) -> dict[str, Any]:
    name = CONTENT[path]
    return {k: v for k, v in {"model": "raw", name: VALID[name], **fields}.items() if v is not ...}


@pytest.mark.parametrize("path", CONTENT)
@pytest.mark.parametrize("value", [..., None, ""])
def test_no_model(gateway: Gateway, path: str, value: Any) -> None:
    text = "Missing required field 'model': the name of the model to use, see GET /v1/models."
    check(gateway.ask(body_of(path, model=value), path), 400, "missing_field", text, "model")


@pytest.mark.parametrize("path", CONTENT)
@pytest.mark.parametrize("value", [..., None])
def test_no_content(gateway: Gateway, path: str, value: Any) -> None:
    name = CONTENT[path]
    text = f"Missing required field '{name}': {FIXES[name]}."
    check(gateway.ask(body_of(path, **{name: value}), path), 400, "missing_field", text, name)


@pytest.mark.parametrize("path", CONTENT)
@pytest.mark.parametrize("value", [b"[]", b"[ ]", b"[\n\t]", b"[" + b" " * 200 + b"]"], ids=range(4))
def test_empty_content(gateway: Gateway, engines: Engines, path: str, value: bytes) -> None:
    name = CONTENT[path]
    before = engines.raw.total()
    answer = gateway.ask(b'{"model": "raw", "%b": %b}' % (name.encode(), value), path)
    check(answer, 400, "missing_field", f"'{name}' must not be empty.", name)
    assert engines.raw.total() == before


@pytest.mark.parametrize(
    ("path", "wanted", "value", "got"),
    [
        *((CHAT, "an array", v, g) for v, g in [("Hi", "a string"), ({"role": "user"}, "an object"), (1, "a number")]),
        *((CHAT, "an array", v, "a boolean") for v in (True, False)),
        *(
            (p, "an array or a string", v, g)
            for p in (COMPLETIONS, EMBEDDINGS)
            for v, g in [({"a": 1}, "an object"), (-1.5, "a number"), (True, "a boolean"), (False, "a boolean")]
        ),
    ],
)
def test_content_of_a_wrong_type(gateway: Gateway, path: str, wanted: str, value: Any, got: str) -> None:
    name = CONTENT[path]
    answer = gateway.ask(body_of(path, **{name: value}), path)
    check(answer, 400, "wrong_type", f"'{name}' must be {wanted}, not {got}.", name)


INTEGER, BOOLEAN = "an integer", "true or false"
WRONG: list[tuple[str, Any, str, str]] = [
    ("model", 1, "a string", "an integer"),
    ("model", ["raw"], "a string", "an array"),
    ("model", {"id": "raw"}, "a string", "an object"),
    ("model", True, "a string", "true or false"),
    ("stream", "true", BOOLEAN, "a string"),
    ("stream", 1, BOOLEAN, "an integer"),
    ("stream", [], BOOLEAN, "an array"),
    ("stream_options", "include_usage", "an object", "a string"),
    ("stream_options", [], "an object", "an array"),
    ("stream_options", True, "an object", "true or false"),
    ("max_tokens", "5", INTEGER, "a string"),
    ("max_tokens", 1.5, INTEGER, "a number"),
    ("max_tokens", [5], INTEGER, "an array"),
    ("max_completion_tokens", "5", INTEGER, "a string"),
    ("max_completion_tokens", True, INTEGER, "true or false"),
    ("n", "2", INTEGER, "a string"),
    ("n", {}, INTEGER, "an object"),
]


@pytest.mark.parametrize("path", CONTENT)
@pytest.mark.parametrize(("name", "value", "wanted", "got"), WRONG)
def test_field_of_a_wrong_type(gateway: Gateway, path: str, name: str, value: Any, wanted: str, got: str) -> None:
    answer = gateway.ask(body_of(path, **{name: value}), path)
    check(answer, 400, "wrong_type", f"'{name}' must be {wanted}, not {got}.", name)


@pytest.mark.parametrize("name", ["include_usage", "continuous_usage_stats"])
@pytest.mark.parametrize(("value", "got"), [("yes", "a string"), (1, "an integer")])
def test_stream_option_of_a_wrong_type(gateway: Gateway, name: str, value: Any, got: str) -> None:
    answer = gateway.ask(chat(stream=True, stream_options={name: value}))
    field = f"stream_options.{name}"
    check(answer, 400, "wrong_type", f"'{field}' must be true or false, not {got}.", field)


@pytest.mark.parametrize("path", CONTENT)
@pytest.mark.parametrize(
    ("key", "known"),
    [(KEY, MODELS), (SIM_KEY, "forebay-sim")],
    ids=["a key for all", "a key for one"],
)
@pytest.mark.parametrize("model", ["gpt-none", "RAW", "raw ", "raw\n", "../raw", "x" * 100, "raw-set"])
def test_unknown_model(gateway: Gateway, path: str, key: str, known: str, model: str) -> None:
    """The known ones are listed, and of them only those the key may use."""
    answer = gateway.ask(body_of(path, model=model), path, key=key)
    if key == KEY and model == "raw-set":
        assert answer.status == 200
        return
    shown = model.replace("\n", "\ufffd")
    shown = shown if len(shown) <= 80 else shown[:80] + "…"
    text = f"The model '{shown}' does not exist here or your key may not use it. Known models: {known}."
    check(answer, 404, "model_not_found", text, "model")


def test_model_list_is_the_key_s(gateway: Gateway) -> None:
    assert gateway.models() == MODELS.split(", ")
    assert gateway.models(SIM_KEY) == ["forebay-sim"]
    assert gateway.ask(path="/v1/models/raw", method="GET").json["id"] == "raw"
    text = "The model 'raw' does not exist here or your key may not use it. Known models: forebay-sim."
    check(gateway.ask(path="/v1/models/raw", method="GET", key=SIM_KEY), 404, "model_not_found", text, "model")


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=a", ""]
)
def test_other_media_types(gateway: Gateway, kind: str) -> None:
    body = json.dumps(chat()).encode()
    data = request(body).replace(b"Content-Type: application/json", b"Content-Type: " + kind.encode())
    text = f"Content-Type must be application/json, not '{kind}'."
    check(gateway.raw(data), 415, "unsupported_media_type", text)


@pytest.mark.parametrize(
    "line", [b"", b"Content-Type: application/json; charset=utf-8\r\n", b"content-type:Application/JSON\r\n"]
)
def test_media_types_of_json(gateway: Gateway, line: bytes) -> None:
    data = request(json.dumps(chat()).encode()).replace(b"Content-Type: application/json\r\n", line)
    assert gateway.raw(data).status == 200


@pytest.mark.parametrize("coding", ["gzip", "br", "identity, gzip"])
def test_compressed_body(gateway: Gateway, coding: str) -> None:
    """The message says what to send instead of what it got."""
    answer = gateway.ask(chat(), headers={"Content-Encoding": coding})
    assert answer.status == 415
    assert answer.error["code"] == "unsupported_media_type"
    assert "Content-Encoding" in answer.message


# --- what passes, byte for byte -------------------------------------------------------------------------------------


PASSES: list[bytes] = [
    b'{ "messages" :[ {"role":"user","content":"a"} ] ,\r\n\t"model":"raw" }',
    b'  {"model":"raw","messages":[1]}\n',
    b'{"model":"raw","messages":[1],"seed":' + b"9" * 400 + b"}",
    b'{"model":"raw","messages":[1],"temperature":1e999,"top_p":-0.0,"x":1E-400,"y":0.1000000000000000055511151231257827}',
    '{"model":"raw","messages":["日本語 \\u0000 \\ud83d\\ude00 🦫"],"é":null}'.encode(),
    b'{"model":"raw","messages":[1],"x":' + b"[" * 400 + b"]" * 400 + b"}",
    b'{"\\u006dodel":"raw","messages":[1],"tools":[{"model":"other"}]}',
    b'{"model":"raw","messages":[1],"metadata":{"x-forebay":"\\"model\\":\\"other\\""}}',
    b'{"model":"raw","messages":[1],"max_tokens":' + b"9" * 30 + b"}",
    b'{"model":"raw","messages":[1],"max_tokens":null,"n":null,"stream":null,"stream_options":null}',
    b'{"model":"raw","messages":[1],"stream":false,"stream_options":{"include_usage":true}}',
    b'{"model":"raw","messages":[1],"":"","a":{},"b":[]}',
]


@pytest.mark.parametrize("body", PASSES, ids=range(len(PASSES)))
def test_passes_untouched(gateway: Gateway, engines: Engines, body: bytes) -> None:
    test = new_id("same")
    assert gateway.ask(body, x_test=test).status == 200
    got = engines.raw.one(test).body
    if body.count(b'"model"') == 1 and not any(
        b"\\u00%d" % n in body for n in (5, 6, 7)
    ):  # else in doubt, so said anew
        assert got == body
    else:
        assert json.loads(got) == json.loads(body)


@pytest.mark.parametrize("body", PASSES[:-3], ids=range(len(PASSES) - 3))
def test_streams_untouched_but_for_usage(gateway: Gateway, engines: Engines, body: bytes) -> None:
    test = new_id("same")
    at = body.index(b"{") + 1
    body = body[:at] + b'"stream":true,' + body[at:]
    assert gateway.ask(body, x_test=test).status == 200
    got = engines.raw.one(test).body
    asked = b'"stream_options":{"include_usage":true},'
    if body.count(b'"model"') == 1 and not any(
        b"\\u00%d" % n in body for n in (5, 6, 7)
    ):  # else in doubt, so said anew
        assert got == body[:at] + asked + body[at:]
    else:
        assert json.loads(got) == {**json.loads(body), "stream_options": {"include_usage": True}}


DOUBLED: list[tuple[bytes, str]] = [
    (b'{"model":"nobody","model":"raw","messages":[1]}', "raw"),
    (b'{"model":"raw","messages":[1],"model":"raw-set"}', "raw-set"),
    (b'{"model":"nobody","messages":[1],"m\\u006fdel":"raw"}', "raw"),
    (b'{"\\u006dodel":"nobody","messages":[1],"model":"raw"}', "raw"),
    (b'{"\\u006dodel":"nobody","messages":[1],"\\u006dode\\u006c":"raw"}', "raw"),
    (b'{"model":1,"model":"raw","messages":[1]}', "raw"),
]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("body", "model"), DOUBLED)
def test_model_given_twice(gateway: Gateway, engines: Engines, body: bytes, model: str, stream: bool) -> None:
    """Whichever of the two the engine's own parser believes, it is the one that was checked."""
    test = new_id("twice")
    if stream:
        body = body[:-1] + b',"stream":true}'
    answer = gateway.ask(body, x_test=test)
    if answer.status == 400:  # as good: nobody is in doubt
        assert answer.error["param"] == "model"
        return
    assert answer.status == 200
    pairs = json.loads(engines.raw.one(test).body, object_pairs_hook=list)
    assert [v for k, v in pairs if k == "model"] == [model]


def test_model_given_twice_is_checked(gateway: Gateway, engines: Engines) -> None:
    """A key for one model does not reach another by naming both."""
    before = engines.raw.total()
    for body in (
        b'{"model":"forebay-sim","messages":[1],"model":"raw"}',
        b'{"model":"forebay-sim","messages":[1],"\\u006dodel":"raw"}',
    ):
        assert gateway.ask(body, key=SIM_KEY).status == 404
    assert engines.raw.total() == before


def test_stream_given_twice(gateway: Gateway, engines: Engines) -> None:
    """The answer's kind is that of the one the engine got."""
    for first, second in ((b"true", b"false"), (b"false", b"true")):
        test = new_id("twice")
        body = b'{"model":"raw","messages":[1],"stream":%b,"stream":%b}' % (first, second)
        answer = gateway.ask(body, x_test=test)
        if answer.status == 400:
            continue
        assert (answer.get("content-type") or "").startswith(
            "text/event-stream" if second == b"true" else "application/json"
        )

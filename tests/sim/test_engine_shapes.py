"""Answers held against those vLLM 0.32.0 gave: same status, same keys in the same order, same messages."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from engine_process import EngineProcess

CHAT = "/v1/chat/completions"
HI: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]}
USAGE = {"include_usage": True}


def shape(value: Any) -> Any:
    """Keys in order and the kinds of the values, of a list its first element."""
    if isinstance(value, dict):
        return [(k, shape(v)) for k, v in value.items()]
    if isinstance(value, list):
        return ["list", *(shape(v) for v in value[:1])]
    return type(value).__name__


def recorded_chunks(path: Path) -> list[Any]:
    events = [part.removeprefix(b"data: ") for part in path.read_bytes().strip().split(b"\n\n")]
    assert events[-1] == b"[DONE]"
    return [json.loads(e) for e in events[:-1]]


@pytest.mark.parametrize(
    ("name", "path", "body"),
    [
        ("chat_nonstream", CHAT, {**HI, "max_tokens": 16}),
        ("chat_logprobs", CHAT, {**HI, "max_tokens": 2, "logprobs": True, "top_logprobs": 2}),
        ("comp_nonstream", "/v1/completions", {"prompt": "hi", "max_tokens": 4}),
        ("tokenize", "/tokenize", {"prompt": "hello world"}),
    ],
)
def test_whole_answers(shared_engine: EngineProcess, samples: Path, name: str, path: str, body: dict[str, Any]) -> None:
    answer = shared_engine.ask("POST", path, body)
    assert answer.status == 200
    assert shape(answer.json()) == shape(json.loads((samples / f"{name}.body").read_bytes()))


@pytest.mark.parametrize("name", ["models", "version"])
def test_plain_routes(shared_engine: EngineProcess, samples: Path, name: str) -> None:
    path = "/v1/models" if name == "models" else f"/{name}"
    answer = shared_engine.ask("GET", path)
    assert shape(answer.json()) == shape(json.loads((samples / f"{name}.body").read_bytes()))


@pytest.mark.parametrize("path", ["/health", "/ping"])
def test_health_is_an_empty_200(shared_engine: EngineProcess, path: str) -> None:
    answer = shared_engine.ask("GET", path)
    assert (answer.status, answer.body, answer.headers["content-length"]) == (200, b"", "0")


@pytest.mark.parametrize(
    ("name", "path", "body"),
    [
        ("chat_stream", CHAT, {**HI, "max_tokens": 6, "stream_options": USAGE}),
        (
            "chat_stream_cont",
            CHAT,
            {**HI, "max_tokens": 3, "stream_options": {**USAGE, "continuous_usage_stats": True}},
        ),
        ("chat_stream_nousage", CHAT, {**HI, "max_tokens": 3}),
        ("comp_stream", "/v1/completions", {"prompt": "hi", "max_tokens": 4, "stream_options": USAGE}),
        ("chat_n2", CHAT, {**HI, "max_tokens": 2, "n": 2, "stream_options": USAGE}),
    ],
)
def test_streams(shared_engine: EngineProcess, samples: Path, name: str, path: str, body: dict[str, Any]) -> None:
    answer = shared_engine.ask("POST", path, {**body, "stream": True})

    def story(chunks: list[Any]) -> list[Any]:
        # Between two choices the order is the scheduler's.
        return sorted((shape(c) for c in chunks), key=str) if "n" in body else [shape(c) for c in chunks]

    assert story(answer.chunks()) == story(recorded_chunks(samples / f"{name}.body"))


@pytest.mark.parametrize(
    ("name", "body"),
    [
        ("err_badjson", b'{"model": "tiny",}'.replace(b'"model": "tiny",', b'"model":"tiny", ')),
        ("err_emptymessages", {"messages": []}),
        ("err_hugemax", {**HI, "max_tokens": 99999}),
        ("err_n", {**HI, "n": 0}),
        ("err_negmax", {**HI, "max_tokens": -1}),
        ("err_negtemp", {**HI, "temperature": -1}),
        ("err_nobody", b""),
        ("err_nomessages", {"model": "tiny"}),
        ("err_notobj", [1, 2]),
        ("err_prio_str", {**HI, "priority": "high"}),
        ("err_streamopt", {**HI, "stream_options": USAGE}),
        ("err_strmax", {**HI, "max_tokens": "abc"}),
        ("err_toolong", {"messages": [{"role": "user", "content": "word " * 3000}]}),
        ("err_top_p", {**HI, "top_p": 2}),
        ("err_unknownmodel", {**HI, "model": "nope"}),
        ("err_zeromax", {**HI, "max_tokens": 0}),
    ],
)
def test_refusals_word_for_word(shared_engine: EngineProcess, samples: Path, name: str, body: Any) -> None:
    answer = shared_engine.ask("POST", CHAT, body)
    recorded = (samples / f"{name}.body").read_bytes()
    if name == "err_badjson":  # the bodies differ, so the place and the reader's reason do
        pattern = re.compile(r"body\.\d+|'error': \"?.*?\"?}")
        assert pattern.sub("", answer.body.decode()) == pattern.sub("", recorded.decode())
    else:
        assert answer.body == recorded
    assert answer.status == int((samples / f"{name}.status").read_text())


def test_a_stream_is_refused_before_its_head(shared_engine: EngineProcess, samples: Path) -> None:
    answer = shared_engine.ask("POST", CHAT, {**HI, "stream": True, "max_tokens": -1})
    assert (answer.status, answer.body) == (400, (samples / "err_negmax.body").read_bytes())


def test_other_routes_and_methods(shared_engine: EngineProcess, samples: Path) -> None:
    unknown = shared_engine.ask("GET", "/v1/nothing")
    assert (unknown.status, unknown.body) == (404, (samples / "err_404.body").read_bytes())
    method = shared_engine.ask("GET", CHAT)
    assert (method.status, method.headers["allow"], method.body) == (
        405,
        "POST",
        (samples / "err_405.body").read_bytes(),
    )
    kind = shared_engine.ask("POST", CHAT, b"{}", {"content-type": "text/plain"})
    assert (kind.status, kind.body) == (400, (samples / "err_noct.body").read_bytes())


@pytest.mark.parametrize("name", ["chat_stream", "chat_nonstream"])
def test_headers_and_the_request_id(shared_engine: EngineProcess, samples: Path, name: str) -> None:
    streamed = name == "chat_stream"
    messages = HI["messages"]
    answer = shared_engine.ask(
        "POST", CHAT, {"messages": messages, "max_tokens": 2, "stream": streamed}, {"x-request-id": "my-req-1"}
    )
    recorded = (samples / f"{name}.headers").read_text().split("\n")[1:]
    assert set(answer.headers) == {line.split(":")[0] for line in recorded if ":" in line}
    assert answer.headers["x-request-id"] == "my-req-1"
    ids = {c["id"] for c in answer.chunks()} if streamed else {answer.json()["id"]}
    assert ids == {"chatcmpl-my-req-1"}


def test_what_vllm_lets_pass(shared_engine: EngineProcess) -> None:
    body = {"messages": [{"role": "alien", "content": "hi"}], "max_tokens": 2, "nonsense": {"a": 1}}
    answer = shared_engine.ask("POST", CHAT, body)
    assert (answer.status, answer.json()["model"]) == (200, "tiny")


def _types(text: str) -> dict[str, str]:
    return dict(re.findall(r"^# TYPE (vllm:\S+) (\S+)$", text, re.MULTILINE))


def _labels(text: str) -> dict[str, set[str]]:
    out: dict[str, set[str]] = {}
    for name, labels in re.findall(r"^(vllm:[a-z_]+)\{(.*)\} ", text, re.MULTILINE):
        out.setdefault(name, set()).update(re.findall(r'(\w+)="', labels))
    return out


def test_metrics_have_vllms_names_types_labels_and_edges(shared_engine: EngineProcess, samples: Path) -> None:
    shared_engine.chat(max_tokens=2)
    ours = shared_engine.ask("GET", "/metrics").body.decode()
    theirs = (samples / "metrics.txt").read_text()
    assert _types(ours).items() <= _types(theirs).items()
    labels = _labels(theirs)
    for name, found in _labels(ours).items():
        assert found <= labels[name] if name == "vllm:cache_config_info" else found == labels[name], name
    edges = re.compile(r'^(vllm:\w+)_bucket\{.*le="([^"]+)"', re.MULTILINE)
    assert set(edges.findall(ours)) <= set(edges.findall(theirs))
    needed = """num_requests_running num_requests_waiting kv_cache_usage_perc num_preemptions_total prompt_tokens_total
        generation_tokens_total request_success_total time_to_first_token_seconds inter_token_latency_seconds
        e2e_request_latency_seconds cache_config_info prefix_cache_queries_total prefix_cache_hits_total"""
    assert {f"vllm:{n}" for n in needed.split()} <= _types(ours).keys()


def test_tokens_go_there_and_back(shared_engine: EngineProcess) -> None:
    text = "Ein schöner Tag: 水库 🌊, 12345 words\n\n  and so on…"
    answer = shared_engine.ask("POST", "/tokenize", {"prompt": text, "return_token_strs": True}).json()
    assert answer["count"] == len(answer["tokens"]) == len(answer["token_strs"])
    back = shared_engine.ask("POST", "/detokenize", {"tokens": answer["tokens"]}).json()
    assert back == {"prompt": text}
    bad = shared_engine.ask("POST", "/detokenize", {"tokens": [3]})
    assert (bad.status, bad.json()["error"]["message"]) == (
        400,
        "Token id out of vocabulary: 3 is no token of this engine",
    )


def test_usage_is_what_the_tokenizer_counts(shared_engine: EngineProcess) -> None:
    answer = shared_engine.chat("Tell me of the river, please.", max_tokens=40).json()
    text = answer["choices"][0]["message"]["content"]
    assert re.fullmatch(r"(The|[A-Z]\w+ the) [a-z ,.A-Z]+", text), text
    count = shared_engine.ask("POST", "/tokenize", {"prompt": text}).json()["count"]
    usage = answer["usage"]
    assert (usage["completion_tokens"], count) == (40, 40)
    assert usage["total_tokens"] == usage["prompt_tokens"] + 40
    assert answer["choices"][0]["finish_reason"] == "length"
    assert shared_engine.chat("Tell me of the river, please.", max_tokens=40).json()["choices"] == answer["choices"]

"""Each face against its engine's source, or for llama.cpp against what was recorded."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI

from engine_process import EngineProcess
from forebay.sim.faces.kinds import KINDS
from waiting import read_until

Start = Callable[..., EngineProcess]
OTHERS = sorted(set(KINDS) - {"vllm"})
RECORDED = Path(__file__).parent / "samples" / "llamacpp"


def start_all(engines: Iterable[EngineProcess]) -> None:
    with ThreadPoolExecutor() as pool:
        for done in [pool.submit(engine.start) for engine in engines]:
            done.result()


@pytest.fixture(scope="module")
def engines() -> Iterator[dict[str, EngineProcess]]:
    """One of each, with room for one request at a time and one more that waits."""
    started = {}
    for kind in OTHERS:
        limit = [] if kind in ("trtllm", "llamacpp") else ["--max-num-queued-reqs", "2" if kind == "tgi" else "1"]
        options = ["--kind", kind, "--model", "tiny", "--max-model-len", "512", "--decode-rate", "50"]
        started[kind] = EngineProcess([*options, "--max-num-seqs", "1", "--allow-fault-header", *limit])
    start_all(started.values())
    yield started
    assert {kind: engine.stop() for kind, engine in started.items()} == dict.fromkeys(OTHERS, 0)


def error_of(answer: Any) -> tuple[int, Any]:
    return answer.status, answer.json()


def busy(engine: EngineProcess) -> list[socket.socket]:
    """One request that runs and one that waits, for as long as the sockets are open."""
    held = [engine.open_chat(model="tiny", stream=True, max_tokens=400)]
    engine.until(lambda b: b["running"] == 1)
    held.append(engine.open_chat(model="tiny", stream=True, max_tokens=400))
    engine.until(lambda b: b["waiting"] == 1)
    return held


def let_go(engine: EngineProcess, held: list[socket.socket]) -> None:
    for sock in held:
        sock.close()
    engine.ask("PUT", "/control/faults", ["restart"])
    engine.until(lambda b: b["open"] == 0)


def deltas(chunks: list[Any]) -> list[Any]:
    return [c["choices"][0]["delta"] for c in chunks if c["choices"]]


@pytest.mark.parametrize("kind", OTHERS)
def test_the_openai_client_reads_every_kind(engines: dict[str, EngineProcess], kind: str) -> None:
    client = OpenAI(base_url=f"http://127.0.0.1:{engines[kind].port}/v1", api_key="x", max_retries=0)
    asked: Any = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 5}
    whole = client.chat.completions.create(**asked)
    assert whole.usage is not None
    assert (whole.usage.completion_tokens, whole.choices[0].finish_reason) == (5, "length")
    stream = client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True})
    parts = list(stream)
    text = "".join(p.choices[0].delta.content or "" for p in parts if p.choices)
    assert text == whole.choices[0].message.content
    assert [p.choices[0].finish_reason for p in parts if p.choices and p.choices[0].finish_reason] == ["length"]
    usage = parts[-1].usage
    assert usage is not None and usage.total_tokens == whole.usage.total_tokens
    assert client.completions.create(model="tiny", prompt="Once", max_tokens=3).choices[0].text
    assert [m.id for m in client.models.list()] == ["tiny:latest" if kind == "ollama" else "tiny"]


@pytest.mark.parametrize("kind", OTHERS)
def test_the_pages_of_one_kind_are_of_that_kind(engines: dict[str, EngineProcess], kind: str) -> None:
    """What a gateway that does not know what an engine is would look at."""
    own = {
        "sglang": {"/server_info", "/get_server_info", "/model_info", "/v1/loads", "/health", "/api/tags", "/"},
        "tgi": {"/info", "/health", "/"},
        "trtllm": {"/version", "/health", "/server_info", "/prometheus/metrics"},
        "llamacpp": {"/props", "/slots", "/health", "/api/tags"},
        "ollama": {"/api/ps", "/api/tags", "/api/version", "/"},
    }
    every = set().union(*own.values())
    assert {path for path in every if engines[kind].ask("GET", path).status == 200} == own[kind]
    first = {"sglang": "sglang:", "tgi": "tgi_", "llamacpp": "llamacpp:"}
    page = engines[kind].ask("GET", "/metrics")
    if kind in first:
        names = re.findall(r"^# TYPE (\S+)", page.body.decode(), re.MULTILINE)
        assert len(names) == len(set(names)) and all(name.startswith(first[kind]) for name in names)
    else:
        assert page.status == (404 if kind == "ollama" else 200)


# --- SGLang ----------------------------------------------------------------------------------------------------------


def test_sglang_names_its_requests_and_ends_streams_in_a_chunk_of_its_own(engines: dict[str, EngineProcess]) -> None:
    chunks = (
        engines["sglang"]
        .chat(model="whatever", rid="r-1", max_tokens=2, stream=True, stream_options={"include_usage": True})
        .chunks()
    )
    assert {(c["id"], c["model"]) for c in chunks} == {("r-1", "whatever")}
    assert deltas(chunks)[0] == {"reasoning_content": None, "role": "assistant", "content": ""}
    assert deltas(chunks)[-1] == {"reasoning_content": None}
    assert [c["choices"][0]["finish_reason"] for c in chunks[:-1]] == [None, None, None, "length"]
    assert chunks[-1]["usage"]["prompt_tokens_details"] is None


def test_sglang_says_it_is_full_in_a_stream_and_with_503(engines: dict[str, EngineProcess]) -> None:
    engine = engines["sglang"]
    held = busy(engine)
    error = {"object": "error", "message": "The request queue is full.", "param": None, "code": 503}
    assert error_of(engine.chat()) == (503, {**error, "type": "503"})
    stream = engine.chat(stream=True, stream_options={"include_usage": True})
    first, usage, done = stream.events()
    assert (stream.status, done) == (200, b"[DONE]")
    assert json.loads(first) == {"error": {**error, "type": "SERVICE_UNAVAILABLE"}}
    assert json.loads(usage)["usage"]["total_tokens"] == 0
    let_go(engine, held)


def test_sglang_refuses_a_prompt_that_is_too_long_before_the_stream(engines: dict[str, EngineProcess]) -> None:
    answer = engines["sglang"].chat("word " * 600, stream=True)
    assert answer.status == 400
    assert answer.json()["message"].startswith("The input (")
    assert list(answer.json()) == ["object", "message", "type", "param", "code"]
    total = engines["sglang"].chat(max_tokens=511).json()
    assert total["message"].startswith("Requested token count exceeds the model's maximum context length of 512 tokens")


def test_sglang_aborts_by_rid_whether_it_runs_or_waits(engines: dict[str, EngineProcess]) -> None:
    engine = engines["sglang"]
    running = engine.open_chat(rid="runs", stream=True, max_tokens=400)
    assert b'"role":"assistant"' in read_until(running, b'"content":"')
    waiting = engine.open_chat(rid="waits", max_tokens=400)
    engine.until(lambda b: b["waiting"] == 1)
    for rid in ("waits", "runs", "nobody"):
        told = engine.ask("POST", "/abort_request", {"rid": rid})
        assert (told.status, told.body) == (200, b"")
    with running, waiting:
        assert b'"finish_reason":"abort"' in read_until(running, b"[DONE]")
        assert b'"content":"","reasoning_content":null},"logprobs":null,"finish_reason":"abort"' in read_until(
            waiting, b'"metadata"'
        )
    assert engine.until(lambda b: b["running"] == 0)["waiting"] == 0


def test_sglang_serves_the_highest_priority_first_and_evicts_the_lowest(start_engine: Start) -> None:
    engine = start_engine(
        "--kind", "sglang", "--enable-priority-scheduling", "--max-num-seqs", "1", "--max-num-queued-reqs", "2"
    )
    with (
        engine.open_chat(rid="first", stream=True, max_tokens=1500, request_id="first") as first,
        engine.open_chat(max_tokens=1, priority=1, request_id="low") as low,
    ):
        engine.until(lambda b: b["waiting"] == 1)
        with (
            engine.open_chat(max_tokens=1, priority=5, request_id="high") as high,
            engine.open_chat(max_tokens=1, request_id="none") as none,
        ):
            assert b"The request queue is full." in read_until(none, b"}")
            with engine.open_chat(max_tokens=1, priority=3, request_id="mid") as mid:
                assert b"aborted by a higher priority request" in read_until(low, b"}")
                engine.ask("POST", "/abort_request", {"rid": "first"})
                assert b'"finish_reason":"abort"' in read_until(first, b'"finish_reason":"abort"')
                for sock in (high, mid):
                    assert b'"finish_reason":"length"' in read_until(sock, b'"finish_reason":"length"')
    ended = {r["id"]: r["ended"] for r in engine.books()["records"]}
    assert ended["first"] < ended["high"] < ended["mid"]


def test_sglang_notices_a_stream_left_after_two_seconds(start_engine: Start) -> None:
    engine = start_engine("--kind", "sglang", "--speed", "10", "--decode-rate", "50")
    with engine.open_chat(stream=True, max_tokens=8000, ignore_eos=True) as sock:
        read_until(sock, b'"content":"')
    record = engine.until(lambda b: b["aborted"] == 1)["records"][0]
    assert record["tokens"] >= 90  # 2 s of the engine at 50 tokens a second, less what the timer is off


# --- prefill and decode ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[EngineProcess, EngineProcess]]:
    options = ["--kind", "sglang", "--decode-rate", "200", "--prefill-rate", "400", "--speed", "4"]
    both = tuple(EngineProcess([*options, "--disaggregation-mode", mode]) for mode in ("prefill", "decode"))
    start_all(both)
    yield both[0], both[1]
    assert [engine.stop() for engine in both] == [0, 0]


def at(prefill: EngineProcess, room: int) -> dict[str, Any]:
    return {"bootstrap_host": "127.0.0.1", "bootstrap_port": prefill.port, "bootstrap_room": room}


@pytest.mark.parametrize("first", [0, 1])
def test_prefill_and_decode_meet_whoever_comes_first(pair: tuple[EngineProcess, EngineProcess], first: int) -> None:
    prefill, decode = pair
    asked = {"max_tokens": 6, "stream": True, **at(prefill, 100 + first)}
    early = pair[first].open_chat(**asked)
    pair[first].until(lambda b: b["open"] == 1)
    with early, pair[1 - first].open_chat(**asked) as late:
        answers = [b"", b""]
        answers[first] = read_until(early, b"[DONE]")
        answers[1 - first] = read_until(late, b"[DONE]")
    tokens = [a.count(b'"content":"') - 1 for a in answers]  # but for the role's
    assert tokens == [1, 6]
    prefill.until(lambda b: b["open"] == b["running"] == 0)
    assert prefill.metric("sglang:num_used_tokens") == 0  # what was held is free
    assert decode.metric("sglang:prompt_tokens_total") >= 1


def test_a_prefill_that_leaves_fails_the_decode(pair: tuple[EngineProcess, EngineProcess]) -> None:
    prefill, decode = pair
    with decode.open_chat(max_tokens=3, **at(prefill, 7)) as waiting:
        decode.until(lambda b: b["open"] == 1)
        with prefill.open_chat(max_tokens=3, rid="gone", fault=None, **at(prefill, 7)):
            pass  # leaves: the engine looks every 4 s, so it is told
        prefill.ask("POST", "/abort_request", {"rid": "gone"})
        answer = read_until(waiting, b'"code":500')
    assert b"HTTP/1.1 500" in answer and b"request rank=0 decode_req.req.rid=" in answer


def test_a_decode_that_leaves_fails_the_prefill(pair: tuple[EngineProcess, EngineProcess]) -> None:
    prefill, _decode = pair
    long = [{"role": "user", "content": "word " * 500}]
    with prefill.open_chat(stream=True, max_tokens=3, messages=long, **at(prefill, 8)) as waiting:
        prefill.until(lambda b: b["open"] == 1)
        # The decode engine asks and is gone at once.
        body = b'{"room": 8}'
        with socket.create_connection(("127.0.0.1", prefill.port)) as asker:
            head = b"POST /control/kv/room HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            asker.sendall(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        answer = read_until(waiting, b"[DONE]")
    assert b"INTERNAL_SERVER_ERROR" in answer and b"Prefill transfer failed for request rank=0" in answer
    prefill.until(lambda b: b["running"] == 0)


def test_half_a_pair_says_what_it_misses(pair: tuple[EngineProcess, EngineProcess]) -> None:
    prefill, decode = pair
    assert prefill.chat().json()["message"].startswith("Invalid request: Disaggregated request received without")
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        nobody = {"bootstrap_host": "127.0.0.1", "bootstrap_port": closed.getsockname()[1], "bootstrap_room": 9}
        status, error = error_of(decode.chat(**nobody))
    assert (status, error["code"]) == (500, 500)
    assert "Could not fetch prefill parallel info from bootstrap_addr: 127.0.0.1:" in error["message"]


# --- TGI -------------------------------------------------------------------------------------------------------------


def test_tgi_refuses_with_429_and_in_a_stream_with_422_under_200(engines: dict[str, EngineProcess]) -> None:
    engine = engines["tgi"]
    held = busy(engine)
    assert error_of(engine.chat()) == (429, {"error": "Model is overloaded", "error_type": "overloaded"})
    stream = engine.chat(stream=True)
    assert stream.status == 200
    assert json.loads(stream.events()[0]) == {"error": {"message": "Model is overloaded", "http_status_code": 422}}
    assert stream.events()[1:] == [b"[DONE]"]
    let_go(engine, held)


def test_tgi_finds_a_long_prompt_late(engines: dict[str, EngineProcess]) -> None:
    engine = engines["tgi"]
    status, error = error_of(engine.chat("word " * 600))
    assert (status, error["error_type"]) == (422, "validation")
    assert error["error"].startswith("Input validation error: `inputs` ")
    stream = engine.chat("word " * 600, stream=True)
    assert stream.status == 200 and b'"http_status_code":422' in stream.events()[0]
    assert engine.chat(max_tokens=0).json()["error"].endswith("`max_new_tokens` must be strictly positive")
    assert engine.chat(top_p=1).status == 422
    assert engine.ask("POST", "/v1/chat/completions", b"{").headers["content-type"] == "text/plain; charset=utf-8"


def test_tgi_has_the_role_in_every_delta_and_usage_in_the_last_completion(engines: dict[str, EngineProcess]) -> None:
    engine = engines["tgi"]
    chunks = engine.chat(model="tgi", max_tokens=2, stream=True).chunks()
    assert [d["role"] for d in deltas(chunks)] == ["assistant", "assistant"]
    assert (chunks[0]["model"], chunks[0]["id"], next(iter(chunks[0]))) == ("tiny", "", "object")
    asked = {"prompt": "Once", "max_tokens": 2, "stream": True}
    text = engine.ask("POST", "/v1/completions", asked).chunks()
    assert [c["choices"][0]["finish_reason"] for c in text] == ["", "length"]
    assert text[-1]["usage"]["completion_tokens"] == 2 and "usage" not in text[0]


def test_tgi_keeps_a_silent_stream_alive(start_engine: Start) -> None:
    engine = start_engine("--kind", "tgi", "--max-num-seqs", "1", "--speed", "50", "--decode-rate", "2")
    with engine.open_chat(stream=True, max_tokens=400), engine.open_chat(stream=True, max_tokens=1) as waiting:
        assert b"data:" not in read_until(waiting, b":\n\n\r\n")


# --- TensorRT-LLM ----------------------------------------------------------------------------------------------------


def test_trtllm_knows_only_its_own_fields(engines: dict[str, EngineProcess]) -> None:
    engine = engines["trtllm"]
    status, error = error_of(engine.chat(model="tiny", strange=1))
    assert status == 400 and "Extra inputs are not permitted" in error["error"]
    assert engine.chat(max_tokens=1).status == 400  # no model
    assert engine.chat(model="tiny", max_tokens=1, priority=0.9).status == 200
    status, error = error_of(engine.chat("word " * 600, model="tiny"))
    assert (status, error["type"], error["code"]) == (400, "BadRequestError", 400)
    assert error["message"].endswith("should not exceed max_num_tokens (511)")


def test_trtllm_gives_away_its_iterations_once(start_engine: Start) -> None:
    engine = start_engine("--kind", "trtllm", "--speed", "20", "--max-model-len", "512")
    assert engine.chat(model="m", max_tokens=2).status == 200
    (one,) = engine.ask("GET", "/metrics").json()
    assert one["kvCacheStats"]["tokensPerBlock"] == 32
    assert one["numActiveRequests"] == one["numQueuedRequests"] == 0
    assert engine.ask("GET", "/metrics").json() == []
    assert (
        'trtllm_kv_cache_max_blocks{engine_type="undefined"' in engine.ask("GET", "/prometheus/metrics").body.decode()
    )


# --- llama.cpp: recorded ---------------------------------------------------------------------------------------------


def shape(value: Any) -> Any:
    """Keys in order, and what kind of value each has."""
    if isinstance(value, dict):
        return {key: shape(one) for key, one in value.items()}
    if isinstance(value, list):
        return [shape(one) for one in value]
    return "number" if isinstance(value, float) and not isinstance(value, bool) else type(value).__name__


def recorded_body(name: str) -> Any:
    """Of a file that may end in the status."""
    return json.JSONDecoder().raw_decode((RECORDED / f"{name}.body").read_text())[0]


def same(mine: Any, recorded: Any) -> bool:
    numbers = re.compile(r"'(int|number)'")
    return numbers.sub("'number'", str(shape(mine))) == numbers.sub("'number'", str(shape(recorded)))


def test_llamacpp_answers_as_recorded(engines: dict[str, EngineProcess]) -> None:
    engine = engines["llamacpp"]
    whole = engine.chat(max_tokens=3)
    assert same(whole.json(), recorded_body("chat"))
    names = re.findall(r"^([A-Za-z-]+):", (RECORDED / "chat.headers").read_text(), re.MULTILINE)
    assert {name.lower() for name in names} <= set(whole.headers)
    mine = engine.chat(max_tokens=3, stream=True, stream_options={"include_usage": True})
    recorded = (RECORDED / "stream.txt").read_text().strip().split("\n\n")
    assert len(mine.events()) == len(recorded)
    for ours, theirs in zip(mine.chunks(), recorded, strict=False):
        assert same(ours, json.loads(theirs.removeprefix("data: ")))
    for path in ("models.txt", "slots.txt", "health.txt"):
        theirs = json.loads((RECORDED / path).read_text())
        ours = engine.ask("GET", {"models.txt": "/v1/models"}.get(path, f"/{path.removesuffix('.txt')}")).json()
        assert same(ours, theirs[:1] if path == "slots.txt" else theirs)


def test_llamacpp_shows_the_recorded_families(engines: dict[str, EngineProcess]) -> None:
    def families(text: str) -> list[str]:
        return re.findall(r"^# .*", text, re.MULTILINE)

    page = engines["llamacpp"].ask("GET", "/metrics").body.decode()
    assert families(page) == families((RECORDED / "metrics.txt").read_text())


def test_llamacpp_errors_are_the_recorded_ones(engines: dict[str, EngineProcess]) -> None:
    engine = engines["llamacpp"]
    recorded = recorded_body("err_toolong")
    status, error = error_of(engine.chat("word " * 600, stream=True))
    assert status == 400 and same(error, recorded)
    words = re.sub(r"\d+", "N", error["error"]["message"])
    assert words == re.sub(r"\d+", "N", recorded["error"]["message"])
    assert error["error"]["n_ctx"] == 512
    nothing = recorded_body("err_nomsg")
    assert error_of(engine.ask("POST", "/v1/chat/completions", {})) == (400, nothing)
    assert engine.chat(model="unknown", max_tokens=1).json()["model"] == "tiny"


def test_llamacpp_sees_a_client_leave_only_while_it_writes_or_is_quiet(start_engine: Start) -> None:
    engine = start_engine("--kind", "llamacpp", "--max-num-seqs", "1", "--speed", "5", "--decode-rate", "20")
    with engine.open_chat(stream=True, max_tokens=4000, ignore_eos=True, request_id="stream") as sock:
        read_until(sock, b'"content":"')
    engine.until(lambda b: b["aborted"] == 1, 1)
    with engine.open_chat(stream=True, max_tokens=100, ignore_eos=True, request_id="runs") as runs:
        read_until(runs, b'"content":"')
        with engine.open_chat(max_tokens=1, request_id="queued") as queued:
            engine.until(lambda b: b["waiting"] == 1)
            queued.setblocking(False)
            with pytest.raises(BlockingIOError):
                queued.recv(1)  # no head while it waits
        read_until(runs, b"[DONE]")  # a second of the engine: longer than it would be quiet for
    engine.until(lambda b: b["open"] == 0)
    assert engine.record("queued")["how"] == "finished"  # nobody had noticed
    with engine.open_chat(max_tokens=4000, ignore_eos=True, request_id="whole"):
        engine.until(lambda b: b["running"] == 1)
    for _ in range(20):  # who asks too often keeps it from noticing
        assert engine.ask("GET", "/slots").json()[0]["is_processing"]
    engine.until(lambda b: b["running"] == 0)
    assert engine.record("whole")["how"] == "aborted"


# --- Ollama ----------------------------------------------------------------------------------------------------------


def test_ollama_says_busy_and_knows_its_models(engines: dict[str, EngineProcess]) -> None:
    engine = engines["ollama"]
    missing = {"message": "model 'other' not found", "type": "not_found_error", "param": None, "code": None}
    assert error_of(engine.chat(model="other")) == (404, {"error": missing})
    assert engine.chat(model="tiny:latest", max_tokens=1).status == 200
    held = busy(engine)
    status, error = error_of(engine.chat(model="tiny", stream=True))
    assert (status, error["error"]["type"]) == (503, "api_error")
    assert error["error"]["message"] == "server busy, please try again.  maximum pending requests exceeded"
    let_go(engine, held)


def test_ollama_cuts_what_is_too_long_and_puts_the_role_in_the_first_content(engines: dict[str, EngineProcess]) -> None:
    engine = engines["ollama"]
    answer = engine.chat("word " * 600, model="tiny", max_tokens=5)
    assert answer.json()["usage"]["prompt_tokens"] == 511
    chunks = engine.chat(model="tiny", max_tokens=2, stream=True).chunks()
    assert [list(d) for d in deltas(chunks)] == [["role", "content"], ["content"], []]
    assert engine.ask("GET", "/api/ps").json()["models"][0]["context_length"] == 512

"""Serving over real sockets: queue, cancel on disconnect, back-pressure, books, metrics, processes and signals."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from engine_process import EngineProcess
from waiting import read_until

MAIN = [sys.executable, "-m", "forebay.sim.main"]
LONG = {"stream": True, "max_tokens": 4000, "ignore_eos": True}


def test_who_waits_has_its_head_and_role_at_once_and_no_words(start_engine: Any) -> None:
    engine = start_engine("--max-num-seqs", "1")
    with engine.open_chat(**LONG) as first, engine.open_chat(**LONG) as second:
        read_until(first, b'"delta":{"content":')
        assert read_until(second, b'"role"').startswith(b"HTTP/1.1 200 OK")
        books = engine.until(lambda b: b["waiting"] == 1)
        assert books["running"] == 1
        assert (engine.metric("vllm:num_requests_running"), engine.metric("vllm:num_requests_waiting")) == (1, 1)
        first.close()
        read_until(second, b'"delta":{"content":')  # the slot is free at once
    engine.until(lambda b: (b["running"], b["waiting"], b["open"]) == (0, 0, 0))


@pytest.mark.parametrize("how", ["close", "half-close", "reset"])
@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_frees_its_slot_at_once(shared_engine: EngineProcess, how: str, stream: bool) -> None:
    name = f"leaver-{how}-{stream}"
    more = {**LONG, "max_tokens": 2000, "stream": stream}
    sock = shared_engine.open_chat(request_id=name, **more)
    shared_engine.until(lambda b: any(r["id"] == name and r["tokens"] > 0 for r in b["records"]))
    if how == "reset":
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
    left = time.monotonic()
    if how == "half-close":
        sock.shutdown(socket.SHUT_WR)
    else:
        sock.close()
    books = shared_engine.until(lambda b: any(r["id"] == name and r["how"] for r in b["records"]) and not b["running"])
    record = next(r for r in books["records"] if r["id"] == name)
    assert record["how"] == "aborted"
    assert record["tokens"] < 2000
    assert left <= record["ended"] <= books["now"]
    assert books["open"] == 0
    sock.close()


def test_a_slow_reader_gets_every_token_and_costs_no_buffer(start_engine: Any) -> None:
    engine = start_engine("--decode-rate", "100000", "--max-model-len", "41000")
    with engine.open_chat(stream=True, max_tokens=40_000, ignore_eos=True, receive_buffer=8192) as sock:
        engine.until(lambda b: b["running"] == 0 and b["started"] == 1)  # all is generated, little is read
        assert engine.books()["open"] == 1
        count = 0
        tail = b""
        while not tail.endswith(b"0\r\n\r\n"):
            tail = tail[-32:] + sock.recv(1 << 20)
            count += tail.count(b'"delta":{"content":') - tail[:32].count(b'"delta":{"content":')
    assert count == 40_000


def test_lower_priority_numbers_go_first(start_engine: Any) -> None:
    engine = start_engine("--max-num-seqs", "1", "--decode-rate", "200")
    socks = [engine.open_chat(stream=True, max_tokens=40)]
    read_until(socks[0], b'"delta":{"content":')
    for priority in (5, 1, -3):
        socks.append(engine.open_chat(stream=True, max_tokens=2, priority=priority, request_id=f"p{priority}"))
        engine.until(lambda b: b["waiting"] == len(socks) - 1)
    books = engine.until(lambda b: b["finished"] == 4)
    ended = sorted((r for r in books["records"] if r["id"].startswith("p")), key=lambda r: r["ended"])
    assert [r["id"] for r in ended] == ["p-3", "p1", "p5"]
    for sock in socks:
        sock.close()


def test_over_max_num_queued_reqs_is_503(start_engine: Any) -> None:
    engine = start_engine("--max-num-seqs", "1", "--max-num-queued-reqs", "2")
    with engine.open_chat(**LONG) as one, engine.open_chat(**LONG) as two:
        read_until(one, b'"role"')
        read_until(two, b'"role"')
        full = engine.chat(stream=True)
    assert (full.status, full.headers["connection"]) == (503, "close")
    assert full.json()["error"] == {
        "message": "The engine is currently busy and cannot accept new requests. Please try again later or on a "
        "different instance.",
        "type": "Service Unavailable",
        "param": None,
        "code": 503,
    }
    assert engine.metric("vllm:admission_rejections_total") == 1


def test_counters_and_books_agree(start_engine: Any) -> None:
    engine = start_engine("--decode-rate", "500")
    prompt = engine.chat(max_tokens=5).json()["usage"]["prompt_tokens"]
    engine.chat(max_tokens=7, n=2)
    engine.chat(max_tokens=-1)
    engine.ask("POST", "/v1/embeddings", {"input": "hello"})
    books = engine.books()
    assert (books["started"], books["finished"], books["rejected"], books["open"]) == (4, 3, 1, 0)
    assert [r["tokens"] for r in books["records"]] == [5, 14, 0, 0]
    assert engine.metric("vllm:generation_tokens_total") == 19
    assert engine.metric("vllm:prompt_tokens_total") == 3 * prompt + 1
    assert engine.metric("vllm:prefix_cache_queries_total") == 3 * prompt + 1
    assert engine.metric("vllm:prefix_cache_hits_total") == 0  # none of them has a full block
    assert engine.metric("vllm:request_success_total") == 4
    assert engine.metric("vllm:time_to_first_token_seconds_count") == 3
    assert engine.metric("vllm:inter_token_latency_seconds_count") == 4 + 6 + 6


def test_an_api_key_is_asked_for_on_v1_only(start_engine: Any) -> None:
    engine = start_engine("--api-key", "sk-engine")
    assert (engine.chat().status, engine.chat().body) == (401, b'{"error":"Unauthorized"}')
    good = engine.ask("GET", "/v1/models", headers={"authorization": "Bearer sk-engine"})
    assert good.status == engine.ask("GET", "/health").status == 200


def test_two_models_answer_under_their_own_names(start_engine: Any) -> None:
    engine = start_engine("--model", "small", "--model", "large")
    assert [m["id"] for m in engine.ask("GET", "/v1/models").json()["data"]] == ["small", "large"]
    assert engine.chat(model="large", max_tokens=1).json()["model"] == "large"
    assert engine.chat(max_tokens=1).json()["model"] == "small"


def test_it_leaves_on_sigterm_though_streams_run(start_engine: Any) -> None:
    engine = start_engine()
    with engine.open_chat(**LONG) as sock:
        read_until(sock, b'"delta":{"content":')
        assert engine.stop() == 0
        assert b"[DONE]" not in read_until(sock, b"[DONE]")
    engine.start()


def test_a_taken_port_is_71_and_says_which() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = subprocess.run([*MAIN, "--port", str(port)], capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stdout) == (71, "")
    assert done.stderr == (
        f"forebay engine: cannot listen on 127.0.0.1:{port}: Address already in use; "
        "give another --port, or stop what uses it\n"
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--fault", "nope"], "engine: --fault: fault kind 'nope' is unknown; known: error, refuse"),
        (["--decode-rate", "0"], "engine: --decode-rate must be greater than 0, not 0"),
        (["--max-num-seqs", "0"], "engine: --max-num-seqs must be greater than 0, not 0"),
        (["--batch-slowdown", "-1"], "engine: --batch-slowdown must be at least 0, not -1"),
        (["--port", "foo"], "argument --port: invalid int value: 'foo'"),
        (["--max-model-len", "0"], "--max-model-len must be at least 1"),
        (["--model", "a", "--model", "a"], "--model must be given a different name"),
        (["--port", "70000"], "--port must be 0 to 65535"),
        (["--fault", "refuse=3"], "PUT /control/faults"),
        (["--speed", "0"], "--speed must be from 1e-06 to 1,000,000, not 0"),
        (["--max-num-batched-tokens", "10"], "--max-num-batched-tokens (10) must not be less than max_num_seqs (256)"),
        (["--kv-tokens", "100", "--max-model-len", "200"], "200 is more than the KV cache holds, 96 tokens"),
        (["--watermark", "1"], "--watermark must be at least 0 and less than 1, not 1"),
        (["--spec-acceptance", "2"], "--spec-acceptance must be between 0 and 1, not 2"),
        (["--scheduling-policy", "lifo"], "--scheduling-policy: invalid choice: 'lifo'"),
        (["--kv-transfer-config", "{"], "--kv-transfer-config must be JSON"),
        (["--kv-transfer-config", "{}"], '--kv-transfer-config must be an object with "kv_connector"'),
        (["--kv-transfer-rate", "0"], "--kv-transfer-rate must be greater than 0"),
        (["--gpu", "h200_sxm", "--decode-rate", "5"], "--decode-rate does not go with"),
        (["--gpu", "h900", "--model-shape", "Qwen/Qwen3-32B"], "--gpu: "),
        (["--model-shape", "Qwen/Qwen3-32B"], "--model-shape needs a --gpu or a --profile"),
        (["--profile", "/nowhere"], "--profile: /nowhere: does not exist"),
    ],
)
def test_options_that_make_no_sense_are_2(options: list[str], message: str) -> None:
    done = subprocess.run([*MAIN, *options], capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 2 and message in done.stderr


def test_an_inherited_socket_and_a_parent_that_goes(tmp_path: Path) -> None:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        ours, theirs = socket.socketpair()
        process = subprocess.Popen(
            [*MAIN, "--fd", str(listening.fileno()), "--parent-fd", str(theirs.fileno())],
            pass_fds=(listening.fileno(), theirs.fileno()),
            stdout=subprocess.PIPE,
            text=True,
        )
        theirs.close()
        assert process.stdout is not None and process.stdout.readline()
        engine = EngineProcess(port=listening.getsockname()[1])
        assert engine.chat(max_tokens=1).status == 200
        refused = engine.ask("PUT", "/control/faults", ["refuse=1"])
        assert refused.status == 400 and "a TCP port of the engine's own" in refused.json()["error"]["message"]
        assert process.poll() is None
        ours.close()
        assert process.wait(60) == 0
        process.stdout.close()


def test_a_child_finishes_its_streams_whatever_the_whole_group_is_told(tmp_path: Path) -> None:
    ours, theirs = socket.socketpair()
    process = subprocess.Popen(
        [*MAIN, "--port", "0", "--decode-rate", "100", "--parent-fd", str(theirs.fileno())],
        pass_fds=(theirs.fileno(),),
        stdout=subprocess.PIPE,
        text=True,
    )
    theirs.close()
    assert process.stdout is not None
    engine = EngineProcess(port=int(process.stdout.readline().rsplit(":", 1)[1]))
    with engine.open_chat(stream=True, max_tokens=40) as sock:
        seen = read_until(sock, b'"delta":{"content":')
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGTERM)
        assert (seen + read_until(sock, b"0\r\n\r\n")).endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
    assert process.wait(60) == 0
    ours.close()
    process.stdout.close()


def test_a_unix_socket_also_over_a_stale_file(tmp_path: Path) -> None:
    path = tmp_path / "engine.sock"
    for ending in (signal.SIGKILL, signal.SIGTERM):
        process = subprocess.Popen([*MAIN, "--unix", str(path)], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None and process.stdout.readline().endswith(f"on unix:{path}\n")
        with socket.socket(socket.AF_UNIX) as sock:
            sock.connect(str(path))
            sock.sendall(b"GET /version HTTP/1.1\r\nHost: x\r\n\r\n")
            assert b'{"version":"0.32.0"}' in read_until(sock, b"}")
        process.send_signal(ending)
        process.wait(60)
        process.stdout.close()
    assert not path.exists()


def test_the_command_line_is_the_same_program(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", "from forebay.cli.main import main; main()", "engine", "--port", "0", "--model", "m"],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "NO_COLOR": "1"},
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.startswith("forebay engine: m on http://127.0.0.1:")
    process.terminate()
    assert process.wait(60) == 0
    process.stdout.close()


@pytest.mark.parametrize(
    "body",
    [b"{" * 50_000, b'{"a":' * 50_000, b"\xff\xfe", b'{"messages":"\xff"}', b"null", b'"x"', b"{\x00}"],
)
def test_any_bytes_are_a_400(shared_engine: EngineProcess, body: bytes) -> None:
    answer = shared_engine.ask("POST", "/v1/chat/completions", body)
    assert answer.status == 400 and answer.json()["error"]["code"] == 400


@pytest.mark.parametrize(
    "field",
    [
        {"messages": "hi"},
        {"messages": [1]},
        {"messages": [{"content": "x"}]},
        {"messages": [{"role": "user", "content": 5}]},
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
        {"stream": "perhaps"},
        {"stop": 5},
        {"stop": [""]},
        {"n": 1000},
        {"top_logprobs": 3},
        {"logprobs": True, "top_logprobs": 50},
        {"tools": [{}]},
        {"tool_choice": "required"},
        {"tools": [{"type": "function", "function": {"name": "a"}}], "tool_choice": {"function": {"name": "b"}}},
        {"presence_penalty": 9},
        {"max_tokens": 2040},
        {"stream_options": 3, "stream": True},
        {"response_format": []},
    ],
)
def test_wrong_values_are_a_400_that_says_why(shared_engine: EngineProcess, field: dict[str, Any]) -> None:
    body = {"messages": [{"role": "user", "content": "hi " * 10}], **field}
    answer = shared_engine.ask("POST", "/v1/chat/completions", body)
    assert answer.status == 400, answer.body
    error = answer.json()["error"]
    assert error["message"] and error["type"] in ("BadRequestError", "Bad Request")


def test_json_is_kept_apart_from_events(shared_engine: EngineProcess) -> None:
    quote = '"quo\\te"\n'
    body = {"prompt": quote, "max_tokens": 1, "echo": True}
    answer = shared_engine.ask("POST", "/v1/completions", {**body, "stream": True})
    assert json.loads(answer.events()[0])["choices"][0]["text"].startswith(quote)


def test_a_prompt_of_20_mb_is_too_long_at_once(shared_engine: EngineProcess) -> None:
    answer = shared_engine.chat("word " * 4_000_000)
    assert answer.status == 400
    assert "your prompt contains at least 2049 input tokens" in answer.json()["error"]["message"]


def test_prompts_of_every_form(shared_engine: EngineProcess) -> None:
    numbers = shared_engine.ask("POST", "/tokenize", {"prompt": "hi there"}).json()["tokens"]

    def text(prompt: Any, **more: Any) -> list[str]:
        answer = shared_engine.ask("POST", "/v1/completions", {"prompt": prompt, "max_tokens": 5, **more})
        assert answer.status == 200, answer.body
        return [c["text"] for c in answer.json()["choices"]]

    assert text("hi there") == text(numbers) == text([numbers]) == text(["hi there"])
    assert text(["hi there", "x"]) == text("hi there") + text("x")
    for wrong in (None, [], 5, ["a", 5], [[1]]):
        assert shared_engine.ask("POST", "/v1/completions", {"prompt": wrong}).status == 400
    messages = [{"role": "user", "content": [{"type": "text", "text": "hi "}, {"type": "text", "text": "there"}]}]
    assert shared_engine.ask("POST", "/tokenize", {"messages": messages}).json()["count"] > len(numbers)


def test_text_logprobs_of_a_stream_are_those_of_the_whole(shared_engine: EngineProcess) -> None:
    body = {"prompt": "a", "max_tokens": 5, "logprobs": 2}
    whole = shared_engine.ask("POST", "/v1/completions", body).json()["choices"][0]["logprobs"]
    chunks = shared_engine.ask("POST", "/v1/completions", {**body, "stream": True}).chunks()
    parts = [c["choices"][0]["logprobs"] for c in chunks]
    assert {key: [x for part in parts for x in part[key]] for key in whole} == whole


def test_a_tool_call_is_cut_at_max_tokens(shared_engine: EngineProcess) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"properties": {"a": {"type": "string"}}}}}
    answer = shared_engine.chat(tools=[tool], tool_choice="required", max_tokens=3).json()
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == 3


@pytest.mark.parametrize(
    "body", [{}, {"input": "x", "dimensions": 0}, {"input": "x", "encoding_format": "hex"}, {"input": {}}]
)
def test_embeddings_that_cannot_be_had_are_a_400(shared_engine: EngineProcess, body: dict[str, Any]) -> None:
    assert shared_engine.ask("POST", "/v1/embeddings", body).status == 400


def test_numbers_and_flags_as_pydantic_takes_them(shared_engine: EngineProcess) -> None:
    answer = shared_engine.chat(max_tokens="3", temperature="0.5", n=1.0, stream="no", priority=True)
    assert answer.json()["usage"]["completion_tokens"] == 3
    both = shared_engine.chat(max_tokens=1.5, temperature="warm")
    assert both.json()["error"]["message"].startswith("2 validation errors:\n  {'type': 'int_from_float'")


def test_the_books_are_exact_after_300_clients_left_when_they_liked(start_engine: Any) -> None:
    engine = start_engine("--max-num-seqs", "60", "--decode-rate", "400", "--allow-fault-header")
    draw = random.Random(7)
    faults = [None, None, None, "stall", "stall=0.02", "role-wait=0.02", "slow-bytes=1", "stall-after=3"]

    async def one(i: int) -> None:
        body = json.dumps(
            {
                "messages": [{"role": "user", "content": "hi"}],
                "max_tokens": draw.randint(1, 30),
                "stream": draw.random() < 0.7,
                "n": draw.randint(1, 2),
            }
        ).encode()
        fault = draw.choice(faults)
        extra = f"x-forebay-fault: {fault}\r\n" if fault else ""
        reader, writer = await asyncio.open_connection("127.0.0.1", engine.port)
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n{extra}content-length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body[: draw.choice([len(body), len(body), 5])])
        with contextlib.suppress(TimeoutError, asyncio.IncompleteReadError):
            await asyncio.wait_for(reader.readuntil(b"0\r\n\r\n"), draw.random() * 0.3)
        if draw.random() < 0.5:
            writer.transport.abort()
        writer.close()

    async def all_of_them() -> None:
        await asyncio.gather(*(one(i) for i in range(300)))

    asyncio.run(all_of_them())
    books = engine.until(lambda b: (b["open"], b["running"], b["waiting"]) == (0, 0, 0))
    assert books["started"] == books["finished"] + books["aborted"] and books["aborted"] > 20 and books["finished"]
    assert {r["how"] for r in books["records"]} == {"finished", "aborted"}
    assert engine.metric("vllm:kv_cache_usage_perc") == 0

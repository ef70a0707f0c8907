"""A prompt on one engine and its answer on another, over real sockets: the calls, and each way in which half of it
fails. Engines whose every byte a test says (`RawEngine`), and emulated vLLM servers that are killed and frozen."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import pytest

from e2e.client import KEY, Answer, chat, events, new_id, request
from e2e.engine import DONE, ROLE, RawEngine, Script, Talk, chunk, delta, event, head, says, stream_head, streams, whole
from e2e.gateway import Gateway
from engine_process import EngineProcess
from forebay.ledger.pricing import price_from
from forebay.ledger.tokens import KINDS, Tokens
from waiting import eventually, in_books, read_until

PARAMS = {
    "do_remote_prefill": True,
    "do_remote_decode": False,
    "remote_block_ids": [[7, 8, 9]],
    "remote_engine_id": "p-0",
    "remote_request_id": "chatcmpl-x",
    "remote_host": "127.0.0.1",
    "remote_port": 5601,
    "more": {"of": ["theirs", None, 1.50]},
}
PREFILLED = json.dumps({"id": "chatcmpl-1", "object": "chat.completion", "choices": [], "kv_transfer_params": PARAMS})
TEXT = json.dumps({"object": "text_completion", "choices": [{"index": 0, "text": "Hi", "finish_reason": "stop"}]})
NIXL = (
    "--kv-transfer-config",
    '{"kv_connector": "NixlConnector", "kv_connector_extra_config": {"kv_lease_duration": 1}}',
)
WORD = event(delta({"content": "Hi"}))
RETRIED = "forebay_retries_total"
MODELS = 24
LONG = "The river rose in the night and the lower gates were opened one after another. " * 20


def holds(body: str = PREFILLED) -> Script:
    return says(whole(200, body.encode()))


@dataclass
class Pool:
    """A gateway before engines of which each model has its own entries, since an engine that failed is rested."""

    gateway: Gateway
    prefill: RawEngine
    decode: RawEngine
    other: RawEngine
    gone: RawEngine
    sim: tuple[EngineProcess, EngineProcess]
    mortal: tuple[EngineProcess, EngineProcess]
    left: Iterator[int] = field(default_factory=lambda: iter(range(MODELS)))

    def fresh(self) -> Pair:
        return Pair(self, f"m{next(self.left)}", new_id("pd"))

    def use(self, model: str) -> Pair:
        return Pair(self, model, new_id("pd"))


@dataclass
class Pair:
    pool: Pool
    model: str
    test: str

    def play(self, prefill: Script | None = None, decode: Script | None = None, other: Script | None = None) -> None:
        for engine, script in (
            (self.pool.prefill, prefill or holds()),
            (self.pool.decode, decode),
            (self.pool.other, other),
        ):
            if script is not None:
                engine.scripts[self.test] = script

    def ask(self, path: str = "/v1/chat/completions", **fields: Any) -> Answer:
        body = chat(self.model, **fields)
        if path.endswith("/completions") and "chat" not in path:
            body = {"model": self.model, "prompt": "Hello", **fields}
        return self.pool.gateway.ask(body, path, x_test=self.test, x_request_id=self.test)

    @property
    def log(self) -> dict[str, Any]:
        return self.pool.gateway.logged(self.test)

    def errors(self, kind: str) -> float:
        return self.pool.gateway.metric("forebay_upstream_errors_total", engine=f"p-{self.model}", failure=kind)


def entry(name: str, port: int, model: str, role: str, **more: Any) -> dict[str, Any]:
    slow = {"prefill_tokens_per_s": 1.0} if role != "prefill" else {}
    return {
        "name": name,
        "url": f"http://127.0.0.1:{port}",
        "kind": "vllm",
        "models": [model],
        "role": role,
        "health_interval": 0.5,
        "unhealthy_after": 100,
        **slow,
        **more,
    }


@contextlib.contextmanager
def started(*options: tuple[str, ...]) -> Iterator[list[EngineProcess]]:
    named = [word for name in ("sim", "frozen", "lost", "mortal") for word in ("--model", name)]
    plain = (*named, *NIXL, "--enable-prompt-tokens-details", "--keep-alive", "600")
    engines = [EngineProcess([*plain, *more]) for more in options]
    with ThreadPoolExecutor() as threads:
        list(threads.map(EngineProcess.start, engines))
    try:
        yield engines
    finally:
        for engine in engines:
            engine.process.kill()
            engine.process.wait(10)
            assert engine.process.stdout is not None
            engine.process.stdout.close()


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    names = [f"m{i}" for i in range(MODELS)]
    raws = [RawEngine(names) for _ in range(4)]
    prefill, decode, other, gone = raws
    with contextlib.ExitStack() as stack:
        run = stack.enter_context
        p, d, mortal_p, mortal_d = run(
            started(("--prefill-rate", "1500"), ("--kv-transfer-latency", "0.3"), ("--prefill-rate", "1500"), ())
        )
        sim, mortal = (p, d), (mortal_p, mortal_d)
        engines = []
        for name in names:
            engines += [
                entry(f"p-{name}", prefill.port, name, "prefill"),
                entry(f"d-{name}", decode.port, name, "decode"),
            ]
        engines += [
            entry("p-two", prefill.port, "two", "prefill"),
            entry("d-two", gone.port, "two", "decode"),
            entry("e-two", other.port, "two", "both"),
            entry("p-sgl", prefill.port, "late", "prefill"),
            entry("d-sgl", decode.port, "late", "decode"),
            entry("p-lost", sim[0].port, "lost", "prefill"),
            entry("d-lost", gone.port, "lost", "decode"),
            entry("p-sim", sim[0].port, "sim", "prefill"),
            entry("d-sim", sim[1].port, "sim", "decode"),
            entry("p-frozen", sim[0].port, "frozen", "prefill"),
            entry("d-frozen", sim[1].port, "frozen", "decode"),
        ]
        engines += [
            entry("p-priced", prefill.port, "priced", "prefill", price={"gpu_hour": 4}, prefill_tokens_per_s=1000.0),
            entry("d-priced", decode.port, "priced", "decode", price={"gpu_hour": 2}, kv_tokens=100_000),
        ]
        engines += [
            entry("p-mortal", mortal_p.port, "mortal", "prefill"),
            entry("d-mortal", mortal_d.port, "mortal", "decode"),
        ]
        made = Gateway(
            {
                "listeners": [{"address": "127.0.0.1:0"}],
                "engines": engines,
                "callers": {"keys": [{"name": "e2e", "key": KEY}]},
                "retries": {"budget": 1.0},
                "timeouts": {"first_byte": 2.5, "connect": 1.0},
                "disaggregation": {"least_tokens": 1, "longest": 1.0},
            }
        )
        try:
            made.wait_until_ready("m0", "two", "sim", "mortal", "lost")
            yield Pool(made, prefill, decode, other, gone, sim, mortal)
        finally:
            made.stop()
            for engine in raws:
                engine.close()


# --- as it should be -------------------------------------------------------------------------------------------------


def test_the_prefill_engine_is_asked_for_one_token_and_the_decode_engine_told_where_the_kv_is(pool: Pool) -> None:
    pair = pool.fresh()
    pair.play()
    answer = pair.ask(
        max_tokens=40, max_completion_tokens=30, min_tokens=4, stream=True, temperature=0.5, stream_options={}
    )
    assert answer.status == 200 and answer.whole
    assert events(answer.body)[-1] == b"[DONE]"
    first, second = pool.prefill.one(pair.test), pool.decode.one(pair.test)
    assert first.get("x-request-id") == second.get("x-request-id") == pair.test
    asked = first.json
    assert (asked["max_tokens"], asked["max_completion_tokens"], asked["stream"]) == (1, 1, False)
    assert "stream_options" not in asked and "min_tokens" not in asked and asked["temperature"] == 0.5
    params = asked["kv_transfer_params"]
    assert (params["do_remote_decode"], params["do_remote_prefill"]) == (True, False)
    asked = second.json
    assert (asked["max_tokens"], asked["max_completion_tokens"], asked["min_tokens"]) == (40, 30, 4)
    assert asked["stream"] is True and asked["stream_options"] == {"include_usage": True}
    assert json.dumps(PARAMS).encode() in second.body  # byte for byte: they are the engines' affair
    line = pair.log
    assert (line["engine"], line["prefill"], line["attempts"]) == (f"d-{pair.model}", f"p-{pair.model}", 1)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_answers_that_are_not_streamed_go_the_same_way(pool: Pool, path: str) -> None:
    pair = pool.use("m0")
    body = PREFILLED if "chat" in path else json.dumps({**json.loads(TEXT), "kv_transfer_params": PARAMS})
    pair.play(holds(body), says(whole(200, TEXT.encode())))
    answer = pair.ask(path, max_tokens=5)
    assert (answer.status, answer.body) == (200, TEXT.encode())
    assert pool.prefill.one(pair.test).line == pool.decode.one(pair.test).line == f"POST {path} HTTP/1.1".encode()
    assert ("max_completion_tokens" in pool.prefill.one(pair.test).json) == ("chat" in path)
    assert pool.decode.one(pair.test).json["kv_transfer_params"] == PARAMS


@pytest.mark.parametrize(
    ("path", "more"),
    [
        ("/v1/chat/completions", {"n": 2}),
        ("/v1/chat/completions", {"prompt_logprobs": 2}),
        ("/v1/chat/completions", {"use_beam_search": True}),
        ("/v1/completions", {"echo": True}),
        ("/v1/completions", {"best_of": 3}),
        ("/v1/completions", {"prompt": ["a", "b"]}),
    ],
)
def test_what_cannot_be_handed_over_goes_whole(pool: Pool, path: str, more: dict[str, Any]) -> None:
    pair = pool.use("m0")
    pair.play()
    assert pair.ask(path, **more).status == 200
    assert not pool.prefill.requests(pair.test)
    assert "kv_transfer_params" not in pool.decode.one(pair.test).json


def test_where_memory_is_fetched_from_is_not_the_clients_to_say(pool: Pool) -> None:
    theirs = {"kv_transfer_params": {"do_remote_prefill": True, "remote_host": "10.0.0.1"}, "bootstrap_room": 1}
    pair = pool.use("m0")
    pair.play()
    assert pair.ask(n=2, **theirs).status == 200
    assert pool.decode.one(pair.test).json.keys().isdisjoint(theirs)
    pair = pool.use("m0")
    pair.play()
    hidden = json.dumps(chat("m0", n=2, kv_transfer_params={})).replace("kv_transfer", "kv\\u005ftransfer").encode()
    assert pool.gateway.ask(hidden, x_test=pair.test).status == 200
    assert "kv_transfer_params" not in pool.decode.one(pair.test).json


def test_a_prefill_engine_gets_whole_requests_only_when_no_other_is_left(pool: Pool) -> None:
    pair = pool.fresh()
    pair.play(prefill_then_serve, says(whole(500, b"{}")))
    answer = pair.ask(stream=True)
    assert answer.status == 200 and b"Hi" in answer.body
    first, again = pool.prefill.requests(pair.test)
    assert "kv_transfer_params" in first.json and "kv_transfer_params" not in again.json
    assert (pair.log["engine"], pair.log["attempts"]) == (f"p-{pair.model}", 2)


def prefill_then_serve(talk: Talk) -> None:
    if "kv_transfer_params" in talk.request.json:
        holds()(talk)
    else:
        streams(ROLE, WORD, event(delta({}, "stop")), DONE)(talk)


# --- in the books -----------------------------------------------------------------------------------------------------


def legs_of(pair: Pair) -> list[dict[str, Any]]:
    def look() -> list[dict[str, Any]]:
        query = (
            "SELECT e.*, d.engine, p.price FROM entries e JOIN dimensions d ON d.id = e.dimension_id "
            "LEFT JOIN prices p ON p.id = e.price_id WHERE request_id = ? ORDER BY e.seq"
        )
        found = in_books(pair.pool.gateway.config["state_dir"], query, (pair.test,))
        return found if len(found) >= 2 else []

    found: list[dict[str, Any]] = eventually(look)
    return found


def test_each_leg_is_booked_at_its_own_engine_s_price(pool: Pool) -> None:
    pair = pool.use("priced")
    said = {"prompt_tokens": 900, "completion_tokens": 1, "total_tokens": 901}
    first = {**json.loads(PREFILLED), "usage": {**said, "prompt_tokens_details": {"cached_tokens": 500}}}
    # The decode engine takes what it was handed for cached.
    said = {"prompt_tokens": 900, "completion_tokens": 70, "total_tokens": 970}
    second = {**json.loads(TEXT), "usage": {**said, "prompt_tokens_details": {"cached_tokens": 899}}}

    def decodes(talk: Talk) -> None:
        time.sleep(0.02)  # what it holds in its memory meanwhile has a price
        talk.send(whole(200, json.dumps(second).encode()))

    pair.play(holds(json.dumps(first)), decodes)
    assert pair.ask(messages=[{"role": "user", "content": LONG}]).status == 200
    decode, prefill = legs_of(pair)
    assert (decode["engine"], prefill["engine"]) == ("d-priced", "p-priced")
    assert decode["request"] == prefill["request"] == decode["seq"]
    kinds = ("input", "cached", "output")
    assert [prefill[k] for k in kinds] == [400, 500, 0]
    assert [decode[k] for k in kinds] == [0, 0, 70]
    assert (prefill["outcome"], decode["outcome"], prefill["how"], decode["how"]) == (
        "prefilled",
        "ok",
        "exact",
        "exact",
    )
    assert prefill["kv"] == 0 and decode["kv"] > 0  # only the decode engine's memory has a price
    for leg in (prefill, decode):
        tokens = Tokens(**{kind: leg[kind] for kind in KINDS})
        assert leg["cost"] == price_from(leg["price"]).cost(tokens, leg["kv"]) > 0
    assert prefill["cost"] == 444_444  # 400 of the tokens of which it computes 1,000 a second, at 4 an hour
    assert pair.log["cost_nano"] == prefill["cost"] + decode["cost"]
    assert (pair.log["tokens_in"], pair.log["tokens_out"]) == (900, 70)
    line = json.loads(pool.gateway.cli("usage", "--by", "model", "--where", "model=priced", "--format", "json"))
    assert [(row["requests"], row["succeeded"], row["tokens"]["total"]) for row in line["rows"]] == [(1, 1, 970)]


def test_a_client_that_leaves_while_its_prompt_is_computed_pays_the_prompt_there(pool: Pool) -> None:
    pair = pool.use("priced")
    pair.play(silent)
    with pool.gateway.client() as client:
        body = chat("priced", messages=[{"role": "user", "content": LONG}])
        client.send(request(body, x_test=pair.test, x_request_id=pair.test))
        pool.prefill.wait_for(pair.test)
    decode, prefill = legs_of(pair)
    assert (prefill["outcome"], prefill["how"]) == ("client_gone", "estimated")
    assert prefill["input"] > 100 and prefill["cost"] > 0
    assert (decode["cost"], decode["input"], decode["output"]) == (0, 0, 0)


def test_a_prefill_that_came_to_nothing_costs_nothing(pool: Pool) -> None:
    pair = pool.use("priced")  # whose prefill engine is rested after it: the last test of that model
    said = {"prompt_tokens": 900, "completion_tokens": 70, "total_tokens": 970}
    answer = json.dumps({**json.loads(TEXT), "usage": said}).encode()
    pair.play(holds(json.dumps({**json.loads(PREFILLED), "kv_transfer_params": None})), says(whole(200, answer)))
    assert pair.ask(messages=[{"role": "user", "content": LONG}]).status == 200
    decode, prefill = legs_of(pair)
    assert (prefill["outcome"], prefill["cost"], prefill["input"]) == ("engine_error", 0, 0)
    assert (decode["outcome"], decode["input"], decode["output"]) == ("ok", 900, 70)


# --- the prefill engine fails ----------------------------------------------------------------------------------------


def resets(talk: Talk) -> None:
    talk.reset()


def closes_within(talk: Talk) -> None:
    talk.send(whole(200, PREFILLED.encode())[:-20])
    talk.close()


def silent(talk: Talk) -> None:
    talk.wait_gone()


@pytest.mark.parametrize(
    ("script", "kind"),
    [
        (resets, "reset"),
        (closes_within, "cut"),
        (silent, "prefill_timeout"),
        (says(whole(503, b"{}")), "overloaded"),
        (says(whole(500, b"{}")), "status_5xx"),
        (says(whole(200, b"Hello")), "not_json"),
        (says(b"<html>", close=True), "garbage"),
        (says(head(200, f"content-length: {5 << 20}"), hang=True), "garbage"),
    ],
    ids=["reset", "cut", "silent", "503", "500", "not-json", "not-http", "too-large"],
)
@pytest.mark.parametrize("stream", [True])
def test_a_prefill_that_fails_never_reaches_the_decode_engine_and_is_retried_whole(
    pool: Pool, script: Script, kind: str, stream: bool
) -> None:
    pair = pool.fresh()
    pair.play(script)
    answer = pair.ask(stream=stream)
    assert answer.status == 200 and answer.whole, answer
    assert "kv_transfer_params" not in pool.decode.one(pair.test).json  # once, and whole
    assert (pair.log["engine"], pair.log["attempts"]) == (f"d-{pair.model}", 2)
    assert "prefill" not in pair.log
    eventually(lambda: pair.errors(kind) == 1)
    # And it is left alone for a second.
    count = pool.prefill.total()
    again = Pair(pool, pair.model, new_id("pd"))
    assert again.ask().status == 200
    assert pool.prefill.total() == count and again.log["attempts"] == 1


@pytest.mark.parametrize("params", [None, "text", [1], 7])
def test_a_prefill_engine_that_holds_nothing_costs_no_attempt(pool: Pool, params: Any) -> None:
    pair = pool.fresh()
    pair.play(holds(json.dumps({**json.loads(PREFILLED), "kv_transfer_params": params})))
    assert pair.ask().status == 200
    assert len(pool.prefill.requests(pair.test)) == 1
    assert "kv_transfer_params" not in pool.decode.one(pair.test).json
    assert pair.log["attempts"] == 1


def test_of_a_bad_request_the_decode_engine_has_the_word(pool: Pool) -> None:
    refused = json.dumps({"error": {"message": "no such thing", "type": "x", "param": None, "code": 400}}).encode()
    pair = pool.use("m1")
    pair.play(says(whole(400, b'{"error":{"message":"min_tokens"}}')), says(whole(400, refused)))
    answer = pair.ask()
    assert (answer.status, answer.body) == (400, refused)


# --- the decode engine fails -----------------------------------------------------------------------------------------


def test_a_decode_engine_that_cannot_be_reached_is_replaced_and_the_held_kv_let_go(pool: Pool) -> None:
    """`gone` closes its listener; the other one is told of the KV and its call dropped, and then asked the whole."""
    pool.gone.close()
    pair = pool.use("two")
    dropped = threading.Event()

    def other(talk: Talk) -> None:
        if "kv_transfer_params" not in talk.request.json:
            return streams(ROLE, WORD, event(delta({}, "stop")), DONE)(talk)
        talk.send(stream_head(), chunk(ROLE))
        talk.wait_gone()
        dropped.set()
        return None

    pair.play(other=other)
    for _ in range(2):  # engines take turns
        answer = pair.ask(stream=True)
        assert answer.status == 200 and b"Hi" in answer.body
        told = [r.json for r in pool.other.requests(pair.test) if "kv_transfer_params" in r.json]
        if told:
            break
        pair.test = new_id("pd")
        pair.play(other=other)
    assert (told[0]["kv_transfer_params"], told[0]["stream"], told[0]["max_tokens"]) == (PARAMS, True, 1)
    assert dropped.wait(10)


@pytest.mark.parametrize("how", ["reset", "500", "503"])
def test_a_decode_engine_that_fails_before_a_token_is_not_asked_to_release_twice(pool: Pool, how: str) -> None:
    """It may have fetched the KV: another engine would fetch blocks that are somebody else's by now."""
    script = resets if how == "reset" else says(whole(int(how), b"{}"))
    pair = pool.use("m2")
    pair.play(prefill_then_serve, script)
    answer = pair.ask(stream=True)
    assert answer.status == 200 and b"Hi" in answer.body
    assert pair.log["attempts"] == 2
    assert len([r for r in pool.decode.requests(pair.test) if "kv_transfer_params" in r.json]) in (1, 2)
    assert len(pool.prefill.requests(pair.test)) == 2


def test_after_the_first_token_nothing_is_retried(pool: Pool) -> None:
    pair = pool.use("m2")

    def cut(talk: Talk) -> None:
        talk.send(stream_head(), chunk(ROLE), chunk(WORD))
        talk.close()

    pair.play(decode=cut)
    answer = pair.ask(stream=True)
    assert b"Hi" in answer.body and b'"engine_cut"' in answer.body and b"[DONE]" not in answer.body
    assert not answer.whole
    assert len(pool.prefill.requests(pair.test)) == len(pool.decode.requests(pair.test)) == 1


def test_both_calls_together_have_the_first_bytes_time(pool: Pool) -> None:
    pair = pool.use("m2")
    pair.play(decode=silent)
    answer = pair.ask(stream=True)
    assert (answer.status, answer.error["code"]) == (504, "engine_timeout")
    assert pair.log["ms"] < 4_500  # 2.5 s, looked at twice a second, and this machine's own delays


# --- emulated engines: killed, frozen, left --------------------------------------------------------------------------


def ask_sim(pool: Pool, model: str, request_id: str, **fields: Any) -> socket.socket:
    body = {"model": model, "messages": [{"role": "user", "content": LONG}], "stream": True, **fields}
    sock = socket.create_connection(pool.gateway.where, 20)
    sock.sendall(request(body, x_request_id=request_id))
    return sock


def kv_is_free(*engines: EngineProcess) -> None:
    for engine in engines:
        engine.until(lambda _, e=engine: e.metric("vllm:kv_cache_usage_perc") == 0)  # type: ignore[misc]


def test_two_engines_answer_one_request(pool: Pool) -> None:
    prefill, decode = pool.sim
    body = {"model": "sim", "messages": [{"role": "user", "content": LONG}], "max_tokens": 9}
    answer = pool.gateway.ask(body)
    usage = answer.json["usage"]
    assert usage["completion_tokens"] == 9
    assert usage["prompt_tokens_details"]["cached_tokens"] == usage["prompt_tokens"] - 1
    assert prefill.metric("vllm:generation_tokens_total") >= 1
    kv_is_free(prefill, decode)


@pytest.mark.parametrize("state", ["prefill", "transfer", "streaming"])
def test_a_client_that_leaves_ends_both(pool: Pool, state: str) -> None:
    prefill, decode = pool.sim
    name = new_id("leaves")
    content = f"{name} " * (400 if state == "prefill" else 20)
    before = (prefill.books()["aborted"], decode.books()["aborted"])
    with ask_sim(pool, "sim", name, messages=[{"role": "user", "content": content}], max_tokens=4000) as sock:
        if state == "prefill":
            prefill.until(lambda b: b["running"] == 1)
        elif state == "transfer":
            decode.until(lambda b: any(r["id"] == name for r in b["records"]))
        else:
            read_until(sock, b'"content":"')
    left = prefill if state == "prefill" else decode
    left.until(lambda b: b["aborted"] == before[left is decode] + 1)
    assert (decode.record(name) is None) == (state == "prefill")
    assert pool.gateway.logged(name)["outcome"] == "client_gone"
    kv_is_free(prefill, decode)
    eventually(lambda: pool.gateway.metric("forebay_engine_in_flight", engine="p-sim") == 0)
    assert pool.gateway.metric("forebay_engine_in_flight", engine="d-sim") == 0


def test_held_kv_nobody_can_fetch_is_free_when_its_lease_ends(pool: Pool) -> None:
    """Its only decode engine is away: the prefill engine answers the whole."""
    pool.gone.close()
    prefill = pool.sim[0]
    with ask_sim(pool, "lost", name := new_id("lost"), max_tokens=3) as sock:
        read_until(sock, b"[DONE]")
    assert (pool.gateway.logged(name)["engine"], pool.gateway.logged(name)["attempts"]) == ("p-lost", 2)
    kv_is_free(prefill)


@pytest.mark.parametrize("which", ["prefill", "decode"])
def test_a_frozen_engine(pool: Pool, which: str) -> None:
    prefill, decode = pool.sim
    frozen = prefill if which == "prefill" else decode
    os.kill(frozen.process.pid, signal.SIGSTOP)
    try:
        with ask_sim(pool, "frozen", name := new_id("frozen"), max_tokens=3) as sock:
            got = read_until(sock, b"[DONE]" if which == "prefill" else b"engine_timeout")
    finally:
        os.kill(frozen.process.pid, signal.SIGCONT)
    if which == "prefill":
        assert b"[DONE]" in got
        assert pool.gateway.logged(name)["engine"] == "d-frozen"
    else:
        assert b" 504 " in got.partition(b"\r\n")[0]
    kv_is_free(prefill, decode)


def test_engines_that_are_killed(pool: Pool) -> None:
    prefill, decode = pool.mortal
    with ask_sim(pool, "mortal", name := new_id("kill"), max_tokens=2000, ignore_eos=True) as sock:
        prefill.until(lambda b: b["running"] == 1)
        prefill.process.kill()
        read_until(sock, b'"content":"')
        assert decode.record(name)["id"] == name
        decode.process.kill()
        got = read_until(sock, b"engine_cut")
    assert b"engine_cut" in got and b"[DONE]" not in got
    line = pool.gateway.logged(name)
    assert (line["engine"], line["attempts"], line["outcome"]) == ("d-mortal", 2, "engine_cut")


def test_with_admission_decoding_is_reserved_and_nothing_is_left_in_the_books(pool: Pool) -> None:
    prefill, decode = pool.sim
    known = {"prefill_tokens_per_s": 100.0}
    gateway = Gateway(
        {
            "listeners": [{"address": "127.0.0.1:0"}],
            "engines": [
                entry("p", prefill.port, "sim", "prefill"),
                entry("d", decode.port, "sim", "decode", **known),
            ],
            "callers": {"keys": [{"name": "e2e", "key": KEY}]},
            "admission": {"enabled": True, "ttft": {"vip": 60, "normal": 60, "low": 60}},
        }
    )
    try:
        gateway.wait_until_ready("sim")
        name = new_id("admitted")
        body = {"model": "sim", "messages": [{"role": "user", "content": name + " " + LONG}], "stream": True}
        with socket.create_connection(gateway.where, 20) as sock:
            sock.sendall(request({**body, "max_tokens": 4000, "ignore_eos": True}, x_request_id=name))
            prefill.until(lambda b: b["running"] == 1)
            assert decode.record(name) is None
            # Its place is taken where nothing was computed yet, and no prefill is waited for there.
            assert gateway.metric("forebay_engine_kv_predicted", engine="d") > 0
            assert gateway.metric("forebay_engine_prefill_ahead", engine="d") == 0
            assert gateway.metric("forebay_disaggregation_total", prompt="prefill_engine") == 1
            read_until(sock, b'"content":"')
        eventually(lambda: gateway.metric("forebay_engine_kv_predicted", engine="d") == 0)
        line = gateway.logged(name)
        assert (line["engine"], line["prefill"], line["outcome"]) == ("d", "p", "client_gone")
        again = {**body, "messages": [{"role": "user", "content": "hi"}], "stream": False, "max_tokens": 3}
        assert gateway.ask(again).status == 200
        assert gateway.metric("forebay_disaggregation_total", prompt="whole") == 1
        kv_is_free(prefill, decode)
    finally:
        gateway.stop()

"""KV cache over real sockets: what is found again, what is preempted, what is refused, what is handed over."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from engine_process import EngineProcess
from waiting import read_until

DETAILS = ("--enable-prompt-tokens-details", "--decode-rate", "500")
LONG = "The river rose in the night and the lower gates were opened one after another. " * 8
NIXL = ("--kv-transfer-config", '{"kv_connector": "NixlConnector", "kv_role": "kv_both"}')


def cached(answer: Any) -> tuple[int, int]:
    details = answer.json()["usage"]["prompt_tokens_details"]
    return details["cached_tokens"], details["created_cache_tokens"]


def test_a_prompt_seen_before_is_found_in_whole_blocks(start_engine: Any) -> None:
    engine = start_engine(*DETAILS)
    first = engine.chat(LONG, max_tokens=4)
    prompt = first.json()["usage"]["prompt_tokens"]
    whole = prompt // 16 * 16
    assert cached(first) == (0, whole)
    assert cached(engine.chat(LONG, max_tokens=4)) == ((prompt - 1) // 16 * 16, whole - (prompt - 1) // 16 * 16)
    assert cached(engine.chat("x" + LONG, max_tokens=4))[0] == 0
    assert cached(engine.chat(LONG, max_tokens=4, cache_salt="mine"))[0] == 0
    hits = engine.metric("vllm:prefix_cache_hits_total")
    assert hits == (prompt - 1) // 16 * 16
    assert engine.metric("vllm:prompt_tokens_cached_total") == hits
    assert engine.metric("vllm:prefix_cache_queries_total") == engine.metric("vllm:prompt_tokens_total")
    text = engine.ask("GET", "/metrics").body.decode()
    assert f'source="local_cache_hit"}} {hits}' in text


def test_the_next_turn_finds_the_answer_too(start_engine: Any) -> None:
    engine = start_engine(*DETAILS, "--block-size", "4")
    turns = [{"role": "user", "content": LONG}]
    first = engine.ask("POST", "/v1/chat/completions", {"messages": turns, "max_tokens": 60}).json()
    turns += [first["choices"][0]["message"], {"role": "user", "content": "Go on."}]
    second = engine.ask("POST", "/v1/chat/completions", {"messages": turns, "max_tokens": 4})
    known = first["usage"]["total_tokens"]
    assert known - 8 < cached(second)[0] <= known


def test_a_stream_says_the_same_in_its_usage(start_engine: Any, samples: Path) -> None:
    engine = start_engine(*DETAILS)
    engine.chat(LONG, max_tokens=2)
    chunks = engine.chat(LONG, max_tokens=2, stream=True, stream_options={"include_usage": True}).chunks()
    usage = chunks[-1]["usage"]
    assert list(usage) == ["prompt_tokens", "total_tokens", "completion_tokens", "prompt_tokens_details"]
    assert list(usage["prompt_tokens_details"]) == ["cached_tokens", "created_cache_tokens"]
    assert usage["prompt_tokens_details"]["cached_tokens"] > 100


def test_without_a_prefix_cache_nothing_is_found(start_engine: Any) -> None:
    engine = start_engine(*DETAILS, "--no-enable-prefix-caching")
    engine.chat(LONG, max_tokens=2)
    assert cached(engine.chat(LONG, max_tokens=2)) == (0, 0)
    assert 'enable_prefix_caching="False"' in engine.ask("GET", "/metrics").body.decode()


def test_a_prompt_seen_before_has_its_first_token_sooner(start_engine: Any) -> None:
    engine = start_engine("--prefill-rate", "1000")
    engine.chat(LONG, max_tokens=1)
    engine.chat(LONG, max_tokens=1)
    text = engine.ask("GET", "/metrics").body.decode()
    total = engine.metric("vllm:time_to_first_token_seconds_sum")
    assert 'time_to_first_token_seconds_count{engine="0",model_name="forebay-sim"} 2.0' in text
    prompt = engine.metric("vllm:prompt_tokens_total") / 2
    assert prompt / 1000 < total < prompt / 1000 * 1.5


def test_kv_that_runs_out_preempts_and_all_finish(start_engine: Any) -> None:
    engine = start_engine("--num-gpu-blocks-override", "24", "--decode-rate", "400", "--max-model-len", "300")
    socks = [
        engine.open_chat(stream=True, max_tokens=120, ignore_eos=True, seed=i, request_id=f"s{i}") for i in range(6)
    ]
    try:
        for sock in socks:
            assert read_until(sock, b"[DONE]").count(b'"delta":{"content":') == 120
    finally:
        for sock in socks:
            sock.close()
    assert engine.metric("vllm:num_preemptions_total") > 0
    assert engine.metric("vllm:request_num_preemptions_sum") == engine.metric("vllm:num_preemptions_total")
    assert engine.metric("vllm:kv_cache_usage_perc") == 0
    assert 'kv_cache_size_tokens="384"' in engine.ask("GET", "/metrics").body.decode()


def test_too_many_prompt_tokens_in_the_queue_are_503(start_engine: Any) -> None:
    engine = start_engine("--max-num-seqs", "1", "--max-num-queued-tokens", "100", "--decode-rate", "20")
    with engine.open_chat(stream=True, max_tokens=4000, ignore_eos=True) as runs:
        read_until(runs, b'"delta":{"content":')
        with engine.open_chat(stream=True, max_tokens=10) as waits:
            read_until(waits, b'"role"')
            refused = engine.chat(LONG, stream=True)
    assert (refused.status, refused.json()["error"]["type"]) == (503, "Service Unavailable")
    text = engine.ask("GET", "/metrics").body.decode()
    assert 'admission_rejections_total{model_name="forebay-sim",reason="max_num_queued_tokens"} 1.0' in text


def test_priorities_are_an_error_where_they_are_not_scheduled_by(start_engine: Any) -> None:
    engine = start_engine("--scheduling-policy", "fcfs")
    assert engine.chat(max_tokens=1, priority=0).status == 200
    refused = engine.chat(max_tokens=1, priority=5)
    assert (refused.status, refused.json()["error"]["param"]) == (400, "priority")


def test_speculation_gives_several_tokens_a_step(start_engine: Any) -> None:
    engine = start_engine("--spec-tokens", "4", "--spec-acceptance", "1", "--decode-rate", "50")
    answer = engine.chat(max_tokens=101, ignore_eos=True, stream=True)
    assert sum(bool(c["choices"][0]["delta"].get("content")) for c in answer.chunks()) == 101
    assert engine.metric("vllm:inter_token_latency_seconds_count") == 20
    assert engine.metric("vllm:generation_tokens_total") == 101


def test_ten_times_the_speed(start_engine: Any) -> None:
    engine = start_engine("--speed", "10", "--decode-rate", "20")
    engine.chat(max_tokens=41, ignore_eos=True)
    assert 0.19 < engine.metric("vllm:e2e_request_latency_seconds_sum") < 1.5  # of 2 s


def test_a_gpu_instead_of_rates(start_engine: Any) -> None:
    engine = start_engine("--gpu", "h100_sxm", "--model-shape", "Qwen/Qwen3-32B")
    assert engine.chat(max_tokens=8).status == 200
    text = engine.ask("GET", "/metrics").body.decode()
    size = int(text.split('kv_cache_size_tokens="')[1].split('"')[0])
    assert 5_000 < size < 100_000  # 80 GB less 65 GB of weights
    gap = engine.metric("vllm:inter_token_latency_seconds_sum") / 7
    assert 0.01 < gap < 0.2  # 65 GB over 3.35 TB/s is 20 ms


# --- prefill and decode on two engines -------------------------------------------------------------------------------


@pytest.fixture
def pair(start_engine: Any) -> tuple[EngineProcess, EngineProcess]:
    options = (*NIXL, *DETAILS, "--kv-transfer-latency", "0.05")
    return start_engine(*options), start_engine(*options)


def prefilled(prefill: EngineProcess, request_id: str = "r1") -> dict[str, Any]:
    body = {
        "messages": [{"role": "user", "content": LONG}],
        "max_tokens": 1,
        "kv_transfer_params": {"do_remote_decode": True, "do_remote_prefill": False, "remote_engine_id": None},
    }
    answer = prefill.ask("POST", "/v1/chat/completions", body, {"x-request-id": request_id})
    assert answer.status == 200
    params: dict[str, Any] = answer.json()["kv_transfer_params"]
    return params


def test_the_prompt_is_computed_on_one_engine_and_decoded_on_another(pair: tuple[EngineProcess, EngineProcess]) -> None:
    prefill, decode = pair
    params = prefilled(prefill)
    assert (params["do_remote_prefill"], params["do_remote_decode"]) == (True, False)
    assert (params["remote_request_id"], params["remote_port"]) == ("chatcmpl-r1", prefill.port)
    held = prefill.metric("vllm:kv_cache_usage_perc")
    assert held > 0 and len(params["remote_block_ids"][0]) == pytest.approx(held * 16_384, abs=1)
    assert prefill.books()["running"] == 0

    answer = decode.chat(LONG, max_tokens=9, kv_transfer_params=params)
    prompt = answer.json()["usage"]["prompt_tokens"]
    assert answer.json()["usage"]["completion_tokens"] == 9
    assert cached(answer) == (prompt - 1, 0)
    text = decode.ask("GET", "/metrics").body.decode()
    assert f'source="external_kv_transfer"}} {prompt - 1}.0' in text
    assert decode.metric("vllm:external_prefix_cache_hits_total") == prompt - 1
    assert decode.metric("vllm:time_to_first_token_seconds_sum") >= 0.05
    prefill.until(lambda _: prefill.metric("vllm:kv_cache_usage_perc") == 0)


def test_a_client_that_leaves_while_kv_is_on_its_way_frees_it(pair: tuple[EngineProcess, EngineProcess]) -> None:
    prefill, decode = pair
    params = prefilled(prefill)
    with decode.open_chat(stream=True, kv_transfer_params=params) as sock:
        read_until(sock, b'"role"')
    decode.until(lambda b: b["aborted"] == 1 and not b["waiting"])
    prefill.until(lambda _: prefill.metric("vllm:kv_cache_usage_perc") == 0)


def test_held_kv_is_freed_when_its_lease_ends(start_engine: Any) -> None:
    lease = {"kv_connector": "NixlConnector", "kv_connector_extra_config": {"kv_lease_duration": 2}}
    engine = start_engine("--kv-transfer-config", json.dumps(lease), "--decode-rate", "500")
    prefilled(engine)
    assert engine.metric("vllm:kv_cache_usage_perc") > 0
    engine.until(lambda _: engine.metric("vllm:kv_cache_usage_perc") == 0)
    assert engine.ask("POST", "/control/kv/release", {"request_id": "chatcmpl-r1"}).json() == {"released": False}


def test_without_the_connector_the_fields_are_nothing(shared_engine: EngineProcess) -> None:
    assert prefilled(shared_engine) is None
    assert shared_engine.ask("POST", "/control/kv/release", {}).status == 400


@pytest.mark.parametrize(
    "change", [{"remote_port": 0}, {"remote_port": "x"}, {"remote_host": None}, {"remote_block_ids": []}]
)
def test_fields_that_lead_nowhere_mean_a_prefill_here(
    pair: tuple[EngineProcess, EngineProcess], change: dict[str, Any]
) -> None:
    prefill, decode = pair
    answer = decode.chat(LONG, max_tokens=2, kv_transfer_params={**prefilled(prefill), **change})
    assert answer.status == 200 and cached(answer)[0] == 0


def test_a_prefill_engine_that_is_gone_is_no_reason_to_fail(pair: tuple[EngineProcess, EngineProcess]) -> None:
    prefill, decode = pair
    params = {**prefilled(prefill), "remote_port": 1}
    assert decode.chat(LONG, max_tokens=2, kv_transfer_params=params).status == 200

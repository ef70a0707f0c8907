"""Each adapter on pages of its engine: recorded, or written after the source (see tests/data/engines/README.md)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from forebay.config.engine import EngineKind
from forebay.config.section import Class
from forebay.engines.base import NOTHING, EngineReport
from forebay.engines.prometheus import Reader, whose
from forebay.engines.registry import adapter
from forebay.errors import Outcome

DATA = Path(__file__).parents[1] / "data" / "engines"
LOAD, FAIL = Outcome.OVERLOADED, Outcome.ENGINE_ERROR
KINDS = tuple(EngineKind)


def page(name: str) -> str:
    return (DATA / name).read_text()


def report(kind: EngineKind, name: str) -> EngineReport:
    return adapter(kind).report(page(name))


# --- what they say of load and KV cache ------------------------------------------------------------------------------


def test_vllm() -> None:
    assert report(EngineKind.VLLM, "vllm-0.32.0-metrics.txt") == EngineReport(
        running=0,
        waiting=0,
        kv_usage=0.0,
        kv_capacity_tokens=524_288,
        block_size=128,
        preemptions=0,
        prefix_queries=800,
        prefix_hits=0,
        done=9_500,
        started_at=1_795_957_647.66,
        labelled=("tiny",),
    )
    info = adapter(EngineKind.VLLM).info(b"/v1/models", page("vllm-0.32.0-models.json").encode())
    assert info == EngineReport(models=("tiny",), adapters=(), max_model_len=2048)
    assert adapter(EngineKind.VLLM).info(b"/version", b'{"version":"0.32.0"}').version == "0.32.0"


def test_vllm_adds_up_data_parallel_ranks() -> None:
    found = adapter(EngineKind.VLLM).report(
        'vllm:num_requests_running{engine="0",model_name="m"} 3.0\n'
        'vllm:num_requests_running{engine="1",model_name="m"} 4.0\n'
        'vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.2\n'
        'vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.6\n'
        'vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="100"} 1.0\n'
        'vllm:cache_config_info{block_size="16",engine="1",num_gpu_blocks="100"} 1.0\n'
    )
    assert (found.running, found.kv_capacity_tokens, found.block_size) == (7, 3_200, 16)
    assert found.kv_usage == pytest.approx(0.4)


def test_vllm_s_older_names() -> None:
    found = adapter(EngineKind.VLLM).report(
        'vllm:num_requests_running{model_name="m"} 1.0\nvllm:num_requests_swapped{model_name="m"} 2.0\n'
        'vllm:gpu_cache_usage_perc{model_name="m"} 0.5\nvllm:gpu_prefix_cache_queries_total{model_name="m"} 10.0\n'
        'vllm:gpu_prefix_cache_hits_total{model_name="m"} 4.0\n'
    )
    assert (found.swapped, found.kv_usage, found.prefix_queries, found.prefix_hits) == (2, 0.5, 10, 4)


def test_vllm_s_newest_set_of_lora_adapters_counts() -> None:
    def line(running: str, waiting: str, at: float) -> str:
        return (
            f'vllm:lora_requests_info{{max_lora="4",running_lora_adapters="{running}",waiting_lora_adapters="{waiting}"}}'
            f" {at}\n"
        )

    lines = line("sql", "", 1.7e9) + line("sql,law", 'law,\\"odd\\"', 1.8e9) + line("", "", 1.75e9)
    found = adapter(EngineKind.VLLM).report("vllm:num_requests_running 1\n" + lines)
    assert (found.loras, found.max_loras) == (("sql", "law", '"odd"'), 4)
    cards = {"data": [{"id": "m", "parent": None, "max_model_len": 4096}, {"id": "sql", "parent": "m"}]}
    info = adapter(EngineKind.VLLM).info(b"/v1/models", json.dumps(cards).encode())
    assert (info.models, info.adapters, info.max_model_len) == (("m",), ("sql",), 4096)


def test_sglang_s_ranks_are_added_up_once() -> None:
    assert report(EngineKind.SGLANG, "sglang-metrics.txt") == EngineReport(
        running=12,
        waiting=4,
        kv_usage=0.5,
        kv_capacity_tokens=200_000,
        block_size=64,
        max_model_len=32_768,
        preemptions=2,
        prefix_queries=1_000,
        prefix_hits=450,
        done=90,
        labelled=("qwen",),
    )


def test_sglang_without_metrics() -> None:
    sglang = adapter(EngineKind.SGLANG)
    assert report(EngineKind.SGLANG, "sglang-loads.json") == EngineReport(
        running=7, waiting=2, kv_usage=0.5, kv_capacity_tokens=200_000, max_num_seqs=256, version="0.5.23"
    )
    info = sglang.info(b"/server_info", page("sglang-server_info.json").encode())
    assert info == EngineReport(
        kv_capacity_tokens=200_000, block_size=64, max_num_seqs=256, version="0.5.23", low_first=True
    )


def test_tgi() -> None:
    assert report(EngineKind.TGI, "tgi-metrics.txt") == EngineReport(
        running=4, waiting=2, kv_usage=0.25, kv_capacity_tokens=32_768, done=42
    )
    tgi = adapter(EngineKind.TGI)
    assert tgi.info(b"/info", page("tgi-info.json").encode()) == EngineReport(
        max_model_len=2048, version="3.3.7", models=("bigscience/bloom-560m",)
    )
    old = tgi.info(b"/info", b'{"model_id":"m","max_batch_total_tokens":32000,"max_batch_size":null,"version":"2.0.0"}')
    assert (old.kv_capacity_tokens, old.max_num_seqs) == (32_000, None)


def test_trtllm() -> None:
    assert report(EngineKind.TRTLLM, "trtllm-metrics.txt") == EngineReport(
        running=9,
        waiting=1,
        swapped=0,
        kv_usage=0.125,
        kv_capacity_tokens=32_000,
        block_size=32,
        max_num_seqs=2048,
        prefix_queries=900,
        prefix_hits=320,
        done=11,
    )


def test_trtllm_s_last_step_counts() -> None:
    assert report(EngineKind.TRTLLM, "trtllm-metrics.json") == EngineReport(
        running=3,
        waiting=2,
        swapped=1,
        kv_usage=0.2,
        kv_capacity_tokens=32_000,
        block_size=32,
        max_num_seqs=2048,
        done=154,
    )
    ranks = json.loads(page("trtllm-metrics.json"))
    ranks[0]["attentionDpRank"] = 1
    found = adapter(EngineKind.TRTLLM).report(json.dumps(ranks))
    assert (found.running, found.waiting, found.kv_capacity_tokens) == (4, 7, 64_000)
    assert found.kv_usage == pytest.approx(0.15)


def test_llamacpp() -> None:
    assert report(EngineKind.LLAMACPP, "llamacpp-metrics.txt") == EngineReport(
        running=0, waiting=0, prefix_queries=3_832, prefix_hits=1_281, done=960
    )
    info = adapter(EngineKind.LLAMACPP).info(b"/props", page("llamacpp-props.json").encode())
    assert info == EngineReport(max_num_seqs=4, max_model_len=2048, version="b0-unknown", models=("smollm2-135m",))


def test_ollama() -> None:
    assert report(EngineKind.OLLAMA, "ollama-ps.json") == EngineReport(loaded=("qwen3:8b",), max_model_len=8192)
    assert adapter(EngineKind.OLLAMA).report('{"models":[]}') == EngineReport(loaded=())
    assert adapter(EngineKind.OLLAMA).info(b"/api/version", b'{"version":"0.33.0"}').version == "0.33.0"


@pytest.mark.parametrize("kind", KINDS)
def test_what_an_adapter_says_of_a_page_is_what_it_promises(kind: EngineKind) -> None:
    pages = {
        EngineKind.VLLM: "vllm-0.32.0-metrics.txt",
        EngineKind.SGLANG: "sglang-metrics.txt",
        EngineKind.TGI: "tgi-metrics.txt",
        EngineKind.TRTLLM: "trtllm-metrics.txt",
        EngineKind.LLAMACPP: "llamacpp-metrics.txt",
        EngineKind.OLLAMA: "ollama-ps.json",
    }
    found = adapter(kind)
    assert bool(found.metrics_paths) == (kind in pages)
    for field in found.says:
        assert getattr(report(kind, pages[kind]), field) is not None, field


# --- pages that are not theirs, or broken ----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "text",
    ["", "<!doctype html><html></html>", "{}", "[]", "null", '{"models":', "[1,null,{}]", "\x00\ud800", "[" * 10_000],
    ids=["empty", "html", "object", "list", "null", "cut", "odd items", "no text", "deep"],
)
def test_a_page_of_something_else_says_nothing(kind: EngineKind, text: str) -> None:
    found = adapter(kind)
    assert found.report(text) == NOTHING
    for group in found.info_paths:
        for path in group:
            assert found.info(path, text.encode("utf-8", "surrogatepass")) == NOTHING


def test_a_page_of_another_engine_says_nothing() -> None:
    pages = [p.name for p in DATA.iterdir() if p.name.endswith("metrics.txt")]
    assert len(pages) == 5
    for kind in KINDS:
        own = [p for p in pages if adapter(kind).report(page(p)) != NOTHING]
        assert [whose(page(p)) for p in own] == list(adapter(kind).prefixes), kind


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-Inf", "-3", "1e400", "much", ""])
def test_values_that_cannot_be(value: str) -> None:
    vllm = adapter(EngineKind.VLLM)
    found = vllm.report(f"vllm:num_requests_running {value}\nvllm:kv_cache_usage_perc {value}\n")
    assert (found.running, found.kv_usage) == (None, None)
    assert vllm.report(f"vllm:num_requests_running {value}\nvllm:num_requests_running 2\n").running == 2
    assert vllm.report("vllm:kv_cache_usage_perc 7.5\n").kv_usage is None
    assert adapter(EngineKind.SGLANG).report(f"sglang:page_size {value}\n").block_size is None
    capacity = vllm.report(f'vllm:cache_config_info{{block_size="{value}",kv_cache_size_tokens="{value}"}} 1\n')
    assert (capacity.block_size, capacity.kv_capacity_tokens) == (None, None)


def test_labels_with_escapes_and_braces() -> None:
    text = 'x{a="q\\"}{,b=\\"no\\"",b="two\\nlines \\\\",c=""} 5 1700000000000\nx{b="cut} 6\nxy{b="1"} 7\n# x 8\n x 9\n'
    (sample,) = Reader(["x"]).read(text)["x"]
    assert (sample.labels, sample.value) == ({"a": 'q"}{,b="no"', "b": "two\nlines \\", "c": ""}, 5.0)


def test_a_page_with_many_samples_is_read_in_bounds() -> None:
    lines = "".join(f'vllm:num_requests_running{{engine="{i}",model_name="m{i}"}} 1\n' for i in range(20_000))
    found = adapter(EngineKind.VLLM).report(lines)
    assert found.running == 4_096
    assert found.labelled is not None and len(found.labelled) == 1_000


# --- facts and restarts ----------------------------------------------------------------------------------------------


def test_what_is_said_goes_over_what_was_said() -> None:
    old = EngineReport(running=3, kv_usage=0.5, loras=("a",), block_size=16, version="1", preemptions=4)
    assert EngineReport(waiting=1, block_size=32).over(old) == EngineReport(
        waiting=1, block_size=32, version="1", preemptions=4
    )


@pytest.mark.parametrize(
    ("now", "before", "anew"),
    [
        (EngineReport(started_at=10.0, done=5), EngineReport(started_at=10.2, done=9), False),
        (EngineReport(started_at=99.0, done=9), EngineReport(started_at=10.0, done=5), True),
        (EngineReport(done=5), EngineReport(done=9), True),
        (EngineReport(prefix_queries=5, done=9), EngineReport(prefix_queries=9, done=9), True),
        (EngineReport(done=9), EngineReport(done=9), False),
        (EngineReport(running=1), EngineReport(done=9), False),
        (EngineReport(done=9), NOTHING, False),
    ],
)
def test_a_restart(now: EngineReport, before: EngineReport, anew: bool) -> None:
    assert now.restarted(before) is anew


# --- refusals --------------------------------------------------------------------------------------------------------

QUEUE_FULL = (
    b'{"error":{"object":"error","message":"The request queue is full.","type":"SERVICE_UNAVAILABLE","code":503}}'
)


@pytest.mark.parametrize(
    ("kind", "status", "said", "meaning"),
    [
        (EngineKind.VLLM, 503, b"", LOAD),
        (EngineKind.VLLM, 500, b'{"error":{"message":"EngineCore encountered an issue."}}', FAIL),
        (EngineKind.VLLM, 400, b"", None),
        (EngineKind.SGLANG, 503, QUEUE_FULL, LOAD),
        (EngineKind.SGLANG, 503, b'{"message":"The request is aborted by a higher priority request."}', LOAD),
        (EngineKind.SGLANG, 503, b'{"message":"Request waiting timeout reached."}', LOAD),
        (EngineKind.SGLANG, 503, b'{"message":"Request running timeout reached."}', FAIL),
        (EngineKind.SGLANG, 503, b'{"message":"Using priority is disabled for this server. Please"}', FAIL),
        (EngineKind.TGI, 429, b'{"error":"Model is overloaded","error_type":"overloaded"}', LOAD),
        (EngineKind.TGI, 422, b'{"error":{"message":"Model is overloaded","http_status_code":422}}', LOAD),
        (
            EngineKind.TGI,
            424,
            b'{"error":"Request failed during generation: Server error: CUDA","error_type":"g"}',
            FAIL,
        ),
        (EngineKind.TGI, 422, b'{"error":"Input validation error: `inputs` must have less","error_type":"v"}', None),
        (EngineKind.TRTLLM, 503, b"LLM is unavailable.", LOAD),
        (
            EngineKind.LLAMACPP,
            503,
            b'{"error":{"code":503,"message":"Loading model","type":"unavailable_error"}}',
            LOAD,
        ),
        (EngineKind.LLAMACPP, 500, b'{"error":{"code":500,"message":"Context size has been exceeded."}}', LOAD),
        (EngineKind.LLAMACPP, 500, b'{"error":{"code":500,"message":"Compute error."}}', FAIL),
        (EngineKind.LLAMACPP, 400, b'{"error":{"type":"exceed_context_size_error"}}', None),
        (EngineKind.OLLAMA, 503, b'{"error":{"message":"server busy, please try again.  maximum pending"}}', LOAD),
        (EngineKind.OLLAMA, 404, b"", None),
        (EngineKind.OPENAI, 429, b'{"error":{"code":"rate_limit_exceeded"}}', LOAD),
        (EngineKind.OPENAI, 429, b'{"error":{"code":"insufficient_quota"}}', FAIL),
        (EngineKind.OPENAI, 401, b"", FAIL),
        (EngineKind.OPENAI, 302, b"", FAIL),
        (EngineKind.ANTHROPIC, 529, b'{"type":"error","error":{"type":"overloaded_error"}}', LOAD),
        (EngineKind.ANTHROPIC, 502, b'{"type":"error","error":{"type":"overloaded_error"}}', LOAD),
        (EngineKind.ANTHROPIC, 429, b'{"error":{"details":{"error_code":"enforced_spend_limit_reached"}}}', FAIL),
        (EngineKind.ANTHROPIC, 400, b'{"error":{"type":"invalid_request_error"}}', None),
    ],
)
def test_what_a_refusal_means(kind: EngineKind, status: int, said: bytes, meaning: Outcome | None) -> None:
    assert adapter(kind).refused(status, said) is meaning


# --- the rest --------------------------------------------------------------------------------------------------------


def test_the_sign_of_priority() -> None:
    def of(kind: EngineKind, low_first: bool | None = None) -> list[int | None]:
        return [adapter(kind).priority(c, low_first) for c in (Class.VIP, Class.NORMAL, Class.LOW)]

    assert of(EngineKind.VLLM) == of(EngineKind.VLLM, False) == [-1, 0, 1]
    assert of(EngineKind.SGLANG) == of(EngineKind.SGLANG, False) == [1, 0, -1]
    assert of(EngineKind.SGLANG, True) == [-1, 0, 1]
    for kind in set(KINDS) - {EngineKind.VLLM, EngineKind.SGLANG}:
        assert of(kind) == [None, None, None]


def test_abort() -> None:
    assert adapter(EngineKind.SGLANG).abort('a"b') == (b"/abort_request", b'{"rid":"a\\"b"}')
    assert adapter(EngineKind.VLLM).abort("a") == (b"/inference/v1/abort_requests", b'{"request_ids":["a"]}')
    assert adapter(EngineKind.TGI).abort("a") is None


def test_keys_go_where_they_are_looked_for() -> None:
    assert adapter(EngineKind.VLLM).credentials("k") == b"authorization: Bearer k\r\n"
    assert adapter(EngineKind.ANTHROPIC).credentials("k") == b"x-api-key: k\r\nanthropic-version: 2023-06-01\r\n"


USAGE: dict[str, Any] = {"usage": {"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 8}}}


@pytest.mark.parametrize(
    ("kind", "answer", "cached"),
    [
        (EngineKind.VLLM, USAGE, 8),
        (EngineKind.SGLANG, {"usage": {"prompt_tokens": 9, "prompt_tokens_details": None}}, None),
        (EngineKind.TRTLLM, {"usage": {"prompt_tokens_details": {"cached_tokens": 0}}}, 0),
        (EngineKind.LLAMACPP, {"timings": {"cache_n": 24}}, 24),
        (EngineKind.LLAMACPP, {"tokens_cached": 7}, 7),
        (EngineKind.OLLAMA, {"usage": {"prompt_tokens": 9}}, None),
        (EngineKind.ANTHROPIC, {"usage": {"input_tokens": 5, "cache_read_input_tokens": 100}}, 100),
        (EngineKind.ANTHROPIC, {"message": {"usage": {"cache_read_input_tokens": 3}}}, 3),
        (EngineKind.OPENAI, {"usage": {"prompt_tokens_details": {"cached_tokens": -4}}}, None),
        (EngineKind.OPENAI, {"usage": {"prompt_tokens_details": {"cached_tokens": "8 of 9"}}}, None),
        (EngineKind.OPENAI, {"usage": []}, None),
    ],
)
def test_cached_tokens(kind: EngineKind, answer: dict[str, object], cached: int | None) -> None:
    assert adapter(kind).cached_tokens(answer) == cached


def test_cached_tokens_of_a_recorded_answer() -> None:
    answer = json.loads(page("llamacpp-chat.json"))
    assert adapter(EngineKind.LLAMACPP).cached_tokens(answer) == 36
    del answer["usage"]
    assert adapter(EngineKind.LLAMACPP).cached_tokens(answer) == 36


@pytest.mark.parametrize("use", ["1" + "0" * 400, "-1" + "0" * 400, "true", "[]"])
def test_sglang_with_a_use_that_is_no_share(use: str) -> None:
    found = adapter(EngineKind.SGLANG).report(f'{{"loads": [{{"num_running_reqs": 3, "token_usage": {use}}}]}}')
    assert (found.running, found.kv_usage) == (3, None)

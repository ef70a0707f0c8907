"""What each engine's command line is, held against the flags that the engine's own source or help lists."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from forebay.config.engine import Engine
from forebay.config.launch import Launch
from forebay.engines.launching.commands import PROGRAMS, CommandLine, command_of, mistakes
from forebay.engines.launching.page import rows
from forebay.engines.launching.table import SETTINGS, Choice, Refused, Variable

KNOWN = Path(__file__).parent / "known"
KINDS = sorted(PROGRAMS)


def known(kind: str) -> set[str]:
    lines = (KNOWN / f"{kind}.txt").read_text().splitlines()
    return {line for line in lines if not line.startswith("#")}


def engine(kind: str, entry: dict[str, Any] | None = None, **launch: Any) -> Engine:
    value = {"name": "e", "launch": {"model": "m/n", "port": 8101, **launch}, **(entry or {})}
    return Engine.model_validate(value).model_copy(update={"kind": kind})


def everything_found(name: str) -> str:
    return name


def command(kind: str, entry: dict[str, Any] | None = None, **launch: Any) -> CommandLine:
    one = engine(kind, entry, **launch)
    assert list(mistakes(one)) == []
    return command_of(one, everything_found)


def said(kind: str, entry: dict[str, Any] | None = None, **launch: Any) -> dict[str, str]:
    return {".".join(map(str, mistake.path)): mistake.message for mistake in mistakes(engine(kind, entry, **launch))}


@pytest.mark.parametrize("kind", KINDS)
def test_every_flag_of_the_table_is_one_of_the_engine_s(kind: str) -> None:
    program, flags = PROGRAMS[kind], known(kind)
    written = {name for setting in program.settings.values() for name in setting.names}
    written |= {s.name for s in (*program.settings.values(), program.key) if isinstance(s, Variable)}
    written |= {*program.aliases, *program.aliases.values(), *program.model_names}
    written |= set(program.report(Launch(model="m", port=1)))
    assert len(written) > 2
    # argparse takes the beginning of a flag for the flag: --tp for --tp-size
    assert {flag for flag in written if not any(known.startswith(flag) for known in flags)} == set()


@pytest.mark.parametrize("kind", KINDS)
def test_every_setting_has_an_answer(kind: str) -> None:
    settings = PROGRAMS[kind].settings
    assert set(settings) == set(SETTINGS)
    for name, setting in settings.items():
        if isinstance(setting, Choice) and setting.refuses:
            assert "leave it out" in setting.refuses, name


FULL: dict[str, Any] = {
    "host": "0.0.0.0",
    "served_model_name": "small",
    "tensor_parallel_size": 2,
    "gpu_memory_utilization": 0.85,
    "max_model_len": 4096,
    "dtype": "bfloat16",
    "block_size": 32,
    "max_num_seqs": 64,
    "max_num_batched_tokens": 8192,
    "enable_prefix_caching": False,
    "scheduling_policy": "priority",
    "flags": ["--seed", "7"],
}


def test_vllm() -> None:
    assert command("vllm", **FULL).shown() == (
        "vllm serve m/n --host 0.0.0.0 --port 8101 --served-model-name small --tensor-parallel-size 2 "
        "--gpu-memory-utilization 0.85 --max-model-len 4096 --dtype bfloat16 --block-size 32 --max-num-seqs 64 "
        "--max-num-batched-tokens 8192 --no-enable-prefix-caching --scheduling-policy priority "
        "--enable-prompt-tokens-details --enable-request-id-headers --seed 7"
    )


def test_vllm_in_a_python_of_its_own_has_the_model_in_a_flag() -> None:
    shown = command("vllm", python="/opt/vllm/bin/python", report=False).shown()
    assert shown == (
        "/opt/vllm/bin/python -m vllm.entrypoints.openai.api_server --model m/n --host 127.0.0.1 --port 8101"
    )
    assert command("vllm", command=["/x/vllm", "serve"], report=False).shown().startswith("/x/vllm serve m/n --host")


def test_sglang() -> None:
    assert command("sglang", {"api_key": "k" * 20}, **FULL).shown() == (
        "sglang serve --model-path m/n --host 0.0.0.0 --port 8101 --served-model-name small --tp-size 2 "
        "--mem-fraction-static 0.85 --context-length 4096 --dtype bfloat16 --page-size 32 --max-running-requests 64 "
        "--chunked-prefill-size 8192 --disable-radix-cache --enable-priority-scheduling --api-key '(hidden)' "
        "--enable-metrics --enable-cache-report --seed 7"
    )


@pytest.mark.parametrize(("policy", "there"), [(None, True), ("priority", True), ("fcfs", False)])
def test_sglang_has_priorities_unless_told_otherwise(policy: str | None, there: bool) -> None:
    words = command("sglang", scheduling_policy=policy).words
    assert words.count("--enable-priority-scheduling") == there


def test_llamacpp_s_context_is_shared_by_its_slots() -> None:
    assert command(
        "llamacpp", model="/m/x.gguf", served_model_name="x", max_model_len=2048, max_num_seqs=4,
        max_num_batched_tokens=512, enable_prefix_caching=True, tensor_parallel_size=1, scheduling_policy="fcfs",
    ).shown() == (
        "llama-server --model /m/x.gguf --host 127.0.0.1 --port 8101 --alias x --ctx-size 8192 --parallel 4 "
        "--batch-size 512 --cache-prompt --metrics --slots"
    )  # fmt: skip
    assert command("llamacpp", model="user/repository:Q4_K_M").words[1:3] == ("--hf-repo", "user/repository:Q4_K_M")


def test_trtllm() -> None:
    assert command(
        "trtllm", tensor_parallel_size=4, gpu_memory_utilization=0.9, max_model_len=8192, max_num_seqs=128,
        max_num_batched_tokens=4096, enable_prefix_caching=True,
    ).shown() == (
        "trtllm-serve m/n --host 127.0.0.1 --port 8101 --tp_size 4 --kv_cache_free_gpu_memory_fraction 0.9 "
        "--max_seq_len 8192 --max_batch_size 128 --max_num_tokens 4096"
    )  # fmt: skip


def test_tgi_and_ollama_take_settings_from_the_environment() -> None:
    tgi = command("tgi", {"api_key": "k" * 20}, enable_prefix_caching=False, dtype="float16", tensor_parallel_size=2)
    assert tgi.shown() == (
        "PREFIX_CACHING=0 API_KEY='(hidden)' text-generation-launcher --model-id m/n --hostname 127.0.0.1 --port 8101 "
        "--num-shard 2 --dtype float16"
    )
    assert command("ollama", max_num_seqs=4, max_model_len=8192, host="::1").shown() == (
        "OLLAMA_HOST='[::1]:8101' OLLAMA_CONTEXT_LENGTH=8192 OLLAMA_NUM_PARALLEL=4 ollama serve"
    )


@pytest.mark.parametrize(
    ("kind", "setting", "value", "fix"),
    [
        ("vllm", "dtype", "q4_0", "not one of its choices: auto, bfloat16"),
        ("llamacpp", "tensor_parallel_size", 2, "--split-mode and --tensor-split"),
        ("llamacpp", "block_size", 16, "no blocks: leave it out"),
        ("llamacpp", "dtype", "float16", "choose the file"),
        ("llamacpp", "gpu_memory_utilization", 0.5, "--fit-target"),
        ("llamacpp", "scheduling_policy", "priority", "knows no priorities"),
        ("trtllm", "block_size", 64, "kv_cache_config.tokens_per_block into a YAML file"),
        ("trtllm", "enable_prefix_caching", False, "kv_cache_config.enable_block_reuse: false"),
        ("tgi", "served_model_name", "x", "models.NAME.aliases"),
        ("tgi", "dtype", "float32", "not one of its choices: float16, bfloat16"),
        ("tgi", "block_size", 16, "leave it out"),
        ("ollama", "tensor_parallel_size", 2, "OLLAMA_SCHED_SPREAD"),
    ],
)
def test_what_an_engine_does_not_have_names_the_field_and_the_fix(
    kind: str, setting: str, value: Any, fix: str
) -> None:
    found = said(kind, **{setting: value})
    assert list(found) == [f"launch.{setting}"]
    assert fix in found[f"launch.{setting}"]


def test_a_kind_without_a_program_is_named() -> None:
    assert "one of these kinds: vllm, sglang, llamacpp, trtllm, tgi, ollama" in said("openai")["kind"]
    assert said("trtllm", {"api_key": "k" * 20})["api_key"].startswith("trtllm-serve asks for no key")
    assert "launch.command" in said("tgi", python="/x/python")["launch.python"]


def test_flags_beside_the_fields_that_set_them() -> None:
    assert said(
        "vllm", max_model_len=10, flags=["--max-model-len=20", "--dtype", "half", "-tp", "2", "--api-key", "x"]
    ) == {
        "launch.flags.0": "launch.max_model_len says it: leave the flag and its value out",
        "launch.flags.1": "set launch.dtype instead",
        "launch.flags.3": "set launch.tensor_parallel_size instead",
        "launch.flags.5": "set the entry's api_key instead: the gateway has to send it",
    }
    assert said("sglang", flags=["--model", "x", "--port", "1"]) == {
        "launch.flags.0": "launch.model says it: leave the flag and its value out",
        "launch.flags.2": "launch.port says it: leave the flag and its value out",
    }


def test_secrets_are_not_shown() -> None:
    found = command(
        "vllm", {"api_key": "the-entry-s-own-key"}, env={"HF_TOKEN": "sesame-one", "CUDA_VISIBLE_DEVICES": "0"},
        flags=["--hf-token", "sesame-two", "--ssl-key=sesame-three", "--max-num-partial-prefills", "3"],
    )  # fmt: skip
    shown = found.shown()
    assert "sesame" not in shown and "own-key" not in shown
    assert shown.startswith("HF_TOKEN='(hidden)' CUDA_VISIBLE_DEVICES=0 VLLM_API_KEY='(hidden)' vllm serve m/n ")
    assert shown.endswith("--hf-token '(hidden)' '--ssl-key=(hidden)' --max-num-partial-prefills 3")
    assert found.secrets == {"the-entry-s-own-key", "sesame-one", "sesame-two", "sesame-three"}
    assert found.variables["VLLM_API_KEY"] == "the-entry-s-own-key"
    assert "the-entry-s-own-key" not in found.words


@pytest.mark.parametrize(
    ("kind", "fix"),
    [("vllm", "pip install vllm"), ("sglang", "pip install sglang"), ("llamacpp", "pip install 'forebay[local]'")],
)
def test_a_program_that_is_not_there_says_what_to_install(kind: str, fix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(Refused, match=r"^e: .+ is not here: ") as e:
        command_of(engine(kind, model="/m.gguf"), lambda name: None)
    assert fix in str(e.value)


def test_an_engine_in_our_own_python_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    words = command_of(engine("llamacpp", model="/m.gguf"), lambda name: None).words
    assert words[:5] == (sys.executable, "-m", "forebay.engines.launching.llamacpp_server", "--model", "/m.gguf")
    with pytest.raises(Refused, match="name its path"):
        command_of(engine("llamacpp", model="user/repository"), lambda name: None)


def test_the_table_in_the_docs_is_current() -> None:
    text = (Path(__file__).parents[3] / "docs/launch.md").read_text()
    assert "\n".join(rows()) in text, "python -m forebay.engines.launching.page"

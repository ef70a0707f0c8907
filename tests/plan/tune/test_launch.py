"""Commands of settings, and the lists of flags that they are looked at against."""

from __future__ import annotations

import re
import shlex

import pytest

from forebay.engines.launching.commands import PROGRAMS
from forebay.engines.launching.table import Choice, Flag
from forebay.plan.tune import flags
from forebay.plan.tune.launch import Shares, read_vllm, starts
from forebay.plan.tune.space import Setting

MODEL = "Qwen/Qwen2.5-72B-Instruct"
MEMORY = Shares(weights=0.43, kv=0.45, utilization=0.9)
SETTINGS = [
    Setting(tp=4, engines=2),
    Setting(tp=2, kv_dtype="fp8", dtype="fp8", enable_prefix_caching=False, enforce_eager=True),
    Setting(tp=2, decode_engines=1, decode_tp=4, enable_chunked_prefill=False, max_num_batched_tokens=8192),
    Setting(speculative_tokens=3),
]


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
@pytest.mark.parametrize("draft", [None, "org/draft"])
def test_every_engine_s_list_of_flags_takes_the_command(setting: Setting, draft: str | None) -> None:
    for start in starts(setting, MODEL, MEMORY, draft=draft):
        assert not [note for note in start.notes if note.startswith("refused")], start
        assert (start.command is None) == (start.kind == "tgi" and bool(setting.decode_engines))
        if start.command is not None:
            assert MODEL in start.command.words


def test_the_same_kv_cache_is_another_share_of_memory_with_each_engine() -> None:
    said = {start.kind: start.text or "" for start in starts(SETTINGS[0], MODEL, MEMORY)}
    assert "--gpu-memory-utilization 0.9 " in said["vllm"]
    assert "--mem-fraction-static 0.88 " in said["sglang"]
    assert "--kv_cache_free_gpu_memory_fraction 0.789 " in said["trtllm"]
    assert "--cuda-memory-fraction 0.9 " in said["tgi"]


def test_prefill_and_decode_engines_have_their_own_flags_and_sizes() -> None:
    found = {(start.kind, start.role): start for start in starts(SETTINGS[2], MODEL, MEMORY)}
    prefill, decode = found["sglang", "prefill"].text, found["sglang", "decode"].text
    assert prefill is not None
    assert decode is not None
    assert "--disaggregation-mode prefill" in prefill
    assert "--tp-size 2" in prefill
    assert "--tp-size 4" in decode
    assert "NixlConnector" in (found["vllm", "decode"].text or "")
    assert found["tgi", "prefill"].notes == ("cannot split prefill and decode",)


def test_what_trtllm_has_no_flag_for_goes_into_its_file() -> None:
    (start,) = starts(SETTINGS[1], MODEL, MEMORY, kinds=["trtllm"])
    assert "--config trtllm.yaml" in (start.text or "")
    assert 'dtype: "fp8"' in start.files["trtllm.yaml"]
    assert "enable_block_reuse: false" in start.files["trtllm.yaml"]


@pytest.mark.parametrize("kind", flags.KINDS)
def test_the_launcher_s_table_writes_flags_that_the_list_knows(kind: str) -> None:
    known, program = flags.load(kind), PROGRAMS[kind]
    written = {s.name for s in program.settings.values() if isinstance(s, Flag)}
    written |= {w for s in program.settings.values() if isinstance(s, Choice) for words in s.by.values() for w in words}
    written -= {"--served_model_name"}  # newer than the list
    assert {flag for flag in written if flag.startswith("-") and known.takes(flag) is None} == set()
    assert all(isinstance(takes, list) or re.fullmatch("[a-z]+", takes) for takes in known.flags.values())
    assert set(known.same.values()) <= set(known.flags)


@pytest.mark.parametrize(
    ("kind", "line", "said"),
    [
        ("vllm", "--max-num-seqs 64 --max_model_len 8k -tp 4 --enable-prefix-caching", []),
        ("vllm", "--max-num-seq 64", ["vLLM 0.32.0 knows no flag --max-num-seq; did you mean --max-num-seqs?"]),
        ("vllm", "--max-num-seqs", ["--max-num-seqs: needs a value"]),
        ("vllm", "--max-num-seqs many", ["--max-num-seqs: must be a whole number, not 'many'"]),
        ("vllm", "--gpu-memory-utilization high", ["--gpu-memory-utilization: must be a number, not 'high'"]),
        ("vllm", "--enable-prefix-caching=1", ["--enable-prefix-caching: takes no value, not '1'"]),
        ("vllm", "-tp 2 --tensor-parallel-size 4", ["--tensor-parallel-size is given twice"]),
        ("vllm", "--speculative-config {x}", ["--speculative-config: must be JSON, not '{x}'"]),
        ("sglang", "--chunked-prefill-size -1 --tensor-parallel-size 4", []),
        ("tgi", "--dtype float8", ["--dtype: must be one of float16, bfloat16, not 'float8'"]),
        ("trtllm", "--tp-size 4", ["TensorRT-LLM 1.2 knows no flag --tp-size; did you mean --tp_size?"]),
    ],
)
def test_what_an_engine_would_refuse_is_said(kind: str, line: str, said: list[str]) -> None:
    found = flags.problems(shlex.split(line), flags.load(kind))
    assert [text.replace("--pp_size", "--tp_size") for text in found] == said


def test_a_command_is_read_as_vllm_reads_it() -> None:
    line = f"vllm serve {MODEL} -tp 4 --gpu-memory-utilization 0.90 --max_model_len=8K --no-enable-prefix-caching"
    assert read_vllm(line) == (
        MODEL,
        {"tp": 4, "gpu_memory_utilization": 0.9, "max_model_len": 8192, "enable_prefix_caching": False},
    )
    assert read_vllm("python -m vllm.entrypoints.openai.api_server --model m --max-num-seqs 7") == (
        "m",
        {"max_num_seqs": 7},
    )
    with pytest.raises(ValueError, match="write it as a number"):
        read_vllm("vllm serve m --max-model-len auto")

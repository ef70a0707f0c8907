"""What the last lines of an engine's log mean, where that is known, and what to change."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

_KNOWN: Final = (
    (
        # torch; vLLM 0.32 (v1/worker/gpu_worker.py, v1/core/kv_cache_utils.py); SGLang; llama.cpp (ggml-cuda)
        r"out of memory|OutOfMemoryError|No available memory for the cache blocks|larger than the available KV cache"
        r"|Free memory on device|Not enough memory|failed to allocate|unable to allocate|Cannot allocate memory",
        "it ran out of memory: lower launch.max_model_len, launch.max_num_seqs or launch.gpu_memory_utilization, raise "
        "launch.tensor_parallel_size, or look for what else uses the GPU",
    ),
    (r"No module named '?(?:vllm|sglang)", "the Python of launch.python does not have the engine: install it there"),
    (r"[Aa]ddress already in use", "its port is taken: choose another launch.port"),
    (r"[Gg]ated ?[Rr]epo|401 Client Error", "the model needs a token: put HF_TOKEN: ${HF_TOKEN} into launch.env"),
    (
        r"is not a valid model identifier|Repository Not Found|RepositoryNotFound|Repo id must",
        "there is no such model: look at launch.model",
    ),
    (r"unrecognized arguments|invalid argument|No such option", "it does not know a flag: look at launch.flags"),
    (
        r"No CUDA GPUs are available|Failed to infer device type|no NVIDIA driver",
        "it finds no GPU: look at nvidia-smi and at CUDA_VISIBLE_DEVICES",
    ),
)


def hint(lines: Iterable[str], killed: bool = False) -> str:
    """Empty where nothing is known. `killed`: it ended by SIGKILL, and nobody here sent it."""
    text = "\n".join(lines)
    for pattern, meaning in _KNOWN:
        if re.search(pattern, text):
            return meaning
    return "the kernel may have killed it for memory: dmesg says so" if killed else ""

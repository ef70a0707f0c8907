"""Ollama's server, which takes its settings from the environment: ollama/ollama fb307609, envconfig/config.go. It
serves every model that was pulled, by its own names.
"""

from __future__ import annotations

from typing import Final

from forebay.config.launch import Launch
from forebay.engines.launching.table import Choice, Program, Variable, called, missing


def _address(launch: Launch) -> str:
    return f"[{launch.host}]:{launch.port}" if ":" in launch.host else f"{launch.host}:{launch.port}"


_ADDRESS: Final = Variable("OLLAMA_HOST", of=_address)

PROGRAM: Final = Program(
    kind="ollama",
    title="Ollama",
    source="ollama/ollama fb307609, envconfig/config.go",
    here=False,
    install="see ollama.com/download",
    health="/",
    settings={
        "host": _ADDRESS,
        "port": _ADDRESS,
        "served_model_name": missing(
            "Ollama names models as they were pulled: leave it out, and give models.NAME.aliases"
        ),
        "tensor_parallel_size": Choice(
            {1: ()}, "Ollama has no such number: leave it out, and put OLLAMA_SCHED_SPREAD: '1' into launch.env"
        ),
        "gpu_memory_utilization": missing(
            "Ollama takes what is free: leave it out, or put OLLAMA_GPU_OVERHEAD (bytes a GPU) into launch.env"
        ),
        "max_model_len": Variable("OLLAMA_CONTEXT_LENGTH"),
        "dtype": missing("a pulled model has its own type: leave it out, and pull another tag"),
        "block_size": missing("Ollama's KV cache has no block size to set: leave it out"),
        "max_num_seqs": Variable("OLLAMA_NUM_PARALLEL"),
        "max_num_batched_tokens": missing("it is a parameter of the model (num_batch in its Modelfile): leave it out"),
        "enable_prefix_caching": Choice({True: ()}, "Ollama cannot switch it off: leave it out"),
        "scheduling_policy": Choice({"fcfs": ()}, "Ollama knows no priorities: leave it out"),
    },
    found=called("ollama", "serve"),
    model=lambda launch, head: (),
    key=missing("Ollama asks for no key: leave api_key out, and keep its port on a private network"),
)

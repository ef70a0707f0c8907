"""Hugging Face's text-generation-inference. Flags after huggingface/text-generation-inference 3.3.6-dev0 (db931fcf),
launcher/src/main.rs; each is also an environment variable. In maintenance mode, as README.md there says.
"""

from __future__ import annotations

from typing import Final

from forebay.engines.launching.table import Choice, Flag, Program, Variable, called, missing

PROGRAM: Final = Program(
    kind="tgi",
    title="TGI",
    source="huggingface/text-generation-inference db931fcf, launcher/src/main.rs",
    here=False,
    install="the container ghcr.io/huggingface/text-generation-inference",
    health="/health",
    settings={
        "host": Flag("--hostname"),
        "port": Flag("--port"),
        "served_model_name": missing("TGI names the model by its model id: leave it out, and give models.NAME.aliases"),
        "tensor_parallel_size": Flag("--num-shard"),
        "gpu_memory_utilization": Flag("--cuda-memory-fraction"),
        "max_model_len": Flag("--max-total-tokens"),
        "dtype": Flag("--dtype", ("float16", "bfloat16")),
        "block_size": missing("TGI chooses its block size itself: leave it out"),
        "max_num_seqs": Flag("--max-batch-size"),
        "max_num_batched_tokens": Flag("--max-batch-prefill-tokens"),
        "enable_prefix_caching": Variable("PREFIX_CACHING", {True: "1", False: "0"}),
        "scheduling_policy": Choice({"fcfs": ()}, "TGI knows no priorities: leave it out"),
    },
    found=called("text-generation-launcher"),
    model=lambda launch, head: ("--model-id", launch.model),
    key=Variable("API_KEY"),
    aliases={"-p": "--port"},
    model_names=("--model-id",),
)

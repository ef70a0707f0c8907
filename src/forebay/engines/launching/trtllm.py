"""TensorRT-LLM's server. Flags after NVIDIA/TensorRT-LLM 00209af1, tensorrt_llm/commands/serve.py (1.2), and
--served_model_name as the documentation of 1.3 has it. What has no flag stands in the YAML file that --config names
(--extra_llm_api_options until 1.1), whose keys are those of tensorrt_llm/llmapi/llm_args.py.
"""

from __future__ import annotations

from typing import Final

from forebay.engines.launching.table import Choice, Flag, Program, called, missing

_YAML: Final = "put {0} into a YAML file, and [--config, FILE] into launch.flags"

PROGRAM: Final = Program(
    kind="trtllm",
    title="TensorRT-LLM",
    source="NVIDIA/TensorRT-LLM 00209af1, tensorrt_llm/commands/serve.py",
    here=False,
    install="the container nvcr.io/nvidia/tensorrt-llm/release, or pip install tensorrt-llm",
    health="/health",
    settings={
        "host": Flag("--host"),
        "port": Flag("--port"),
        "served_model_name": Flag("--served_model_name"),  # since 1.3
        "tensor_parallel_size": Flag("--tp_size"),
        "gpu_memory_utilization": Flag("--kv_cache_free_gpu_memory_fraction"),
        "max_model_len": Flag("--max_seq_len"),
        "dtype": missing(f"trtllm-serve has no flag for it: leave it out, {_YAML.format('dtype')}"),
        "block_size": missing(
            f"trtllm-serve has no flag for it: leave it out, {_YAML.format('kv_cache_config.tokens_per_block')}"
        ),
        "max_num_seqs": Flag("--max_batch_size"),
        "max_num_batched_tokens": Flag("--max_num_tokens"),
        "enable_prefix_caching": Choice(
            {True: ()},
            "trtllm-serve has no flag that switches it off: leave it out, "
            + _YAML.format("kv_cache_config.enable_block_reuse: false"),
        ),
        "scheduling_policy": Choice({"fcfs": ()}, "trtllm-serve knows no priorities: leave it out"),
    },
    found=called("trtllm-serve"),
    model=lambda launch, head: (launch.model,),
    key=missing("trtllm-serve asks for no key: leave api_key out, and keep its port on a private network"),
    aliases={
        "--tensor_parallel_size": "--tp_size",
        "--free_gpu_memory_fraction": "--kv_cache_free_gpu_memory_fraction",
    },
)

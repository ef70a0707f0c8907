"""`forebay engine`: an emulated engine, for machines without a GPU."""

from __future__ import annotations

from typing import Annotated

import typer

from forebay.sim.main import run
from forebay.sim.options import Options

_DEFAULT = Options()
_SCHEDULER = "Scheduler"
_KV = "KV cache"
_TIME = "Step time: rates, or a GPU"
_FAULTS = "Faults"


def command(
    kind: Annotated[
        str,
        typer.Option(
            metavar="[vllm|sglang|tgi|trtllm|llamacpp|ollama]", help="Whose API, metrics and errors it shows."
        ),
    ] = _DEFAULT.kind,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = _DEFAULT.host,
    port: Annotated[int, typer.Option(help="Port to listen on; 0: any free one.")] = _DEFAULT.port,
    unix: Annotated[str | None, typer.Option(metavar="PATH", help="Listen on this Unix socket instead.")] = None,
    fd: Annotated[int | None, typer.Option(metavar="N", help="Serve this inherited listening socket instead.")] = None,
    parent_fd: Annotated[
        int | None, typer.Option(metavar="N", help="Leave when this descriptor reaches end of file.")
    ] = None,
    model: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Served model; repeatable. [default: forebay-sim]")
    ] = None,
    max_model_len: Annotated[
        int | None,
        typer.Option(help="Tokens of prompt and answer together. [default: 8192, or what the KV cache holds]"),
    ] = None,
    seed: Annotated[int, typer.Option(help="Other words for the same prompts.")] = _DEFAULT.seed,
    api_key: Annotated[str | None, typer.Option(help="Ask for this key on /v1.", envvar="VLLM_API_KEY")] = None,
    keep_alive: Annotated[float, typer.Option(help="Seconds an idle connection is kept.")] = _DEFAULT.keep_alive,
    speed: Annotated[float, typer.Option(help="So many times as fast as real time.")] = _DEFAULT.speed,
    enable_prompt_tokens_details: Annotated[
        bool,
        typer.Option(
            "--enable-prompt-tokens-details/--no-enable-prompt-tokens-details",
            help="cached_tokens in usage (SGLang: --enable-cache-report).",
        ),
    ] = _DEFAULT.enable_prompt_tokens_details,
    metrics: Annotated[
        bool,
        typer.Option(
            "--metrics/--no-metrics",
            help="The metrics pages that SGLang, TensorRT-LLM and llama.cpp have only when told to.",
        ),
    ] = _DEFAULT.metrics,
    max_num_seqs: Annotated[
        int | None,
        typer.Option(
            help="Sequences that run at once. [default: 256; llamacpp 4, ollama 1]", rich_help_panel=_SCHEDULER
        ),
    ] = None,
    max_num_batched_tokens: Annotated[
        int | None,
        typer.Option(
            help="Tokens of a step. [default: 2048, or --max-num-seqs where that is more]", rich_help_panel=_SCHEDULER
        ),
    ] = None,
    max_num_queued_reqs: Annotated[
        int | None,
        typer.Option(
            help="Requests running and waiting together (sglang, ollama: waiting); over it the engine refuses.",
            rich_help_panel=_SCHEDULER,
        ),
    ] = None,
    max_num_queued_tokens: Annotated[
        int | None,
        typer.Option(
            help="Prompt tokens that are not prefilled yet; over it the answer is 503.", rich_help_panel=_SCHEDULER
        ),
    ] = None,
    long_prefill_token_threshold: Annotated[
        int, typer.Option(help="The most tokens of one prompt in a step; 0: no limit.", rich_help_panel=_SCHEDULER)
    ] = _DEFAULT.long_prefill_token_threshold,
    scheduling_policy: Annotated[
        str,
        typer.Option(
            metavar="[fcfs|priority]",
            help="priority: the lowest number goes first. vLLM's default is fcfs.",
            rich_help_panel=_SCHEDULER,
        ),
    ] = _DEFAULT.scheduling_policy,
    enable_priority_scheduling: Annotated[
        bool,
        typer.Option(
            "--enable-priority-scheduling",
            help="sglang: obey priority, the highest number first.",
            rich_help_panel=_SCHEDULER,
        ),
    ] = False,
    schedule_low_priority_values_first: Annotated[
        bool,
        typer.Option(
            "--schedule-low-priority-values-first",
            help="sglang: the lowest number first.",
            rich_help_panel=_SCHEDULER,
        ),
    ] = False,
    async_scheduling: Annotated[
        bool,
        typer.Option(
            "--async-scheduling/--no-async-scheduling",
            help="A step is put together while the one before it runs.",
            rich_help_panel=_SCHEDULER,
        ),
    ] = _DEFAULT.async_scheduling,
    scheduler_reserve_full_isl: Annotated[
        bool,
        typer.Option(
            "--scheduler-reserve-full-isl/--no-scheduler-reserve-full-isl",
            help="Admit a prompt only where all of it fits.",
            rich_help_panel=_SCHEDULER,
        ),
    ] = _DEFAULT.scheduler_reserve_full_isl,
    watermark: Annotated[
        float, typer.Option(help="Share of the KV blocks kept free on admission.", rich_help_panel=_SCHEDULER)
    ] = _DEFAULT.watermark,
    spec_tokens: Annotated[
        int, typer.Option(help="Draft tokens a step (speculative decoding).", rich_help_panel=_SCHEDULER)
    ] = _DEFAULT.spec_tokens,
    spec_acceptance: Annotated[
        float, typer.Option(help="Chance that a draft token is accepted.", rich_help_panel=_SCHEDULER)
    ] = _DEFAULT.spec_acceptance,
    spec_draft_seconds: Annotated[
        float, typer.Option(help="Seconds of drafting for a step.", rich_help_panel=_SCHEDULER)
    ] = _DEFAULT.spec_draft_seconds,
    kv_tokens: Annotated[
        int | None,
        typer.Option(
            help="Capacity of the KV cache in tokens. [default: 262144, or what fits on the GPU]", rich_help_panel=_KV
        ),
    ] = None,
    block_size: Annotated[
        int | None, typer.Option(help="Tokens of a KV block. [default: 16; trtllm 32]", rich_help_panel=_KV)
    ] = None,
    num_gpu_blocks_override: Annotated[
        int | None, typer.Option(help="KV blocks, instead of --kv-tokens.", rich_help_panel=_KV)
    ] = None,
    enable_prefix_caching: Annotated[
        bool,
        typer.Option(
            "--enable-prefix-caching/--no-enable-prefix-caching",
            help="Find the blocks of equal prompts again.",
            rich_help_panel=_KV,
        ),
    ] = _DEFAULT.enable_prefix_caching,
    preemption_mode: Annotated[
        str,
        typer.Option(metavar="[recompute|swap]", help="swap: to CPU memory, as older engines do.", rich_help_panel=_KV),
    ] = _DEFAULT.preemption_mode,
    swap_blocks: Annotated[
        int, typer.Option(help="KV blocks of CPU memory.", rich_help_panel=_KV)
    ] = _DEFAULT.swap_blocks,
    swap_seconds_per_block: Annotated[
        float, typer.Option(help="Seconds of moving a block there or back.", rich_help_panel=_KV)
    ] = _DEFAULT.swap_seconds_per_block,
    kv_events: Annotated[
        str | None,
        typer.Option(
            metavar="ENDPOINT",
            help="vllm: publish KV cache events there over ZeroMQ, tcp://*:5557 say. Needs the extra kv-events.",
            rich_help_panel=_KV,
        ),
    ] = None,
    kv_events_shape: Annotated[
        str,
        typer.Option(metavar="[map|array]", help="array: as vLLM published events earlier.", rich_help_panel=_KV),
    ] = _DEFAULT.kv_events_shape,
    kv_transfer_config: Annotated[
        str | None,
        typer.Option(
            metavar="JSON", help="vLLM's, of the NixlConnector: kv_transfer_params are obeyed.", rich_help_panel=_KV
        ),
    ] = None,
    disaggregation_mode: Annotated[
        str,
        typer.Option(metavar="[null|prefill|decode]", help="sglang: one half of a pair.", rich_help_panel=_KV),
    ] = _DEFAULT.disaggregation_mode,
    disaggregation_bootstrap_port: Annotated[
        int | None,
        typer.Option(
            metavar="PORT",
            help="Where decode engines ask this prefill engine. [default: its own port]",
            rich_help_panel=_KV,
        ),
    ] = None,
    disaggregation_timeout: Annotated[
        float, typer.Option(help="Seconds that one half waits for the other.", rich_help_panel=_KV)
    ] = _DEFAULT.disaggregation_timeout,
    kv_transfer_rate: Annotated[
        float, typer.Option(help="KV that a decode engine fetches, in tokens a second.", rich_help_panel=_KV)
    ] = _DEFAULT.kv_transfer_rate,
    kv_transfer_latency: Annotated[
        float, typer.Option(help="Seconds of each transfer beside it.", rich_help_panel=_KV)
    ] = _DEFAULT.kv_transfer_latency,
    prefill_rate: Annotated[
        float | None, typer.Option(help="Prompt tokens a second. [default: 8000]", rich_help_panel=_TIME)
    ] = None,
    decode_rate: Annotated[
        float | None,
        typer.Option(help="Tokens a second of each sequence, alone. [default: 50]", rich_help_panel=_TIME),
    ] = None,
    batch_slowdown: Annotated[
        float | None,
        typer.Option(
            help="Fraction of a step's time that each other decoding sequence adds. [default: 0]",
            rich_help_panel=_TIME,
        ),
    ] = None,
    gpu: Annotated[
        str | None, typer.Option(metavar="NAME", help="A GPU of the catalogue, instead.", rich_help_panel=_TIME)
    ] = None,
    model_shape: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="The model on it: a name of the catalogue or a config.json.", rich_help_panel=_TIME
        ),
    ] = None,
    profile: Annotated[
        str | None,
        typer.Option(
            metavar="PATH",
            help="Step times from measured tables, a calibrated YAML or a compiled JSON.",
            rich_help_panel=_TIME,
        ),
    ] = None,
    tp: Annotated[int, typer.Option(help="GPUs, tensor parallel.", rich_help_panel=_TIME)] = _DEFAULT.tp,
    gpu_memory_utilization: Annotated[
        float, typer.Option(help="Share of the GPU's memory, for the KV cache's size.", rich_help_panel=_TIME)
    ] = _DEFAULT.gpu_memory_utilization,
    fault: Annotated[
        list[str] | None,
        typer.Option(metavar="KIND[=ARG][@SHARE]", help="A fault to have; repeatable.", rich_help_panel=_FAULTS),
    ] = None,
    allow_fault_header: Annotated[
        bool,
        typer.Option("--allow-fault-header", help="Obey x-forebay-fault in requests.", rich_help_panel=_FAULTS),
    ] = False,
) -> None:
    """Run an emulated engine, for machines without a GPU.

    Exits with 0 after SIGTERM, with 2 for an option that makes no sense and with 71 where the address is taken.
    """
    given = {name: value for name, value in locals().items() if name != "fault"}
    raise typer.Exit(run(Options(**given, fault=fault or [])))

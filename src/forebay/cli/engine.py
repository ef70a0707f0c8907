"""`forebay engine`: an emulated vLLM server, for machines without a GPU."""

from __future__ import annotations

from typing import Annotated

import typer

from forebay.sim.main import Options, run

_DEFAULT = Options()


def command(
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
    max_model_len: Annotated[int, typer.Option(help="Tokens of prompt and answer together.")] = _DEFAULT.max_model_len,
    max_num_seqs: Annotated[int, typer.Option(help="Sequences that run at once.")] = _DEFAULT.max_num_seqs,
    max_num_queued_reqs: Annotated[
        int | None, typer.Option(help="Requests running and waiting together; over it the answer is 503.")
    ] = None,
    prefill_rate: Annotated[float, typer.Option(help="Prompt tokens a second.")] = _DEFAULT.prefill_rate,
    decode_rate: Annotated[float, typer.Option(help="Tokens a second of each sequence.")] = _DEFAULT.decode_rate,
    batch_slowdown: Annotated[
        float, typer.Option(help="Fraction of a token's time that each other decoding sequence adds.")
    ] = _DEFAULT.batch_slowdown,
    kv_tokens: Annotated[int, typer.Option(help="KV cache capacity in tokens; reported only.")] = _DEFAULT.kv_tokens,
    block_size: Annotated[int, typer.Option(help="Tokens of a KV block.")] = _DEFAULT.block_size,
    seed: Annotated[int, typer.Option(help="Other words for the same prompts.")] = _DEFAULT.seed,
    api_key: Annotated[str | None, typer.Option(help="Ask for this key on /v1.", envvar="VLLM_API_KEY")] = None,
    keep_alive: Annotated[float, typer.Option(help="Seconds an idle connection is kept.")] = _DEFAULT.keep_alive,
    fault: Annotated[
        list[str] | None, typer.Option(metavar="KIND[=ARG][@SHARE]", help="A fault to have; repeatable.")
    ] = None,
    allow_fault_header: Annotated[
        bool, typer.Option("--allow-fault-header", help="Obey x-forebay-fault in requests.")
    ] = False,
) -> None:
    """Run an emulated vLLM server, for machines without a GPU.

    Exits with 0 after SIGTERM, with 2 for an option that makes no sense and with 71 where the address is taken.
    """
    options = Options(
        host=host,
        port=port,
        unix=unix,
        fd=fd,
        parent_fd=parent_fd,
        model=model,
        max_model_len=max_model_len,
        max_num_seqs=max_num_seqs,
        max_num_queued_reqs=max_num_queued_reqs,
        prefill_rate=prefill_rate,
        decode_rate=decode_rate,
        batch_slowdown=batch_slowdown,
        kv_tokens=kv_tokens,
        block_size=block_size,
        seed=seed,
        api_key=api_key,
        keep_alive=keep_alive,
        fault=fault or [],
        allow_fault_header=allow_fault_header,
    )
    raise typer.Exit(run(options))

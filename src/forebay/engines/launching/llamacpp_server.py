"""`python -m forebay.engines.launching.llamacpp_server`: llama.cpp's server out of the package xllamacpp, for machines
without the binary `llama-server`, with those of its flags that the package can obey. The key that it asks for is in
LLAMA_API_KEY.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import Final, NoReturn

from forebay.engines.local import LocalUnavailable, require_library
from forebay.engines.local_server import EX_UNAVAILABLE, wait_for_the_end


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        super().error(f"{message}; the server of xllamacpp takes these flags only, llama-server has more")


def _parser() -> argparse.ArgumentParser:
    parser: Final = _Parser(prog="llama.cpp (xllamacpp)", allow_abbrev=False)
    parser.add_argument("--model", "-m", required=True)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--alias", "-a")
    parser.add_argument("--ctx-size", "-c", type=int, default=0)
    parser.add_argument("--parallel", "-np", type=int, default=4)
    parser.add_argument("--batch-size", "-b", type=int)
    parser.add_argument("--ubatch-size", "-ub", type=int)
    parser.add_argument("--threads", "-t", type=int)
    parser.add_argument("--gpu-layers", "--n-gpu-layers", "-ngl", type=int)
    parser.add_argument("--chat-template")
    parser.add_argument("--cache-prompt", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--slots", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--metrics", action="store_true")
    return parser


def _start(options: argparse.Namespace) -> object:
    """The server, on threads of its own. Raises RuntimeError where the model cannot be loaded."""
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = options.model
    params.hostnames = [options.host]
    params.port = options.port
    params.n_ctx = options.ctx_size
    params.n_parallel = options.parallel
    params.cache_prompt = options.cache_prompt
    params.endpoint_slots = options.slots
    params.endpoint_metrics = options.metrics
    if options.alias is not None:
        params.model_alias = set(options.alias.split(","))
    if options.batch_size is not None:
        params.n_batch = options.batch_size
    if options.ubatch_size is not None:
        params.n_ubatch = options.ubatch_size
    if options.threads is not None:
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = options.threads
    if options.gpu_layers is not None:
        params.n_gpu_layers = options.gpu_layers
    if options.chat_template is not None:
        params.chat_template = options.chat_template
    if key := os.environ.get("LLAMA_API_KEY"):
        params.api_keys = key.split(",")
    return xllamacpp.Server(params)


def main(argv: Sequence[str]) -> int:
    """0 after SIGTERM or SIGINT; 2 for flags that it does not have; 69 without llama.cpp or the model."""
    options = _parser().parse_args(argv)
    try:
        require_library()
    except LocalUnavailable as e:
        print(e, file=sys.stderr)  # noqa: T201
        return EX_UNAVAILABLE
    try:
        server = _start(options)
    except (RuntimeError, OSError) as e:
        print(f"llama.cpp could not serve {options.model}: {e}", file=sys.stderr, flush=True)  # noqa: T201
        os._exit(EX_UNAVAILABLE)
    wait_for_the_end(None)
    del server
    os._exit(0)  # llama.cpp joins its threads only when each slot is idle


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

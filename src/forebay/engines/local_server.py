"""`python -m forebay.engines.local_server`: llama.cpp's server as a process of its own.

One thread: with two, llama.cpp's spin barrier falls to about 1 token/s as soon as anything else uses a core.
"""

from __future__ import annotations

import argparse
import json
import os
import selectors
import signal
import socket
import sys
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from forebay.engines.local import CONTEXT, NAME, SLOTS, LocalUnavailable, require_library

HOST: Final = "127.0.0.1"
EX_UNAVAILABLE: Final = 69
EX_OSERR: Final = 71
_READY_SECONDS: Final = 60.0


def _port_is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def _start(model: Path, port: int) -> object:
    """llama.cpp's server, on a thread of its own. Raises RuntimeError where the model cannot be loaded."""
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = str(model)
    params.model_alias = {NAME}
    params.n_ctx = CONTEXT * SLOTS
    params.n_parallel = SLOTS
    params.cpuparams.n_threads = 1
    params.cpuparams_batch.n_threads = 1
    params.hostnames = [HOST]
    params.port = port
    params.chat_template = "chatml"  # the model's own adds a system message that leads it astray
    params.sampling.temp = 0.2  # the model card's, where a request gives none
    params.sampling.top_p = 0.9
    params.verbosity = 1  # errors
    params.endpoint_metrics = True
    params.endpoint_slots = True
    return xllamacpp.Server(params)


def _call(port: int, path: str, body: object = None, timeout: float = 30.0) -> int:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(
        f"http://{HOST}:{port}{path}", data=data, headers={"content-type": "application/json"}
    )
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # loopback never goes through a proxy
    with opener.open(request, timeout=timeout) as answer:
        answer.read()
        return int(answer.status)


def _wait_ready(port: int) -> None:
    """Until /health says ok, then one token, so that the first request does not pay for the warm-up. Raises
    TimeoutError."""
    deadline = time.monotonic() + _READY_SECONDS
    while True:
        try:
            if _call(port, "/health", timeout=2.0) == 200:
                break
        except OSError as e:
            if time.monotonic() > deadline:
                raise TimeoutError(f"llama.cpp was not ready within {_READY_SECONDS:g} s: {e}") from e
        time.sleep(0.05)
    _call(port, "/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1})


def wait_for_the_end(parent_fd: int | None) -> None:
    """Until SIGTERM, SIGINT, or end of file on `parent_fd`. A child leaves SIGINT to its parent: a terminal's Ctrl-C
    goes to both, and the parent may still drain through this engine."""
    ours, theirs = socket.socketpair()
    for end in (ours, theirs):
        end.setblocking(False)
    signal.set_wakeup_fd(theirs.fileno())
    signal.signal(signal.SIGTERM, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN if parent_fd is not None else lambda *_: None)
    with selectors.DefaultSelector() as selector:
        selector.register(ours, selectors.EVENT_READ)
        if parent_fd is not None:
            selector.register(parent_fd, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is ours or not os.read(key.fd, 4096):
                    return


def main(argv: Sequence[str]) -> int:
    """0 after SIGTERM or the parent's end; 69 without llama.cpp or the model; 71 where the port is taken."""
    parser = argparse.ArgumentParser(prog="forebay local engine")
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--parent-fd", type=int)
    options = parser.parse_args(argv)
    try:
        require_library()
    except LocalUnavailable as e:
        print(e, file=sys.stderr)  # noqa: T201
        return EX_UNAVAILABLE
    if not options.model.is_file():
        print(f"there is no model at {options.model}", file=sys.stderr)  # noqa: T201
        return EX_UNAVAILABLE
    if not _port_is_free(options.port):
        print(f"cannot listen on {HOST}:{options.port}: it is taken", file=sys.stderr)  # noqa: T201
        return EX_OSERR
    try:
        server = _start(options.model, options.port)
        _wait_ready(options.port)
    except (RuntimeError, OSError) as e:  # TimeoutError is an OSError
        print(f"llama.cpp could not serve {options.model}: {e}", file=sys.stderr, flush=True)  # noqa: T201
        os._exit(EX_UNAVAILABLE)
    print(f"forebay local engine: {NAME} on http://{HOST}:{options.port}", flush=True)  # noqa: T201
    wait_for_the_end(options.parent_fd)
    del server
    # llama.cpp joins its threads only when each slot is idle: a process that is told to leave leaves.
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

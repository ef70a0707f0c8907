"""Servers that the same tests run against: real vLLM, real llama.cpp, and the emulated engines."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from engine_process import Answer, EngineProcess
from engines import install
from forebay.config.engine import EngineKind
from forebay.engines import local
from forebay.engines.base import EngineReport
from forebay.engines.registry import adapter
from forebay.sim.options import parser
from ports import free_port
from waiting import eventually

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
CONTEXT = 2048
SLOTS = 4
QUEUE = 12
"""Requests that a server with a limit takes, running and waiting."""
BLOCK = 128
BLOCKS = 64


@dataclass(frozen=True)
class Traits:
    """What differs between kinds of engine, as they document it."""

    names_checked: bool = True
    """An unknown model is 404; else the name is ignored."""
    cached_told: bool = True
    """usage says how much of the prompt was cached."""
    limited: bool = True
    """Over `QUEUE` requests it answers that it is full."""
    measures: frozenset[str] = frozenset({"running", "waiting", "kv_usage", "kv_capacity_tokens", "block_size"})
    """What its adapter's report holds."""
    prioritised: bool = True
    """`priority` orders the queue."""
    streams_at_once: bool = True
    """A stream's head comes while it is queued."""
    completion_usage_apart: bool = True
    """In a stream of /v1/completions usage is a chunk of its own, where asked for; else always in the last one."""
    queue_watched: bool = True
    """A client that leaves while its request waits is noticed before its turn comes."""
    look_every: float = 0.01
    """Seconds between two looks at its metrics while it is to notice that a client left: llama.cpp looks for that only
    when nothing has come for a second."""


TRAITS = {
    "vllm": Traits(),
    "llamacpp": Traits(
        names_checked=False,
        limited=False,
        measures=frozenset({"running", "waiting"}),
        prioritised=False,
        streams_at_once=False,
        completion_usage_apart=False,
        queue_watched=False,
        look_every=1.5,
    ),
}
REAL = ("vllm", "llamacpp")
DIFFERS = {
    "llamacpp": "unlike the real one it answers 500 to a body that is no object, and does not notice that a client "
    "left a stream while it is asked for its metrics"
}
"""Kinds whose emulation fails the contract that the real server passes, and in what."""


def emulated_kinds() -> tuple[str, ...]:
    """What `forebay engine --kind` offers."""
    found = [a.choices for a in parser()._actions if "--kind" in a.option_strings]
    return tuple(found[0] or ()) if found else ("vllm",)


@dataclass
class Server(EngineProcess):
    """A server on a port: `kind` as in `TRAITS`, `model` as it is called there."""

    kind: str = "vllm"
    model: str = "tiny"

    @property
    def traits(self) -> Traits:
        return TRAITS[self.kind]

    @property
    def engine_kind(self) -> EngineKind:
        """The adapter that reads it."""
        known = [k for k in EngineKind if k.value == self.kind]
        return known[0] if known else EngineKind.OPENAI

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def report(self) -> EngineReport:
        one = adapter(self.engine_kind)
        assert one.metrics_path is not None
        answer = self.ask("GET", one.metrics_path.decode())
        assert answer.status == 200, answer
        return one.report(answer.body.decode())

    def busy(self) -> tuple[int, int]:
        """Requests running and waiting, by its own word."""
        report = self.report()
        assert report.running is not None and report.waiting is not None
        return report.running, report.waiting

    def body(self, path: str = CHAT, *, text: str = "Once upon a time", **more: Any) -> dict[str, Any]:
        prompt = {"messages": [{"role": "user", "content": text}]} if path == CHAT else {"prompt": text}
        return {"model": self.model, **prompt, "temperature": 0, "ignore_eos": True, **more}

    def post(self, path: str = CHAT, **more: Any) -> Answer:
        return self.ask("POST", path, self.body(path, **more), timeout=60)

    def open(self, path: str = CHAT, **more: Any) -> socket.socket:
        return opened(self.port, path, self.body(path, **more))


def opened(port: int, path: str, body: dict[str, Any], **headers: str) -> socket.socket:
    """A request sent on a connection of its own, nothing read."""
    data = json.dumps(body).encode()
    lines = {"Host": "x", "Content-Type": "application/json", "Content-Length": str(len(data)), **headers}
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    sock = socket.create_connection(("127.0.0.1", port), timeout=60)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.sendall(f"POST {path} HTTP/1.1\r\n{head}\r\n".encode() + data)
    return sock


# --- emulated --------------------------------------------------------------------------------------------------------


@dataclass
class Emulated(Server):
    def start(self) -> None:
        kind = [] if self.kind == "vllm" else ["--kind", self.kind]
        self.options = [
            *kind, "--model", self.model, "--max-model-len", str(CONTEXT), "--max-num-seqs", str(SLOTS),
            "--block-size", str(BLOCK), "--num-gpu-blocks-override", str(BLOCKS), "--enable-prompt-tokens-details",
            *(["--max-num-queued-reqs", str(QUEUE)] if self.traits.limited else []),
        ]  # fmt: skip
        super().start()


# --- real ------------------------------------------------------------------------------------------------------------


@dataclass
class RealVLLM(Server):
    """One thread, a random model of 8 million weights, 64 blocks of 128 tokens. Starts in about 35 s."""

    log: Path | None = None
    events_port: int = 0
    replay_port: int = 0

    def start(self) -> None:
        assert install.ready(), "vLLM is not installed: `make test-engines` does it"
        self.port = self.port or free_port()
        self.events_port = self.events_port or free_port()
        self.replay_port = self.replay_port or free_port()
        events = {
            "enable_kv_cache_events": True,
            "publisher": "zmq",
            "endpoint": f"tcp://*:{self.events_port}",
            "replay_endpoint": f"tcp://*:{self.replay_port}",
            "topic": "kv",
        }
        command = [
            str(install.python()), "-m", "vllm.entrypoints.openai.api_server",
            "--model", str(install.model()), "--served-model-name", self.model,
            "--host", "127.0.0.1", "--port", str(self.port), "--dtype", "float32", "--enforce-eager",
            "--max-model-len", str(CONTEXT), "--max-num-seqs", str(SLOTS), "--num-gpu-blocks-override", str(BLOCKS),
            "--enable-prefix-caching", "--scheduling-policy", "priority", "--max-num-queued-reqs", str(QUEUE),
            "--enable-request-id-headers", "--enable-prompt-tokens-details", "--kv-events-config", json.dumps(events),
            *self.options,
        ]  # fmt: skip
        self.log = self.log or Path(tempfile.mkdtemp(prefix="fb-vllm-")) / "log"
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **install.QUIET, "OMP_NUM_THREADS": "1", "VLLM_CPU_KVCACHE_SPACE": "1"},
                start_new_session=True,
            )
        try:
            eventually(self._healthy, 300, every=0.2)
        except BaseException:
            self.stop()
            raise

    def _healthy(self) -> bool:
        assert self.log is not None
        assert self.process.poll() is None, self.log.read_text(errors="replace")[-4000:]
        try:
            return self.ask("GET", "/health").status == 200
        except OSError:
            return False

    @property
    def core(self) -> psutil.Process:
        """The process that computes."""
        for child in psutil.Process(self.process.pid).children(recursive=True):
            if "EngineCore" in " ".join(child.cmdline()) or "EngineCore" in child.name():
                return child
        raise AssertionError("there is no engine core")

    def stop(self) -> int:
        family = []
        with contextlib.suppress(psutil.NoSuchProcess):
            family = psutil.Process(self.process.pid).children(recursive=True)
        self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = self.process.wait()
        for child in psutil.wait_procs(family, timeout=5)[1]:
            child.kill()
        return code


@dataclass
class RealLlama(Server):
    """The engine of `forebay serve --engine local`: SmolLM2-135M, one thread."""

    kind: str = "llamacpp"
    model: str = local.NAME

    def start(self) -> None:
        self.port = free_port()
        command = local.server_command(local.model_path(), self.port)
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert self.process.stdout is not None
        said = self.process.stdout.readline()
        assert said.endswith(f":{self.port}\n"), said


def start(which: str) -> Server:
    """`real-vllm`, `real-llamacpp`, or a kind that is emulated."""
    server: Server
    if which == "real-vllm":
        server = RealVLLM()
    elif which == "real-llamacpp":
        server = RealLlama()
    else:
        server = Emulated(kind=which)
    server.start()
    return server


@contextlib.contextmanager
def running(which: str) -> Iterator[Server]:
    server = start(which)
    try:
        yield server
    finally:
        server.stop()

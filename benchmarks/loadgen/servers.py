"""The servers that are loaded, each on one core: `forebay engine`, `forebay serve` in front of one, and real vLLM."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.common import BENCH_KEY, answers_ok, free_port, gateway, running, wait_until
from benchmarks.loadgen.tools import install, need_vllm


@dataclass(frozen=True)
class Server:
    url: str
    model: str
    words: int
    """Of a prompt."""
    output_tokens: int
    rate: float
    """Requests a second: about half of what it can do."""
    key: str = ""


@contextlib.contextmanager
def engine(work: Path, core: int) -> Iterator[Server]:
    port = free_port()
    command = [str(Path(sys.executable).with_name("forebay")), "engine", "--port", str(port)]
    command += ["--no-enable-prefix-caching", "--model", "forebay-sim"]
    log = work / "engine.log"
    with running(command, core=core, log=log) as process:
        url = f"http://127.0.0.1:{port}"
        wait_until(answers_ok(f"{url}/health"), process, log, "forebay engine")
        yield Server(url, "forebay-sim", 1_000, 60, 3.0)


@contextlib.contextmanager
def serve(work: Path, core: int) -> Iterator[Server]:
    with engine(work, core) as behind:
        engines = [{"name": "sim", "url": behind.url, "kind": "vllm"}]
        with gateway(work, behind.url, core=core, extra={"engines": engines}) as up:
            yield Server(up.url, behind.model, behind.words, behind.output_tokens, behind.rate, BENCH_KEY)


@contextlib.contextmanager
def vllm(work: Path, core: int) -> Iterator[Server]:
    """One thread; no prefix cache. Prompts so long that what a client adds to a first token is little beside it."""
    need_vllm()
    port, log = free_port(), work / "vllm.log"
    command = [str(install.python()), "-m", "vllm.entrypoints.openai.api_server", "--model", str(install.model())]
    command += ["--served-model-name", "tiny", "--host", "127.0.0.1", "--port", str(port), "--enforce-eager"]
    command += ["--max-model-len", "2048", "--max-num-seqs", "8", "--max-num-batched-tokens", "1024"]
    command += ["--dtype", "float32", "--no-enable-prefix-caching", "--disable-uvicorn-access-log"]
    env = {**install.QUIET, "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": str(core)}
    with running(command, core=core, log=log, env=env, cwd=work) as process:
        url = f"http://127.0.0.1:{port}"
        wait_until(answers_ok(f"{url}/health"), process, log, "vLLM", timeout=240)
        yield Server(url, "tiny", 900, 40, 0.5)


SERVERS: dict[str, Callable[[Path, int], contextlib.AbstractContextManager[Server]]] = {
    "engine": engine,
    "gateway": serve,
    "vllm": vllm,
}

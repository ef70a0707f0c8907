"""Lists of engines outside forebay.yaml: YAML and JSON alike, every problem with its line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from forebay.config.enginelist import MAX_BYTES, load_list, read_list
from forebay.config.problems import ConfigError

ONE = {"name": "a", "url": "http://h:1", "api_key": "${KEY}", "tls": {"ca": "ca.pem"}}


@pytest.mark.parametrize(
    "text",
    [
        json.dumps([{"name": "a", "url": "http://h:1", "api_key": "${KEY}"}]),
        json.dumps({"engines": [{"name": "a", "url": "http://h:1", "api_key": "${KEY}"}]}),
        "- name: a\n  url: http://h:1\n  api_key: ${KEY}\n",
        "engines:\n- name: a\n  url: http://h:1\n  api_key: ${KEY}\n",
    ],
)
def test_the_shapes_it_may_have(text: str) -> None:
    [engine] = read_list(text, "list", {"KEY": "k-123"})
    assert (engine.name, engine.url, engine.api_key) == ("a", "http://h:1", "k-123")


@pytest.mark.parametrize("text", ["", "[]", "engines: []", "# nothing yet\n"])
def test_an_empty_one_has_no_engines(text: str) -> None:
    assert read_list(text, "list", {}) == ()


@pytest.mark.parametrize(
    ("text", "problems"),
    [
        ("- name: a\n  url: h\n", ["list:2: engines[0].url: an engine's url starts with http:// or https://"]),
        ("- {name: a, url: 'http://h'}\n- {name: a, url: 'http://i'}", ["list:2: engines[1].name: another engine has"]),
        (
            '[{"name": "a",\n "url": "http://h",\n "uri": 1}]',
            ["list:3: engines[0].uri: unknown key; did you mean url?"],
        ),
        ("- name: a\n  url: http://h\n  api_key: ${NOT_SET}", ["list:3: engines[0].api_key: the environment variable"]),
        ("name: a", ["list:1: the file must be a list of engines"]),
        ("engines:\n- name: [", ["list:2: not YAML"]),
        ("just words", ["list:1: the file must be a list of engines"]),
        ("- 1\n- x", ["list:1: engines[0]: not a mapping", "list:2: engines[1]: not a mapping"]),
    ],
)
def test_every_problem_is_named(text: str, problems: list[str]) -> None:
    with pytest.raises(ConfigError) as found:
        read_list(text, "list", {})
    said = [str(p) for p in found.value.problems]
    assert len(said) == len(problems), said
    assert all(s.startswith(p) for s, p in zip(said, problems, strict=True)), said


def test_files_beside_it_and_files_too_large(tmp_path: Path) -> None:
    file = tmp_path / "engines.json"
    file.write_text(json.dumps([{**ONE, "api_key": "k"}]))
    with pytest.raises(ConfigError, match=f"cannot read {tmp_path}/ca.pem"):
        load_list(file, {})
    file.write_bytes(b" " * (MAX_BYTES + 1))
    with pytest.raises(ConfigError, match="the file is too large"):
        load_list(file, {})
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="not UTF-8"):
        load_list(file, {})
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        load_list(tmp_path, {})

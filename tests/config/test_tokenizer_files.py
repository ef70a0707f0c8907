from __future__ import annotations

import sys
from pathlib import Path

import pytest
import tokenizers

from forebay.config.load import loads
from forebay.config.problems import ConfigError


def problems(folder: Path) -> list[str]:
    try:
        config = loads("models:\n  m:\n    tokenizer: t.json\n", "f", {}, base=folder)
    except ConfigError as e:
        return [str(p) for p in e.problems]
    assert config.models["m"].tokenizer == folder / "t.json"
    return []


def test_a_tokenizer_beside_the_configuration(tmp_path: Path) -> None:
    tokenizers.Tokenizer(tokenizers.models.BPE()).save(str(tmp_path / "t.json"))
    assert problems(tmp_path) == []


@pytest.mark.parametrize("data", [b"", b"{}", b"\xff\xfe", b'{"model": {"type": "What"}}'])
def test_a_file_that_is_none(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "t.json").write_bytes(data)
    [found] = problems(tmp_path)
    assert found.startswith(f"f:3: models.m.tokenizer: {tmp_path}/t.json is no tokenizer.json: ")


def test_no_file(tmp_path: Path) -> None:
    where = f"f:3: models.m.tokenizer: cannot read {tmp_path}/t.json: No such file or directory"
    assert problems(tmp_path) == [where]


def test_no_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "t.json").write_text("{}")
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    assert problems(tmp_path) == [
        "f:3: models.m.tokenizer: the package tokenizers is not installed: pip install 'forebay[tokenizers]'"
    ]

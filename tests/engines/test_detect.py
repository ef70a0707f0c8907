"""What a URL is taken for, by its name and by pages."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from forebay.config.engine import EngineKind
from forebay.engines.detect import PROBES, askable, by_metrics, by_models, by_url

DATA = Path(__file__).parents[1] / "data" / "engines"
TELLS = {probe.path: probe.tells for probe in PROBES}


@pytest.mark.parametrize(
    ("url", "kind"),
    [
        ("https://api.anthropic.com", EngineKind.ANTHROPIC),
        ("https://api.openai.com", EngineKind.OPENAI),
        ("https://my-models.openai.azure.com/openai", EngineKind.OPENAI),
        ("https://api.openai.com.evil.example", None),
        ("https://notopenai.com", None),
        ("http://api.openai.com", None),
        ("https://10.0.0.1:8000", None),
    ],
)
def test_known_hosts(url: str, kind: EngineKind | None) -> None:
    assert by_url(url) is kind


def test_only_what_may_be_a_vendor_s_is_spared() -> None:
    assert askable("http://engine", True)
    assert askable("https://engine", False)
    assert not askable("https://engine", True)


@pytest.mark.parametrize(
    ("page", "kind"),
    [
        ((DATA / "vllm-0.32.0-models.json").read_bytes(), EngineKind.VLLM),
        ((DATA / "llamacpp-models.json").read_bytes(), EngineKind.LLAMACPP),
        ((DATA / "ollama-models.json").read_bytes(), EngineKind.OLLAMA),
        (
            b'{"data":[{"id":"m","owned_by":"sglang"},{"id":"lora","parent":"m","owned_by":"sglang"}]}',
            EngineKind.SGLANG,
        ),
        (b'{"data":[{"id":"m","owned_by":"tensorrt_llm"}]}', EngineKind.TRTLLM),
        (b'{"data":[{"id":"bloom","owned_by":"bloom"}]}', None),
        (b'{"data":[{"id":"a","owned_by":"vllm"},{"id":"b","owned_by":"sglang"}]}', None),
        (b'{"data":[{"id":"gpt","owned_by":"openai"}]}', None),
        (b'{"data":[{"type":"model","id":"claude","display_name":"Claude"}],"has_more":false}', EngineKind.ANTHROPIC),
        (b'{"data":[]}', None),
        (b'{"data":null}', None),
        (b'{"data":[7,null]}', None),
        (b"<html>", None),
    ],
)
def test_model_lists(page: bytes, kind: EngineKind | None) -> None:
    assert by_models(page) is kind


@pytest.mark.parametrize(
    ("file", "kind"),
    [
        ("vllm-0.32.0-metrics.txt", EngineKind.VLLM),
        ("sglang-metrics.txt", EngineKind.SGLANG),
        ("tgi-metrics.txt", EngineKind.TGI),
        ("llamacpp-metrics.txt", EngineKind.LLAMACPP),
        ("trtllm-metrics.txt", EngineKind.TRTLLM),
        ("trtllm-metrics.json", EngineKind.TRTLLM),
        ("ollama-ps.json", None),
        ("README.md", None),
    ],
)
def test_metrics_pages(file: str, kind: EngineKind | None) -> None:
    assert by_metrics((DATA / file).read_bytes()) is kind


def test_pages_that_one_engine_alone_has() -> None:
    assert TELLS[b"/props"]((DATA / "llamacpp-props.json").read_bytes()) is EngineKind.LLAMACPP
    assert TELLS[b"/server_info"]((DATA / "sglang-server_info.json").read_bytes()) is EngineKind.SGLANG
    assert TELLS[b"/info"]((DATA / "tgi-info.json").read_bytes()) is EngineKind.TGI
    assert TELLS[b"/api/version"](b'{"version":"0.33.0"}') is EngineKind.OLLAMA


@pytest.mark.parametrize("path", TELLS)
@pytest.mark.parametrize(
    "body", [b"", b"<html>", b"{}", b"[]", b'{"version":"1","and":"more"}', json.dumps("x").encode()]
)
def test_other_pages_tell_nothing(path: bytes, body: bytes) -> None:
    assert TELLS[path](body) is None

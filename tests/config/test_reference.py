"""The committed page, schema and example say what the models say."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tokenizers

from forebay.config.load import advise, read
from forebay.config.models import Config
from forebay.config.reference import page
from forebay.config.schema import editor_schema, model_schema

ROOT = Path(__file__).parents[2]
ENV = {
    "OPENAI_API_KEY": "sk-x",
    "ANTHROPIC_API_KEY": "sk-y",
    "BATCH_KEY": "0123456789abcdefghij",
    "DATABASE_URL": "sqlite:///x",
    "TLS_KEY_PASSWORD": "sesame",
    "OPS_HOOK": "https://hooks.example/forebay",
    "OPS_SECRET": "0123456789abcdefghij",
    "FEISHU_HOOK": "https://robots.example/hook/1",
    "FEISHU_SECRET": "sesame",
    "REDIS_URL": "redis://127.0.0.1/0",
    "EMBEDDINGS_KEY": "sk-z",
    "JUDGE_KEY": "sk-w",
}


def test_the_page_is_current() -> None:
    again = "python -m forebay.config.reference > docs/configuration.md"
    assert (ROOT / "docs/configuration.md").read_text() == page(), again


def test_the_committed_schema_is_current() -> None:
    again = "forebay schema > examples/forebay.schema.json"
    assert json.loads((ROOT / "examples/forebay.schema.json").read_text()) == editor_schema(), again


def test_every_key_is_described() -> None:
    schema = model_schema()
    for name, section in {"Config": schema, **schema["$defs"]}.items():
        for key, field in section.get("properties", {}).items():
            assert field.get("description"), f"{name}.{key}"


def example(folder: Path, certificates: Path) -> str:
    """The example with its disabled settings switched on."""
    (folder / "tls").mkdir()
    for source, copy in (
        ("cert.pem", "cert.pem"),
        ("locked.pem", "key.pem"),
        ("cert.pem", "clients.pem"),
        ("cert.pem", "authorities.pem"),
    ):
        shutil.copy(certificates / source, folder / "tls" / copy)
    (folder / "qwen3").mkdir()
    tokenizers.Tokenizer(tokenizers.models.BPE()).save(str(folder / "qwen3/tokenizer.json"))
    (folder / "engines.json").write_text("[]")
    text = (
        (ROOT / "examples/forebay.yaml")
        .read_text()
        .replace("\nadmission:\n  enabled: false", "\nadmission:\n  enabled: true")
    )
    return re.sub(r"(?m)^( *)#(?=[a-z-])", r"\1", text)


def test_the_example_can_be_used_as_it_is() -> None:
    source = read(ROOT / "examples/forebay.yaml", ENV)
    assert advise(source.config, source) == []
    lines = (ROOT / "examples/forebay.yaml").read_text().splitlines()
    assert lines[0] == "# yaml-language-server: $schema=forebay.schema.json"
    tried = next(line for line in lines if line.startswith("# Try it: "))
    needed = {name for line in lines if not line.lstrip().startswith("#") for name in re.findall(r"\$\{(\w+)\}", line)}
    assert needed == set(re.findall(r"([A-Z_]+)=", tried))


def test_the_example_shows_every_key(tmp_path: Path, certificates: Path) -> None:
    file = tmp_path / "forebay.yaml"
    file.write_text(example(tmp_path, certificates))
    source = read(file, ENV)
    written = set(used(source.config))
    assert written == set(known(model_schema(), model_schema()))
    assert advise(source.config, source) == []


def used(value: Any, path: str = "") -> Iterator[str]:
    """Keys that the text sets."""
    if isinstance(value, tuple):
        for item in value:
            yield from used(item, path)
    elif isinstance(value, dict) and path in ("models", "cache.models"):
        for item in value.values():
            yield from used(item, path)
    elif hasattr(value, "model_fields_set") and type(value).__name__ != "Address":
        for name in value.model_fields_set:
            key = f"{path}.{name.rstrip('_')}".lstrip(".")
            yield key
            yield from used(getattr(value, name), key)


def known(schema: dict[str, Any], root: dict[str, Any], path: str = "") -> Iterator[str]:
    if "$ref" in schema:
        schema = root["$defs"][schema["$ref"].rpartition("/")[2]]
    for key, field in schema.get("properties", {}).items():
        yield f"{path}.{key}".lstrip(".")
        yield from known(field, root, f"{path}.{key}".lstrip("."))
    for option in [*schema.get("anyOf", ()), schema.get("items", {}), *schema.get("patternProperties", {}).values()]:
        if option:
            yield from known(option, root, path)


def complaints(value: Any, schema: dict[str, Any], root: dict[str, Any], path: str = "") -> Iterator[str]:
    """A JSON Schema validator of the words that the editor's schema uses; an unknown word is a failure."""
    known_words = {
        "$schema", "$defs", "$ref", "title", "description", "default", "type", "properties", "required", "items",
        "enum", "additionalProperties", "patternProperties", "propertyNames", "anyOf", "pattern", "format", "minimum",
        "maximum", "exclusiveMinimum", "minLength", "maxLength",
    }  # fmt: skip
    assert schema.keys() <= known_words, schema.keys() - known_words
    if "$ref" in schema:
        yield from complaints(value, root["$defs"][schema["$ref"].rpartition("/")[2]], root, path)
    if "anyOf" in schema and all(any(complaints(value, option, root)) for option in schema["anyOf"]):
        yield f"{path}: no alternative"
    if "enum" in schema and value not in schema["enum"]:
        yield f"{path}: enum"
    types = {"object": dict, "array": list, "string": str, "integer": int, "number": int | float, "boolean": bool}
    kind = schema.get("type")
    if kind == "null":
        if value is not None:
            yield f"{path}: not null"
    elif kind and (not isinstance(value, types[kind]) or (isinstance(value, bool) and kind != "boolean")):
        yield f"{path}: not {kind}"
        return
    if isinstance(value, str) and not re.search(schema.get("pattern", ""), value):
        yield f"{path}: pattern"
    if isinstance(value, int | float) and not (
        schema.get("minimum", value) <= value <= schema.get("maximum", value)
        and schema.get("exclusiveMinimum", value - 1) < value
    ):
        yield f"{path}: range"
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from complaints(item, schema.get("items", {}), root, f"{path}[{index}]")
    if isinstance(value, dict):
        yield from (f"{path}: needs {key}" for key in schema.get("required", ()) if key not in value)
        for key, item in value.items():
            fitting = [s for p, s in schema.get("patternProperties", {}).items() if re.search(p, key)]
            if key in schema.get("properties", {}):
                fitting.append(schema["properties"][key])
            if not fitting and schema.get("additionalProperties") is False:
                yield f"{path}.{key}: unknown"
            for inner in fitting:
                yield from complaints(item, inner, root, f"{path}.{key}")


def test_the_editor_s_schema_accepts_the_example(tmp_path: Path, certificates: Path) -> None:
    from ruamel.yaml import YAML

    schema = editor_schema()
    for text in ((ROOT / "examples/forebay.yaml").read_text(), example(tmp_path, certificates)):
        assert list(complaints(YAML(typ="safe", pure=True).load(text), schema, schema)) == []


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"admin": "${ADMIN}", "limits": {"body_bytes": "${SIZE:-5000}"}}, []),
        ({"engines": [{"name": "${N}", "url": "${U}", "kind": "${K}"}]}, []),
        ({"admin": "8081"}, [".admin: no alternative"]),
        ({"listeners": [{"address": "unix:/a", "tls": {"cert": "a", "key": "b", "min_version": 1.3}}]}, []),
        ({"engines": [{"url": "a"}], "engine": []}, [".engines[0]: needs name", ".engine: unknown"]),
        ({"limits": {"pipelined": "8"}, "retries": {"budget": 2}}, [".limits.pipelined: no alternative",
                                                                   ".retries.budget: no alternative"]),
        ({"callers": {"keys": [{"name": "a", "key": "b", "class": "best"}]}},
         [".callers.keys[0].class: no alternative"]),
    ],
)  # fmt: skip
def test_the_editor_s_schema(value: object, expected: list[str]) -> None:
    assert list(complaints(value, editor_schema(), editor_schema())) == expected


def test_the_schema_s_defaults_are_the_models() -> None:
    assert (
        Config.model_validate({key: f["default"] for key, f in model_schema()["properties"].items() if "default" in f})
        == Config()
    )

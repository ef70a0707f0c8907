"""The JSON Schema of `forebay.yaml`.

`model_schema` is the schema of the values; `editor_schema` is what an editor checks the text with, where any scalar may
also be written as `${VAR}`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from forebay.config.amounts import WRITTEN
from forebay.config.document import Path
from forebay.config.models import Config
from forebay.config.quotas import MEASURES

Schema = dict[str, Any]

NAME = "a name"
_ADDRESS = r"^(unix:/.+|\[[0-9A-Fa-f:.]+\]:[0-9]{1,5}|[A-Za-z0-9._-]+:[0-9]{1,5})$"


@cache
def model_schema() -> Schema:
    schema = Config.model_json_schema(by_alias=True, mode="validation")
    address = schema["$defs"]["Address"]
    schema["$defs"]["Address"] = {
        "title": "Address",
        "description": address["description"],
        "type": "string",
        "pattern": _ADDRESS,
    }
    for section in _objects(schema):
        for field in section.get("properties", {}).values():
            if field.get("$ref") == "#/$defs/Address" and isinstance(field.get("default"), dict):
                field["default"] = _spelt(field["default"])
    version = schema["$defs"]["ServerTLS"]["properties"]["min_version"]
    version["enum"] += [float(value) for value in version["enum"]]  # as YAML reads them without quotes
    del version["type"]
    for listener in schema["properties"]["listeners"]["default"]:
        listener["address"] = _spelt(listener["address"])
    return schema


def editor_schema() -> Schema:
    schema: Schema = _with_variables(model_schema())
    amounts = schema["$defs"]["Quota"]["properties"]
    for measure in MEASURES:
        amounts[measure]["anyOf"].append({"type": "string", "pattern": f"^{WRITTEN}$", "description": "500k, 1.5M, 2G"})
    schema["$defs"]["FromEnvironment"] = {
        "type": "string",
        "pattern": r"\$\{",
        "description": "${VAR} or ${VAR:-default}: taken from the environment of the supervisor.",
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **schema,
        "title": "forebay.yaml",
        "description": "The configuration of Forebay, an LLM gateway.",
    }


def at(path: Path) -> Schema:
    """The schema of the value at `path`, references followed; empty where there is none."""
    schema = resolve(model_schema())
    for step in path:
        if isinstance(step, int):
            schema = resolve(schema.get("items", {}))
        else:
            others = [*schema.get("patternProperties", {}).values(), schema.get("additionalProperties", {})]
            inner = schema.get("properties", {}).get(step, others[0])
            schema = resolve(inner if isinstance(inner, dict) else {})
    return schema


def allowed(schema: Mapping[str, Any]) -> str:
    """What a value may be, in words: `a whole number from 1 to 100`. Empty where anything may be."""
    if "enum" in schema:
        return ", ".join(dict.fromkeys(map(str, schema["enum"])))
    if "const" in schema:
        return str(schema["const"])
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(filter(None, (allowed(resolve(option)) for option in schema["anyOf"]))))
    match schema.get("type"):
        case "integer":
            return "a whole number" + _range(schema)
        case "number":
            return "a number" + _range(schema)
        case "boolean":
            return "true or false"
        case "null":
            return "nothing"
        case "array":
            items = resolve(schema.get("items", {}))
            return f"a list, each {allowed(items)}"
        case "object":
            if "properties" in schema:
                return "a mapping with the keys " + ", ".join(schema["properties"])
            return "a mapping" + (" by name" if "patternProperties" in schema else "")
        case "string":
            return _string(schema)
        case _:
            return ""


def _string(schema: Mapping[str, Any]) -> str:
    if schema.get("title") == "Address":
        return "host:port, [v6]:port or unix:/absolute/path"
    if schema.get("format") == "path":
        return "a path"
    low, high = schema.get("minLength", 0), schema.get("maxLength")
    length = f" of {low} to {high:,} characters" if high is not None else ""
    if "pattern" in schema:
        return f"{NAME}{length}: letters, digits and . _ : / @ + -, beginning with a letter or digit"
    return f"text{length}"


def _range(schema: Mapping[str, Any]) -> str:
    low, above = schema.get("minimum"), schema.get("exclusiveMinimum")
    high = schema.get("maximum")
    if high is None:
        return ""
    return f" over {above:,} up to {high:,}" if low is None else f" from {low:,} to {high:,}"


def resolve(schema: Schema) -> Schema:
    """The schema that a reference, or the one alternative to null, stands for; its own description and default kept."""
    if "$ref" in schema:
        target = model_schema()["$defs"][schema["$ref"].removeprefix("#/$defs/")]
        return {**target, **{k: v for k, v in schema.items() if k != "$ref"}}
    options = [option for option in schema.get("anyOf", ()) if option.get("type") != "null"]
    if "anyOf" in schema and len(options) == 1:
        return {**resolve(options[0]), **{k: v for k, v in schema.items() if k != "anyOf"}}
    return schema


def _objects(schema: Schema) -> list[Schema]:
    return [schema, *schema["$defs"].values()]


def _spelt(address: dict[str, Any]) -> str:
    from forebay.config.models import Address

    return str(Address.model_validate(address))


_ANNOTATIONS = ("title", "description", "default")


def _with_variables(schema: Any) -> Any:
    """A copy in which every scalar that is not free text may be a variable instead."""
    if isinstance(schema, list):
        return [_with_variables(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    constrained = (
        schema.get("type") in ("integer", "number", "boolean")
        or isinstance(schema.get("enum"), list)
        or (schema.get("type") == "string" and "pattern" in schema)
    )
    if constrained:
        kept = {k: v for k, v in schema.items() if k in _ANNOTATIONS}
        inner = {k: v for k, v in schema.items() if k not in _ANNOTATIONS}
        return {**kept, "anyOf": [inner, {"$ref": "#/$defs/FromEnvironment"}]}
    return {k: v if k in ("default", "required", "enum") else _with_variables(v) for k, v in schema.items()}

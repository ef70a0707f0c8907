"""docs/configuration.md, written from the models: `python -m forebay.config.reference > docs/configuration.md`."""

from __future__ import annotations

import json
import sys
from types import MappingProxyType
from typing import Any, Final

from forebay.config.document import MAX_BYTES, MAX_DEPTH
from forebay.config.schema import NAME, Schema, allowed, at, model_schema, resolve

_HEAD = f"""\
# Configuration

Forebay reads one YAML file, by custom `forebay.yaml`. `forebay check FILE` names every problem in it: file, line, key,
what was found and what is allowed. It exits with 0 when the file can be used, warnings included, and with 78 when it
cannot; `--format json` prints the same for programs. [examples/forebay.yaml](../examples/forebay.yaml) is a commented
example.

A key that is not listed here is an error. An empty file is legal and means the defaults; without `engines`
`forebay serve` needs `--engine`, which `forebay check` says as a warning. The file is UTF-8, one YAML
document of at most {MAX_BYTES >> 20} MiB, nested at most {MAX_DEPTH} deep.
Anchors, aliases and `<<` work; a key given twice is an error. A relative path is relative to the file's folder, and `~`
is the home folder.

A name is 1 to 128 characters: letters, digits and `. _ : / @ + -`, beginning with a letter or digit. Sizes are in
bytes, times in seconds.

## Variables

In any value, not in a key:

| written | means |
|---|---|
| `${{VAR}}` | the environment variable `VAR`; an error where it is not set |
| `${{VAR:-default}}` | `default` where `VAR` is unset or empty |
| `$$` | one dollar sign |

A dollar sign before anything else is itself. Variables are filled in after the YAML has been read, so whatever a
variable holds is one value: it cannot add keys. Inside `[ ]` or `{{ }}` such a value needs quotes: `["${{VAR}}"]`.
Messages show the variable as written, never what it holds, and never a key or password.

## Editors

`forebay schema > forebay.schema.json`, and as the first line of `forebay.yaml`:

```yaml
# yaml-language-server: $schema=forebay.schema.json
```
"""


def page() -> str:
    """The whole page, ending in a line end."""
    parts = [_HEAD, *_section("Top level", model_schema(), ())]
    return "\n".join(parts).rstrip("\n") + "\n"


def _section(title: str, schema: Schema, path: tuple[str | int, ...]) -> list[str]:
    """A table of the section's keys, then the sections below it."""
    lines = [f"## {title}", ""]
    lines += ["| key | value | default | |", "|---|---|---|---|"]
    below: list[str] = []
    required = schema.get("required", ())
    for key, field in schema["properties"].items():
        inner, name, steps = _inner(key, field)
        value = _value(allowed(at((*path, key))))
        if inner is not None:
            heading = ".".join(filter(None, (_heading(path), name)))
            value = f"{value.split(',')[0].split(' with ')[0]}: see [{heading}](#{_anchor(heading)})"
            below += _section(f"`{heading}`", inner, (*path, *steps))
        default = "required" if key in required else _default(key, field, inner is not None)
        lines.append(f"| `{key}` | {_cell(value or 'anything')} | {default} | {_cell(field.get('description', ''))} |")
    return [*lines, "", *below]


def _inner(key: str, field: Schema) -> tuple[Schema | None, str, tuple[str | int, ...]]:
    """The section a key opens, its name (`engines[]`, `models.NAME`) and the way to it."""
    schema = resolve(field)
    if "properties" in schema:
        return schema, key, (key,)
    items = resolve(schema.get("items", {}))
    if "properties" in items:
        return items, f"{key}[]", (key, 0)
    for entry in (*schema.get("patternProperties", {}).values(), schema.get("additionalProperties")):
        if isinstance(entry, dict) and "properties" in (entries := resolve(entry)):
            return entries, f"{key}.NAME", (key, "NAME")
    return None, key, (key,)


def _heading(path: tuple[str | int, ...]) -> str:
    text = ""
    for step in path:
        text += "[]" if isinstance(step, int) else f".{step}" if text else step
    return text


def _anchor(heading: str) -> str:
    return "".join(ch for ch in heading.lower() if ch.isalnum() or ch in "_-")


def _value(words: str) -> str:
    """A name's rule is given once, at the head of the page."""
    before, name, _ = words.partition(f"{NAME} of ")
    return {"a list, each ": "a list of names", "": NAME}.get(before, words) if name else words


_COMPUTED: Final = MappingProxyType(
    {"state_dir": "`$STATE_DIRECTORY/forebay`, else `$XDG_STATE_HOME/forebay`, else `~/.local/state/forebay`"}
)


def _default(key: str, field: Schema, section: bool) -> str:
    value: Any = field.get("default")
    if key in _COMPUTED:
        return _COMPUTED[key]
    if key == "listeners":
        return f"one, at `{value[0]['address']}`"
    if section and isinstance(value, dict) and value:
        return "as below"
    if value is None or value == "" or value == [] or value == {}:
        return "none"
    return f"`{value if isinstance(value, str) else json.dumps(value)}`"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    sys.stdout.write(page())

"""A list of engines outside forebay.yaml: the watched file, and what is added live. YAML or JSON; the entries are those
of `engines`.

JSON is read by the standard library first, for a file of ten thousand engines is read in a moment so; only where
something is wrong is it read again as YAML, which knows the lines.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError

from forebay.config import document
from forebay.config.anchors import anchor_engines
from forebay.config.checks import engine_clashes, engine_files
from forebay.config.document import Node, Trouble, dotted
from forebay.config.engine import Engine
from forebay.config.explain import explain
from forebay.config.problems import ConfigError, Problem

MAX_BYTES: Final = 8 << 20
_ENGINES: Final = TypeAdapter(tuple[Engine, ...])


def load_list(path: Path, env: Mapping[str, str]) -> tuple[Engine, ...]:
    """Raises ConfigError with every problem, an unreadable file among them."""
    name = str(path)
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as e:
        raise ConfigError([Problem(name, 0, "", f"cannot be read: {e.strerror or e}")]) from None
    text = document.decode(data, MAX_BYTES)
    if isinstance(text, Trouble):
        raise ConfigError([_problem(name, text)])
    return read_list(text, name, env, path.parent)


def read_list(text: str, name: str, env: Mapping[str, str], base: Path | None = None) -> tuple[Engine, ...]:
    """`name` stands in messages for the file, `base` is the folder of relative paths. Raises ConfigError."""
    tree = _json(text)
    if tree is not None:
        try:
            return _checked(tree, name, env, base, [])
        except ConfigError:
            pass  # said below, with lines
    tree, troubles = document.parse_any(text)
    return _checked(_listed(tree, troubles), name, env, base, troubles)


def _json(text: str) -> Node | None:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if isinstance(found, dict) and found.keys() == {"engines"}:
        found = found["engines"]
    return _node(found, ("engines",)) if isinstance(found, list) else None


def _node(value: Any, path: document.Path) -> Node:
    match value:
        case dict():
            return Node({str(k): _node(v, (*path, str(k))) for k, v in value.items()}, 0, path)
        case list():
            return Node([_node(v, (*path, i)) for i, v in enumerate(value)], 0, path)
        case _:
            return Node(value, 0, path)


def _listed(tree: Node, troubles: list[Trouble]) -> Node:
    """The list itself: the whole file, or what stands under its one key `engines`."""
    found = tree
    if isinstance(tree.value, dict) and (below := tree.value.get("engines")) is not None and len(tree.value) == 1:
        found = below
    if not isinstance(found.value, list) and found.value is not None and not troubles:
        what = document.describe(tree.value)
        troubles.append(Trouble(tree.line, (), "the file must be a list of engines: - name: …, url: …", what))
    if not isinstance(found.value, list):
        return Node([], found.line, ("engines",))
    return document.moved(found, ("engines",))


def _checked(
    tree: Node, name: str, env: Mapping[str, str], base: Path | None, troubles: list[Trouble]
) -> tuple[Engine, ...]:
    whole = Node({"engines": tree}, tree.line, ())
    troubles = [*troubles, *document.interpolate(whole, env)]
    anchor_engines(whole, base)
    spoilt = {trouble.path[1:] for trouble in troubles if trouble.spoils}
    together = [*engine_clashes(whole), *engine_files(whole)]
    try:
        engines = _ENGINES.validate_python(tree.plain())
    except ValidationError as e:
        for error in e.errors(include_url=False, include_input=False):
            if error["loc"] not in spoilt:
                error["loc"] = ("engines", *error["loc"])
                troubles.append(explain(error, whole))
        engines = ()
    troubles += together
    if troubles:
        raise ConfigError([_problem(name, trouble) for trouble in troubles])
    return engines


def _problem(name: str, trouble: Trouble) -> Problem:
    return Problem(name, trouble.line, dotted(trouble.path), trouble.message, trouble.found, trouble.allowed)

"""YAML text as a tree that remembers where each value stands and how it was written.

`parse` reads the text, `interpolate` fills `${VAR}` in. Both collect every problem they meet instead of stopping at the
first. Interpolation works on scalars that YAML has already parsed, so a variable's value can never become YAML.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from forebay.errors import shown

if TYPE_CHECKING:
    from ruamel.yaml import YAML
    from ruamel.yaml.nodes import Node as YamlNode

MAX_BYTES = 1 << 20
MAX_DEPTH = 32
MAX_NODES = 100_000

Path = tuple[str | int, ...]
Scalar = str | int | float | bool | None


@dataclass(slots=True)
class Node:
    """A value at its place. `line` counts from 1 and is the key's for a value under one."""

    value: dict[str, Node] | list[Node] | Scalar
    line: int
    path: Path
    written: str | None = None
    """The text before interpolation, where a variable is in it."""

    def child(self, *path: str | int) -> Node | None:
        """The node `path` leads to, or None where it leads nowhere."""
        node: Node | None = self
        for step in path:
            match node.value if node else None:
                case dict() as entries if isinstance(step, str):
                    node = entries.get(step)
                case list() as items if isinstance(step, int) and step < len(items):
                    node = items[step]
                case _:
                    return None
        return node

    def nearest(self, path: Path) -> Node:
        """The deepest node on the way to `path`."""
        node = self
        for step in path:
            below = node.child(step)
            if below is None:
                return node
            node = below
        return node

    def children(self) -> list[Node]:
        match self.value:
            case dict() as entries:
                return list(entries.values())
            case list() as items:
                return items
            case _:
                return []

    def scalars(self) -> Iterator[Node]:
        if isinstance(self.value, dict | list):
            for child in self.children():
                yield from child.scalars()
        else:
            yield self

    def plain(self) -> Any:
        """The value as dicts, lists and scalars."""
        match self.value:
            case dict() as entries:
                return {key: node.plain() for key, node in entries.items()}
            case list() as items:
                return [node.plain() for node in items]
            case scalar:
                return scalar


@dataclass(frozen=True, slots=True)
class Trouble:
    """A problem that does not know its file's name."""

    line: int
    path: Path
    message: str
    found: str = ""
    allowed: str = ""
    spoils: bool = True
    """The value at `path` stands for nothing, so that what else is said of it would mislead."""


_BARE = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")


def dotted(path: Path) -> str:
    """`engines[0].url`; a name that would read ambiguously is quoted: `models["gpt-4.1"]`."""
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        elif _BARE.fullmatch(step):
            text += f".{step}" if text else step
        else:
            text += f'["{shown(step)}"]'
    return text


# --- text → tree ----------------------------------------------------------------------------------------------------


def decode(data: bytes, most: int = MAX_BYTES) -> str | Trouble:
    if len(data) > most:
        return Trouble(0, (), "the file is too large", f"over {most:,} bytes", f"at most {most:,} bytes")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as e:
        line = data.count(b"\n", 0, e.start) + 1
        return Trouble(line, (), "the file is not UTF-8", f"byte 0x{data[e.start]:02x} at offset {e.start}")


def parse(text: str) -> tuple[Node, list[Trouble]]:
    """The tree (an empty mapping for an empty file or one that is not YAML) and what is wrong with the text."""
    tree, troubles = parse_any(text)
    if tree.value is None:
        return Node({}, 1, ()), troubles
    if not isinstance(tree.value, dict):
        wrong = Trouble(tree.line, (), "the file must be a mapping of keys to values", found=describe(tree.value))
        return Node({}, 1, ()), [*troubles, wrong]
    return tree, troubles


def parse_any(text: str) -> tuple[Node, list[Trouble]]:
    """As `parse`, whatever the text holds; nothing for an empty file or one that is not YAML."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    empty = Node(None, 1, ())
    yaml = YAML(typ="safe", pure=True)
    yaml.max_depth = MAX_DEPTH
    yaml.composer.warn_double_anchors = False
    try:
        root = yaml.compose(text)
    except (YAMLError, RecursionError) as e:
        return empty, [_yaml_trouble(e, text)]
    if root is None:
        return empty, []
    builder = _Builder(yaml)
    try:
        tree = builder.build(root, root.start_mark.line + 1, ())
    except _TooBig:
        return empty, [
            Trouble(0, (), "the file has too many values", allowed=f"at most {MAX_NODES:,}, aliases expanded")
        ]
    return tree, builder.troubles


class _TooBig(Exception):
    pass


class _Builder:
    """Turns ruamel's nodes into ours. The count of nodes bounds what aliases may expand to."""

    def __init__(self, yaml: YAML) -> None:
        self._yaml = yaml
        self._open: set[int] = set()
        self._count = 0
        self.troubles: list[Trouble] = []

    def build(self, source: YamlNode, line: int, path: Path) -> Node:
        self._count += 1
        if self._count > MAX_NODES:
            raise _TooBig
        if id(source) in self._open:
            self.troubles.append(Trouble(line, path, "an alias refers to a value that it is part of"))
            return Node(None, line, path)
        self._open.add(id(source))
        try:
            return self._build(source, line, path)
        finally:
            self._open.discard(id(source))

    def _build(self, source: YamlNode, line: int, path: Path) -> Node:
        from ruamel.yaml.nodes import MappingNode, ScalarNode, SequenceNode

        tag = str(source.tag or "")
        if isinstance(source, MappingNode) and tag == "tag:yaml.org,2002:map":
            return Node(self._mapping(source, path), line, path)
        if isinstance(source, SequenceNode) and tag == "tag:yaml.org,2002:seq":
            items = [
                self.build(item, item.start_mark.line + 1, (*path, index)) for index, item in enumerate(source.value)
            ]
            return Node(list(items), line, path)
        if isinstance(source, ScalarNode) and tag.removeprefix("tag:yaml.org,2002:") in _SCALARS:
            return Node(self._scalar(source, line, path), line, path)
        self.troubles.append(Trouble(line, path, "YAML tags are not used here", found=shown(_short(tag))))
        return Node(None, line, path)

    def _mapping(self, source: Any, path: Path) -> dict[str, Node]:
        own: dict[str, Node] = {}
        merged: dict[str, Node] = {}
        for key, value in source.value:
            line = key.start_mark.line + 1
            if not isinstance(key.value, str):
                self.troubles.append(Trouble(line, path, "a key must be a plain word or a quoted string"))
            elif key.value == "<<" and key.style is None:
                self._merge(value, line, path, merged)
            elif key.value in own:
                first = own[key.value].line
                self.troubles.append(
                    Trouble(line, (*path, key.value), f"given twice; the first is on line {first}", spoils=False)
                )
            else:
                own[key.value] = self.build(value, line, (*path, key.value))
        return {**merged, **own}

    def _merge(self, source: Any, line: int, path: Path, into: dict[str, Node]) -> None:
        node = self.build(source, line, path)
        for part in node.value if isinstance(node.value, list) else [node]:
            if isinstance(part.value, dict):
                for key, child in part.value.items():
                    if key not in into:
                        into[key] = moved(child, (*path, key))
            else:
                self.troubles.append(
                    Trouble(line, path, "<< takes a mapping or a list of mappings", describe(part.value))
                )

    def _scalar(self, source: Any, line: int, path: Path) -> Scalar:
        if source.tag.endswith((":str", ":timestamp")):
            return str(source.value)
        try:
            value = self._yaml.constructor.construct_object(source)
        except (ValueError, OverflowError):
            self.troubles.append(Trouble(line, path, "cannot be read as a number", found=describe(str(source.value))))
            return None
        assert value is None or isinstance(value, int | float)
        return value


_SCALARS = frozenset({"str", "int", "float", "bool", "null", "timestamp"})


def _short(tag: str) -> str:
    return tag.replace("tag:yaml.org,2002:", "!!")


def moved(node: Node, path: Path) -> Node:
    match node.value:
        case dict() as entries:
            value: Any = {key: moved(child, (*path, key)) for key, child in entries.items()}
        case list() as items:
            value = [moved(child, (*path, index)) for index, child in enumerate(items)]
        case scalar:
            value = scalar
    return Node(value, node.line, path, node.written)


def _yaml_trouble(error: Exception, text: str) -> Trouble:
    from ruamel.yaml.composer import MaxDepthExceededError
    from ruamel.yaml.error import MarkedYAMLError
    from ruamel.yaml.reader import ReaderError

    if isinstance(error, MaxDepthExceededError | RecursionError):
        return Trouble(0, (), "the file is nested too deeply", allowed=f"at most {MAX_DEPTH} levels")
    if isinstance(error, ReaderError):
        line = text.count("\n", 0, error.position) + 1
        return Trouble(
            line, (), "a control character is not allowed in YAML", found=f"U+{ord(text[error.position]):04X}"
        )
    if not isinstance(error, MarkedYAMLError) or error.problem_mark is None:
        return Trouble(0, (), f"not YAML: {error}")
    mark = error.problem_mark
    line = mark.line + 1
    lines = text.splitlines()
    current = lines[mark.line] if mark.line < len(lines) else ""
    what = str(error.problem)
    if "'\\t'" in what:
        return Trouble(line, (), "a tab cannot indent YAML; use spaces")
    if "another document" in str(error.context) or "another document" in what:
        return Trouble(line, (), "the file must hold one YAML document", found="a second one, after ---")
    if "${" in current:
        what += "; inside [ ] or { } a value with ${…} needs quotes"
    elif re.search(r":\s+\[[0-9A-Fa-f:.]*\]:\d", current):
        what += '; an address with [ ] needs quotes: "[::1]:8080"'
    context = error.context_mark
    if context is not None and context.line != mark.line and error.context:
        what += f" ({error.context} that begins on line {context.line + 1})"
    return Trouble(line, (), f"not YAML: {what}")


def describe(value: object) -> str:
    """What was found, as one would type it; cut, and printable."""
    match value:
        case None:
            return "nothing"
        case bool():
            return "true" if value else "false"
        case str():
            return f"'{shown(value)}'"
        case dict():
            return "a mapping"
        case list() | tuple():
            return "a list"
        case _:
            return shown(value)


# --- ${VAR} ---------------------------------------------------------------------------------------------------------

_VARIABLE = re.compile(
    r"\$(?:(?P<dollar>\$)|\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?P<or>:-(?P<default>[^}]*))?\}|(?P<bad>\{))"
)


def interpolate(tree: Node, env: Mapping[str, str]) -> list[Trouble]:
    """Fill the variables in, in place; returns what is wrong with them, every one.

    `${VAR}` must be set; `${VAR:-default}` stands for the default where VAR is unset or empty; `$$` is one dollar. A
    dollar before anything else is itself.
    """
    troubles: list[Trouble] = []
    for node in tree.scalars():
        if not isinstance(node.value, str) or "$" not in node.value:
            continue
        filled, uses, wrong = _fill(node.value, env)
        troubles += [Trouble(node.line, node.path, message) for message in wrong]
        if uses:
            node.written = node.value
        node.value = None if wrong else filled
    return troubles


def _fill(text: str, env: Mapping[str, str]) -> tuple[str, bool, list[str]]:
    uses = False
    wrong: list[str] = []

    def one(match: re.Match[str]) -> str:
        nonlocal uses
        if match["dollar"]:
            return "$"
        uses = True
        if match["bad"]:
            wrong.append("a variable is written ${NAME} or ${NAME:-default}, and a literal ${ as $${")
            return ""
        name = match["name"]
        value = env.get(name)
        if match["or"] is not None:
            return value or match["default"]
        if value is None:
            wrong.append(
                f"the environment variable {shown(name)} is not set; set it or write ${{{shown(name)}:-default}}"
            )
            return ""
        return value

    return _VARIABLE.sub(one, text), uses, wrong

"""`forebay.yaml` from text to a checked `Config`, with every problem in it at once.

Relative paths in a file are relative to the file's folder; `~` is the user's home.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from forebay.config import document
from forebay.config.advise import cautions
from forebay.config.anchors import anchor_paths
from forebay.config.checks import cache_packages, clashes, kv_event_packages, tls_files, tokenizer_files
from forebay.config.document import MAX_BYTES, Node, Trouble, dotted
from forebay.config.explain import explain
from forebay.config.models import Config
from forebay.config.problems import ConfigError, Problem, Severity


@dataclass(frozen=True, slots=True)
class Source:
    """A configuration with the text that it came from."""

    config: Config
    name: str
    tree: Node


def load(path: Path, env: Mapping[str, str]) -> Config:
    """Raises ConfigError with every problem, an unreadable file among them."""
    return read(path, env).config


def load_only(path: Path, env: Mapping[str, str], *sections: str) -> Config:
    """As `load`, for a command that needs only these keys of the top level: what is wrong below the others, a variable
    that is not set among them, does not matter. The others have their defaults in what is returned."""
    return _read_file(path, env, sections).config


def loads(text: str, name: str, env: Mapping[str, str], *, base: Path | None = None) -> Config:
    """As `load`, for text; `name` stands in messages for the file, `base` is the folder of relative paths."""
    return _read(text, name, env, base).config


def read(path: Path, env: Mapping[str, str], *sections: str) -> Source:
    """As `load`, or as `load_only` where sections are named, keeping the lines for `advise`."""
    return _read_file(path, env, sections)


def _read_file(path: Path, env: Mapping[str, str], sections: tuple[str, ...] = ()) -> Source:
    name = str(path)
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as e:
        raise ConfigError([Problem(name, 0, "", f"cannot be read: {e.strerror or e}")]) from None
    text = document.decode(data)
    if isinstance(text, Trouble):
        raise ConfigError(_problems(name, [text]))
    return _read(text, name, env, path.parent, sections)


def advise(config: Config, source: Source | None = None) -> list[Problem]:
    """Warnings. With its source they have lines, and secrets written into the file are among them."""
    tree = source.tree if source else None
    name = source.name if source else "configuration"
    found = [
        Problem(
            file=name,
            line=tree.nearest(caution.path).line if tree and tree.child(*caution.path[:1]) else 0,
            key=dotted(caution.path),
            message=caution.message,
            found=caution.found,
            allowed=caution.allowed,
            severity=Severity.WARNING,
        )
        for caution in cautions(config, tree)
    ]
    return sorted(found, key=lambda problem: problem.line)


def _read(text: str, name: str, env: Mapping[str, str], base: Path | None, sections: tuple[str, ...] = ()) -> Source:
    tree, troubles = document.parse(text)
    if sections and isinstance(tree.value, dict):
        left_out = Config.model_fields.keys() - set(sections)
        tree.value = {key: node for key, node in tree.value.items() if key not in left_out}
    troubles += document.interpolate(tree, env)
    anchor_paths(tree, base)
    spoilt = {trouble.path for trouble in troubles if trouble.spoils}
    together = [
        *clashes(tree),
        *tls_files(tree),
        *tokenizer_files(tree),
        *kv_event_packages(tree),
        *cache_packages(tree),
    ]
    config: Config | None = None
    try:
        config = Config.model_validate(tree.plain())
    except ValidationError as e:
        for error in e.errors(include_url=False, include_input=False):
            if error["loc"] in spoilt or (error["type"] == "clash" and (together or troubles)):
                continue
            troubles.append(explain(error, tree))
    troubles += together
    if config is None or troubles:
        raise ConfigError(_problems(name, troubles))
    return Source(config, name, tree)


def _problems(name: str, troubles: Iterable[Trouble]) -> list[Problem]:
    return [Problem(name, t.line, dotted(t.path), t.message, t.found, t.allowed) for t in troubles]

"""Paths in a file are relative to the file's folder; `~` is the user's home."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

from forebay.config.document import Node

_FOLDER: Final = re.compile(r"(onnx|sentence-transformers):")
"""Before the folder of an embedder's model."""


def anchor_engines(tree: Node, base: Path | None) -> None:
    for engine in _items(tree, "engines"):
        _anchor(engine.child("tls", "ca"), base)
        if (launch := engine.child("launch")) is not None:
            _anchor_launch(launch, base)


def _anchor(node: Node | None, base: Path | None) -> None:
    if node and isinstance(node.value, str) and node.value and "-----BEGIN" not in node.value:
        node.value = _anchored(node.value, base)


def anchor_paths(tree: Node, base: Path | None) -> None:
    def anchor(node: Node | None) -> None:
        _anchor(node, base)

    anchor(tree.child("state_dir"))
    anchor(tree.child("admission", "record"))
    for listener in _items(tree, "listeners"):
        for field in ("cert", "key", "client_ca"):
            anchor(listener.child("tls", field))
    anchor(tree.child("engines_file"))
    anchor(tree.child("ledger", "prices"))
    anchor_engines(tree, base)
    for model in _items(tree, "models"):
        anchor(model.child("tokenizer"))
    for receiver in _items(tree, "alerts", "receivers"):
        anchor(receiver.child("ca"))
    anchor(tree.child("cache", "semantic", "verifier"))
    embedder = tree.child("cache", "semantic", "embedder")
    if embedder and isinstance(embedder.value, str) and (kind := _FOLDER.match(embedder.value)):
        embedder.value = kind[0] + _anchored(embedder.value[kind.end() :], base)


def _anchor_launch(launch: Node, base: Path | None) -> None:
    """Absolute, since the engine may run in another folder. A program without a slash is looked for on PATH, a model
    like a/b is a name of Hugging Face's."""
    starts = ("/", "./", "../", "~")
    for node, is_path in (
        (launch.child("directory"), lambda text: True),
        (launch.child("python"), lambda text: "/" in text),
        (launch.child("command", 0), lambda text: "/" in text),
        (launch.child("model"), lambda text: text.startswith(starts) or text.endswith(".gguf")),
    ):
        if node is not None and isinstance(node.value, str) and node.value and is_path(node.value):
            node.value = str(Path(_anchored(node.value, base)).absolute())


def _anchored(text: str, base: Path | None) -> str:
    try:
        path = Path(text).expanduser()
    except (RuntimeError, ValueError):  # no such user, or no text that a path can have
        path = Path(text)
    return str(base / path) if base else str(path)


def _items(tree: Node, *section: str) -> list[Node]:
    node: Any = tree.child(*section)
    return node.children() if node else []

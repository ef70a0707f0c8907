"""What can be known to go wrong before an engine is started: a program, a model, a folder, a port."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

from forebay.config.engine import Engine
from forebay.config.launch import Launch
from forebay.engines.launching.commands import CommandLine, program_of
from forebay.engines.launching.table import Program


def obstacles(engine: Engine, command: CommandLine) -> Iterator[str]:
    """Each with the key to change."""
    launch, program = engine.launch, program_of(engine)
    if launch is None or program is None:
        return
    at = f"{engine.name}: launch."
    yield from (
        f"{at}{found}" for found in (_program(launch, command), _directory(launch), _model(launch, program)) if found
    )
    if taken := port_taken(launch.host, launch.port):
        yield f"{at}port: cannot listen on {launch.host}:{launch.port}: {taken}"


def _program(launch: Launch, command: CommandLine) -> str:
    key = "python" if launch.python is not None else "command"
    word = command.words[0]
    path = command.variables.get("PATH", os.environ.get("PATH"))
    if shutil.which(word, path=path) is None:
        there = "/" in word and Path(word).exists()
        return f"{key}: {word} " + (
            "cannot be executed" if there else "is not there" if "/" in word else "is not on PATH"
        )
    return ""


def _directory(launch: Launch) -> str:
    if launch.directory is not None and not launch.directory.is_dir():
        return f"directory: {launch.directory} is no folder"
    return ""


def _model(launch: Launch, program: Program) -> str:
    """Names are the engine's to find; a path must be there."""
    if not launch.model.startswith("/"):
        return ""
    path = Path(launch.model)
    if not path.exists():
        return f"model: there is nothing at {path}"
    if program.single_file and not path.is_file():
        return f"model: {path} is a folder; {program.title} takes a .gguf file"
    if not program.single_file and path.is_dir() and not any(path.glob("*.json")):
        return f"model: {path} holds no config.json; is it the folder of a Hugging Face model?"
    return ""


def port_taken(host: str, port: int) -> str:
    """Why it cannot be listened on; empty where it can."""
    try:
        family, kind, proto, _, where = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, proto) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(where)
    except OSError as e:
        return e.strerror or str(e)
    return ""

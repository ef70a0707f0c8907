"""What is legal in a configuration and probably not meant."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Iterator
from urllib.parse import urlsplit

from forebay.config.alerts import ReceiverKind
from forebay.config.document import Node, Path, Trouble
from forebay.config.engine import Engine, EngineKind, Role
from forebay.config.enginelist import load_list
from forebay.config.fit import idle_settings
from forebay.config.launch import SECRET_VARIABLE, Launch
from forebay.config.models import Config
from forebay.config.problems import ConfigError


def cautions(config: Config, tree: Node | None) -> Iterator[Trouble]:
    """`tree` is the text's, where there is one: what was written out instead of taken from a variable is told by it."""
    if not config.engines and config.engines_file is None:
        yield Trouble(0, ("engines",), "there are none: `forebay serve` needs one here, or its --engine")
    yield from _engines(config, tree)
    listed: tuple[Engine, ...] = ()
    if config.engines_file is not None:
        try:
            listed = load_list(config.engines_file, os.environ)
        except ConfigError as e:
            for problem in e.problems[:20]:
                yield Trouble(0, ("engines_file",), f"cannot be used as it is: {problem}")
    names = {engine.name for engine in config.engines}
    for engine in listed:
        if engine.name in names:
            yield Trouble(0, ("engines_file",), "left out: engines has one of that name", f"'{engine.name}'")
    yield from _roles(config.engines, (*config.engines, *(e for e in listed if e.name not in names)))
    yield from _models(config)
    yield from _callers(config, tree)
    yield from _receivers(config, tree)
    yield from _timeouts(config)
    for path, message, found in idle_settings(config):
        yield Trouble(0, path, message, found)
    if tree is not None and (url := tree.child("database")) and url.written is None and _has_password(config.database):
        yield Trouble(0, ("database",), "the password is readable in the file; write ${VAR}")
    if not config.admin.loopback:
        yield Trouble(0, ("admin",), "the admin port is open to the network, without keys", str(config.admin))
    if config.admission.record is not None and not config.admission.enabled:
        yield Trouble(0, ("admission", "record"), "nothing is recorded: admission.enabled is false")
    if config.logging.bodies:
        yield Trouble(0, ("logging", "bodies"), "prompts and answers are written to the log")


def _engines(config: Config, tree: Node | None) -> Iterator[Trouble]:
    for index, engine in enumerate(config.engines):
        at: Path = ("engines", index)
        url = urlsplit(engine.url)
        if engine.api_key is not None:
            if url.scheme == "http" and not _loopback(url.hostname or ""):
                yield Trouble(0, (*at, "url"), "api_key crosses the network unencrypted; use https://", engine.url)
            if _in_the_open(tree, (*at, "api_key")):
                yield Trouble(0, (*at, "api_key"), "the key is readable in the file; write ${VAR}")
        if engine.kind is EngineKind.ANTHROPIC and engine.api_key is None:
            yield Trouble(0, at, "there is no api_key, which Anthropic's API asks for: write ${VAR}")
        if engine.launch is not None:
            yield from _launch(engine.launch, engine.api_key is not None, tree, (*at, "launch"))
        if url.scheme == "https" and not engine.tls.verify:
            yield Trouble(0, (*at, "tls", "verify"), "any certificate is accepted, an impostor's too")
        if url.scheme == "http" and engine.tls.model_fields_set:
            yield Trouble(0, (*at, "tls"), "not used: the url is http://")
        if engine.max_idle > engine.max_connections:
            yield Trouble(
                0, (*at, "max_idle"), f"more than max_connections ({engine.max_connections:,})", f"{engine.max_idle:,}"
            )


def _roles(written: tuple[Engine, ...], everywhere: tuple[Engine, ...]) -> Iterator[Trouble]:
    """Engines without another that theirs is the half of."""
    for index, engine in enumerate(written):
        at: Path = ("engines", index, "role")
        alone = engine.kind is EngineKind.SGLANG  # it answers nothing alone
        if engine.role is Role.PREFILL and engine.models:
            others = (Role.DECODE,) if alone else (Role.DECODE, Role.BOTH)
            if not any(other.role in others and _belong(engine, other) for other in everywhere):
                then = "it gets no requests" if alone else "it is used as one of role both"
                yield Trouble(0, at, f"no engine decodes what it prefills: {then}")
        if engine.role is Role.DECODE and engine.models and alone:
            prefills = [other for other in everywhere if other.role is Role.PREFILL]
            if not any(_belong(engine, other) for other in prefills):
                yield Trouble(0, at, "no engine prefills what it decodes: it gets no requests")


def _belong(one: Engine, other: Engine) -> bool:
    """Whether KV might go from one to the other: of one kind, with a model in common; what is still to be asked of an
    engine might be so."""
    kinds = {one.kind, other.kind} - {EngineKind.AUTO}
    return len(kinds) < 2 and (not other.models or bool(set(one.models) & set(other.models)))


def _launch(launch: Launch, key: bool, tree: Node | None, at: Path) -> Iterator[Trouble]:
    if not key and not _loopback(launch.host):
        yield Trouble(0, (*at, "host"), "the engine is open to the network, without a key; set api_key", launch.host)
    for name in launch.env:
        if SECRET_VARIABLE.search(name) and _in_the_open(tree, (*at, "env", name)):
            yield Trouble(0, (*at, "env", name), "the value is readable in the file; write ${VAR}")


def _models(config: Config) -> Iterator[Trouble]:
    if not config.engines or config.engines_file is not None or not all(e.models for e in config.engines):
        return
    served = {name for engine in config.engines for name in engine.models}
    for name in config.models:
        if name not in served:
            yield Trouble(0, ("models", name), "no engine lists this model", allowed=", ".join(sorted(served)))
    known = served | {alias for name in config.models for alias in config.models[name].aliases}
    groups: list[tuple[Path, tuple[str, ...]]] = [
        (("callers", "keys", index, "models"), key.models) for index, key in enumerate(config.callers.keys)
    ]
    groups.append((("callers", "anonymous", "models"), config.callers.anonymous.models))
    for path, names in groups:
        for index, name in enumerate(names):
            if name not in known:
                yield Trouble(0, (*path, index), "neither a model of an engine nor an alias", f"'{name}'")


def _callers(config: Config, tree: Node | None) -> Iterator[Trouble]:
    for index in range(len(config.callers.keys)):
        path: Path = ("callers", "keys", index, "key")
        if _in_the_open(tree, path):
            yield Trouble(0, path, "the key is readable in the file; write ${VAR}")
    for index, listener in enumerate(config.listeners):
        at: Path = ("listeners", index)
        if listener.tls and _in_the_open(tree, (*at, "tls", "key_password")):
            yield Trouble(0, (*at, "tls", "key_password"), "the password is readable in the file; write ${VAR}")
        if not listener.address.loopback and config.callers.anonymous.enabled:
            message = "anyone who reaches this address is served (callers.anonymous.enabled)"
            yield Trouble(0, (*at, "address"), message, str(listener.address))


def _receivers(config: Config, tree: Node | None) -> Iterator[Trouble]:
    for index, receiver in enumerate(config.alerts.receivers):
        at: Path = ("alerts", "receivers", index)
        robot = receiver.kind is not ReceiverKind.WEBHOOK
        if _in_the_open(tree, (*at, "secret")):
            yield Trouble(0, (*at, "secret"), "the secret is readable in the file; write ${VAR}")
        if robot and _in_the_open(tree, (*at, "url")):
            message = f"whoever reads the file can post there: {receiver.kind}'s url is a secret; write ${{VAR}}"
            yield Trouble(0, (*at, "url"), message)
        if robot and receiver.url.startswith("http:") and not _loopback(receiver.host):
            yield Trouble(0, (*at, "url"), "the url, a secret, crosses the network unencrypted; use https://")


def _timeouts(config: Config) -> Iterator[Trouble]:
    times = config.timeouts
    if times.upstream_idle > times.upstream_age:
        message = f"no use over upstream_age ({times.upstream_age:g} s)"
        yield Trouble(0, ("timeouts", "upstream_idle"), message, f"{times.upstream_idle:g}")
    if times.connect > times.first_byte:
        message = f"no use over first_byte ({times.first_byte:g} s)"
        yield Trouble(0, ("timeouts", "connect"), message, f"{times.connect:g}")
    for index, engine in enumerate(config.engines):
        if engine.health_timeout > 10 * engine.health_interval:
            message = f"over ten times health_interval ({engine.health_interval:g} s)"
            yield Trouble(0, ("engines", index, "health_timeout"), message, f"{engine.health_timeout:g}")


def _in_the_open(tree: Node | None, path: Path) -> bool:
    node = tree.child(*path) if tree else None
    return node is not None and node.value is not None and node.written is None


def _has_password(url: str) -> bool:
    try:
        return bool(urlsplit(url).password)
    except ValueError:
        return False


def _loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False

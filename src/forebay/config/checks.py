"""What a schema cannot say: fields that do not fit together, files that cannot be used (errors), risks (warnings).

The errors are looked for in the tree rather than in the finished `Config`, so that they are found beside other mistakes
and each has its line.
"""

from __future__ import annotations

import contextlib
import importlib.util
import ssl
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path as FilePath
from types import MappingProxyType
from typing import Final

from forebay.config import database_url
from forebay.config.cache import IndexKind, Semantic, embedder_packages
from forebay.config.document import Node, Path, Trouble, dotted
from forebay.config.models import Address
from forebay.errors import shown

MAX_SOCKET_PATH = 107
"""Bytes of a Unix socket's path (unix(7))."""


def clashes(tree: Node) -> Iterator[Trouble]:
    yield from engine_clashes(tree)
    yield from _repeated(tree, ("callers", "keys"), "name", "another key has this name")
    yield from _repeated(tree, ("callers", "keys"), "key", "another key has the same text", show=False)
    yield from _repeated(tree, ("quotas",), "name", "another quota has this name")
    yield from _quotas(tree)
    yield from _repeated(tree, ("alerts", "receivers"), "name", "another receiver has this name")
    yield from _aliases(tree)
    yield from _addresses(tree)
    yield from _any_key(tree)
    yield from _state_dir(tree)
    yield from _database(tree)


def engine_clashes(tree: Node) -> Iterator[Trouble]:
    yield from _repeated(tree, ("engines",), "name", "another engine has this name")


def _text(node: Node | None, *path: str | int) -> Node | None:
    below = node.child(*path) if node else None
    return below if below and isinstance(below.value, str) and below.value else None


def _repeated(tree: Node, section: Path, field: str, message: str, *, show: bool = True) -> Iterator[Trouble]:
    first: dict[object, Node] = {}
    items = tree.child(*section)
    for item in items.children() if items else ():
        if (node := _text(item, field)) is None:
            continue
        earlier = first.setdefault(node.value, node)
        if earlier is not node:
            found = f"'{shown(node.value)}'" if show else ""
            yield Trouble(node.line, node.path, f"{message}: {dotted(earlier.path)} on line {earlier.line}", found)


def _aliases(tree: Node) -> Iterator[Trouble]:
    models = tree.child("models")
    if models is None or not isinstance(models.value, dict):
        return
    taken: dict[object, Node] = {}
    for entry in models.value.values():
        aliases = entry.child("aliases")
        for alias in aliases.children() if aliases and isinstance(aliases.value, list) else ():
            if not isinstance(alias.value, str):
                continue
            if alias.value in models.value:
                other = models.value[alias.value]
            else:
                other = taken.setdefault(alias.value, alias)
            if other is not alias:
                where = f"{dotted(other.path)} on line {other.line}"
                yield Trouble(alias.line, alias.path, f"the alias is taken: {where}", f"'{shown(alias.value)}'")


_DEFAULT_ADDRESSES: tuple[tuple[str, Path, str], ...] = (
    ("listeners", ("listeners", 0, "address"), "127.0.0.1:8080"),
    ("admin", ("admin",), "127.0.0.1:8081"),
)


def _listening(tree: Node) -> list[tuple[Address, Path, int]]:
    """Every address that can be read, with its key and line (0 for a default's)."""
    nodes: list[Node] = []
    listeners = tree.child("listeners")
    if listeners is not None:
        nodes += [node for item in listeners.children() if (node := _text(item, "address"))]
    if (admin := _text(tree, "admin")) is not None:
        nodes.append(admin)
    places: list[tuple[Address, Path, int]] = []
    for section, path, text in _DEFAULT_ADDRESSES:
        if tree.child(section) is None:
            places.append((Address.parse(text), path, 0))
    for node in nodes:
        try:
            places.append((Address.parse(str(node.value)), node.path, node.line))
        except ValueError:
            continue
    return places


def _addresses(tree: Node) -> Iterator[Trouble]:
    places = [*_listening(tree), *_launched(tree)]
    for index, (address, path, line) in enumerate(places):
        for other, other_path, other_line in places[:index]:
            if _same(address, other):
                where = f"on line {other_line}" if other_line else "by default"
                message = f"the address is taken: {dotted(other_path)} {where} is {other}"
                yield Trouble(line, path, message, f"'{address}'")
                break


def _launched(tree: Node) -> Iterator[tuple[Address, Path, int]]:
    """Where engines will listen that are started here."""
    engines = tree.child("engines")
    for engine in engines.children() if engines else ():
        port, host = engine.child("launch", "port"), engine.child("launch", "host")
        with contextlib.suppress(ValueError, TypeError):  # what is no address is told by the model
            if port is not None and not isinstance(port.value, dict | list | bool):
                where = Address(host=str(host.value) if host is not None else "127.0.0.1", port=int(port.value or 0))
                yield where, port.path, port.line


def _same(a: Address, b: Address) -> bool:
    if a.unix or b.unix:
        return a.unix == b.unix
    if a.port != b.port or a.port == 0:
        return False
    hosts = {"127.0.0.1" if x.host == "localhost" else x.host for x in (a, b)}
    v6 = {":" in x.host for x in (a, b)}
    return len(hosts) == 1 or (len(v6) == 1 and not hosts.isdisjoint(("0.0.0.0", "::")))  # noqa: S104


def _quotas(tree: Node) -> Iterator[Trouble]:
    quotas, enabled = tree.child("quotas"), tree.child("ledger", "enabled")
    if quotas is not None and quotas.children() and enabled is not None and enabled.value in (False, "false"):
        yield Trouble(enabled.line, enabled.path, f"the quotas on line {quotas.line} need the ledger")


def _any_key(tree: Node) -> Iterator[Trouble]:
    anonymous = tree.child("callers", "anonymous")
    any_key = anonymous.child("any_key") if anonymous else None
    if anonymous is None or any_key is None or not _true(any_key):
        return
    enabled = anonymous.child("enabled")
    if enabled is None or enabled.value in (False, "false"):
        yield Trouble(any_key.line, any_key.path, "any_key needs callers.anonymous.enabled: true")
    for address, path, _ in _listening(tree):
        if path[0] == "listeners" and not address.loopback:
            message = f"any_key is for loopback listeners only, and {dotted(path)} is {address}"
            yield Trouble(any_key.line, any_key.path, message)


def _state_dir(tree: Node) -> Iterator[Trouble]:
    """Sockets are made in it: the longest path is the workers' (state.messages, worker_socket)."""
    if (node := _text(tree, "state_dir")) is None or "\0" in str(node.value):
        return
    longest = str(FilePath(str(node.value)) / "run" / "worker-0.sock")
    over = len(longest.encode("utf-8", "surrogatepass")) - MAX_SOCKET_PATH
    if over > 0:
        message = f"too long by {over} bytes: a socket's path has at most {MAX_SOCKET_PATH}, and sockets are made in it"
        yield Trouble(node.line, node.path, message)


def _database(tree: Node) -> Iterator[Trouble]:
    node = _text(tree, "database")
    if node is not None and (why := database_url.unsupported(str(node.value))):
        yield Trouble(node.line, node.path, why, allowed=database_url.ALLOWED)
    semantic = tree.child("cache", "semantic")
    index = _text(semantic, "index")
    if semantic is None or index is None or index.value != "pgvector" or not _on(semantic.child("enabled")):
        return
    if node is None or not str(node.value).startswith(tuple(f"{scheme}:" for scheme in database_url.POSTGRES)):
        why = "pgvector needs a PostgreSQL in `database`: postgresql://user:password@host/name"
        yield Trouble(index.line, index.path, why)


def _true(node: Node) -> bool:
    return node.value is True or (isinstance(node.value, str) and node.value.lower() in ("true", "yes", "on", "1"))


# --- files ----------------------------------------------------------------------------------------------------------


def tls_files(tree: Node) -> Iterator[Trouble]:
    """Certificates and keys that are missing, unreadable, or do not belong together."""
    listeners = tree.child("listeners")
    for listener in listeners.children() if listeners else ():
        if (tls := listener.child("tls")) is not None:
            yield from _server(tls)
    receivers = tree.child("alerts", "receivers")
    for receiver in receivers.children() if receivers else ():
        if (ca := _text(receiver, "ca")) is not None:
            yield from _certificates(ca)
    yield from engine_files(tree)


def engine_files(tree: Node) -> Iterator[Trouble]:
    """Authorities of engines that cannot be read; many engines may name the same file."""
    known: dict[object, list[Trouble]] = {}
    engines = tree.child("engines")
    for engine in engines.children() if engines else ():
        if (ca := _text(engine, "tls", "ca")) is not None:
            wrong = known.get(ca.value)
            if wrong is None:
                wrong = known[ca.value] = _certificates(ca)
            yield from (replace(trouble, line=ca.line, path=ca.path) for trouble in wrong)


def _server(tls: Node) -> Iterator[Trouble]:
    cert, key, client_ca = (_text(tls, field) for field in ("cert", "key", "client_ca"))
    wrong = [trouble for node in (cert, client_ca) if node for trouble in _certificates(node)]
    wrong += _readable(key) if key else []
    yield from wrong
    if cert and key and not any(trouble.path in (cert.path, key.path) for trouble in wrong):
        yield from _pair(cert, key, _text(tls, "key_password"))


def tokenizer_files(tree: Node) -> Iterator[Trouble]:
    """Tokenizers that are missing, unreadable or none, or for which the package is not installed."""
    models = tree.child("models")
    for model in models.children() if models else ():
        if (node := _text(model, "tokenizer")) is not None:
            yield from _readable(node, "tokenizer.json") or _tokenizer(node)


def _tokenizer(node: Node) -> list[Trouble]:
    try:
        from tokenizers import Tokenizer
    except ImportError:
        fix = "the package tokenizers is not installed: pip install 'forebay[tokenizers]'"
        return [Trouble(node.line, node.path, fix)]
    try:
        Tokenizer.from_file(str(node.value))
    except Exception as e:  # what it raises is Exception itself
        return [Trouble(node.line, node.path, f"{shown(node.value, 200)} is no tokenizer.json: {shown(e, 200)}")]
    return []


def kv_event_packages(tree: Node) -> Iterator[Trouble]:
    """Engines whose KV events are to be listened to, without the package for it."""
    engines = tree.child("engines")
    for engine in engines.children() if engines else ():
        node = engine.child("kv_events")
        if node is not None and node.value is not None and importlib.util.find_spec("zmq") is None:
            fix = "the package pyzmq is not installed: pip install 'forebay[kv-events]'"
            yield Trouble(node.line, node.path, fix)


def cache_packages(tree: Node) -> Iterator[Trouble]:
    """What `cache` asks for without the package for it."""
    cache = tree.child("cache")
    if cache is None or not _on(cache.child("enabled")):
        return
    wanted: list[tuple[Node, tuple[str, ...], str]] = []
    redis, semantic = cache.child("redis"), cache.child("semantic")
    if redis is not None and redis.value:
        wanted.append((redis, ("redis",), "redis"))
    if semantic is not None and _on(on := semantic.child("enabled")):
        assert on is not None
        embedder, index = semantic.child("embedder") or on, semantic.child("index") or on
        name = Semantic.model_fields["embedder"].default if embedder is on else embedder.value
        wanted.append((embedder, *embedder_packages(str(name))))
        kind = IndexKind.FAISS if index is on else index.value
        wanted.append((index, *_INDEXES.get(str(kind), ((), ""))))
    for node, modules, extra in wanted:
        for module in modules:
            if importlib.util.find_spec(module) is None:
                fix = f"the package {module} is not installed: pip install 'forebay[{extra}]'"
                yield Trouble(node.line, node.path, fix)


_INDEXES: Final = MappingProxyType(
    {"faiss": (("faiss",), "semantic"), "redis": (("redis",), "redis"), "pgvector": (("psycopg",), "postgres")}
)


def _on(node: Node | None) -> bool:
    return node is not None and str(node.value).lower() in ("true", "yes", "on", "1")


def _readable(node: Node, kind: str = "PEM file") -> list[Trouble]:
    text = str(node.value)
    if "-----BEGIN" in text or "\n" in text:
        return [Trouble(node.line, node.path, f"a path to a {kind} is needed, not what such a file holds")]
    try:
        if not FilePath(text).is_file() and FilePath(text).exists():
            return [Trouble(node.line, node.path, f"{shown(text, 200)} is not a file")]
        with FilePath(text).open("rb"):
            return []
    except (OSError, ValueError) as e:
        why = e.strerror if isinstance(e, OSError) and e.strerror else str(e)
        return [Trouble(node.line, node.path, f"cannot read {shown(text, 200)}: {why}")]


def _certificates(node: Node) -> list[Trouble]:
    if wrong := _readable(node):
        return wrong
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cafile=str(node.value))
    except (ssl.SSLError, OSError):
        return [Trouble(node.line, node.path, f"{shown(node.value, 200)} holds no PEM certificate")]
    return []


def _pair(cert: Node, key: Node, password: Node | None) -> Iterator[Trouble]:
    given = str(password.value) if password else ""
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(str(cert.value), str(key.value), lambda: given)
    except (ssl.SSLError, OSError, ValueError) as e:
        path = shown(key.value, 200)
        if isinstance(e, ssl.SSLError) and e.reason == "KEY_VALUES_MISMATCH":
            yield Trouble(key.line, key.path, f"the private key in {path} does not belong to the certificate")
        elif b"ENCRYPTED" not in FilePath(str(key.value)).read_bytes()[:1_000_000]:
            yield Trouble(key.line, key.path, f"{path} holds no PEM private key")
        elif password is None:
            yield Trouble(key.line, key.path, f"the private key in {path} is encrypted; give key_password")
        else:
            yield Trouble(password.line, password.path, f"the password does not open the private key in {path}")

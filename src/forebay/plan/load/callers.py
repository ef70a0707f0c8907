"""Who sends: a key for each tenant, and the headers that name a class."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final

from forebay.errors import shown
from forebay.hardware.files import read
from forebay.plan.target import LoadError

MAX_BYTES: Final = 16 << 20
MAX_KEYS: Final = 100_000


class Callers:
    """Keys by tenant. `default` is for tenants without one of their own; with `say_class` each request names its class
    in `X-Priority`, which the gateway then lowers the key's to."""

    def __init__(self, default: str | None, keys: Mapping[str, str], *, say_class: bool) -> None:
        self._default = default
        self._keys = dict(keys)
        self._say = say_class

    def key(self, tenant: str) -> str | None:
        return self._keys.get(tenant, self._default)

    def headers(self, cls: str) -> tuple[str, ...]:
        return (f"x-priority: {cls}",) if self._say else ()

    def __repr__(self) -> str:
        return f"<Callers with {len(self._keys):,} keys>"


def key_of(text: str, what: str) -> str:
    """Raises LoadError for characters that a key cannot have; the message never shows it."""
    if not text.isascii() or not text.isprintable() or " " in text:
        raise LoadError(f"{what} holds characters that a key cannot have")
    return text


def read_keys(path: str) -> dict[str, str]:
    """Keys by tenant, out of lines of `TENANT KEY` or of `KEY` alone (whose tenants are `key-1`, `key-2`, …); blank
    lines and those that begin with # are passed over. Raises LoadError that names the line, and never a key."""
    try:
        text = read(Path(path), MAX_BYTES).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise LoadError(f"{shown(path)} is not UTF-8") from None
    except (OSError, ValueError) as e:
        raise LoadError(f"{shown(path)} cannot be read: {getattr(e, 'strerror', None) or e}") from None
    found: dict[str, str] = {}
    for n, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        if len(words) > 2:
            raise LoadError(f"{shown(path)}, line {n}: a line is TENANT KEY, or a KEY alone")
        name = words[0] if len(words) == 2 else f"key-{len(found) + 1}"
        if name in found:
            raise LoadError(f"{shown(path)}, line {n}: the tenant '{shown(name)}' is there already")
        if len(found) >= MAX_KEYS:
            raise LoadError(f"{shown(path)} has more than {MAX_KEYS:,} keys")
        found[name] = key_of(words[-1], f"{shown(path)}, line {n}")
    if not found:
        raise LoadError(f"{shown(path)} has no keys; a line is TENANT KEY, or a KEY alone")
    return found


def matched(keys: Mapping[str, str], tenants: Collection[str], path: str) -> dict[str, str]:
    """A key for each of the workload's tenants: its own, or, where the file names none of them, one after the other.
    Raises LoadError where the file names some and not all."""
    missing = sorted(tenant for tenant in tenants if tenant not in keys)
    if not missing:
        return dict(keys)
    if len(missing) < len(tenants) or any(not name.startswith("key-") for name in keys):
        more = f" and {len(missing) - 1:,} more" if len(missing) > 1 else ""
        raise LoadError(f"{shown(path)} has no key for the tenant '{shown(missing[0])}'{more}")
    texts = list(keys.values())
    return {tenant: texts[i % len(texts)] for i, tenant in enumerate(sorted(tenants))}

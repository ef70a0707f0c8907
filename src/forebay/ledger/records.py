"""What a worker knows of a key: plain records without the database behind them."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Collection
from datetime import UTC, datetime
from typing import Final

import msgspec

KEY_PREFIX = "fb-"
LEVELS: Final = ("organisation", "department", "project", "user")
"""From the top."""

Account = tuple[str, str, str, str]
"""A place in the hierarchy: a name for each of LEVELS, "" for one that was not given. It stands for the deepest level
that has a name, and all below that."""


class OldText(msgspec.Struct, frozen=True):
    """An earlier text of a key, as a hash; it counts until `ends`."""

    sha256: bytes
    ends: float


class KeyRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """One API key, its secret as a hash. Times are seconds since the Unix epoch."""

    id: str
    sha256: bytes
    name: str
    organisation: str = "default"
    department: str | None = None
    project: str | None = None
    user: str | None = None
    models: tuple[str, ...] = ()
    class_: str = "normal"
    may_raise_class: bool = False
    created: float = 0.0
    expires: float | None = None
    revoked: float | None = None
    suspended: float | None = None
    """The key itself; a level above it is suspended by its own account."""
    rotated: float | None = None
    """When it got its text, where that is not its first one."""
    old: tuple[OldText, ...] = ()
    """Its earlier texts, the last ones; ended ones among them."""

    @property
    def account(self) -> Account:
        return self.organisation, self.department or "", self.project or "", self.user or ""

    def matches(self, digest: bytes) -> bool:
        """Constant-time comparison with the SHA-256 of a presented key."""
        return hmac.compare_digest(self.sha256, digest)


def new_key() -> tuple[str, str, bytes]:
    """A new key as (public id, text shown once, SHA-256 of the text)."""
    key_id = secrets.token_hex(6)
    return key_id, *new_text(key_id)


def new_text(key_id: str) -> tuple[str, bytes]:
    """A text for a key, and its SHA-256. The secret part carries 256 random bits."""
    text = f"{KEY_PREFIX}{key_id}-{secrets.token_urlsafe(32)}"
    return text, hashlib.sha256(text.encode()).digest()


def suspended_in(account: Account, suspended: Collection[Account]) -> Account | None:
    """The outermost of the `suspended` accounts that `account` is, or is in."""
    if not suspended:
        return None
    return next((above for above in with_above(account) if above in suspended), None)


def with_above(account: Account) -> tuple[Account, Account, Account, Account]:
    """The accounts that it is in, from the top, and itself, the last ones the same where levels were not given."""
    organisation, department, project, _ = account
    return (
        (organisation, "", "", ""),
        (organisation, department, "", ""),
        (organisation, department, project, ""),
        account,
    )


def level_of(account: Account) -> str:
    """Which of LEVELS an account stands for."""
    return LEVELS[max(n for n in range(4) if account[n])]


def renamed(account: Account, name: str) -> Account:
    """With another name for the level that it stands for."""
    at = LEVELS.index(level_of(account))
    a, b, c, d = (name if n == at else old for n, old in enumerate(account))
    return a, b, c, d


def shown_account(account: Account) -> str:
    return " / ".join(name for name in account if name)


def as_json(record: KeyRecord, now: float, suspended: Collection[Account] = ()) -> dict[str, object]:
    """A key as people and programs are shown it at the time `now`: without its hashes, times as ISO 8601 in UTC.
    `suspended`: the accounts that are."""
    expired = record.expires is not None and record.expires <= now
    above = suspended_in(record.account, suspended)
    by = "key" if record.suspended is not None else level_of(above) if above is not None else None
    return {
        "id": record.id,
        "name": record.name,
        "state": "revoked" if record.revoked is not None else "expired" if expired else "suspended" if by else "valid",
        "organisation": record.organisation,
        "department": record.department,
        "project": record.project,
        "user": record.user,
        "models": list(record.models),
        "class": record.class_,
        "may_raise_class": record.may_raise_class,
        "created": iso(record.created),
        "expires": iso(record.expires),
        "revoked": iso(record.revoked),
        "suspended": iso(record.suspended),
        "suspended_by": by,
        "rotated": iso(record.rotated),
        "old_texts": [{"ends": iso(old.ends)} for old in record.old if old.ends > now],
    }


def iso(seconds: float | None) -> str | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")

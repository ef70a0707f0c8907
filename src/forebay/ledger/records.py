"""What a worker knows of a key: plain records without the database behind them."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from datetime import UTC, datetime

import msgspec

KEY_PREFIX = "fb-"


class KeyRecord(msgspec.Struct, frozen=True):
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

    def matches(self, digest: bytes) -> bool:
        """Constant-time comparison with the SHA-256 of a presented key."""
        return hmac.compare_digest(self.sha256, digest)


def new_key() -> tuple[str, str, bytes]:
    """A new key as (public id, text shown once, SHA-256 of the text). The secret part carries 256 random bits."""
    key_id = secrets.token_hex(6)
    text = f"{KEY_PREFIX}{key_id}-{secrets.token_urlsafe(32)}"
    return key_id, text, hashlib.sha256(text.encode()).digest()


def as_json(record: KeyRecord, now: float) -> dict[str, object]:
    """A key as people and programs are shown it at the time `now`: without its hash, times as ISO 8601 in UTC."""
    expired = record.expires is not None and record.expires <= now
    return {
        "id": record.id,
        "name": record.name,
        "state": "revoked" if record.revoked is not None else "expired" if expired else "valid",
        "organisation": record.organisation,
        "department": record.department,
        "project": record.project,
        "user": record.user,
        "models": list(record.models),
        "class": record.class_,
        "may_raise_class": record.may_raise_class,
        "created": _iso(record.created),
        "expires": _iso(record.expires),
        "revoked": _iso(record.revoked),
    }


def _iso(seconds: float | None) -> str | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")

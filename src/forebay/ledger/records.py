"""What a worker knows of a key: plain records without the database behind them."""

from __future__ import annotations

import hashlib
import hmac
import secrets

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

"""An alert as each kind of receiver wants it, its signature, and what the receiver's answer means. Pure.

Generic webhooks are signed as Standard Webhooks 1.0 says (standard-webhooks/webhooks, spec/standard-webhooks.md,
"Signature scheme"): HMAC-SHA256 over "id.timestamp.body". Feishu: "Custom bot usage guide", signature verification; an
empty text under the key "timestamp\\nsecret", seconds. DingTalk: "Custom robot security settings", sign: the text
"timestamp\\nsecret" under the secret, milliseconds. Both refuse timestamps more than an hour old. All three are signed
anew at each try.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum
from types import MappingProxyType
from typing import Any, Final
from urllib.parse import quote, urlencode, urlsplit

import msgspec

from forebay import __version__
from forebay.config.alerts import SECRET_PREFIX, Receiver, ReceiverKind, Severity
from forebay.errors import shown
from forebay.ledger.alerts import Alert

VERSION: Final = 1
"""Of the generic payload. Fields may be added to a version; what is there keeps its meaning."""
PACE: Final = MappingProxyType(
    {ReceiverKind.WEBHOOK: 0.0, ReceiverKind.SLACK: 1.0, ReceiverKind.FEISHU: 0.6, ReceiverKind.DINGTALK: 3.0}
)
"""Least seconds between two messages: Slack takes one a second, Feishu 100 a minute, DingTalk 20 a minute."""
_COLOURS: Final = MappingProxyType({Severity.INFO: "blue", Severity.WARNING: "orange", Severity.CRITICAL: "red"})
_FEISHU_BUSY: Final = frozenset({11232, 9499})
"""Too many messages."""
_DINGTALK_BUSY: Final = frozenset({-1, 130101, 410100})
"""Its system is busy; too many messages (twice)."""
_LONGEST: Final = 3_000
"""Characters of a text: what a section of Slack's takes."""


@dataclass(frozen=True, slots=True)
class Post:
    url: str = field(repr=False)
    headers: Mapping[str, str] = field(repr=False)
    body: bytes


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back. `body` is cut."""

    status: int
    headers: Mapping[str, str]
    """Names in lower case."""
    body: bytes


class Fate(Enum):
    DELIVERED = "delivered"
    AGAIN = "again"
    """It failed, and may not the next time."""
    REFUSED = "refused"
    """It would be refused again."""


@dataclass(frozen=True, slots=True)
class Verdict:
    fate: Fate
    said: str
    """What came back, for people; without secrets."""
    after: float | None = None
    """Seconds that the receiver asks to be left alone."""


def post_of(receiver: Receiver, alert: Alert, now: float) -> Post:
    """`now`: the wall clock, which is signed."""
    headers = {"Content-Type": "application/json; charset=utf-8", "User-Agent": f"forebay/{__version__}"}
    url = receiver.url
    match receiver.kind:
        case ReceiverKind.WEBHOOK:
            body = _json(generic(alert))
            headers |= {"webhook-id": alert.id, "webhook-timestamp": str(int(now))}
            if receiver.secret is not None:
                headers["webhook-signature"] = signature(receiver.secret, alert.id, int(now), body)
        case ReceiverKind.SLACK:
            body = _json(_slack(alert))
        case ReceiverKind.FEISHU:
            message = _feishu(alert)
            if receiver.secret is not None:
                stamp = str(int(now))
                message = {"timestamp": stamp, "sign": _hmac(f"{stamp}\n{receiver.secret}".encode(), b""), **message}
            body = _json(message)
        case ReceiverKind.DINGTALK:
            body = _json({"msgtype": "text", "text": {"content": f"{_heading(alert)}\n{_cut(alert.text)}"}})
            if receiver.secret is not None:
                stamp = str(int(now * 1000))
                sign = _hmac(receiver.secret.encode(), f"{stamp}\n{receiver.secret}".encode())
                url += ("&" if urlsplit(url).query else "?") + urlencode({"timestamp": stamp, "sign": sign})
    return Post(url, headers, body)


def signature(secret: str, id_: str, timestamp: int, body: bytes) -> str:
    """The value of webhook-signature."""
    if secret.startswith(SECRET_PREFIX):
        key = base64.b64decode(secret.removeprefix(SECRET_PREFIX))
    else:
        key = secret.encode()
    return "v1," + _hmac(key, f"{id_}.{timestamp}.".encode() + body)


def _hmac(key: bytes, text: bytes) -> str:
    return base64.b64encode(hmac.new(key, text, hashlib.sha256).digest()).decode()


def generic(alert: Alert) -> dict[str, Any]:
    """The documented payload."""
    found: dict[str, Any] = {
        "version": VERSION,
        "id": alert.id,
        "type": str(alert.rule),
        "severity": alert.severity.value,
        "time": _iso(alert.at),
        "title": alert.title,
        "text": alert.text,
        "scope": None,
        "window": None,
        "data": dict(alert.data),
    }
    if alert.scope is not None:
        scope: dict[str, str | None] = dict.fromkeys(("organisation", "department", "project", "user", "key"))
        scope |= {level: name or None for level, name in zip(scope, alert.scope.names, strict=False)}
        found["scope"] = {"level": alert.scope.level, **scope, "id": alert.scope.id or None}
    if alert.window is not None:
        window = alert.window
        found["window"] = {
            "kind": window.kind.value,
            "since": _iso(window.since),
            "until": _iso(window.until),
            "zone": window.zone,
        }
    return found


def _slack(alert: Alert) -> dict[str, Any]:
    heading, text = _heading(alert), _cut(alert.text)
    return {
        # For notifications. Only here is markup read: a name must not be able to call a whole channel.
        "text": heading.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;"),
        "blocks": [
            {"type": "header", "text": {"type": "plain_text", "text": shown(heading, 149), "emoji": False}},
            {"type": "section", "text": {"type": "plain_text", "text": text, "emoji": False}},
        ],
    }


def _feishu(alert: Alert) -> dict[str, Any]:
    return {
        "msg_type": "interactive",
        "card": {
            "header": {
                "template": _COLOURS[alert.severity],
                "title": {"tag": "plain_text", "content": _heading(alert)},
            },
            "elements": [{"tag": "div", "text": {"tag": "plain_text", "content": _cut(alert.text)}}],
        },
    }


def _heading(alert: Alert) -> str:
    """Begins with a word that keyword filters of robots can be set to."""
    return f"Forebay {alert.severity.value}: {alert.title}"


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def _json(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


def _iso(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


# --- answers ---------------------------------------------------------------------------------------------------------


def verdict(receiver: Receiver, answer: Answer) -> Verdict:
    status = answer.status
    text = masked(receiver, answer.body.decode("utf-8", "replace"))
    said = f"{status}" + (f" {shown(text, 200)}" if text.strip() else "")
    if status in (408, 425, 429) or status >= 500:
        return Verdict(Fate.AGAIN, said, _retry_after(answer))
    if 300 <= status < 400:
        where = shown(masked(receiver, urlsplit(answer.headers.get("location", "")).hostname or "somewhere else"), 100)
        return Verdict(Fate.REFUSED, f"{status}, a redirect to {where}: it is not followed, put the new URL into url")
    if not 200 <= status < 300:
        return Verdict(Fate.REFUSED, said)
    match receiver.kind:
        case ReceiverKind.FEISHU:
            return _coded(answer, said, ("code", "StatusCode"), "Feishu", _FEISHU_BUSY)
        case ReceiverKind.DINGTALK:
            return _coded(answer, said, ("errcode",), "DingTalk", _DINGTALK_BUSY)
        case _:
            return Verdict(Fate.DELIVERED, said)


def _coded(answer: Answer, said: str, fields: tuple[str, ...], who: str, busy: frozenset[int]) -> Verdict:
    """Of APIs that say in the body of a 200 how it went."""
    try:
        found = msgspec.json.decode(answer.body, type=dict[str, Any])
    except msgspec.MsgspecError:
        return Verdict(Fate.AGAIN, f"{said}: not an answer of {who}'s")
    code = next((found[f] for f in fields if isinstance(found.get(f), int)), None)
    if code is None:
        return Verdict(Fate.AGAIN, f"{said}: not an answer of {who}'s")
    if code == 0:
        return Verdict(Fate.DELIVERED, said)
    return Verdict(Fate.AGAIN if code in busy else Fate.REFUSED, said)


def _retry_after(answer: Answer) -> float | None:
    """In seconds; a date is not understood."""
    text = answer.headers.get("retry-after", "").strip()
    return float(text) if text.isascii() and text.isdigit() and len(text) < 9 else None


def masked(receiver: Receiver, text: str) -> str:
    """Without what of the receiver must not be shown, should the other side have said it back."""
    url = urlsplit(receiver.url)
    rest = url.path + (f"?{url.query}" if url.query else "")
    secret = receiver.secret or ""
    hidden = {
        receiver.url,
        rest,
        url.path,
        url.query,
        secret,
        secret.removeprefix(SECRET_PREFIX),
        quote(secret, safe=""),
    }
    hidden |= {part for part in url.path.split("/") if len(part) >= 8}
    for word in sorted(hidden, key=len, reverse=True):
        if len(word) > 3:
            text = text.replace(word, "…")
    return text

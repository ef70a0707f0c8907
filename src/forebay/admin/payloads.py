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
from collections.abc import Callable, Mapping
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
    {ReceiverKind.WEBHOOK: 0.0, ReceiverKind.SLACK: 1.0, ReceiverKind.FEISHU: 0.65, ReceiverKind.DINGTALK: 3.2}
)
"""Least seconds between two messages: Slack takes one a second, Feishu 100 a minute, DingTalk 20 a minute. A little
more, for they do not arrive as evenly as they are sent."""
_COLOURS: Final = MappingProxyType({Severity.INFO: "blue", Severity.WARNING: "orange", Severity.CRITICAL: "red"})
_FEISHU_BUSY: Final = frozenset({11232})
"""Too many messages."""
_FEISHU_BAD: Final = 9499
"""A bad request, or too many of them: only the words tell."""
_DINGTALK_BUSY: Final = frozenset({-1, 130101, 410100})
"""Its system is busy; too many messages (twice)."""
_DINGTALK_REST: Final = 600.0
"""Seconds for which DingTalk takes nothing from a robot that sent too much."""
_LONGEST: Final = 3_000
"""Characters of a text: what a section of Slack's takes."""
_HEADING: Final = 500
"""Characters of a heading."""
_BODY: Final = 19_000
"""Bytes of a message: Feishu takes 20 KB, DingTalk 20,000 bytes."""


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
            body = _fitting(alert, _slack)
        case ReceiverKind.FEISHU:
            signed = {}
            if receiver.secret is not None:
                stamp = str(int(now))
                signed = {"timestamp": stamp, "sign": _hmac(f"{stamp}\n{receiver.secret}".encode(), b"")}
            body = _fitting(alert, lambda heading, text: signed | _feishu(alert.severity, heading, text))
        case ReceiverKind.DINGTALK:
            body = _fitting(alert, _dingtalk)
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


def _fitting(alert: Alert, message: Callable[[str, str], dict[str, Any]]) -> bytes:
    """`message` of (heading, text), of which as much as a body may hold. The heading begins with a word that keyword
    filters of robots can be set to."""
    heading = _cut(f"Forebay {alert.severity.value}: {alert.title}", _HEADING)
    longest = min(len(alert.text), _LONGEST)
    while len(body := _json(message(heading, _cut(alert.text, longest)))) > _BODY:
        longest = longest * 3 // 4
    return body


def _slack(heading: str, text: str) -> dict[str, Any]:
    return {
        # For notifications. Only here is markup read: a name must not be able to call a whole channel.
        "text": heading.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;"),
        "blocks": [
            {"type": "header", "text": {"type": "plain_text", "text": shown(heading, 149), "emoji": False}},
            {"type": "section", "text": {"type": "plain_text", "text": text, "emoji": False}},
        ],
    }


def _feishu(severity: Severity, heading: str, text: str) -> dict[str, Any]:
    return {
        "msg_type": "interactive",
        "card": {
            "header": {"template": _COLOURS[severity], "title": {"tag": "plain_text", "content": heading}},
            "elements": [{"tag": "div", "text": {"tag": "plain_text", "content": text}}],
        },
    }


def _dingtalk(heading: str, text: str) -> dict[str, Any]:
    return {"msgtype": "text", "text": {"content": f"{heading}\n{text}"}}


def _cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else text[: max(0, longest - 1)] + "…"


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
    # Feishu tells of too many messages with a 400, too.
    if not 200 <= status < 300 and not (status == 400 and receiver.kind is ReceiverKind.FEISHU):
        return Verdict(Fate.REFUSED, said)
    match receiver.kind:
        case ReceiverKind.FEISHU:
            return _feishu_verdict(answer, said)
        case ReceiverKind.DINGTALK:
            return _dingtalk_verdict(answer, said)
        case _:
            return Verdict(Fate.DELIVERED, said)


def _feishu_verdict(answer: Answer, said: str) -> Verdict:
    found = _body(answer)
    code = _code(found, "code", "StatusCode")
    if code is None:
        fate = Fate.AGAIN if answer.status < 300 else Fate.REFUSED
        return Verdict(fate, f"{said}: not an answer of Feishu's")
    if code == 0 and answer.status < 300:
        return Verdict(Fate.DELIVERED, said)
    busy = code in _FEISHU_BUSY or (code == _FEISHU_BAD and "too many" in str(found.get("msg", "")).lower())
    return Verdict(Fate.AGAIN if busy else Fate.REFUSED, said)


def _dingtalk_verdict(answer: Answer, said: str) -> Verdict:
    code = _code(_body(answer), "errcode")
    if code is None:
        return Verdict(Fate.AGAIN, f"{said}: not an answer of DingTalk's")
    if code == 0:
        return Verdict(Fate.DELIVERED, said)
    if code in _DINGTALK_BUSY:
        return Verdict(Fate.AGAIN, said, None if code == -1 else _DINGTALK_REST)
    return Verdict(Fate.REFUSED, said)


def _body(answer: Answer) -> dict[str, Any]:
    """How it went, of APIs that say so in the body."""
    try:
        return msgspec.json.decode(answer.body, type=dict[str, Any])
    except msgspec.MsgspecError:
        return {}


def _code(found: Mapping[str, Any], *fields: str) -> int | None:
    return next((found[f] for f in fields if type(found.get(f)) is int), None)


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

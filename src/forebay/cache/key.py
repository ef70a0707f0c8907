"""What must be equal for an answer to be given again, as two digests; and what is never looked for.

`read` takes a request apart: `exact` is a digest of all of it, `scope` of all but the last user turn's text, which is
then the `question`. Both hold whose it is (`Facts.tenant`), the model as asked for and what it stands for, versions and
locale. JSON's freedom (order of keys, white space, escapes, 1 or 1.0) makes no difference; a field that is not known to
leave the answer as it is does.

BLAKE2b of 128 bits, not a faster hash: who could make two requests that look alike could have another tenant's answer.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from math import inf
from typing import Any, Final, NamedTuple

import msgspec

from forebay import errors
from forebay.api.openai import ChatBody, CompletionBody
from forebay.cache import intent
from forebay.config.cache import Cache, CachedModel, Share

WISH: Final = b"x-forebay-cache"
KNOWLEDGE: Final = b"x-forebay-knowledge"
_SIZE: Final = 16
_ORDINARY: Final = CachedModel()
_LEAVES_IT: Final = (
    "model",  # in the facts
    "stream",
    "stream_options",
    "user",
    "safety_identifier",
    "metadata",
    "store",
    "service_tier",
    "priority",
    "prompt_cache_key",
    "prompt_cache_retention",
    "request_id",
)
"""Fields that do not change what is answered."""


class Wish(NamedTuple):
    """What a request's head asks of caches."""

    looks: bool = True
    """It may be given an answer that is known."""
    stores: bool = True
    """Its answer may be kept."""
    only: bool = False
    """It wants nothing but an answer that is known: a miss is 504."""
    most_age: float = inf
    """Seconds."""
    why: str = ""
    """The words that ask for less than everything."""


ANYTHING: Final = Wish()


class Facts:
    """What of a key is the same for all requests of one caller for one model; to be made once.

    `locale`: of Accept-Language, as it came. `knowledge`: of X-Forebay-Knowledge."""

    __slots__ = ("by_end_user", "hash", "model", "off", "partition", "semantic", "stale", "ttl", "version")

    def __init__(
        self,
        rules: Cache,
        account: tuple[str, str, str, str, str, str],
        model: str,
        target: str,
        locale: str = "",
        knowledge: str = "",
    ) -> None:
        """`account`: key id, key name, organisation, department, project, user, as `gateway.callers.Caller.account`."""
        own = rules.models.get(target, _ORDINARY)
        tenant, shown = _shared_by(rules.share, account)
        self.model = model
        self.partition = "/".join((*shown, model))
        """Whose, for people: as `cache.messages.Find.partition`."""
        self.version = ":".join(filter(None, (rules.version, own.version, knowledge)))
        self.ttl = own.ttl if own.ttl is not None else rules.ttl
        self.stale = rules.stale
        self.off = "" if own.enabled else "model"
        self.semantic = rules.semantic.enabled and own.semantic
        self.by_end_user = rules.share is Share.END_USER
        parts = (*tenant, "", model, target, rules.version, own.version, locale, knowledge)
        self.hash = hashlib.blake2b(msgspec.json.encode(parts), digest_size=_SIZE)

    def __repr__(self) -> str:
        return f"<Facts {self.partition} {self.version}>"


class Asked(NamedTuple):
    exact: bytes
    """16 bytes."""
    scope: bytes
    """16 bytes; b"": meaning is not compared, for the reason `why`."""
    question: str
    """The last user turn's text; "" where there is none."""
    why: str


class Bypassed(NamedTuple):
    why: str
    """tools, attachment, temperature, time, personal, logprobs, end_user, model, …"""


def wish_of(fields: Mapping[bytes, bytes]) -> Wish:
    """Of X-Forebay-Cache and Cache-Control (RFC 9111, 5.2.1). Raises Refusal: another word in the former."""
    word, control = fields.get(WISH), fields.get(b"cache-control")
    if word is None and control is None:
        return ANYTHING
    found = _controlled(control) if control is not None else ANYTHING
    if word is None:
        return found
    match word.strip().lower():
        case b"bypass":
            return Wish(looks=False, stores=False, why="bypass")
        case b"refresh":
            return Wish(looks=False, stores=found.stores, why="refresh")
        case b"only":
            return found._replace(looks=True, only=True)
        case b"use":
            return found
    raise errors.bad_request(
        f"X-Forebay-Cache must be bypass, refresh, only or use, not '{errors.shown(word.decode('latin-1'))}'.",
        param="x-forebay-cache",
        code="wrong_type",
    )


def _controlled(control: bytes) -> Wish:
    found = ANYTHING
    for part in control.lower().split(b","):
        name, _, value = part.strip().partition(b"=")
        value = value.strip(b' "')
        if name == b"no-store":
            return Wish(looks=False, stores=False, why="no-store")
        if name == b"no-cache":
            found = found._replace(looks=False, why="no-cache")
        elif name == b"only-if-cached":
            found = found._replace(only=True)
        elif name == b"max-age" and value.isdigit():
            found = found._replace(most_age=float(value[:12]))
    return found


def _shared_by(share: Share, account: tuple[str, str, str, str, str, str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(who shares, for the digest; the same for people). A key that has nothing at that level shares with no other."""
    if share is Share.EVERYONE:
        return ("*",), ("*",)
    key, _, *names = account
    depth = _DEPTHS.get(share, 5)
    own = tuple(names[:depth])
    if depth > len(names) or not own[-1]:
        own = (*names, key)
    return own, tuple(name or "-" for name in own)


_DEPTHS: Final = {Share.ORGANISATION: 1, Share.DEPARTMENT: 2, Share.PROJECT: 3, Share.USER: 4}


def _number(text: str) -> int | float:
    value = float(text)
    return int(value) if value.is_integer() else value


_decode: Final = msgspec.json.Decoder(dict[str, Any], float_hook=_number).decode
_encode: Final = msgspec.json.Encoder(order="sorted").encode
_NO_FIELD: Final = object()


def read(body: ChatBody | CompletionBody, payload: bytes, facts: Facts, rules: Cache) -> Asked | Bypassed:
    """`payload`: the request's JSON with the model's defaults in it, and as asked: without what limits lowered."""
    if facts.off:
        return Bypassed(facts.off)
    if facts.by_end_user and not body.end_user:
        return Bypassed("end_user")
    try:
        fields = _decode(payload)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, OverflowError):
        return Bypassed("unreadable")
    for name in _LEAVES_IT:
        fields.pop(name, None)
    for name in [name for name, value in fields.items() if value is None]:
        del fields[name]
    temperature = fields.get("temperature", 1)
    if type(temperature) not in (int, float) or temperature > rules.max_temperature:
        return Bypassed("temperature")
    if fields.get("logprobs") not in (None, False) or "prompt_logprobs" in fields:
        return Bypassed("logprobs")
    question: str | None = None
    why = "" if facts.semantic else "semantic"
    if isinstance(body, ChatBody):
        messages = fields.get("messages")
        if type(messages) is not list:
            return Bypassed("unreadable")
        refused = _conversation(messages)
        if refused:
            return Bypassed(refused)
        question = _take_question(messages)
        if question is None:
            why = why or "last_turn"
        elif not question.strip():
            why = why or "empty"
        if question:
            found = intent.of(question)
            if found and not (found == intent.PERSONAL and rules.personal):
                return Bypassed(found)
        if fields.get("n", 1) != 1:
            why = why or "n"
    else:
        why = why or "completion"
    state = facts.hash.copy()
    if facts.by_end_user:
        state.update(msgspec.json.encode(body.end_user))
    try:
        state.update(_encode(fields))
    except (OverflowError, RecursionError):
        return Bypassed("unreadable")
    scope = b"" if why else state.digest()
    state.update(b"\0w" if question is None else b"\0q" + question.encode("utf-8", "surrogatepass"))
    return Asked(state.digest(), scope, question or "", why)


def _conversation(messages: list[Any]) -> str:
    """Why it is not looked for, or ""."""
    for message in messages:
        if type(message) is not dict:
            return "unreadable"
        if message.get("role") in ("tool", "function") or message.get("tool_calls") or message.get("function_call"):
            return "tools"
        content = message.get("content")
        if type(content) is list and any(type(p) is not dict or p.get("type") != "text" for p in content):
            return "attachment"
    return ""


def _take_question(messages: list[Any]) -> str | None:
    """The last user turn's text, with null left in its place; None: the last turn is no user's, or has no text."""
    last = messages[-1] if messages else None
    if not last or last.get("role") != "user":
        return None
    content = last.get("content")
    if type(content) is str:
        last["content"] = None
        return content
    if type(content) is list and content and type(content[-1].get("text")) is str:
        text: str = content[-1]["text"]
        content[-1]["text"] = None
        return text
    return None

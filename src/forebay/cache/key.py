"""What must be equal for an answer to be given again, as two digests; and what is never looked for.

`read` takes a request apart: `exact` is a digest of all of it, `scope` of all but the last user turn's text, which is
then the `question`. Both hold whose it is (`Facts.tenant`), the model as asked for and what it stands for, versions and
locale. JSON's freedom (order of keys, white space, escapes, 1 or 1.0) makes no difference; a field that is not known to
leave the answer as it is does.

BLAKE2b of 128 bits, not a faster hash: who could make two requests that look alike could have another tenant's answer.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterable, Mapping
from math import inf, isfinite
from typing import Any, Final, NamedTuple
from urllib.parse import quote

import msgspec

from forebay import errors
from forebay.api.openai import ChatBody, CompletionBody
from forebay.cache import intent
from forebay.config.cache import Cache, CachedModel, Share

WISH: Final = b"x-forebay-cache"
KNOWLEDGE: Final = b"x-forebay-knowledge"
TAGS: Final = b"x-forebay-cache-tags"
SOURCES: Final = b"x-forebay-cache-sources"
MOST_LABELS: Final = 16
_LABEL: Final = re.compile(r"[A-Za-z0-9_.:/@+-]{1,128}")
FORM: Final = "2"
"""Of keys: where what they hold or leave out changes, this does, so that hosts of two versions share nothing wrong."""
_SIZE: Final = 16
_ORDINARY: Final = CachedModel()
_MAY_LEAVE: Final = frozenset(
    {
        *("stream", "stream_options", "user", "safety_identifier", "metadata", "store", "service_tier", "priority"),
        *("prompt_cache_key", "prompt_cache_retention", "request_id"),
    }
)
"""Fields that do not change what is answered; nor does `model`, which is in the facts."""


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

    `locale`: of Accept-Language, as it came. `knowledge`: of X-Forebay-Knowledge. `headers`: what else of its head an
    engine gets, as `counted` finds it."""

    __slots__ = ("by_end_user", "hash", "model", "off", "partition", "semantic", "stale", "ttl", "version", "writer")

    def __init__(
        self,
        rules: Cache,
        account: tuple[str, str, str, str, str, str],
        model: str,
        target: str,
        locale: str = "",
        knowledge: str = "",
        headers: tuple[tuple[str, str], ...] = (),
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
        whose = (rules.share.value, account[0] == ANONYMOUS, tenant)
        self.writer = b""
        """Who asks, where everyone shares: its organisation."""
        if rules.share is Share.EVERYONE:
            writer = (account[0] == ANONYMOUS, _shared_by(Share.ORGANISATION, account)[0])
            self.writer = hashlib.blake2b(msgspec.json.encode(writer), digest_size=_SIZE).digest()
        parts = (FORM, whose, model, target, rules.version, own.version, locale, knowledge, headers)
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
    """attachment, audio, chance, end_user, large, logprobs, modality, model, personal, place, search, temperature,
    time, tools, unreadable."""


def counted(headers: Iterable[tuple[bytes, bytes]], ignored: Collection[str] = ()) -> tuple[tuple[str, str], ...]:
    """Of header lines that pass to an engine, those that may change its answer: all but what is known not to.
    `ignored`: more of these, in lower case; a * at the end stands for any ending."""
    found = []
    for name, value in headers:
        if name in _SAYS_NOTHING or name.startswith(_SAY_NOTHING):
            continue
        text = name.decode("latin-1")
        if ignored and any(text == one or (one[-1:] == "*" and text.startswith(one[:-1])) for one in ignored):
            continue
        found.append((text, value.decode("latin-1")))
    return tuple(sorted(found))


_SAYS_NOTHING: Final = frozenset(
    b"accept accept-charset accept-language user-agent cache-control pragma date dnt priority via te trailer warning "
    b"from max-forwards if-none-match if-modified-since if-match if-unmodified-since if-range range save-data depth "
    b"upgrade-insecure-requests cdn-loop true-client-ip client-ip x-client-ip x-cluster-client-ip x-request-start "
    b"x-queue-start x-requested-with x-title http-referer openai-organization openai-project openai-version "
    b"x-client-request-id x-correlation-id correlation-id request-id x-trace-id x-transaction-id x-amzn-requestid "
    b"x-original-forwarded-for x-original-uri x-scheme x-request-timeout idempotency-key x-idempotency-key "
    b"traceparent tracestate baggage b3 uber-trace-id sentry-trace x-cloud-trace-context x-amzn-trace-id newrelic "
    b"elastic-apm-traceparent traceresponse grpc-timeout".split()
)
"""Who sends it, over what way, under what number; `accept-language` is counted beside."""
_SAY_NOTHING: Final = (
    b"x-stainless-", b"sec-", b"x-forwarded-", b"x-envoy-", b"x-b3-", b"x-datadog-", b"cf-", b"x-amz-cf-", b"x-azure-",
    b"x-arr-", b"x-vercel-", b"fly-", b"fastly-", b"x-appengine-", b"x-ms-client-", b"x-newrelic-", b"x-ot-",
)  # fmt: skip


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
            found = found._replace(most_age=float(value[:12]), looks=found.looks and value.strip(b"0") != b"")
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
    return own, tuple(_shown(name) for name in own)


def _shown(name: str) -> str:
    """No name is shown as another, nor as that there is none, nor as everyone."""
    return "%2D" if name == "-" else quote(name, safe=_PLAIN) or "-"


ANONYMOUS: Final = "anonymous"
"""The id of who shows no key: an organisation may be called so, too."""
_PLAIN: Final = "._:@+-"
_DEPTHS: Final = {Share.ORGANISATION: 1, Share.DEPARTMENT: 2, Share.PROJECT: 3, Share.USER: 4}


def _number(text: str) -> int | float:
    value = float(text)
    if value.is_integer():
        return int(value)
    if not isfinite(value):
        raise ValueError(text)  # JSON has no other word for it than null
    return value


MOST_BYTES: Final = 1 << 20
"""Of a request that is looked for: a larger one would hold up the event loop for milliseconds."""
_CLOSE_LOOK: Final = 1 << 14
"""Bytes up to which 1 and 1.0 are the same: a reading of numbers one by one."""
_decode: Final = msgspec.json.Decoder(dict[str, Any], float_hook=_number).decode
_decode_as_it_is: Final = msgspec.json.Decoder(dict[str, Any]).decode
_encode: Final = msgspec.json.Encoder(order="sorted").encode
_UNREADABLE: Final = Bypassed("unreadable")
_FAILURES: Final = (msgspec.MsgspecError, ValueError, OverflowError, RecursionError)


def read(body: ChatBody | CompletionBody, payload: bytes, facts: Facts, rules: Cache) -> Asked | Bypassed:
    """`payload`: the request's JSON with the model's defaults in it, and as asked: without what limits lowered."""
    if facts.off:
        return Bypassed(facts.off)
    if facts.by_end_user and not body.end_user:
        return Bypassed("end_user")
    size = len(payload)
    if size > MOST_BYTES or (size > _CLOSE_LOOK and _tangled(payload)):
        return Bypassed("large")
    try:
        fields = _decode_as_it_is(payload)
        _leave_out(fields)
        if size <= _CLOSE_LOOK and not _settles(fields):
            fields = _decode(payload)
            _leave_out(fields)
        if None in fields.values():
            fields = {name: value for name, value in fields.items() if value is not None}
        why = _uncached(fields, rules)
        if why:
            return Bypassed(why)
        why = "" if facts.semantic else "semantic"
        question: str | None = None
        chat = type(body) is ChatBody
        if chat:
            found = _conversation(fields.get("messages"), rules)
            if isinstance(found, Bypassed):
                return found
            question = found
            why = why or _not_compared(question, fields, rules)
        else:
            prompt = fields.get("prompt")
            depends = _depends(prompt, rules) if type(prompt) is str else ""
            if depends:
                return Bypassed(depends)
            why = why or "completion"
        state = facts.hash.copy()
        if facts.by_end_user:
            state.update(msgspec.json.encode(_end_user(body)))
        state.update(_encode(fields))
        scope = b"" if why or question is None else _scope(state, question)
        state.update(_NO_QUESTION[chat] if question is None else b"\1" + question.encode())
    except _FAILURES:
        return _UNREADABLE
    return Asked(state.digest(), scope, question or "", why)


def _leave_out(fields: dict[str, Any]) -> None:
    """What does not change the answer."""
    fields.pop("model", None)
    if not _MAY_LEAVE.isdisjoint(fields):
        for name in _MAY_LEAVE:
            fields.pop(name, None)


def _settles(fields: dict[str, Any]) -> bool:
    """Make whole numbers of those that are, as `_number` does, where none stands deeper than in a field itself: that
    asks for a call less of each. False: one does."""
    for name, value in fields.items():
        if type(value) is float:
            if value.is_integer():
                fields[name] = int(value)
            elif not isfinite(value):
                return False
        elif type(value) is not str and _has_float(value):
            return False
    return True


def _has_float(value: Any) -> bool:
    kind = type(value)
    if kind is dict:
        for one in value.values():
            if type(one) is not str and _has_float(one):
                return True
    elif kind is list:
        for one in value:
            if type(one) is not str and _has_float(one):
                return True
    else:
        return kind is float
    return False


def _end_user(body: ChatBody | CompletionBody) -> str | tuple[str, str]:
    """By both names, where they differ: an application may say the same for all in one of them."""
    one, other = body.user, body.safety_identifier
    return (one, other) if one and other and one != other else body.end_user


_NO_QUESTION: Final = (b"\2", b"\0")
"""Of a completion and of a chat: one may have the other's fields."""


def _tangled(payload: bytes) -> bool:
    """Whether it is in so many parts that to take it apart would hold up the event loop: 5 ms at these numbers."""
    return payload.count(b"{") > _MOST_PARTS or payload.count(b'":') > _MOST_PARTS or payload.count(b",") > _MOST_COMMAS


_MOST_PARTS: Final = 10_000
_MOST_COMMAS: Final = 100_000
"""More than 1 MiB of prose has, and half as many as a table of that size."""


def _scope(state: hashlib.blake2b, question: str) -> bytes:
    """Of the question itself, its signs: what compares meanings reads words, and sees no difference between 👍 and 👎,
    && and ||, or ./x and /x."""
    if _may_be_signs(question) and (signs := _SIGNS.findall(question)):
        state = state.copy()
        state.update(msgspec.json.encode(signs))
    return state.digest()


def _may_be_signs(question: str) -> bool:
    """As `_MAY_BE_SIGNS`, which takes a microsecond and a half, of what people write: letters and full stops."""
    if question.isascii():
        raw = question.encode("ascii")
        rest = raw.translate(None, _NO_SIGNS)
        if not rest:
            return False
        if not rest.strip(b".") and len(rest) == raw.count(b". ") + raw.endswith(b"."):
            return False
    return _MAY_BE_SIGNS.search(question) is not None


_SIGN: Final = (
    r"$&|@^=<>*\\\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\xa9\xac-\xb6\xb8\xb9\xbc-\xbf\xd7\xf7"  # ASCII, Latin-1, controls
    r"\u0334-\u0338\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f"  # struck out, invisible
    r"\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufe00-\ufe0f\ufeff\ufff0-\uffff"  # invisible, right to left
    r"\u2030-\u205e\u20a0-\u218f\u2190-\u2bff"  # money, letters as signs, arrows, mathematics, dingbats
    r"\ue000-\uf8ff\U0001f000-\U0010ffff"  # emoji, private ones, tags
)
_SIGNS: Final = re.compile(
    rf"[{_SIGN}]"
    r"|[~!](?=[\w=/$])|(?<!\.)\.*/"
    r"|(?<![A-Za-z0-9_-])[A-Za-z0-9_-]++\.[A-Za-z][\w.-]*"  # names of hosts, files, members
)
_MAY_BE_SIGNS: Final = re.compile(rf"[{_SIGN}~!/]|\.[A-Za-z]")
"""Found wherever one of them is, in a quarter of the time: most questions have none."""
_NO_SIGNS: Final = bytes(i for i in range(128) if not re.match(rf"[{_SIGN}~!/.]", chr(i)))
"""ASCII of which no sign is made."""


def _uncached(fields: dict[str, Any], rules: Cache) -> str:
    """Why, by its settings, it is not looked for; or ""."""
    temperature = fields.get("temperature", 1)
    if type(temperature) not in (int, float) or temperature > rules.max_temperature:
        return "temperature"
    if not _RARE.isdisjoint(fields):
        if fields.get("logprobs", False) is not False or "prompt_logprobs" in fields:
            return "logprobs"
        modalities = fields.get("modalities", _TEXT_ONLY)
        if modalities != _TEXT_ONLY or fields.get("audio"):
            return "audio" if fields.get("audio") or modalities == ["text", "audio"] else "modality"
        tools = fields.get("tools", [])
        if type(tools) is not list or not all(map(_is_own, tools)):
            return "search"
    for name, value in fields.items():
        if name not in _PLAIN_FIELDS and _searches(name) and value is not False and value != []:
            return "search"
    return ""


_PLAIN_FIELDS: Final = frozenset(
    {
        *("messages", "prompt", "temperature", "top_p", "max_tokens", "max_completion_tokens", "n", "seed", "stop"),
        *("presence_penalty", "frequency_penalty", "response_format", "reasoning_effort", "tools", "tool_choice"),
    }
)
"""Most fields of most requests: none has to do with searching."""


def _searches(name: str) -> bool:
    """Of several vendors' fields: the answer rests on what a search finds now. An empty object turns it on, too."""
    return ("search" in name and "beam_search" not in name) or name in _LOOKS_UP


_LOOKS_UP: Final = frozenset({"plugins", "connectors", "grounding", "enable_enhancement"})
_TEXT_ONLY: Final = ["text"]


def _is_own(tool: Any) -> bool:
    """Whether it is one that the caller runs: such are described in a field of their type's name."""
    return type(tool) is dict and any(kind in tool and tool.get("type", kind) == kind for kind in _OWN_TOOLS)


_OWN_TOOLS: Final = ("function", "custom")


_RARE: Final = frozenset({"logprobs", "prompt_logprobs", "audio", "modalities", "tools"})
_OF_TOOLS: Final = frozenset({"tool_calls", "tool_call_id", "function_call"})
_TEXTS: Final = frozenset({"text", "refusal"})


def _conversation(messages: Any, rules: Cache) -> str | Bypassed | None:
    """The last user turn's text, with null left in its place; None: the last turn is no user's, or has none."""
    if type(messages) is not list:
        return _UNREADABLE
    for message in messages:
        if type(message) is not dict:
            return _UNREADABLE
        if not _OF_TOOLS.isdisjoint(message) and any(map(message.get, _OF_TOOLS)):
            return Bypassed("tools")
        content = message.get("content")
        if type(content) is list:
            for part in content:
                if type(part) is not dict:
                    return _UNREADABLE
                kind = part.get("type")
                if type(kind) is not str or kind not in _TEXTS:
                    return Bypassed("attachment")
    last = messages[-1] if messages else {}
    if last.get("role") in ("tool", "function"):
        return Bypassed("tools")
    turns = 0
    for message in reversed(messages):
        if message.get("role") == "user":
            text = _text_of(message)
            why = _depends(text, rules) if text else ""
            if why:
                return Bypassed(why)
            turns += 1
            if turns == _TURNS:
                break
    question: str | None = None
    if last.get("role") == "user":
        content = last.get("content")
        if type(content) is str:
            question, last["content"] = content, None
        elif type(content) is list and content and type(content[-1].get("text")) is str:
            question, content[-1]["text"] = content[-1]["text"], None
    return question


def _depends(text: str, rules: Cache) -> str:
    """On what, beside itself, its answer does; or ""."""
    why = intent.of(text)
    return "" if why == intent.PERSONAL and rules.personal else why


_TURNS: Final = 2
"""Of the user that are looked at for what depends on time or asker: "and in Paris?" goes on from the one before."""


def _text_of(message: dict[str, Any]) -> str:
    content = message.get("content")
    if type(content) is str:
        return content
    if type(content) is list:
        return "\n".join([part["text"] for part in content if type(part.get("text")) is str])
    return ""


SIGNS: Final = 16
"""Characters a token has at most, about: a question of more than `longest` times this is longer, uncounted."""


def _not_compared(question: str | None, fields: dict[str, Any], rules: Cache) -> str:
    """Why its meaning is not compared, or ""."""
    if question is None:
        return "last_turn"
    if not question or question.isspace():
        return "empty"
    if len(question) > rules.semantic.longest * SIGNS:
        return "long"
    return "n" if fields.get("n", 1) != 1 else ""


def labels_of(fields: Mapping[bytes, bytes]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(tags, ids of sources) of X-Forebay-Cache-Tags and X-Forebay-Cache-Sources, by which its answer can be purged.
    Raises Refusal, also for an X-Forebay-Knowledge that is no name."""
    tags, sources, knowledge = fields.get(TAGS), fields.get(SOURCES), fields.get(KNOWLEDGE)
    if knowledge and not _LABEL.fullmatch(knowledge.decode("latin-1")):
        raise errors.bad_request(
            "X-Forebay-Knowledge must have at most 128 letters, digits and signs of _.:/@+-, not "
            f"'{errors.shown(knowledge.decode('latin-1'))}'.",
            param="x-forebay-knowledge",
            code="wrong_type",
        )
    if tags is None and sources is None:
        return (), ()
    return _listed(TAGS, tags), _listed(SOURCES, sources)


def _listed(header: bytes, value: bytes | None) -> tuple[str, ...]:
    if value is None:
        return ()
    found = tuple(dict.fromkeys(filter(None, (part.strip() for part in value.decode("latin-1").split(",")))))
    wrong = next((part for part in found if not _LABEL.fullmatch(part)), None)
    if wrong is None and len(found) <= MOST_LABELS:
        return found
    name = header.decode()
    raise errors.bad_request(
        f"{name} has more than {MOST_LABELS} names."
        if wrong is None
        else f"{name} is a list of names, each of at most 128 letters, digits and signs of _.:/@+-, separated by "
        f"commas; '{errors.shown(wrong)}' is none.",
        param=name,
        code="wrong_type",
    )

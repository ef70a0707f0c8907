"""What is changed of a request for the sake of its engine's prompt cache: only where configured.

- `cache.prefix.reorder: tools`: the tools in one order, before limits, placement and caches see the request;
- `engines[].prompt_cache`: `cache_salt` and `prompt_cache_key`, digests of who asks. They are the same on every host
  and in every life of it, since engines are shared; they hide names, and are no secret: whoever reaches an engine by
  another way than this gateway can send what he likes.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, Final

import msgspec

from forebay.api import openai
from forebay.api.openai import AnyBody, Body, ChatBody
from forebay.cache.prefix.request import canonical_tools
from forebay.config.cache_prefix import PromptCache, Whose
from forebay.config.engine import Engine

if TYPE_CHECKING:
    from forebay.gateway.callers import Caller

_LEVELS: Final = (Whose.ORGANISATION, Whose.DEPARTMENT, Whose.PROJECT, Whose.USER)
_NULL: Final = b"null"
_KEPT: Final = 64
_LARGE: Final = 65_536
"""Bytes of a list of tools that is remembered."""
_SALTED: Final = frozenset({"vllm", "sglang"})
_KEYED: Final = frozenset({"openai", "vllm", "sglang"})


def told_of(engine: Engine, kind: str) -> PromptCache | None:
    """What an engine that was found to be of this kind is told in the body of requests; None: nothing."""
    told = engine.prompt_cache
    salt = told.cache_salt if kind in _SALTED else None
    key = told.prompt_cache_key if kind in _KEYED else None
    return PromptCache(cache_salt=salt, prompt_cache_key=key) if salt is not None or key is not None else None


class ToolOrder:
    """A chat's tools sorted by name, and their keys. Mutable state: the last `_KEPT` lists of tools, and what they
    became: most clients send the same ones again and again."""

    def __init__(self) -> None:
        self._known: dict[bytes, bytes] = {}

    def apply(self, body: AnyBody, payload: bytes) -> tuple[AnyBody, bytes]:
        if not isinstance(body, ChatBody):
            return body, payload
        tools = bytes(body.tools)
        if len(tools) <= len(_NULL):
            return body, payload
        ordered = self._known.get(tools)
        if ordered is None:
            ordered = canonical_tools(tools)
            if len(tools) <= _LARGE:
                if len(self._known) >= _KEPT:
                    del self._known[next(iter(self._known))]
                self._known[tools] = ordered
        if ordered == tools:
            return body, payload
        body = msgspec.structs.replace(body, tools=msgspec.Raw(ordered))
        return body, openai.with_fields(payload, {"tools": ordered})

    def __repr__(self) -> str:
        return f"<ToolOrder {len(self._known)} known>"


def marked(told: PromptCache, body: AnyBody, payload: bytes, caller: Caller | None) -> bytes:
    """With `cache_salt` and `prompt_cache_key`, as far as this engine is to be told. Only requests that generate."""
    if not isinstance(body, Body):
        return payload
    fields: dict[str, bytes] = {}
    if told.cache_salt is not None:
        own = bytes(body.cache_salt)
        fields["cache_salt"] = _digest(b"cache_salt", told.cache_salt, body, caller, b"" if own == _NULL else own)
    if told.prompt_cache_key is not None and not openai.has_field(payload, "prompt_cache_key"):
        fields["prompt_cache_key"] = _digest(b"prompt_cache_key", told.prompt_cache_key, body, caller)
    return openai.with_fields(payload, fields) if fields else payload


def _digest(what: bytes, level: Whose, body: AnyBody, caller: Caller | None, own: bytes = b"") -> bytes:
    """A JSON string of 32 hex digits. All of one length: SGLang puts its `extra_key` beside the salt, and two pairs
    must not read the same."""
    who: tuple[str, ...] = ("-",)
    if caller is not None:
        key, _, *above = caller.account
        if level is Whose.KEY:
            who = (key,)
        elif level is Whose.END_USER:
            who = (key, body.end_user)
        else:
            who = tuple(above[: _LEVELS.index(level) + 1])
    elif level is Whose.END_USER:
        who = ("-", body.end_user)
    parts = (level.value.encode(), *(part.encode() for part in who), own)
    said = b"".join([b"%d:%b" % (len(part), part) for part in parts])
    return b'"%b"' % blake2b(said, digest_size=16, person=what[:16]).hexdigest().encode()

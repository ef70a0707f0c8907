"""What placement is told of a request's prompt and session: a chain of numbers, and one number.

Chains are made of the body's bytes, so that no tokenizer is on a request's way: a block is `BLOCK_BYTES` of the
messages as the client wrote them. Two requests share as much as their JSON does, which is what chat turns, system
prompts and documents before a question share. What an engine puts before the messages (the model's adapter, the tools,
what its template is told) or keeps caches apart by (`cache_salt`) is in the salt, and so is the tenant, unless prefixes
are shared. Else an engine would not find what it is thought to have, and be believed less for everybody. A secret of
this process is in it, too: nobody can make two texts look alike.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Final

from forebay.api.openai import AnyBody, ChatBody, CompletionBody
from forebay.config.placement import Placement as Section
from forebay.policy.prefix import BLOCK_BYTES, chain, salted

if TYPE_CHECKING:
    from forebay.wire.message import Request

_NULL: Final = 4


class Prefixes:
    """Mutable state: none but the secret and the settings."""

    def __init__(self, section: Section) -> None:
        self._secret = secrets.token_bytes(16)
        self.configure(section)

    def configure(self, section: Section) -> None:
        self._shared = section.share_prefixes
        self._header = section.session_header.lower().encode() if section.session_header else None
        self._cookie = section.session_cookie.encode() if section.session_cookie else None

    def of(self, body: AnyBody, model: str, tenant: str) -> tuple[list[int], float]:
        """The chain of its prompt, and how many blocks the whole prompt would be, its last one in part."""
        tools = b""
        if type(body) is ChatBody:
            raw = body.messages
        elif type(body) is CompletionBody:
            raw = body.prompt
        else:
            return [], 0.0
        size = len(raw)
        if size < BLOCK_BYTES or body.skips_cache:
            return [], 0.0
        text = bytes(raw)
        if type(body) is ChatBody and len(body.tools) > _NULL:
            tools = bytes(body.tools)
        salt = salted(self._secret, b"" if self._shared else tenant.encode(), b"\0", model.encode(), tools, body.before)
        return chain(text, salt), (size + len(tools)) / BLOCK_BYTES

    def session(self, request: Request, tenant: str) -> int:
        """What its header or cookie makes of it; 0 where it is of no session. Those of two tenants have nothing to do
        with each other, be they called the same."""
        value = request.fields.get(self._header) if self._header is not None else None
        if value is None and self._cookie is not None:
            value = _cookie(request.fields.get(b"cookie", b""), self._cookie)
        return salted(self._secret, tenant.encode(), b"\0", value) | 1 if value else 0


def _cookie(header: bytes, wanted: bytes) -> bytes | None:
    for part in header.split(b";"):
        name, _, value = part.strip().partition(b"=")
        if name == wanted:
            return value
    return None

"""The generating routes, and how each calls its content."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

import msgspec

from forebay.api import openai, reading


@dataclass(frozen=True, slots=True)
class Route:
    """One generating endpoint."""

    name: str
    """The metric label."""
    path: bytes
    content: str
    kinds: bytes
    """First bytes of the JSON kinds its content may have."""
    decoder: msgspec.json.Decoder[Any]
    streams: bool = True

    def parse(self, body: bytes) -> openai.AnyBody:
        """Raises Refusal."""
        parsed: openai.AnyBody = reading.decode(body, self.decoder)
        if not parsed.model:
            raise reading.no_model()
        reading.check_content(self.content, getattr(parsed, self.content), kinds=self.kinds)
        return parsed

    def __repr__(self) -> str:
        return f"<Route {self.name}>"


CHAT: Final = Route("chat", b"/v1/chat/completions", "messages", b"[", msgspec.json.Decoder(openai.ChatBody))
COMPLETIONS: Final = Route(
    "completions", b"/v1/completions", "prompt", b'["', msgspec.json.Decoder(openai.CompletionBody)
)
EMBEDDINGS: Final = Route(
    "embeddings", b"/v1/embeddings", "input", b'["', msgspec.json.Decoder(openai.EmbeddingBody), streams=False
)

ROUTES: Final = MappingProxyType({r.path: r for r in (CHAT, COMPLETIONS, EMBEDDINGS)})

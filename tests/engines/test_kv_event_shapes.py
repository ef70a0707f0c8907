"""Batches of KV events in each shape that engines have published, read to the same blocks."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import msgspec
import pytest

from forebay.engines.kv_events import BadBatch, Reader

pack = msgspec.msgpack.encode


class Heard:
    def __init__(self) -> None:
        self.calls: list[Any] = []

    def stored(
        self, hashes: Sequence[int], parent: int | None, block_size: int, now: float, owner: Hashable = None
    ) -> None:
        self.calls.append(("stored", list(hashes), parent, block_size, owner))

    def removed(self, hashes: Sequence[int], now: float) -> None:
        self.calls.append(("removed", list(hashes)))

    def cleared(self) -> None:
        self.calls.append("cleared")


BIG = (1 << 64) - 5
TOKENS = list(range(32))
ROWS_2025 = [
    1.5,
    [["BlockStored", [7, BIG], None, TOKENS, 16, None], ["BlockRemoved", [7]], ["AllBlocksCleared"]],
]  # vLLM 0.9, SGLang
ROWS = [
    1.5,
    [
        ["BlockStored", [7, BIG], None, TOKENS, 16, None, "GPU", None, [None, None], 0, "full_attention", None],
        ["BlockRemoved", [7], "GPU", 0],
        ["AllBlocksCleared"],
    ],
    0,
]
MAPS = [
    {
        "type": "BlockStored",
        "block_hashes": [7, BIG],
        "parent_block_hash": None,
        "token_ids": TOKENS,
        "block_size": 16,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
        "extra_keys": [None, ["salt"]],
        "group_idx": 0,
        "kv_cache_spec_kind": "full_attention",
    },
    {"type": "BlockRemoved", "block_hashes": [7], "medium": "GPU", "group_idx": 0},
    {"type": "AllBlocksCleared"},
]
DIGESTS = [
    {**MAPS[0], "block_hashes": [b"x" * 24 + (7).to_bytes(8, "big"), b"y" * 24 + BIG.to_bytes(8, "big")]},
    {**MAPS[1], "block_hashes": [b"x" * 24 + (7).to_bytes(8, "big")]},
    MAPS[2],
]


@pytest.mark.parametrize(
    "batch",
    [ROWS_2025, ROWS, [1.5, MAPS, 0], {"ts": 1.5, "events": MAPS, "data_parallel_rank": 0}, [1.5, DIGESTS]],
    ids=["rows of 2025", "rows", "maps in a row", "maps in a map", "digests"],
)
def test_every_shape_is_read_to_the_same(batch: Any) -> None:
    heard = Heard()
    Reader(heard).batch(pack(batch), 0.0)
    assert heard.calls == [("stored", [7, BIG], None, 16, None), ("removed", [7]), "cleared"]


def test_the_request_that_caused_it_is_named() -> None:
    heard = Heard()
    stored = {**MAPS[0], "parent_block_hash": b"z" * 31 + b"\x03", "session_id": "req-1"}
    Reader(heard).batch(pack([0.0, [stored]]), 0.0)
    assert heard.calls[0][2:] == (int.from_bytes(b"z" * 7 + b"\x03", "big"), 16, "req-1")


@pytest.mark.parametrize(
    "more",
    [
        {"medium": "CPU"},
        {"medium": "STORAGE"},
        {"locality": "REMOTE"},
        {"group_idx": 1},
        {"group_idx": 1, "kv_cache_spec_kind": "sliding_window"},
        {"block_size": 0},
    ],
)
def test_what_is_not_in_the_engines_own_cache_is_left_out(more: dict[str, Any]) -> None:
    heard = Heard()
    reader = Reader(heard)
    reader.batch(pack([0.0, [MAPS[0]]]), 0.0)
    stored = {**MAPS[0], **more}
    removed = {k: v for k, v in {**MAPS[1], **more}.items() if k not in ("block_size", "kv_cache_spec_kind")}
    reader.batch(pack([0.0, [stored, *([] if "block_size" in more else [removed])]]), 0.0)
    assert len(heard.calls) == 1


def test_the_first_group_with_full_attention_is_followed() -> None:
    heard = Heard()
    window = {**MAPS[0], "group_idx": 0, "kv_cache_spec_kind": "sliding_window"}
    full = {**MAPS[0], "group_idx": 1}
    Reader(heard).batch(pack([0.0, [window, full, {**MAPS[1], "group_idx": 0}, {**MAPS[1], "group_idx": 1}]]), 0.0)
    assert [c[0] for c in heard.calls] == ["stored", "removed"]


def test_an_event_of_another_kind_is_passed_over_and_named() -> None:
    heard = Heard()
    reader = Reader(heard)
    reader.batch(pack([0.0, [{"type": "BlockTransferred", "x": 1}, ["BlockMoved", 1], MAPS[2]]]), 0.0)
    assert (heard.calls, reader.unknown) == (["cleared"], {"BlockTransferred", "BlockMoved"})


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xc1",
        pack([0.0]),
        pack({"events": []}),
        pack([0.0, [["BlockStored", 3, None, [], 16]]]),
        pack([0.0, [["BlockRemoved", ["x"]]]]),
        pack([0.0, [{"block_hashes": [1]}]]),
        pack([0.0, [7]]),
        pack([0.0, [[]]]),
        pack([0.0, [{**MAPS[0], "block_size": "16"}]]),
        pack([0.0, MAPS])[:-3],
        b"\x91" * 100_000,
    ],
)
def test_what_cannot_be_read_is_said(payload: bytes) -> None:
    with pytest.raises(BadBatch, match="KV events cannot be read"):
        Reader(Heard()).batch(payload, 0.0)


@pytest.mark.parametrize("odd", [[], {}, [1], {"a": 1}, msgspec.msgpack.Ext(5, b"x"), 1.5])
def test_what_has_no_hash_where_a_name_should_be_is_another_medium_or_kind(odd: Any) -> None:
    heard = Heard()
    stored = ["BlockStored", [7], None, TOKENS, 16, None, odd]
    kinds = ["BlockStored", [8], None, TOKENS, 16, None, "GPU", None, None, 0, odd]
    Reader(heard).batch(pack([1.5, [stored, kinds, ["BlockRemoved", [7], odd], ["AllBlocksCleared"]]]), 0.0)
    assert heard.calls == ["cleared"]

"""Reading the KV events that an engine publishes, in every shape they were published in.

A message's payload is a msgpack batch: `[ts, events, data_parallel_rank]`, or the same as a map. Each event is

- a row, tag first: vLLM before vllm-project/vllm#42892 of June 2026 (vllm/distributed/kv_events.py, `array_like=True`)
  and SGLang (sglang/srt/disaggregation/kv_events.py): `["BlockStored", block_hashes, parent_block_hash, token_ids,
  block_size, lora_id, medium, lora_name, extra_keys, group_idx, kv_cache_spec_kind, …]`; the last may be missing;
- a map with `type`: vLLM since, 0.32 among them. Its batch is a row still; where it is a map, it is read as well.

A hash is an integer of 64 bits or, with VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES=0, a digest, of which vLLM's own integers
are the last eight bytes. Token ids and extra keys are not decoded.

Of an engine with groups of layers only the first group with full attention is followed: its blocks are all that a
prefix needs to be found, while a sliding window's come and go. Blocks on other media (offloaded to CPU or disk) and on
other hosts are left out: what was offloaded is loaded sooner than computed, but no engine says how much sooner.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, Final, Protocol, TypeVar

import msgspec

__all__ = ["BadBatch", "Blocks", "Reader"]

Hash = int | bytes
T = TypeVar("T")
_FULL: Final = (None, "full_attention", "mla_attention")  # no sets: what an engine says may have no hash
_OWN: Final = (None, "GPU", "gpu")
_MAPS: Final = (*range(0x80, 0x90), 0xDE, 0xDF)
"""First bytes of a msgpack map."""


class BadBatch(ValueError):
    """A payload that is no batch of KV events."""


class Blocks(Protocol):
    """Who is told: `policy.kv_blocks.KvBlocks`."""

    def stored(
        self, hashes: Sequence[int], parent: int | None, block_size: int, now: float, owner: Hashable = None
    ) -> None: ...

    def removed(self, hashes: Sequence[int], now: float) -> None: ...

    def cleared(self) -> None: ...


class _BatchRow(msgspec.Struct, array_like=True, gc=False):
    ts: float
    events: list[msgspec.Raw]


class _BatchMap(msgspec.Struct, gc=False):
    ts: float
    events: list[msgspec.Raw]


class _StoredRow(msgspec.Struct, array_like=True, tag="BlockStored", gc=False):
    block_hashes: list[Hash]
    parent_block_hash: Hash | None
    token_ids: msgspec.Raw
    block_size: int
    lora_id: Any = None
    medium: Any = None
    lora_name: Any = None
    extra_keys: msgspec.Raw = msgspec.Raw()
    group_idx: Any = None
    kv_cache_spec_kind: Any = None

    session_id = locality = None


class _RemovedRow(msgspec.Struct, array_like=True, tag="BlockRemoved", gc=False):
    block_hashes: list[Hash]
    medium: Any = None
    group_idx: Any = None

    locality = None


class _ClearedRow(msgspec.Struct, array_like=True, tag="AllBlocksCleared", gc=False):
    pass


class _StoredMap(msgspec.Struct, tag="BlockStored", gc=False):
    block_hashes: list[Hash]
    parent_block_hash: Hash | None
    block_size: int
    medium: Any = None
    group_idx: Any = None
    kv_cache_spec_kind: Any = None
    session_id: Any = None
    locality: Any = None


class _RemovedMap(msgspec.Struct, tag="BlockRemoved", gc=False):
    block_hashes: list[Hash]
    medium: Any = None
    group_idx: Any = None
    locality: Any = None


class _ClearedMap(msgspec.Struct, tag="AllBlocksCleared", gc=False):
    pass


_Row = _StoredRow | _RemovedRow | _ClearedRow
_Map = _StoredMap | _RemovedMap | _ClearedMap
_BATCH_ROW: Final = msgspec.msgpack.Decoder(_BatchRow)
_BATCH_MAP: Final = msgspec.msgpack.Decoder(_BatchMap)
_ROW: Final[msgspec.msgpack.Decoder[_Row]] = msgspec.msgpack.Decoder(_Row)
_MAP: Final[msgspec.msgpack.Decoder[_Map]] = msgspec.msgpack.Decoder(_Map)
_KNOWN: Final = frozenset({"BlockStored", "BlockRemoved", "AllBlocksCleared"})


class Reader:
    """One engine's events, told to `blocks`. Mutable state: which group of layers is followed, and the kinds of event
    that were passed over because nobody knows them."""

    def __init__(self, blocks: Blocks) -> None:
        self._blocks = blocks
        self._group: int | None = None
        self.unknown: set[str] = set()
        """At most 8."""

    def restart(self) -> None:
        """A new process may number its groups otherwise."""
        self._group = None

    def batch(self, payload: bytes, now: float) -> None:
        """Raises BadBatch; the events before the one that cannot be read have been told by then."""
        try:
            decoder: Any = _BATCH_MAP if payload[:1] and payload[0] in _MAPS else _BATCH_ROW
            for raw in decoder.decode(payload).events:
                self._event(bytes(raw), now)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as e:
            raise BadBatch(f"KV events cannot be read: {e}") from None

    def _event(self, raw: bytes, now: float) -> None:
        try:
            event: _Row | _Map = _MAP.decode(raw) if raw[0] in _MAPS else _ROW.decode(raw)
        except msgspec.ValidationError:
            self._pass_over(raw)
            return
        if isinstance(event, _ClearedRow | _ClearedMap):
            self._blocks.cleared()
            return
        if event.medium not in _OWN or event.locality not in (None, "LOCAL"):
            return
        if isinstance(event, _StoredRow | _StoredMap):
            if event.kv_cache_spec_kind not in _FULL:
                return
            if self._group is None:
                self._group = event.group_idx
            if event.group_idx != self._group or event.block_size < 1:
                return
            parent = event.parent_block_hash
            self._blocks.stored(
                _numbers(event.block_hashes),
                parent if parent is None or isinstance(parent, int) else _number(parent),
                event.block_size,
                now,
                event.session_id if isinstance(event.session_id, str) else None,
            )
        elif event.group_idx == self._group:
            self._blocks.removed(_numbers(event.block_hashes), now)

    def _pass_over(self, raw: bytes) -> None:
        """An event of another kind changes nothing; one of ours that is wrong is not to be guessed at. Raises
        msgspec.ValidationError."""
        found = msgspec.msgpack.decode(raw)
        tag = found.get("type") if isinstance(found, dict) else found[0] if isinstance(found, list) and found else None
        if not isinstance(tag, str) or tag in _KNOWN:
            raise msgspec.ValidationError(f"not an event: {tag!r:.40}")
        if len(self.unknown) < 8:
            self.unknown.add(tag[:40])


def _number(digest: bytes) -> int:
    return int.from_bytes(digest[-8:], "big")


def _numbers(hashes: list[Hash]) -> list[int]:
    if hashes and isinstance(hashes[0], bytes):
        return [_number(h) if isinstance(h, bytes) else h for h in hashes]
    return hashes  # type: ignore[return-value]  # an engine does not mix them

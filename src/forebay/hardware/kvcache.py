"""How an engine lays a KV cache out in blocks, for models whose layers are not all alike.

vLLM (v1/core/kv_cache_utils.py, `_get_kv_cache_groups_uniform_page_size`): layers of one kind are dealt out to groups
of the same number of layers; each group has block tables of its own, and all draw blocks of the same size from one
pool. A block holds `block_size` tokens of every layer of one group. What a sequence holds of a group: all its tokens in
layers with full attention, those of the window in layers with one, one block where the layer has a state.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from .shapes import ModelShape

_NEAR = 1.5
"""Where the largest kind has fewer than this many times the layers of the smallest, groups are as large as it."""


@dataclass(frozen=True, slots=True)
class Layout:
    """KV blocks of one rank."""

    block_size: int
    """Tokens in a block; more than was asked for where a state must fit into one."""
    block_bytes: int
    group_layers: int
    full: int
    """Groups of layers with full attention."""
    windowed: int
    linear: int
    window: int

    @property
    def groups(self) -> int:
        return self.full + self.windowed + self.linear

    def blocks(self, tokens: int, in_flight: int = 1) -> int:
        """Blocks that a sequence of `tokens` holds; `in_flight`: those of its tokens that one step computes."""
        if tokens <= 0:
            return 0
        whole = -(-tokens // self.block_size)
        held = self.full * whole + self.linear
        if self.windowed:
            # the window may begin inside of a block
            most = -(-min(self.window - 1 + in_flight, tokens) // self.block_size) + 1
            held += self.windowed * min(whole, most)
        return held

    def longest(self, blocks: int, in_flight: int, limit: int) -> int:
        """The most tokens, up to `limit`, of a sequence that `blocks` hold; 0 where they hold none."""
        low, high = 0, limit
        while low < high:
            middle = (low + high + 1) // 2
            if self.blocks(middle, in_flight) <= blocks:
                low = middle
            else:
                high = middle - 1
        return low


def layout(model: ModelShape, *, kv_dtype: str, tp: int = 1, block_size: int = 16, share: float = 1.0) -> Layout:
    """The blocks of a rank of `tp` that has `share` of the layers (its pipeline stage)."""
    each = model.kv_bytes_per_layer(kv_dtype, tp)
    kinds = [n for n in (model.full_layers, model.window_layers, model.linear_layers) if n]
    smallest, largest = min(kinds), max(kinds)
    group = largest if largest < smallest * _NEAR else smallest
    if model.linear_layers and model.state_bytes:
        state = model.state_bytes / tp
        if model.attention_layers:
            needed = ceil(state / each / 16) * 16
            block_size = max(block_size, needed)
            page = each * block_size
        else:
            page = state
    else:
        page = each * block_size
    layers = ceil(group * share - 1e-9)
    return Layout(
        block_size,
        int(page * layers),
        group,
        -(-model.full_layers // group),
        -(-model.window_layers // group),
        -(-model.linear_layers // group),
        model.window,
    )

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
    """Tokens in a block of the layers that take most a token; more than was asked for where a state must fit into one.
    """
    full_tokens: int
    """Tokens in a block of layers with full attention."""
    window_tokens: int
    """The same of layers with a window."""
    block_bytes: int
    group_layers: int
    full: int
    """Groups of layers with full attention."""
    windowed: int
    linear: int
    window: int
    chunked: bool
    state_blocks: int
    """That a sequence holds of a group with states."""

    @property
    def groups(self) -> int:
        return self.full + self.windowed + self.linear

    def blocks(self, tokens: int) -> int:
        """Blocks that a sequence of `tokens` holds while it decodes."""
        if tokens <= 0:
            return 0
        held = self.full * -(-tokens // self.full_tokens) + self.linear * self.state_blocks
        return held + self.windowed * min(-(-tokens // self.window_tokens), self._window_blocks(tokens, 1))

    def reserved(self, tokens: int, in_flight: int) -> int:
        """Blocks that an engine wants to be free for a sequence of up to `tokens`, of which a step computes up to
        `in_flight` (vLLM, v1/kv_cache_interface.py, `max_admission_blocks_per_request`)."""
        held = self.full * -(-tokens // self.full_tokens) + self.linear * self.state_blocks
        return held + self.windowed * self._window_blocks(tokens, in_flight)

    def _window_blocks(self, tokens: int, in_flight: int) -> int:
        if self.chunked:
            return -(-min(self.window + in_flight, tokens) // self.window_tokens)
        # the window may begin inside of a block
        return -(-min(self.window - 1 + in_flight, tokens) // self.window_tokens) + 1

    def tokens(self, blocks: int, context: int, in_flight: int) -> int:
        """Tokens that `blocks` hold in sequences of `context`, as vLLM reports its `GPU KV cache size`."""
        return int(blocks / self.reserved(context, in_flight) * context)

    def longest(self, blocks: int, in_flight: int, limit: int) -> int:
        """The most tokens, up to `limit`, of a sequence that `blocks` are enough for; 0 where there is none."""
        low, high = 0, limit
        while low < high:
            middle = (low + high + 1) // 2
            if self.reserved(middle, in_flight) <= blocks:
                low = middle
            else:
                high = middle - 1
        return low


def layout(
    model: ModelShape,
    *,
    kv_dtype: str,
    tp: int = 1,
    block_size: int = 16,
    share: float = 1.0,
    prefix_caching: bool = True,
) -> Layout:
    """The blocks of a rank of `tp` that has `share` of the layers (its pipeline stage). With `prefix_caching` a state
    is held twice: as it is, and as it was at the end of the last block (vLLM 0.32, `mamba_cache_mode` align)."""
    kinds = [n for n in (model.full_layers, model.window_layers, model.linear_layers) if n]
    smallest, largest = min(kinds), max(kinds)
    group = largest if largest < smallest * _NEAR else smallest
    full = model.kv_bytes_per_layer(kv_dtype, tp) if model.full_layers else 0.0
    windowed = model.kv_bytes_per_layer(kv_dtype, tp, windowed=True) if model.window_layers else 0.0
    token = max(full, windowed)
    if model.linear_layers and token:
        needed = model.state_bytes / tp / token
        block_size = max(block_size, ceil(needed / block_size) * block_size)
    page = token * block_size if token else model.state_bytes / tp
    return Layout(
        block_size,
        int(page // full) if full else block_size,
        int(page // windowed) if windowed else block_size,
        int(page * ceil(group * share - 1e-9)),
        group,
        -(-model.full_layers // group),
        -(-model.window_layers // group),
        -(-model.linear_layers // group),
        model.window,
        model.chunked,
        2 if prefix_caching else 1,
    )

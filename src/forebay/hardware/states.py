"""Mixers without attention: weights of one layer, and the state that a sequence has in it."""

from __future__ import annotations

from typing import NamedTuple


class Mixer(NamedTuple):
    weights: int
    state: int
    """Bytes of one sequence, all ranks together."""


def delta_net(
    hidden: int, key_heads: int, value_heads: int, key_dim: int, value_dim: int, *, kernel: int = 4, state: int = 4
) -> Mixer:
    """Gated DeltaNet (S. Yang et al., arXiv 2412.06464) as Qwen3-Next has it: a matrix a value head in `state` bytes an
    element, and the last `kernel` - 1 inputs of the convolution in 16 bits (vLLM,
    model_executor/layers/mamba/mamba_utils.py, `gated_delta_net_state_shape`)."""
    keys, values = key_heads * key_dim, value_heads * value_dim
    convolved = 2 * keys + values
    weights = hidden * (2 * keys + 2 * values + 2 * value_heads) + convolved * kernel + values * hidden
    weights += 2 * value_heads + value_dim
    return Mixer(weights, convolved * (kernel - 1) * 2 + value_heads * value_dim * key_dim * state)


def mamba2(hidden: int, heads: int, head_dim: int, size: int, groups: int, *, kernel: int = 4, state: int = 4) -> Mixer:
    """Mamba-2 (T. Dao, A. Gu, arXiv 2405.21060): `size` numbers a channel, in `state` bytes each (as above,
    `mamba2_state_shape`)."""
    inner = heads * head_dim
    convolved = inner + 2 * groups * size
    weights = hidden * (inner + convolved + heads) + convolved * (kernel + 1) + inner * hidden + 3 * heads + inner
    return Mixer(weights, convolved * (kernel - 1) * 2 + inner * size * state)


def mamba1(hidden: int, size: int, rank: int, *, expand: int = 2, kernel: int = 4, state: int = 2) -> Mixer:
    """Mamba (A. Gu, T. Dao, arXiv 2312.00752) with the norms of Jamba (as above, `mamba1_state_shape`)."""
    inner = expand * hidden
    weights = hidden * 2 * inner + inner * (kernel + 1) + inner * (rank + 2 * size) + rank * inner + inner
    weights += inner * size + inner + inner * hidden + rank + 2 * size
    return Mixer(weights, inner * (kernel - 1) * 2 + inner * size * state)

"""Step times from published numbers alone: how many bytes a step must read, how many products it must compute.

S. Williams, A. Waterman, D. Patterson, "Roofline" (CACM 2009), for each part of a step: the longer of products / FLOP/s
and bytes / bandwidth. Parts are the layers' matrices, the touched experts, the LM head, attention of decodes and
attention of chunks (4 · heads · head size products a pair of query and key; in layers with a window up to its tokens),
beside collectives.

Neither peak is reached: 0.75 of the FLOP/s and 0.8 of the bandwidth are counted, near what measured tables show for
Llama-3.1-8B (2,048 tokens of prefill reach 0.72 of an H100's FLOP/s and 0.79 of an RTX PRO 6000's, the decode of one
sequence 0.72 and 0.89 of their bandwidth). Expect errors of 20 % and more; a measured or calibrated profile is better.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from .comm import Ranks, logits_seconds, step_seconds
from .shapes import DTYPE_BYTES, Gpu, ModelShape, dtype_name
from .steptime import Chunk

FLOPS_EFFICIENCY = 0.75
BANDWIDTH_EFFICIENCY = 0.8
LAYER_SECONDS = 6e-6
"""A layer beside its matrices and attention: norms, rotary embedding, activation, gaps between kernels."""
_KEPT = 4096


class _Attention(NamedTuple):
    """Of the layers of one kind, all ranks together."""

    pair: float
    """FLOPs a pair of query and key."""
    token: float
    """Bytes of KV cache a token."""

    def seconds(self, pairs: float, tokens: float, rate: float, stream: float) -> float:
        return max(self.pair * pairs / rate, self.token * tokens / stream)


class RooflineSteps:
    """A `StepTime`. `dtype`: of the weights (quantised ones leave LM head and embedding at 2 bytes). `host`: seconds
    added to each step. Raises ValueError."""

    def __init__(
        self,
        model: ModelShape,
        gpu: Gpu,
        *,
        tp: int = 1,
        dtype: str | None = None,
        kv_dtype: str = "auto",
        flops_efficiency: float = FLOPS_EFFICIENCY,
        bandwidth_efficiency: float = BANDWIDTH_EFFICIENCY,
        host: float = 0.0,
    ) -> None:
        if tp < 1 or not 0 < flops_efficiency <= 1 or not 0 < bandwidth_efficiency <= 1:
            given = f"{tp}, {flops_efficiency}, {bandwidth_efficiency}"
            raise ValueError(f"tp must be 1 or more, efficiencies in (0, 1]: {given}")
        name = dtype_name(dtype or model.dtype)
        kv = "bf16" if kv_dtype == "auto" else dtype_name(kv_dtype)
        self.title = f"{gpu.name}/{model.name.rpartition('/')[2]}/{name}/tp{tp}"
        self._model = model
        self._gpu = gpu
        self._tp = tp
        self._rate = gpu.flops(name) * flops_efficiency * tp
        self._rate16 = gpu.flops("bf16") * flops_efficiency * tp
        self._stream = gpu.bandwidth * bandwidth_efficiency * tp
        each = DTYPE_BYTES[name]
        dense = model.linear_parameters(0)
        # mxfp4 is of experts alone; the rest of such a model is in 16 bits
        self._dense = (dense, dense * (2.0 if name == "mxfp4" and model.moe else each))
        self._expert = model.mlp_parameters(model.moe_intermediate) * model.moe_layers if model.moe else 0
        self._expert_bytes = self._expert * each
        self._head = (model.vocab * model.hidden, model.vocab * model.hidden * 2.0)
        self._window = model.window
        latent = model.head_dim + model.rope_head_dim + model.v_head_dim
        self._full = _Attention(
            2.0 * model.heads * (latent if model.kv_lora_rank else 2 * model.head_dim) * model.full_layers,
            model.kv_bytes_per_layer(kv, tp) * tp * model.full_layers,
        )
        self._near = _Attention(
            4.0 * model.heads * model.heads_of(windowed=True)[1] * model.window_layers,
            model.kv_bytes_per_layer(kv, tp, windowed=True) * tp * model.window_layers,
        )
        self._each = self._full.seconds(1, 1, self._rate16, self._stream)
        self._near_each = self._near.seconds(1, 1, self._rate16, self._stream)
        self._state = 2.0 * model.linear_layers * model.state_bytes / self._stream  # read and written
        self._decodes: dict[int, float] = {}
        self._fixed = host + model.layers * LAYER_SECONDS

    def __repr__(self) -> str:
        return f"<RooflineSteps {self.title}>"

    @property
    def warnings(self) -> Sequence[str]:
        return ()

    def _tokens(self, tokens: int, sequences: int) -> float:
        """All that acts on single tokens, and the LM head on one a sequence."""
        products, size = self._dense
        seconds = max(2 * products * tokens / self._rate, size / self._stream)
        if self._expert:
            model = self._model
            touched = model.experts * (1 - (1 - model.experts_per_token / model.experts) ** tokens)
            work = 2 * self._expert * model.experts_per_token * tokens
            seconds += max(work / self._rate, touched * self._expert_bytes / self._stream)
        products, size = self._head
        seconds += max(2 * products * sequences / self._rate16, size / self._stream)
        if self._tp > 1:
            seconds += step_seconds(self._model, self._gpu, Ranks(self._tp), tokens)
            seconds += logits_seconds(self._model, self._gpu, self._tp, sequences)
        return seconds + self._fixed

    def decode(self, n: int, context: int, longest: int) -> float:
        fixed = self._decodes.get(n)
        if fixed is None:
            if len(self._decodes) >= _KEPT:
                self._decodes.clear()
            fixed = self._decodes[n] = self._tokens(n, n)
        return fixed + self._attend(context, n)

    def _attend(self, context: float, n: int) -> float:
        """Attention of `n` decodes, and the states of layers without it."""
        seconds = context * self._each + n * self._state
        return seconds + min(context, n * self._window) * self._near_each if self._near_each else seconds

    def mixed(self, chunks: Sequence[Chunk], n: int, context: int, longest: int) -> float:
        tokens = n
        pairs = read = near = near_read = 0.0
        for size, before, _ in chunks:
            tokens += size
            pairs += size * (before + size / 2)
            read += before + size
            near += size * min(before + size / 2, self._window)
            near_read += min(before, self._window) + size
        attention = self._full.seconds(pairs, read, self._rate16, self._stream) + self._attend(context, n)
        if self._near.pair:
            attention += self._near.seconds(near, near_read, self._rate16, self._stream)
        return self._tokens(tokens, n + len(chunks)) + attention

"""What a model and a GPU are, as numbers: shapes, memory, bandwidth, FLOPs; and the bytes that follow from them."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

DTYPE_BYTES: Final = MappingProxyType(
    {
        "fp32": 4.0,
        "bf16": 2.0,
        "fp16": 2.0,
        "fp8": 1.0,
        "int8": 1.0,
        "nvfp4": 4.5 / 8,  # blocks of 16 share an fp8 scale
        "mxfp4": 4.25 / 8,  # blocks of 32 share an 8-bit scale (OCP Microscaling 1.0)
        "int4": (4 + 20 / 128) / 8,  # groups of 128 share an fp16 scale and a 4-bit zero (AWQ, GPTQ)
    }
)
"""Bytes an element of each dtype takes, scales included."""

VOCAB_PADDING = 64
"""vLLM pads the vocabulary to a multiple of this (model_executor/layers/vocab_parallel_embedding.py)."""

_DTYPE_NAMES: Final = MappingProxyType(
    {
        "bfloat16": "bf16",
        "float16": "fp16",
        "half": "fp16",
        "float32": "fp32",
        "float": "fp32",
        "fp8_e4m3": "fp8",
        "fp8_e5m2": "fp8",
        "w8a8": "int8",
        "awq": "int4",
        "gptq": "int4",
    }
)


def dtype_name(dtype: str) -> str:
    """The name used here for a dtype as vLLM, PyTorch or a quantisation method calls it. Raises ValueError."""
    plain = dtype.lower().removeprefix("torch.")
    plain = _DTYPE_NAMES.get(plain, plain)
    if plain not in DTYPE_BYTES:
        raise ValueError(f"dtype {dtype!r} is unknown; known are {', '.join(DTYPE_BYTES)}")
    return plain


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A decoder-only transformer, as its `config.json` describes it. Counts are of the whole model, not of one rank."""

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    """Width of the dense MLP (gate and up each); of the `dense_layers` alone where the model has experts."""
    vocab: int
    tied: bool = False
    """The embedding is the LM head too."""
    qk_norm: bool = False
    qkv_bias: bool = False
    bias: bool = False
    """Every linear layer has a bias (gpt-oss)."""
    experts: int = 0
    experts_per_token: int = 0
    moe_intermediate: int = 0
    shared_experts: int = 0
    dense_layers: int = 0
    """Leading layers with a dense MLP in a model with experts."""
    kv_lora_rank: int = 0
    """Of multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, 2.1): one latent is cached for all heads."""
    q_lora_rank: int = 0
    rope_head_dim: int = 0
    v_head_dim: int = 0
    max_context: int = 131_072
    dtype: str = "bf16"
    """What the published weights are stored in."""
    window: int = 0
    """Tokens that a layer with sliding-window or chunked local attention looks back; only those stay in its cache."""
    window_layers: int = 0
    """Of `layers`, those with the window."""
    chunked: bool = False
    """The window does not slide: it is a chunk of the sequence (Llama 4)."""
    window_kv_heads: int = 0
    """Of a layer with the window; 0: as the others."""
    window_head_dim: int = 0
    """The same."""
    linear_layers: int = 0
    """Of `layers`, those without attention (Mamba, gated DeltaNet, short convolutions): a state of one size a sequence
    in place of a KV cache that grows."""
    linear_each: int = 0
    """Weights of the mixer of one linear layer."""
    state_bytes: int = 0
    """State of one sequence in one linear layer, all ranks together."""
    attention_gate: bool = False
    """A gate as wide as the queries on the output of attention (Qwen3-Next)."""
    index_heads: int = 0
    """Of the indexer of sparse attention (DeepSeek-V3.2), which keeps a key of its own for each token."""
    index_head_dim: int = 0
    matrices: int = 3
    """Of an MLP: gate, up and down, or without the gate 2."""
    norms: int = 2
    """RMS norms of the hidden size in a layer (Gemma 2 and 3: 4)."""
    extra: int = 0
    """Weights beside layers, embedding and LM head that no quantisation touches: a vision tower."""

    @property
    def moe(self) -> bool:
        return self.experts > 0

    @property
    def attention_layers(self) -> int:
        """Layers that have a KV cache."""
        return self.layers - self.linear_layers

    @property
    def full_layers(self) -> int:
        """Layers whose KV cache grows with every token."""
        return self.layers - self.linear_layers - self.window_layers

    @property
    def moe_layers(self) -> int:
        return self.layers - self.dense_layers if self.experts else 0

    def heads_of(self, windowed: bool = False) -> tuple[int, int]:
        """KV heads and head size of a layer with attention."""
        if not windowed:
            return self.kv_heads, self.head_dim
        return self.window_kv_heads or self.kv_heads, self.window_head_dim or self.head_dim

    def attention_parameters(self, tp: int = 1, *, windowed: bool = False) -> float:
        """Weights of one layer's attention projections on one of `tp` ranks. KV heads are copied where they are fewer
        than ranks; the projections to the latents of MLA and its indexer are on every rank."""
        heads = self.heads / tp
        if self.kv_lora_rank:
            query = heads * (self.head_dim + self.rope_head_dim)
            q = self.hidden * self.q_lora_rank + self.q_lora_rank * query if self.q_lora_rank else self.hidden * query
            kv: float = self.hidden * (self.kv_lora_rank + self.rope_head_dim)
            kv += self.kv_lora_rank * heads * (self.head_dim + self.v_head_dim)
            index = (self.q_lora_rank * self.index_heads + self.hidden) * self.index_head_dim
            index += self.hidden * self.index_heads + 2 * self.index_head_dim
            return q + kv + heads * self.v_head_dim * self.hidden + index
        kv_heads, size = self.heads_of(windowed)
        queries = heads * size
        width = queries * (2 if self.attention_gate else 1) + 2 * max(1, -(-kv_heads // tp)) * size
        biases: float = width if self.qkv_bias or self.bias else 0
        biases += self.hidden if self.bias else 0
        return self.hidden * (width + queries) + biases

    def all_attention_parameters(self, tp: int = 1) -> float:
        """Of all layers."""
        return self.full_layers * self.attention_parameters(tp) + self.window_layers * self.attention_parameters(
            tp, windowed=True
        )

    def mlp_parameters(self, width: int) -> int:
        """Weights of one MLP of this width."""
        return self.matrices * self.hidden * width + (2 * width + self.hidden if self.bias else 0)

    def router_parameters(self) -> int:
        return self.experts * (self.hidden + 1 if self.bias else self.hidden)

    def expert_parameters(self) -> int:
        """Weights of all routed experts, the part that gpt-oss quantises."""
        return self.moe_layers * self.experts * self.mlp_parameters(self.moe_intermediate)

    def norm_parameters(self) -> int:
        attention = (2 * self.head_dim if self.qk_norm else 0) + self.kv_lora_rank + self.q_lora_rank
        return self.layers * self.norms * self.hidden + self.attention_layers * attention + self.hidden

    def linear_parameters(self, experts: int | None = None) -> int:
        """Weights of the layers' matrices, with `experts` routed experts a layer (default: all of them)."""
        chosen = self.experts if experts is None else experts
        dense = (self.layers - self.moe_layers) * self.mlp_parameters(self.intermediate)
        routed = chosen * self.mlp_parameters(self.moe_intermediate)
        shared = self.shared_experts * self.mlp_parameters(self.moe_intermediate)
        moe = self.moe_layers * (routed + shared + self.router_parameters())
        mixers = int(self.all_attention_parameters()) + self.linear_layers * self.linear_each
        return mixers + dense + moe

    def embedding_parameters(self) -> int:
        """Embedding and LM head, counted once where tied."""
        return self.vocab * self.hidden * (1 if self.tied else 2)

    def parameters(self) -> int:
        return self.linear_parameters() + self.embedding_parameters() + self.norm_parameters() + self.extra

    def active_parameters(self) -> int:
        """Weights that one token passes through, embedding and LM head counted as in `parameters`."""
        beside = self.embedding_parameters() + self.norm_parameters() + self.extra
        return self.linear_parameters(self.experts_per_token) + beside

    def weight_bytes(self, dtype: str | None = None) -> int:
        """Bytes of the weights. Quantisation leaves embedding, LM head and norms at 2 bytes, as AWQ, GPTQ and vLLM's
        FP8 checkpoints do; mxfp4 leaves all but the routed experts there, as gpt-oss does."""
        name = dtype_name(dtype or self.dtype)
        each = DTYPE_BYTES[name]
        if each >= 2:
            return int(self.parameters() * each)
        quantised = self.expert_parameters() if name == "mxfp4" and self.experts else self.linear_parameters()
        return int(quantised * each + (self.parameters() - quantised) * 2)

    def check_tp(self, tp: int) -> None:
        """Raises ValueError where the heads cannot be spread over `tp` ranks (vLLM, config/model.py
        `verify_with_parallel_config`; each rank needs as many query heads, and a KV head of its own or a copy)."""
        if tp < 1:
            raise ValueError(f"tp must be at least 1, not {tp}")
        if self.heads % tp:
            ways = ", ".join(f"{n}" for n in range(1, min(self.heads, 64) + 1) if self.heads % n == 0)
            raise ValueError(
                f"{self.name} has {self.heads} attention heads, which tp {tp} does not divide; {ways} divide them"
            )
        if not self.kv_lora_rank and self.kv_heads % tp and tp % self.kv_heads:
            raise ValueError(f"{self.name} has {self.kv_heads} KV heads, neither split nor copied evenly to tp {tp}")
        padded = -(-self.vocab // VOCAB_PADDING) * VOCAB_PADDING
        if padded % tp:
            raise ValueError(f"{self.name} has a vocabulary of {padded:,}, which tp {tp} does not divide")
        if self.layers > self.moe_layers and self.intermediate % tp:
            raise ValueError(f"{self.name} has MLPs of width {self.intermediate:,}, which tp {tp} does not divide")

    def kv_bytes_per_token(self, dtype: str = "bf16", tp: int = 1) -> int:
        """Bytes of KV cache that one token takes on one rank of `tp`. KV heads are copied to every rank where there are
        fewer than ranks; the latent of MLA is on every rank. Sliding windows are not counted: an upper bound (see
        `memory.MemoryBudget.kv_bytes`)."""
        full = self.full_layers * self.kv_bytes_per_layer(dtype, tp)
        return int(full + self.window_layers * self.kv_bytes_per_layer(dtype, tp, windowed=True))

    def kv_bytes_per_layer(self, dtype: str = "bf16", tp: int = 1, *, windowed: bool = False) -> float:
        """The same of one layer with attention. The key of an indexer is in fp8, with a scale of 4 bytes."""
        each = DTYPE_BYTES[dtype_name(dtype)]
        if self.kv_lora_rank:
            return (self.kv_lora_rank + self.rope_head_dim) * each + (
                self.index_head_dim + 4 if self.index_head_dim else 0
            )
        kv_heads, size = self.heads_of(windowed)
        return 2 * max(1, -(-kv_heads // tp)) * size * each


@dataclass(frozen=True, slots=True)
class Gpu:
    """One accelerator, by its vendor's data sheet. FLOP/s are dense (without sparsity)."""

    name: str
    title: str
    memory: int
    """Bytes that the driver reports as the device's total, about; a little below the label."""
    bandwidth: float
    """Bytes a second of device memory."""
    bf16: float
    """FLOP/s with fp32 accumulation (fp16 on a GPU without bf16)."""
    fp8: float | None
    """FLOP/s, None where the GPU has no fp8 units."""
    int8: float | None
    link: float
    """Bytes a second that an all-reduce of a large message reaches on each link, in one direction."""
    link_latency: float
    """Seconds that one small message takes."""
    switched: bool
    """All GPUs of a node reach each other at once (NVLink, Infinity Fabric), and not over PCIe."""
    example_price: float | None
    """USD an hour, an example only: what on-demand hosts asked at `price_date`. Set your own in the configuration."""
    price_date: str
    reserve: int = 270_000_000
    """Bytes that an engine takes outside of its allocator, before it talks to another GPU."""

    def flops(self, dtype: str) -> float:
        """FLOP/s of matrix products with weights in this dtype. Weight-only 4-bit formats compute in 16 bits."""
        name = dtype_name(dtype)
        if name == "fp8":
            return self.fp8 or self.bf16
        if name == "int8":
            return self.int8 or self.bf16
        return self.bf16 / 2 if name == "fp32" else self.bf16

"""What a deployment of a model takes of each GPU's memory, how much KV cache is left, how many sequences it holds.

    total · gpu_memory_utilization = weights + activations + overhead [+ CUDA graphs] + KV cache

All of it is arithmetic on shapes; docs/capacity.md works it once by hand and says how near it comes to real engines.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from math import ceil

from .activations import activation_peak, graph_bytes, overhead_bytes
from .formulas import Formula as Formula
from .formulas import per_token, sum_formula
from .gpus import GPUS
from .kvcache import Layout, layout
from .shapes import DTYPE_BYTES, Gpu, ModelShape, dtype_name
from .weights import element_bytes, rank_weights, stage_layers

GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Deployment:
    """A model on GPUs, and the settings of the engine that decide over memory (vLLM's names and defaults)."""

    model: ModelShape
    gpu: Gpu
    tp: int = 1
    """GPUs that split every matrix."""
    pp: int = 1
    """Pipeline stages, each with a part of the layers."""
    dp: int = 1
    """vLLM's --data-parallel-size: replicas of the attention, which share the experts where the model has any. Replicas
    that know nothing of each other are several deployments."""
    ep: int | None = None
    """Ranks that the experts are spread over. None: all tp · dp of them."""
    dtype: str = "auto"
    """Of the weights: auto (as published), or a name `dtype_name` knows, such as fp8 or awq."""
    kv_dtype: str = "auto"
    """auto: the dtype of the activations."""
    group_size: int = 128
    """Weights that share a scale and a zero in int4 (AWQ, GPTQ)."""
    max_model_len: int | None = None
    """None: the model's longest context."""
    rope_scaling: float = 1.0
    """What the model's longest context is stretched by (YaRN)."""
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    gpu_memory_utilization: float = 0.9
    enforce_eager: bool = False
    block_size: int = 16
    prefix_caching: bool = True
    """Matters for models with states alone: they are then kept twice."""
    graphs_counted: bool = True
    """Whether CUDA graphs come out of the engine's share of the memory (vLLM 0.21 and later) or out of the rest."""

    @property
    def gpus(self) -> int:
        return self.tp * self.pp * self.dp

    @property
    def weights_dtype(self) -> str:
        return dtype_name(self.model.dtype if self.dtype == "auto" else self.dtype)

    @property
    def activation_dtype(self) -> str:
        name = self.weights_dtype
        return name if name in ("fp16", "fp32") else "bf16"

    @property
    def cache_dtype(self) -> str:
        return self.activation_dtype if self.kv_dtype == "auto" else dtype_name(self.kv_dtype)

    @property
    def expert_ranks(self) -> int:
        return self.ep or self.tp * self.dp

    @property
    def context(self) -> int:
        """Tokens of the longest sequence."""
        return self.max_model_len or int(self.model.max_context * self.rope_scaling)


@dataclass(frozen=True, slots=True)
class Fix:
    """One change that would make it fit."""

    change: str
    """In words, such as `tp 2`."""
    deployment: Deployment
    kv_tokens: int
    """That it would have room for."""


class DoesNotFit(ValueError):
    """The weights, or one sequence of the longest context, do not fit. The message says by how much and what would."""

    def __init__(self, message: str, short: int, fixes: tuple[Fix, ...] = ()) -> None:
        what = "; what would fit: " + ", ".join(f.change for f in fixes) if fixes else ""
        super().__init__(message + what)
        self.short = short
        """Bytes missing on each GPU."""
        self.fixes = fixes


@dataclass(frozen=True, slots=True)
class Slots:
    """MaxConcurrentSlots: sequences whose KV cache fits at once."""

    exact: float
    whole: int


@dataclass(frozen=True, slots=True)
class MemoryBudget:
    """Bytes of each GPU (with pipeline stages: of the one with the least room for KV cache), and what they hold."""

    deployment: Deployment
    total: int
    usable: int
    """total · gpu_memory_utilization."""
    weights: int
    weights_by_part: Mapping[str, int]
    activations: int
    cuda_graphs: int
    overhead: int
    """Outside of the allocator: the CUDA context's share, cuBLAS workspaces, NCCL buffers."""
    kv: int
    """Left for the KV cache."""
    kv_bytes_per_token: float
    """On one GPU, of all layers that have a KV cache, before any window is full."""
    replica_kv_bytes_per_token: float
    """On all GPUs that hold one copy of the model (tp · pp)."""
    num_blocks: int
    """Blocks of one replica of the attention (as vLLM reports num_gpu_blocks)."""
    kv_tokens: int
    """Tokens that they hold, in sequences of the longest context (as vLLM's GPU KV cache size)."""
    longest: int
    """Tokens of the longest sequence that fits, no more than the context asked for."""
    layout: Layout = field(repr=False)
    formulas: tuple[Formula, ...] = field(repr=False)

    def kv_bytes(self, tokens: int) -> int:
        """Bytes on one GPU that one sequence of `tokens` holds while it decodes, in whole blocks."""
        return self.layout.blocks(tokens) * self.layout.block_bytes

    def slots(self, tokens_each: int) -> Slots:
        """Sequences of `tokens_each` that fit at once into one replica. Raises ValueError for less than a token."""
        if tokens_each < 1:
            raise ValueError(f"a sequence has 1 token or more, not {tokens_each}")
        exact = self.num_blocks / self.layout.blocks(tokens_each)
        return Slots(exact, int(exact))

    def slots_formula(self, tokens_each: int) -> Formula:
        """The same with its values."""
        slots = self.slots(tokens_each)
        values = {"num_blocks": self.num_blocks, "blocks_each": self.layout.blocks(tokens_each)}
        return Formula("MaxConcurrentSlots", "num_blocks / blocks_each", values, slots.exact, "sequences")


def slots_of(*, total: float, weights: float, activations: float, tokens: float, bytes_per_token: float) -> Slots:
    """MaxConcurrentSlots from plain numbers: (total - weights - activations) / (tokens · bytes_per_token). Raises
    ValueError, `DoesNotFit` where nothing is left."""
    for name, value in (("tokens", tokens), ("bytes_per_token", bytes_per_token), ("total", total)):
        if not 0 < value < float("inf"):
            raise ValueError(f"{name} must be more than 0, not {value}")
    for name, value in (("weights", weights), ("activations", activations)):
        if not 0 <= value < float("inf"):
            raise ValueError(f"{name} must be 0 or more, not {value}")
    free = total - weights - activations
    if free < 0:
        raise DoesNotFit(
            f"weights and activations take {(weights + activations) / GIB:.1f} GiB, {-free / GIB:.1f} more than the "
            f"{total / GIB:.1f} there are",
            ceil(-free),
        )
    exact = free / (tokens * bytes_per_token)
    return Slots(exact, int(exact))


def budget(deployment: Deployment) -> MemoryBudget:
    """Raises `DoesNotFit`, ValueError for settings that no engine takes."""
    d = deployment
    check(d)
    try:
        return _budget(d)
    except _TooLarge as e:
        raise DoesNotFit(e.message, e.short, _fixes(d, e.context)) from None


def _budget(d: Deployment) -> MemoryBudget:
    found = [_stage(d, stage, layers) for stage, layers in enumerate(stage_layers(d.model.layers, d.pp))]
    return min(found, key=lambda b: (b.num_blocks, b.kv))


def check(d: Deployment) -> None:
    """Raises ValueError that names the setting, for what no engine takes, whatever its memory."""
    for name in ("tp", "pp", "dp", "group_size", "max_num_seqs", "max_num_batched_tokens", "block_size"):
        value = getattr(d, name)
        if value < 1:
            raise ValueError(f"{name} must be at least 1, not {value}")
    if d.pp > d.model.layers:
        raise ValueError(f"pp {d.pp} is more than the {d.model.layers} layers of {d.model.name}")
    if not 0 < d.gpu_memory_utilization <= 1:
        given = d.gpu_memory_utilization
        raise ValueError(f"gpu_memory_utilization must be more than 0 and at most 1, not {given:g}")
    d.model.check_tp(d.tp)
    if d.model.moe and not 1 <= d.expert_ranks <= d.model.experts:
        raise ValueError(f"ep {d.expert_ranks} is not within 1 and the {d.model.experts} experts of {d.model.name}")
    longest = int(d.model.max_context * d.rope_scaling)
    if d.max_model_len is not None and not 1 <= d.max_model_len <= longest:
        stretched = f" stretched {d.rope_scaling:g} times" if d.rope_scaling != 1 else ""
        factor = d.max_model_len / d.model.max_context
        hint = f"; rope scaling by {ceil(factor)} (YaRN) would stretch it, where the model was trained for that"
        raise ValueError(
            f"max_model_len {d.max_model_len:,} is not within 1 and the {longest:,} tokens of {d.model.name}{stretched}"
            + (hint if factor > 1 else "")
        )


class _TooLarge(Exception):
    def __init__(self, d: Deployment, short: int, why: str, *, context: bool = False) -> None:
        spread = f"{d.tp * d.pp} × {d.gpu.title}" if d.tp * d.pp > 1 else d.gpu.title
        self.message = (
            f"{d.model.name} in {d.weights_dtype} does not fit on {spread}: of the "
            f"{d.gpu.memory * d.gpu_memory_utilization / 1e9:.1f} GB of each that the engine may use, {why}; "
            f"{short / 1e9:.1f} GB are missing on each"
        )
        self.short = short
        self.context = context
        super().__init__(self.message)


_LARGE = 0.2
"""Of what an engine may use: activations that take more are named where nothing is left."""
_NODE = 8
"""GPUs that have a fast link to each other."""
_WIDEST = 64
"""GPUs of tensor parallelism that are tried as a way out."""


def _fixes(d: Deployment, context: bool) -> tuple[Fix, ...]:
    """The least of each kind of change that makes it fit."""
    tried: list[Iterator[tuple[str, Deployment]]] = [
        ((f"tp {tp}", replace(d, tp=tp)) for tp in _wider(d)),
        ((f"pp {pp}", replace(d, pp=pp)) for pp in range(d.pp + 1, min(_WIDEST // d.tp, d.model.layers) + 1)),
        ((f"{name} weights", replace(d, dtype=name)) for name in _smaller(d)),
        ((gpu.title, replace(d, gpu=gpu)) for gpu in sorted(GPUS, key=lambda g: g.memory) if gpu.memory > d.gpu.memory),
    ]
    if context:
        if d.cache_dtype != "fp8":
            tried.append(iter([("a KV cache in fp8", replace(d, kv_dtype="fp8"))]))
        tried.append(_shorter(d))
    found = [fix for ways in tried for fix in _first(ways)]
    if not any(fix.deployment.gpu == d.gpu and fix.deployment.tp * fix.deployment.pp <= _NODE for fix in found):
        found += _first(
            (f"tp {tp} with {name} weights", replace(d, tp=tp, dtype=name))
            for name in _smaller(d)
            for tp in _wider(d)
            if tp * d.pp <= _NODE
        )
    return tuple(found)


def _first(ways: Iterable[tuple[str, Deployment]]) -> list[Fix]:
    return list(islice(filter(None, (_tried(*way) for way in ways)), 1))


def _wider(d: Deployment) -> Iterator[int]:
    for tp in range(d.tp + 1, _WIDEST + 1):
        try:
            d.model.check_tp(tp)
        except ValueError:
            continue
        yield tp


def _smaller(d: Deployment) -> list[str]:
    here = element_bytes(d.weights_dtype, d.group_size)
    return [name for name in ("fp8", "int4") if element_bytes(name, d.group_size) < here]


def _shorter(d: Deployment) -> Iterator[tuple[str, Deployment]]:
    try:
        longest = _budget(replace(d, max_model_len=None)).longest
    except _TooLarge:
        return
    yield f"max_model_len {longest:,}", replace(d, max_model_len=longest)


def _tried(change: str, d: Deployment) -> Fix | None:
    try:
        return Fix(change, d, _budget(d).kv_tokens)
    except _TooLarge:
        return None


def _stage(d: Deployment, stage: int, layers: int) -> MemoryBudget:
    share = layers / d.model.layers
    last = stage == d.pp - 1
    parts = rank_weights(
        d.model,
        d.weights_dtype,
        tp=d.tp,
        ep=d.expert_ranks,
        layers=layers,
        group_size=d.group_size,
        first=stage == 0,
        last=last,
    )
    weights = sum(parts.values())
    sizes = {"max_num_batched_tokens": d.max_num_batched_tokens, "max_num_seqs": d.max_num_seqs}
    each = DTYPE_BYTES[d.activation_dtype]
    peak = activation_peak(d.model, **sizes, tp=d.tp, pp=d.pp, ep=d.expert_ranks, last=last, each=each)
    overhead = overhead_bytes(d.gpu, tp=d.tp, pp=d.pp)
    graphs = 0 if d.enforce_eager else graph_bytes(layers, **sizes)
    usable = int(d.gpu.memory * d.gpu_memory_utilization)
    free = usable - weights - peak.total - overhead - (graphs if d.graphs_counted else 0)
    cut = layout(
        d.model,
        kv_dtype=d.cache_dtype,
        tp=d.tp,
        block_size=d.block_size,
        share=share,
        prefix_caching=d.prefix_caching,
    )
    blocks = free // cut.block_bytes
    one = cut.reserved(d.context, d.max_num_batched_tokens)
    if blocks < cut.groups:
        short = cut.groups * cut.block_bytes - free
        beside = ""
        if peak.total > _LARGE * usable:  # of which no larger GPU rids
            beside = f" and {peak.total / 1e9:.1f} GB of activations"
            beside += f" (max_num_seqs {d.max_num_seqs:,}, max_num_batched_tokens {d.max_num_batched_tokens:,})"
        raise _TooLarge(d, short, f"{weights / 1e9:.1f} GB of weights{beside} leave no room for KV cache")
    longest = cut.longest(blocks, d.max_num_batched_tokens, d.context)
    if blocks < one and d.max_model_len is not None:
        text = f"the KV cache holds a sequence of {longest:,} tokens, not one of {d.context:,}"
        raise _TooLarge(d, (one - blocks) * cut.block_bytes, text, context=True)
    kv = d.model.kv_bytes_per_token(d.cache_dtype, d.tp)
    taken = {"usable": usable, "weights": weights, "activations": peak.total, "overhead": overhead}
    if d.graphs_counted and graphs:
        taken["graphs"] = graphs
    return MemoryBudget(
        d,
        d.gpu.memory,
        usable,
        weights,
        parts,
        peak.total,
        graphs,
        overhead,
        free,
        kv_bytes_per_token=kv * share,
        replica_kv_bytes_per_token=kv * d.tp,
        num_blocks=blocks,
        kv_tokens=cut.tokens(blocks, d.context, d.max_num_batched_tokens),
        longest=longest,
        layout=cut,
        formulas=(
            Formula(
                "usable",
                "total · gpu_memory_utilization",
                {"total": d.gpu.memory, "gpu_memory_utilization": d.gpu_memory_utilization},
                usable,
                "B",
            ),
            sum_formula("weights", parts, "B"),
            Formula("activations", "max( forward , sampler ) + kept", peak._asdict(), peak.total, "B"),
            Formula("KV cache", " - ".join(taken), taken, free, "B"),
            *per_token(d.model, d.cache_dtype, d.tp, share),
            Formula(
                "num_blocks", "⌊ kv / block_bytes ⌋", {"kv": free, "block_bytes": cut.block_bytes}, blocks, "blocks"
            ),
        ),
    )

"""Popular rules of thumb held against the model and the hardware that a plan is about."""

from __future__ import annotations

import math
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from forebay.hardware.shapes import DTYPE_BYTES
from forebay.plan.capacity_question import Replica
from forebay.plan.capacity_slo import Sustained

OFF: Final = 0.2
"""Relative: a rule that is off by more is named."""
CARDS: Final = MappingProxyType(
    {
        "a100_sxm": 30.0,
        "a100_pcie": 30.0,
        "a100_sxm_40": 15.0,
        "a100_pcie_40": 15.0,
        "v100_sxm": 10.0,
        "v100_pcie": 10.0,
        "rtx_3090": 5.0,
    }
)
"""The table of requests a second that goes from slide to slide, by the GPU's name here."""
USERS: Final = (10.0, 20.0)
"""Real users at once on one A100 with 80 GB, as the same slides have it."""


@dataclass(frozen=True)
class Thumb:
    """A rule that is wrong here."""

    rule: str
    says: str
    true: str
    why: str


def wrong(replica: Replica, found: Sustained, rate: float) -> list[Thumb]:
    """Those that are off by more than OFF for this model on this hardware. `rate`: requests a second of the replica."""
    d = replica.question.deployment
    model, memory = d.model, replica.memory
    true = float(model.kv_bytes_per_layer(d.cache_dtype, 1) * model.attention_layers)
    out = []

    def add(rule: str, says: float, is_: float, unit: str, why: str) -> None:
        if is_ > 0 and abs(math.log(says / is_)) > math.log(1 + OFF):
            out.append(Thumb(rule, _written(says, unit), f"{_written(is_, unit)} ({_times(says, is_)})", why))

    each = DTYPE_BYTES[d.cache_dtype]
    if model.kv_lora_rank or model.kv_heads != model.heads:
        kind = (
            "one latent for all heads (MLA)"
            if model.kv_lora_rank
            else f"{model.kv_heads} KV heads for {model.heads} query heads (GQA)"
        )
        add(
            "KV a token = 2 · layers · hidden · bytes",
            2 * model.layers * model.hidden * each,
            true,
            "B",
            f"the model has {kind}",
        )
    add("KV a token is 1 MiB", 1 << 20, true, "B", "it follows from layers, KV heads and their size, not from a rule")
    add(
        "weights take 2 bytes a parameter",
        2.0 * model.parameters(),
        float(memory.weights * d.gpus),
        "B",
        f"they are in {d.weights_dtype}" + (", and parts are copied to every rank" if d.gpus > 1 else ""),
    )
    if memory.layout.windowed or memory.layout.linear:
        tokens = min(memory.longest, 32_768)
        add(
            f"KV grows with the context ({tokens:,} tokens)",
            memory.kv_bytes_per_token * tokens,
            float(memory.kv_bytes(tokens)),
            "B",
            "layers with a window or a state hold no more",
        )
    if model.moe:
        add(
            "a token costs 2 FLOP a parameter",
            2.0 * model.parameters(),
            2.0 * model.active_parameters(),
            "FLOP",
            f"{model.experts_per_token} of {model.experts} experts work on it",
        )
    engine = replica.engine
    alone = d.gpu.bandwidth * d.tp / (memory.weights * d.tp * d.pp)
    batch = found.state.decoding / engine.step(found.state.decoding, 0)
    add(
        "tokens a second = bandwidth / weights",
        alone,
        batch * replica.lanes,
        "tokens/s",
        f"that is one sequence; {found.state.decoding:,.0f} share each read of the weights",
    )
    add(
        "replicas = peak / most throughput",
        engine.most.rate * replica.lanes,
        rate,
        "requests/s",
        "the promise ends before the throughput does",
    )
    if d.gpus == 1 and (says := CARDS.get(d.gpu.name)) is not None:
        why = "it depends on the model and the lengths: forebay plan --rules"
        add(f"this card does {says:g} requests/s", says, rate, "requests/s", why)
    if (
        d.gpu.name.startswith("a100_")
        and d.gpus == 1
        and d.gpu.memory > 60e9
        and not USERS[0] <= found.state.running <= USERS[1]
    ):
        out.append(
            Thumb(
                "one A100-80G serves 10 to 20 at once",
                "10 to 20",
                f"{found.state.running * replica.lanes:,.0f}",
                "as many as KV and promise let run; forebay plan --rules",
            )
        )
    return out


def _times(says: float, is_: float) -> str:
    ratio = says / is_
    return f"the rule has {ratio:.1f} × that" if ratio >= 1 else f"the rule has 1/{1 / ratio:.1f} of that"


def _written(value: float, unit: str) -> str:
    if unit == "B":
        for name, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
            if value >= size:
                return f"{value / size:.3g} {name}"
    if unit == "FLOP":
        return f"{value / 1e9:.3g} GFLOP"
    return f"{value:,.0f} {unit}" if value >= 100 else f"{value:.3g} {unit}"

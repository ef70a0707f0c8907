"""Numbers that go from slide to slide, worked out: what they assume, and the model and lengths that make them true."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from forebay.hardware.catalogue import find_any, find_any_gpu
from forebay.hardware.memory import Deployment, DoesNotFit, Formula, budget, slots_of
from forebay.hardware.numbers import model_of
from forebay.plan.capacity_lengths import independent
from forebay.plan.capacity_question import PlanError, Promise, Question, replica
from forebay.plan.capacity_slo import highest
from forebay.plan.capacity_thumb import USERS

GIB: Final = 1 << 30
CARDS: Final = (("A100-80G", 30.0), ("A100-40G", 15.0), ("V100-32G", 10.0), ("RTX 3090", 5.0))
"""Requests a second by card."""
MODEL: Final = "meta-llama/Llama-3.1-8B"
"""For which the table is worked out: it fits on all four."""
PROMPT: Final = 200
LONGEST: Final = 4_096
"""Tokens: answers up to it are tried."""
HELD: Final = ("meta-llama/Llama-2-13b", "Qwen/Qwen2.5-14B", "Qwen/Qwen3-32B", MODEL)
TOKENS: Final = (1_024, 2_048, 4_096, 8_192, 16_384, 32_768)
_ROUGH: Final = 0.03


def known() -> list[dict[str, Any]]:
    """Each a dict of `claim`, `lines` (formulas and results as text) and `values`."""
    return [_slots(), _seventy(), _cards(), _users()]


def _slots() -> dict[str, Any]:
    sizes = {"total": 80 * GIB, "weights": 64 * GIB, "activations": 6 * GIB}
    tokens, each = 4_096, 1 << 20
    found = slots_of(**sizes, tokens=tokens, bytes_per_token=each)
    free = sizes["total"] - sizes["weights"] - sizes["activations"]
    formula = Formula(
        "MaxConcurrentSlots",
        "( total - weights - activations ) / ( tokens · bytes )",
        {name: f"{size // GIB} GiB" for name, size in sizes.items()} | {"tokens": tokens, "bytes": "1 MiB"},
        found.exact,
        "slots",
    )
    return {
        "claim": "an 80 GiB GPU, 64 GiB of weights, 6 GiB of activations, 4,096 tokens at 1 MiB each: 2 slots",
        "lines": [f"{formula.text()}, {found.whole} whole ones in {free // GIB} GiB"],
        "values": {"kv_gib": free / GIB, "exact": found.exact, "whole": found.whole},
    }


def _seventy() -> dict[str, Any]:
    model = model_of("params=70e9,layers=80,kv_heads=8,head_dim=128")
    tokens = 4_096
    each = model.kv_bytes_per_layer("fp16", 1) * model.attention_layers
    shape = {"layers": model.layers, "kv_heads": model.kv_heads, "head_dim": model.head_dim}
    formula = Formula(
        "KV",
        "2 · layers · kv_heads · head_dim · bytes · tokens",
        shape | {"bytes": 2, "tokens": tokens},
        each * tokens / 1e9,
        "GB",
    )
    mha = 2 * model.layers * model.heads * model.head_dim * 2 * tokens / 1e9
    return {
        "claim": "70B, 80 layers, 8 KV heads of 128, FP16, 4,096 tokens: 1.34 GB a user",
        "lines": [formula.text(), f"with as many KV heads as heads ({model.heads}, no GQA) it would be {mha:.1f} GB"],
        "values": {"gb": each * tokens / 1e9, "bytes_per_token": each},
    }


def _cards() -> dict[str, Any]:
    lines, values = [], {}
    for card, rate in CARDS:
        answer = answer_for(card, rate)
        values[card] = {"requests_per_s": rate, "model": MODEL, "prompt": PROMPT, "output": answer}
        lines.append(
            f"{card}: {rate:g} requests/s is true of {MODEL} in fp16 with prompts of {PROMPT} tokens and answers of "
            f"{answer:,} (P95 of TTFT ≤ {Promise().ttft:g} s)"
            if answer is not None
            else f"{card}: {rate:g} requests/s is true of no answers of {MODEL} with prompts of {PROMPT} tokens"
        )
    return {
        "claim": "requests a second by card: A100-80 30, A100-40 15, V100-32 10, RTX 3090 5",
        "lines": [*lines, "answers twice as long, or a model twice as large, halve it: a card has no rate of its own"],
        "values": values,
    }


def answer_for(card: str, rate: float) -> int | None:
    """Tokens of an answer at which MODEL carries `rate` requests a second on one such card; None where none do."""
    gpu = find_any_gpu(card)

    def carried(output: int) -> float:
        deployment = Deployment(find_any(MODEL), gpu, dtype="fp16", max_model_len=PROMPT + LONGEST)
        asked = Question(deployment=deployment, lengths=independent(f"{PROMPT}", f"{output}"), measured=False)
        try:
            return highest(replica(asked).engine, asked.promise, _ROUGH).rate
        except PlanError:
            return 0.0

    low, high = 1, LONGEST
    if not carried(high) <= rate <= carried(low):
        return None
    while high - low > max(1, low // 50):
        middle = (low + high) // 2
        if carried(middle) > rate:
            low = middle
        else:
            high = middle
    return (low + high) // 2


def _users() -> dict[str, Any]:
    found = list(_held())
    return {
        "claim": "10 to 20 real users at once on one A100-80",
        "lines": [
            *(f"{model} in fp16 with {tokens:,} tokens each: {whole} slots" for model, tokens, whole in found),
            "users with long conversations, or a large model; with short ones and a small one there are hundreds",
        ],
        "values": [{"model": model, "tokens": tokens, "slots": whole} for model, tokens, whole in found],
    }


def _held() -> Iterator[tuple[str, int, int]]:
    """Models, tokens a user, and slots, where those are as the slide has them."""
    gpu = find_any_gpu("A100-80G")
    for name in HELD:
        try:
            memory = budget(Deployment(find_any(name), gpu, dtype="fp16"))
        except DoesNotFit:
            continue
        for tokens in TOKENS:
            whole = memory.slots(tokens).whole
            if USERS[0] <= whole <= USERS[1]:
                yield name, tokens, whole

"""The formulas of a plan with their values filled in."""

from __future__ import annotations

from collections.abc import Mapping

from forebay.hardware.memory import Formula
from forebay.plan.capacity_fleet import Cost, Fleet
from forebay.plan.capacity_question import Replica
from forebay.plan.capacity_queue import State

Values = Mapping[str, float | int | str]


def formulas(one: Replica, at: State, whole: Fleet, money: Cost, rate: float, e2e: float) -> list[Formula]:
    """Of one replica (a lane of it in the state `at`) and of all of them. `rate`: requests a second that a replica
    keeps the promise at; `e2e`: mean seconds of a request."""
    return [*_of_replica(one, at), *_of_fleet(one, whole, money, rate, e2e)]


def _of_replica(one: Replica, at: State) -> list[Formula]:
    engine, memory = one.engine, one.memory
    typical = max(1, round(engine.lengths.prompt + engine.lengths.output))
    slots: Values = {"blocks": memory.num_blocks, "blocks_each": memory.layout.blocks(typical)}
    budget = engine.lane.max_num_batched_tokens
    full, decode = engine.step(0, budget), engine.step(at.decoding, 0)
    each = at.decoding / at.rate
    answers: Values = {
        "rate": f"{at.rate:.4g}/s",
        "((answer": f"(({engine.lengths.output:.1f}",
        "step": f"{at.step * 1e3:.4g} ms",
        "echo)": f"{max(0.0, each - engine.decodes * at.step) * 1e3:.3g} ms)",
    }
    return [
        Formula(
            "MaxConcurrentSlots", "blocks / blocks_each", slots, memory.slots(typical).exact, f"of {typical:,} tokens"
        ),
        Formula("prefill", "tokens / step", {"tokens": budget, "step": f"{full:.4g} s"}, budget / full, "tokens/s"),
        Formula(
            "decode",
            "sequences / step",
            {"sequences": round(at.decoding, 1), "step": f"{decode * 1e3:.4g} ms"},
            at.decoding / decode,
            "tokens/s",
        ),
        Formula("decoding", "rate · ((answer - 1) · step + echo)", answers, at.decoding, "sequences"),
    ]


def _of_fleet(one: Replica, whole: Fleet, money: Cost, rate: float, e2e: float) -> list[Formula]:
    traffic, price = one.question.traffic, one.question.gpu_price
    out = []
    if traffic.users is not None:
        people: Values = {"users": traffic.users, "(think": f"({traffic.think:g} s", "answered)": f"{e2e:.4g} s)"}
        out.append(Formula("peak", "users / (think + answered)", people, whole.peak, "requests/s"))
    each: Values = {"peak": f"{whole.peak:.4g}", "rate": f"{rate:.4g}"}
    out.append(Formula("replicas", "⌈ peak / rate ⌉", each, whole.needed, "replicas"))
    if money.hourly is not None and money.million_output is not None:
        values: Values = {
            "GPUs": whole.gpus,
            "price": f"${price:g}",
            "(mean": f"({whole.mean:.4g}/s",
            "answer": f"{one.engine.lengths.output:.1f}",
            "s)": "s)",
        }
        formula = "GPUs · price / (mean · answer · 3600 s) · 1e6"
        out.append(Formula("cost", formula, values, money.million_output, "USD a million output tokens"))
    return out

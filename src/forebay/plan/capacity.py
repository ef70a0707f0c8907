"""A plan: from a question to its answer as a JSON document, of which terminal and page are made.

A plan holds no time of day and nothing random: equal questions have equal answers.
"""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any, Final

import forebay
from forebay.hardware.memory import Formula
from forebay.plan import capacity_check
from forebay.plan.capacity_change import tried
from forebay.plan.capacity_check import Simulated
from forebay.plan.capacity_fleet import Fleet, cost, fleet
from forebay.plan.capacity_formulas import formulas
from forebay.plan.capacity_lengths import Lengths
from forebay.plan.capacity_question import Question, Replica, check, replica
from forebay.plan.capacity_queue import NEAR, State, state
from forebay.plan.capacity_slo import Sustained, sustain
from forebay.plan.capacity_thumb import wrong

FORMAT: Final = 1
"""Of the JSON document; goes up when a key changes its meaning or goes."""
POINTS: Final = 12
"""Of the curves over the load."""
APART: Final = 0.1
"""Formula and simulation are said to differ where they do so by more."""


def plan(question: Question, *, curves: bool = False) -> dict[str, Any]:
    """The answer. `curves`: with latencies over the load, for a page. Raises PlanError, `DoesNotFit`, ValueError for a
    deployment that no engine takes."""
    check(question)
    one = replica(question)
    found = sustain(one.engine, question.promise)
    runs = capacity_check.sustain(one.engine, question.promise, found.state, question.seed) if question.simulate else []
    simulated = runs[-1] if runs else None
    notes = [*question.notes, *one.notes]
    if question.simulate and simulated is None:
        notes.append(
            "the simulation kept the promise at no rate near what formulas say; the plan stands on formulas alone"
        )
    if simulated is not None and abs(found.rate / simulated.rate - 1) > APART:
        notes.append(_apart(one, found.rate, simulated.rate))
    rate = (found.rate if simulated is None else simulated.rate) * one.lanes
    e2e = found.state.e2e if simulated is None else simulated.e2e
    whole = fleet(question, rate, one.gpus, e2e)
    at_work = state(one.engine, min(whole.peak / whole.needed / one.lanes, found.rate))
    valid = _met(at_work, question) if simulated is None else max(simulated.met, _met(at_work, question))
    lengths = one.engine.lengths
    money = cost(question, whole, one.gpus, lengths.prompt, lengths.output, valid)
    changes, impossible = tried(question, one, rate, e2e)
    return {
        "forebay": forebay.__version__,
        "kind": "plan",
        "format": FORMAT,
        "question": _question(question, lengths),
        "memory": _memory(one, lengths),
        "rates": _rates(one, found),
        "replica": {
            "gpus": one.gpus,
            "lanes": one.lanes,
            "requests_per_s": _tidy(rate),
            "requests_per_s_by_formula": _tidy(found.rate * one.lanes),
            "users": _tidy(rate * (question.traffic.think + e2e)),
            "output_tokens_per_s": _tidy(rate * lengths.output),
            "limits": [_limit(limit, one) for limit in one.engine.limits()],
            "most_requests_per_s": _tidy(one.engine.most.rate * one.lanes),
            "formula": _state(found.state, question),
            "simulated": None if simulated is None else _simulated(simulated, one),
            "runs": [_simulated(run, one) for run in runs],
            "binding": asdict(found.binding),
        },
        "fleet": _fleet(whole, question) | {"at_peak": _state(at_work, question), "valid": _tidy(valid)},
        "cost": {key: _tidy(value) for key, value in asdict(money).items()}
        | {"gpu_hour": question.gpu_price, "gpu_hour_is": _priced(question)},
        "changes": [asdict(change) | {"rate": _tidy(change.rate), "gain": _tidy(change.gain)} for change in changes],
        "no_changes": [asdict(change) for change in impossible],
        "rules_of_thumb": [asdict(rule) for rule in wrong(one, found, rate)],
        "formulas": [_written(f) for f in formulas(one, found.state, whole, money, rate, e2e)],
        "step_time": {"source": one.source, "note": one.note},
        "notes": notes,
        "curves": _curves(one, question, found) if curves else None,
    }


def _apart(one: Replica, formula: float, simulated: float) -> str:
    said = (
        f"formulas say {formula * one.lanes:.3g} requests/s of a replica, the simulation {simulated * one.lanes:.3g}, "
        "which is planned with"
    )
    share = one.engine.lengths.longest / one.engine.lane.kv_tokens
    if share > capacity_check.LARGE and simulated < formula:
        said += f"; the longest request takes {share:.0%} of the KV cache, and all behind it wait (--max-model-len)"
    return said


def _tidy(x: float | None) -> float | None:
    """Six significant digits; None for what is no finite number."""
    return float(f"{x:.6g}") if x is not None and math.isfinite(x) else None


def _met(at: State, question: Question) -> float:
    """Share of requests that keep both bounds; the two are taken as independent."""
    if not at.stable:
        return 0.0
    promise = question.promise
    return float((at.ttft <= promise.ttft).mean()) * float((at.tpot <= promise.tpot).mean())


def _question(question: Question, lengths: Lengths) -> dict[str, Any]:
    d, promise, traffic = question.deployment, question.promise, question.traffic
    return {
        "model": d.model.name,
        "parameters": d.model.parameters(),
        "gpu": d.gpu.name,
        "gpu_title": d.gpu.title,
        "tp": d.tp,
        "pp": d.pp,
        "dp": d.dp,
        "dtype": d.weights_dtype,
        "kv_dtype": d.cache_dtype,
        "max_model_len": d.context,
        "max_num_seqs": d.max_num_seqs,
        "max_num_batched_tokens": d.max_num_batched_tokens,
        "gpu_memory_utilization": d.gpu_memory_utilization,
        "lengths": lengths.text,
        "prompt": _of(lengths, "prompt", lengths.prompt),
        "output": _of(lengths, "output", lengths.output),
        "cache_hit": question.cache_hit,
        "slo": {"ttft_s": promise.ttft, "tpot_s": _tidy(promise.tpot), "percent": promise.percent},
        "traffic": {
            "users": traffic.users,
            "think_s": traffic.think,
            "peak_requests_per_s": traffic.peak,
            "hours": list(traffic.hours),
            "text": traffic.text,
        },
        "gpus_per_node": question.gpus_per_node,
        "spare_nodes": question.spare_nodes,
    }


def _of(lengths: Lengths, which: str, mean: float) -> dict[str, float | None]:
    return {"mean": _tidy(mean)} | {f"p{p}": _tidy(lengths.quantile(which, p / 100)) for p in (50, 95, 99)}


def _memory(one: Replica, lengths: Lengths) -> dict[str, Any]:
    memory = one.memory
    typical = max(1, round(lengths.prompt + lengths.output))
    return {
        "per_gpu_bytes": {
            "total": memory.total,
            "usable": memory.usable,
            "weights": memory.weights,
            "activations": memory.activations,
            "cuda_graphs": memory.cuda_graphs,
            "overhead": memory.overhead,
            "kv": memory.kv,
        },
        "kv_bytes_per_token_per_gpu": memory.kv_bytes_per_token,
        "kv_bytes_per_token": memory.deployment.model.kv_bytes_per_layer(memory.deployment.cache_dtype, 1)
        * memory.deployment.model.attention_layers,
        "kv_tokens": memory.kv_tokens,
        "num_blocks": memory.num_blocks,
        "longest": memory.longest,
        "slots": [
            {"tokens_each": tokens, "exact": _tidy(slots.exact), "whole": slots.whole}
            for tokens in dict.fromkeys((typical, memory.longest))
            for slots in (memory.slots(tokens),)
        ],
        "formulas": [_written(f) for f in memory.formulas],
    }


def _rates(one: Replica, found: Sustained) -> dict[str, Any]:
    engine, at = one.engine, found.state
    budget = one.engine.lane.max_num_batched_tokens
    full = engine.step(0, budget)
    alone = engine.step(1, 0)
    together = engine.step(at.decoding, 0)
    return {
        "prefill_tokens_per_s": _tidy(budget / full * one.lanes),
        "prefill_step_s": _tidy(full),
        "decode_tokens_per_s_alone": _tidy(1 / alone),
        "decode_step_alone_s": _tidy(alone),
        "decode_tokens_per_s": _tidy(at.decoding / together * one.lanes),
        "decode_sequences": _tidy(at.decoding),
        "decode_step_s": _tidy(together),
        "mean_step_s": _tidy(at.step),
    }


def _limit(limit: Any, one: Replica) -> dict[str, Any]:
    return {
        "name": limit.name,
        "requests_per_s": _tidy(limit.rate * one.lanes),
        "decoding": _tidy(limit.decoding),
        "step_s": _tidy(limit.step),
    }


def _state(at: State, question: Question) -> dict[str, Any]:
    percent = question.promise.percent
    return {
        "requests_per_s_per_lane": _tidy(at.rate),
        "ttft_s": _tidy(at.at("ttft", percent)),
        "ttft_p50_s": _tidy(at.at("ttft", 50)),
        "tpot_s": _tidy(at.at("tpot", percent)),
        "tpot_p50_s": _tidy(at.at("tpot", 50)),
        "e2e_mean_s": _tidy(at.e2e),
        "decoding": _tidy(at.decoding),
        "running": _tidy(at.running),
        "step_s": _tidy(at.step),
        "no_place": _tidy(at.no_place),
        "ttft_parts_s": {name: _tidy(seconds) for name, seconds in at.parts.items()},
    }


def _simulated(run: Simulated, one: Replica) -> dict[str, Any]:
    return {key: _tidy(float(value)) for key, value in asdict(run).items()} | {
        "requests_per_s": _tidy(run.rate * one.lanes)
    }


def _fleet(whole: Fleet, question: Question) -> dict[str, Any]:
    found = asdict(whole)
    found["hours"] = [{"requests_per_s": _tidy(hour.rate), "replicas": hour.replicas} for hour in whole.hours]
    return {key: _tidy(value) if isinstance(value, float) else value for key, value in found.items()}


def _priced(question: Question) -> str:
    if question.price is not None:
        return "as given"
    gpu = question.deployment.gpu
    return f"an example of {gpu.price_date}" if question.gpu_price else "not known: give --price"


def _written(formula: Formula) -> dict[str, Any]:
    return {
        "name": formula.name,
        "formula": formula.formula,
        "values": dict(formula.values),
        "result": formula.result if math.isfinite(formula.result) else None,
        "unit": formula.unit,
        "text": formula.text(),
    }


def _curves(one: Replica, question: Question, found: Sustained) -> dict[str, Any]:
    """Latencies of a replica over its load, up to all that it can do."""
    engine, promise = one.engine, question.promise
    most = NEAR * engine.most.rate
    shares = sorted({*(most * (i + 0.5) / POINTS for i in range(POINTS)), found.rate})
    states = [at for at in (state(engine, rate) for rate in shares) if at.stable]
    return {
        "requests_per_s": [_tidy(at.rate * one.lanes) for at in states],
        "ttft_p50_s": [_tidy(at.at("ttft", 50)) for at in states],
        "ttft_s": [_tidy(at.at("ttft", promise.percent)) for at in states],
        "tpot_p50_s": [_tidy(at.at("tpot", 50)) for at in states],
        "tpot_s": [_tidy(at.at("tpot", promise.percent)) for at in states],
        "output_tokens_per_s": [_tidy(at.rate * one.lanes * engine.lengths.output) for at in states],
    }

"""Part `rates`: what formulas and plans say of throughput and TTFT, against long runs of the simulator."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from benchmarks.common import ROOT
from forebay.hardware.catalogue import find_any, find_any_gpu
from forebay.hardware.memory import Deployment
from forebay.plan import capacity_check
from forebay.plan.capacity_lengths import Lengths, independent, of_workload
from forebay.plan.capacity_question import Promise, Question, Replica, replica
from forebay.plan.capacity_queue import state
from forebay.plan.capacity_slo import highest
from forebay.sim.workloads import open_workload

BAR: Final = 0.10
SECONDS_BAR: Final = 2.0
REQUESTS: Final = 8_000
"""Of a long run; its seeds are not those of plans."""
SEEDS: Final = (11, 12)
EXACT: Final = 0.02
LOADS: Final = (0.4, 0.7)
"""Of the rate at the promise, where TTFT is compared."""
TIMES: Final = 5


@dataclass(frozen=True)
class Case:
    name: str
    model: str
    gpu: str
    lengths: Lengths
    promise: Promise
    settings: dict[str, Any] = field(default_factory=dict)
    profile: str | None = None

    def replica(self) -> Replica:
        deployment = Deployment(find_any(self.model), find_any_gpu(self.gpu), **self.settings)
        asked = Question(deployment=deployment, lengths=self.lengths, promise=self.promise, profile=self.profile)
        return replica(asked)


def cases() -> list[Case]:
    chat, fixed = independent("lognormal(512;1.0)", "lognormal(200;0.8)"), independent("300", "150")
    code, essay = (
        independent("mean=2000,p95=6000", "mean=120,p95=400"),
        independent("mean=256,p95=800", "mean=800,p95=1600"),
    )
    llama, qwen, large = "llama-3.1-8b", "Qwen/Qwen3-32B", "Qwen/Qwen2.5-72B"
    moe, mla = "qwen3-30b-a3b", "deepseek-v2-lite"
    long, two, four = {"max_model_len": 16_384}, {"tp": 2}, {"tp": 4}
    found = [
        Case("chat, Qwen3-32B, A100", qwen, "A100-80G", chat, Promise(1.5), long),
        Case("chat, Qwen3-32B, 2 × A100", qwen, "A100-80G", chat, Promise(1.5), long | two),
        Case("chat, Llama-3.1-8B, A100", llama, "A100-80G", chat, Promise(0.8, 0.05), long),
        Case("chat, Llama-3.1-8B, RTX 4090, P99", llama, "rtx 4090", chat, Promise(2.0, 0.05, 99), long),
        Case("prompts, Llama-3.1-8B, H100", llama, "H100", code, Promise(1.0), long),
        Case("prompts, Qwen2.5-72B, 4 × H100", large, "H100", code, Promise(2.0, 0.06), long | four),
        Case("answers, Llama-3.1-8B, H100", llama, "H100", essay, Promise(1.0, 0.025), long),
        Case("answers, 64 sequences", llama, "H100", essay, Promise(1.5), long | {"max_num_seqs": 64}),
        Case("fixed, Llama-3.1-8B, L4", llama, "L4", fixed, Promise(1.5), long),
        Case("chat, Qwen3-30B-A3B, H100", moe, "H100", chat, Promise(1.0, 0.04), long),
        Case("prompts, DeepSeek-V2-Lite, L40S", mla, "L40S", code, Promise(2.0), long),
        Case("prompts, steps of 8,192", llama, "H100", code, Promise(1.0), long | {"max_num_batched_tokens": 8192}),
    ]
    data = Path(os.environ.get("SHARED") or ROOT.parent / "shared/data")
    tables = data / "profiles/llmservingsim/RTX4090/Llama-3.1-8B-bf16"
    trace = data / "traces/AzureLLMInferenceTrace_conv.csv"
    if tables.is_dir() and trace.is_file():
        azure = of_workload(open_workload(trace))[0]
        name = "Azure's lengths, measured RTX 4090"
        found.append(Case(name, llama, "rtx 4090", azure, Promise(3.0), long, str(tables)))
    return found


def measure(console: Console) -> tuple[dict[str, object], list[str]]:
    table = Table(title="Requests/s of a replica, TTFT of formulas at 0.4 and 0.7 of it: difference from the simulator")
    for heading in ("case", "short", "most", "", "promise", "formula", "plan", "TTFT P50", "TTFT P95"):
        table.add_column(
            heading, justify="left" if heading in ("case", "short") else "right", no_wrap=heading == "case"
        )
    rows, fell = [], []
    for case in cases():
        found = _case(case)
        rows.append(found)
        table.add_row(
            case.name, found["short"], f"{found['most']['simulated']:.3g}", f"{found['most']['off']:+.1%}",
            f"{found['promise']['simulated']:.3g}", f"{found['promise']['formula_off']:+.1%}",
            f"{found['promise']['plan_off']:+.1%}", *(
                " ".join(f"{at[key]:+.1%}" for at in found["ttft"]) for key in ("p50_off", "p95_off")
            ),
        )  # fmt: skip
        judged = {
            "the most throughput": found["most"]["off"],
            "the plan's throughput at the promise": found["promise"]["plan_off"],
        }
        judged |= {
            f"TTFT {p} at {at['load']:.0%}": at[f"{p.lower()}_off"] for at in found["ttft"] for p in ("P50", "P95")
        }
        fell += [
            f"{case.name}: {what} is {off:+.1%} off, bar {BAR:.0%}" for what, off in judged.items() if abs(off) > BAR
        ]
    console.print(table)
    seconds = _seconds()
    wall, cpu = (min(one[i] for one in seconds) for i in (0, 1))
    console.print(f"forebay plan: {wall:.2f} s, {cpu:.2f} s of CPU, the best of {TIMES}, with the interpreter's start")
    if wall > SECONDS_BAR:
        fell.append(f"forebay plan takes {wall:.2f} s, bar {SECONDS_BAR:g} s")
    return {"cases": rows, "seconds": seconds, "requests": REQUESTS}, fell


def _case(case: Case) -> dict[str, Any]:
    engine = case.replica().engine
    first = highest(engine, case.promise)
    short = capacity_check.sustain(engine, case.promise, first)
    planned = short[-1].rate if short else first.rate
    over = capacity_check.run(engine, 1.4 * engine.most.rate, case.promise, seed=SEEDS[0], count=REQUESTS // 2)
    true = _true(engine, case.promise, planned)
    at_load = []
    for load in LOADS:
        rate = load * true
        by_formula = state(engine, rate)
        runs = [capacity_check.run(engine, rate, case.promise, seed=seed, count=REQUESTS) for seed in SEEDS]
        p50, p95 = (sum(values) / len(runs) for values in ([r.ttft_p50 for r in runs], [r.ttft_p95 for r in runs]))
        at_load.append({
            "load": load, "p50_s": p50, "p95_s": p95,
            "p50_off": by_formula.at("ttft", 50) / p50 - 1, "p95_off": by_formula.at("ttft", 95) / p95 - 1,
        })  # fmt: skip
    return {
        "name": case.name,
        "short": engine.most.name,
        "most": {"simulated": over.throughput, "off": engine.most.rate / over.throughput - 1},
        "promise": {
            "simulated": true,
            "formula_off": first.rate / true - 1,
            "plan_off": planned / true - 1,
            "runs": len(short),
        },
        "ttft": at_load,
    }


def _true(engine: Any, promise: Promise, near: float) -> float:
    """The highest rate at which long runs keep the promise, in the mean of the seeds: by bisection."""
    found = []
    for seed in SEEDS:
        low, high = 0.7 * near, 1.3 * near
        while high - low > EXACT * near:
            middle = (low + high) / 2
            if capacity_check.run(engine, middle, promise, seed=seed, count=REQUESTS).kept(promise):
                low = middle
            else:
                high = middle
        found.append((low + high) / 2)
    return sum(found) / len(found)


def _seconds() -> list[tuple[float, float]]:
    """(seconds, seconds of CPU) of the command, the interpreter's start included."""
    command = [sys.executable, "-c", "from forebay.cli.main import main; main()", "plan"]
    env = os.environ | {"PYTHONDONTWRITEBYTECODE": ""}
    command += ["--model", "Qwen/Qwen3-32B", "--gpu", "A100-80G", "--slo-ttft", "1.5", "--users", "10000"]
    found = []
    for i in range(TIMES + 1):  # the first makes bytecode, where the environment forbids it, too
        before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=env)
        took, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        if i:
            found.append((took, cpu))
    return found

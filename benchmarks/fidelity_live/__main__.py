"""make bench-fidelity_live: calibrate a real engine on this machine, then predict a workload that it was not calibrated
with, and measure how far the prediction is off."""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import uvloop
from rich.console import Console
from rich.table import Table

from benchmarks.common import BenchError, env_int, env_names, run, two_cores, verdict, write_results
from benchmarks.fidelity_live.engines import ENGINES, Live
from benchmarks.fidelity_live.predict import Answer, Request, predict, workload
from forebay.hardware.fitted import FittedStepTime, load_fitted, save
from forebay.plan.calibrate import CalibrateError, Calibration, Settings, calibrate
from forebay.plan.calibrate_client import Session, Shape, Stream
from forebay.plan.target import LoadError, Target

SLO = 1.5
"""Seconds to the first token. The knee: the rate at which the prediction's P99 reaches it."""
LOADS = {"below the knee": 0.75, "at the knee": 1.0}
"""Shares of the knee's rate."""
BARS = {"TTFT P50": 0.15, "TTFT P99": 0.15, "TPOT mean": 0.10, "TPOT P50": 0.10}
HELD = ("vllm",)
"""Engines whose figures must meet the bars; of others they are shown."""


@dataclass(frozen=True)
class Run:
    """One run of a workload: what was sent when, what came back, what the model says of the same requests."""

    requests: list[Request]
    measured: list[Answer]
    predicted: list[Answer]


def figures(answers: Sequence[Answer]) -> dict[str, float]:
    ttft = sorted(a.ttft for a in answers)
    tpot = sorted(a.tpot for a in answers if a.tpot is not None)
    return {
        "TTFT P50": _at(ttft, 0.50),
        "TTFT P90": _at(ttft, 0.90),
        "TTFT P99": _at(ttft, 0.99),
        "TTFT mean": statistics.fmean(ttft),
        "TPOT P50": _at(tpot, 0.50),
        "TPOT mean": statistics.fmean(tpot),
    }


def _at(ordered: Sequence[float], share: float) -> float:
    """The percentile, between the two nearest observations."""
    place = share * (len(ordered) - 1)
    i = min(int(place), len(ordered) - 2)
    return ordered[i] + (place - i) * (ordered[i + 1] - ordered[i])


def knee(steps: FittedStepTime, count: int, max_prompt: int) -> float:
    """Requests a second at which the predicted P99 of TTFT is the SLO. Raises BenchError where there is none."""
    low, high = 0.01, 1_000.0
    if (alone := figures(predict(workload(low, count, max_prompt), steps))["TTFT P99"]) > SLO:
        raise BenchError(f"this engine's P99 of TTFT is over {SLO:g} s at any rate: {alone:.2f} s where it is idle")
    for _ in range(30):
        rate = (low * high) ** 0.5
        if figures(predict(workload(rate, count, max_prompt), steps))["TTFT P99"] > SLO:
            high = rate
        else:
            low = rate
    return low


async def send(live: Live, requests: Sequence[Request], a_word: float, fixed: float) -> list[Stream]:
    """Open loop. Raises BenchError where a request fails or ends early."""
    session = Session(Target.parse(live.url), live.model, None, timeout=300.0)
    await session.open()
    try:
        await session.batch([Shape(20, 4)] * 4)  # connections, warm
        shapes = [Shape(max(1, round((r.prompt_tokens - fixed) / a_word)), r.output_tokens, r.at) for r in requests]
        streams = await session.batch(shapes)
    finally:
        await session.close()
    for stream, request in zip(streams, requests, strict=True):
        if stream.error is not None or stream.output_tokens != request.output_tokens:
            raise BenchError(
                f"a request for {request.output_tokens} tokens got {stream.output_tokens}: {stream.error or 'no error'}"
            )
    return streams


def measure(live: Live, planned: Sequence[Request], steps: FittedStepTime, words: tuple[float, float]) -> Run:
    streams = uvloop.run(send(live, planned, *words))
    began = streams[0].sent
    requests = [Request(s.sent - began, s.prompt_tokens, s.output_tokens) for s in streams]
    measured = []
    for s in streams:
        more = s.output_tokens - 1
        measured.append(Answer(s.ttft, (s.times[-1] - s.times[0]) / more if more else None))
    return Run(requests, measured, predict(requests, steps))


def calibrated(live: Live, seconds: float, work: Path) -> tuple[Calibration, FittedStepTime]:
    settings = Settings(model=live.model, seconds=seconds, max_prompt=live.max_prompt)
    try:
        found = uvloop.run(calibrate(Target.parse(live.url), settings, None))
    except (CalibrateError, LoadError) as e:
        raise BenchError(str(e)) from None
    path = work / "profile.yaml"
    save(found.profile, path)
    return found, load_fitted(path)


def compare(engine: str, runs: dict[str, list[Run]], rates: dict[str, float], say: Console) -> tuple[object, list[str]]:
    """Print and judge: the prediction's mean over the runs against the engine's, beside the engine's own spread."""
    table = Table(title=f"{engine}: predicted against measured, means of the runs")
    for name in ("load", "requests/s", "", "measured", "its spread", "predicted", "error", "single runs", "bar"):
        table.add_column(name, justify="left" if name in ("load", "") else "right")
    out: dict[str, object] = {}
    fell = []
    for load, members in runs.items():
        measured = [figures(r.measured) for r in members]
        predicted = [figures(r.predicted) for r in members]
        rows: dict[str, object] = {}
        for name in measured[0]:
            own = [m[name] for m in measured]
            mean, said = statistics.fmean(own), statistics.fmean(p[name] for p in predicted)
            error = said / mean - 1.0
            single = [p[name] / m - 1.0 for p, m in zip(predicted, own, strict=True)]
            spread = (max(own) - min(own)) / mean
            bar = BARS.get(name)
            rows[name] = {
                "measured_s": mean,
                "predicted_s": said,
                "error": error,
                "errors_of_runs": single,
                "spread_of_engine": spread,
                "bar": bar,
            }
            if bar is not None and abs(error) > bar and engine in HELD:
                fell.append(f"{engine}, {load}: {name} is off by {error:+.1%}, the bar is {bar:.0%}")
            table.add_row(
                load if name == "TTFT P50" else "",
                f"{rates[load]:.2f}" if name == "TTFT P50" else "",
                name,
                f"{mean * 1e3:,.1f} ms",
                f"{spread:.0%}",
                f"{said * 1e3:,.1f} ms",
                f"{error:+.1%}",
                f"{min(single):+.0%} … {max(single):+.0%}",
                "" if bar is None else f"{bar:.0%}",
            )
        table.add_section()
        out[load] = {"rate": rates[load], "figures": rows, "runs": [asdict(r) for r in members]}
    say.print(table)
    return out, fell


def main() -> int:
    engines = env_names("ENGINES", ["vllm"], list(ENGINES))
    repeats = env_int("RUNS", 5)
    count = env_int("REQUESTS", 150, least=20)
    seconds = env_int("CALIBRATE_SECONDS", 120, least=10)
    core, client_core = two_cores()
    os.sched_setaffinity(0, {client_core})
    say = Console(width=None if sys.stdout.isatty() else 140)
    results: dict[str, object] = {}
    fell: list[str] = []
    for engine in engines:
        with (
            tempfile.TemporaryDirectory(prefix="forebay-bench-") as folder,
            ENGINES[engine](Path(folder), core, client_core) as live,
        ):
            say.print(f"{engine}: ready; calibrating for {seconds} s", highlight=False)
            found, steps = calibrated(live, seconds, Path(folder))
            rate = knee(steps, count, live.max_prompt)
            say.print(f"{engine}: the knee is predicted at {rate:.2f} requests/s", highlight=False)
            runs: dict[str, list[Run]] = {load: [] for load in LOADS}
            rates = {load: rate * share for load, share in LOADS.items()}
            began = time.monotonic()
            for i in range(repeats):
                for load in LOADS:
                    planned = workload(rates[load], count, live.max_prompt)
                    runs[load].append(measure(live, planned, steps, found.words))
                say.print(f"{engine}: run {i + 1} of {repeats}, {time.monotonic() - began:.0f} s", highlight=False)
            compared, short = compare(engine, runs, rates, say)
            fell += short
            results[engine] = {
                "started_with": live.facts,
                "profile": asdict(found.profile),
                "left_out": found.left_out,
                "samples": [asdict(s) for s in found.samples],
                "knee_rate": rate,
                "loads": compared,
                "extrapolated": list(steps.warnings),
            }
    busy = os.getloadavg()[0]
    path = write_results(
        "fidelity_live", {"slo_s": SLO, "bars": BARS, "engines": results, "fell_short": fell, "load_average": busy}
    )
    say.print(path, highlight=False)
    return verdict(fell)


if __name__ == "__main__":
    run(main)

"""The traffic that is offered: traces sped up, floods and steps, each at a multiple of its own knee."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random

from benchmarks.common import ROOT, BenchError
from forebay.plan.simulate import Ready, Setup, SimulateError, prepare
from forebay.plan.simulate_hardware import Wanted
from forebay.sim.oracle import Promise
from forebay.sim.workload import Ask

LOADS = (1.0, 1.5, 2.0, 3.0, 5.0)
CLASSES = ("vip", "normal", "low")
MIX = "classes=(vip=10;normal=60;low=30)"
SEED = 4
TAIL = 5.0
"""Simulated seconds of traffic behind what is scored, so that the last requests meet the same pressure."""
CONV, CODE, MOON = "AzureLLMInferenceTrace_conv.csv", "AzureLLMInferenceTrace_code.csv", "mooncake_conversation.jsonl"


CHAT = Promise(ttft=1.5, tpot=0.05)
LONG = Promise(ttft=1.5, multiple=2.0, tpot=0.1)


@dataclass(frozen=True, slots=True)
class Traffic:
    """A workload on a fleet. `seconds` are scored: of a trace as it was recorded, so that these are the same requests
    at every load; of made-up traffic as simulated."""

    name: str
    title: str
    kind: str
    file: str
    engines: int = 1
    seconds: float = 1_800.0
    promise: Promise = CHAT


TRAFFIC = {
    t.name: t
    for t in (
        Traffic("conv", "Azure conversation, 1 engine", "trace", CONV),
        Traffic("code", "Azure code, 1 engine", "trace", CODE),
        Traffic("mooncake", "Mooncake conversation, 1 engine", "spread", MOON, promise=LONG),
        Traffic("flood", "floods of 500 at once, 1 engine", "flood", CONV, seconds=120.0),
        Traffic("steps", "5 × steps, 1 engine", "steps", CONV, seconds=120.0),
        Traffic("conv4", "Azure conversation, 4 engines", "trace", CONV, engines=4, seconds=450.0),
        Traffic("flood4", "floods of 500 at once, 4 engines", "flood", CONV, engines=4, seconds=60.0),
    )
}


@dataclass(frozen=True, slots=True)
class Offered:
    """Traffic at one speed."""

    ready: Ready
    seconds: float
    """What arrives before is scored."""
    spread: float
    """Seconds by which equal arrivals are spread."""

    def asks(self) -> Iterator[Ask]:
        stream = self.ready.workload.asks()
        if not self.spread:
            return stream
        return self._spread(stream)

    def _spread(self, stream: Iterator[Ask]) -> Iterator[Ask]:
        """Mooncake's arrivals are written down in multiples of 3 s: those of one instant are spread over the next 3."""
        random = Random(SEED)
        group: list[Ask] = []
        for ask in stream:
            if group and ask.arrival > group[0].arrival:
                yield from self._moved(group, random)
                group = []
            group.append(ask)
        yield from self._moved(group, random)

    def _moved(self, group: list[Ask], random: Random) -> list[Ask]:
        return sorted(a._replace(arrival=a.arrival + random.random() * self.spread) for a in group)


def data() -> Path:
    """The folder of the traces. Raises BenchError where it is none."""
    folder = Path(os.environ.get("DATA") or ROOT.parent / "shared/data/traces")
    if not folder.is_dir():
        raise BenchError(f"there is no folder {folder} with traces; name one by DATA=path")
    return folder


def offer(traffic: Traffic, rate: float, **engine: object) -> Offered:
    """`rate`: of a trace, how many times as fast as it was recorded; of made-up traffic, requests a second. `engine`:
    settings that differ from vLLM's defaults. Raises BenchError where the trace is missing."""
    path = data() / traffic.file
    if not path.is_file():
        raise BenchError(f"there is no trace {path}; name a folder with it by DATA=path")
    speed, spread, seconds = 1.0, 0.0, traffic.seconds
    if traffic.kind in ("trace", "spread"):
        speed, seconds = rate, traffic.seconds / rate
        spread = 3.0 / rate if traffic.kind == "spread" else 0.0
        copies = f",scale={traffic.engines},spread=60" if traffic.engines > 1 else ""
        spec = f"{path}{copies},{MIX},duration={traffic.seconds + TAIL * rate}"
    else:
        spec = f"onoff:{_shape(traffic, rate)},lengths=trace({path}),{MIX},duration={traffic.seconds + TAIL}"
    wanted = Wanted(gpu="h100_sxm", model="llama-3.1-8b")
    settings = {"enable_prefix_caching": False, **engine}
    setup = Setup(workload=spec, seed=SEED, speed=speed, engines=traffic.engines, hardware=wanted, engine=settings)
    try:
        return Offered(prepare(setup), seconds, spread)
    except SimulateError as e:
        raise BenchError(str(e)) from None


def _shape(traffic: Traffic, rate: float) -> str:
    if traffic.kind == "steps":  # a third of the load and five thirds, in turn
        return f"high={rate * 5 / 3},low={rate / 3},on=15,off=15"
    # 500 in 10 ms, again and again, so that they and the even load beside them make up the rate
    base = 0.5 * rate if rate < 20 * traffic.engines else 10.0 * traffic.engines
    return f"high=50000,on=0.01,off={500 / (rate - base) - 0.01},low={base}"

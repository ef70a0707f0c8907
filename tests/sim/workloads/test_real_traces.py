"""Published traces, where they lie beside the repository: facts that are known of them."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from statistics import fmean, pstdev

import pytest

from forebay.sim.workloads import open_workload

DATA = Path(__file__).parents[4] / "shared" / "data"
TRACES = DATA / "traces"
pytestmark = pytest.mark.skipif(not TRACES.is_dir(), reason=f"the published traces are not at {TRACES}")


@pytest.mark.parametrize(
    ("name", "requests", "prompt", "rate", "cv"),
    [
        ("AzureLLMInferenceTrace_conv.csv", 19_366, (2, 14_050), 5.5, 1.1),
        ("AzureLLMInferenceTrace_code.csv", 8_819, (3, 7_437), 2.6, 13.2),
    ],
)
def test_azure(name: str, requests: int, prompt: tuple[int, int], rate: float, cv: float) -> None:
    asks = list(open_workload(TRACES / name))
    assert len(asks) == requests
    assert (min(a.prompt_tokens for a in asks), max(a.prompt_tokens for a in asks)) == prompt
    gaps = [b.arrival - a.arrival for a, b in pairwise(asks)]
    assert 1 / fmean(gaps) == pytest.approx(rate, abs=0.05)
    assert pstdev(gaps) / fmean(gaps) == pytest.approx(cv, rel=0.03)


def test_mooncake_ideal_hit_rate() -> None:
    seen: set[int | str] = set()
    n = hits = blocks = 0
    for ask in open_workload(TRACES / "mooncake_conversation.jsonl"):
        n += 1
        assert sum(tokens for _, tokens in ask.prefix) == ask.prompt_tokens
        hitting = True
        for key, _ in ask.prefix:
            hitting = hitting and key in seen
            hits += hitting
            blocks += 1
            seen.add(key)
    assert n == 12_031
    assert ask.arrival == pytest.approx(59 * 60, abs=5)
    assert hits / blocks == pytest.approx(0.366, abs=0.0005)


@pytest.mark.parametrize("name", ["azure", "lmsys", "lmsys_multiturn", "agent_heavy"])
def test_length_distributions(name: str) -> None:
    asks = list(open_workload(f"poisson:rate=9,requests=20000,lengths=cdf({TRACES / name}_cdf.json;0.7)"))
    below = sum(a.prompt_tokens + a.output_tokens <= 512 for a in asks) / len(asks)
    known = {"azure": 0.2886, "lmsys": 0.6383, "lmsys_multiturn": 0.6383, "agent_heavy": 0.0041}[name]
    assert below == pytest.approx(known, abs=0.015)


@pytest.mark.parametrize("machine", ["RTX4090", "RTXPRO6000"])
def test_vllm_runs(machine: str) -> None:
    asks = list(open_workload(DATA / "vllm-runs" / f"{machine}-Llama-3.1-8B" / "requests.jsonl"))
    assert len(asks) == 300
    assert asks[0][:3] == (0.0, 2358, 531)
    assert len(asks) / asks[-1].arrival == pytest.approx(10, rel=0.1)

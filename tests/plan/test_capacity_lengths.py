"""Lengths and traffic of a plan: what is read, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from forebay.plan.capacity_lengths import LengthError, Lengths, distribution, independent, of_workload, together
from forebay.plan.capacity_question import PlanError
from forebay.plan.capacity_traffic import DAY, HOUR, hours, of_arrivals
from forebay.sim.workloads import open_workload


def test_mean_and_p95_are_those_of_what_is_drawn() -> None:
    found = independent("mean=1000,p95=2500", "mean=200,p95=300")
    assert found.prompt == pytest.approx(1000, rel=0.02)
    assert found.quantile("prompt", 0.95) == pytest.approx(2500, rel=0.05)
    assert found.output == pytest.approx(200, rel=0.02)
    assert found.quantile("output", 0.95) == pytest.approx(300, rel=0.05)


def test_numbers_are_exact_and_draw_once() -> None:
    found = independent("1000", "200")
    assert (found.prompt, found.output, len(found.prompts)) == (1000, 200, 1)
    # of P = 1000, O = 200 the 199 decode steps see 1,001 to 1,199 tokens
    assert found.decode_context == pytest.approx(1100)


def test_uniform_in_both_spellings() -> None:
    for text in ("uniform:100:300", "uniform(100;300)"):
        assert distribution(text).mean == 200


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("abc", "a number is wanted"),
        ("mean=10,p95=100", "between the mean and 3.87 times the mean (39)"),
        ("mean=10,p95=5", "between the mean"),
        ("p95=5", "the mean is missing"),
        ("uniform:300:100", "LOW <= HIGH"),
        ("mean=0", "at least 1"),
        ("mean=5,median=3", "each of these once"),
    ],
)
def test_lengths_that_are_none_name_the_option_and_what_is_allowed(text: str, said: str) -> None:
    with pytest.raises(LengthError, match="--prompt") as e:
        independent(text, "10")
    assert said in str(e.value)
    assert "lognormal(MEDIAN;SIGMA" in str(e.value)


def test_a_whole_request_is_split_by_share(tmp_path: Path) -> None:
    file = tmp_path / "cdf.json"
    file.write_text(json.dumps([[100, 0.5], [1000, 1.0]]))
    found = together(str(file), 0.75)
    assert found.prompt / (found.prompt + found.output) == pytest.approx(0.75, abs=0.01)
    with pytest.raises(LengthError, match=r"cdf\.json"):
        together(str(file), 2)


def test_a_trace_keeps_its_pairs(tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"
    rows = [{"arrival": i, "prompt_tokens": 10 * (i + 1), "output_tokens": i + 1} for i in range(50)]
    file.write_text("\n".join(map(json.dumps, rows)) + "\n")
    found, arrivals = of_workload(open_workload(str(file)))
    assert np.array_equal(found.prompts, 10 * found.outputs)
    assert arrivals[-1] == 49
    assert len(found.at_most(110).prompts) == 10
    with pytest.raises(LengthError):
        found.at_most(5)


def test_no_requests_are_no_lengths() -> None:
    with pytest.raises(LengthError, match="no requests"):
        Lengths(np.zeros(0), np.zeros(0), "nothing")


# --- traffic ----------------------------------------------------------------------------------------------------------


def test_hours_are_24_numbers() -> None:
    assert hours(",".join(["1.5"] * 24)) == (1.5,) * 24
    with pytest.raises(PlanError, match="24 numbers, requests a second from midnight, not 3"):
        hours("1,2,3")
    with pytest.raises(PlanError, match="hour 1 is 'x'"):
        hours("0,x" + ",1" * 22)


def test_a_trace_of_a_moment_is_little_to_tell_a_rate_by() -> None:
    assert "2 requests in 0.001 s, which is little" in of_arrivals(np.array([0, 0.001]), "t").notes[0]
    assert "60 requests in 2.95e+03 s, which is little" in of_arrivals(np.arange(60) * 50.0, "t").notes[0]
    assert of_arrivals(np.arange(600) * 5.0, "t").notes == ()


def test_a_short_trace_is_planned_for_its_busiest_five_minutes() -> None:
    calm = np.arange(0, 1800, 1.0)
    busy = np.arange(1800, 2100, 0.1)
    found = of_arrivals(np.concatenate([calm, busy]), "t", growth=2)
    assert found.traffic.peak == pytest.approx(20, rel=0.01)
    assert found.traffic.hours[0] == pytest.approx(2 * 4800 / 2100, rel=0.01)
    assert found.notes == ()


def test_days_become_hours_each_with_its_highest() -> None:
    rng = np.random.default_rng(1)
    day = np.concatenate([np.sort(rng.uniform(0, HOUR, 36 * (hour + 1))) + hour * HOUR for hour in range(24)])
    found = of_arrivals(np.concatenate([day, day[:36] + DAY]), "t")
    assert found.traffic.hours[5] == pytest.approx(0.06, rel=0.05)
    assert found.traffic.hours[22] == pytest.approx(0.23, rel=0.05)


def test_holes_are_named_and_are_not_quiet() -> None:
    arrivals = np.concatenate([np.arange(0, 1000, 1.0), np.arange(5000, 6000, 1.0)])
    found = of_arrivals(arrivals, "t.csv")
    assert "t.csv has 1 hole of 67 minutes in all, the longest from minute 17 to 83" in found.notes[0]
    assert found.traffic.hours[0] == pytest.approx(1.0, rel=0.01)


def test_bursts_are_named() -> None:
    rng = np.random.default_rng(2)
    even = np.cumsum(rng.exponential(0.5, 4000))
    assert of_arrivals(even, "t").notes == ()
    bursts = np.repeat(even[::20], 20)
    assert "comes in bursts" in of_arrivals(bursts, "t").notes[-1]


def test_one_moment_is_no_rate() -> None:
    with pytest.raises(PlanError, match="give --qps or --users"):
        of_arrivals(np.zeros(5), "t")

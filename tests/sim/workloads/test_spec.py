"""A workload from one line of text."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from forebay.sim.workloads import WorkloadError, open_workload

TRACE = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,30,20\n2023-11-16 18:15:56,50,10\n"


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "a,b + (c).csv"
    path.write_text(TRACE)
    return path


def test_a_path_is_taken_as_it_is(trace: Path) -> None:
    assert len(list(open_workload(str(trace)))) == 2
    assert len(list(open_workload(trace))) == 2


def test_a_path_in_quotes_with_keys(trace: Path) -> None:
    asks = list(open_workload(f'azure:"{trace}",repeat=2,speed=10,tenant=acme,class=low,requests=3'))
    assert [(a.arrival, a.tenant, a.cls) for a in asks] == [(t, "acme", "low") for t in (0, 1, 2)]
    assert asks == list(open_workload(f'trace:requests=3,class=low,tenant=acme,path="{trace}",speed=10,repeat=2'))


def test_a_file_followed_by_keys(tmp_path: Path) -> None:
    path = tmp_path / "plain.csv"
    path.write_text(TRACE)
    assert [a.arrival for a in open_workload(f"{path},speed=4")] == [0, 2.5]


def test_lengths_from_a_trace(trace: Path) -> None:
    asks = list(open_workload(f'constant:rate=1,requests=50,lengths=trace("{trace}")'))
    assert {a[1:3] for a in asks} == {(30, 20), (50, 10)}


def test_units_and_seed() -> None:
    assert len(list(open_workload("constant:rate=2,duration=1m"))) == 120
    assert list(open_workload("poisson:rate=2,duration=1m,seed=5", seed=1)) == list(
        open_workload("poisson:rate=2,duration=60000ms", seed=5)
    )


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("posson:rate=5", "no such file, and no KIND:key=value,… of the kinds poisson, gamma, constant, onoff"),
        ("poisson:rate=5", "poisson has no end: give duration= or requests="),
        ("burst:duration=5", "burst has no end"),
        ("poisson:rat=5,duration=10", "rate: is missing; given are rat, duration"),
        (
            "poisson:rate=5,duration=10,cv=2",
            "poisson has no cv; allowed are class, classes, context, duration, ",
        ),
        ("poisson:rate=five,duration=10", "rate: a number is wanted, not 'five'"),
        ("poisson:rate=nan,duration=10", "rate: a number is wanted, not 'nan'"),
        ("poisson:rate=-1,duration=10", "rate must be from 1e-06 to 1e+09, not -1"),
        ("poisson:rate=1,duration=10 parsecs", "duration: a duration is wanted, such as 90, 500ms, 10m or 24h"),
        ("poisson:rate=1,duration=inf", "duration: a duration is wanted"),
        ("poisson:rate=1,requests=1.5", "requests: a whole number is wanted, not '1.5'"),
        ("poisson:rate=1,requests=1e300", "requests: a whole number is wanted"),
        ("poisson:rate=1,rate=2,duration=3", "rate is given twice"),
        ("poisson:rate=1,duration", "'duration' is not key=value"),
        ("poisson:rate=1,duration=3,prompt=normal(5;2)", "prompt: 'normal(5;2)' is no distribution; allowed are N,"),
        ("poisson:rate=1,duration=3,prompt=uniform(9;2)", "prompt: uniform(LOW;HIGH) needs 0 <= LOW <= HIGH"),
        ("poisson:rate=1,duration=3,prompt=lognormal(nan;1)", "prompt: a number is wanted, not 'nan'"),
        ("poisson:rate=1,duration=3,prompt=-3", "prompt: a number of at least 0 is wanted, not '-3'"),
        ("poisson:rate=1,duration=3,output=5m", "output: a number is wanted, not '5m'"),
        ("poisson:rate=1,duration=3,turns=2,think=x", "think: a duration is wanted, such as 90, 500ms"),
        ("poisson:rate=1,duration=3,speed=1e-300", "speed must be from 1e-06 to 1,000,000, not 1e-300"),
        ("poisson:rate=1,duration=3,prompt=uniform(9;2", "a ( that is not closed"),
        ("poisson:rate=1,duration=3,tenant=a)", "a ) without a ("),
        ("poisson:rate=1,duration=3,classes=(gold=1)", "class 'gold' is unknown; allowed are vip, normal, low"),
        ("poisson:rate=1,duration=3,classes=(vip)", "classes: 'vip' is wrong; wanted are names"),
        ("poisson:rate=1,duration=3,tenants=2,tenant=a", "tenant: is one for all; give it or tenants"),
        ("poisson:rate=1,duration=3,lengths=cdf(/none)", "/none: cannot be read: No such file"),
        ("poisson:rate=1,duration=3,lengths=zipf(3)", "lengths: 'zipf(3)' is unknown; allowed are cdf("),
        ("gamma:rate=1,cv=99,duration=3", "cv must be at most 30, not 99"),
        ("onoff:high=3,low=9,on=1,off=1,duration=9", "low must be from 0 to high (3), not 9"),
        ("onoff:high=3,on=0,off=1,duration=9", "on must be from 1e-06"),
        ("onoff:high=3,on=1,off=1,phases=odd,duration=9", "phases: 'odd' is unknown; allowed are random, fixed"),
        ("diurnal:rate=3,hours=(1;x),duration=9", "hours: a number is wanted, not 'x'"),
        ("diurnal:rate=3,hours=(0;0),duration=9", "weights must not all be 0"),
        ("diurnal:rate=3,hours=(1;2),swing=0.5,duration=9", "diurnal has no swing"),
        ("diurnal:rate=3,swing=2,duration=9", "swing must be from 0 to 1, not 2"),
        ("burst:requests=9,turns=2", "turns: conversations cannot all begin at once"),
        ("poisson:rate=1,duration=3,think=3", "poisson has no think"),
        ("poisson:rate=1,duration=3 + gamma:rate=1", "cv: is missing"),
        ("azure:", "path: is missing; given are no keys"),
    ],
)
def test_mistakes_name_the_key_and_what_is_allowed(spec: str, said: str) -> None:
    with pytest.raises(WorkloadError) as caught:
        open_workload(spec)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_keys_that_a_trace_does_not_have(trace: Path) -> None:
    with pytest.raises(WorkloadError, match="trace has no rate; allowed are bad, class, classes, context, duration"):
        open_workload(f'trace:"{trace}",rate=3')


def test_a_workload_can_go_to_another_process(trace: Path) -> None:
    spec = f'trace:"{trace}",scale=3 + poisson:rate=3,turns=geometric(3),requests=50,tenants=5,skew=1'
    workload = open_workload(spec, seed=3)
    assert list(pickle.loads(pickle.dumps(workload))) == list(workload) == list(open_workload(spec, seed=3))

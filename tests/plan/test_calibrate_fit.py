"""The fit: known coefficients come back from timings made of them, noise and outliers or not."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.hardware.fitted import Coefficients, EngineFacts, FitError, FittedProfile, FittedStepTime, Host, Ranges
from forebay.hardware.steptime import Chunk
from forebay.plan.calibrate_fit import CannotFit, Fit, Sample, Step, fit, knots_of, nnls

TRUE = Coefficients(((1, 0.008), (8, 0.012), (64, 0.030), (1_024, 0.390)), 0.0005, 0.001, 8e-7, 2e-8)
HOST = Host(0.004, 2e-5)
BUDGET = 1_024


def steps_with(coefficients: Coefficients) -> FittedStepTime:
    wide = Ranges(10_000, 10**9, 10**6, 10**9)
    return FittedStepTime(FittedProfile(EngineFacts(), "", coefficients, Host(), wide, FitError(1.0)))


def chunked(tokens: int, n: int, context: int) -> tuple[Step, ...]:
    out, done = [], 0
    while done < tokens:
        size = min(BUDGET - n, tokens - done)
        out.append(Step((Chunk(size, done, done + size == tokens),), n, context))
        done += size
    return tuple(out)


def seconds_of(steps: Sequence[Step], times: FittedStepTime) -> float:
    return sum(times.mixed(s.chunks, s.n, s.context, 0) if s.chunks else times.decode(s.n, s.context, 0) for s in steps)


def samples(times: FittedStepTime, host: Host, noise: float = 0.0, outliers: float = 0.0) -> list[Sample]:
    rng = random.Random(1)
    out = []

    def add(axis: str, point: str, steps: tuple[Step, ...], prompt: int | None = None) -> None:
        seconds = seconds_of(steps, times)
        if prompt is not None:
            seconds += host.per_request + host.per_prompt_token * prompt
        seconds *= 1 + rng.uniform(-noise, noise)
        if rng.random() < outliers:
            seconds *= 3
        out.append(Sample(axis, point, steps, seconds, prompt_tokens=prompt))

    for _ in range(5):
        for tokens in (16, 32, 64, 128, 256, 512, 1_024, 2_000):
            add("prefill", f"{tokens}", chunked(tokens, 0, 0), tokens)
        for n in (1, 2, 4, 8):
            for each in (20, 1_000):
                add("decode", f"{n} × {each}", (Step((), n, n * each),))
        for n in (4, 7):
            for tokens in (64, 256, 1_000, 2_000):
                add("mixed", f"{tokens} beside {n}", chunked(tokens, n, n * 20))
    return out


GRID = [
    (Step((), n, n * each),) for n in (1, 3, 8) for each in (10, 400, 900)
] + [chunked(tokens, n, n * 100) for n in (0, 2, 7) for tokens in (20, 100, 700, 1_500)]  # fmt: skip


def off(found: Fit, times: FittedStepTime) -> float:
    """The largest error on batches that were not measured."""
    fitted = steps_with(found.coefficients)
    return max(abs(seconds_of(s, fitted) / seconds_of(s, times) - 1) for s in GRID)


def test_known_coefficients_come_back() -> None:
    times = steps_with(TRUE)
    found = fit(samples(times, HOST))
    assert off(found, times) < 0.01
    c = found.coefficients
    assert c.per_context_token == pytest.approx(TRUE.per_context_token, rel=0.02)
    assert c.per_attention_pair == pytest.approx(TRUE.per_attention_pair, rel=0.02)
    assert found.host.per_request == pytest.approx(HOST.per_request, rel=0.05)
    assert found.host.per_prompt_token == pytest.approx(HOST.per_prompt_token, rel=0.05)
    assert found.error.r2 > 0.9999
    assert found.error.mape.keys() == {"prefill", "decode", "mixed"}
    assert max(found.error.mape.values()) < 0.005
    assert (found.error.points, found.error.samples) == (24, 120)


def test_noise_averages_out_and_outliers_weigh_little() -> None:
    times = steps_with(TRUE)
    found = fit(samples(times, HOST, noise=0.03, outliers=0.05))
    assert off(found, times) < 0.05
    assert max(found.error.mape.values()) < 0.05, "of medians"


def test_an_axis_that_the_formula_cannot_follow_shows_in_its_error() -> None:
    times = steps_with(TRUE)
    odd = [
        dataclasses.replace(s, seconds=s.seconds * 2) if s.axis == "mixed" and "256" in s.point else s
        for s in samples(times, HOST)
    ]
    found = fit(odd)
    assert found.error.mape["mixed"] > 0.1
    assert next(p for p in found.points if p.name == "256 beside 7").error < -0.3


def test_decoding_alone_can_be_fitted_too() -> None:
    times = steps_with(TRUE)
    found = fit([s for s in samples(times, HOST) if s.axis == "decode"])
    assert [n for n, _ in found.coefficients.curve] == [1, 2, 4, 8]
    assert found.error.mape == {"decode": pytest.approx(0, abs=0.01)}


def test_the_curve_bends_where_batches_decode_and_where_there_are_samples() -> None:
    assert knots_of(samples(steps_with(TRUE), HOST)) == [1, 2, 4, 8, 16, 64, 256, 1_024]
    few = [Sample("decode", "", (Step((), 64, 0),), 1.0), Sample("prefill", "", chunked(900, 0, 0), 1.0)]
    assert knots_of(few) == [64, 900]


def test_nothing_fits_nothing() -> None:
    with pytest.raises(CannotFit, match="nothing was measured"):
        fit([])
    with pytest.raises(CannotFit, match="not more than 0 s"):
        fit([Sample("decode", "", (Step((), 1, 0),), 0.0)])


@given(st.integers(1, 6), st.integers(0, 4), st.integers(0, 2**32 - 1))
def test_nnls_is_least_among_those_not_negative(columns: int, extra: int, seed: int) -> None:
    """By the Karush-Kuhn-Tucker conditions: no gradient along a free coefficient, none that would let another grow."""
    rng = np.random.default_rng(seed)
    a, b = rng.normal(size=(columns + extra, columns)), rng.normal(size=columns + extra)
    x = nnls(a, b)
    gradient = a.T @ (a @ x - b)
    assert (x >= 0).all()
    assert (gradient >= -1e-6).all()
    assert abs(gradient[x > 1e-9]).max(initial=0.0) < 1e-6


def test_nnls_lives_with_columns_that_depend_on_each_other_or_are_empty() -> None:
    a = np.array([[1.0, 1.0, 0.0], [2.0, 2.0, 0.0], [3.0, 3.0, 0.0]])
    x = nnls(a, np.array([2.0, 4.0, 6.0]))
    assert x[0] + x[1] == pytest.approx(2.0) and x[2] == 0.0 and (x >= 0).all()

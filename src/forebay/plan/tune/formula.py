"""What a setting can be expected to bear, by formula: where a search begins, and which settings are worth simulating.

One engine, n sequences running, mean prompt P of which C tokens must be computed, mean output O, t(n) the time of a
step of n decodes with contexts of P + O/2, m(c, n) that of one with a chunk of c beside them. Of a request's share of
the engine's time,

    seconds a request = O / n · t(n) + C / c · (m(c, n) - t(n)),     c = min(C, max_num_batched_tokens - n)

since its O steps are shared with n others, and its chunks lengthen C/c steps. 1 / that is the rate that n sequences
bear, and by Little's law n = rate · residence, a token takes n / O times that. n is the most that max_num_seqs, the KV
cache and the SLO's TPOT allow. Speculation divides O by the tokens a step, (1 - a^(k+1)) / (1 - a) (Leviathan et al.,
ICML 2023, eq. 1). Prefill engines bear 1 / (C / c · m(c, 0)), decode engines n / (O · t(n)).

Queueing, bursts and the spread of lengths are not in it: it overestimates, of all settings alike.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from forebay.hardware.steptime import Chunk, StepTime
from forebay.plan.simulate import Ready
from forebay.plan.tune.space import Setting
from forebay.plan.tune.trial import Problem
from forebay.sim.workload import Ask


@dataclass(frozen=True, slots=True)
class Mix:
    """What a workload's requests are like. Tokens are means."""

    requests: int
    rate: float
    """Arrivals a second."""
    prompt: float
    output: float
    longest: int
    """Prompt and output of the longest, in tokens."""
    shared: float
    """Share of all prompt tokens that are a prefix of an earlier request: what an endless cache would find."""


def mix_of(asks: Iterable[Ask]) -> Mix:
    seen: dict[int | str, int] = {}
    n = prompt = output = longest = found = 0
    first = last = 0.0
    for ask in asks:
        if not n:
            first = ask.arrival
        n, last = n + 1, ask.arrival
        prompt += ask.prompt_tokens
        output += ask.output_tokens
        longest = max(longest, ask.prompt_tokens + ask.output_tokens)
        hit = at = 0
        for key, tokens in ask.prefix:
            hit = max(hit, at + min(tokens, seen.get(key, 0)))
            at += tokens
            seen[key] = max(tokens, seen.get(key, 0))
        if ask.keeps is not None:
            seen[ask.keeps] = max(seen.get(ask.keeps, 0), ask.prompt_tokens + ask.output_tokens)
        found += min(hit, ask.prompt_tokens)
    span = last - first
    return Mix(n, (n - 1) / span if span > 0 else 0.0, prompt / n, output / n, longest, found / prompt)


@dataclass(frozen=True, slots=True)
class Expected:
    """By formula. `rate`: requests a second of all engines; 0 where the SLO is below what an idle engine takes.
    `alone`: TTFT and TPOT of a request that has an engine to itself, seconds."""

    rate: float
    alone: tuple[float, float]


def expect(setting: Setting, ready: Ready, mix: Mix, problem: Problem) -> Expected:
    steps, settings, slo = ready.steps, ready.settings, problem.base.slo
    computed = max(1.0, mix.prompt * (1 - (mix.shared if setting.enable_prefix_caching else 0.0)))
    drafts, a = setting.speculative_tokens, problem.acceptance
    advance = 1.0 if not drafts else drafts + 1.0 if a >= 1 else (1 - a ** (drafts + 1)) / (1 - a)
    tokens = max(1.0, mix.output / advance)
    context = mix.prompt + mix.output / 2

    decoder, room = (steps, settings) if ready.decode is None else ready.decode

    def decode(n: int) -> float:
        if drafts:
            draft = drafts * problem.draft_seconds
            return decoder.mixed([Chunk(n * drafts, 0, last=False)], n, int(n * context), int(context)) + draft
        return decoder.decode(n, int(n * context), int(context))

    def chunk(n: int) -> int:
        return max(1, min(int(computed), settings.max_num_batched_tokens - n * (1 + drafts)))

    most = min(settings.max_num_seqs, int(room.kv_tokens // max(1.0, context)))
    ttft = _prefill(steps, computed, settings.max_num_batched_tokens)
    alone = (ttft, decode(1) / advance)
    if most < 1 or ttft > slo.ttft + slo.per_1k * mix.prompt / 1e3:
        return Expected(0.0, alone)

    if setting.decode_engines:
        c = chunk(0)
        prefills = setting.engines / (computed / c * steps.mixed([Chunk(c, 0)], 0, 0, 0))
        n = _most(most, lambda n: decode(n) / advance <= slo.tpot)
        return Expected(min(prefills, setting.decode_engines * n / (tokens * decode(n))) if n else 0.0, alone)

    def seconds(n: int) -> float:
        c, alone_step = chunk(n), decode(n)
        more = steps.mixed([Chunk(c, 0)], n, int(n * context), int(context)) - alone_step
        return tokens / n * alone_step + computed / c * max(0.0, more)

    n = _most(most, lambda n: n * seconds(n) / (tokens * advance) <= slo.tpot)
    return Expected(setting.engines / seconds(n) if n else 0.0, alone)


def _prefill(steps: StepTime, tokens: float, budget: int) -> float:
    """Seconds of an idle engine for a prompt of so many tokens."""
    seconds, done = 0.0, 0
    while done < tokens:
        c = min(budget, max(1, int(tokens) - done))
        seconds += steps.mixed([Chunk(c, done)], 0, 0, 0)
        done += c
        if c < budget:
            break
    return seconds


def _most(most: int, allowed: object) -> int:
    """The greatest n up to `most` that is allowed, by halving: what is allowed is so for all smaller ones. 0: none."""
    assert callable(allowed)
    if not allowed(1):
        return 0
    low, high = 1, most
    while low < high:
        middle = (low + high + 1) // 2
        if allowed(middle):
            low = middle
        else:
            high = middle - 1
    return low

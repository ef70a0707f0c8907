"""The search: by formula over all settings, then by simulations of more and more requests over fewer and fewer.

Rounds, as in successive halving (K. Jamieson, A. Talwalkar, "Non-stochastic Best Arm Identification", AISTATS 2016):

1. Every setting by formula; the best `settings` of them go on, of each layout at least a few.
2. A capacity each, of few requests.
3. The best eighth, of more.
4. The best few, of all requests and with each seed. The best on average wins.
5. What differs from it in one field, likewise: what each choice costs. Should one be better, it wins and 5 is repeated.
6. The winner, the second best of other layouts and today's setting over a range of loads.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final

from forebay.plan.simulate import SimulateError
from forebay.plan.tune.formula import Expected, Mix, expect, mix_of
from forebay.plan.tune.pool import Pool, Task
from forebay.plan.tune.space import LAYOUT, Layout, Setting, TuneError, settings, why_not
from forebay.plan.tune.trial import Lab, Point, Problem, Trial

SHARES: Final = (0.1, 0.25, 0.4, 0.55, 0.7, 0.85, 1.0, 1.15, 1.3)
"""Loads of the curves, as shares of the capacity."""
CAUTION: Final = 0.8
"""Share of the formula's rate at which the first simulation is made."""
SAMPLE: Final = 5_000
"""Requests looked at before anything is simulated."""
SECONDS: Final = (15.0, 30.0, 60.0)
"""At the rate that the best setting can be expected to bear: a queue that grows must have time to show. At most MOST
requests, each."""
MOST: Final = (1_000, 2_000, 4_000)
FINALISTS: Final = 6
LAYOUTS: Final = 4
"""Of which the best setting is looked at to the end."""
CLIMBS: Final = 2
CLIMB: Final = 1.01
"""Times the capacity of the winner, at which the search goes on from what beat it."""
STEP: Final = 256
"""max_model_len is rounded up to a multiple."""
MOST_ENGINES: Final = 4_096
MOST_COMPARED: Final = 64
"""Settings side by side."""
FILLS: Final = 6
"""Requests a place in a batch, of the simulation of full engines: filling and emptying must be a small part of it."""
MOST_FULL: Final = 8_000
FULL: Final = 3.0
"""Times the capacity at which engines are as full as they get."""

Progress = Callable[[str, int, int], None]
"""Told the round, how many of its simulations are done, and of how many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What is searched, and how thoroughly."""

    problem: Problem
    gpus: int
    given: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """Axes that were chosen by hand."""
    settings: int = 240
    """Settings that are simulated."""
    requests: int = 1_000
    """Least requests of the longest simulations; at most what the workload has."""
    seeds: int = 4
    split: bool = True
    """Whether engines that only prefill or only decode are tried."""
    current: Setting | None = None
    """What runs today: measured beside the winner."""
    latency: str = "e2e"
    jobs: int = 1
    spans: tuple[float, float, float] = SECONDS
    """Of arrivals in the three lengths of simulations, in seconds."""
    compare: bool = False
    """No search: every combination of the axes is measured to the end."""


@dataclass(slots=True)
class Found:
    """What a search knows by now. Mutable: filled round by round, so that an interrupted one can be reported."""

    mix: Mix
    requests: tuple[int, int, int]
    axes: Mapping[str, tuple[Any, ...]]
    combinations: int
    """Settings that fit, by formula."""
    unfit: int
    """Settings for which there is not enough memory."""
    simulated: int = 0
    """Simulations that were run."""
    screened: list[Trial] = field(default_factory=list)
    better: list[Trial] = field(default_factory=list)
    final: dict[Setting, list[Trial]] = field(default_factory=dict)
    """A trial for each seed."""
    winner: Setting | None = None
    curves: dict[Setting, list[Point]] = field(default_factory=dict)
    here: dict[Setting, Point] = field(default_factory=dict)
    """At the traffic as it is."""
    full: dict[Setting, Point] = field(default_factory=dict)
    """Under far more load than it bears, in a comparison."""
    fewest: tuple[Setting, Point] | None = None
    """The winner with as many engines as that traffic needs."""
    notes: list[str] = field(default_factory=list)

    def mean(self, setting: Setting) -> float:
        """Capacity over the seeds."""
        trials = self.final[setting]
        return sum(t.capacity for t in trials) / len(trials)


def begin(wish: Wish, progress: Progress = lambda name, done, of: None) -> tuple[Wish, Found, dict[Setting, Expected]]:
    """Everything that is known without a simulation: which settings there are, and what each can be expected to bear.
    Raises TuneError where none fits, and where the SLO is below what an idle engine takes."""
    lab = Lab(wish.problem)
    mix = mix_of(lab.asks(SAMPLE, 0))
    needs = STEP * math.ceil(mix.longest / STEP)
    notes = []
    given = dict(wish.given)
    if mix.shared < 1e-3 and "enable_prefix_caching" not in given:
        given["enable_prefix_caching"] = (True,)
        notes.append("No prompts of the workload share a prefix, so prefix caching changes nothing and is left on.")
    axes, all_of = settings(wish.gpus, given, needs=needs, split=wish.split, drafts=wish.problem.acceptance > 0)
    context = _context(lab, wish, all_of)
    if needs > context and "max_model_len" not in given:
        axes |= {"max_model_len": (context,)}
        all_of = list(dict.fromkeys(replace(s, max_model_len=context) for s in all_of))
        notes.append(
            f"The longest request has {mix.longest:,} tokens and the model's context is {context:,}: what is longer is "
            "refused, and counts as missing the SLO."
        )
    expected: dict[Setting, Expected] = {}
    why: dict[int, str] = {}
    for i, setting in enumerate(all_of):
        if i % 50 == 0:
            progress("all settings, by formula", i, len(all_of))
        try:
            expected[setting] = expect(setting, lab.prepare(setting), mix, wish.problem)
        except SimulateError as e:
            why.setdefault(setting.tp, str(e))
    progress("all settings, by formula", len(all_of), len(all_of))
    if not expected:
        raise TuneError(
            why[max(why)] if why else "no combination of these values is one that an engine can be started with"
        )
    notes += [f"tp {tp}: {text}" for tp, text in sorted(why.items()) if tp not in {s.tp for s in expected}]
    best = max(e.rate for e in expected.values())
    if best <= 0:
        raise TuneError(_beyond(wish, expected, mix))
    sizes = [
        round(min(most, max(wish.requests / 2**k, best * s)))
        for k, most, s in zip((2, 1, 0), MOST, wish.spans, strict=True)
    ]
    found = Found(
        mix,
        (sizes[0], sizes[1], max(sizes[2], min(wish.requests, 1 << 20))),
        axes,
        len(expected),
        len(all_of) - len(expected),
    )
    found.notes += notes
    if wish.current is not None and wish.current not in expected:
        try:
            expected[wish.current] = expect(wish.current, lab.prepare(wish.current), mix, wish.problem)
        except SimulateError as e:
            raise TuneError(f"--current: {e}") from None
    if wish.problem.windows:
        wish, notes = _in_parts(wish, lab, found.requests[2])
        found.notes += notes
    return wish, found, expected


def _in_parts(wish: Wish, lab: Lab, requests: int) -> tuple[Wish, list[str]]:
    """A trace has no other draws: its parts stand for them, as many as it has."""
    have = len(lab.asks(requests * wish.seeds, 0))
    parts = max(1, min(wish.seeds, have // requests))
    problem = replace(wish.problem, window=requests)
    if parts == wish.seeds:
        return replace(wish, problem=problem), []
    note = (
        f"The trace has {have:,} requests, enough for {parts} {'part' if parts == 1 else 'parts'} of {requests:,}, not "
        f"{wish.seeds}: " + ("how sure a difference is cannot be said." if parts == 1 else "intervals are wider.")
    )
    return replace(wish, problem=problem, seeds=parts), [note]


def _context(lab: Lab, wish: Wish, all_of: Sequence[Setting]) -> int:
    """The model's own, or of its profile. Raises TuneError."""
    from forebay.plan.simulate_hardware import HardwareError, find_hardware

    for setting in sorted(all_of, key=lambda s: -s.tp)[:1]:
        setup = setting.setup(wish.problem.base, 0.0, 0.0)
        try:
            return int(find_hardware(setup.hardware, {"num_blocks": 1}).engine["max_model_len"])
        except HardwareError as e:
            raise TuneError(str(e)) from None
    raise TuneError("no combination of these values is one that an engine can be started with")


def _beyond(wish: Wish, expected: Mapping[Setting, Expected], mix: Mix) -> str:
    slo = wish.problem.base.slo
    limit = slo.ttft + slo.per_1k * mix.prompt / 1e3
    ttft = min(e.alone[0] for e in expected.values())
    tpot = min(e.alone[1] for e in expected.values())
    if ttft > limit:
        return (
            f"--slo-ttft: {limit:.3g} s is out of reach, even for a request that is alone: the mean prompt of "
            f"{mix.prompt:,.0f} tokens takes {ttft:.3g} s on the fastest of these layouts"
        )
    return (
        f"--slo-tpot: {slo.tpot:.3g} s is out of reach, even for a request that is alone: a token takes {tpot:.3g} s "
        "on the fastest of these layouts"
    )


def screen(expected: Mapping[Setting, Expected], most: int) -> list[Setting]:
    """The best by formula, of each layout at least its share of half of them."""
    ranked = sorted(expected, key=lambda s: -expected[s].rate)
    of_layout: dict[Layout, int] = {}
    share = max(1, most // (2 * len({s.layout for s in ranked})))
    first = []
    for setting in ranked:
        of_layout[setting.layout] = of_layout.get(setting.layout, 0) + 1
        if of_layout[setting.layout] <= share:
            first.append(setting)
    chosen = dict.fromkeys(first[:most])
    for setting in ranked:
        if len(chosen) >= most:
            break
        chosen.setdefault(setting)
    return list(chosen)


def search(wish: Wish, found: Found, expected: Mapping[Setting, Expected], progress: Progress) -> None:
    """Fill `found`. A KeyboardInterrupt ends it where it is, and is raised. Raises TuneError."""
    with Pool(wish.problem, wish.jobs) as pool:
        _search(_Rounds(wish, found, pool, progress), expected)


def compare(wish: Wish, found: Found, expected: Mapping[Setting, Expected], progress: Progress) -> None:
    """Fill `found` with every setting there is, each at its capacity, under common loads, and full. As `search`."""
    if len(expected) > MOST_COMPARED:
        raise TuneError(f"that would be {len(expected):,} settings side by side, and {MOST_COMPARED} are the most")
    with Pool(wish.problem, wish.jobs) as pool:
        rounds = _Rounds(wish, found, pool, progress)
        base = found.mix.rate or 1.0
        rounds.finals("capacity of each", {s: max(e.rate, 1e-3) * CAUTION / base for s, e in expected.items()})
        found.winner = _best(found)
        most = _speed(found, found.winner)
        if most <= 0:
            raise TuneError(_nowhere(wish, found.final[found.winner][0]))
        wanted = [(s, most * share) for s in found.final for share in SHARES]
        points = rounds.points("over all loads", wanted, found.requests[1])
        for (setting, _), point in zip(wanted, points, strict=True):
            found.curves.setdefault(setting, []).append(point)
        wanted = [(s, wish.problem.base.speed) for s in found.final]
        found.here = dict(
            zip(found.final, rounds.points("the traffic as it is", wanted, found.requests[1]), strict=True)
        )
        wanted = [(s, most * FULL) for s in found.final]
        places = max(s.max_num_seqs * max(s.engines, s.decode_engines) for s in found.final)
        enough = max(found.requests[1], min(MOST_FULL, FILLS * places))
        found.full = dict(zip(found.final, rounds.points("full", wanted, enough), strict=True))


@dataclass(frozen=True, slots=True)
class _Rounds:
    wish: Wish
    found: Found
    pool: Pool
    progress: Progress

    def trials(
        self, name: str, guesses: Mapping[Setting, float], requests: int, tolerance: float, seeds: int = 1
    ) -> list[Trial]:
        """Of each setting and seed, in that order."""
        tasks = [
            Task("capacity", (setting, max(guess, 1e-6), requests, tolerance, seed))
            for setting, guess in guesses.items()
            for seed in range(seeds)
        ]
        return self._run(name, tasks, lambda trial: trial.simulations)

    def points(self, name: str, wanted: Sequence[tuple[Setting, float]], requests: int) -> list[Point]:
        tasks = [Task("measure", (setting, speed, requests, 0)) for setting, speed in wanted]
        return self._run(name, tasks, lambda point: 1)

    def _run(self, name: str, tasks: Sequence[Task], cost: Callable[[Any], int]) -> list[Any]:
        done = 0

        def told(i: int, result: Any) -> None:
            nonlocal done
            done += 1
            self.found.simulated += cost(result)
            self.progress(name, done, len(tasks))

        self.progress(name, 0, len(tasks))
        return self.pool.map(tasks, told)

    def finals(self, name: str, guesses: Mapping[Setting, float]) -> None:
        """Trials of all requests with each seed, of those that have none yet."""
        found, seeds = self.found, self.wish.seeds
        new = {setting: guess for setting, guess in guesses.items() if setting not in found.final}
        trials = self.trials(name, new, found.requests[2], 0.0, seeds)
        for i, setting in enumerate(new):
            found.final[setting] = trials[i * seeds : (i + 1) * seeds]


def _search(rounds: _Rounds, expected: Mapping[Setting, Expected]) -> None:
    wish, found = rounds.wish, rounds.found
    base = found.mix.rate or 1.0
    guesses = {s: expected[s].rate * CAUTION / base for s in screen(expected, wish.settings)}
    floor = max(guesses.values()) * 1e-2
    guesses = {s: max(guess, floor) for s, guess in guesses.items()}
    found.screened = rounds.trials("the best by formula, simulated", guesses, found.requests[0], 0.1)

    ranked = sorted(found.screened, key=lambda t: -t.capacity)
    if ranked[0].capacity <= 0:
        raise TuneError(_nowhere(wish, ranked[0]))
    some = [t for t in ranked if t.capacity > 0]
    chosen = some[: max(2 * FINALISTS, len(some) // 8)] + _leaders(some)
    found.better = rounds.trials("the best of them", {t.setting: t.speed for t in chosen}, found.requests[1], 0.04)

    ranked = sorted(found.better, key=lambda t: -t.capacity)
    some = [t for t in ranked if t.capacity > 0]
    leaders = _leaders(some)[:LAYOUTS]
    finalists = {t.setting: t.speed for t in [*some[:FINALISTS], *leaders]}
    current = wish.current
    if current is not None:
        finalists.setdefault(current, expected[current].rate * CAUTION / base if current in expected else floor)
    rounds.finals("finalists", finalists)
    asked = set(wish.given) & set(found.axes)

    def wanted(setting: Setting) -> bool:  # of the values of --try, or today's; what others cost is told all the same
        return setting == current or all(getattr(setting, name) in found.axes[name] for name in asked)

    found.winner = _best(found, wanted)
    for _ in range(CLIMBS):
        near = {s: _speed(found, found.winner) for s in neighbours(found.winner, found.axes)}
        rounds.finals("what each choice costs", near)
        best = _best(found, wanted)
        far = found.mean(best) >= found.mean(found.winner) * CLIMB
        found.winner = best
        if not far:
            break
    _curves(rounds, [t.setting for t in leaders])


def _curves(rounds: _Rounds, leaders: Sequence[Setting]) -> None:
    wish, found = rounds.wish, rounds.found
    winner = found.winner
    assert winner is not None
    drawn = list(dict.fromkeys([winner, *([wish.current] if wish.current else []), *leaders]))
    drawn = [s for s in drawn if _speed(found, s) > 0]
    wanted = [(s, _speed(found, s) * share) for s in drawn for share in SHARES]
    here = [(s, wish.problem.base.speed) for s in dict.fromkeys([*drawn, *([wish.current] if wish.current else [])])]
    points = rounds.points("over all loads", wanted + here, found.requests[2])
    for (setting, _), point in zip(wanted, points, strict=False):
        found.curves.setdefault(setting, []).append(point)
    found.here = {s: p for (s, _), p in zip(here, points[len(wanted) :], strict=True)}
    if not winner.decode_engines:
        found.fewest = _fewest(rounds, winner)


def _fewest(rounds: _Rounds, winner: Setting) -> tuple[Setting, Point] | None:
    """As many engines of the winner as the traffic needs as it is: from the capacity of one, then by trying."""
    wish, found = rounds.wish, rounds.found
    each = found.mean(winner) / winner.engines
    n = max(1, math.ceil(found.mix.rate * wish.problem.base.speed / each)) if each > 0 else MOST_ENGINES
    best: tuple[Setting, Point] | None = None
    for _ in range(6):
        if not 1 <= n <= MOST_ENGINES:
            break
        setting = replace(winner, engines=n)
        point = rounds.points("the fewest engines", [(setting, wish.problem.base.speed)], found.requests[2])[0]
        enough = point.attainment >= wish.problem.attainment and point.keeps_up
        if enough:
            best = (setting, point)
            n -= 1
        elif best is not None:
            break
        else:
            n += 1
    return best


def _speed(found: Found, setting: Setting) -> float:
    trials = found.final[setting]
    return sum(t.speed for t in trials) / len(trials)


def _best(found: Found, wanted: Callable[[Setting], bool] = lambda setting: True) -> Setting:
    """Of those wanted the most capacity; among equals what is nearest to vLLM's defaults, then the smallest."""
    usual = Setting()

    def rank(setting: Setting) -> tuple[float, int, int, int, float]:
        far = sum(name not in LAYOUT for name in setting.differs(usual))
        sizes = setting.max_num_seqs, setting.max_num_batched_tokens, setting.gpu_memory_utilization
        return -found.mean(setting), far, *sizes

    return min(filter(wanted, found.final), key=rank)


def _leaders(ranked: Sequence[Trial]) -> list[Trial]:
    """The best of each layout, best first."""
    first: dict[Layout, Trial] = {}
    for trial in ranked:
        first.setdefault(trial.setting.layout, trial)
    return list(first.values())


def _nowhere(wish: Wish, trial: Trial) -> str:
    low = min(trial.points, key=lambda p: p.speed)
    slo = wish.problem.base.slo
    said = f"no setting keeps the SLO for {wish.problem.attainment:.0%} of the requests, at any load"
    said += f": at {low.offered:.2g} requests/s the best has {low.attainment:.0%}, TTFT P95 {low.ttft['p95']:.3g} s"
    said += f" (SLO {slo.ttft:g} s" + (f" + {slo.per_1k:g} s per 1,000 tokens" if slo.per_1k else "") + ")"
    if math.isfinite(slo.tpot):
        said += f", TPOT P95 {low.tpot['p95']:.3g} s (SLO {slo.tpot:g} s)"
    if low.refused > 1 - wish.problem.attainment:
        said += f"; {low.refused:.0%} are longer than max_model_len or the KV cache"
    return said


def neighbours(setting: Setting, axes: Mapping[str, tuple[Any, ...]]) -> list[Setting]:
    """What differs from it in one field, of the axes' values. Both values of a switch are always among them, and a
    field that another needs follows: without chunks a step has max_model_len tokens at least."""
    found = []
    for f in fields(Setting):
        if f.name not in axes:
            continue
        values = (
            (True, False)
            if isinstance(getattr(setting, f.name), bool) and f.name.startswith("enable")
            else axes[f.name]
        )
        for value in values:
            other = replace(setting, **{f.name: value})
            if other == setting:
                continue
            if why_not(other) is not None and f.name == "enable_chunked_prefill":
                other = replace(
                    other, max_num_batched_tokens=max(setting.max_model_len, setting.max_num_batched_tokens)
                )
            if why_not(other) is None:
                found.append(other)
    return found

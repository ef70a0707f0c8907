"""The requests of a recording, simulated under its own rules and under others."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from forebay.config.models import Class
from forebay.plan.rerun import ARRIVED, AT_ONCE, LEFT, WAITED, Outcomes, table
from forebay.policy.recording import Call, Offer
from forebay.policy.rules import QueueRules, Rules
from forebay.sim.recording import Replay, Tape
from forebay.sim.rerun import LearnedStepTime, Requests, rerun
from sim.recorded import FACTS, Run

STEPS = LearnedStepTime((0.02, 1e-4, 0.0, 1e-4, 0.0))
RULES = Rules(queue=QueueRules(requests=40))


class Both:
    """A sink of a simulated run that is taken for a live one."""

    open = True

    def __init__(self) -> None:
        self.outcomes, self.requests = Outcomes(), Requests({"x": FACTS, "y": FACTS})

    def write(self, call: Call) -> None:
        self.outcomes.write(call)
        self.requests.add(call)


@pytest.fixture(scope="module")
def made_up() -> Requests:
    """Of a made-up run, whose engines are called a and b."""
    requests = Requests({})
    for call in Run(5).go(20).calls:
        requests.add(call)
    return requests


def test_an_engine_as_modelled_gives_the_run_that_was_recorded(made_up: Requests) -> None:
    made_up.facts = {"a": FACTS, "b": FACTS}
    live, again = Both(), Both()
    rerun(made_up, {"a": STEPS, "b": STEPS}, RULES, live)
    live.requests.facts = {"0": FACTS, "1": FACTS}
    rerun(live.requests, {"0": STEPS, "1": STEPS}, RULES, again)
    counts = live.outcomes.counts[Class.NORMAL]
    assert min(counts[AT_ONCE], counts[WAITED], counts["refused, slo"]) > 10
    assert again.outcomes.counts == live.outcomes.counts
    for cls in Class:
        assert again.outcomes.ttfts[cls] == pytest.approx(live.outcomes.ttfts[cls])
    assert table([live.outcomes, again.outcomes])[0][2:] == (f"{live.outcomes.counts[Class.VIP][ARRIVED]:,}",) * 2


def test_everyone_who_came_is_accounted_for(made_up: Requests) -> None:
    live = Outcomes()
    for call in Run(5).go(20).calls:
        live.write(call)
    simulated = Outcomes()
    rerun(made_up, {"a": STEPS, "b": STEPS}, RULES, simulated)
    for outcomes in (live, simulated):
        for cls, counts in outcomes.counts.items():
            waiting = sum(outcomes._asks[key].cls is cls for key in outcomes._waiting)
            assert counts.total() - counts[ARRIVED] + waiting == counts[ARRIVED]
    assert live.counts[Class.NORMAL][LEFT] > 0
    assert {c: n[ARRIVED] for c, n in live.counts.items()} == {c: n[ARRIVED] for c, n in simulated.counts.items()}


def test_other_rules_decide_otherwise(made_up: Requests) -> None:
    refused = []
    for seconds in (0.4, 1.5, 30.0):
        outcomes = Outcomes()
        rules = replace(RULES, ttft=dict.fromkeys(Class, seconds), wait=dict.fromkeys(Class, 30.0))
        rerun(made_up, {"a": STEPS, "b": STEPS}, rules, outcomes)
        refused.append(sum(counts["refused, slo"] for counts in outcomes.counts.values()))
    assert refused[0] > refused[1] > refused[2]


def test_step_times_are_those_that_the_admission_has_learned(tmp_path: Path) -> None:
    tape = Tape(Run(2).go(20).save(tmp_path / "run.jsonl"))
    replay = Replay(tape)
    assert len(list(replay)) > 1000
    for name in ("a", "b"):  # one of which is gone
        book = replay.books[name].ttft
        steps = LearnedStepTime.of(book)
        assert book.learned > 10
        assert steps.decode(8, 8_000, 1_000) == pytest.approx(
            book.pace * (book.coefficients[0] + 8 * book.coefficients[1])
        )


def test_without_an_answer_nobody_knows_how_long_they_are() -> None:
    calls = [call for call in Run(1).go(1).calls if isinstance(call, Offer)]
    requests = Requests({"a": FACTS})
    for call in calls:
        requests.add(call)
    with pytest.raises(ValueError, match="no request was answered"):
        requests.arrivals()


def test_lengths_are_those_of_the_answers(made_up: Requests) -> None:
    arrivals = made_up.arrivals()
    assert [a.arrival for a in arrivals] == sorted(a.arrival for a in arrivals)
    known = {ask.key: tokens for ask, tokens in ((a, made_up._tokens.get(a.key)) for a in made_up.asked) if tokens}
    assert len(known) > 50
    for ask, arrival in zip(made_up.asked, arrivals, strict=True):
        assert arrival.output_tokens == known.get(ask.key, arrival.output_tokens)
        assert arrival.output_tokens in known.values()

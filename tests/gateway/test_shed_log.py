"""What the log says of engines that shed load."""

from __future__ import annotations

import logging

import pytest

from forebay.gateway.admission_view import ShedLog, reasons
from forebay.policy.engine_books import EngineBooks
from forebay.policy.facts import Facts, Report
from forebay.policy.lengths import Lengths
from forebay.policy.prior import PrefillPrior
from forebay.policy.rules import Rules, ShedRules
from forebay.policy.shed import Shedder


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, "forebay.admission")
    return caplog


def lines(said: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    found = [(r.levelname, r.getMessage()) for r in said.records]
    said.clear()
    return found


def test_one_line_when_it_begins_and_one_when_it_has_ended(said: pytest.LogCaptureFixture) -> None:
    log, shed = ShedLog(), Shedder(ShedRules())
    for i, use in enumerate((0.5, 0.86, 0.9, 0.7, 0.9, 0.7, 0.7)):  # about the line: one episode
        shed.on_use(use, float(i))
        log.look("e", shed, float(i))
    assert lines(said) == [("WARNING", "engine e sheds load: shed_kv (level 0.00, predicted KV use 86 %)")]
    log.look("e", shed, 6.9)
    assert lines(said) == []
    log.look("e", shed, 7.0)
    assert lines(said) == [("INFO", "engine e sheds no more, after 3.0 s")]
    log.look("e", shed, 60.0)
    assert lines(said) == []


def test_preemptions_are_told_apart_and_last_as_long_as_their_level(said: pytest.LogCaptureFixture) -> None:
    log, shed = ShedLog(), Shedder(ShedRules())
    for i in range(100):
        shed.on_report(3 if i < 2 else 4, None, i / 4)
        log.look("e", shed, i / 4)
    assert lines(said) == [
        ("WARNING", "engine e sheds load: shed_preempting (level 0.25, predicted KV use 0 %)"),
        ("INFO", "engine e sheds no more, after 12.2 s"),
    ]


def test_what_began_and_ended_between_two_looks_is_said(said: pytest.LogCaptureFixture) -> None:
    log, shed = ShedLog(), Shedder(ShedRules())
    log.look("e", shed, 0.0)
    shed.on_use(0.9, 0.1)
    shed.on_use(0.1, 0.2)
    log.look("e", shed, 0.25)
    assert [level for level, _ in lines(said)] == ["WARNING"]


def test_an_engine_that_comes_back_has_no_past(said: pytest.LogCaptureFixture) -> None:
    log, shed = ShedLog(), Shedder(ShedRules())
    log.look("e", shed, 0.0)
    shed.on_use(0.9, 0.1)
    shed.on_use(0.1, 0.2)
    log.forget("e")
    log.look("e", shed, 0.3)
    assert lines(said) == []


def test_each_reason_has_its_gauge() -> None:
    prior = PrefillPrior(
        base_s=0.02, per_token_s=1e-4, per_token_context_s=0.0, decode_step_s=0.02, per_sequence_s=0.0, budget_tokens=64
    )
    books = EngineBooks("e", Facts(kv_tokens=1_000, prefill=prior), Rules(), Lengths())
    books.report(Report(preemptions=1), 0.0)
    assert reasons([books]) == [(("e", "shed_kv"), 0.0), (("e", "shed_preempting"), 0.0)]
    books.report(Report(preemptions=2), 1.0)
    assert reasons([books]) == [(("e", "shed_kv"), 0.0), (("e", "shed_preempting"), 1.0)]
    books.shed.on_use(0.99, 1.0)
    assert reasons([books]) == [(("e", "shed_kv"), 1.0), (("e", "shed_preempting"), 1.0)]

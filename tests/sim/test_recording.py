"""Recorded runs, decided again: made-up gateways here, a real one in e2e/test_replay.py."""

from __future__ import annotations

import inspect
from collections import Counter
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from forebay.plan.replay import Verdict, decisions, kind, lines
from forebay.policy.admission import Admission
from forebay.policy.asks import Ask
from forebay.policy.facts import Facts, Report
from forebay.policy.recording import Asked, Call, Recording, plain, typed
from forebay.policy.rules import Rules
from forebay.sim.recording import RecordingError, Replay, Tape
from sim.recorded import FACTS, RULES, Lines, Placed, Run

WITHOUT_EFFECT = {"next_due", "waiting"}
WRITTEN_BY_THE_POLICY = {
    "stage",
    "engine",
    "admitted_at",
    "expected",
    "first_at",
    "holder",
    "latest",
    "bound",
    "prefill",
    "charged",
    "charged_as",
    "produced",
    "matched",
    "cached",
    "work",
    "copies",
}


def verdict(path: Path) -> tuple[Verdict, Tape]:
    tape, found = Tape(path), Verdict()
    for played in Replay(tape):
        found.add(played)
    return found, tape


@pytest.fixture(scope="module")
def run() -> Lines:
    return Run(4).go(20)


@pytest.fixture
def path(run: Lines, tmp_path: Path) -> Path:
    return run.save(tmp_path / "run.jsonl")


# --- the same again --------------------------------------------------------------------------------------------------


def test_a_made_up_run_has_everything_in_it_and_is_decided_the_same_again(run: Lines, path: Path) -> None:
    calls = Counter(type(call).__name__ for call in run.calls)
    assert all(
        calls[name] for name in ("Offer", "Due", "End", "FirstToken", "Split", "Tokens", "Reported", "Configure")
    )
    assert all(calls[name] > 1 for name in ("AskQuote", "EngineGone", "EngineHere"))
    kinds = {kind(decision) for call in run.calls for _, decision in decisions(call)}
    assert kinds >= {"admit", "wait", "refuse, slo", "refuse, evicted", "refuse, shed_kv", "refuse, shed_preempting"}
    found, tape = verdict(path)
    assert (found.different, found.calls) == (0, len(run.calls) - 1)
    assert found.made == sum(row.live for row in found.rows()) == sum(row.equal for row in found.rows())
    assert (tape.why, tape.cut, tape.sound) == ("the run is over", 0, True)


@given(st.integers(1, 1 << 32))
@examples(max_examples=8, deadline=None)
def test_any_run_is_decided_the_same_again(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    path = Run(seed).go(4).save(tmp_path_factory.mktemp("any") / "run.jsonl")
    assert verdict(path)[0].different == 0


@pytest.mark.parametrize("gated", [True, False], ids=["gated", "placed"])
@given(st.integers(1, 1 << 32))
@examples(max_examples=3, deadline=None)
def test_what_is_placed_by_prefix_session_and_share_is_placed_the_same_again(
    tmp_path_factory: pytest.TempPathFactory, gated: bool, seed: int
) -> None:
    run = Placed(seed, replace(RULES, gated=gated))
    path = run.go(5).save(tmp_path_factory.mktemp("placed") / "run.jsonl")
    replay = Replay(Tape(path))
    found = Verdict()
    for played in replay:
        found.add(played)
    assert found.different == 0
    if not gated:
        assert {row.kind for row in found.rows()} == {"admit", "refuse, no_engine"}
    again, before = replay.policy.placer, run.policy.placer
    assert repr(again) == repr(before)
    for name in replay.policy.books:
        assert again.prefixes.held(name) == before.prefixes.held(name)
        assert again.prefixes.trust(name) == before.prefixes.trust(name)
        assert replay.policy.books[name].worked == run.policy.books[name].worked > 0.0


def kept(calls: list[Call]) -> None:
    calls[:] = [call for call in calls if type(call).__name__ not in ("CacheCleared", "CacheLost")]


def unspared(calls: list[Call]) -> None:
    calls[:] = [call for call in calls if type(call).__name__ != "Ease"]


def shortened(calls: list[Call]) -> None:
    for call in calls:
        if type(call).__name__ == "Offer" and len(call.ask.prefix) > 3:  # type: ignore[attr-defined]
            call.ask = msgspec.structs.replace(call.ask, prefix=call.ask.prefix[:1])  # type: ignore[attr-defined]


@pytest.mark.parametrize("change", [kept, unspared, shortened])
def test_a_change_of_what_is_cached_shows_where_nothing_is_gated(tmp_path: Path, change: Any) -> None:
    run = Placed(11, replace(RULES, gated=False)).go(15)
    calls = Counter(type(call).__name__ for call in run.calls)
    assert all(calls[name] > 5 for name in ("Ease", "CacheLost", "CacheCleared"))
    found, _ = verdict(changed(tmp_path / "run.jsonl", run, change))
    assert found.different > 0


def test_caps_and_replicas_move_the_same_again(tmp_path: Path) -> None:
    run = Run(7)
    replay = Replay(Tape(run.go(10).save(tmp_path / "run.jsonl")))
    caps = {played.live.at: replay.policy.books["a"].cap for played in replay if "a" in replay.policy.books}
    assert len(set(caps.values())) > 2
    assert repr(replay.policy.scaling) == repr(run.policy.scaling)
    assert [b.factor.value for b in replay.policy.books.values()] == [b.factor.value for b in run.policy.books.values()]


def test_an_admission_decides_the_same_whether_it_is_recorded_or_not() -> None:
    recorded, silent = Run(3), Run(3)
    silent.sink.open = False
    recorded.go(5)
    silent.go(5)
    assert len(silent.sink.calls) == 1  # how it began
    assert len(recorded.sink.calls) > 100
    assert (recorded.keys, recorded.now) == (silent.keys, silent.now)
    assert repr(recorded.policy).replace("Recording", "") == repr(silent.policy).replace("Recording", "")


def test_a_call_that_fails_fails_again(tmp_path: Path) -> None:
    sink = Lines()
    policy = Recording(RULES, {"a": FACTS}, sink, str, at=0.0, time="2025-01-01T00:00:00+00:00", version="0")
    for _ in range(2):  # the same key twice
        try:
            policy.offer(Ask(1, prompt_tokens=10, arrival=0.0), 0.0)
        except ValueError:
            continue
    assert [call.raised for call in sink.calls] == [None, None, "ValueError"]
    assert verdict(sink.save(tmp_path / "run.jsonl"))[0].different == 0
    sink.calls[2].raised = None
    found, _ = verdict(sink.save(tmp_path / "run.jsonl"))
    assert [one.replayed for one in found.first] == ["ValueError was raised"]


# --- nothing is forgotten --------------------------------------------------------------------------------------------


def test_every_call_with_an_effect_is_recorded() -> None:
    face = {name for name, _ in inspect.getmembers(Admission, inspect.isroutine) if not name.startswith("_")}
    assert face - WITHOUT_EFFECT == {name for name in vars(Recording) if name in face}


def test_all_that_a_driver_says_of_a_request_is_recorded() -> None:
    told = {name for name in dir(Ask) if not name.startswith("_")} - WRITTEN_BY_THE_POLICY - {"tag"}
    assert told == set(Asked.__struct_fields__)
    ask = Ask(
        7, prompt_tokens=8, arrival=0.1 + 0.2, tenant="acme", model="m", max_tokens=1 << 70, n=2, deadline=5.5,
        ttft_slo=2.5, engines=("a",), anonymous=True, streams=False, prefix=(3, 1 << 59), block_tokens=127.5, session=9,
    )  # fmt: skip
    again = msgspec.json.decode(msgspec.json.encode(Asked.of(ask, str)), type=Asked).ask()
    assert {name: getattr(again, name) for name in told} == {name: getattr(ask, name) for name in told}
    assert Asked.of(Ask(1, prompt_tokens=1, arrival=0.0), str).ask().deadline == inf


@pytest.mark.parametrize(
    "value",
    [
        Rules(tpot=0.1 + 0.2, queue=replace(RULES.queue, low_starvation_s=inf)),
        FACTS,
        Report(kv_used=inf, kv_tokens=1 << 70),
        Report(kv_used=1 / 3, preemptions=0),
    ],
)
def test_rules_facts_and_reports_read_back_the_same(value: Rules | Facts | Report) -> None:
    assert typed(msgspec.json.decode(msgspec.json.encode(plain(value))), type(value)) == value


def test_a_tenant_is_written_as_what_hides_it() -> None:
    sink = Lines()
    policy = Recording(RULES, {"a": FACTS}, sink, lambda name: f"#{len(name)}", at=0.0, time="", version="0")
    ask = Ask(1, prompt_tokens=10, arrival=0.0, tenant="acme")
    policy.quote(ask, 0.0)
    policy.offer(ask, 0.0)
    assert b"acme" not in msgspec.json.encode(sink.calls)
    assert [call.ask.tenant for call in sink.calls[1:]] == ["#4", "#4"]  # type: ignore[attr-defined]


# --- a recording that is not what it was -----------------------------------------------------------------------------


def changed(path: Path, run: Lines, change: Any) -> Path:
    """With the calls as `change` leaves them, and a last line that fits."""
    copy = Lines()
    copy.calls = [msgspec.convert(msgspec.to_builtins(call), type(call)) for call in run.calls]
    change(copy.calls)
    return copy.save(path)


def first(calls: list[Call], name: str, what: str = "") -> Any:
    return next(c for c in calls if type(c).__name__ == name and (not what or what in repr(c)))


def longer(calls: list[Call]) -> None:
    call = first(calls, "Offer", "Admitted")
    call.ask = msgspec.structs.replace(call.ask, prompt_tokens=call.ask.prompt_tokens + 1)


def nudged(calls: list[Call]) -> None:
    call = first(calls, "Offer", "Refused(reason='slo'")
    call.gave = msgspec.structs.replace(call.gave, retry_after=call.gave.retry_after * (1 + 2**-52))


def swapped(calls: list[Call]) -> None:
    call = next(c for c in calls if type(c).__name__ == "Due" and len(decisions(c)) > 1)
    call.gave.reverse()  # type: ignore[attr-defined]


def lost(calls: list[Call]) -> None:
    calls.remove(first(calls, "FirstToken"))


def later(calls: list[Call]) -> None:
    first(calls, "FirstToken").at += 1e-6


@pytest.mark.parametrize("change", [longer, nudged, swapped, lost, later])
def test_a_change_of_any_kind_shows(run: Lines, tmp_path: Path, change: Any) -> None:
    found, tape = verdict(changed(tmp_path / "run.jsonl", run, change))
    assert found.different > 0
    assert tape.sound
    told = "\n".join(lines(found, tape, "0"))
    assert f"{found.different:,} of {found.made:,} decisions differ" in told
    assert f"line {found.first[0].line}, " in told


def test_a_change_without_consequences_shows_too(path: Path) -> None:
    text = path.read_text()
    path.write_text(text.replace('"model":"m"', '"model":"o"'))
    found, tape = verdict(path)
    assert (found.different, tape.sound) == (0, False)


def test_a_run_that_was_cut_is_played_up_to_there(run: Lines, path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-300])
    found, tape = verdict(path)
    assert found.different == 0
    assert found.calls < len(run.calls)
    assert (tape.cut, tape.why) == (found.calls + 2, "")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "no whole line"),
        ('{"call":"begin"', "no whole line"),
        ("prompt,output\n1,2\n", "no recording of admission"),
        ('{"call":"due","at":1.0}\n', "no recording of admission"),
        ('{BEGIN,"format":2}\n', "the form is 2"),
        ('{BEGIN}\n{"call":"due"}\n', ":2: the line is no call: .*`at`"),
        ('{BEGIN}\n{"call":"later","at":1.0}\n', ":2: the line is no call"),
        ('{BEGIN}\n{"call":"end","at":1.0,"key":7}\n', ":2: cannot be played: no request 7 was offered"),
        ('{BEGIN}\n{"call":"stop","why":"x","calls":1,"crc":0}\n{"call":"due","at":1.0}\n', ":3: .* goes on"),
        ('{BEGIN,"rules":{"wait":-1}}\n', ":1: rules or engines that cannot be: .*wait"),
        ('{BEGIN,"time":"yesterday"}\n', ":1: .*yesterday"),
        ("[" * 100_000 + "\n", "no recording"),
    ],
)
def test_what_is_no_recording_is_said_to_be_none(tmp_path: Path, text: str, problem: str) -> None:
    begin = {"call": "begin", "at": 0.0, "format": 1, "forebay": "0", "time": "2025-01-01", "rules": {}, "engines": {}}
    path = tmp_path / "run.jsonl"
    path.write_text(text.replace("{BEGIN", msgspec.json.encode(begin).decode()[:-1]))
    with pytest.raises(RecordingError, match=problem):
        verdict(path)

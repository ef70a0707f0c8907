"""An engine's breaker, event by event, and whatever may happen to it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from forebay.policy.breaker import Breaker, BreakerRules, State

RULES = BreakerRules(failures=3, error_least=10, probes=2, open_s=1.0, open_most_s=4.0, slow_start_s=10.0)


def opened(now: float = 0.0) -> Breaker:
    breaker = Breaker(RULES)
    assert [breaker.failed(now) for _ in range(3)] == [False, False, True]
    return breaker


def test_failures_in_a_row_open_it() -> None:
    breaker = Breaker(RULES)
    breaker.failed(0.0)
    breaker.failed(0.0)
    assert breaker.tender
    breaker.succeeded(0.1)
    assert not breaker.tender
    assert repr(breaker) == "<Breaker closed [2 bad, 0 good, 0 in a row]>"
    assert [breaker.failed(0.2) for _ in range(3)] == [False, False, True]
    assert not breaker.admits
    assert repr(breaker) == "<Breaker open [5 bad, 0 good, 3 in a row]>"


def test_a_share_of_errors_opens_it() -> None:
    """Never three in a row: first as many good as bad, then two bad ones for each good one."""
    breaker = Breaker(RULES)

    def good() -> None:
        breaker.good += 1
        breaker.succeeded(1.0)

    breaker.failed(0.0)
    for _ in range(10):
        good()
        assert not breaker.failed(1.0)
        good()
    opened_after = 0
    while not breaker.failed(2.0):
        opened_after += 1
        if opened_after % 2 == 0:
            good()
    assert repr(breaker) == "<Breaker open [29 bad, 28 good, 2 in a row]>"


def test_old_errors_are_forgotten() -> None:
    breaker = Breaker(RULES)
    for i in range(100):
        breaker.failed(25.0 * i)
        breaker.succeeded(25.0 * i)
        breaker.good += 1
    assert breaker.state is State.CLOSED


def test_half_open_lets_the_probes_through_and_no_more() -> None:
    breaker = opened()
    assert not breaker.look(0.9)
    assert breaker.look(1.0)
    assert (breaker.admits, breaker.sent(), breaker.admits, breaker.sent(), breaker.admits) == (True, 1, True, 1, False)
    breaker.succeeded(1.1)  # of a request sent before it opened
    assert not breaker.succeeded(1.2, probe=1)
    assert breaker.succeeded(1.3, probe=1)
    assert breaker.state is State.CLOSED


def test_an_earlier_probe_says_nothing_of_a_later_time() -> None:
    breaker = opened()
    breaker.look(1.0)
    first = breaker.sent()
    second = breaker.sent()
    breaker.failed(1.1, probe=first)
    breaker.look(breaker.until)
    assert breaker.sent() == 2
    assert not breaker.failed(9.0, probe=second)
    assert not breaker.void(second)
    assert breaker.state is State.HALF_OPEN


def test_a_probe_that_says_nothing_makes_room_for_another() -> None:
    breaker = opened()
    breaker.look(1.0)
    breaker.sent()
    assert breaker.void(breaker.sent())
    assert breaker.admits


def test_the_back_off_doubles_up_to_its_bound_and_begins_anew() -> None:
    breaker = opened()
    now, waits = 0.0, []
    for _ in range(4):
        waits.append(breaker.until - now)
        now = breaker.until
        assert breaker.look(now)
        assert breaker.failed(now, probe=breaker.sent())
    assert waits == [1.0, 2.0, 4.0, 4.0]
    now = breaker.until
    breaker.look(now)
    assert not breaker.succeeded(now, probe=breaker.sent())
    assert breaker.succeeded(now, probe=breaker.sent())
    for _ in range(3):
        breaker.failed(now)
    assert breaker.until - now == 1.0


def test_nobody_else_keeps_it_closed() -> None:
    breaker = Breaker(RULES)
    assert not any(breaker.failed(0.0, may_open=False) for _ in range(50))
    assert breaker.overdue
    assert breaker.admits
    assert breaker.failed(0.1)  # somebody else is there again


def test_slow_start() -> None:
    breaker = opened()
    assert breaker.share(0.5) == 0.1
    breaker.look(1.0)
    breaker.succeeded(1.0, probe=breaker.sent())
    breaker.succeeded(1.0, probe=breaker.sent())
    assert [round(breaker.share(t), 3) for t in (1.0, 6.0, 10.9, 11.0, 99.0)] == [0.1, 0.55, 0.991, 1.0, 1.0]


def test_a_false_alarm_ends_at_once() -> None:
    breaker = Breaker(RULES)
    assert breaker.trip(5.0)
    assert not breaker.trip(5.1)
    assert breaker.heal(5.2)
    assert (breaker.admits, breaker.share(5.2)) == (True, 1.0)


@given(st.floats(0, 1e6), st.floats(0, 1e3), st.floats(0.01, 1e3))
def test_share_is_a_share_and_grows(start: float, after: float, more: float) -> None:
    breaker = Breaker(RULES)
    breaker.warm_up(start)
    assert 0 < breaker.share(start + after) <= breaker.share(start + after + more) <= 1


class AnyLife(RuleBasedStateMachine):
    """Requests that begin and end in any order: never more probes under way than allowed, and it always comes back."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.breaker = Breaker(RULES)
        self.running: list[int] = []
        self.last = 0

    @rule(seconds=st.floats(0.0, 20.0))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.breaker.look(self.now)

    @precondition(lambda self: self.breaker.admits)
    @rule()
    def begin(self) -> None:
        self.running.append(self.breaker.sent())
        self.last = max(self.last, self.running[-1])

    @precondition(lambda self: bool(self.running))
    @rule(how=st.sampled_from(["good", "bad", "void"]), at=st.integers(0, 1_000))
    def end(self, how: str, at: int) -> None:
        probe = self.running.pop(at % len(self.running))
        match how:
            case "good":
                self.breaker.good += self.breaker.state is State.CLOSED
                self.breaker.succeeded(self.now, probe=probe)
            case "bad":
                self.breaker.failed(self.now, probe=probe)
            case "void":
                self.breaker.void(probe)

    @rule()
    def trip(self) -> None:
        self.breaker.trip(self.now)

    @invariant()
    def probes_are_bounded(self) -> None:
        if self.last:
            assert sum(probe == self.last for probe in self.running) <= RULES.probes

    @invariant()
    def its_wait_is_bounded(self) -> None:
        if self.breaker.state is State.OPEN:
            assert self.breaker.until <= self.now + RULES.open_most_s  # their difference would be rounded
        assert 0 < self.breaker.share(self.now) <= 1

    def teardown(self) -> None:
        """Nothing is left that could keep it open."""
        for _ in range(3):
            self.breaker.look(self.now + RULES.open_most_s)
            while self.breaker.admits and self.breaker.state is State.HALF_OPEN:
                self.breaker.succeeded(self.now, probe=self.breaker.sent())
            self.running = [p for p in self.running if self.breaker.void(p)]
        assert self.breaker.state is State.CLOSED


TestAnyLife = AnyLife.TestCase

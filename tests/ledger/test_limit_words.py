"""What clients are told: x-ratelimit headers as OpenAI's, what was changed in their request, and why it was refused."""

from __future__ import annotations

from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.errors import Refusal
from forebay.ledger.gates import Who
from forebay.ledger.limit_words import block, duration, refusal
from forebay.ledger.limits import Denied, Held, Limits
from forebay.ledger.rules import Level, Over, Rule
from forebay.ledger.tariff import Costly

WALL = datetime.fromisoformat("2026-11-01T12:00Z").timestamp()
WHO = Who("k1", "one", "acme")


class PerToken(Costly):
    def most(self, prompt: int, completion: int, /) -> int:
        return 1_000_000 * (prompt + completion)


def ask(*rules: Rule, times: int = 1, prompt: int = 100, most: int | None = 50, price: bool = True) -> Held | Denied:
    book = Limits()
    book.configure(rules, 0.0, WALL)
    gate = book.gate(WHO)
    found = [book.hold(gate, "m", prompt, most, PerToken() if price else None, "", 0.0, WALL) for _ in range(times)]
    return found[-1]


def told(found: Held | Denied, now: float = 0.0) -> dict[str, str]:
    assert isinstance(found, Held)
    lines = block(found, now, WALL + now).decode()
    assert not lines or lines.endswith("\r\n")
    return dict(line.split(": ", 1) for line in lines.splitlines())


def refused(found: Held | Denied) -> Refusal:
    assert isinstance(found, Denied)
    return refusal(found, "gpt", "EUR", 0.0, WALL)


def headers(found: Refusal) -> dict[str, str]:
    return {name.decode(): value.decode() for name, value in found.headers}


def test_nothing_is_said_where_no_limit_applies() -> None:
    assert told(ask()) == {}
    assert told(ask(Rule(name="r", each=Level.KEY, concurrent=5))) == {}
    assert told(ask(Rule(name="r", each=Level.KEY, key="other", requests_per_minute=5))) == {}


def test_rates_are_told_as_openai_does() -> None:
    found = ask(Rule(name="r", each=Level.KEY, requests_per_minute=60, tokens_per_minute=6_000), times=3)
    assert told(found) == {
        "x-ratelimit-limit-requests": "60",
        "x-ratelimit-remaining-requests": "57",
        "x-ratelimit-reset-requests": "3s",
        "x-ratelimit-limit-tokens": "6000",
        "x-ratelimit-remaining-tokens": "5550",
        "x-ratelimit-reset-tokens": "4.5s",
    }
    assert told(found, 2.25)["x-ratelimit-remaining-requests"] == "59"
    assert told(found, 2.25)["x-ratelimit-reset-requests"] == "750ms"
    assert told(found, 100.0)["x-ratelimit-remaining-tokens"] == "6000"
    assert told(found, 100.0)["x-ratelimit-reset-tokens"] == "0s"


def test_the_limit_that_has_least_left_is_told() -> None:
    found = ask(
        Rule(name="a", each=Level.KEY, requests_per_minute=60, tokens_per_minute=6_000),
        Rule(name="b", each=Level.ALL, requests_per_minute=6, tokens_per_day=400, tokens_per_month=7_000),
    )
    assert told(found) == {
        "x-ratelimit-limit-requests": "6",
        "x-ratelimit-remaining-requests": "5",
        "x-ratelimit-reset-requests": "10s",
        "x-ratelimit-limit-tokens": "400",
        "x-ratelimit-remaining-tokens": "250",
        "x-ratelimit-reset-tokens": "12h0m0s",
    }


def test_what_was_changed_is_told() -> None:
    lowered = told(ask(Rule(name="day", each=Level.KEY, money_per_day=120_000_000)))
    assert lowered == {"x-forebay-max-tokens": "20", "x-forebay-limit": "day"}
    over = told(ask(Rule(name="soft", each=Level.KEY, tokens_per_day=100, over=Over.WARN)))
    assert over["x-forebay-over-limit"] == "soft"
    assert over["x-ratelimit-remaining-tokens"] == "0"  # and not less


def test_what_is_given_and_what_is_lowered_are_told_apart() -> None:
    """By one limit: first as its rule gives it, then as much as is left."""
    book = Limits()
    book.configure([Rule(name="day", each=Level.KEY, tokens_per_day=900, answer=400)], 0.0, WALL)
    gate = book.gate(WHO)
    given, lowered = (book.hold(gate, "m", 100, None, None, "", 0.0, WALL) for _ in (1, 2))
    words = [told(held)["x-forebay-max-tokens"] for held in (given, lowered, given)]
    assert words == ["400", "300", "400"]


def test_over_a_rate() -> None:
    found = refused(ask(Rule(name="r", each=Level.KEY, requests_per_minute=2), times=3))
    assert (found.status, found.code) == (429, "rate_limit_exceeded")
    assert found.message == "Rate limit 'r' reached (key k1: 2 used, the limit is 2 requests a minute)."
    assert headers(found) == {
        "x-forebay-reason": "rate_limit_exceeded",
        "x-forebay-limit": "r",
        "x-ratelimit-limit-requests": "2",
        "x-ratelimit-remaining-requests": "0",
        "x-ratelimit-reset-requests": "1m0s",
        "retry-after": "30",
    }


def test_over_what_may_run_at_once() -> None:
    found = refused(ask(Rule(name="r", each=Level.ORGANISATION, concurrent=1), times=2))
    assert found.message == "Rate limit 'r' reached (organisation acme: 1 used, the limit is 1 requests at once)."
    assert headers(found)["retry-after"] == "1"


def test_over_a_quota() -> None:
    found = refused(ask(Rule(name="r", each=Level.KEY, tokens_per_day=150), times=2))
    assert (found.status, found.code) == (429, "insufficient_quota")
    assert found.message == (
        "The quota 'r' is used up (key k1: 150 used, the limit is 150 tokens a day, and this request needs 116); "
        "it resets at 2026-11-02T00:00:00Z."
    )
    assert headers(found) == {
        "x-forebay-reason": "insufficient_quota",
        "x-forebay-limit": "r",
        "x-forebay-reset": "2026-11-02T00:00:00Z",
        "x-ratelimit-limit-tokens": "150",
        "x-ratelimit-remaining-tokens": "0",
        "x-ratelimit-reset-tokens": "12h0m0s",
        "x-should-retry": "false",
    }


def test_over_a_budget() -> None:
    found = refused(ask(Rule(name="r", each=Level.ALL, money_per_month=150_000_000), times=2))
    assert found.message == (
        "The quota 'r' is used up (all: 0.15 EUR used, the limit is 0.15 EUR a month, and this request needs "
        "0.116 EUR); it resets at 2026-12-01T00:00:00Z."
    )


def test_a_prompt_that_is_too_large() -> None:
    found = refused(ask(Rule(name="r", each=Level.KEY, tokens_per_minute=99)))
    assert found.message == (
        "The request is too large for the rate limit 'r' (key k1: its prompt of about 100, the limit is 99 tokens a "
        "minute). Send a shorter prompt."
    )
    assert headers(found)["x-should-retry"] == "false"
    assert "retry-after" not in headers(found)


def test_no_price() -> None:
    found = refused(ask(Rule(name="r", each=Level.KEY, money_per_day=1), price=False))
    assert (found.status, found.code, found.param) == (403, "model_unpriced", "model")
    assert found.message.startswith("The model 'gpt' has no price here, and the quota 'r' is in money.")


def test_an_end_user_s_name_cannot_break_a_message() -> None:
    book = Limits()
    book.configure([Rule(name="r", each=Level.END_USER, concurrent=1)], 0.0, WALL)
    gate = book.gate(WHO)
    evil = "x\r\nset-cookie: a=b\0\ud800" + "y" * 500
    found = [book.hold(gate, "m", 1, 1, None, evil, 0.0, WALL) for _ in range(2)]
    said = refused(found[1])
    assert said.message.isprintable()
    assert len(said.message) < 300
    assert all(value.isascii() and b"\n" not in value for _, value in said.headers)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-1.0, b"0s"),
        (0.0, b"0s"),
        (0.0001, b"1ms"),
        (0.02, b"20ms"),
        (1.0, b"1s"),
        (1.5, b"1.5s"),
        (8.64, b"8.64s"),
        (10.0, b"10s"),
        (59.9999, b"1m0s"),
        (60.05, b"1m1s"),
        (90.5, b"1m31s"),
        (100.0, b"1m40s"),
        (3_600.0, b"1h0m0s"),
        (90_061.0, b"25h1m1s"),
    ],
)
def test_durations(seconds: float, text: bytes) -> None:
    assert duration(seconds) == text


@given(st.floats(0, 1e7))
def test_a_duration_is_never_too_short(seconds: float) -> None:
    text = duration(seconds).decode()
    parts = text.replace("ms", "_").replace("h", "h ").replace("m", "m ").split()
    worth = {"h": 3_600.0, "m": 60.0, "s": 1.0, "_": 0.001}
    read = sum(float(part[:-1]) * worth[part[-1]] for part in parts)
    assert seconds - 1e-6 <= read <= seconds + (0.0011 if seconds < 60 else 1.0)


def test_a_changed_limit_is_told_at_once() -> None:
    book, now = Limits(), 0.0
    gate = book.gate(WHO)
    seen = []
    for limit in (600, 700):
        book.configure([Rule(name="r", each=Level.KEY, requests_per_minute=limit)], now, WALL)
        seen.append(told(book.hold(gate, "m", 1, 1, None, "", now, WALL))["x-ratelimit-limit-requests"])
    assert seen == ["600", "700"]


def test_the_reset_that_is_told_goes_down_by_seconds() -> None:
    book = Limits()
    book.configure([Rule(name="r", each=Level.KEY, tokens_per_day=1_000)], 0.0, WALL)
    found = book.hold(book.gate(WHO), "m", 1, 1, None, "", 0.0, WALL)
    seen = [told(found, after)["x-ratelimit-reset-tokens"] for after in (0.0, 0.4, 0.9, 1.0, 1.5)]
    assert seen == ["12h0m0s", "12h0m0s", "12h0m0s", "11h59m59s", "11h59m59s"]

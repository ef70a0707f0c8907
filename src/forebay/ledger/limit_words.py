"""What clients are told of their limits: OpenAI's x-ratelimit headers, and refusals."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil
from typing import Final

from forebay import errors
from forebay.errors import Header, Refusal
from forebay.ledger.gates import Meters
from forebay.ledger.limits import Denied, Held, Why
from forebay.ledger.meters import Budget, Rate, Sliding
from forebay.ledger.money import shown_money
from forebay.ledger.rules import MONEY, WORDS
from forebay.ledger.windows import iso

_NAMES: Final = (b"x-ratelimit-limit-", b"x-ratelimit-remaining-", b"x-ratelimit-reset-")
_REQUESTS: Final = b"requests"
_TOKENS: Final = b"tokens"
_Some = tuple[Rate | Budget | Sliding, ...]


def block(held: Held, now: float, wall: float) -> bytes:
    """Header lines of an answer, each with its line end; empty where no limit applies. `now` monotonic, `wall` Unix
    seconds."""
    meters = held.meters
    lines = b""
    if meters.requests:
        lines = _lines(_REQUESTS, meters.requests, now, wall)
    if meters.token_limits:
        lines += _lines(_TOKENS, meters.token_limits, now, wall)
    most = held.max_tokens
    if most is not None:
        if most != meters.answer or held.lowered_by != meters.sets_most:
            lines += _lowered(most, held.lowered_by)
        else:
            words = meters.sets_words
            if not words:
                words = meters.sets_words = _lowered(most, held.lowered_by)
            lines += words
    if held.warnings:
        lines += b"x-forebay-over-limit: %b\r\n" % errors.field_value(", ".join(held.warnings))
    return lines


def _lowered(most: int, by: str) -> bytes:
    return b"x-forebay-max-tokens: %d\r\nx-forebay-limit: %b\r\n" % (most, errors.field_value(by))


def refusal(denied: Denied, model: str, currency: str, now: float, wall: float) -> Refusal:
    """`model`: as the client asked for it. `currency`: of the ledger."""
    name = denied.rule.name
    if denied.why is Why.UNPRICED:
        return errors.unpriced(model, name)
    headers = tuple(_pairs(denied.meters, now, wall))
    if denied.why is Why.TOO_LARGE:
        return errors.over_rate(
            name, f"{denied.scope}: its prompt of about {denied.needs:,}, {_limit(denied, currency)}", headers
        )
    detail = f"{denied.scope}: {_amount(denied.used, denied, currency)} used, {_limit(denied, currency)}"
    if denied.why is Why.RATE:
        return errors.rate_limited(name, denied.retry_after, detail, headers)
    needs = f", and this request needs {_amount(denied.needs, denied, currency)}"
    return errors.quota_exhausted(name, iso(ceil(denied.resets)), detail + needs, headers)


def _limit(denied: Denied, currency: str) -> str:
    return f"the limit is {_amount(denied.limit, denied, currency)} {WORDS[denied.measure]}"


def _amount(amount: int, denied: Denied, currency: str) -> str:
    return shown_money(amount, currency) if denied.measure in MONEY else f"{amount:,}"


def _pairs(meters: Meters, now: float, wall: float) -> Iterator[Header]:
    for what, some in ((_REQUESTS, meters.requests), (_TOKENS, meters.token_limits)):
        if some:
            m, left, in_ = _nearest(some, now, wall)
            values = (b"%d" % m.limit, b"%d" % left, duration(in_))
            yield from zip((n + what for n in _NAMES), values, strict=True)


def _lines(what: bytes, some: _Some, now: float, wall: float) -> bytes:
    m, left, in_ = _nearest(some, now, wall)
    words = m.words
    if not words:
        words = m.words = b"x-ratelimit-limit-%b: %d\r\nx-ratelimit-remaining-%b: " % (what, m.limit, what)
    if in_ < 60:
        reset = duration(in_)
    else:
        seconds = ceil(in_ - 1e-9)
        if seconds != m.words_in:
            m.words_in, m.words_reset = seconds, duration(seconds)
        reset = m.words_reset
    return b"%b%d\r\nx-ratelimit-reset-%b: %b\r\n" % (words, left, what, reset)


def _nearest(some: _Some, now: float, wall: float) -> tuple[Rate | Budget | Sliding, int, float]:
    """The limit that has least left, what is left of it, and in how many seconds all of it is."""
    nearest, left, reset, first = some[0], 0, 0.0, True
    for m in some:
        if isinstance(m, Rate):
            in_ = m.used / m.rate - now + m.at
            found = m.limit if in_ <= 0 else int(m.ceiling - in_ * m.rate)
        else:
            in_ = m.resets(wall) - wall
            found = m.limit - m.used - m.elsewhere
        if first or found < left:
            nearest, left, reset, first = m, found, in_, False
    return nearest, left if left > 0 else 0, reset


def duration(seconds: float) -> bytes:
    """As OpenAI writes it: 20ms, 1.5s, 6m0s, 1h2m3s; rounded up to the millisecond, from a minute on to the second."""
    ms = ceil(seconds * 1000 - 1e-6)
    if ms < 1000:
        return b"%dms" % ms if ms > 0 else b"0s"
    if ms < 60_000:
        whole, ms = divmod(ms, 1000)
        return (b"%d.%03d" % (whole, ms)).rstrip(b"0") + b"s" if ms else b"%ds" % whole
    minutes, whole = divmod((ms + 999) // 1000, 60)
    if minutes < 60:
        return b"%dm%ds" % (minutes, whole)
    return b"%dh%dm%ds" % (minutes // 60, minutes % 60, whole)

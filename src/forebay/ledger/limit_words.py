"""What clients are told of their limits: OpenAI's x-ratelimit headers, and refusals."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
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
_REQUESTS: Final = b"".join(n + b"requests: %b\r\n" % v for n, v in zip(_NAMES, (b"%d", b"%d", b"%b"), strict=True))
_TOKENS: Final = _REQUESTS.replace(b"requests", b"tokens")


def block(held: Held, now: float, wall: float) -> bytes:
    """Header lines of an answer, each with its line end; empty where no limit applies. `now` monotonic, `wall` Unix
    seconds."""
    meters = held.meters
    lines = b""
    if meters.requests:
        lines = _REQUESTS % _nearest(meters.requests, now, wall)
    if meters.token_limits:
        lines += _TOKENS % _nearest(meters.token_limits, now, wall)
    if held.max_tokens is not None:
        lines += b"x-forebay-max-tokens: %d\r\nx-forebay-limit: %b\r\n" % (
            held.max_tokens,
            errors.field_value(held.lowered_by),
        )
    if held.warnings:
        lines += b"x-forebay-over-limit: %b\r\n" % errors.field_value(", ".join(held.warnings))
    return lines


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
    for what, some in ((b"requests", meters.requests), (b"tokens", meters.token_limits)):
        if some:
            limit, left, reset = _nearest(some, now, wall)
            yield from zip((n + what for n in _NAMES), (b"%d" % limit, b"%d" % left, reset), strict=True)


def _nearest(some: Iterable[Rate | Budget | Sliding], now: float, wall: float) -> tuple[int, int, bytes]:
    """Of the limit that has least left: how much it is, what is left of it, and until all of it is."""
    limit, left, reset = 0, 1 << 80, 0.0
    for m in some:
        if isinstance(m, Rate):
            in_ = m.used / m.rate - now + m.at
            found = m.limit if in_ <= 0 else int(m.ceiling - in_ * m.rate)
        else:
            in_ = m.resets(wall) - wall
            found = m.limit - m.used - m.elsewhere
        if found < left:
            limit, left, reset = m.limit, found, in_
    return limit, left if left > 0 else 0, duration(reset)


def duration(seconds: float) -> bytes:
    """As OpenAI writes it: 20ms, 1.5s, 6m0s, 1h2m3s; rounded up to the millisecond."""
    ms = ceil(seconds * 1000 - 1e-6)
    if ms < 1000:
        return b"%dms" % ms if ms > 0 else b"0s"
    if ms < 60_000:
        whole, ms = divmod(ms, 1000)
        return (b"%d.%03d" % (whole, ms)).rstrip(b"0") + b"s" if ms else b"%ds" % whole
    minutes, ms = divmod(ms, 60_000)
    hours, minutes = divmod(minutes, 60)
    whole, ms = divmod(ms, 1000)
    rest = b"%d" % whole + (b".%03d" % ms).rstrip(b"0.") + b"s"
    return b"%dh%dm" % (hours, minutes) + rest if hours else b"%dm" % minutes + rest

"""What clients are told of their limits: OpenAI's x-ratelimit headers, and refusals."""

from __future__ import annotations

from collections.abc import Iterable
from math import ceil

from forebay import errors
from forebay.errors import Header, Refusal
from forebay.ledger.gates import Meters
from forebay.ledger.limits import Denied, Held, Why
from forebay.ledger.meters import Budget, Rate, Sliding
from forebay.ledger.money import shown_money
from forebay.ledger.rules import MONEY, WORDS
from forebay.ledger.windows import iso


def block(held: Held, now: float, wall: float) -> bytes:
    """Header lines of an answer, each with its line end; empty where no limit applies. `now` monotonic, `wall` Unix
    seconds."""
    meters = held.meters
    if not meters.all:
        return b""
    lines = _pairs(meters, now, wall)
    if held.max_tokens is not None:
        lines.append((b"x-forebay-max-tokens", b"%d" % held.max_tokens))
        lines.append((b"x-forebay-limit", errors.field_value(held.lowered_by)))
    if held.warnings:
        lines.append((b"x-forebay-over-limit", errors.field_value(", ".join(held.warnings))))
    return b"".join(b"%b: %b\r\n" % line for line in lines)


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


def _pairs(meters: Meters, now: float, wall: float) -> list[Header]:
    """Of requests and of tokens: the limit that has least left."""
    pairs: list[Header] = []
    for what, some in ((b"requests", meters.requests), (b"tokens", (*meters.rates, *meters.tokens))):
        found = _nearest(some, now, wall)
        if found is not None:
            limit, remaining, reset = found
            pairs.append((b"x-ratelimit-limit-" + what, b"%d" % limit))
            pairs.append((b"x-ratelimit-remaining-" + what, b"%d" % remaining))
            pairs.append((b"x-ratelimit-reset-" + what, duration(reset)))
    return pairs


def _nearest(some: Iterable[Rate | Budget | Sliding], now: float, wall: float) -> tuple[int, int, float] | None:
    """Limit, what is left, seconds until all of it is."""
    best: tuple[int, int, float] | None = None
    for m in some:
        if isinstance(m, Rate):
            reset = m.resets(now)
            left = int(m.ceiling - reset * m.rate)
        else:
            reset = max(0.0, m.resets(wall) - wall)
            left = m.limit - m.used - m.elsewhere
        if best is None or left < best[1]:
            best = (m.limit, left, reset)
    return None if best is None else (best[0], max(0, best[1]), best[2])


def duration(seconds: float) -> bytes:
    """As OpenAI writes it: 20ms, 1.5s, 6m0s, 1h2m3s; rounded up to the millisecond."""
    ms = ceil(round(seconds * 1000, 6))
    if ms < 1000:
        return b"%dms" % ms if ms else b"0s"
    minutes, ms = divmod(ms, 60_000)
    rest = (b"%d.%03d" % divmod(ms, 1000)).rstrip(b"0").rstrip(b".") + b"s"
    if not minutes:
        return rest
    hours, minutes = divmod(minutes, 60)
    return b"%dh%dm" % (hours, minutes) + rest if hours else b"%dm" % minutes + rest

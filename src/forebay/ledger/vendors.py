"""The prices of commercial models, as the package genai-prices lists them. Not for a worker: it takes 0.3 s to import.

Left out: what is not billed by tokens (searches, hours of sound, pages), and models whose pictures are billed by tokens
that usage does not tell apart; they have no price here, and are unpriced. Of service tiers, those that a list has.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, date, datetime, time
from decimal import Decimal
from importlib.metadata import version
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from forebay.ledger.enginepricing import ORDINARY
from forebay.ledger.pricelists import Clause, Listed, Period, Scale, Vendor, Window

if TYPE_CHECKING:
    from genai_prices import types

_KINDS: Final = MappingProxyType(
    {
        "input_mtok": "input",
        "cache_read_mtok": "cached",
        "cache_write_mtok": "cache_write",
        "cache_write_5m_mtok": "cache_write",
        "cache_write_1h_mtok": "cache_write_long",
        "output_mtok": "output",
        "output_reasoning_mtok": "reasoning",
        "input_audio_mtok": "audio_input",
        "output_audio_mtok": "audio_output",
        "input_image_mtok": "image_input",
        "requests_kcount": "request",
    }
)
_OTHER_MEDIA: Final = ("output_image_mtok", "output_video_mtok", "input_video_mtok")


def vendors() -> tuple[Vendor, ...]:
    """Every provider's list, in US dollars."""
    from genai_prices.data import providers

    source = f"genai-prices {version('genai-prices')}"
    return tuple(_vendor(provider, source) for provider in providers)


def _vendor(provider: types.Provider, source: str) -> Vendor:
    models = []
    for model in provider.models:
        periods = _periods(model)
        if periods:
            models.append(Listed(model.id, _clause(model.match), periods, source, _tiers(model)))
    return Vendor(
        provider.id,
        tuple(models),
        provider.api_pattern,
        _clause(provider.provider_match) if provider.provider_match is not None else None,
        tuple(provider.fallback_model_providers or ()),
    )


def _clause(match: types.MatchLogic) -> Clause:
    from genai_prices import types

    match match:
        case types.ClauseEquals():
            return Clause("equals", match.equals.lower())
        case types.ClauseStartsWith():
            return Clause("starts_with", match.starts_with.lower())
        case types.ClauseEndsWith():
            return Clause("ends_with", match.ends_with.lower())
        case types.ClauseContains():
            return Clause("contains", match.contains.lower())
        case types.ClauseRegex():
            return Clause("regex", match.regex)
        case types.ClauseOr():
            return Clause("or", of=tuple(map(_clause, match.or_)))
        case types.ClauseAnd():
            return Clause("and", of=tuple(map(_clause, match.and_)))


def _periods(model: types.ModelInfo) -> tuple[Period, ...]:
    """Of those whose condition holds the last counts; where none does, the first of all."""
    from genai_prices import types

    if isinstance(model.prices, types.ModelPrice):
        scales = _scales(model.prices)
        return (Period(scales),) if scales else ()
    periods: list[Period] = []
    for number, conditional in enumerate(model.prices):
        scales = _scales(conditional.prices)
        constraint = conditional.constraint
        if not scales:
            return ()
        if number == 0 and constraint is not None:
            periods.append(Period(scales))
        if isinstance(constraint, types.StartDateConstraint):
            periods.append(Period(scales, since=datetime.combine(constraint.start_date, time(), UTC).timestamp()))
        elif isinstance(constraint, types.TimeOfDateConstraint):
            window = Window(_minute(constraint.start_time), _minute(constraint.end_time))
            periods.append(Period(scales, windows=(window,)))
        else:
            periods.append(Period(scales))
    return tuple(periods)


def _tiers(model: types.ModelInfo) -> dict[str, tuple[Period, ...]]:
    """Its prices in other tiers of the maker's service, and in its batches; those that change with the hour are left
    out."""
    from genai_prices import types

    variants = [v for v in model.price_variants or () if len(v.when) == 1 and _tier_of(v.when)]
    ordinary = model.prices if isinstance(model.prices, list) else []
    constraints = [v.constraint for v in variants if v.constraint is not None]
    constraints += [c.constraint for c in ordinary if c.constraint is not None]
    if any(not isinstance(one, types.StartDateConstraint) for one in constraints):
        return {}
    days = sorted({one.start_date for one in constraints if isinstance(one, types.StartDateConstraint)})
    found: dict[str, tuple[Period, ...]] = {}
    for tier in dict.fromkeys(_tier_of(variant.when) for variant in variants):
        own = [variant for variant in variants if _tier_of(variant.when) == tier]
        periods: list[Period] = []
        for since in (None, *days):
            at = datetime.combine(since or date(1970, 1, 2), time(), UTC)
            active = [v for v in own if v.constraint is None or v.constraint.active(at)]
            listed = any(vars(v.prices).get(key) is not None for v in active for key in _KINDS)
            scales = _scales(model.get_prices(at, own[0].when)) if listed else ()
            if scales:
                periods.append(Period(scales, since=at.timestamp() if since is not None else None))
        if periods:
            found[tier] = tuple(periods)
    return found


def _tier_of(when: Mapping[str, str]) -> str:
    """ "" for what is no tier, or the ordinary one."""
    tier = when.get("service_tier") or when.get("processing") or ""
    return "" if tier in ORDINARY else tier


def _minute(at: time) -> int:
    """UTC."""
    offset = at.utcoffset()
    return (at.hour * 60 + at.minute - (int(offset.total_seconds()) // 60 if offset else 0)) % 1_440


def _scales(prices: types.ModelPrice) -> tuple[Scale, ...]:
    """Empty where a price per token cannot be said."""
    from genai_prices import types

    listed: dict[str, Decimal | types.TieredPrices] = {
        key: value for key, value in vars(prices).items() if value is not None
    }
    if any(listed.get(key) not in (None, listed.get(_text(key))) for key in _OTHER_MEDIA):
        return ()
    kinds = {key: value for key, value in listed.items() if key in _KINDS}
    if not kinds.keys() - {"requests_kcount"}:
        return ()
    scales: list[Scale] = []
    for above in sorted({0, *_starts(kinds.values())}):
        found: dict[str, Decimal] = {}
        for key, value in kinds.items():
            if isinstance(value, types.TieredPrices):
                price = next((t.price for t in reversed(value.tiers) if above and above >= t.start), value.base)
            else:
                price = value
            found[_KINDS[key]] = price / 1_000 if key == "requests_kcount" else price
        scales.append(Scale(_changes(found, scales), above))
    return tuple(scales)


def _text(key: str) -> str:
    return "input_mtok" if key.startswith("input") else "output_mtok"


def _starts(values: Iterable[object]) -> Iterable[int]:
    from genai_prices import types

    for value in values:
        if isinstance(value, types.TieredPrices):
            for tier in value.tiers:
                yield tier.start


def _changes(found: Mapping[str, Decimal], before: Iterable[Scale]) -> dict[str, Decimal]:
    known: dict[str, Decimal] = {}
    for scale in before:
        known |= scale.prices
    return {kind: price for kind, price in found.items() if known.get(kind) != price}

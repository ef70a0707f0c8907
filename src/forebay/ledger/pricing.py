"""What tokens cost: prices as they were listed, made whole numbers once, applied without a rounding but the last.

A `PriceBook` is plain data that the supervisor makes (`ledger.pricefile`, `ledger.vendors`) and every process gets. Its
`lookup` finds the `Price` of a model of a provider at a moment: an entry of the price file (of that provider before
those of any), else the vendor's list. Of an entry's periods the last whose conditions hold counts. None: nobody lists
it, and what it cost is not known; a price of 0 is only where a list says 0.

A request is priced by the moment it was reserved: what was held and what is settled come from one `Price`, whatever the
clock does in between. Which tier of it applies is decided by the prompt tokens of what is priced, all of them at that
tier's prices.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from decimal import Decimal
from fractions import Fraction
from functools import cached_property
from hashlib import sha256
from math import inf, lcm
from types import MappingProxyType
from typing import Final, NamedTuple

import msgspec

from forebay.ledger.money import NANO
from forebay.ledger.pricelists import Exchange, Listed, Period, Scale, Vendor
from forebay.ledger.tariff import Bound, Tariff
from forebay.ledger.tokens import KINDS, Tokens

MILLION: Final = 1_000_000
PARENT: Final = MappingProxyType(
    {
        "cached": "input",
        "cache_write": "input",
        "cache_write_long": "cache_write",
        "audio_input": "input",
        "image_input": "input",
        "reasoning": "output",
        "audio_output": "output",
    }
)
"""A kind without a price of its own costs what the other costs."""
PROMPT_KINDS: Final = ("input", "cached", "cache_write", "cache_write_long", "audio_input", "image_input")
COMPLETION_KINDS: Final = ("output", "reasoning", "audio_output")
KV_PRICE: Final = "kv"
PRICED_KINDS: Final = (*KINDS, "request", KV_PRICE)
"""What a price may be given of: per million tokens, `images` each, `request` for each attempt that has tokens, `kv` for
a million KV token-seconds."""
EACH: Final = frozenset({"images", "request"})
MOST_MODELS: Final = 4_096
"""Looked up models that are remembered."""
MOST_PRICES: Final = 4_096

_COMPACT_DATE: Final = re.compile(r"-(20\d\d)(0[1-9]|1[0-2])(0[1-9]|[12]\d|3[01])(?=-|:|$)")
"""gpt-5.2-20251211, which is gpt-5.2-2025-12-11."""
_counts: Final = msgspec.structs.astuple
_PLACES: Final = MappingProxyType({kind: place for place, kind in enumerate(PRICED_KINDS)})
_REQUEST: Final = _PLACES["request"]
_KV: Final = _PLACES[KV_PRICE]


class Rates(NamedTuple):
    rows: tuple[tuple[int, ...], ...]
    """One a scale, in the order of `PRICED_KINDS` (`kv`: of one KV token-second): in 1/`denominator` nano-units of the
    ledger's currency, exactly."""
    denominator: int
    unknown: tuple[int, ...]
    """Places in a row for which there is no price; it says 0 there."""


class Price(msgspec.Struct, frozen=True, dict=True, omit_defaults=True):
    """A price as it is applied, and as it was listed. Written into the journal as JSON: the snapshot that every cost
    can be checked against."""

    id: str
    """provider/model and eight digits of a hash of all that decides."""
    model: str
    provider: str
    into: str
    """The ledger's currency."""
    scales: tuple[Scale, ...]
    """As listed, in `currency`."""
    currency: str = "USD"
    exchange: str = "1"
    """Units of `into` for one of `currency`: a decimal, or a fraction where the reverse is listed."""
    exchange_since: float | None = None
    source: str = ""
    since: float | None = None
    until: float | None = None
    service_tier: str = ""
    """The maker's tier that answered; "" for the ordinary one."""
    hours: str = ""
    """Of an off-peak price, when it is in force, such as "00:30-08:30 Asia/Shanghai"."""
    pace: tuple[float, float] | None = None
    """Of a self-hosted engine: seconds for a prompt token, and for one of the answer, that a hold takes for granted."""

    def cost(self, tokens: Tokens, kv: int = 0) -> int | None:
        """Nano-units of the ledger's currency, rounded once. `kv`: KV token-seconds. None: some of these tokens are of
        a kind that has no price."""
        return self.tariff.cost(_counts(tokens), kv)

    def most(self, prompt: int, completion: int, *, images: int = 0, audio: bool = True) -> int:
        """What to hold: no less than any settlement of at most so many tokens, of whatever kinds, at this price.
        Without `audio`, of kinds that are not audio. What has no price is not held for. For memory over time it holds
        for all of these tokens from the first to the last, at the engine's pace: a slower one can settle at more."""
        return self.tariff.most_of(prompt, completion, images, audio)

    def rate_of(self, kind: str, prompt: int) -> Decimal | None:
        """As listed, for a request of so many prompt tokens: of the kind itself, or of the one whose price it has."""
        known: dict[str, Decimal] = {}
        for scale in self.scales:
            if not scale.above or prompt > scale.above:
                known |= scale.prices
        return _of(kind, known)

    @cached_property
    def tariff(self) -> Tariff:
        """It, made ready for every request."""
        rates = self.rates
        return Tariff(
            tuple(scale.above for scale in self.scales),
            rates.rows,
            rates.denominator,
            rates.unknown,
            _REQUEST,
            _KV,
            self._bounds_of(PROMPT_KINDS, COMPLETION_KINDS),
            self._bounds_of(
                [kind for kind in PROMPT_KINDS if kind != "audio_input"],
                [kind for kind in COMPLETION_KINDS if kind != "audio_output"],
            ),
            self.pace,
        )

    @cached_property
    def rates(self) -> Rates:
        """What is listed, as whole numbers."""
        exchange = Fraction(self.exchange)
        known: dict[str, Decimal] = {}
        rows: list[list[Fraction]] = []
        unknown: set[int] = set()
        for scale in self.scales:
            known |= scale.prices
            row = []
            for place, kind in enumerate(PRICED_KINDS):
                found = _of(kind, known)
                if found is None and place < len(KINDS):
                    unknown.add(place)
                row.append(Fraction(found or 0) * (NANO if kind in EACH else NANO // MILLION) * exchange)
            rows.append(row)
        denominator = lcm(*(rate.denominator for row in rows for rate in row))
        return Rates(
            tuple(tuple(int(rate * denominator) for rate in row) for row in rows), denominator, tuple(sorted(unknown))
        )

    def _bounds_of(self, prompt: Iterable[str], completion: Iterable[str]) -> tuple[Bound, ...]:
        ins, outs = [_PLACES[kind] for kind in prompt], [_PLACES[kind] for kind in completion]
        return tuple(
            (
                scale.above,
                max(row[i] for i in ins),
                max(row[i] for i in outs),
                row[_PLACES["images"]],
                row[_REQUEST],
                row[_KV],
            )
            for scale, row in zip(self.scales, self.rates.rows, strict=True)
        )

    def as_json(self) -> bytes:
        return msgspec.json.encode(self)


_price_decoder: Final = msgspec.json.Decoder(Price)


def price_from(snapshot: bytes | str) -> Price:
    """Of `Priced.price`. Raises msgspec.MsgspecError."""
    return _price_decoder.decode(snapshot)


def named(price: Price) -> Price:
    """With its id."""
    digest = sha256(msgspec.structs.replace(price, id="").as_json()).hexdigest()[:8]
    return msgspec.structs.replace(price, id=f"{price.provider or '-'}/{price.model}#{digest}")


def _of(kind: str, known: dict[str, Decimal]) -> Decimal | None:
    found = known.get(kind)
    parent = PARENT.get(kind)
    return found if found is not None or parent is None else _of(parent, known)


def shown_rate(rate: Fraction) -> str:
    """As a decimal where it is one, else as a fraction."""
    digits = 0
    rest = rate.denominator
    while rest % 10 == 0:
        rest //= 10
        digits += 1
    while rest % 2 == 0 or rest % 5 == 0:
        rest //= 2 if rest % 2 == 0 else 5
        digits += 1
    if rest > 1:
        return str(rate)
    return f"{Decimal(rate.numerator * 10**digits // rate.denominator).scaleb(-digits).normalize():f}"


class _Book(msgspec.Struct, frozen=True, omit_defaults=True):
    currency: str = "USD"
    own: tuple[Vendor, ...] = ()
    """Of the price file: by provider, "" for entries that name none."""
    vendors: tuple[Vendor, ...] = ()
    exchange: tuple[Exchange, ...] = ()


_Found = tuple[Price | None, float, float]


class PriceBook:
    """All price lists. Mutable state: what was looked up lately, at most so much."""

    def __init__(
        self,
        currency: str = "USD",
        own: tuple[Vendor, ...] = (),
        vendors: tuple[Vendor, ...] = (),
        exchange: tuple[Exchange, ...] = (),
    ) -> None:
        self.currency = currency
        self._data = _Book(currency, own, vendors, exchange)
        self._own = {vendor.id: vendor for vendor in own}
        self._vendors = {vendor.id: vendor for vendor in vendors}
        self._lately: dict[tuple[str, str, str], _Found] = {}
        self._prices: dict[tuple[int, int, Fraction, str], Price] = {}

    @property
    def own(self) -> tuple[Vendor, ...]:
        return self._data.own

    @property
    def vendors(self) -> tuple[Vendor, ...]:
        return self._data.vendors

    @property
    def exchange(self) -> tuple[Exchange, ...]:
        return self._data.exchange

    def as_json(self) -> bytes:
        return msgspec.json.encode(self._data)

    @classmethod
    def from_json(cls, text: bytes | str) -> PriceBook:
        """Raises msgspec.MsgspecError."""
        found = msgspec.json.decode(text, type=_Book)
        return cls(found.currency, found.own, found.vendors, found.exchange)

    def lookup(self, model: str, provider: str, at: float, tier: str = "") -> Price | None:
        """`model` by the provider's own name; `provider` as `provider_of` says, "" for an engine that is nobody's; `at`
        in seconds since the epoch; `tier`: of the maker's service, "" for the ordinary one. None: no price is known, or
        no rate into the ledger's currency."""
        found = self._lately.get((model, provider, tier))
        if found is None or not found[1] <= at < found[2]:
            found = self._look(model, provider, at, tier)
        return found[0]

    def provider_of(self, url: str) -> str:
        """Whose API answers there; "" where no price list says."""
        for vendor in self._data.vendors:
            if vendor.urls and re.match(vendor.urls, url):
                return vendor.id
        return ""

    def rate(self, of: str, into: str, at: float) -> tuple[Fraction, float | None] | None:
        """Units of `into` for one of `of`, and since when that is so; the reverse is used where only that is listed."""
        if of == into:
            return Fraction(1), None
        best: Exchange | None = None
        for one in self._data.exchange:
            if (one.since is not None and one.since > at) or {one.of, one.into} != {of, into}:
                continue
            if best is None or (one.of == of, one.since or -inf) >= (best.of == of, best.since or -inf):
                best = one
        if best is None:
            return None
        return Fraction(best.rate) if best.of == of else 1 / Fraction(best.rate), best.since

    def entry(self, model: str, provider: str, at: float, tier: str = "") -> tuple[Listed, Period, str] | None:
        """What is listed, when, and by whom. Who has a model's ordinary price has that of its tiers, or nobody has."""
        name = model.lower()
        dashed = _COMPACT_DATE.sub(r"-\1-\2-\3", name)
        for seller in self._sellers(provider):
            for said in dict.fromkeys((name, dashed)):
                for listed in seller.matching(said):
                    if tier:
                        for period in reversed(listed.service_tiers.get(tier, ())):
                            if period.holds(at):
                                return listed, period, provider or seller.id
                    for period in reversed(listed.periods):
                        if period.holds(at):
                            return (listed, period, provider or seller.id) if not tier else None
        return None

    def _sellers(self, provider: str) -> Iterable[Vendor]:
        """Whose lists count for it, first to last."""
        for name in dict.fromkeys((provider, "")):
            if name in self._own:
                yield self._own[name]
        vendor = self._vendors.get(provider) or self._by_other_name(provider)
        if vendor is None:
            return
        yield vendor
        for other in vendor.others:
            if other in self._vendors:
                yield self._vendors[other]

    def _by_other_name(self, provider: str) -> Vendor | None:
        for vendor in self._data.vendors:
            if vendor.names is not None and provider and vendor.names.matches(provider.lower()):
                return vendor
        return None

    def _look(self, model: str, provider: str, at: float, tier: str) -> _Found:
        """Good for the minute of `at`: no date, hour or rate changes within one."""
        if len(self._lately) >= MOST_MODELS:
            del self._lately[next(iter(self._lately))]
        begins = at // 60 * 60
        found: _Found = (self._find(model, provider, at, tier), begins, begins + 60)
        self._lately[model, provider, tier] = found
        return found

    def _find(self, model: str, provider: str, at: float, tier: str) -> Price | None:
        entry = self.entry(model, provider, at, tier)
        if entry is None:
            return None
        listed, period, seller = entry
        rate = self.rate(period.currency, self.currency, at)
        if rate is None:
            return None
        key = (id(listed), id(period), rate[0], seller)
        price = self._prices.get(key)
        if price is None:
            if len(self._prices) >= MOST_PRICES:
                del self._prices[next(iter(self._prices))]
            price = self._prices[key] = named(
                Price(
                    id="",
                    model=listed.model,
                    provider=seller,
                    into=self.currency,
                    scales=period.scales,
                    currency=period.currency,
                    exchange=shown_rate(rate[0]),
                    exchange_since=rate[1],
                    source=listed.source,
                    since=period.since,
                    until=period.until,
                    service_tier=tier,
                    hours=" ".join([*map(str, period.windows), period.zone]) if period.windows else "",
                )
            )
        return price

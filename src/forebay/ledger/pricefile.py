"""The price file: what it says, checked, as entries of a `PriceBook`. docs/prices.md describes it.

Entries of one model name (and provider) follow each other in time: each is in force until its `until`, or until the
next one begins. Two at once are an error, a time without one a warning.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal, InvalidOperation
from difflib import get_close_matches
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from forebay.config import document
from forebay.config.document import Node, Trouble, describe, dotted
from forebay.config.problems import ConfigError, Problem, Severity
from forebay.errors import shown
from forebay.ledger.enginepricing import ORDINARY
from forebay.ledger.pricelists import Clause, Exchange, Listed, Period, Scale, Vendor, Window
from forebay.ledger.pricing import PRICED_KINDS

KINDS_SAID: Final = tuple(kind for kind in PRICED_KINDS if kind != "kv")
MOST_PRICE: Final = Decimal(1_000_000)
_PLACES: Final = 12
"""Digits behind the point, of prices and exchange rates."""
_TOP: Final = ("currency", "zone", "exchange", "prices")
_EXCHANGE: Final = ("from", "to", "rate", "since")
_TIMES: Final = ("since", "until", "zone")
_ENTRY: Final = (
    "model",
    "models",
    "provider",
    "service_tier",
    "currency",
    *_TIMES,
    *KINDS_SAID,
    "tiers",
    "off_peak",
    "note",
)
_TIER: Final = ("above", *KINDS_SAID)
_OFF_PEAK: Final = ("hours", "days", "discount", *KINDS_SAID, "tiers")
_CURRENCY: Final = re.compile(r"[A-Z]{3}")
_NAME: Final = re.compile(r"[A-Za-z0-9@][A-Za-z0-9._:/@+-]{0,127}\*?|\*")
_TIER_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,31}")
_PROVIDER: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_HOURS: Final = re.compile(r"([01][0-9]|2[0-3]):([0-5][0-9])-(?:([01][0-9]|2[0-3]):([0-5][0-9])|(24:00))")
_DAYS: Final = MappingProxyType({day: n for n, day in enumerate(("mon", "tue", "wed", "thu", "fri", "sat", "sun"))})


@dataclass(slots=True)
class Entry:
    """One name of an entry of the file."""

    name: str
    """As written; `*` at its end stands for anything."""
    provider: str
    line: int
    path: document.Path
    periods: tuple[Period, ...]
    """The entry's own, then its off-peak hours; without times."""
    since: float | None
    until: float | None
    zone: str
    tier: str = ""
    """The maker's service tier that it is the price of."""


@dataclass(slots=True)
class PriceFile:
    name: str
    entries: list[Entry] = field(default_factory=list)
    exchange: list[Exchange] = field(default_factory=list)
    warnings: list[Problem] = field(default_factory=list)

    def vendors(self) -> tuple[Vendor, ...]:
        """By provider; of its models those with a whole name come first, then the longer beginnings."""
        names: dict[tuple[str, str], list[Entry]] = {}
        for entry in self.entries:
            names.setdefault((entry.provider, entry.name.lower()), []).append(entry)
        listed: dict[str, list[tuple[tuple[bool, int], Listed]]] = {}
        for (provider, name), entries in names.items():
            periods: dict[str, tuple[Period, ...]] = {"": ()}
            for entry in entries:
                periods[entry.tier] = periods.get(entry.tier, ()) + tuple(
                    Period(p.scales, entry.since, entry.until, p.windows, p.zone, p.currency) for p in entry.periods
                )
            ordinary = periods.pop("")
            found = Listed(entries[0].name, _clause(name), ordinary, self.name, periods)
            listed.setdefault(provider, []).append(((name.endswith("*"), -len(name)), found))
        return tuple(
            Vendor(provider, tuple(one for _, one in sorted(models, key=lambda model: model[0])))
            for provider, models in listed.items()
        )


def load_prices(path: Path, currency: str) -> PriceFile:
    """`currency`: of prices that name none, where the file has none either. Raises ConfigError with every problem, an
    unreadable file among them."""
    name = str(path)
    try:
        with path.open("rb") as file:
            data = file.read(document.MAX_BYTES + 1)
    except OSError as e:
        raise ConfigError([Problem(name, 0, "", f"cannot be read: {e.strerror or e}")]) from None
    text = document.decode(data)
    if isinstance(text, Trouble):
        raise ConfigError([_problem(name, text)])
    return read_prices(text, name, currency)


def read_prices(text: str, name: str, currency: str) -> PriceFile:
    """`name` stands in messages for the file. Raises ConfigError."""
    tree, troubles = document.parse(text)
    reader = _Reader(currency, troubles)
    reader.read(tree)
    reader.follow_each_other()
    if reader.troubles:
        raise ConfigError([_problem(name, trouble) for trouble in reader.troubles])
    warnings = [_problem(name, trouble, Severity.WARNING) for trouble in reader.cautions]
    return PriceFile(name, reader.entries, reader.exchange, warnings)


def _problem(name: str, trouble: Trouble, severity: Severity = Severity.ERROR) -> Problem:
    return Problem(name, trouble.line, dotted(trouble.path), trouble.message, trouble.found, trouble.allowed, severity)


def _clause(name: str) -> Clause:
    return Clause("starts_with", name[:-1]) if name.endswith("*") else Clause("equals", name)


@dataclass(slots=True)
class _Reader:
    currency: str
    troubles: list[Trouble]
    cautions: list[Trouble] = field(default_factory=list)
    entries: list[Entry] = field(default_factory=list)
    exchange: list[Exchange] = field(default_factory=list)
    zone: str = "UTC"

    def wrong(self, node: Node, message: str, allowed: str = "", *, found: str | None = None) -> None:
        shown = "" if isinstance(node.value, dict | list) else describe(node.value)
        self.troubles.append(Trouble(node.line, node.path, message, shown if found is None else found, allowed))

    def odd(self, node: Node, message: str, found: str = "") -> None:
        self.cautions.append(Trouble(node.line, node.path, message, found))

    def read(self, tree: Node) -> None:
        fields = self.fields(tree, _TOP)
        if (node := fields.get("currency")) is not None:
            self.currency = self.code(node) or self.currency
        if (node := fields.get("zone")) is not None:
            self.zone = self.time_zone(node) or self.zone
        for node, found in self.mappings(fields.get("exchange"), _EXCHANGE):
            self.read_exchange(node, found)
        before = len(self.troubles)
        for node, found in self.mappings(fields.get("prices"), _ENTRY):
            self.read_entry(node, found, before)
            before = len(self.troubles)

    # --- values -----------------------------------------------------------------------------------------------------

    def fields(self, node: Node, known: tuple[str, ...]) -> dict[str, Node]:
        assert isinstance(node.value, dict)
        for key, child in node.value.items():
            if key not in known:
                near = get_close_matches(key, known, n=2)
                hint = f"; did you mean {' or '.join(near)}?" if near else ""
                self.troubles.append(Trouble(child.line, child.path, f"unknown key{hint}", allowed=", ".join(known)))
        return {key: child for key, child in node.value.items() if key in known}

    def items(self, node: Node | None) -> list[Node]:
        if node is None or node.value is None:
            return []
        if not isinstance(node.value, list):
            self.wrong(node, "not a list", found=describe(node.value))
            return []
        return node.value

    def mappings(self, node: Node | None, known: tuple[str, ...]) -> Iterator[tuple[Node, dict[str, Node]]]:
        """A list's items, with what is known of their fields."""
        for one in self.items(node):
            if isinstance(one.value, dict):
                yield one, self.fields(one, known)
            else:
                self.wrong(one, "not a mapping", ", ".join(known), found=describe(one.value))

    def code(self, node: Node) -> str | None:
        if isinstance(node.value, str) and _CURRENCY.fullmatch(node.value):
            return node.value
        self.wrong(node, "not a currency", "an ISO 4217 code such as USD or CNY")
        return None

    def time_zone(self, node: Node) -> str | None:
        try:
            return ZoneInfo(str(node.value)).key
        except (ZoneInfoNotFoundError, ValueError, OSError):
            self.wrong(node, "not a time zone", "a name such as UTC, Europe/Berlin or Asia/Shanghai")
            return None

    def number(self, node: Node, most: Decimal, what: str, places: int = _PLACES) -> Decimal | None:
        """From 0; digits as they are written."""
        value = node.value
        try:
            found = (
                Decimal(str(value)) if isinstance(value, str | int | float) and not isinstance(value, bool) else None
            )
        except InvalidOperation:
            found = None
        if found is None or not found.is_finite() or not 0 <= found <= most:
            self.wrong(node, f"not {what}", f"a decimal from 0 to {most:,}")
            return None
        exponent = found.normalize().as_tuple().exponent
        if isinstance(exponent, int) and -exponent > places:
            self.wrong(node, f"more than {places} digits behind the point")
            return None
        return found

    def moment(self, node: Node, zone: str) -> float | None:
        """Midnight of a date, or a local time, in the zone; seconds since the epoch."""
        text = str(node.value)
        try:
            found = datetime.fromisoformat(text) if isinstance(node.value, str) else None
        except ValueError as e:
            why = f" ({e})" if re.match(r"\d{4}-\d\d-\d\d", text) else ""
            self.wrong(node, f"no such day or time{why}", "a date such as 2026-03-01, or 2026-03-01T08:00")
            return None
        if found is None or found.second or found.microsecond or not 2000 <= found.year < 2200:
            self.wrong(node, "not a day of this time, or not in whole minutes", "2026-03-01, or 2026-03-01T08:00")
            return None
        return (found if found.tzinfo is not None else found.replace(tzinfo=ZoneInfo(zone))).timestamp()

    # --- exchange rates ---------------------------------------------------------------------------------------------

    def read_exchange(self, node: Node, fields: Mapping[str, Node]) -> None:
        missing = [key for key in ("from", "to", "rate") if key not in fields]
        if missing:
            self.wrong(node, f"{' and '.join(missing)} missing", "{from: CNY, to: USD, rate: 0.14, since: 2026-01-01}")
            return
        of, into = self.code(fields["from"]), self.code(fields["to"])
        rate = self.number(fields["rate"], MOST_PRICE, "an exchange rate")
        since = self.moment(fields["since"], self.zone) if "since" in fields else None
        if rate is not None and not rate:
            self.wrong(fields["rate"], "an exchange rate is more than 0")
        elif of is not None and of == into:
            self.wrong(node, "a currency has no rate into itself")
        elif of is not None and into is not None and rate is not None:
            found = Exchange(of, into, rate, since)
            if any({one.of, one.into} == {of, into} and one.since == since for one in self.exchange):
                self.wrong(node, f"a second rate between {of} and {into} from the same day on")
            self.exchange.append(found)

    # --- prices -----------------------------------------------------------------------------------------------------

    def read_entry(self, node: Node, fields: Mapping[str, Node], before: int) -> None:
        """`before`: how many troubles there were before it."""
        names = self.names(node, fields)
        provider = ""
        if (given := fields.get("provider")) is not None:
            provider = str(given.value)
            if not isinstance(given.value, str) or not _PROVIDER.fullmatch(provider):
                self.wrong(given, "not a provider's name", "letters, digits, dots, dashes and underscores")
        tier = self.tier(fields.get("service_tier"))
        currency = self.code(fields["currency"]) if "currency" in fields else self.currency
        zone = (self.time_zone(fields["zone"]) if "zone" in fields else self.zone) or "UTC"
        since = self.moment(fields["since"], zone) if "since" in fields else None
        until = self.moment(fields["until"], zone) if "until" in fields else None
        if since is not None and until is not None and since >= until:
            self.wrong(fields["until"], "not after since")
        prices = self.prices(fields)
        if not prices and len(self.troubles) == before:
            self.wrong(node, "no price", f"at least one of {', '.join(KINDS_SAID)}; write 0 for what is free")
        scales = (Scale(prices), *self.tiers(fields.get("tiers"), prices))
        periods = [Period(scales, currency=currency or "")]
        for hours, found in self.mappings(fields.get("off_peak"), _OFF_PEAK):
            periods += self.off_peak(hours, found, scales, zone, currency or "")
        if len(self.troubles) == before:
            for name in names:
                self.entries.append(
                    Entry(name, provider, node.line, node.path, tuple(periods), since, until, zone, tier)
                )

    def tier(self, node: Node | None) -> str:
        if node is None:
            return ""
        if not isinstance(node.value, str) or not _TIER_NAME.fullmatch(node.value):
            self.wrong(node, "not a service tier's name", "as answers say it: flex, priority, batch, …")
            return ""
        if node.value.lower() in ORDINARY:
            self.wrong(node, "the ordinary tier", "leave it out: an entry without service_tier is the price of that")
            return ""
        return node.value.lower()

    def names(self, node: Node, fields: Mapping[str, Node]) -> list[str]:
        if ("model" in fields) == ("models" in fields):
            self.wrong(node, "an entry is of a model, or of models", "model: NAME, or models: [NAME, …]")
            return []
        found = [fields["model"]] if "model" in fields else self.items(fields["models"])
        if not found:
            self.wrong(node, "an entry is of at least one model")
        names: list[str] = []
        for one in found:
            if not isinstance(one.value, str) or not _NAME.fullmatch(one.value):
                self.wrong(one, "not a model's name", "a name in quotes where needed; * at its end stands for anything")
            elif one.value.lower() in [name.lower() for name in names]:
                self.wrong(one, "named twice")
            else:
                names.append(one.value)
        return names

    def prices(self, fields: Mapping[str, Node]) -> dict[str, Decimal]:
        found: dict[str, Decimal] = {}
        for kind in KINDS_SAID:
            if (node := fields.get(kind)) is None:
                continue
            price = self.number(node, MOST_PRICE, "a price")
            if price is None:
                continue
            found[kind] = price
            if 0 < price < Decimal("0.0001") and kind not in ("images", "request"):
                self.odd(node, "prices are per million tokens, and this is very little", str(price))
        if found.get("cached", Decimal(0)) > found.get("input", MOST_PRICE):
            self.odd(fields["cached"], "dearer than input", str(found["cached"]))
        return found

    def tiers(self, node: Node | None, base: Mapping[str, Decimal]) -> Iterator[Scale]:
        last = 0
        for one, fields in self.mappings(node, _TIER):
            above = fields.get("above")
            if above is None or type(above.value) is not int or above.value <= last:
                what = "the prompt tokens that it begins above, more than in the tier before it"
                self.wrong(above or one, "above is " + what, "a whole number")
                return
            last = above.value
            prices = self.prices(fields)
            if not prices:
                self.wrong(one, "no price in this tier")
            for kind in prices:
                if kind not in base:
                    self.wrong(one, f"the entry itself has no price for {kind}", "give one below the tiers as well")
            yield Scale(prices, last)

    def off_peak(
        self, node: Node, fields: Mapping[str, Node], scales: tuple[Scale, ...], zone: str, currency: str
    ) -> Iterator[Period]:
        windows = tuple(self.windows(node, fields))
        if (discount := fields.get("discount")) is not None:
            share = self.number(discount, Decimal(1), "a share", 4)
            if any(kind in fields for kind in KINDS_SAID) or "tiers" in fields:
                self.wrong(node, "either a discount or prices, not both")
            elif share is not None:
                cut = tuple(Scale({k: p * (1 - share) for k, p in s.prices.items()}, s.above) for s in scales)
                yield Period(cut, windows=windows, zone=zone, currency=currency)
            return
        prices = self.prices(fields)
        if not prices:
            self.wrong(node, "neither a discount nor a price", "discount: 0.5, or prices as in the entry")
        elif len(scales) > 1 and "tiers" not in fields:
            self.wrong(node, "the entry has tiers, so its off-peak prices need theirs", "tiers, or a discount")
        base = {**scales[0].prices, **prices}
        yield Period(
            (Scale(base), *self.tiers(fields.get("tiers"), base)), windows=windows, zone=zone, currency=currency
        )

    def windows(self, node: Node, fields: Mapping[str, Node]) -> Iterator[Window]:
        days: list[int] = []
        for day in self.items(fields.get("days")):
            found = _DAYS.get(str(day.value).lower()[:3])
            if found is None:
                self.wrong(day, "not a day", "Mon, Tue, Wed, Thu, Fri, Sat, Sun")
            else:
                days.append(found)
        given = fields.get("hours")
        texts = given.value if given is not None and isinstance(given.value, list) else [given] if given else []
        if not texts:
            self.wrong(node, "hours missing", '"00:30-08:30", or a list of such')
        for one in texts:
            hours = _HOURS.fullmatch(str(one.value))
            if hours is None:
                self.wrong(one, "not hours of a day", '"00:30-08:30"; "22:00-06:00" ends on the next day')
                continue
            start = int(hours[1]) * 60 + int(hours[2])
            end = 0 if hours[5] else int(hours[3]) * 60 + int(hours[4])
            if start == end and start:
                self.wrong(one, "begins and ends at the same time")
            yield Window(start, end, tuple(sorted(set(days))))

    # --- one after the other ----------------------------------------------------------------------------------------

    def follow_each_other(self) -> None:
        """Gives entries without an end that of the next one's beginning; finds overlaps and gaps."""
        by_name: dict[tuple[str, str, str], list[Entry]] = {}
        for entry in self.entries:
            by_name.setdefault((entry.provider, entry.name.lower(), entry.tier), []).append(entry)
        for entries in by_name.values():
            entries.sort(key=_begins)
            for one, other in pairwise(entries):
                if _begins(one) == _begins(other):
                    self._at(other, f"a second price of {_named(other)}: the other is on line {one.line}", "since")
                elif one.until is None:
                    one.until = other.since
                elif other.since is not None and one.until > other.since:
                    why = f"overlaps the price of {_named(one)} on line {one.line}, which ends {_day(one, one.until)}"
                    self._at(other, why, "since")
                elif other.since is not None and one.until < other.since:
                    gap = f"{_named(one)} has no price in this file from {_day(one, one.until)}"
                    self.cautions.append(
                        Trouble(
                            other.line,
                            (*other.path, "since"),
                            f"{gap} to {_day(other, other.since)}; what is listed elsewhere counts then, if anything",
                        )
                    )

    def _at(self, entry: Entry, message: str, key: str) -> None:
        self.troubles.append(Trouble(entry.line, (*entry.path, key), message))


def _begins(entry: Entry) -> float:
    return entry.since if entry.since is not None else float("-inf")


def _named(entry: Entry) -> str:
    tier = f" ({entry.tier})" if entry.tier else ""
    return shown(entry.name) + (f" of {entry.provider}" if entry.provider else "") + tier


def _day(entry: Entry, at: float) -> str:
    local = datetime.fromtimestamp(at, ZoneInfo(entry.zone))
    return local.strftime("%Y-%m-%d" if local.hour == local.minute == 0 else "%Y-%m-%dT%H:%M")

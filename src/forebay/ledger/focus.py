"""Usage as FOCUS 1.2, the FinOps Open Cost and Usage Specification, in CSV (https://focus.finops.org).

A row is what one account used of one model on one engine in an hour or a day, and its adjustments are rows beside it.
The books know one price, so the four costs of a row are the same. What has no price is a row of its own: nothing was
billed for it (BilledCost 0), and `x_Settlement` is "unpriced". Null is an empty cell; times are UTC.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Final
from zoneinfo import ZoneInfo

from forebay.ledger.asked import LABEL, LEVELS, Wrong
from forebay.ledger.exports import Writes, cell
from forebay.ledger.steps import Step, edges
from forebay.ledger.tokens import KINDS
from forebay.ledger.usage import Line, Report, exact, moment

VERSION: Final = "1.2"
NEEDS: Final = (*LEVELS, "model", "served", "engine", "tier", "class", "route", "how")
"""What a report must be by, with a time and the labels wanted beside."""
COLUMNS: Final = (
    "BilledCost", "BillingAccountId", "BillingAccountName", "BillingCurrency", "BillingPeriodEnd",
    "BillingPeriodStart", "ChargeCategory", "ChargeClass", "ChargeDescription", "ChargeFrequency", "ChargePeriodEnd",
    "ChargePeriodStart", "ConsumedQuantity", "ConsumedUnit", "ContractedCost", "EffectiveCost", "InvoiceIssuerName",
    "ListCost", "PricingCategory", "PricingQuantity", "PricingUnit", "ProviderName", "PublisherName", "ResourceId",
    "ResourceName", "ResourceType", "ServiceCategory", "ServiceName", "ServiceSubcategory", "SkuId", "SkuMeter",
    "SkuPriceId", "SubAccountId", "SubAccountName", "SubAccountType", "Tags",
)  # fmt: skip
CUSTOM: Final = (
    "x_Settlement", "x_Attempts", "x_Requests", "x_Succeeded", "x_AvoidedCost",
    *("x_" + "".join(word.title() for word in kind.split("_")) + ("" if kind == "images" else "Tokens")
      for kind in KINDS),
)  # fmt: skip
_MAKER: Final = "Forebay"
_STEPS: Final = ("hour", "day")
_UNKNOWN: Final = "unknown"
"""The SKU of usage whose model is not known: a journal lost what was reserved. Usage always has one."""
_SETTLED: Final = {
    "exact": "as the engine counted",
    "estimated": "estimated from what was delivered",
    "unpriced": "no price is known: nothing is billed",
    "cache": "answered from a cache",
}


def write_focus(report: Report, file: Writes) -> None:
    """`report` is by NEEDS and by "hour" or "day", and by labels as wanted. `file` is opened with newline="". Raises
    Wrong."""
    missing = [name for name in NEEDS if name not in report.by]
    step = next((name for name in _STEPS if name in report.by), None)
    if missing or step is None:
        raise Wrong("by", f"an export as FOCUS is by hour or day and by {', '.join(NEEDS)} at least")
    table = csv.writer(file, lineterminator="\r\n")
    table.writerow([*COLUMNS, *CUSTOM])
    periods = _periods(report, Step(step))
    for line in report.lines:
        of = dict(zip(report.by, line.of, strict=True))
        for row in _rows(line, of, periods[of[step]], report):
            table.writerow([row[column] for column in (*COLUMNS, *CUSTOM)])


def _periods(report: Report, step: Step) -> dict[str, tuple[float, float]]:
    """Of each step, as lines name it."""
    zone = ZoneInfo(report.zone)
    ends = list(edges(report.since, report.until, step, zone))
    return {moment(since, report.zone): (since, end) for since, end in pairwise((report.since, *ends))}


def _rows(line: Line, of: Mapping[str, str], period: tuple[float, float], report: Report) -> Iterator[dict[str, str]]:
    shared = _shared(of, *period, report)
    if line.attempts:
        yield shared | _usage(line, of)
    if line.adjusted:
        yield shared | _adjustment(line)


def _shared(of: Mapping[str, str], since: float, until: float, report: Report) -> dict[str, str]:
    first = datetime.fromtimestamp(since, ZoneInfo(report.zone)).replace(
        day=1, hour=0, minute=0, second=0, microsecond=0, fold=0
    )
    after = (first + timedelta(days=32)).replace(day=1)
    account = of["organisation"] or "default"
    project = _path(of)
    served = of["served"] or of["model"] or _UNKNOWN
    return {
        "BillingAccountId": cell(account),
        "BillingAccountName": cell(account),
        "BillingCurrency": report.currency,
        "BillingPeriodStart": _utc(first.timestamp()),
        "BillingPeriodEnd": _utc(after.timestamp()),
        "ChargePeriodStart": _utc(since),
        "ChargePeriodEnd": _utc(until),
        "ChargeClass": "",
        "InvoiceIssuerName": _MAKER,
        "ProviderName": _MAKER,
        "PublisherName": _MAKER,
        "ResourceId": cell(of["engine"]),
        "ResourceName": "",  # it has no name beside the one that is its id
        "ResourceType": "Engine" if of["engine"] else "",
        "ServiceCategory": "AI and Machine Learning",
        "ServiceSubcategory": "Generative AI",
        "ServiceName": "LLM inference",
        "SkuId": cell(served),
        "SkuMeter": "Tokens",
        "SkuPriceId": cell(served),
        "SubAccountId": cell(project),
        "SubAccountName": cell(of["project"] or of["department"]) if project else "",
        "SubAccountType": ("Project" if of["project"] else "Department") if project else "",
        "Tags": _tags(of),
        "x_Settlement": cell(of["how"]),
    }


def _usage(line: Line, of: Mapping[str, str]) -> dict[str, str]:
    said = _SETTLED.get(of["how"], of["how"])
    tokens = str(line.tokens.total)
    return {
        **_costs(line.cost),
        "ChargeCategory": "Usage",
        "ChargeDescription": cell(f"{of['served'] or of['model'] or _UNKNOWN}: {line.attempts} attempts, {said}"),
        "ChargeFrequency": "Usage-Based",
        "ConsumedQuantity": tokens,
        "ConsumedUnit": "Tokens",
        "PricingCategory": "Standard",
        "PricingQuantity": tokens,
        "PricingUnit": "Tokens",
        "x_Attempts": str(line.attempts),
        "x_Requests": str(line.requests),
        "x_Succeeded": str(line.succeeded),
        "x_AvoidedCost": exact(line.avoided),
        **_kinds(line),
    }


def _adjustment(line: Line) -> dict[str, str]:
    """A later correction, in the period of what it corrects. The tokens of a late settlement are in the usage."""
    return {
        **_costs(line.adjusted),
        "ChargeCategory": "Adjustment",
        "ChargeDescription": "A later correction: a reconciliation of GPU cost, a maker's invoice, a late settlement",
        "ChargeFrequency": "One-Time",
        "ConsumedQuantity": "",
        "ConsumedUnit": "",
        "PricingCategory": "",
        "PricingQuantity": "",
        "PricingUnit": "",
        **dict.fromkeys(CUSTOM[1:], ""),
    }


def _kinds(line: Line) -> dict[str, str]:
    return dict(zip(CUSTOM[5:], (str(getattr(line.tokens, kind)) for kind in KINDS), strict=True))


def _costs(nanos: int) -> dict[str, str]:
    return dict.fromkeys(("BilledCost", "ContractedCost", "EffectiveCost", "ListCost"), exact(nanos))


def _path(of: Mapping[str, str]) -> str:
    """organisation/department/project, so that equal names in two departments are two; "" for an organisation's own."""
    if not of["project"] and not of["department"]:
        return ""
    levels = (of["organisation"], of["department"], of["project"])
    return "/".join(level.replace("%", "%25").replace("/", "%2F") for level in levels)


def _tags(of: Mapping[str, str]) -> str:
    """Labels by their own names, the rest by names that begin with forebay/, which no label's does."""
    labels = {name.removeprefix(LABEL): value for name, value in of.items() if name.startswith(LABEL) and value}
    levels = ("department", "project", "user", "key", "model", "tier", "class", "route", "end_user")
    ours = {f"forebay/{name}": of[name] for name in levels if of.get(name)}
    return json.dumps(labels | ours, separators=(",", ":")) if labels or ours else ""


def _utc(when: float) -> str:
    return datetime.fromtimestamp(when, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

"""Which limits count: the configuration's and those of the database, put together."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from forebay.config.quotas import Quota
from forebay.ledger.rules import Rule


def in_force(quotas: Iterable[Quota], zone: str, kept: Iterable[Rule]) -> tuple[Rule, ...]:
    """`kept` are the database's: one takes the place of a quota of the same name. `zone` (ledger.zone) is of those that
    name none."""
    rules = {quota.name: Rule.of(quota, zone) for quota in quotas}
    rules |= {rule.name: rule if rule.zone else msgspec.structs.replace(rule, zone=zone) for rule in kept}
    return tuple(rules.values())

"""Puts the alerts of an admin process together."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from forebay.admin.alert_books import DatabaseBooks
from forebay.admin.alerting import Alerting
from forebay.admin.keys import Keys
from forebay.admin.troubles import JournalTrouble, Troubles, database_trouble, intake_trouble
from forebay.admin.view import GatewayState
from forebay.clock import Clock
from forebay.config.models import Config
from forebay.ledger.alerts import Rules
from forebay.ledger.in_force import in_force
from forebay.ledger.rules import Rule
from forebay.state.messages import alerts_outbox


def make_alerting(state: GatewayState, keys: Keys, clock: Clock) -> Alerting:
    """Not started yet. Its metrics are among the process' own."""
    config = state.config

    def limits() -> Sequence[Rule]:
        """The configuration's, and the database's of other names, as workers have them."""
        return in_force(state.config.quotas, zone(), keys.rules)

    def status() -> str:
        """The books are looked at once somebody has opened the database, and brought its tables up to date."""
        return keys.status

    def zone() -> str:
        return state.config.ledger.zone

    books = DatabaseBooks(config.database, config.state_dir, zone, status, limits)
    sources = (database_trouble(keys), intake_trouble(state, keys), JournalTrouble(state.workers))
    troubles = Troubles(sources, clock)
    path = alerts_outbox(config.state_dir)
    alerting = Alerting(rules_of(config), books, troubles, path, secrets.token_hex(8), clock)
    state.own.append(alerting.families)
    return alerting


def rules_of(config: Config) -> Rules:
    return Rules(config.alerts, config.ledger.currency, config.ledger.zone)

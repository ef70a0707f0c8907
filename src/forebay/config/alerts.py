"""Who is told what about spending, and from which point on."""

from __future__ import annotations

import base64
import binascii
from enum import StrEnum
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from forebay.config.engine import VISIBLE
from forebay.config.section import Name, Seconds, Secret, Section, clash

__all__ = ["AlertRule", "Alerts", "Every", "Level", "Receiver", "ReceiverKind", "Severity"]

SECRET_PREFIX = "whsec_"  # noqa: S105 - of Standard Webhooks, not a secret
Share = Annotated[float, Field(gt=0, le=1)]


class AlertRule(StrEnum):
    """What an alert is about. Receivers see these words: they never change their meaning."""

    QUOTA_NEAR = "quota_near"
    QUOTA_REACHED = "quota_reached"
    BURST = "burst"
    BUDGET_FORECAST = "budget_forecast"
    UNPRICED_MODEL = "unpriced_model"
    SPEND_ANOMALY = "spend_anomaly"
    LEDGER_TROUBLE = "ledger_trouble"


class Severity(StrEnum):
    """Least first."""

    INFO = "info"
    WARNING = "warning"
    CRITICAL = "critical"


class Level(StrEnum):
    """Of the hierarchy, from the top."""

    ORGANISATION = "organisation"
    DEPARTMENT = "department"
    PROJECT = "project"
    USER = "user"
    KEY = "key"


class Every(StrEnum):
    """A calendar window."""

    HOUR = "hour"
    DAY = "day"
    MONTH = "month"


class ReceiverKind(StrEnum):
    WEBHOOK = "webhook"
    SLACK = "slack"
    FEISHU = "feishu"
    DINGTALK = "dingtalk"


class Receiver(Section):
    name: Name
    """Its label in metrics and logs, and in `forebay alerts`."""
    kind: ReceiverKind = ReceiverKind.WEBHOOK
    """What the message looks like and how it is signed (docs/alerts.md)."""
    url: Secret = Field(repr=False)
    """Where it is posted to, http:// or https://. For Slack, Feishu and DingTalk it is a secret: write ${VAR}."""
    secret: Secret | None = Field(default=None, repr=False)
    """Signs what is sent: for `webhook` any text of 16 characters or more, or whsec_ and base64 of Standard Webhooks;
    for Feishu and DingTalk the robot's. Slack has none. Write ${VAR}."""
    ca: Path | None = None
    """PEM file with the authorities to trust instead of the system's."""
    rules: tuple[AlertRule, ...] = ()
    """Alerts it gets; empty: all."""
    least: Severity = Severity.INFO
    """Least severity it gets."""
    organisations: tuple[Name, ...] = ()
    """Organisations whose alerts it gets; empty: all, and those that are of none."""

    @field_validator("url")
    @classmethod
    def _url(cls, value: str) -> str:
        wrong = "a receiver's url starts with http:// or https:// and names a host"
        try:
            u = urlsplit(value)
            port = u.port
        except ValueError:
            raise ValueError(wrong) from None
        if u.scheme not in ("http", "https") or not u.hostname or port == 0 or not VISIBLE.fullmatch(value):
            raise ValueError(wrong)
        if u.fragment or u.username or u.password:
            raise ValueError("a receiver's url has no fragment, user or password")
        return value

    @model_validator(mode="after")
    def _signable(self) -> Receiver:
        if self.secret is None:
            return self
        if self.kind is ReceiverKind.SLACK:
            raise ValueError("Slack's webhooks have no secret but their url: leave secret out")
        if self.kind is ReceiverKind.WEBHOOK:
            if self.secret.startswith(SECRET_PREFIX):
                try:
                    key = base64.b64decode(self.secret.removeprefix(SECRET_PREFIX), validate=True)
                except (binascii.Error, ValueError):
                    raise ValueError("a secret that begins with whsec_ goes on in base64") from None
                if len(key) < 16:
                    raise ValueError("a secret is at least 16 bytes long")
            elif len(self.secret) < 16:
                raise ValueError("a secret is at least 16 characters long")
        return self

    @property
    def host(self) -> str:
        """What of the url may be shown."""
        return urlsplit(self.url).hostname or ""


class QuotaAlerts(Section):
    enabled: bool = True
    """Tell when a quota is nearly, and when it is wholly used up."""
    daily: Share = 0.8
    """Share of a quota of a day, or of less, from which it is nearly used up."""
    monthly: Share = 0.9
    """The same of a month's."""


class BurstAlerts(Section):
    enabled: bool = True
    """Tell when somebody uses many tokens within a minute."""
    tokens_per_minute: Annotated[int, Field(ge=1, le=1 << 40)] = 10_000
    """From so many on."""
    levels: tuple[Level, ...] = (Level.KEY,)
    """Of whom the minute's tokens are summed: of a whole organisation they may always be that many."""
    once_a: Every = Every.DAY
    """How often it is told of the same."""


class ForecastAlerts(Section):
    enabled: bool = True
    """Tell when a quota of a month will, at the present rate, not last to its end."""
    confidence: Annotated[float, Field(ge=0.5, le=0.99)] = 0.8
    """How probable that must be."""
    days: Annotated[int, Field(ge=3, le=90)] = 28
    """Days of the past that are looked at, at most; at least 3 are needed, and 14 to tell weekdays apart."""


class UnpricedAlerts(Section):
    enabled: bool = True
    """Tell of models that are used and have no price: no sum of money has them."""
    once_a: Every = Every.MONTH
    """How often it is told of the same model."""


class AnomalyAlerts(Section):
    enabled: bool = True
    """Tell when an hour costs far more than such hours do."""
    deviations: Annotated[float, Field(ge=2, le=100)] = 6.0
    """How many robust standard deviations (1.4826 × MAD) above the median."""
    least: Annotated[float, Field(ge=0, le=1e9)] = 5.0
    """And how much above it at least, in units of ledger.currency, so that pennies alarm nobody."""
    levels: tuple[Level, ...] = (Level.ORGANISATION, Level.PROJECT)
    """Whose hours are looked at."""
    once_a: Every = Every.DAY
    """How often it is told of the same."""


class TroubleAlerts(Section):
    enabled: bool = True
    """Tell when the books themselves are in trouble: a journal that is full or cannot be written, a database that is
    away or lags behind."""
    after: Annotated[float, Field(ge=0, le=86_400)] = 60.0
    """Seconds that it must last; a full or failing journal is told at once."""
    once_a: Every = Every.DAY
    """How often it is told of the same."""


class Alerts(Section):
    every: Annotated[float, Field(ge=0.1, le=3_600)] = 30.0
    """Seconds between two looks at the books. Bursts are looked for in the last minute: keep it under 60."""
    receivers: tuple[Receiver, ...] = ()
    """Whom to tell. Logs and metrics have every alert besides."""
    quota: QuotaAlerts = QuotaAlerts()
    """80 % of a day, 90 % of a month, all of it."""
    burst: BurstAlerts = BurstAlerts()
    """Many tokens in a minute."""
    forecast: ForecastAlerts = ForecastAlerts()
    """A month that will not last."""
    unpriced: UnpricedAlerts = UnpricedAlerts()
    """Models without a price."""
    anomaly: AnomalyAlerts = AnomalyAlerts()
    """Hours that cost too much."""
    trouble: TroubleAlerts = TroubleAlerts()
    """Books in trouble."""
    timeout: Seconds = 10.0
    """Seconds a receiver has to answer."""
    queue: Annotated[int, Field(ge=2, le=10_000)] = 256
    """Alerts that wait for a receiver at most; then the oldest but the one being tried is dropped, and it is told how
    many were."""
    keep_trying: Seconds = 86_400.0
    """Seconds after which an alert that could not be delivered is dropped as well."""
    back_off: Seconds = 2.0
    """Seconds before the second try; twice as long before each further one."""
    back_off_most: Seconds = 300.0
    """Most seconds between two tries."""

    @model_validator(mode="after")
    def _consistent(self) -> Alerts:
        names = [r.name for r in self.receivers]
        if len(set(names)) != len(names):
            raise clash("two receivers have the same name")
        if len(names) > 64:
            raise clash("at most 64 receivers")
        if self.back_off_most < self.back_off:
            raise clash("back_off_most must not be less than back_off")
        return self

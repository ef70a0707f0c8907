"""The tables, as SQLAlchemy Core sees them. `migrations/` builds them; a test holds the two together.

The hierarchy is a strict tree: organisation → department → project → user → key. A level that was not given is the
row with the empty name under its parent, so that names are unique within their parent without NULLs in the way, and
sums can be taken at every level. Times are seconds since the Unix epoch.
"""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Double,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    SmallInteger,
    String,
    Table,
    Text,
    UniqueConstraint,
    text,
)

from forebay.ledger.entries import How
from forebay.ledger.tokens import KINDS

HEAD = "0007"
"""The newest migration; a test compares it with the scripts."""

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "pk": "pk_%(table_name)s",
    }
)


def _level(name: str, parent: str | None) -> Table:
    above: list[Any] = []
    if parent is None:
        above.append(UniqueConstraint("name"))
    else:
        above += [
            Column("parent_id", Integer, ForeignKey(f"{parent}.id"), nullable=False),
            UniqueConstraint("parent_id", "name"),
        ]
    return Table(
        name,
        metadata,
        Column("id", Integer, primary_key=True),
        Column("name", String(128), nullable=False),
        Column("created", Double, nullable=False),
        Column("suspended", Double),
        Column("labels", Text, nullable=False, server_default="{}"),  # a JSON object of names and values
        *above,
    )


organisations = _level("organisations", None)
departments = _level("departments", "organisations")
projects = _level("projects", "departments")
users = _level("users", "projects")

keys = Table(
    "keys",
    metadata,
    Column("id", String(32), primary_key=True),
    Column("user_id", Integer, ForeignKey("users.id"), nullable=False),
    Column("name", String(128), nullable=False),
    Column("sha256", LargeBinary(32), nullable=False, unique=True),
    Column("class", String(16), nullable=False, key="class_"),
    Column("may_raise_class", Boolean(create_constraint=False), nullable=False),
    Column("models", Text, nullable=False),  # a JSON array of names; empty: all
    Column("created", Double, nullable=False),
    Column("expires", Double),
    Column("revoked", Double),
    Column("suspended", Double),
    Column("rotated", Double),
    CheckConstraint("class IN ('vip', 'normal', 'low')", name="class"),
    CheckConstraint("length(sha256) = 32", name="sha256"),
)
# A revoked key gives its name back, so that a key can be rotated under the same name.
live_key_names = Index(
    "uq_keys_live_name",
    keys.c.user_id,
    keys.c.name,
    unique=True,
    sqlite_where=text("revoked IS NULL"),
    postgresql_where=text("revoked IS NULL"),
)

old_texts = Table(
    "old_texts",
    metadata,
    Column("sha256", LargeBinary(32), primary_key=True),
    Column("key_id", String(32), ForeignKey("keys.id"), nullable=False, index=True),
    Column("ends", Double, nullable=False),
    CheckConstraint("length(sha256) = 32", name="sha256"),
)
"""Texts that rotated keys had before."""

limits = Table(
    "limits",
    metadata,
    Column("name", String(128), primary_key=True),
    Column("rule", Text, nullable=False),  # `ledger.rules.Rule` as JSON
    Column("created", Double, nullable=False),
    Column("changed", Double, nullable=False),
)
"""Limits beside the configuration's `quotas`."""

versions = Table(
    "versions",
    metadata,
    Column("name", String(32), primary_key=True),
    Column("value", BigInteger, nullable=False),
)
"""How often a list changed: one row a list, bumped in the transaction that changes it."""


# --- the ledger -------------------------------------------------------------------------------------------------------
#
# Money is in nano-units of the ledger's currency. What repeats is kept once and named by number: who pays (accounts),
# what for (dimensions), at which price (prices). `digest` makes such a row unique: its texts are too long for an index.
# Entries and adjustments are append-only: triggers refuse UPDATE and DELETE. An entry and a reservation are named by
# (journal_id, seq) as in `ledger.entries`.

ACCOUNT: Final = ("key", "key_name", "organisation", "department", "project", "user")
SHAPE: Final = ("route", "model", "served", "engine", "tier", "class", "end_user")
SUMS: Final = ("attempts", "requests", *KINDS, "cost", "adjusted", "avoided", "kv", "corrections")
"""What a rollup has: `attempts` and, of them, first ones (`requests`); `cost` as settled, `adjusted` to be added to it,
`corrections`: how many adjustments that is."""
HOWS: Final = tuple(how.value for how in How)
COUNTS: Final = (*SUMS, "succeeded", *HOWS)
"""What sums have that do not tell apart how attempts are known and how they ended: and how many of them were answered
in full, and are known in each way."""
USE: Final = ("organisation", "department", "project", "route", "model", "served", "tier", "class", "labels")
SERVICE: Final = ("route", "model", "served", "engine", "tier", "class")
QUARTER: Final = 900
"""Of an hour: zones are off UTC by quarters."""
HOUR: Final = 3_600
DAY: Final = 86_400
GRAINS: Final = (DAY, HOUR)
"""Seconds that a rollup sums, the longest first; each divides the one before."""
COARSE: Final = (DAY, HOUR, QUARTER)
"""Likewise, of sums by account, by use and by service."""
APPEND_ONLY: Final = ("entries", "adjustments")


def _counts() -> list[Column[int]]:
    return [Column(kind, BigInteger, nullable=False) for kind in KINDS]


accounts = Table(
    "accounts",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("digest", LargeBinary(16), nullable=False, unique=True),
    *(Column(name, Text, nullable=False) for name in ACCOUNT),
)
"""As they were named when something was booked: a key that is renamed is another account from then on."""

uses = Table(
    "uses",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("digest", LargeBinary(16), nullable=False, unique=True),
    *(Column(name, Text, nullable=False) for name in USE),
)
"""What a project used, without what there may be many of: users, keys, end users, engines."""

use_labels = Table(
    "use_labels",
    metadata,
    Column("use_id", Integer, ForeignKey("uses.id"), primary_key=True),
    Column("name", String(64), primary_key=True),
    Column("value", Text, nullable=False),
)
"""`uses.labels`, one a row."""

services = Table(
    "services",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("digest", LargeBinary(16), nullable=False, unique=True),
    *(Column(name, Text, nullable=False) for name in SERVICE),
)
"""What was called, whoever called it."""

dimensions = Table(
    "dimensions",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("digest", LargeBinary(16), nullable=False, unique=True),
    Column("account_id", Integer, ForeignKey("accounts.id"), nullable=False, index=True),
    *(Column(name, Text, nullable=False) for name in SHAPE),
    Column("labels", Text, nullable=False),  # JSON: [[name, value], …], sorted
    Column("use_id", Integer, ForeignKey("uses.id")),  # never empty, but SQLite adds no such column to a table
    Column("service_id", Integer, ForeignKey("services.id")),  # likewise
)
"""All that sums are taken by, but time, `how` and `outcome`."""

dimension_labels = Table(
    "dimension_labels",
    metadata,
    Column("dimension_id", Integer, ForeignKey("dimensions.id"), primary_key=True),
    Column("name", String(64), primary_key=True),
    Column("value", Text, nullable=False),
)
"""`dimensions.labels`, one a row."""

prices = Table(
    "prices",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("digest", LargeBinary(16), nullable=False, unique=True),
    Column("price", Text, nullable=False),  # `ledger.pricing.Price` as JSON
)

journals = Table(
    "journals",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("owner", String(32), nullable=False, unique=True),
    Column("boot", String(64), nullable=False),
    Column("booted", Double, nullable=False),  # when this boot was first read of
    Column("segment", BigInteger, nullable=False),
    Column("position", BigInteger, nullable=False),  # of the last record that is in the tables
    Column("next_seq", BigInteger, nullable=False),  # no attempt was read of with this number or a higher one
    Column("currency", String(3), nullable=False),
    Column("seen", Double, nullable=False),  # when its host last said that it lives
)
"""Who wrote what is booked, and how far it is read: changed in the transaction that books."""

journal_names = Table(
    "journal_names",
    metadata,
    Column("journal_id", Integer, ForeignKey("journals.id"), primary_key=True),
    Column("kind", String(1), primary_key=True),  # the tag of `entries.Account` or `entries.Priced`
    Column("n", BigInteger, primary_key=True, autoincrement=False),
    Column("ref", Integer, nullable=False),
    sqlite_with_rowid=False,
)
"""What numbers mean in the segment that is being read: row ids of accounts and prices."""

reservations = Table(
    "reservations",
    metadata,
    Column("journal_id", Integer, ForeignKey("journals.id"), primary_key=True),
    Column("seq", BigInteger, primary_key=True, autoincrement=False),
    Column("request", BigInteger, nullable=False),
    Column("reserved", Double, nullable=False),
    Column("request_id", Text, nullable=False),
    Column("dimension_id", Integer, ForeignKey("dimensions.id"), nullable=False),
    Column("end_user", Text),  # as in entries
    Column("labels", Text),
    Column("prompt", BigInteger, nullable=False),
    Column("most", BigInteger, nullable=False),
    Column("held", BigInteger, nullable=False),
    Column("price_id", Integer, ForeignKey("prices.id")),
    Column("boot", String(64), nullable=False),
    Column("progress", BigInteger, nullable=False),  # completion tokens delivered, as last said
    sqlite_with_rowid=False,
)
"""Attempts under way: a row goes when its entry comes."""

entries = Table(
    "entries",
    metadata,
    Column("journal_id", Integer, ForeignKey("journals.id"), primary_key=True),
    Column("seq", BigInteger, primary_key=True, autoincrement=False),
    Column("request", BigInteger, nullable=False),
    Column("reserved", Double, nullable=False),
    Column("at", Double, nullable=False),
    Column("request_id", Text, nullable=False),
    Column("dimension_id", Integer, ForeignKey("dimensions.id"), nullable=False),
    Column("how", String(16), nullable=False),
    Column("outcome", String(32), nullable=False),
    *_counts(),
    Column("cost", BigInteger),
    Column("price_id", Integer, ForeignKey("prices.id")),
    Column("ttft", Double, nullable=False),
    Column("seconds", Double, nullable=False),
    Column("kv", BigInteger, nullable=False),
    Column("avoided", BigInteger, nullable=False),
    Column("note", Text, nullable=False),
    Column("survivor", SmallInteger, nullable=False),  # 1: settled by the admin process, for a worker that is gone
    Column("end_user", Text),  # exactly, where the dimension says `_other`
    Column("labels", Text),
    CheckConstraint("(cost IS NULL) = (how = 'unpriced')", name="unpriced"),
    Index("ix_entries_at", "at"),
    sqlite_with_rowid=False,
)
"""One settled attempt a row."""

adjustments = Table(
    "adjustments",
    metadata,
    Column("journal_id", Integer, ForeignKey("journals.id"), primary_key=True),
    Column("seq", BigInteger, primary_key=True, autoincrement=False),
    Column("at", Double, nullable=False),
    Column("counts_at", Double, nullable=False),  # the time of what it corrects
    Column("adjusts", BigInteger, nullable=False),  # `entries.seq` of the same journal; 0: none
    Column("dimension_id", Integer, ForeignKey("dimensions.id"), nullable=False),
    Column("how", String(16), nullable=False),  # of the entry; empty without one
    Column("outcome", String(32), nullable=False),
    *_counts(),
    Column("cost", BigInteger, nullable=False),
    Column("kv", BigInteger, nullable=False),
    Column("reason", Text, nullable=False),
    Column("since", Double, nullable=False),
    Column("until", Double, nullable=False),
    Index("ix_adjustments_counts_at", "counts_at"),
    sqlite_with_rowid=False,
)
"""Corrections: every count is what is to be added, and may be negative. One that settles an attempt late, after a
survivor did, has that attempt's number."""

rollups = Table(
    "rollups",
    metadata,
    Column("grain", Integer, primary_key=True, autoincrement=False),  # one of GRAINS
    Column("slot", BigInteger, primary_key=True, autoincrement=False),  # when it begins; a multiple of the grain
    Column("dimension_id", Integer, ForeignKey("dimensions.id"), primary_key=True, autoincrement=False),
    Column("how", String(16), primary_key=True),
    Column("outcome", String(32), primary_key=True),
    *(Column(name, BigInteger, nullable=False) for name in SUMS),
    sqlite_with_rowid=False,
)
"""Sums of entries by `entries.at`, and of adjustments by `counts_at`, by GRAINS in UTC."""


service_rollups = Table(
    "service_rollups",
    metadata,
    Column("grain", Integer, primary_key=True, autoincrement=False),  # one of COARSE
    Column("slot", BigInteger, primary_key=True, autoincrement=False),
    Column("of_id", Integer, ForeignKey("services.id"), primary_key=True, autoincrement=False),
    Column("how", String(16), primary_key=True),
    Column("outcome", String(32), primary_key=True),
    *(Column(name, BigInteger, nullable=False) for name in SUMS),
    sqlite_with_rowid=False,
)
"""The same sums once more by what was called, and how it went: rows of these are few."""


def _coarse(name: str, by: Table) -> Table:
    return Table(
        name,
        metadata,
        Column("grain", Integer, primary_key=True, autoincrement=False),  # one of COARSE
        Column("slot", BigInteger, primary_key=True, autoincrement=False),
        Column("of_id", Integer, ForeignKey(by.c.id), primary_key=True, autoincrement=False),
        *(Column(count, BigInteger, nullable=False) for count in COUNTS),
        sqlite_with_rowid=False,
    )


account_rollups = _coarse("account_rollups", accounts)
use_rollups = _coarse("use_rollups", uses)
"""And by what most reports are about: where end users differ, there may be as many `rollups` as entries."""

engine_spans = Table(
    "engine_spans",
    metadata,
    Column("host", String(32), primary_key=True),  # a journal's owner
    Column("engine", Text, primary_key=True),
    Column("since", Double, primary_key=True),
    Column("until", Double),  # empty while the host has it so
    Column("seen", Double, nullable=False),  # when the host last had it so
    Column("price", Text, nullable=False),  # `config.engine.GpuPrice` as JSON
)
"""When hosts had engines with a GPU-hour price in their configuration, and at which."""

engine_hours = Table(
    "engine_hours",
    metadata,
    Column("slot", BigInteger, primary_key=True, autoincrement=False),  # when the hour begins
    Column("engine", Text, primary_key=True),
    Column("bill", BigInteger, nullable=False),
    Column("allocated", BigInteger, nullable=False),
    Column("idle", BigInteger, nullable=False),
    Column("spread", SmallInteger, nullable=False),  # 1: what is idle is laid on those who used it
    Column("at", Double, nullable=False),  # when it was last reconciled
    Column("again", SmallInteger, nullable=False),  # 1: something was booked into it since
    CheckConstraint("allocated + idle = bill", name="whole"),
)
"""Hours that were reconciled. The bill stays as it was; what is allocated may still change."""
Index(
    "ix_engine_hours_again",
    engine_hours.c.slot,
    sqlite_where=text("again = 1"),
    postgresql_where=text("again = 1"),
)

alerts = Table(
    "alerts",
    metadata,
    Column("id", String(32), primary_key=True),  # of what it is about and of its window
    Column("owner", String(32), nullable=False),  # the state directory whose admin process delivers it
    Column("fired", Double, nullable=False),
    Column("rule", String(32), nullable=False),
    Column("body", Text, nullable=False),  # `ledger.alerts.Alert` as JSON
    Index("ix_alerts_fired", "fired"),
)
"""Alerts that were raised. The primary key is what makes each one host's, and once."""

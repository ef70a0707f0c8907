"""A database with usage in it, booked as a journal's records are."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from forebay.ledger.book import Book
from forebay.ledger.database import Database
from forebay.ledger.entries import Account, Adjusted, Began, Hit, How, Priced, Record, Reserved, Settled
from forebay.ledger.tokens import NO_TOKENS, Tokens

OWNER = "00112233445566aa"


def at(text: str) -> float:
    """Seconds since the epoch of an ISO 8601 time with its offset."""
    return datetime.fromisoformat(text).timestamp()


class Usage:
    """Entries in a database that is made for them; each call books one request."""

    def __init__(self, database: Database, owner: str = OWNER) -> None:
        database.migrate()
        self._owner = owner
        self._book = Book(database, "USD")
        self._records: list[Record] = [Began(owner, "boot", 1, 1, "USD", 0.0), Priced(1, b'{"id":"p"}')]
        self._accounts: dict[tuple[str, ...], int] = {}
        self._seq = self._booked = 0

    @classmethod
    def below(cls, state_dir: Path, url: str = "") -> Usage:
        return cls(Database(url, state_dir))

    def request(
        self,
        when: float,
        cost: int | None,
        *,
        key: str = "k1",
        key_name: str = "ci",
        organisation: str = "acme",
        department: str = "",
        project: str = "",
        user: str = "",
        model: str = "m",
        served: str = "",
        engine: str = "e1",
        end_user: str = "",
        labels: tuple[tuple[str, str], ...] = (),
        tokens: Tokens = NO_TOKENS,
        how: How | None = None,
        outcome: str = "ok",
        avoided: int = 0,
        of: int = 0,
    ) -> int:
        """Returns its number. `cost` None: unpriced; `of`: the number of the request that this is another try of."""
        who = (key, key_name, organisation, department, project, user)
        if who not in self._accounts:
            self._accounts[who] = len(self._accounts) + 1
            self._records.append(Account(self._accounts[who], *who))
        self._seq += 1
        n, how = self._seq, how or (How.UNPRICED if cost is None else How.EXACT)
        reserved = Reserved(
            n, of or n, when - 1, f"req-{n}", self._accounts[who], "/v1/chat/completions", model, served or model,
            engine, "", "normal", end_user, labels, tokens.prompt, tokens.completion, cost or 0, 1,
        )  # fmt: skip
        settled = Settled(n, when, tokens, how, cost, 0 if cost is None else 1, outcome, avoided=avoided)
        self._records += [Hit(reserved, settled)] if how is How.CACHE else [reserved, settled]
        return n

    def adjust(self, when: float, number: int, cost: int, reason: str = "invoice") -> None:
        self._seq += 1
        self._records.append(Adjusted(self._seq, when, number, cost, reason))

    def book(self) -> None:
        new = list(enumerate(self._records, 1))[self._booked :]
        self._book.ingest(self._owner, new, self._now())
        self._booked += len(new)

    def _now(self) -> float:
        return max((r.at for r in self._records if isinstance(r, Settled)), default=0.0)

"""Books with something in them: attempts as they are settled, booked as the admin process books them."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from forebay.ledger.book import Book
from forebay.ledger.database import Database
from forebay.ledger.entries import Account, Began, How, Priced, Record, Reserved, Settled
from forebay.ledger.tokens import Tokens

NANO = 10**9


def spent(
    at: float,
    *,
    tokens: int = 0,
    cost: int | None = 0,
    key: str = "k1",
    name: str = "ci",
    organisation: str = "acme",
    department: str = "",
    project: str = "bot",
    user: str = "",
    model: str = "m",
    engine: str = "e1",
    end_user: str = "",
) -> tuple[Account, Reserved, Settled]:
    """One attempt that was settled at the time `at`. `tokens`: of its prompt; `cost`: None where it is unpriced."""
    account = Account(0, key, name, organisation, department, project, user)
    reserved = Reserved(
        seq=0,
        request=0,
        at=at - 1,
        id="r",
        account=0,
        route="chat",
        model=model,
        served=model,
        engine=engine,
        tier="",
        class_="normal",
        end_user=end_user,
        labels=(),
        prompt=tokens,
        most=0,
        held=0,
        price=0 if cost is None else 1,
    )
    how = How.UNPRICED if cost is None else How.EXACT
    settled = Settled(seq=0, at=at, tokens=Tokens(input=tokens), how=how, cost=cost, price=reserved.price, outcome="ok")
    return account, reserved, settled


class Books:
    """One journal that is ingested as it is written."""

    def __init__(self, database: Database, currency: str = "USD") -> None:
        self._book = Book(database, currency)
        self._currency = currency
        self._positions = itertools.count(1)
        self._seq = itertools.count(1)
        self._accounts: dict[tuple[str, ...], int] = {}

    def add(self, attempts: Iterable[tuple[Account, Reserved, Settled]]) -> None:
        records: list[Record] = []
        if not self._accounts:
            records += [Began("00112233445566aa", "b1", 1, 1, self._currency, 1.0), Priced(1, b'{"id":"p"}')]
        for account, reserved, settled in attempts:
            who = tuple(getattr(account, f) for f in account.__struct_fields__[1:])
            n = self._accounts.get(who)
            if n is None:
                n = self._accounts[who] = len(self._accounts) + 1
                records.append(Account(n, *who))
            seq = next(self._seq)
            values = {f: getattr(reserved, f) for f in reserved.__struct_fields__}
            records.append(Reserved(**values | {"seq": seq, "request": seq, "account": n}))
            values = {f: getattr(settled, f) for f in settled.__struct_fields__}
            records.append(Settled(**values | {"seq": seq}))
        now = max((s.at for _, _, s in attempts), default=0.0)
        self._book.ingest("00112233445566aa", [(next(self._positions), record) for record in records], now)

"""Attempts as a worker books them, and a worker's process that books them at a given rate."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import uvloop

from forebay.ledger.entries import How, Reserved, Settled
from forebay.ledger.journal import Journal
from forebay.ledger.tokens import Tokens

PRICE = b'{"id":"bench"}'
LABELS = (("team", "blue"),)
KEYS = 200
MODELS = ("gpt-4", "gpt-3.5-turbo", "claude-3", "qwen-72b", "llama-8b", "deepseek-v3")
TICK = 0.002
"""Seconds between two lots of attempts."""
UNDER_WAY = 100
"""Attempts that are reserved and not settled."""


def account(n: int) -> tuple[str, str, str, str, str, str]:
    return f"key-{n}", f"app {n}", "acme", f"department {n % 20}", f"project {n % 40}", f"user {n}"


ACCOUNTS = tuple(map(account, range(KEYS)))


def reserved(journal: Journal, at: float) -> Reserved:
    seq = journal.next_seq()
    model = MODELS[seq % len(MODELS)]
    return Reserved(
        seq,
        seq,
        at,
        "req-0123456789abcdef0123456789ab",
        journal.account_no(*ACCOUNTS[seq % KEYS]),
        "chat",
        model,
        model,
        "engine-1",
        "",
        "normal",
        "",
        LABELS,
        600,
        1024,
        5_000_000,
        journal.price_no("bench", lambda: PRICE),
    )


def settled(journal: Journal, seq: int, at: float) -> Settled:
    price = journal.price_no("bench", lambda: PRICE)
    return Settled(seq, at, Tokens(input=600, output=150), How.EXACT, 2_100_000, price, "ok", 0.12, 1.5)


async def book(folder: Path, rate: int, seconds: float) -> None:
    """Reserve and settle `rate` attempts a second, evenly; then wait until they are on disk."""
    loop = asyncio.get_running_loop()
    journal = Journal.open(
        folder, currency="USD", boot="bench", limit_bytes=8 << 30, loop=loop, on_committed=lambda _: None
    )
    live: list[int] = []
    count = 0
    start = loop.time()
    while (spent := loop.time() - start) < seconds:
        while count < spent * rate:
            one = reserved(journal, 1_800_000_000.0 + spent)
            journal.reserve(one)
            live.append(one.seq)
            count += 1
            if len(live) > UNDER_WAY:
                journal.settle(settled(journal, live.pop(0), one.at))
        await asyncio.sleep(TICK)
    for seq in live:
        journal.settle(settled(journal, seq, 1_800_000_000.0 + seconds))
    lost = await journal.close(60.0)
    print(f"{count} {lost} {journal.refused}", flush=True)


if __name__ == "__main__":
    uvloop.run(book(Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])))

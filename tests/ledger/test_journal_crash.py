"""SIGKILL at the boundaries of write and fsync, and the machine's power going off there: what was told to be committed
is there, everything that is there is settled once, and no number that is there is used again."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from forebay.ledger.entries import How
from journals import POINTS, Live, books, on_a_loop, opened, power_off

pytestmark = pytest.mark.books


async def survive(folder: Path, told: dict[str, Any], boot: str) -> None:
    """What the next life must find."""
    reserved, settled = books(folder)
    for kind, found in (("reserved", reserved), ("settled", settled)):
        safe = {seq for seq, number in told[kind].items() if number <= told["committed"]}
        assert safe <= set(found), f"{kind} and told to be safe, but lost"
    journal = opened(folder, boot)
    assert {o.reserved.seq for o in journal.orphans} == set(reserved) - set(settled)
    assert journal.recover(lambda one: (How.ESTIMATED, one.delivered)) == len(reserved) - len(settled)
    assert journal.next_seq() > max(reserved, default=0)
    assert await journal.close() == 0
    now_reserved, now_settled = books(folder)
    assert set(now_reserved) == set(now_settled) == set(reserved)
    for seq, before in settled.items():
        assert now_settled[seq] == before


@pytest.mark.parametrize(("call", "when", "n"), POINTS)
@on_a_loop
async def test_killed(live: Live, tmp_path: Path, call: str, when: str, n: int) -> None:
    folder = tmp_path / "worker-0"
    told = live(folder, "boot-1", call, when, n)
    await survive(folder, told, "boot-2")


@on_a_loop
async def test_killed_again_and_again(live: Live, tmp_path: Path) -> None:
    """Also while it recovers: nothing is reserved under a number that was used before, nothing is settled twice."""
    folder = tmp_path / "worker-0"
    for life in range(12):
        call, when, _ = random.Random(life).choice(POINTS)
        before = books(folder)[0] if folder.exists() else {}
        told = live(folder, f"boot-{life}", call, when, life % 5, seed=life)
        assert not set(before) & set(told["reserved"])
    await survive(folder, told, "last")


@pytest.mark.parametrize("seed", range(12))
@on_a_loop
async def test_the_power_goes_off(live: Live, tmp_path: Path, seed: int) -> None:
    folder = tmp_path / "worker-0"
    rng = random.Random(seed)
    call, when = [("write", "after"), ("sync", "before"), ("write", "half"), ("rename", "after")][seed % 4]
    told = live(folder, "boot-1", call, when, 1 + seed % 3 if call == "rename" else 2 + seed, seed)
    power_off(folder, told, rng)
    await survive(folder, told, "boot-2")

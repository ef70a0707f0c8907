"""What a worker does at its start with the journal that it finds."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.pure import pure

from forebay.config.models import Config
from forebay.gateway.open_books import open_books
from forebay.ledger.journal_format import segment_file, segments
from forebay.ledger.journal_read import find
from forebay.ledger.pricing import PriceBook
from forebay.state.messages import Follow, journal_folder
from journals import committed, on_a_loop, opened, reservation


@on_a_loop
async def test_a_damaged_segment_is_set_aside_and_those_before_it_are_kept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = journal_folder(tmp_path, 0)
    for boot in ("boot-1", "boot-2"):
        journal = opened(folder, boot)
        await committed(journal, journal.reserve(reservation(journal)))
        await journal.close()
    with segment_file(folder, 2).open("r+b") as file:
        file.write(b"?")
    config = Config.model_validate({"state_dir": str(tmp_path)})

    booking = open_books(config, PriceBook(), 0, asyncio.get_running_loop())

    assert booking.journal.owner == journal.owner
    await booking.close()
    assert segments(folder) == [1, 3]
    said = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
    assert "0000000002.journal is damaged at byte 0" in said[0]
    assert said[0].endswith("It is set aside as " + str(folder / "0000000002.damaged"))
    assert said[1].startswith("1 attempts were under way")
    found = find(folder)
    assert found is not None
    assert found.open == ()


@on_a_loop
async def test_only_what_is_said_of_its_own_journal_makes_it_safe_in_the_database(tmp_path: Path) -> None:
    config = Config.model_validate({"state_dir": str(tmp_path), "ledger": {"durability": "database"}})
    booking = open_books(config, PriceBook(), 0, asyncio.get_running_loop())
    journal = booking.journal
    number = journal.reserve(reservation(journal))
    said = await booking.follow(Follow())
    while said.position == 0 or journal.committed < number:  # the segment's opening may be said first
        said = await booking.follow(Follow(journal.owner, said.position))
    await booking.follow(Follow("another", 1 << 60))
    assert booking.safe < number
    following = asyncio.create_task(booking.follow(Follow(journal.owner, said.position)))
    await asyncio.sleep(0)
    assert booking.safe == number
    journal.reserve(reservation(journal))
    assert (await following).position > said.position
    await booking.close()


@on_a_loop
async def test_that_a_stream_has_begun_is_noted_before_the_first_second_is_over(tmp_path: Path) -> None:
    config = Config.model_validate({"state_dir": str(tmp_path)})
    folder = journal_folder(tmp_path, 0)
    # Compiled, it would refuse the double below.
    booking = pure("forebay.gateway.booking", "forebay.gateway.open_books").open_books(
        config, PriceBook(), 0, asyncio.get_running_loop()
    )
    journal = booking.journal
    begun, waits = reservation(journal), reservation(journal)
    for one in (begun, waits):
        journal.reserve(one)
    await booking.all_on_disk()
    x = SimpleNamespace(stream=True, seq=begun.seq, position=0, delivered=lambda: 0)
    before = journal.position
    booking.first_byte(x)
    async with asyncio.timeout(5):
        while journal.position == before:
            await booking.follow(Follow(journal.owner, before))
    await booking.close()
    found = find(folder)
    assert found is not None
    assert [(one.reserved.seq, one.delivered) for one in found.open] == [(begun.seq, 1), (waits.seq, 0)]

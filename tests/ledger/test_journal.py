"""The journal's writer on a disk that works: order, numbers, segments, orphans, bounds."""

from __future__ import annotations

from pathlib import Path

import pytest

from forebay.ledger.entries import Account, Began, How, Priced, Progress, Reserved, Settled
from forebay.ledger.journal import SEQ_LEAP, JournalBusy, JournalError, JournalFull, Open, State, Tuning
from forebay.ledger.journal_format import segments
from forebay.ledger.journal_read import find, forget
from forebay.ledger.tokens import NO_TOKENS, Tokens
from journals import LIMIT, WHO, books, committed, looking, on_a_loop, opened, reservation, settlement, until


@on_a_loop
async def test_what_is_reserved_and_settled_is_read_back_in_order(tmp_path: Path) -> None:
    journal = opened(tmp_path / "worker-0")
    one, two = reservation(journal), reservation(journal)
    first, second = journal.reserve(one), journal.reserve(two)
    assert first < second
    assert journal.committed < first
    await committed(journal, second)
    third = journal.settle(settlement(one.seq))
    await committed(journal, third)
    assert (journal.state, journal.waiting_bytes, journal.open_reservations) == (State.OK, 0, 1)
    assert await journal.close() == 0

    records = [r for batch in looking(tmp_path / "worker-0").batches() for r in batch.records]
    assert [type(r) for r in records] == [Began, Account, Priced, Reserved, Reserved, Settled]
    assert records[3:5] == [one, two]
    assert records[1] == Account(1, *WHO)
    assert records[2] == Priced(1, b'{"id":"gpt-4"}')
    assert isinstance(records[0], Began)
    assert (records[0].owner, records[0].boot, records[0].currency) == (journal.owner, "boot-1", "USD")


@on_a_loop
async def test_many_records_share_an_fsync(tmp_path: Path) -> None:
    journal = opened(tmp_path, tuning=Tuning(gather=0.02, linger=0.02, pace=0))
    await until(journal, lambda: True)
    for _ in range(500):
        last = journal.reserve(reservation(journal))
    await committed(journal, last)
    assert journal.records == last == 502  # an account, a price
    assert journal.fsyncs <= 4  # the first segment takes two
    await journal.close()


@on_a_loop
async def test_what_is_waited_for_does_not_linger(tmp_path: Path) -> None:
    journal = opened(tmp_path, tuning=Tuning(gather=0, linger=60, pace=0))
    await until(journal, lambda: journal.fsyncs > 0)
    last = journal.reserve(reservation(journal))
    journal.hurry(last)
    await committed(journal, last)
    unhurried = journal.reserve(reservation(journal))
    journal.hurry(last)  # is on disk: nobody waits for the other one
    assert journal.committed < unhurried
    journal.hurry(unhurried)
    await committed(journal, unhurried)
    await journal.close()


@on_a_loop
async def test_the_next_life_finds_what_was_not_settled_and_settles_it(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    settled, streamed, silent = (reservation(journal) for _ in range(3))
    for one in (settled, streamed, silent):
        journal.reserve(one)
    journal.settle(settlement(settled.seq))
    journal.progress(Progress(1_700_009_999.0, ((streamed.seq, 7), (settled.seq, 9))))
    assert await journal.close() == 0

    again = opened(tmp_path, "boot-2")
    assert again.owner == journal.owner
    assert [(o.reserved.seq, o.delivered, o.at) for o in again.orphans] == [
        (streamed.seq, 7, 1_700_009_999.0),
        (silent.seq, 0, silent.at),
    ]
    assert {(o.account, o.price) for o in again.orphans} == {(Account(1, *WHO), b'{"id":"gpt-4"}')}
    assert again.next_seq() > silent.seq + SEQ_LEAP
    asked: list[Open] = []

    def price(one: Open) -> tuple[How, int | None]:
        asked.append(one)
        return How.ESTIMATED, 42

    assert again.recover(price) == 2
    assert [one.reserved.seq for one in asked] == [streamed.seq]
    assert again.orphans == ()
    assert again.recover(price) == 0
    assert await again.close() == 0

    _, booked = books(tmp_path)
    assert booked[settled.seq] == settlement(settled.seq)
    estimate, nothing = booked[streamed.seq], booked[silent.seq]
    assert (estimate.tokens, estimate.how, estimate.cost) == (Tokens(input=100, output=7), How.ESTIMATED, 42)
    assert (estimate.at, estimate.note, estimate.outcome) == (1_700_009_999.0, "gateway_died", "internal")
    assert (nothing.tokens, nothing.how, nothing.cost) == (NO_TOKENS, How.ESTIMATED, 0)
    third = opened(tmp_path, "boot-3")
    assert third.orphans == ()
    await third.close()


@on_a_loop
async def test_orphans_that_nobody_settled_stay_orphans(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    journal.reserve(reservation(journal))
    await journal.close()
    for boot in ("boot-2", "boot-3"):
        again = opened(tmp_path, boot)
        assert [o.account.key for o in again.orphans] == ["key-1"]
        await again.close()


@on_a_loop
async def test_segments_can_be_removed_once_they_are_ingested(tmp_path: Path) -> None:
    """Each says again what is open, and what it refers to; so the newest alone is enough for the next life."""
    journal = opened(tmp_path, tuning=Tuning(gather=0, linger=0, pace=0, segment_bytes=4096))
    stays = reservation(journal)
    journal.reserve(stays)
    journal.progress(Progress(1.0, ((stays.seq, 3),)))
    reader = looking(tmp_path)
    seen: list[int] = []
    while len(segments(tmp_path)) < 4:
        one = reservation(journal)
        number = journal.reserve(one)
        journal.settle(settlement(one.seq))
        await committed(journal, number + 1)
        for batch in reader.batches():
            seen += [r.seq for r in batch.records if isinstance(r, Settled)]
    assert forget(tmp_path, reader.position) == 3
    assert segments(tmp_path) == [4]
    await journal.close()
    assert seen == sorted(set(seen))
    assert len(seen) > 30

    found = find(tmp_path)
    assert found is not None
    assert (found.owner, found.segment) == (journal.owner, 4)
    assert [(o.reserved.seq, o.delivered) for o in found.open] == [(stays.seq, 3)]


@on_a_loop
async def test_a_full_journal_takes_settlements_and_no_reservations_until_it_was_ingested(tmp_path: Path) -> None:
    journal = opened(tmp_path, tuning=Tuning(gather=0, linger=0, pace=0, look=0))
    last = reservation(journal)
    number = journal.reserve(last)
    with pytest.raises(JournalFull, match="bytes of the journal are not in the database"):
        while True:
            number = journal.reserve(reservation(journal, size=100_000))
            await committed(journal, number)
    assert journal.state is State.FULL
    assert LIMIT * 0.85 < journal.on_disk < LIMIT
    number = journal.settle(settlement(last.seq))
    await committed(journal, number)

    reader = looking(tmp_path)
    for _ in reader.batches():
        pass
    forget(tmp_path, reader.position)
    await until(journal, lambda: journal.state is State.OK)
    assert journal.reserve(reservation(journal)) > number
    await journal.close()


@on_a_loop
async def test_one_process_at_a_time(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    with pytest.raises(JournalBusy, match="another process writes to this journal"):
        opened(tmp_path)
    await journal.close()
    await opened(tmp_path).close()


@on_a_loop
async def test_what_is_settled_twice_or_was_never_reserved_is_not_booked(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    one = reservation(journal)
    journal.reserve(one)
    await committed(journal, journal.settle(settlement(one.seq)))
    assert journal.settle(settlement(one.seq, cost=9)) == journal.committed
    assert journal.settle(settlement(999)) == journal.committed
    assert journal.stray == 2
    await journal.close()
    assert books(tmp_path)[1] == {one.seq: settlement(one.seq)}


@on_a_loop
async def test_books_in_another_currency_are_another_journal(tmp_path: Path) -> None:
    await committed(journal := opened(tmp_path), 0)
    journal.reserve(reservation(journal))
    await journal.close()
    with pytest.raises(JournalError, match=r"is in USD and ledger.currency is EUR"):
        opened(tmp_path, currency="EUR")


@on_a_loop
async def test_reading_goes_on_behind_any_record(tmp_path: Path) -> None:
    journal = opened(tmp_path, tuning=Tuning(gather=0, linger=0, pace=0, segment_bytes=1024))
    for _ in range(20):
        first, second = reservation(journal), reservation(journal)
        journal.reserve(first)
        journal.reserve(second)
        await committed(journal, journal.settle(settlement(first.seq)))
    await journal.close()
    assert len(segments(tmp_path)) > 2
    everything = list(looking(tmp_path).records())
    positions = [position for position, _ in everything]
    assert positions == sorted(set(positions))
    for i, (position, _) in enumerate(everything):
        assert list(looking(tmp_path, position).records()) == everything[i + 1 :]
    one_by_one = looking(tmp_path)
    taken = []
    while (found := next(one_by_one.records(), None)) is not None:
        taken.append(found)
    assert taken == everything
    batches = list(looking(tmp_path).batches())
    assert [r for batch in batches for r in batch.records] == [r for _, r in everything]
    assert batches[-1].position == positions[-1] == journal.position
    half = everything[len(everything) // 2][0]
    rest = [r for batch in looking(tmp_path, half).batches() for r in batch.records]
    assert rest == [r for position, r in everything if position > half]


@on_a_loop
async def test_how_far_an_ingester_has_come_is_told_by_record(tmp_path: Path) -> None:
    journal = opened(tmp_path, tuning=Tuning(gather=0, linger=0, pace=0, segment_bytes=1024))
    numbers = []
    for _ in range(12):
        one = reservation(journal)
        numbers.append(journal.reserve(one))
        await committed(journal, numbers[-1])
    assert journal.ingested(0) == 0
    reader = looking(tmp_path)
    told = [journal.ingested(batch.position) for batch in reader.batches()]
    assert [n for n in told if n] == sorted(told)[-len(numbers) :]
    assert set(numbers) <= set(told)
    assert journal.ingested(reader.position) == journal.committed == numbers[-1]
    await journal.close()

"""What all stores share: records as bytes, what a purge fits, purges that are remembered."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from answer_stores import record
from forebay.cache.messages import Purge
from forebay.cache.stores.store import FORMAT, BadRecord, OtherFormat, Purged, fits, pack, unpack, within
from forebay.clock import ManualClock

KEPT = record(1, ManualClock())


def test_a_record_is_read_as_it_was_written() -> None:
    assert unpack(pack(KEPT)) == KEPT


@given(st.binary(max_size=300))
def test_bytes_that_are_no_record(data: bytes) -> None:
    with pytest.raises(BadRecord):
        unpack(data)


@given(st.integers(min_value=0, max_value=len(pack(KEPT)) * 8 - 1))
def test_a_record_with_one_bit_turned_is_not_believed(bit: int) -> None:
    data = bytearray(pack(KEPT))
    data[bit // 8] ^= 1 << bit % 8
    with pytest.raises(BadRecord):
        unpack(bytes(data))


def test_a_record_of_another_version_is_told_apart() -> None:
    data = bytearray(pack(KEPT))
    data[2] = FORMAT + 1
    with pytest.raises(OtherFormat, match=f"format {FORMAT + 1}"):
        unpack(bytes(data))


@pytest.mark.parametrize(
    ("purge", "fit"),
    [
        (Purge(0), True),
        (Purge(0, entry=KEPT.entry), True),
        (Purge(0, entry="ff"), False),
        (Purge(0, tag="tag1"), True),
        (Purge(0, tag="tag"), False),
        (Purge(0, source="doc-1"), True),
        (Purge(0, model="qwen", version="1"), True),
        (Purge(0, model="qwen", version="2"), False),
        (Purge(0, partition="org1", tag="faq"), True),
        (Purge(0, partition="org", tag="faq"), False),
    ],
)
def test_a_purge_fits_where_all_that_it_gives_is_so(purge: Purge, fit: bool) -> None:
    assert fits(KEPT, purge) is fit


def test_a_purge_by_likeness_is_refused_rather_than_fitting_everything() -> None:
    with pytest.raises(ValueError, match="index"):
        fits(KEPT, Purge(0, like="invoice"))


def test_a_partition_is_within_itself_and_what_is_above() -> None:
    assert [within("a/b/c", prefix) for prefix in ("", "a", "a/", "a/b", "a/b/c", "a/b/c/d", "a/bc", "b")] == [
        True, True, True, True, True, False, False, False,
    ]  # fmt: skip


def test_what_was_begun_before_a_purge_is_forbidden() -> None:
    purged = Purged()
    purged.add(Purge(0, tag="faq"), KEPT.created + 1)
    later = record(1, ManualClock(wall=KEPT.created + 2))
    other = record(1, ManualClock(), tags=("other",))
    assert [purged.forbids(one) for one in (KEPT, later, other)] == [True, False, False]


def test_purges_beyond_the_bound_forbid_what_they_might_have_fitted() -> None:
    purged = Purged()
    for n in range(Purged.MOST + 10):
        purged.add(Purge(0, tag=f"t{n}"), KEPT.created + n)
    untagged = [record(1, ManualClock(wall=KEPT.created + at), tags=()) for at in (9, 10)]
    assert [purged.forbids(one) for one in untagged] == [True, False]
    assert repr(purged) == f"<Purged {Purged.MOST}, 0 entries>"


def test_an_entry_that_was_discarded_is_not_kept_again_but_its_request_may_be_answered_anew() -> None:
    purged = Purged()
    purged.discarded([KEPT.entry], KEPT.created)
    assert purged.forbids(KEPT)
    assert not purged.forbids(msgspec.structs.replace(KEPT, created=KEPT.created + 0.001))
    purged.discarded((f"{n:x}" for n in range(Purged.MOST_ENTRIES)), 0.0)
    assert not purged.forbids(KEPT)  # the bound

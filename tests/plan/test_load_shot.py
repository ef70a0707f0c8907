"""What one stream's events are taken for, read by read."""

from __future__ import annotations

import pytest

from forebay.plan.load.shot import Shot

WORD = b'data: {"choices":[{"index":0,"delta":{"content":"a"}}]}\n\n'
NOTHING = b'data: {"choices":[{"index":0,"delta":{}}]}\n\n'
DONE = b"data: [DONE]\n\n"


class Notes:
    """An owner that keeps what it is told."""

    def __init__(self) -> None:
        self.events = 0
        self.ends: list[str | None] = []

    def first(self, shot: Shot, now: float, events: int) -> None:
        self.events += events

    def gap(self, shot: Shot, seconds: float, now: float, events: int) -> None:
        self.events += events

    def ended(self, shot: Shot, error: str | None) -> None:
        self.ends.append(error)


def read(*reads: bytes) -> Notes:
    notes = Notes()
    shot = Shot(notes, 0.0)
    shot.on_head(200, [(b"content-type", b"text/event-stream")], None)
    for data in reads:
        shot.on_body(data)
        if notes.ends:
            return notes
    shot.on_end()
    return notes


@pytest.mark.parametrize("middle", [b"data: {broken\n\n", b"data: <html>\n\n", b"event: error\ndata: oom\n\n"])
def test_nonsense_after_the_first_word_is_an_error_and_no_word(middle: bytes) -> None:
    for reads in ((WORD, middle, DONE), (WORD, WORD + middle, DONE), (WORD + middle + DONE,)):
        notes = read(*reads)
        assert notes.ends == ["bad_event"]
        assert notes.events == b"".join(reads).count(WORD)


@pytest.mark.parametrize("other", [NOTHING, b": ping\n\n", b'data: {"type":"ping"}\n\n'])
def test_events_without_words_are_not_counted_wherever_they_stand(other: bytes) -> None:
    for reads in ((WORD, other, WORD, DONE), (other, WORD, WORD + other, DONE), (WORD, other + WORD, DONE)):
        notes = read(*reads)
        assert (notes.events, notes.ends) == (2, [None])


def test_words_are_counted_however_the_reads_are_cut() -> None:
    stream = WORD * 5 + DONE
    assert read(stream).events == read(*(stream[i : i + 7] for i in range(0, len(stream), 7))).events == 5

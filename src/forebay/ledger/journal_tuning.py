"""What a journal's state is called, and the times and sizes of it that need not be configured."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class State(StrEnum):
    OK = "ok"
    FAILING = "failing"  # the disk does not take it (`Journal.why`), or does not answer; memory does
    FULL = "full"  # no reservation is taken: too much is not ingested, or not on disk


class Tuning(msgspec.Struct, frozen=True):
    """What need not be configured."""

    gather: float = 0.001
    """Seconds that a record waits for others, that they share one change of thread and one fsync; where somebody waits
    for it (`Journal.hurry`)."""
    linger: float = 0.015
    """The same where nobody does: engines take longer than this to say their first word."""
    pace: float = 0.01
    """Least seconds from one group to the next: an fsync takes 0.2 ms of CPU, however little it writes."""
    segment_bytes: int = 8 << 20
    """Size at which a segment is followed by the next; at most a sixteenth of the journal."""
    memory_bytes: int = 32 << 20
    """Most encoded records in memory while the disk fails; only settlements of what was reserved come on top."""
    slow: float = 2.0
    """Seconds after which a write that has not come back counts as failing."""
    retry: float = 0.1
    """Seconds to the first new try after a failure."""
    look: float = 1.0
    """Seconds between two looks at what the folder takes: whoever ingests removes segments."""

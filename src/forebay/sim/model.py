"""A rate model of an engine: how long prompts and tokens take, as events in injected time.

At most `max_num_seqs` sequences run; the rest wait, lowest `priority` first, then in order of arrival. Prompts are
prefilled one after another at `prefill_rate` tokens a second; the end of its prefill is a sequence's first token. Each
further token comes 1 / `decode_rate` seconds after the last, stretched by `batch_slowdown` for every other sequence
that decodes: period = (1 + batch_slowdown · (decoding - 1)) / decode_rate. KV capacity is reported, never enforced.

Pure: no clock, no loop, no random. What comes out does not depend on how often `advance` is called. The server knows
only `Engine`, so that a faithful scheduler can take this model's place.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from enum import Enum
from heapq import heappop, heappush
from typing import NamedTuple, Protocol


@dataclass(frozen=True, slots=True)
class Ask:
    """What one sequence needs. Raises ValueError for counts that no engine could serve."""

    prompt_tokens: int
    output_tokens: int
    priority: int = 0
    """Lower goes first."""
    cached_tokens: int = 0
    """Leading prompt tokens that need no prefill."""

    def __post_init__(self) -> None:
        if self.prompt_tokens < 0 or not 0 <= self.cached_tokens <= self.prompt_tokens:
            raise ValueError(f"prompt_tokens and cached_tokens must be 0 <= cached <= prompt: {self}")
        if self.output_tokens < 1:
            raise ValueError(f"output_tokens must be at least 1: {self}")


class Kind(Enum):
    STARTED = "started"  # left the queue
    TOKEN = "token"  # noqa: S105


class Event(NamedTuple):
    at: float
    seq: int
    kind: Kind
    n: int
    """Number of the token, from 1; 0 for STARTED."""
    last: bool
    """The sequence has finished: its slot and KV are free again."""


class Engine(Protocol):
    """What the server asks of a model. Times are seconds on one monotonic clock and never run backward."""

    @property
    def running(self) -> int: ...
    @property
    def waiting(self) -> int: ...
    @property
    def kv_usage(self) -> float: ...
    @property
    def preemptions(self) -> int: ...
    @property
    def cached_tokens(self) -> int: ...
    def submit(self, ask: Ask, now: float) -> int: ...
    def cancel(self, seq: int, now: float) -> bool: ...
    def advance(self, now: float) -> list[Event]: ...
    def next_event(self) -> float | None: ...


@dataclass(frozen=True, slots=True)
class Rates:
    """Raises ValueError for rates and sizes that are not positive."""

    max_num_seqs: int = 256
    prefill_rate: float = 8000.0
    """Tokens a second, one prompt at a time."""
    decode_rate: float = 50.0
    """Tokens a second of each sequence, alone."""
    batch_slowdown: float = 0.0
    """Fraction of the period that each other decoding sequence adds."""
    kv_tokens: int = 262_144
    block_size: int = 16

    def __post_init__(self) -> None:
        for name in ("max_num_seqs", "prefill_rate", "decode_rate", "kv_tokens", "block_size"):
            value = getattr(self, name)
            if not (value > 0 and math.isfinite(value)):
                raise ValueError(f"{name} must be greater than 0, not {value}")
        if not (self.batch_slowdown >= 0 and math.isfinite(self.batch_slowdown)):
            raise ValueError(f"batch_slowdown must be at least 0, not {self.batch_slowdown}")


class _Sequence:
    __slots__ = ("ask", "done", "seq")

    def __init__(self, seq: int, ask: Ask) -> None:
        self.seq = seq
        self.ask = ask
        self.done = 0


class RateModel:
    """The model of the module's docstring. Its state: a heap of waiting, a dict of running, a line for prefill."""

    def __init__(self, rates: Rates) -> None:
        self.rates = rates
        self._now = -math.inf
        self._next_seq = 0
        self._queue: list[tuple[int, int]] = []  # (priority, seq); cancelled entries are skipped
        self._waiting: dict[int, _Sequence] = {}
        self._running: dict[int, _Sequence] = {}
        self._line: deque[int] = deque()  # running, not yet prefilled; the head is being prefilled
        self._prefill_ends = math.inf
        self._tokens: list[tuple[float, int]] = []  # (when, seq) of the next token of each decoding sequence
        self._decoding = 0
        self._cached = 0
        self._out: list[Event] = []

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def preemptions(self) -> int:
        """KV capacity is not enforced, so nothing is ever preempted."""
        return 0

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens so far that needed no prefill."""
        return self._cached

    @property
    def kv_usage(self) -> float:
        """Share of the KV blocks in use, 0 to 1."""
        size = self.rates.block_size
        used = sum(-(-(s.ask.prompt_tokens + s.done) // size) for s in self._running.values())
        return min(1.0, used * size / self.rates.kv_tokens)

    def submit(self, ask: Ask, now: float) -> int:
        """The sequence's number. Raises ValueError where time runs backward."""
        self._run_to(now)
        seq = self._next_seq
        self._next_seq += 1
        self._waiting[seq] = _Sequence(seq, ask)
        heappush(self._queue, (ask.priority, seq))
        self._admit(now)
        return seq

    def cancel(self, seq: int, now: float) -> bool:
        """Free what the sequence holds at once; no event of it follows. False where it has ended already."""
        self._run_to(now)
        if seq not in self._waiting and seq not in self._running:
            return False
        if self._out:
            self._out = [e for e in self._out if e.seq != seq]
        if self._waiting.pop(seq, None) is not None:
            if len(self._queue) > 64 and len(self._queue) > 2 * len(self._waiting):
                self._queue = sorted(e for e in self._queue if e[1] in self._waiting)
            return True
        gone = self._running.pop(seq)
        if gone.done:
            self._decoding -= 1
            if len(self._tokens) > 64 and len(self._tokens) > 2 * self._decoding:
                self._tokens = sorted(e for e in self._tokens if e[1] in self._running)
        elif self._line[0] == seq:
            self._line.popleft()
            self._prefill(now)
        else:
            self._line.remove(seq)
        self._admit(now)
        return True

    def advance(self, now: float) -> list[Event]:
        """What happened up to `now` and was not reported yet, in order of time."""
        self._run_to(now)
        out, self._out = self._out, []
        return out

    def next_event(self) -> float | None:
        """When `advance` will have something to report, if nothing else happens; None: never."""
        if self._out:
            return self._now
        while self._tokens and self._tokens[0][1] not in self._running:
            heappop(self._tokens)
        due = min(self._tokens[0][0] if self._tokens else math.inf, self._prefill_ends)
        return None if due == math.inf else due

    def _run_to(self, now: float) -> None:
        if now < self._now:
            raise ValueError(f"time ran backward: {now} after {self._now}")
        tokens = self._tokens
        while True:
            token_at = tokens[0][0] if tokens else math.inf
            if self._prefill_ends <= token_at:
                if self._prefill_ends > now:
                    break
                at = self._prefill_ends
                seq = self._line.popleft()
                self._prefill(at)
                self._decoding += 1
                self._cached += self._running[seq].ask.cached_tokens
            else:
                if token_at > now:
                    break
                at, seq = heappop(tokens)
                if seq not in self._running:
                    continue
            self._emit(seq, at)
        self._now = now

    def _emit(self, seq: int, at: float) -> None:
        sequence = self._running[seq]
        sequence.done = n = sequence.done + 1
        last = n >= sequence.ask.output_tokens
        self._out.append(Event(at, seq, Kind.TOKEN, n, last))
        if last:
            del self._running[seq]
            self._decoding -= 1
            self._admit(at)
        else:
            period = (1.0 + self.rates.batch_slowdown * (self._decoding - 1)) / self.rates.decode_rate
            heappush(self._tokens, (at + period, seq))

    def _admit(self, now: float) -> None:
        while self._waiting and len(self._running) < self.rates.max_num_seqs:
            seq = heappop(self._queue)[1]
            sequence = self._waiting.pop(seq, None)
            if sequence is None:
                continue
            self._running[seq] = sequence
            self._out.append(Event(now, seq, Kind.STARTED, 0, False))
            self._line.append(seq)
            if len(self._line) == 1:
                self._prefill(now)

    def _prefill(self, now: float) -> None:
        """Begin with the head of the line."""
        if not self._line:
            self._prefill_ends = math.inf
            return
        ask = self._running[self._line[0]].ask
        self._prefill_ends = now + max(1, ask.prompt_tokens - ask.cached_tokens) / self.rates.prefill_rate

    def __repr__(self) -> str:
        return f"<RateModel {self.running} running of {self.rates.max_num_seqs}, {self.waiting} waiting>"

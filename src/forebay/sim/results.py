"""What a simulation leaves behind: a row a request, in columns of plain numbers.

A row is 71 bytes, so that a million requests are 71 MB and no object of a finished request stays alive. Times are
seconds of the workload; NaN stands where a thing never happened.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from enum import IntEnum
from math import inf, nan
from typing import Final

from forebay.sim.workload import Ask

MAX_TENANTS: Final = 65_536
"""Tenants that have books of their own; those that come after share one."""
OTHERS: Final = "_other"


class Outcome(IntEnum):
    """How a request ended. The names are the keys of the JSON result."""

    UNFINISHED = 0
    """Under way when the simulation ended."""
    FINISHED = 1
    TOO_LONG = 2
    """400: prompt and answer together exceed the model's context."""
    QUEUE_FULL = 3
    """503 of the engine: max_num_queued_reqs or max_num_queued_tokens."""
    REFUSED = 4
    """429 of the policy."""
    ABANDONED = 5
    """The client left before the first token."""


@dataclass(frozen=True, slots=True)
class Slo:
    """What a request must meet to count as goodput: TTFT ≤ ttft + per_1k · prompt_tokens / 1000 and, where given,
    TPOT ≤ tpot. Seconds."""

    ttft: float = 1.5
    per_1k: float = 0.0
    tpot: float = inf


class Names:
    """Numbers for names, in order of appearance, at most `bound` of them and OTHERS."""

    __slots__ = ("_bound", "_numbers", "names")

    def __init__(self, bound: int = MAX_TENANTS) -> None:
        self._bound = bound
        self._numbers: dict[str, int] = {}
        self.names: list[str] = []

    def number(self, name: str) -> int:
        found = self._numbers.get(name)
        if found is None:
            if len(self.names) >= self._bound:
                name = OTHERS
                if name in self._numbers:
                    return self._numbers[name]
            found = self._numbers[name] = len(self.names)
            self.names.append(name)
        return found

    def __repr__(self) -> str:
        return f"<Names {len(self.names)}>"


class Requests:
    """The columns. A row is made on arrival (`arrived`) and filled in by whoever simulates; its number stays."""

    __slots__ = (
        "arrival", "cached", "classes", "cls", "end", "engine", "first", "outcome", "output", "preemptions", "prompt",
        "scheduled", "tenant", "tenants",
    )  # fmt: skip

    def __init__(self) -> None:
        self.arrival = array("d")
        self.scheduled = array("d")
        """When it was first given to the device: arrival to here is the queue's time."""
        self.first = array("d")
        """When its first token was there."""
        self.end = array("d")
        self.prompt = array("q")
        self.output = array("q")
        self.cached = array("q")
        """Prompt tokens found in the prefix cache when it was first scheduled."""
        self.engine = array("i")
        """-1: none."""
        self.tenant = array("i")
        self.preemptions = array("i")
        self.cls = array("H")
        self.outcome = array("B")
        self.tenants = Names()
        self.classes = Names(256)

    def arrived(self, ask: Ask) -> int:
        """A row for `ask`, unfinished and on no engine; returns its number."""
        self.arrival.append(ask.arrival)
        self.scheduled.append(nan)
        self.first.append(nan)
        self.end.append(nan)
        self.prompt.append(ask.prompt_tokens)
        self.output.append(ask.output_tokens)
        self.cached.append(0)
        self.engine.append(-1)
        self.tenant.append(self.tenants.number(ask.tenant))
        self.preemptions.append(0)
        self.cls.append(self.classes.number(ask.cls))
        self.outcome.append(0)
        return len(self.outcome) - 1

    def __len__(self) -> int:
        return len(self.outcome)

    def __repr__(self) -> str:
        return f"<Requests {len(self)}>"

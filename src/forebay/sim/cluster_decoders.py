"""Prefill on one engine, decode on another: who has what of a request.

As vLLM's proxies do it (examples/online_serving/disaggregated_serving): the prefill engine computes the prompt and its
first token and holds the KV; the decode engine is asked for the whole answer, fetches the KV, computes the prompt's
last token again and answers from the first token on. The prefill engine's blocks are free once they are fetched, or
when their lease ends.
"""

from __future__ import annotations

from typing import NamedTuple

from forebay.sim.jobs import Job


class Part(NamedTuple):
    """The two jobs of one request."""

    prefill: int
    """Number of the engine that holds the KV."""
    held: Job
    decode: int
    job: Job


class Decoders:
    """The decode engines and what is with them: a count each, and a part for each request that has not ended."""

    def __init__(self, first: int, n: int) -> None:
        """Engines `first` … `first + n - 1`."""
        self.first = first
        self._counts = [0] * n
        self._parts: dict[int, Part] = {}

    def take(self, prefill: int, held: Job, decode: int | None = None) -> Part:
        """The job for that decode engine, or for the one with the fewest of these requests, of which the first."""
        least = self._counts.index(min(self._counts)) if decode is None else decode - self.first
        self._counts[least] += 1
        job = Job(
            held.prompt_tokens, held.output_tokens, priority=held.priority, prefix=held.prefix, keeps=held.keeps,
            remote=True, tag=held.tag,
        )  # fmt: skip
        part = self._parts[held.tag] = Part(prefill, held, self.first + least, job)
        return part

    def of(self, row: int) -> Part | None:
        """None: it is not here, or has ended."""
        return self._parts.get(row)

    def ended(self, row: int) -> None:
        part = self._parts.pop(row, None)
        if part is not None:
            self._counts[part.decode - self.first] -= 1

    def __repr__(self) -> str:
        return f"<Decoders {self._counts[:8]}>"

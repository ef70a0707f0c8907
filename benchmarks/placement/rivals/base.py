"""What the rivals have in common."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from math import inf
from random import Random

from forebay.sim.cluster import Engine
from forebay.sim.engine import EngineModel
from forebay.sim.jobs import Job
from forebay.sim.workload import Ask

Key = int | str
Pieces = Sequence[tuple[Key, int]]
CHARS_PER_TOKEN = 4
"""For those that work on text, since the traces have tokens."""


def whole(ask: Ask, row: int) -> Pieces:
    """All of a prompt, what is its own with it: nobody finds that, and it takes room in a table."""
    rest = ask.prompt_tokens - sum(tokens for _, tokens in ask.prefix)
    return (*ask.prefix, (f"own {row}", rest)) if rest else ask.prefix


class Rival:
    """A `cluster.Policy` that sends every request on at once. State: which engines are in service, how many requests
    each has by the gateway's own count, and a seeded generator."""

    report_every = inf

    def __init__(self, engines: int, seed: int = 0) -> None:
        self.live = list(range(engines))
        self.counts = [0] * engines
        self.random = Random(seed)

    def choose(self, ask: Ask, row: int, now: float) -> int:
        raise NotImplementedError

    def on_arrival(self, ask: Ask, row: int, now: float) -> int:
        chosen = self.choose(ask, row, now)
        self.counts[chosen] += 1
        return chosen

    def due(self, now: float) -> Sequence[tuple[int, int]]:
        return ()

    def next_due(self) -> float:
        return inf

    def on_first_token(self, row: int, engine: int, now: float) -> None: ...

    def on_end(self, row: int, engine: int, now: float, tokens: int) -> None:
        self.counts[engine] -= 1

    def on_report(self, engine: int, model: Engine, jobs: Mapping[int, Job], now: float) -> None: ...

    def watch(self, model: EngineModel) -> None:
        """Shown each engine before the first request; only for what an engine publishes at once."""

    def leave(self, engine: int, now: float) -> None:
        """It gets nothing any more."""
        self.live.remove(engine)

    def join(self, engine: int, now: float) -> None:
        self.live.append(engine)

    def fewest(self, among: Iterable[int] | None = None) -> int:
        """The engine with the fewest requests, one of several by lot."""
        least, found = inf, [-1]
        for i in self.live if among is None else among:
            count = self.counts[i]
            if count < least:
                least, found = count, [i]
            elif count == least:
                found.append(i)
        return found[0] if len(found) == 1 else self.random.choice(found)


class Sent:
    """Which pieces of prompts were sent to which engine, with an LRU of each engine bounded in tokens. A piece's key
    stands for all before it too, so a trie of them is a flat table."""

    def __init__(self, engines: int, most: float = inf) -> None:
        self.holders: dict[Key, dict[int, None]] = {}
        """In the order in which they first got it."""
        self.size = [0] * engines
        self._lru: list[OrderedDict[Key, int]] = [OrderedDict() for _ in range(engines)]
        self._most = most

    def note(self, engine: int, pieces: Pieces) -> None:
        lru, holders = self._lru[engine], self.holders
        for key, tokens in reversed(pieces):  # so that a prompt's end is forgotten before its begin
            if key in lru:
                lru.move_to_end(key)
                continue
            lru[key] = tokens
            self.size[engine] += tokens
            holders.setdefault(key, {})[engine] = None
        if self.size[engine] > self._most:
            self.trim(engine, self._most)

    def trim(self, engine: int, most: float) -> None:
        lru = self._lru[engine]
        while self.size[engine] > most:
            key, tokens = lru.popitem(last=False)
            self.size[engine] -= tokens
            found = self.holders[key]
            del found[engine]
            if not found:
                del self.holders[key]

    def forget(self, engine: int) -> None:
        self.trim(engine, 0)

    def match(self, pieces: Pieces, engines: Iterable[int]) -> dict[int, int]:
        """Tokens from the prompt's begin that were sent to each engine; only those with some."""
        found: dict[int, int] = {}
        left, tokens = set(engines), 0
        for key, size in pieces:
            holders = self.holders.get(key)
            left = left.intersection(holders) if holders else set()
            if not left:
                break
            tokens += size
            for i in left:
                found[i] = tokens
        return found

"""Workloads out of nothing: single requests, and conversations whose turns share what was said before."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush, heapreplace

from forebay.sim.workload import Ask
from forebay.sim.workloads.arrivals import Arrivals
from forebay.sim.workloads.bounds import MAX_TOKENS, MAX_UNFIT, none_fits
from forebay.sim.workloads.dice import dice
from forebay.sim.workloads.distributions import NOTHING, Distribution, whole
from forebay.sim.workloads.lengths import Lengths
from forebay.sim.workloads.mix import Who
from forebay.sim.workloads.source import Size, Tally

Prefix = tuple[tuple[int | str, int], ...]


class _Systems:
    """The system prompt of each tenant: as many tokens for all its requests. As many as there are tenants."""

    __slots__ = ("_known", "_seed", "_tokens")

    def __init__(self, tokens: Distribution, seed: str) -> None:
        self._tokens = tokens
        self._seed = seed
        self._known: dict[str, Prefix] = {}

    def of(self, tenant: str) -> Prefix:
        """The piece, or nothing where it has no tokens. Drawn from the tenant's name, whoever asks first."""
        found = self._known.get(tenant)
        if found is None:
            tokens = whole(self._tokens, dice(self._seed, f"system/{tenant}"), 0)()
            found = self._known[tenant] = ((f"system/{tenant}", tokens),) if tokens else ()
        return found


@dataclass(frozen=True, slots=True)
class Single:
    """Requests that have nothing in common but their tenant's system prompt. Endless."""

    arrivals: Arrivals
    lengths: Lengths
    system: Distribution = NOTHING
    who: Who = field(default_factory=Who)
    seed: str = "0"

    @property
    def size(self) -> Size:
        rate = self.arrivals.rate
        return Size(math.inf, 0.0 if rate == math.inf else math.inf, rate)

    def stream(self, tally: Tally) -> Iterator[Ask]:
        times = self.arrivals.times(dice(self.seed, "arrivals"))
        draw = self.lengths.sampler(dice(self.seed, "lengths"))
        who = self.who.sampler(self.seed)
        if self.system == NOTHING:
            for at in times:
                prompt, output = draw()
                tenant, cls, priority = who()
                yield Ask(at, prompt, output, (), tenant, cls, priority)
            return
        systems = _Systems(self.system, self.seed)
        for at in times:
            prompt, output = draw()
            tenant, cls, priority = who()
            prefix = systems.of(tenant)
            if prefix:
                prompt += prefix[0][1]
            yield Ask(at, prompt, output, prefix, tenant, cls, priority)


class _Session:
    __slots__ = ("cls", "history", "key", "left", "priority", "system", "tenant")

    def __init__(self, key: str, left: int, system: Prefix, who: tuple[str, str, int]) -> None:
        self.key = key
        self.left = left
        self.system = system
        self.tenant, self.cls, self.priority = who
        self.history = 0
        """Tokens after the system prompt: all messages and answers so far."""

    def ask(self, at: float, message: int, output: int) -> Ask:
        """The next turn; what it leaves behind is the history of the one after."""
        prefix = self.system
        prompt = self.history + message + (prefix[0][1] if prefix else 0)
        if self.history:
            prefix = (*prefix, (self.key, self.history))
        self.history += message + output
        self.left -= 1
        return Ask(at, prompt, output, prefix, self.tenant, self.cls, self.priority, self.key)


@dataclass(frozen=True, slots=True)
class Sessions:
    """Conversations. Each turn's prompt is the tenant's system prompt, all messages and answers before, and a new
    message. The next turn comes after the answer, which is taken to last `token_time` a token, and a pause to think:
    arrivals do not wait for what an engine really takes. Endless.

    `lengths` draws the message and the answer of a turn; `context` ends a conversation before the turn that would be
    longer, which is counted as dropped (WorkloadError after MAX_UNFIT of them in a row). Memory: the conversations that
    are under way.
    """

    arrivals: Arrivals
    lengths: Lengths
    turns: Distribution
    think: Distribution
    token_time: float = 0.02
    system: Distribution = NOTHING
    context: int | None = None
    who: Who = field(default_factory=Who)
    seed: str = "0"

    @property
    def size(self) -> Size:
        return Size(math.inf, math.inf, self.arrivals.rate * self.turns.mean)

    def stream(self, tally: Tally) -> Iterator[Ask]:
        begin = self._beginner()
        draw = self.lengths.sampler(dice(self.seed, "lengths"))
        think = self.think.sampler(dice(self.seed, "think"))
        token_time = self.token_time
        context = MAX_TOKENS if self.context is None else self.context
        unfit = 0
        under_way: list[tuple[float, int, _Session]] = []
        for n, start in enumerate(self.arrivals.times(dice(self.seed, "arrivals"))):
            heappush(under_way, (start, n, begin(n)))
            # Turns up to here; a conversation that begins later cannot overtake them.
            while under_way and under_way[0][0] <= start:
                at, number, session = under_way[0]
                message, output = draw()
                size = session.history + message + output + (session.system[0][1] if session.system else 0)
                if size > context:
                    tally.dropped += 1
                    unfit += 1
                    if unfit >= MAX_UNFIT:
                        raise none_fits(context)
                    heappop(under_way)
                    continue
                unfit = 0
                yield session.ask(at, message, output)
                if session.left > 0:
                    heapreplace(under_way, (at + output * token_time + think(), number, session))
                else:
                    heappop(under_way)

    def _beginner(self) -> Callable[[int], _Session]:
        turns = whole(self.turns, dice(self.seed, "turns"))
        who = self.who.sampler(self.seed)
        systems = _Systems(self.system, self.seed)

        def begin(n: int) -> _Session:
            asker = who()
            return _Session(f"session-{n}", turns(), systems.of(asker[0]), asker)

        return begin

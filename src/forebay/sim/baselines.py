"""How others admit requests, each as a small `cluster.Policy` written from its public description.

They differ in admission alone: whatever is let through goes to the engine with the fewest requests (`LeastRequests`),
and none of them tells the engine a priority. The other two baselines need no policy of their own: pass-through is
`LeastRequests`, and vLLM's `--max-num-queued-tokens` (0.19: prompt tokens of requests in the prefill phase, over which
the server answers 503) is `EngineSettings.max_num_queued_tokens` behind it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from math import inf
from random import Random

from forebay.sim.cluster import REFUSE, WAIT, Engine, LeastRequests
from forebay.sim.jobs import Job
from forebay.sim.workload import Ask


class Slots:
    """So many requests in flight, and a FIFO queue behind them that is bounded in length and time; classes are not told
    apart. State: how many are in flight, and the queue.

    With a timeout of 3 s and no bound it is the semaphore that most gateways begin with. With `queue` and `timeout` it
    is SGLang's model gateway (SMG, docs/concepts/reliability/rate-limiting.md: `--max-concurrent-requests`,
    `--queue-size` 100, `--queue-timeout-secs` 60; over the queue 429, past the timeout 408).
    """

    report_every = inf

    def __init__(self, engines: int, limit: int, *, queue: float = inf, timeout: float = 3.0) -> None:
        """`limit` is of all engines together. Raises ValueError for what lets nothing through."""
        if limit < 1 or not timeout > 0 or queue < 0:
            raise ValueError(f"limit and timeout must be over 0, queue at least 0: {limit}, {timeout}, {queue}")
        self._place = LeastRequests(engines)
        self._limit = limit
        self._most = queue
        self._timeout = timeout
        self._flying = 0
        self._queue: dict[int, tuple[Ask, float]] = {}  # by row, in order of arrival; until when each waits

    def on_arrival(self, ask: Ask, row: int, now: float) -> int:
        if self._flying < self._limit and not self._queue:
            self._flying += 1
            return self._place.on_arrival(ask, row, now)
        if len(self._queue) >= self._most:
            return REFUSE
        self._queue[row] = (ask, now + self._timeout)
        return WAIT

    def due(self, now: float) -> Sequence[tuple[int, int]]:
        out = []
        queue = self._queue
        while queue:
            row = next(iter(queue))
            ask, until = queue[row]
            if until <= now:
                out.append((row, REFUSE))
            elif self._flying < self._limit:
                self._flying += 1
                out.append((row, self._place.on_arrival(ask, row, now)))
            else:
                break
            del queue[row]
        return out

    def next_due(self) -> float:
        if not self._queue:
            return inf
        return -inf if self._flying < self._limit else self._queue[next(iter(self._queue))][1]

    def on_first_token(self, row: int, engine: int, now: float) -> None: ...

    def on_end(self, row: int, engine: int, now: float, tokens: int) -> None:
        if engine < 0:
            self._queue.pop(row, None)
            return
        self._flying -= 1
        self._place.on_end(row, engine, now, tokens)

    def on_report(self, engine: int, model: Engine, jobs: Mapping[int, Job], now: float) -> None: ...

    def __repr__(self) -> str:
        return f"<Slots {self._flying} of {self._limit}, {len(self._queue)} wait>"


class Utilisation:
    """llm-d's utilisation detector without flow control (llm-d-router, plugin `utilization-detector`): saturation is
    the mean over the engines of max(waiting / `waiting`, KV use / `kv`), by default 5 and 0.8, and while it is 1 or
    more the sheddable are refused. State: the last report of each engine; its metrics are 50 ms old at most.

    `sheddable` names the classes of negative priority.
    """

    def __init__(
        self,
        engines: int,
        *,
        waiting: float = 5.0,
        kv: float = 0.8,
        sheddable: Collection[str] = ("low",),
        report_every: float = 0.05,
    ) -> None:
        """Raises ValueError for thresholds that are not positive."""
        if not (waiting > 0 and 0 < kv <= 1):
            raise ValueError(f"waiting must be over 0 and kv in (0, 1], not {waiting} and {kv}")
        self.report_every = report_every
        self._place = LeastRequests(engines)
        self._waiting = waiting
        self._kv = kv
        self._sheddable = frozenset(sheddable)
        self._scores = [0.0] * engines

    def on_arrival(self, ask: Ask, row: int, now: float) -> int:
        if ask.cls in self._sheddable and self.sheds(sum(self._scores) / len(self._scores)):
            return REFUSE
        return self._place.on_arrival(ask, row, now)

    def sheds(self, saturation: float) -> bool:
        """Whether a sheddable request is refused now."""
        return saturation >= 1

    def due(self, now: float) -> Sequence[tuple[int, int]]:
        return ()

    def next_due(self) -> float:
        return inf

    def on_first_token(self, row: int, engine: int, now: float) -> None: ...

    def on_end(self, row: int, engine: int, now: float, tokens: int) -> None:
        self._place.on_end(row, engine, now, tokens)

    def on_report(self, engine: int, model: Engine, jobs: Mapping[int, Job], now: float) -> None:
        self._scores[engine] = max(model.waiting / self._waiting, model.kv_usage / self._kv)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {[round(s, 2) for s in self._scores[:8]]}>"


class Probabilistic(Utilisation):
    """llm-d's probabilistic admitter (llm-d-router, plugin `probabilistic-admitter`): at saturation s the sheddable are
    refused with probability min(k · s^power, 1), by default 300 and 5: a hundredth at 0.13, all at 0.32."""

    def __init__(
        self,
        engines: int,
        *,
        waiting: float = 5.0,
        kv: float = 0.8,
        k: float = 300.0,
        power: float = 5.0,
        sheddable: Collection[str] = ("low",),
        report_every: float = 0.05,
        seed: int = 0,
    ) -> None:
        super().__init__(engines, waiting=waiting, kv=kv, sheddable=sheddable, report_every=report_every)
        if not (k > 0 and power > 0):
            raise ValueError(f"k and power must be over 0, not {k} and {power}")
        self._k = k
        self._power = power
        self._random = Random(seed)  # noqa: S311

    def sheds(self, saturation: float) -> bool:
        return self._random.random() < self._k * float(saturation**self._power)

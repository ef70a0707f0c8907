"""The load generator: streams sent to an OpenAI-compatible server at times of its own, and what came back.

Open loop: requests leave at arrival times known beforehand (drawn, or a workload's own), whether or not earlier ones
are answered, as the users of a service do; a server that falls behind sees its queue grow. Closed loop (`concurrency`):
the next leaves when one ends; good for a smoke test, blind to queueing.

Latencies count from the time at which a request was to leave, so that a generator that is late, or a connection that
takes its time, makes them longer and hides nothing (no coordinated omission); `Result.lag` says how late it was.

Everything runs in callbacks on one event loop, no task a request. Time is read from the clock, because uvloop's own
`loop.time()` counts whole milliseconds and stands still within a turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from time import monotonic, process_time
from typing import Any, Final

from forebay.config.models import Timeouts
from forebay.plan.load.asks import asks
from forebay.plan.load.bodies import Bodies
from forebay.plan.load.callers import Callers
from forebay.plan.load.plan import Plan
from forebay.plan.load.result import Group, Result, Slice, group
from forebay.plan.load.shot import Shot
from forebay.plan.target import LoadError, Target
from forebay.sim.workload import Ask
from forebay.sim.workloads.errors import WorkloadError
from forebay.wire.pool import Pool
from forebay.wire.tasks import Tasks
from forebay.wire.ticker import Ticker

DRAW_AT_ONCE: Final = 200
"""Requests sent in one turn of the loop at most, so that answers are read in between."""
TIMER_STEP: Final = 0.0005
"""Seconds. uvloop's timers count whole milliseconds: what is due within half of one is sent now."""
BEAT: Final = 0.05
"""Seconds between two looks at how late the event loop is."""
_MISSED: Final = 20_000
"""Beats in a row that are counted as late; a process may be stopped for a day."""

Cost = Callable[[int, int, int], int | None]
"""Nano-units of currency for prompt tokens, those of them from the cache, and tokens of the answer; None: unknown."""


class Ticket:
    """One request from its arrival to its last try."""

    __slots__ = ("arrival", "ask", "began", "body", "groups", "prompt", "tries")

    def __init__(self, ask: Ask, began: float, arrival: float, body: bytes, prompt: int) -> None:
        self.ask = ask
        self.began = began
        """Monotonic; the earlier of when it was to leave and when it left."""
        self.arrival = arrival
        """Seconds into the run."""
        self.body = body
        self.prompt = prompt
        self.tries = 0
        self.groups: tuple[Group, ...] = ()


class Sent(Shot):
    """A try of a request."""

    __slots__ = ("sent", "ticket")

    def __init__(self, load: Load, ticket: Ticket, sent: float) -> None:
        super().__init__(load, ticket.began)
        self.ticket = ticket
        self.sent = sent


class Load:
    """One run. State: the requests under way and those waiting for another try, the next arrival, the result so far."""

    def __init__(
        self,
        target: Target,
        plan: Plan,
        key: str | None = None,
        on_progress: Callable[[Load], None] | None = None,
        *,
        callers: Callers | None = None,
        cost: Cost | None = None,
        on_record: Callable[[dict[str, Any]], None] | None = None,
        hopeless: Callable[[Load], str] | None = None,
    ) -> None:
        """`on_record` gets each request when it ends; `hopeless` is asked now and then, and ends the run with what it
        says, unless that is empty."""
        self.target = target
        self.plan = plan
        self.result = Result()
        self._key = key
        self._callers = callers
        self._cost = cost
        self._on_progress = on_progress
        self._on_record = on_record
        self._hopeless = hopeless
        self._bodies = Bodies(plan)
        self._asks: Iterator[Ask] = asks(plan)
        self._next: Ask | None = None
        self._active: set[Shot] = set()
        self._again: dict[Ticket, asyncio.TimerHandle] = {}
        self._done = asyncio.Event()
        self._arrival: asyncio.TimerHandle | None = None
        self._beat: asyncio.TimerHandle | None = None
        self._beat_due = 0.0
        self._sending = True
        self._trouble = ""
        self._began = 0.0
        self._slice = Slice()
        self._slice_end = 0.0
        self._width = self.result.timeline.width
        self._pool: Pool

    @property
    def in_flight(self) -> int:
        return len(self._active)

    @property
    def waiting(self) -> int:
        """Requests that were refused and will be tried again."""
        return len(self._again)

    def overdue(self) -> int:
        """Requests under way that have missed the SLO already."""
        now, slo = monotonic(), self.plan.slo
        n = 0
        for shot in self._active:
            if not isinstance(shot, Sent):
                continue
            age = now - shot.began
            silent = age if not shot.first else shot.first - shot.began
            n += not slo.keeps(shot.ticket.prompt, silent, None, age)
        return n

    async def run(self) -> Result:
        """Send it all and wait for the last answer. Cancelled: what is under way is dropped. Raises LoadError where the
        workload turns out to be none."""
        cpu = process_time()
        tasks, ticker = Tasks(), Ticker(asyncio.get_running_loop())
        self._pool = self._make_pool(tasks, ticker)
        ticker.add(self._sweep)
        ticker.start()
        self._began = monotonic()
        self._next_beat(self._began)
        try:
            self._advance()
            if self._sending and self.plan.concurrency is not None:
                for _ in range(self.plan.concurrency):
                    self._next_closed()
            elif self._sending:
                self._arrive()
            self._finish_if_idle()
            await self._done.wait()
        finally:
            self._stop_sending()
            self._drop_all()
            if self._beat is not None:
                self._beat.cancel()
            self.result.seconds = monotonic() - self._began
            self.result.cpu = process_time() - cpu
            self._pool.close()
            ticker.stop()
            await tasks.drain()
        if self._trouble:
            raise LoadError(self._trouble)
        return self.result

    def interrupt(self) -> None:
        """Send no more and drop what is under way: it counts neither as completed nor as failed."""
        self.result.interrupted = True
        self._leave()

    def give_up(self, why: str) -> None:
        """As `interrupt`, of its own accord."""
        self.result.given_up = why
        self._leave()

    # --- inside ------------------------------------------------------------------------------------------------------

    def _beats(self) -> None:
        """How late the loop came to this counts for all beats that were due meanwhile."""
        now = monotonic()
        late = max(0.0, now - self._beat_due)
        for missed in range(min(int(late / BEAT) + 1, _MISSED)):
            self.result.loop_lag.add(late - missed * BEAT)
        self._next_beat(now)

    def _next_beat(self, now: float) -> None:
        self._beat_due = now + BEAT
        self._beat = asyncio.get_running_loop().call_later(BEAT, self._beats)

    def _leave(self) -> None:
        self._stop_sending()
        self._drop_all()
        self._done.set()

    def _drop_all(self) -> None:
        for shot in tuple(self._active):
            shot.drop()
        self._active.clear()
        for handle in self._again.values():
            handle.cancel()
        self._again.clear()

    def _make_pool(self, tasks: Tasks, ticker: Ticker) -> Pool:
        plan = self.plan
        timeouts = Timeouts(connect=plan.connect_timeout, first_byte=plan.timeout, stream_idle=plan.timeout)
        return Pool(
            self.target.origin,
            max_open=plan.max_in_flight,
            max_idle=plan.max_in_flight,
            timeouts=timeouts,
            ticker=ticker,
            spawn=tasks.spawn,
        )

    def _advance(self) -> None:
        """Make the next request ready."""
        try:
            self._next = next(self._asks, None)
        except WorkloadError as e:
            self._next, self._trouble = None, str(e)

    def _arrive(self) -> None:
        """Send what is due."""
        now = monotonic()
        for _ in range(DRAW_AT_ONCE):
            ask = self._next
            if ask is None:
                self._stop_sending()
                self._finish_if_idle()
                return
            at = self._began + ask.arrival
            if at > now + TIMER_STEP:
                break
            self.result.lag.add(max(0.0, now - at))
            self._send(ask, min(at, now), now)
            self._advance()
            now = monotonic()
        else:
            at = now
        self._arrival = asyncio.get_running_loop().call_at(at, self._arrive)

    def _next_closed(self) -> None:
        now, plan = monotonic(), self.plan
        late = plan.seconds is not None and now - self._began > plan.seconds
        if self._sending and self._next is not None and not late:
            self._send(self._next, now, now)
            self._advance()
        else:
            self._stop_sending()

    def _send(self, ask: Ask, began: float, now: float) -> None:
        body, prompt = self._bodies.of(ask)
        ticket = Ticket(ask, began, began - self._began, body, prompt)
        result = self.result
        groups = [group(result.classes, ask.cls), group(result.tenants, ask.tenant)]
        ticket.groups = tuple(groups)
        for one in groups:
            one.sent += 1
        result.sent += 1
        self._where(ticket.arrival).arrived += 1
        self._try(ticket, now)

    def _try(self, ticket: Ticket, now: float) -> None:
        shot = Sent(self, ticket, now)
        self._active.add(shot)
        self.result.peak_in_flight = max(self.result.peak_in_flight, len(self._active))
        where = self._where(now - self._began)
        where.in_flight = max(where.in_flight, len(self._active))
        ask, callers = ticket.ask, self._callers
        key = self._key if callers is None else callers.key(ask.tenant)
        more = () if callers is None else callers.headers(ask.cls)
        head = self.target.head("POST", self.plan.path, key, len(ticket.body), more)
        self._pool.request(head, ticket.body, shot)

    # --- Owner of shots ----------------------------------------------------------------------------------------------

    def first(self, shot: Shot, now: float, events: int) -> None:
        ttft = now - shot.began
        self.result.ttft.add(ttft)
        if events > 1:
            self.result.itl.add(0.0, events - 1)
        if isinstance(shot, Sent):
            self._where(shot.ticket.arrival).ttft.add(ttft)
        self._tokens(now, events)

    def gap(self, shot: Shot, seconds: float, now: float, events: int) -> None:
        itl = self.result.itl
        itl.add(seconds)
        if events > 1:
            itl.add(0.0, events - 1)
        if now < self._slice_end:
            self._slice.tokens += events
        else:
            self._tokens(now, events)

    def _tokens(self, now: float, events: int) -> None:
        since = now - self._began
        self._slice = self._where(since)
        self._slice_end = self._began + (int(since / self._width) + 1) * self._width
        self._slice.tokens += events

    def _where(self, seconds: float) -> Slice:
        """The slice of that time into the run."""
        timeline = self.result.timeline
        found = timeline.at(max(0.0, seconds))
        if timeline.width != self._width:
            self._width, self._slice_end = timeline.width, 0.0  # slices became one: the current may be another
        return found

    def ended(self, shot: Shot, error: str | None) -> None:
        self._active.discard(shot)
        if isinstance(shot, Sent):
            self._account(shot, error)
        self._finish_if_idle()

    def _account(self, shot: Sent, error: str | None) -> None:
        now, ticket, result = monotonic(), shot.ticket, self.result
        if shot.refused:
            result.denied += shot.retry_denied
            if shot.retry_after is not None:
                result.retry_after.add(shot.retry_after)
                if self._retry(shot, now):
                    return
        where = self._where(ticket.arrival)
        good, tpot, e2e = False, shot.tpot(), now - shot.began
        cost: int | None = None
        if error is None:
            prompt = ticket.prompt if shot.prompt_tokens is None else shot.prompt_tokens
            output = shot.output_tokens
            good = self.plan.slo.keeps(prompt, shot.first - shot.began, tpot, e2e)
            result.completed += 1
            result.good += good
            result.rescued += ticket.tries > 0
            result.e2e.add(e2e)
            if tpot is not None:
                result.tpot.add(tpot)
            result.output_tokens += output
            if shot.prompt_tokens is not None:
                result.prompt_tokens += shot.prompt_tokens
                result.asked_prompt_tokens += ticket.prompt
                result.cached_tokens += shot.cached_tokens
            if self._cost is not None:
                cost = self._cost(prompt, shot.cached_tokens, output)
                result.cost += cost or 0
                result.unpriced += cost is None
            where.completed += 1
            where.good += good
        else:
            result.fail(error)
            where.failed += 1
        for one in ticket.groups:
            if error is None:
                one.completed += 1
                one.good += good
                one.output_tokens += shot.output_tokens
                one.ttft.add(shot.first - shot.began)
                one.e2e.add(e2e)
                if tpot is not None:
                    one.tpot.add(tpot)
            else:
                one.failed += 1
        if self._on_record is not None:
            self._on_record(self._record(shot, error, good, tpot, e2e, cost))
        if self._sending and self.plan.concurrency is not None:
            asyncio.get_running_loop().call_soon(self._refill)

    def _record(
        self, shot: Sent, error: str | None, good: bool, tpot: float | None, e2e: float, cost: int | None
    ) -> dict[str, Any]:
        ticket = shot.ticket
        found: dict[str, Any] = {
            "arrival": round(ticket.arrival, 6),
            "sent": round(shot.sent - self._began, 6),
            "ttft": round(shot.first - shot.began, 6) if shot.first else None,
            "tpot": None if tpot is None else round(tpot, 7),
            "e2e": round(e2e, 6),
            "prompt_tokens": shot.prompt_tokens,
            "output_tokens": shot.output_tokens,
            "tries": ticket.tries + 1,
            "error": error,
            "good": good,
        }
        if shot.cached_tokens:
            found["cached_tokens"] = shot.cached_tokens
        if ticket.ask.tenant:
            found["tenant"] = ticket.ask.tenant
        if ticket.ask.cls != "normal":
            found["class"] = ticket.ask.cls
        if cost is not None:
            found["cost_nano"] = cost
        return found

    def _retry(self, shot: Sent, now: float) -> bool:
        """Whether it will be tried again."""
        ticket, plan, wait = shot.ticket, self.plan, shot.retry_after
        if wait is None or shot.retry_denied or ticket.tries >= plan.retries:
            return False
        if now + wait - ticket.began > plan.timeout or len(self._again) >= plan.max_in_flight:
            return False
        ticket.tries += 1
        self._again[ticket] = asyncio.get_running_loop().call_later(wait, self._once_more, ticket)
        return True

    def _once_more(self, ticket: Ticket) -> None:
        del self._again[ticket]
        self.result.retried += 1
        self._try(ticket, monotonic())

    def _refill(self) -> None:
        if self._sending:
            self._next_closed()
        self._finish_if_idle()

    def _stop_sending(self) -> None:
        self._sending = False
        if self._arrival is not None:
            self._arrival.cancel()
            self._arrival = None

    def _finish_if_idle(self) -> None:
        if not self._sending and not self._active and not self._again:
            self._done.set()

    def _sweep(self, _: float) -> None:
        now = monotonic()
        for shot in [s for s in self._active if now - s.began > self.plan.timeout]:
            shot.fail("timeout")
        result = self.result
        before, result.seconds = result.seconds, now - self._began
        if not self._done.is_set():
            while before < result.seconds:  # a look comes less often than a slice is long
                before = min(before + self._width, result.seconds)
                where = self._where(before)
                where.in_flight = max(where.in_flight, len(self._active))
        if self._on_progress is not None:
            self._on_progress(self)
        if self._hopeless is not None and not self._done.is_set() and (why := self._hopeless(self)):
            self.give_up(why)

    def __repr__(self) -> str:
        r = self.result
        return f"<Load {r.sent} sent, {len(self._active)} in flight, {r.completed} completed, {r.failed} failed>"

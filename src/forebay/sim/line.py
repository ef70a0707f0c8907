"""The jobs that wait for a place in an engine: first come first served, or by priority."""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush
from typing import Literal

from forebay.sim.jobs import Job, State


class Line:
    """Whoever is not WAITING any more is skipped; `count` is of those who are."""

    __slots__ = ("_by_priority", "_heap", "_queue", "count")

    def __init__(self, policy: Literal["fcfs", "priority"]) -> None:
        self._by_priority = policy == "priority"
        self._queue: deque[Job] = deque()
        self._heap: list[tuple[int, int, Job]] = []
        self.count = 0

    def put(self, job: Job, *, front: bool = False) -> None:
        """`front`: before all others, where priorities do not decide."""
        job.state = State.WAITING
        self.count += 1
        if self._by_priority:
            heappush(self._heap, (job.priority, job.number, job))
        elif front:
            self._queue.appendleft(job)
        else:
            self._queue.append(job)

    def head(self) -> Job | None:
        """Who is next."""
        if self._by_priority:
            heap = self._heap
            while heap and heap[0][2].state is not State.WAITING:
                heappop(heap)
            return heap[0][2] if heap else None
        queue = self._queue
        while queue and queue[0].state is not State.WAITING:
            queue.popleft()
        return queue[0] if queue else None

    def pop(self) -> None:
        """The head leaves."""
        self.count -= 1
        if self._by_priority:
            heappop(self._heap)
        else:
            self._queue.popleft()

    def left(self) -> None:
        """One of those who wait has left."""
        self.count -= 1

    def __repr__(self) -> str:
        return f"<Line of {self.count}>"

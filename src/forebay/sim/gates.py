"""What holds a request back until another engine is ready, and its end until that has what it needs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from forebay.sim.checks import Rejected
from forebay.sim.jobs import Job


class Gate:
    """Of one request. This one is always open."""

    remote = False
    """The prompt's KV comes from another engine."""
    hold = False
    """The prompt's KV is held for another engine."""

    def start(self, ready: Callable[[], None], failed: Callable[[Rejected], None]) -> bool:
        """True: go on at once. Else one of the two is called later."""
        return True

    def submitted(self, tokens: int) -> None:
        """The model has the request, of so many prompt tokens."""

    def refused(self) -> None:
        """The model does not take the request, which ends here. Called in place of `leave`."""

    def finished(self, job: Job, done: Callable[[], None]) -> None:
        """The model has made the last token; `done` sends the end of the answer."""
        done()

    def handed_over(self, job: Job, request_id: str) -> dict[str, Any] | None:
        """What the answer says of the KV that is held."""
        return None

    def leave(self) -> None:
        """The request has ended, whatever the way. Called once."""

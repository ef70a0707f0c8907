"""Finds engines that have fallen silent, by the tokens that do not come.

A look on the worker's ticker reads when each running answer last got something; nothing is done per token. An engine
has stalled when

- none of its answers that have begun has got anything for `stall_gaps` times its usual gap between tokens, or
- it has begun none of those sent to it for `stall_gaps` times its usual time to a first token, nor ended any,

and for `stall_least` seconds at least. It gets no new requests then; what has no first byte yet goes to another engine
where retries allow it, else it waits on. Streams that have begun stay: if tokens come again they go on, and if not
`timeouts.stream_idle` ends them. Answers that their clients do not take count neither way.

The usual gap is learned from the same looks: silence looked at in a random instant of a gap is half of it on average,
long gaps counting more, which errs on the patient side.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from forebay import errors
from forebay.gateway.handles import Handle

if TYPE_CHECKING:
    from forebay.gateway.app import Gateway

LATE: Final = 2.0
"""Seconds between two looks over which it was this process that stood still: what came meanwhile is not read yet."""
LEARN: Final = 0.1
"""How far a look moves what is usual."""
ENOUGH: Final = 5
"""Looks, or answers, before what is usual counts."""
PATIENCE: Final = 4.0
"""Times `stall_least` where the usual gap is not known yet."""


class Stalls:
    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._looked_at = 0.0

    def look(self, now: float) -> None:
        """`now` is monotonic seconds."""
        since, self._looked_at = now - self._looked_at, now
        if since > LATE:
            return
        latest: dict[Handle, float] = {}
        oldest: dict[Handle, float] = {}
        for x in self._gateway.live:
            handle = x.handle
            if handle is None or x.reply.paused:
                continue
            heard = x.heard_at
            if heard:
                heard = max(heard, x.resumed_at)
                if heard > latest.get(handle, 0.0):
                    latest[handle] = heard
            elif x.sent_at < oldest.get(handle, now):
                oldest[handle] = x.sent_at
        for handle, heard in latest.items():
            self._streaming(handle, heard, now)
        for handle, sent in oldest.items():
            if handle not in latest:
                self._waiting(handle, sent, now)

    def _streaming(self, handle: Handle, heard: float, now: float) -> None:
        silence = max(0.0, now - max(heard, handle.answered_at))
        if heard > handle.heard_at:
            handle.heard_at = heard
            gap = max(silence, handle.quiet)
            handle.gaps += 1
            handle.gap_mean += (gap - handle.gap_mean) * max(LEARN, 1.0 / handle.gaps)
            if handle.stalled:
                self._gateway.fleet.heard_again(handle)
        handle.quiet = silence
        health = self._gateway.config.health
        if handle.gaps >= ENOUGH:
            bound = max(health.stall_least, health.stall_gaps * 2 * handle.gap_mean)
        else:
            bound = PATIENCE * health.stall_least
        if silence > bound:
            self._stalled(handle, f"nothing came for {silence:.1f} s to any of its running answers")

    def _waiting(self, handle: Handle, sent: float, now: float) -> None:
        health = self._gateway.config.health
        if handle.firsts < ENOUGH:
            return  # a first answer may take its time: weights are loaded, kernels compiled
        silence = now - max(sent, handle.heard_at, handle.answered_at)
        if silence > max(health.stall_least, health.stall_gaps * handle.first_mean):
            self._stalled(handle, f"it answered none of its requests for {silence:.1f} s")

    def _stalled(self, handle: Handle, why: str) -> None:
        if handle.stalled or self._gateway.fleet.silent(handle, why):
            self._move(handle, why)

    def lost(self, handle: Handle, why: str) -> None:
        """Its health checks are not answered: where nothing else came either, it is as good as stalled."""
        since = self._gateway.ticker.now - handle.config.unhealthy_after * handle.config.health_timeout
        heard = max([handle.answered_at, *(x.heard_at for x in self._gateway.live if x.handle is handle)])
        if heard < since:
            self._move(handle, why)

    def _move(self, handle: Handle, why: str) -> None:
        refusal = errors.engine_failed(f"it has stalled: {why}")
        for x in [x for x in self._gateway.live if x.handle is handle]:
            x.move(refusal)

"""What admission decided about a request, said in its answer's head where the request asks for it. (Of caches only
the reason of a miss has to be asked for: `Forebay-Explain: cache`, see `gateway.cached`.)

`Forebay-Explain: admission` asks; the value is a list of names (RFC 9110 §5.6.1), those not known here are passed over.
The answer, be it a refusal, then has

- `Forebay-Predicted-TTFT-Ms`: the bound on its time to first token that it was admitted with; where it was not, what
  was predicted when it came, if anything was. Milliseconds from its arrival.
- `Forebay-Queue-Position`: how many were ahead of it when it came to wait; 0 where it went at once.
- `Forebay-Waited-Ms`: how long it waited for its admission.

After a retry on another engine they are about that.
"""

from __future__ import annotations

from math import ceil, inf
from typing import Final, NamedTuple

from forebay.wire.message import Request
from forebay.wire.reply import Reply

ASKED: Final = b"forebay-explain"
_PREDICTED: Final = b"forebay-predicted-ttft-ms"
_POSITION: Final = b"forebay-queue-position"
_WAITED: Final = b"forebay-waited-ms"
TOLD: Final = frozenset({_PREDICTED, _POSITION, _WAITED})
_BEGIN: Final = b"\r\nforebay-"
ADMISSION: Final = b"admission"
CACHE: Final = b"cache"


class Place(NamedTuple):
    """Where one that waits stood at first."""

    position: int
    since: float
    """Monotonic seconds."""
    expected: float
    """Seconds from its arrival to its first token, as predicted then."""


AT_ONCE: Final = Place(0, inf, inf)
"""Of one that was admitted when it came."""


def asks_for(request: Request, what: bytes) -> bool:
    """`what`: ADMISSION or CACHE."""
    if ASKED not in request.fields:
        return False
    return any(
        word.strip().lower() == what for name, value in request.headers if name == ASKED for word in value.split(b",")
    )


def explain(reply: Reply, predicted: float, place: Place | None, now: float) -> None:
    """Say it in the answer's head, instead of what was said before. `predicted`: seconds, infinite where not known;
    `place`: None where it had none."""
    said = [_WAITED + b": %d\r\n" % (1000 * max(0.0, now - place.since) if place is not None else 0)]
    if predicted < inf:
        said.append(_PREDICTED + b": %d\r\n" % ceil(1000 * predicted))
    if place is not None:
        said.append(_POSITION + b": %d\r\n" % place.position)
    at = reply.extra.find(_BEGIN)
    before = reply.extra if at < 0 else reply.extra[: at + 2]
    reply.extra = before + b"".join(said)

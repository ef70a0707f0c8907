"""A request on its way to an engine that has a dialect."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forebay.errors import Refusal
from forebay.gateway.dialects import Dialect, Sending
from forebay.gateway.interpreting import Interpreter

if TYPE_CHECKING:
    from forebay.gateway.exchange import Exchange
    from forebay.gateway.handles import Handle


def send_in(dialect: Dialect, handle: Handle, x: Exchange, *, begun: bool = False) -> None:
    """Sends it, or refuses what cannot be said to this engine. `begun`: the attempt is."""
    front, limits = x.front, x.gateway.limits
    sending = Sending(
        front.route,
        x.body,
        x.payload,
        front.class_,
        handle.report.low_first,
        x.request_id,
        x.stream,
        limits.response_bytes,
        limits.event_bytes,
        front.caller,
    )
    try:
        prepared = dialect.prepare(sending)
    except Refusal as refusal:
        x.refuse(refusal.with_traceback(None))
        return
    if not begun:
        x.begin_attempt(handle)
    x.abort = prepared.abort
    body, reading = prepared.body, prepared.reading
    handle.pool.request(
        b"%b%bx-request-id: %b\r\ncontent-length: %d\r\n\r\n"
        % (handle.head(b"POST", prepared.path), front.block, x.request_id, len(body)),
        body,
        Interpreter(x, reading) if reading is not None else x,
    )
    if x.stream and x.reply.paused:
        x.pause()

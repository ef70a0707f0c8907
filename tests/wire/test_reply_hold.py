"""An answer that is held: nothing goes out before its release, and all of it in order after."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from forebay.wire.message import Peer, Request
from forebay.wire.reply import HELD, Reply
from forebay.wire.reply import Outlet as OutletBase


class Outlet(OutletBase):
    """Records what a connection would be told."""

    def __init__(self) -> None:
        self.blocked = False
        self.out = b""
        self.told: list[str] = []

    def is_blocked(self) -> bool:
        return self.blocked

    def write(self, data: bytes) -> None:
        self.out += data

    def ended(self, reply: Reply) -> None:
        self.told.append("ended")

    def cut(self) -> None:
        self.told.append("cut")

    def date(self) -> bytes:
        return b"date: now\r\n"

    def raw_writer(self) -> Callable[[bytes], None]:
        return self.write


def _reply() -> tuple[Outlet, Reply]:
    outlet = Outlet()
    reply = Reply(outlet, Request(b"POST", b"/v1/x", b"", [], {}, Peer("1.2.3.4"), http10=False))
    reply.hold()
    return outlet, reply


def test_whole_answer() -> None:
    outlet, reply = _reply()
    reply.send(200, b"", b"hello")
    assert outlet.out == b""
    assert outlet.told == []
    assert not reply.open
    reply.release()
    assert outlet.out.endswith(b"\r\n\r\nhello")
    assert outlet.told == ["ended"]


@pytest.mark.parametrize("last", ["end", "abort"])
def test_pieces_in_order_and_nothing_behind_the_end(last: str) -> None:
    outlet, reply = _reply()
    reply.start(200, b"")
    reply.write(b"a")
    assert reply.raw_writer() is None
    getattr(reply, last)()
    reply.write(b"too late")
    reply.end()
    assert outlet.out == b""
    reply.release()
    head, _, body = outlet.out.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200")
    assert body == b"1\r\na\r\n" + (b"0\r\n\r\n" if last == "end" else b"")
    assert outlet.told == ["ended" if last == "end" else "cut"]


def test_goes_on_after_the_release() -> None:
    outlet, reply = _reply()
    reply.start(200, b"")
    reply.release()
    assert reply.raw_writer() is not None
    reply.write(b"b")
    assert outlet.out.endswith(b"1\r\nb\r\n")
    reply.release()  # a second one does nothing
    assert outlet.told == []


def test_pauses_once_over_the_bound_and_resumes() -> None:
    outlet, reply = _reply()
    told: list[str] = []
    reply.on_pause = lambda: told.append("pause")
    reply.on_resume = lambda: told.append("resume")
    reply.start(200, b"")
    reply.write(b"x" * HELD)
    reply.write(b"y")
    assert told == ["pause"]
    assert reply.paused
    reply.release()
    assert told == ["pause", "resume"]
    assert not reply.paused
    assert len(outlet.out) > HELD


def test_client_leaves_meanwhile() -> None:
    outlet, reply = _reply()
    gone: list[str] = []
    reply.on_gone = lambda: gone.append("gone")
    reply.start(200, b"")
    reply.gone()
    reply.release()
    assert gone == ["gone"]
    assert outlet.out == b""

"""Both ends over real socket pairs."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.config.quotas import Each
from forebay.ledger.limit_state import Use
from forebay.ledger.records import KeyRecord
from forebay.ledger.rules import Measure, Rule
from forebay.state.channel import CHANNEL_ENV, MAX_FRAME, Channel, ChannelBroken, pack, unpack
from forebay.state.messages import (
    AdmissionState,
    Budgets,
    Committed,
    Done,
    Drain,
    Draining,
    EngineAdmission,
    EngineState,
    FamilySnapshot,
    Follow,
    Forget,
    GetAdmission,
    GetBudgets,
    GetPrefix,
    GetSnapshot,
    HelperState,
    Margin,
    Message,
    ModelAdmission,
    NoAdmission,
    Ping,
    Pong,
    PrefixBreak,
    PrefixGroup,
    PrefixState,
    Ready,
    Reload,
    SetEngines,
    SetKeys,
    SetUse,
    ShedChange,
    Snapshot,
    Start,
    Waiting,
)  # fmt: skip

T = TypeVar("T")

MESSAGES: list[Message] = [
    Start(config='{"a": "é😀\\n"}', index=3, boot="b", fds=(4, 5)),
    Start(config="", index=0, boot=""),
    Reload(config="{}"),
    Reload(config="{}", listed=2),
    SetEngines(version=3, engines=('{"name":"a"}',), draining=("a", "b")),
    Drain(deadline=1.5),
    Draining(),
    Ping(3),
    Pong(3, "its look-ups stand still"),
    HelperState(True, 1, 2, "no answer for 10 s"),
    Ready(pid=7),
    GetSnapshot(),
    GetAdmission(),
    NoAdmission(),
    GetPrefix(),
    Forget(tag="billing"),
    PrefixState(
        True,
        (
            PrefixGroup(
                "m",
                "acme",
                9,
                900,
                800,
                100,
                9,
                900,
                120,
                850,
                (PrefixBreak("messages[0] (system)", 41, "time", "0000-00-00", 8, 700),),
                ("round_robin",),
            ),
        ),
    ),
    AdmissionState(
        models=(ModelAdmission("m", 2, 1.5, {"vip": Waiting(1, 20)}),),
        engines=(
            EngineAdmission(
                name="e",
                shed_level=0.5,
                reason="shed_kv",
                kv_predicted=0.9,
                kv_tokens=None,
                ceilings={"vip": 0.97},
                in_flight=1,
                cap=2,
                scale_factor=1.2,
                load=0.9,
                pace=1.0,
                prefill_rate=8e3,
                prefill_ahead=0.0,
                margins={"idle": Margin(2.0, 0)},
                history=(ShedChange(1.7e9, 0.5, "shed_kv"),),
            ),
        ),
    ),
    SetKeys(version=2, keys=(KeyRecord(id="i", sha256=bytes(range(32)), name="n", models=("m",), expires=1.0),)),
    Done(),
    Snapshot(
        boot="b",
        pid=1,
        index=0,
        draining=True,
        keys_version=9,
        families=(
            FamilySnapshot("c", "C.", "counter", ("l",), values=((("v",), 1.0),)),
            FamilySnapshot("h", "H.", "histogram", (), edges=(0.1, 1.0), histograms=(((), (1, 0, 2), 3.5),)),
        ),
        engines=(EngineState("e", "http://e", False, ("m",), 3, "refused"),),
    ),
    Follow("owner", 7),
    Committed("owner", 9),
    GetBudgets(-1),
    Budgets(1, "owner", 9, (Rule(name="r", each=Each.KEY, tokens_per_day=5),), {"r key": 1.7e9}),
    SetUse((Use("r key", ("k",), Measure.TOKENS_DAY, 1.7e9, 4),), complete=True),
]


def over_a_pair(story: Callable[[Channel, socket.socket], Awaitable[T]]) -> T:
    """Run `story` with one end as a channel and the other as a blocking socket."""

    async def run() -> T:
        ours, theirs = socket.socketpair()
        with theirs:
            theirs.settimeout(10)
            channel = await Channel.from_socket(ours)
            try:
                return await story(channel, theirs)
            finally:
                await channel.close()

    return asyncio.run(run())


def test_every_message_there_is_goes_through() -> None:
    assert {type(m) for m in MESSAGES} == set(Message.__args__)

    async def run() -> list[Message | None]:
        a, b = socket.socketpair()
        left, right = await Channel.from_socket(a), await Channel.from_socket(b)
        for message in MESSAGES:
            await left.send(message)
        got = [await right.receive() for _ in MESSAGES]
        await left.close()
        got.append(await right.receive())
        await right.close()
        return got

    assert asyncio.run(run()) == [*MESSAGES, None]


def test_the_frame_is_four_bytes_of_length_and_json() -> None:
    frame = pack(Ready(pid=7))
    assert frame == b"\x00\x00\x00\x18" + b'{"type":"ready","pid":7}'


def test_what_channel_sends_is_the_frame() -> None:
    async def story(channel: Channel, peer: socket.socket) -> bytes:
        await channel.send(Ready(pid=7))
        return peer.recv(100)

    assert over_a_pair(story) == pack(Ready(pid=7))


def test_frames_split_at_every_byte() -> None:
    frames = pack(Ready(pid=7)) + pack(Done())

    async def story(channel: Channel, peer: socket.socket) -> list[Message | None]:
        got: list[Message | None] = []
        for i in range(len(frames) + 1):
            first = asyncio.ensure_future(channel.receive())
            peer.sendall(frames[:i])
            # Two turns of the loop: the bytes of the first half are read before the second half exists.
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            peer.sendall(frames[i:])
            got += [await first, await channel.receive()]
        return got

    assert over_a_pair(story) == [Ready(pid=7), Done()] * (len(frames) + 1)


def test_a_large_message_passes() -> None:
    """Larger than any socket buffer: the writer has to wait for the reader."""
    big = Reload(config="x" * (8 << 20))

    async def run() -> Message | None:
        a, b = socket.socketpair()
        left, right = await Channel.from_socket(a), await Channel.from_socket(b)
        _, got = await asyncio.gather(left.send(big), right.receive())
        await left.close()
        await right.close()
        return got

    assert asyncio.run(run()) == big


@pytest.mark.parametrize("size", [MAX_FRAME + 1, 2**32 - 1])
def test_an_oversize_frame_is_refused_by_its_length_alone(size: int) -> None:
    async def story(channel: Channel, peer: socket.socket) -> None:
        peer.sendall(size.to_bytes(4, "big"))  # not one byte of body: a reader that waits for it would hang
        await channel.receive()

    with pytest.raises(ChannelBroken, match=f"a message of {size:,} bytes is over the limit of 67,108,864"):
        over_a_pair(story)


def test_a_message_too_large_to_be_read_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forebay.state.channel.MAX_FRAME", 100)
    at_limit = Reload(config="x" * (100 - len(msgspec.json.encode(Reload(config="")))))
    assert len(pack(at_limit)) == 104

    async def story(channel: Channel, peer: socket.socket) -> bytes:
        with pytest.raises(ChannelBroken, match="a message of 101 bytes is over the limit of 100"):
            await channel.send(Reload(config=at_limit.config + "x"))
        await channel.send(Done())
        return peer.recv(1000)

    assert over_a_pair(story) == pack(Done())


GARBAGE = [
    b"",
    b"{}",
    b"null",
    b"[1]",
    b"\xff\xfe",
    b'{"type":"nope"}',
    b'{"type":"ready"}',
    b'{"type":"ready","pid":"7"}',
    b'{"type":"ready","pid":7}x',
    b'{"type":"ready","pid":1e400}',
    b'{"type":"reload","config":"\xff"}',
    b'{"type":"reload","config":"\\ud800"}',
    b'{"type":"set_keys","version":1,"keys":[{"id":"i","sha256":"!","name":"n"}]}',
    b'{"type":"ready","zz":' + b"[" * 100_000,
]


@pytest.mark.parametrize("body", GARBAGE, ids=lambda b: repr(b[:40]))
def test_garbage_is_refused(body: bytes) -> None:
    async def story(channel: Channel, peer: socket.socket) -> None:
        send = asyncio.to_thread(peer.sendall, len(body).to_bytes(4, "big") + body)
        await asyncio.gather(send, channel.receive())

    with pytest.raises(ChannelBroken):
        over_a_pair(story)


def test_a_field_of_a_newer_version_is_ignored() -> None:
    assert unpack(b'{"type":"ready","pid":7,"colour":"red"}') == Ready(pid=7)


@pytest.mark.parametrize("sent", range(len(pack(Ready(pid=7)))))
def test_end_of_file_anywhere_in_a_frame_is_the_end(sent: int) -> None:
    async def story(channel: Channel, peer: socket.socket) -> list[Message | None]:
        peer.sendall(pack(Done()) + pack(Ready(pid=7))[:sent])
        peer.close()
        return [await channel.receive(), await channel.receive(), await channel.receive()]

    assert over_a_pair(story) == [Done(), None, None]


def test_ask_brings_the_answer() -> None:
    async def story(channel: Channel, peer: socket.socket) -> tuple[bytes, Message]:
        peer.sendall(pack(Done()))
        answer = await channel.ask(SetKeys(version=1, keys=()))
        return peer.recv(1000), answer

    assert over_a_pair(story) == (pack(SetKeys(version=1, keys=())), Done())


def test_ask_says_when_the_other_side_left_before_the_answer() -> None:
    async def story(channel: Channel, peer: socket.socket) -> None:
        peer.shutdown(socket.SHUT_WR)
        await channel.ask(GetSnapshot())

    with pytest.raises(ChannelBroken, match="the other side closed the channel"):
        over_a_pair(story)


def test_ask_says_when_the_other_side_left_before_the_question() -> None:
    async def story(channel: Channel, peer: socket.socket) -> None:
        peer.close()
        with pytest.raises(ChannelBroken, match="the other side closed the channel"):
            await channel.ask(GetSnapshot())
        with pytest.raises(ConnectionError):  # by now it is known
            await channel.send(Reload(config="x"))

    over_a_pair(story)


def test_a_receive_may_be_cancelled_and_repeated() -> None:
    async def story(channel: Channel, peer: socket.socket) -> Message | None:
        frame = pack(Ready(pid=7))
        waiting = asyncio.ensure_future(channel.receive())
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        peer.sendall(frame)
        return await channel.receive()

    assert over_a_pair(story) == Ready(pid=7)


def test_connect_speaks_over_a_path(tmp_path: Path) -> None:
    path = str(tmp_path / "s.sock")

    async def run() -> Message:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            served = Channel(reader, writer)
            assert await served.receive() == GetSnapshot()
            await served.send(Done())
            await served.close()

        async with await asyncio.start_unix_server(answer, path):
            channel = await Channel.connect(path)
            answered = await channel.ask(GetSnapshot())
            assert await channel.receive() is None
            await channel.close()
            return answered

    assert asyncio.run(run()) == Done()


def test_connect_to_nothing_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        asyncio.run(Channel.connect(str(tmp_path / "s.sock")))


CHILD = """
import asyncio, os
from forebay.state.channel import Channel
from forebay.state.messages import Ready, Start

async def main():
    channel = await Channel.inherited()
    start = await channel.receive()
    assert isinstance(start, Start), start
    await channel.send(Ready(pid=os.getpid()))
    assert await channel.receive() is None
    await channel.close()
    print("left", start.index)

asyncio.run(main())
"""


def test_a_child_inherits_its_end_and_sees_its_parent_go() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.settimeout(60)
        child = subprocess.Popen(
            [sys.executable, "-c", CHILD],
            env={**os.environ, CHANNEL_ENV: str(theirs.fileno())},
            pass_fds=[theirs.fileno()],
            stdout=subprocess.PIPE,
            text=True,
        )
        theirs.close()
        with child:
            ours.sendall(pack(Start(config="{}", index=4, boot="b")))
            size = int.from_bytes(ours.recv(4, socket.MSG_WAITALL), "big")
            assert unpack(ours.recv(size, socket.MSG_WAITALL)) == Ready(pid=child.pid)
            ours.close()
            out, _ = child.communicate(timeout=60)
            assert (out, child.returncode) == ("left 4\n", 0)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, "FOREBAY_CHANNEL is not set: this process is started by `forebay serve`"),
        ("three", "FOREBAY_CHANNEL='three' is not an open socket of this process"),
        ("-1", "FOREBAY_CHANNEL='-1' is not an open socket of this process"),
        ("987654", "FOREBAY_CHANNEL='987654' is not an open socket of this process"),
    ],
)
def test_a_process_that_the_supervisor_did_not_start_is_told(
    monkeypatch: pytest.MonkeyPatch, value: str | None, message: str
) -> None:
    monkeypatch.delenv(CHANNEL_ENV, raising=False)
    if value is not None:
        monkeypatch.setenv(CHANNEL_ENV, value)
    with pytest.raises(ChannelBroken) as e:
        asyncio.run(Channel.inherited())
    assert str(e.value) == message


def test_a_file_is_no_channel(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with (tmp_path / "f").open("w") as f:
        monkeypatch.setenv(CHANNEL_ENV, str(f.fileno()))
        with pytest.raises(ChannelBroken, match="is not an open socket of this process"):
            asyncio.run(Channel.inherited())


# --- any bytes -------------------------------------------------------------------------------------------------------


@given(st.binary(max_size=200) | st.sampled_from(GARBAGE[:-1]))
def test_a_body_of_any_bytes_is_a_message_or_broken(body: bytes) -> None:
    try:
        message = unpack(body)
    except ChannelBroken:
        return
    assert unpack(pack(message)[4:]) == message


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=50)


@given(
    st.lists(
        st.builds(Reload, config=texts)
        | st.builds(Ready, pid=st.integers(-(2**63), 2**63 - 1))
        | st.builds(Drain, deadline=st.floats(allow_nan=False, allow_infinity=False))
        | st.builds(
            Start, config=texts, index=st.integers(0, 9), boot=texts, fds=st.lists(st.integers(0, 99)).map(tuple)
        ),
        max_size=5,
    ),
    st.lists(st.integers(0, 400), max_size=6),
    st.integers(0, 30),
)
def test_any_messages_cut_anywhere_with_any_of_it_missing(messages: list[Message], cuts: list[int], lost: int) -> None:
    """Whole frames arrive, in order; a frame that lost its end is the end."""
    frames = [pack(m) for m in messages]
    stream = b"".join(frames)
    stream = stream[: max(0, len(stream) - lost)]
    whole, at = 0, 0
    for frame in frames:
        at += len(frame)
        whole += at <= len(stream)
    edges = [0, *sorted(min(c, len(stream)) for c in cuts), len(stream)]

    async def story(channel: Channel, peer: socket.socket) -> list[Message]:
        async def write() -> None:
            for a, b in pairwise(edges):
                peer.sendall(stream[a:b])
                await asyncio.sleep(0)
            peer.close()

        async def read() -> list[Message]:
            got = []
            while (message := await channel.receive()) is not None:
                got.append(message)
            return got

        _, got = await asyncio.gather(write(), read())
        return got

    assert over_a_pair(story) == messages[:whole]

"""Messages over a stream socket: four bytes of length (big-endian), then JSON."""

from __future__ import annotations

import asyncio
import os
import socket
from typing import Final

import msgspec

from forebay.state.messages import Message

MAX_FRAME: Final = 64 << 20
CHANNEL_ENV: Final = "FOREBAY_CHANNEL"

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Message)


class ChannelBroken(Exception):
    """The other side sent something that is no message of ours."""


def pack(message: Message) -> bytes:
    """Raises ChannelBroken for a message that the other side would refuse as too large."""
    body = _encoder.encode(message)
    _check_size(len(body))
    return len(body).to_bytes(4, "big") + body


def _check_size(size: int) -> None:
    if size > MAX_FRAME:
        raise ChannelBroken(f"a message of {size:,} bytes is over the limit of {MAX_FRAME:,}")


def unpack(body: bytes) -> Message:
    """Raises ChannelBroken for anything but a message."""
    try:
        return _decoder.decode(body)
    except (msgspec.MsgspecError, RecursionError) as e:
        raise ChannelBroken(str(e)) from e


class Channel:
    """One end of a channel."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def from_socket(cls, sock: socket.socket) -> Channel:
        sock.setblocking(False)
        return cls(*await asyncio.open_unix_connection(sock=sock))

    @classmethod
    async def inherited(cls) -> Channel:
        """The channel to the supervisor. Raises ChannelBroken in a process that was not started by one."""
        fd = os.environ.get(CHANNEL_ENV)
        if fd is None:
            raise ChannelBroken(f"{CHANNEL_ENV} is not set: this process is started by `forebay serve`")
        try:
            sock = socket.socket(fileno=int(fd))
        except (ValueError, OSError) as e:
            raise ChannelBroken(f"{CHANNEL_ENV}={fd!r} is not an open socket of this process") from e
        return await cls.from_socket(sock)

    @classmethod
    async def connect(cls, path: str) -> Channel:
        """Raises OSError where nothing listens."""
        return cls(*await asyncio.open_unix_connection(path))

    async def send(self, message: Message) -> None:
        """Raises ConnectionError where the other side is known to be gone, ChannelBroken as `pack`."""
        self._writer.write(pack(message))
        await self._writer.drain()

    async def receive(self) -> Message | None:
        """The next message; None where the other side is gone, in the middle of a message or between two."""
        try:
            size = int.from_bytes(await self._reader.readexactly(4), "big")
            _check_size(size)
            body = await self._reader.readexactly(size)
        except (asyncio.IncompleteReadError, ConnectionError):
            return None
        return unpack(body)

    async def ask(self, message: Message) -> Message:
        """Send and wait for the answer. Raises ChannelBroken where the other side leaves first."""
        try:
            await self.send(message)
        except ConnectionError as e:
            raise ChannelBroken("the other side closed the channel") from e
        answer = await self.receive()
        if answer is None:
            raise ChannelBroken("the other side closed the channel")
        return answer

    async def close(self) -> None:
        self._writer.close()
        try:
            await self._writer.wait_closed()
        except ConnectionError:
            return

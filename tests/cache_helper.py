"""A helper process as the supervisor starts it, and one who talks to it over its socket."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from forebay.cache import answers
from forebay.cache.messages import Answered, Drop, Failed, Find, Found, Look, Said, Seen, Store, cache_socket
from forebay.config.models import Config
from forebay.state.channel import CHANNEL_ENV, pack, unpack
from forebay.state.messages import Ready, Reload, Start
from waiting import eventually

T = TypeVar("T")
ACME = "acme/chat"


class HelperProcess:
    """State: the process and our end of its channel."""

    def __init__(self, state_dir: Path, *, env: dict[str, str] | None = None, **cache: Any) -> None:
        self.state_dir = state_dir
        state_dir.joinpath("run").mkdir(mode=0o700, parents=True, exist_ok=True)
        self.ours, theirs = socket.socketpair()
        self.ours.settimeout(30)
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "forebay.helper.main"],
                env={**os.environ, **(env or {}), CHANNEL_ENV: str(theirs.fileno())},
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
            )
        self.log = b""
        self.ours.sendall(pack(Start(config_of(state_dir, **cache), 0, "boot")))

    def wait_ready(self) -> None:
        size = int.from_bytes(self._exactly(4), "big")
        assert isinstance(unpack(self._exactly(size)), Ready)

    def _exactly(self, count: int) -> bytes:
        found = b""
        while len(found) < count:
            piece = b""
            with contextlib.suppress(ConnectionResetError):
                piece = self.ours.recv(count - len(found))
            if not piece:
                raise AssertionError(f"the helper has gone: {self.process.communicate()[1].decode()}")
            found += piece
        return found

    def reload(self, **cache: Any) -> None:
        self.ours.sendall(pack(Reload(config_of(self.state_dir, **cache))))

    def stop(self) -> str:
        """By SIGTERM; its log."""
        self.process.send_signal(signal.SIGTERM)
        return self.left()

    def left(self) -> str:
        """When it has gone with exit code 0; its log."""
        log = self.process.communicate(timeout=30)[1].decode()
        self.ours.close()
        assert self.process.returncode == 0, log
        return log

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(5)
            self.process.kill()
            print(self.process.communicate()[1].decode())  # pytest shows it where the test failed
        self.ours.close()


@contextlib.contextmanager
def helper(state_dir: Path, *, env: dict[str, str] | None = None, **cache: Any) -> Iterator[HelperProcess]:
    started = HelperProcess(state_dir, env=env, **cache)
    try:
        started.wait_ready()
        yield started
    finally:
        started.close()


def config_of(state_dir: Path, **cache: Any) -> str:
    given = {name: cache.pop(name) for name in ("database", "listeners") if name in cache}
    section = {"enabled": True, "semantic": {"enabled": True, "budget": 5.0, "sample": 1e-9}, **cache}
    config = {
        "state_dir": str(state_dir),
        **given,
        "engines": [{"name": "e", "url": "http://127.0.0.1:1"}],
        "cache": section,
    }
    return Config.model_validate(config).model_dump_json(by_alias=True)


class Peer:
    """A worker, or the admin process, as far as the helper can tell. State: what was said that nobody asked for."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._n = 0
        self.drops: list[Drop] = []

    def say(self, message: Said) -> None:
        body = msgspec.msgpack.encode(message)
        self._writer.write(len(body).to_bytes(4, "big") + body)

    async def heard(self) -> Answered:
        async with asyncio.timeout(20):
            size = int.from_bytes(await self._reader.readexactly(4), "big")
            return msgspec.msgpack.decode(await self._reader.readexactly(size), type=Answered)

    async def ask(self, message: Any, kind: type[T]) -> T:
        self._n += 1
        message.n = self._n
        self.say(message)
        while True:
            match await self.heard():
                case Drop() as drop:
                    self.drops.append(drop)
                case answer:
                    assert answer.n == self._n
                    assert isinstance(answer, kind), answer
                    return answer

    async def dropped(self) -> Drop:
        if not self.drops:
            drop = await self.heard()
            assert isinstance(drop, Drop)
            self.drops.append(drop)
        return self.drops.pop(0)

    async def find(self, question: str, *, partition: str = ACME, exact: bytes = b"?" * 16, **more: Any) -> Found:
        budget = more.pop("budget", 5.0)
        return await self.ask(Find(0, exact, scope_of(partition, **more), question, partition, budget), Found)

    async def keep(self, question: str, answer: str, *, partition: str = ACME, ticket: int = 0, **about: Any) -> str:
        """Store, and wait until it was done (the helper does such things in order). The entry."""
        entry, message = stored(question, answer, partition=partition, ticket=ticket, **about)
        self.say(message)
        await self.look("stats")
        return entry

    async def look(self, what: str, **more: Any) -> Any:
        return msgspec.json.decode((await self.ask(Look(0, what, **more), Seen)).json)

    async def until(self, seen: Callable[[Any], bool]) -> Any:
        """Its statistics, once they are so."""
        for _ in range(1_000):
            if seen(stats := await self.look("stats")):
                return stats
            await asyncio.sleep(0.02)
        raise AssertionError(f"never: {stats}")

    async def refused(self, message: Any) -> str:
        return (await self.ask(message, Failed)).why


def scope_of(partition: str, system: str = "") -> bytes:
    return msgspec.msgpack.encode((partition, system)).ljust(16, b"\0")[:16]


def stored(
    question: str,
    answer: str,
    *,
    partition: str = ACME,
    ticket: int = 0,
    exact: bytes = b"",
    entry: str = "",
    created: float | None = None,
    ttl: float = 3600.0,
    **about: Any,
) -> tuple[str, Store]:
    import time

    body = msgspec.json.encode(
        {
            "id": "chatcmpl-1",
            "object": "chat.completion",
            "model": "chat",
            "choices": [{"index": 0, "message": {"role": "assistant", "content": answer}, "finish_reason": "stop"}],
        }
    )
    entry = entry or os.urandom(8).hex()
    known = answers.About(
        id=entry,
        created=time.time() if created is None else created,
        ttl=ttl,
        model="chat",
        partition=partition,
        question=question,
        **about,
    )
    whole = answers.from_unary(body, known)
    assert isinstance(whole, answers.Answer)
    message = Store(exact or os.urandom(16), scope_of(partition), question, partition, answers.encode(whole), ticket)
    return entry, message


@contextlib.asynccontextmanager
async def peer(state_dir: Path) -> AsyncIterator[Peer]:
    await asyncio.to_thread(eventually, cache_socket(state_dir).exists)
    reader, writer = await asyncio.open_unix_connection(str(cache_socket(state_dir)))
    try:
        yield Peer(reader, writer)
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()

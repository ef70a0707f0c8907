"""The supervisor: binds the sockets, starts admin and worker processes, restarts what crashes, passes signals on.

It is the only reader of the configuration file. Its children get the checked configuration over an inherited socket
and notice its end by that socket's. SIGHUP reads the file again; SIGTERM and SIGINT drain; a second one kills.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import secrets
import signal
import socket
import stat
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec

from forebay.cache.messages import cache_socket
from forebay.cli.children import GIVE_UP, Child, Plan, python
from forebay.cli.enginefile import EVERY, EngineFile
from forebay.cli.notify import notify
from forebay.config.models import Address, Config
from forebay.config.problems import ConfigError
from forebay.gateway import logs
from forebay.ledger.pricebuild import build_book
from forebay.state.messages import (
    Drain,
    Draining,
    HelperState,
    Reload,
    Start,
    admin_socket,
    run_dir,
    worker_socket,
)
from forebay.wire.tasks import unless

log = logging.getLogger("forebay.supervisor")

EX_OK, EX_FAILED, EX_UNAVAILABLE, EX_OSERR = 0, 1, 69, 71
KILL_AFTER = 3.0
"""Seconds past the drain's deadline before what is left is killed."""
ADMIN_LEAVES = 10.0
"""Seconds for the admin process: to answer what it is asked (2), to book what workers wrote last (2.5), and to end, all
of it on a host that may be busy."""
CACHE_LEAVES = 10.0
"""Seconds for the cache's helper to keep what waits and to save its index."""

MAX_SOCKET_PATH = 107
"""Bytes of a Unix socket's path (unix(7))."""


class CannotStart(Exception):
    """With the exit code for it."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


def bind(address: Address) -> socket.socket:
    """A bound, listening socket. Raises CannotStart."""
    try:
        if address.unix:
            return _bind_unix(Path(address.unix))
        infos = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, proto, _, where = infos[0]
        sock = socket.socket(family, kind, proto)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(where)
        sock.listen(4096)
    except OSError as e:
        raise CannotStart(EX_OSERR, f"cannot listen on {address}: {e.strerror or e}") from None
    return sock


def _bind_unix(path: Path) -> socket.socket:
    """A socket file left by a process that is gone is replaced; one that answers is not."""
    with contextlib.suppress(FileNotFoundError):
        if stat.S_ISSOCK(path.stat().st_mode):
            with socket.socket(socket.AF_UNIX) as probe:
                if probe.connect_ex(str(path)) == 0:
                    raise OSError(0, "another process listens there")
            path.unlink()
    sock = socket.socket(socket.AF_UNIX)
    sock.bind(str(path))
    sock.listen(4096)
    return sock


def prepare_state_dir(path: Path) -> int:
    """Make it, private; returns the descriptor of the lock that only one supervisor holds. Raises CannotStart."""
    longest = max(len(os.fsencode(p)) for p in (worker_socket(path, 0), admin_socket(path), cache_socket(path)))
    if longest > MAX_SOCKET_PATH:
        raise CannotStart(
            EX_OSERR, f"state_dir {path} is too long by {longest - MAX_SOCKET_PATH} bytes for the sockets in it"
        )
    make_state_dir(path)
    return lock_file(path, "lock", f"another Forebay runs with state_dir {path}; give this one another by --state-dir")


def make_state_dir(path: Path) -> None:
    """Raises CannotStart where it is not, or cannot be, this user's alone."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        found = path.stat()
        if found.st_uid != os.geteuid() or found.st_mode & stat.S_ISVTX:
            raise CannotStart(EX_OSERR, f"state_dir {path} must be a folder of this user's alone")
        path.chmod(0o700)
        run_dir(path).mkdir(mode=0o700, exist_ok=True)
    except OSError as e:
        raise CannotStart(EX_OSERR, f"state_dir {path} cannot be used: {e.strerror or e}") from None


def lock_file(state_dir: Path, name: str, taken: str) -> int:
    """The descriptor of a lock in the state directory that only one process holds. Raises CannotStart, saying `taken`
    where another has it."""
    try:
        lock = os.open(run_dir(state_dir) / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as e:
        raise CannotStart(EX_OSERR, f"state_dir {state_dir} cannot be used: {e.strerror or e}") from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        raise CannotStart(EX_UNAVAILABLE, taken) from None
    return lock


class Supervisor:
    """`reread` reads the configuration file again, None where there is none; `engine` plans a built-in engine."""

    def __init__(self, config: Config, reread: Callable[[], Config] | None, engine: Plan | None, lock: int) -> None:
        self._config = config
        self._list = EngineFile(os.environ)
        self._list.read(config)
        self._prices = _prices(config)
        self._reread = reread
        self._boot = secrets.token_hex(8)
        self._lock = lock
        self._files = [
            worker_socket(config.state_dir, 0),
            admin_socket(config.state_dir),
            cache_socket(config.state_dir),
        ]
        try:
            self.listeners = [self._bind(x.address) for x in config.listeners]
            self.admin_listener = self._bind(config.admin)
        except CannotStart:
            self._clean_up()
            raise
        self._stop = asyncio.Event()
        self._kill = asyncio.Event()
        self._hup = asyncio.Event()
        worker_fds = tuple(s.fileno() for s in self.listeners)
        admin_fds = (self.admin_listener.fileno(),)
        self.admin = Child(
            Plan(
                "admin",
                lambda: python("forebay.admin.main"),
                admin_fds,
                lambda: self._start_admin(admin_fds),
                leave=ADMIN_LEAVES,
            )
        )
        self.workers = [
            Child(
                Plan(
                    "worker-0",
                    lambda: python("forebay.gateway.worker"),
                    worker_fds,
                    lambda: self._start_message(0, worker_fds),
                    vital=True,
                )
            )
        ]
        self.engine = Child(engine) if engine is not None else None
        self.cache: Child | None = None
        """The cache's helper, where it is configured: nothing else waits for it."""
        self._counted = HelperState()
        """Of the cache's helpers that were before this one."""
        self._told = asyncio.Event()
        """There is something new to tell of it."""
        self._keep: Callable[[Child], None] = lambda child: None
        self.exit_code = EX_OK

    @property
    def children(self) -> list[Child]:
        return [*self.workers, self.admin, *(child for child in (self.engine, self.cache) if child is not None)]

    def _cache_helper(self) -> Child:
        child = Child(
            Plan(
                "cache",
                lambda: python("forebay.helper.main"),
                start=lambda: self._start_message(0, ()),
                leave=CACHE_LEAVES,
                watched=True,
            )
        )
        child.changed = self._told.set
        return child

    def _helper_state(self) -> HelperState:
        before, child = self._counted, self.cache
        if child is None:
            return before
        return HelperState(
            child.ready.is_set(), before.ended + child.ended, before.hung + child.hung, child.why or before.why
        )

    async def _tell_of_helper(self) -> None:
        while True:
            await self._told.wait()
            self._told.clear()
            await self.admin.send(self._helper_state())

    def _bind(self, address: Address) -> socket.socket:
        sock = bind(address)
        if address.unix:
            self._files.append(Path(address.unix))
        return sock

    def _start_message(self, index: int, fds: tuple[int, ...]) -> Start:
        config, listed, prices = self._whole()
        return Start(config, index, self._boot, listed, prices, fds)

    def _start_admin(self, fds: tuple[int, ...]) -> Start:
        return msgspec.structs.replace(self._start_message(0, fds), helper=self._helper_state())

    def _whole(self) -> tuple[str, int, str]:
        """The configuration with the watched file's engines, as JSON, how many those are, and the prices."""
        whole = self._list.merged(self._config)
        return whole.model_dump_json(by_alias=True), len(whole.engines) - len(self._config.engines), self._prices

    async def run(self, on_ready: Callable[[], None]) -> int:
        """Until a signal or a hopeless child; returns the exit code."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._terminate)
        loop.add_signal_handler(signal.SIGHUP, self._hup.set)
        try:
            async with asyncio.TaskGroup() as group:
                keepers = {group.create_task(child.keep()) for child in self.children}
                self._keep = lambda child: keepers.add(group.create_task(self._keep_cache(child)))
                await self._set_cache()
                helpers = [
                    group.create_task(self._announce(on_ready)),
                    group.create_task(self._reloads()),
                    group.create_task(self._follow_list()),
                    group.create_task(self._tell_of_helper()),
                    *(group.create_task(self._give_up_with(c)) for c in (*self.workers, self.admin)),
                ]
                await self._stop.wait()
                notify("STOPPING=1")
                for helper in helpers:
                    helper.cancel()
                await self._shut_down()
                for keeper in keepers:
                    keeper.cancel()
        finally:
            self._clean_up()
        return self.exit_code

    def _terminate(self) -> None:
        if self._stop.is_set() and not self._kill.is_set():
            log.warning("second signal: what still runs is killed")
            self.exit_code = EX_FAILED
            self._kill.set()
        self._stop.set()

    async def _announce(self, on_ready: Callable[[], None]) -> None:
        for child in (*self.workers, self.admin):
            await child.ready.wait()
        notify(f"READY=1\nMAINPID={os.getpid()}")
        on_ready()

    async def _give_up_with(self, child: Child) -> None:
        """The gateway cannot do without its own processes; without the built-in engine it can."""
        await child.hopeless.wait()
        log.error("%s failed %d times in a row before it was ready: giving up", child.plan.name, GIVE_UP)
        self.exit_code = EX_FAILED
        self._stop.set()

    # --- reload ------------------------------------------------------------------------------------------------------

    async def _reloads(self) -> None:
        while True:
            await self._hup.wait()
            self._hup.clear()
            await self._reload()
            await self._set_cache()

    async def _set_cache(self) -> None:
        """Start or end the cache's helper, as configured; one that was given up gets another try."""
        child = self.cache
        if child is not None and (child.hopeless.is_set() or not self._config.cache.helped):
            self._counted = msgspec.structs.replace(self._helper_state(), up=False)
            self.cache = None
            self._told.set()
            await self._end(child)
        if self.cache is None and self._config.cache.helped:
            self.cache = self._cache_helper()
            self._keep(self.cache)

    async def _keep_cache(self, child: Child) -> None:
        await child.keep()
        if child.hopeless.is_set():
            log.error("%s failed %d times in a row: requests go without it until a reload", child.plan.name, GIVE_UP)

    async def _end(self, child: Child) -> None:
        child.stop()
        child.signal(signal.SIGTERM)
        if not await child.wait(child.plan.leave):
            child.signal(signal.SIGKILL)
            await child.wait(KILL_AFTER)

    async def _reload(self) -> None:
        if self._reread is None:
            log.warning("SIGHUP: there is no configuration file to read again")
            return
        notify(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")
        try:
            # On this loop: the supervisor has nothing else to do, and one reload must not overtake another.
            config = self._reread()
            prices = _prices(config)
        except (ConfigError, ValueError) as e:
            for problem in e.problems if isinstance(e, ConfigError) else (e,):
                log.error("%s", problem)
            log.error("the new configuration cannot be used; the running one stays in force")
        else:
            fixed = [f for f in ("admin", "state_dir", "database") if getattr(config, f) != getattr(self._config, f)]
            if [x.address for x in config.listeners] != [x.address for x in self._config.listeners] or [
                x.tls is None for x in config.listeners
            ] != [x.tls is None for x in self._config.listeners]:
                fixed.append("listeners")
            if fixed:
                log.warning("%s: a change takes a restart; the rest is in force now", ", ".join(fixed))
                config = config.model_copy(update={f: getattr(self._config, f) for f in fixed})
            old, new = self._config.admission, config.admission
            kept = {
                f: getattr(old, f) for f in ("enabled", "record", "record_bytes") if getattr(old, f) != getattr(new, f)
            }
            if kept:
                named = ", ".join(f"admission.{f}" for f in kept)
                log.warning("%s: a change takes a restart; the rest is in force now", named)
                config = config.model_copy(update={"admission": new.model_copy(update=kept)})
            books = {
                f: getattr(self._config.ledger, f)
                for f in ("enabled", "currency")
                if getattr(self._config.ledger, f) != getattr(config.ledger, f)
            }
            if books:
                log.warning(
                    "%s: a change takes a restart; the rest is in force now", ", ".join(f"ledger.{f}" for f in books)
                )
                config = config.model_copy(update={"ledger": config.ledger.model_copy(update=books)})
            if _tokenizers(config) != _tokenizers(self._config):
                log.warning("models.NAME.tokenizer: a change takes a restart; the rest is in force now")
            self._config, self._prices = config, prices
            self._list.read(config)
            await self._spread()
            log.info("configuration reloaded")
            logs.configure(config.logging)
        notify("READY=1")

    async def _follow_list(self) -> None:
        while True:
            await asyncio.sleep(EVERY)
            if await self._list.changed(self._config):
                await self._spread()

    async def _spread(self) -> None:
        message = Reload(*self._whole())
        for child in (*self.workers, self.admin, *([self.cache] if self.cache is not None else [])):
            await child.send(message)

    # --- shutdown ----------------------------------------------------------------------------------------------------

    async def _shut_down(self) -> None:
        timeouts = self._config.timeouts
        for child in self.children:
            child.stop()
        await self.admin.send(Draining())
        await self._unless_killed(asyncio.sleep(timeouts.drain_delay))
        for worker in self.workers:
            await worker.send(Drain(timeouts.drain))
        for listener in self.listeners:
            listener.close()  # the last holder: from now on connections are refused
        limit = timeouts.drain + KILL_AFTER
        await self._unless_killed(*(w.wait(limit) for w in self.workers))
        others = [c for c in self.children if c not in self.workers]
        for child in others:
            child.signal(signal.SIGTERM)
        await self._unless_killed(*(c.wait(c.plan.leave) for c in others))
        for child in self.children:
            if not await child.wait(0.0):
                log.error("%s did not leave and is killed", child.plan.name)
                child.signal(signal.SIGKILL)
                await child.wait(KILL_AFTER)

    async def _unless_killed(self, *waits: Awaitable[object]) -> None:
        """All of `waits`, or the second signal."""
        await unless(self._kill, asyncio.gather(*waits))

    def _clean_up(self) -> None:
        """No socket file stays behind; the lock is the last thing to go."""
        for file in self._files:
            file.unlink(missing_ok=True)
        os.close(self._lock)


def _prices(config: Config) -> str:
    """A price book as JSON. Raises ConfigError for a price file that cannot be used."""
    if not config.ledger.enabled:
        return "{}"
    book, problems = build_book(config, time.time())
    for problem in problems:
        log.warning("%s", problem)
    return book.as_json().decode()


def _tokenizers(config: Config) -> dict[str, Path]:
    return {name: model.tokenizer for name, model in config.models.items() if model.tokenizer is not None}

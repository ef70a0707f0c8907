"""The admin process: `python -m forebay.admin.main`, started by the supervisor of `forebay serve`.

Theory of operation. One event loop; everything that may block (the database, files) is on `Threads`. The tasks are:
the channel to the supervisor, a link to each worker, the keys, the ledger's intake, the keeper of the sums, the alerts,
and two listeners (the admin port and `admin.sock`). End of file or SIGTERM sets `leave`, and all of them end; the
process then exits with 0.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
import socket
import sys
from collections.abc import Iterator
from operator import attrgetter
from pathlib import Path
from typing import Final

import uvloop
from pydantic import ValidationError

from forebay.admin.alertapi import alert_routes
from forebay.admin.alerting import Alerting
from forebay.admin.alerts import make_alerting, rules_of
from forebay.admin.cacheapi import cache_routes
from forebay.admin.elsewhere import Telling
from forebay.admin.engines import Engines
from forebay.admin.following import Following
from forebay.admin.ingest import Ingest
from forebay.admin.keyapi import private_app
from forebay.admin.keys import Keys
from forebay.admin.opened import Opened
from forebay.admin.prefixapi import prefix_routes
from forebay.admin.pricedengines import PricedEngines
from forebay.admin.public import public_app
from forebay.admin.serving import Server
from forebay.admin.usage import UsageReports, usage_endpoint, usage_routes
from forebay.admin.view import GatewayState, private_folder
from forebay.clock import Clock, SystemClock
from forebay.config.models import Config
from forebay.gateway import logs
from forebay.ledger.pricing import PriceBook
from forebay.state.channel import Channel, ChannelBroken
from forebay.state.messages import Draining, HelperState, Ready, Reload, Start, admin_socket, run_dir
from forebay.wire.tasks import unless

WORKERS: Final = 1
KEEP: Final = 5.0
"""Seconds between saves of the sums."""
LEAVE: Final = 2.5
"""Seconds from the last answer until what hangs is left behind. The supervisor gives all of it `ADMIN_LEAVES`."""

_log = logging.getLogger("forebay.admin")


class CannotStart(Exception):
    """The message says why."""


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the supervisor decides
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        uvloop.run(_run())
    except (ChannelBroken, CannotStart) as e:
        sys.exit(f"forebay admin process: {e}")
    gc.freeze()  # else the interpreter looks through all there is on its way out: 0.3 s of CPU, seconds on a busy host


async def _run() -> None:
    leave = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, leave.set)
    channel = await Channel.inherited()
    try:
        start = await _first(channel, leave)
        if start is not None:
            await _serve(channel, start, leave)
    finally:
        await channel.close()


async def _serve(channel: Channel, start: Start, leave: asyncio.Event) -> None:
    config = _config(start.config)
    writer = logs.start(config.logging, "admin")
    for chatty in ("uvicorn", "alembic", "sqlalchemy"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    try:
        await _run_all(config, channel, start, leave)
    finally:
        await asyncio.to_thread(writer.close)


async def _run_all(config: Config, channel: Channel, start: Start, leave: asyncio.Event) -> None:
    if len(start.fds) != 1:
        raise CannotStart(f"one listening socket is needed, not {len(start.fds)}")
    private_folder(run_dir(config.state_dir))
    unix = _listen_unix(admin_socket(config.state_dir))
    state = GatewayState(config, start.boot, WORKERS)
    state.helper = start.helper or state.helper
    clock = SystemClock()
    keys = Keys(config.database, config.state_dir, state.workers, clock)
    usage = UsageReports(state, clock)
    alerting = make_alerting(state, keys, clock)
    ledger = config.ledger
    live = Engines(state)
    priced = PricedEngines(state, live, start.prices)
    if ledger.enabled:
        state.ledger = Ingest(
            config.database,
            config.state_dir,
            ledger.currency,
            WORKERS,
            clock,
            lambda: keys.status,
            engines=priced,
        )
    public = Server(public_app(state, keys, usage_endpoint(usage)), socket.socket(fileno=start.fds[0]))
    more = (
        alert_routes(alerting),
        usage_routes(usage),
        cache_routes(state, keys),
        prefix_routes(state.workers),
    )
    servers = (public, Server(private_app(state, keys, live, *more), unix))
    async with asyncio.TaskGroup() as group:
        background = [
            *state.workers.start(group),
            group.create_task(keys.run(), name="keys"),
            *(_ledger_tasks(group, state, state.ledger, clock) if state.ledger is not None else ()),
            group.create_task(_keep(state), name="sums"),
            group.create_task(alerting.run(), name="alerts"),
            group.create_task(_follow(channel, state, alerting, priced, leave), name="channel"),
        ]
        listeners = [group.create_task(server.run_until_stopped()) for server in servers]
        for server in servers:
            await server.ready.wait()
        gc.set_threshold(50_000, 20, 20)  # rows on their way to the database are no garbage: looking takes an eighth
        with contextlib.suppress(ConnectionError):  # `_follow` sees the end of file too, and leaves
            await channel.send(Ready(os.getpid()))
        await leave.wait()
        for server in servers:
            server.stop()
        await asyncio.wait(listeners)
        for task in background:
            task.cancel()
    try:
        async with asyncio.timeout(LEAVE):
            await alerting.close()
            await state.save()
            await usage.close()
            if state.ledger is not None:
                await state.ledger.close()
            await keys.close()
    except TimeoutError:
        _log.warning("a disk or the database does not answer within %g s: what hangs is left behind", LEAVE)
    admin_socket(config.state_dir).unlink(missing_ok=True)


def _ledger_tasks(
    group: asyncio.TaskGroup, state: GatewayState, ingest: Ingest, clock: Clock
) -> Iterator[asyncio.Task[None]]:
    yield group.create_task(ingest.run(), name="ledger")
    config = state.config
    for link in state.workers.links:
        following = Following(link.index, link.path, ingest, lambda: state.config.ledger.durability)
        yield group.create_task(following.run(), name=f"journal-{link.index}")
        telling = Telling(link.index, link.path, ingest, Opened(config.database, config.state_dir), clock)
        yield group.create_task(telling.run(), name=f"budgets-{link.index}")


async def _first(channel: Channel, leave: asyncio.Event) -> Start | None:
    """The start message; None where it is time to leave instead."""
    message = await unless(leave, channel.receive())
    if message is None:
        return None
    if not isinstance(message, Start):
        raise ChannelBroken(f"the first message was {type(message).__name__}, not Start")
    return message


async def _follow(
    channel: Channel, state: GatewayState, alerting: Alerting, priced: PricedEngines, leave: asyncio.Event
) -> None:
    """The supervisor's messages until it has gone."""
    try:
        while (message := await channel.receive()) is not None:
            match message:
                case Draining():
                    state.draining = True
                case HelperState():
                    state.helper = message
                case Reload(config, _, prices):
                    _reload(state, alerting, priced, config, prices)
                case other:
                    _log.warning("the supervisor sent %s, which is not for this process", type(other).__name__)
    except ChannelBroken as e:
        _log.error("the channel to the supervisor is broken: %s", e)
    finally:
        leave.set()


def _reload(state: GatewayState, alerting: Alerting, priced: PricedEngines, text: str, prices: str) -> None:
    try:
        config = _config(text)
    except CannotStart as e:
        _log.error("reload: %s; the running configuration stays in force", e)
        return
    for field in ("admin", "state_dir", "database", "ledger.enabled", "ledger.currency"):
        value = attrgetter(field)
        if value(config) != value(state.config):
            _log.warning("reload: a change of %s needs a restart of `forebay serve`", field)
    logs.configure(config.logging)
    state.config = config
    priced.prices = PriceBook.from_json(prices)
    alerting.configure(rules_of(config))


async def _keep(state: GatewayState) -> None:
    while True:
        await asyncio.sleep(KEEP)
        await state.save()


def _config(text: str) -> Config:
    try:
        return Config.model_validate_json(text)
    except ValidationError as e:
        # Without the input: it holds secrets.
        wrong = [
            (".".join(map(str, x["loc"])), x["msg"].removeprefix("Value error, "))
            for x in e.errors(include_input=False, include_context=False)
        ]
        raise CannotStart(f"the configuration from the supervisor is not valid: {wrong}") from None


def _listen_unix(path: Path) -> socket.socket:
    """A listening socket of mode 0600; a socket that a dead process left is replaced."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        try:
            sock.connect(str(path))
        except (FileNotFoundError, ConnectionRefusedError):
            pass
        else:
            raise CannotStart(f"{path} is served already: another `forebay serve` uses this state_dir")
        sock.close()
        path.unlink(missing_ok=True)
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.bind(str(path))  # in a folder of mode 0700, so nobody gets in between here and chmod
        path.chmod(0o600)
        sock.listen(128)
    except OSError as e:
        sock.close()
        raise CannotStart(f"{path} cannot be listened on: {e}; choose a shorter or another state_dir") from e
    return sock


if __name__ == "__main__":
    main()

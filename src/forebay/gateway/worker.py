"""A worker process: the data plane on one event loop. Started by the supervisor, never by hand.

It takes its configuration and its listening sockets from the supervisor, its keys from the admin process (or, until
that answers, from the snapshot it left on disk), and never touches the database.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import secrets
import signal
import socket
import ssl
import sys
import time

import msgspec
import uvloop
from pydantic import ValidationError

from forebay import errors
from forebay.config.models import Config, ServerTLS
from forebay.gateway import logs
from forebay.gateway.admitting import Admitting, rules_of
from forebay.gateway.app import Gateway
from forebay.gateway.caching import Caching
from forebay.gateway.callers import Callers
from forebay.gateway.control import Control
from forebay.gateway.exact import ExactCounts
from forebay.gateway.fleet import Fleet
from forebay.gateway.holding import Holding
from forebay.gateway.kv_events import KvFeeds, ToPolicy
from forebay.gateway.open_books import open_books
from forebay.gateway.prefix_watch import PromptWatch
from forebay.gateway.recorder import Recorder, recorded
from forebay.gateway.telemetry import Telemetry
from forebay.gateway.usage_answer import UsageAnswers
from forebay.ledger.pricing import PriceBook
from forebay.policy.placement import RoundRobin
from forebay.state.channel import Channel, ChannelBroken
from forebay.state.live import at_start
from forebay.state.messages import (
    Drain,
    Ready,
    Reload,
    SetKeys,
    Start,
    admin_socket,
    keys_snapshot,
    limits_snapshot,
    worker_socket,
)
from forebay.wire.server import Server
from forebay.wire.tasks import Tasks
from forebay.wire.ticker import Ticker

log = logging.getLogger("forebay.worker")

FIRST_LOOK = 0.5
"""Seconds that connections may wait in the backlog for the first look at the engines."""
KNOWN = 2.0
"""Seconds for the books to say what was used of budgets, where an earlier life did not leave it."""
GOODBYE = 1.0
"""Seconds for last words to be flushed after the deadline."""


class Worker:
    def __init__(self, start: Start, channel: Channel) -> None:
        self._start = start
        self._channel = channel
        self._config = Config.model_validate_json(start.config)
        self._tls: list[tuple[ssl.SSLContext, ServerTLS]] = []
        self._stop: asyncio.Future[float] = asyncio.get_running_loop().create_future()

    async def run(self) -> None:
        config, loop = self._config, asyncio.get_running_loop()
        writer = logs.start(config.logging, f"worker-{self._start.index}")
        request_log = logs.RequestLog(writer, config.logging)
        tasks, ticker = Tasks(), Ticker(loop)
        ticker.start()
        fleet = Fleet(tasks, ticker, time.monotonic)
        callers = Callers(config.callers, config.listeners)
        self._load_keys(callers)
        gateway = Gateway(config, fleet, callers, RoundRobin(), Telemetry(config.metrics), request_log, ticker)
        server = Server(gateway, config.limits, config.timeouts, ticker)
        control = Control(gateway, server, writer, secrets.token_hex(8), self._start.index)
        recorder: Recorder | None = None
        admission, placing = config.admission, config.placement
        policy = None
        if admission.enabled:
            rules = rules_of(admission, placing)
            policy, recorder = recorded(admission.record, admission.record_bytes, rules, loop)
        admitting = fleet.watcher = gateway.admitting = Admitting(
            admission, loop, policy, placing, fleet.eased, gateway.tokens
        )
        tokens = gateway.tokens
        tokenizers = {name: model.tokenizer for name, model in config.models.items() if model.tokenizer}
        tokens.exact = ExactCounts.load(tokenizers, loop, tokens.learn)
        gateway.watching = PromptWatch.reloaded(None, config.cache.prefix, gateway)
        admitting.feeds = fleet.feeds = KvFeeds(ToPolicy(admitting.policy, time.monotonic), tasks, time.monotonic)
        if config.ledger.enabled:
            prices = PriceBook.from_json(self._start.prices)
            gateway.booking = open_books(config, prices, self._start.index, loop)
            gateway.holding = Holding(gateway, config)
            gateway.holding.carry(limits_snapshot(config.state_dir, self._start.index))
            gateway.usage = UsageAnswers(admin_socket(config.state_dir), tasks, time.monotonic)
            ticker.add(gateway.note_progress)
        gateway.caching = Caching(gateway, config, loop)
        engines, draining, wrong = at_start(config.state_dir, os.environ)
        for problem in wrong:
            log.error("%s", problem)
        fleet.configure(config, self._start.listed)
        fleet.set_live(engines, draining)
        await control.listen(worker_socket(config.state_dir, self._start.index))
        deadline = loop.time() + KNOWN
        await fleet.first_look(FIRST_LOOK)
        if gateway.booking is not None and gateway.holding is not None:
            shared = config.database and not config.database.startswith("sqlite")
            if gateway.booking.lived or shared:
                await gateway.holding.hear(max(0.0, deadline - loop.time()))
        for fd, listener in zip(self._start.fds, config.listeners, strict=True):
            await server.listen(socket.socket(fileno=fd), self._context(listener.tls))
        loop.add_signal_handler(signal.SIGTERM, self._stop_in, config.timeouts.drain)
        loop.add_signal_handler(signal.SIGINT, lambda: None)
        loop.add_signal_handler(signal.SIGHUP, lambda: None)
        gc.collect()
        gc.freeze()
        gc.set_threshold(50_000, 20, 20)
        await self._channel.send(Ready(os.getpid()))
        listening = tasks.spawn(self._listen(gateway, server))
        deadline = await self._stop
        log.info("draining: %d requests live, deadline in %g s", len(gateway.live), deadline)
        server.start_drain()
        if not await server.wait_closed(deadline):
            log.warning("drain deadline: ending %d requests", len(gateway.live))
            gateway.cut_all(errors.drained)
            await server.wait_closed(GOODBYE)
        listening.cancel()
        await server.close()
        await gateway.close()
        if gateway.holding is not None:
            gateway.holding.keep(limits_snapshot(self._config.state_dir, self._start.index))
        if gateway.booking is not None:
            await gateway.booking.close()
        await control.close()
        fleet.close()
        if fleet.feeds is not None:
            await fleet.feeds.close()
        if gateway.admitting is not None:
            gateway.admitting.close()
        if recorder is not None:
            recorder.close()
        await tasks.drain()
        ticker.stop()
        request_log.flush()
        log.info("drained")
        writer.close()

    async def _listen(self, gateway: Gateway, server: Server) -> None:
        """Follow the supervisor until it says drain, or is gone."""
        try:
            while (message := await self._channel.receive()) is not None:
                match message:
                    case Reload(text, listed, prices):
                        try:
                            self._reload(text, listed, prices, gateway, server)
                        except Exception as e:  # the next one, and the drain, are to be heard all the same
                            log.error("the new configuration is in force in part only", exc_info=e)
                    case Drain(deadline):
                        self._stop_in(deadline)
                    case _:
                        raise ChannelBroken(f"a worker does not take {type(message).__name__}")
        except ChannelBroken as e:
            log.error("the supervisor's channel broke: %s", e)
        self._stop_in(self._config.timeouts.drain)

    def _reload(self, text: str, listed: int, prices: str, gateway: Gateway, server: Server) -> None:
        try:
            config = Config.model_validate_json(text)
        except ValidationError as e:
            wrong = e.errors(include_input=False, include_context=False)  # the input holds secrets
            log.error("the new configuration cannot be read: %s", [(x["loc"], x["msg"]) for x in wrong])
            return
        logs.configure(config.logging)
        gateway.configure(config, listed, PriceBook.from_json(prices))
        server.configure(config.limits, config.timeouts)
        self._renew_certificates(config)
        self._config = config

    def _stop_in(self, deadline: float) -> None:
        if not self._stop.done():
            self._stop.set_result(deadline)

    def _load_keys(self, callers: Callers) -> None:
        path = keys_snapshot(self._config.state_dir)
        try:
            found = msgspec.json.decode(path.read_bytes(), type=SetKeys)
        except FileNotFoundError:
            return
        except (OSError, msgspec.MsgspecError) as e:
            log.warning("the key snapshot %s cannot be read: %s", path, e)
            return
        callers.take(found)

    def _context(self, tls: ServerTLS | None) -> ssl.SSLContext | None:
        if tls is None:
            return None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_3 if tls.min_version == "1.3" else ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        _load(context, tls)
        self._tls.append((context, tls))
        return context

    def _renew_certificates(self, config: Config) -> None:
        """Certificates are read again at every reload: that is how they are renewed."""
        wanted = [x.tls for x in config.listeners if x.tls is not None]
        for i, (context, _) in enumerate(self._tls):
            if i < len(wanted):
                try:
                    _load(context, wanted[i])
                except OSError as e:
                    log.error("certificate %s stays as it was: %s", wanted[i].cert, e)


def _load(context: ssl.SSLContext, tls: ServerTLS) -> None:
    context.load_cert_chain(tls.cert, tls.key, tls.key_password)
    if tls.client_ca is not None:
        context.load_verify_locations(cafile=tls.client_ca)
        context.verify_mode = ssl.CERT_REQUIRED


async def _main() -> int:
    try:
        channel = await Channel.inherited()
        start = await channel.receive()
    except ChannelBroken as e:
        sys.stderr.write(f"forebay worker: {e}\n")
        return 2
    if not isinstance(start, Start):
        return 2
    await Worker(start, channel).run()
    await channel.close()
    return 0


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.exit(uvloop.run(_main()))


if __name__ == "__main__":
    main()

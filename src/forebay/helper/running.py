"""The helper process from its first message to its end: what the supervisor says, and the answer that it lives."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from typing import Final

import uvloop
from pydantic import ValidationError

from forebay.clock import SystemClock
from forebay.config.models import Config
from forebay.gateway import logs
from forebay.helper.peers import CannotListen
from forebay.helper.process import Helper
from forebay.state.channel import Channel, ChannelBroken
from forebay.state.messages import Ping, Pong, Ready, Reload, Start
from forebay.wire.tasks import unless

log = logging.getLogger("forebay.cache")

SWITCH: Final = 0.0005
"""Seconds that one thread computes while another one wants to: a look-up beside a chore (the default is 5 ms)."""


def run() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the supervisor decides
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    sys.setswitchinterval(SWITCH)
    try:
        uvloop.run(_run())
    except (ChannelBroken, CannotListen, ValidationError) as e:
        sys.exit(f"forebay cache helper: {_plain(e)}")


def _plain(error: Exception) -> str:
    if isinstance(error, ValidationError):  # its text holds the input, and that holds secrets
        return str([(x["loc"], x["msg"]) for x in error.errors(include_input=False, include_context=False)])
    return str(error)


async def _run() -> None:
    leave = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, leave.set)
    channel = await Channel.inherited()
    try:
        start = await unless(leave, channel.receive())
        if start is None:
            return
        if not isinstance(start, Start):
            raise ChannelBroken(f"the first message was {type(start).__name__}, not Start")
        config = Config.model_validate_json(start.config)
        writer = logs.start(config.logging, "cache")
        logging.getLogger("faiss").setLevel(logging.WARNING)
        try:
            await _serve(config, channel, leave)
        finally:
            await asyncio.to_thread(writer.close)
    finally:
        await channel.close()


async def _serve(config: Config, channel: Channel, leave: asyncio.Event) -> None:
    helper = Helper(config, SystemClock())
    await helper.start()
    following = asyncio.ensure_future(_follow(channel, helper, leave))
    try:
        await unless(leave, helper.opened.wait())
        if not leave.is_set():
            helper.clean_up()
            await channel.send(Ready(os.getpid()))
        await leave.wait()
    except ConnectionError:
        pass  # the supervisor is gone
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        await helper.close()


async def _follow(channel: Channel, helper: Helper, leave: asyncio.Event) -> None:
    """The supervisor's messages until it has gone."""
    try:
        while (message := await channel.receive()) is not None:
            match message:
                case Reload(text):
                    try:
                        config = Config.model_validate_json(text)
                    except ValidationError as e:
                        log.error("reload: %s; the running configuration stays in force", _plain(e))
                        continue
                    logs.configure(config.logging)
                    helper.reload(config)
                case Ping(n):
                    await channel.send(Pong(n, helper.hangs()))
                case other:
                    log.warning("the supervisor sent %s, which is not for this process", type(other).__name__)
    except ChannelBroken as e:
        log.error("the channel to the supervisor is broken: %s", e)
    except ConnectionError:
        pass  # the supervisor is gone
    finally:
        leave.set()

"""A reload that goes wrong: the worker goes on hearing its supervisor."""

from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace
from typing import Any

import pytest

from forebay.gateway.worker import Worker
from forebay.state.messages import Drain, Reload


class Said:
    def __init__(self, *messages: Any) -> None:
        self._messages = list(messages)

    async def receive(self) -> Any:
        return self._messages.pop(0)


class Broken:
    """A gateway that cannot be configured."""

    def configure(self, *_: Any) -> None:
        raise KeyError("a fault")


def test_a_reload_that_fails_is_said_and_the_drain_is_heard(caplog: pytest.LogCaptureFixture) -> None:
    async def listen() -> float:
        worker: Any = object.__new__(Worker)
        worker._channel = Said(Reload('{"state_dir": "state"}'), Drain(7.0), None)
        worker._stop = asyncio.get_running_loop().create_future()
        worker._config = SimpleNamespace(timeouts=SimpleNamespace(drain=30.0))
        await worker._listen(Broken(), None)
        return float(await worker._stop)

    with caplog.at_level(logging.ERROR, "forebay.worker"):
        assert asyncio.run(listen()) == 7.0
    assert "in force in part only" in caplog.text

"""Where what the helper process says cannot be handled, those who wait for it are told so."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest
from tests.pure import pure

from forebay.cache.messages import Found, Kind
from forebay.errors import Refusal

Caching = pure("forebay.gateway.flights", "forebay.gateway.caching").Caching


class Waiting:
    def __init__(self, *, started: bool) -> None:
        self.request_id = b"r-1"
        self.reply = SimpleNamespace(started=started)
        self.told: list[tuple[str, str]] = []

    def refuse(self, refusal: Refusal) -> None:
        self.told.append(("refuse", refusal.code))

    def cut(self, refusal: Refusal) -> None:
        self.told.append(("cut", refusal.code))


def test_a_fault_answers_everybody_who_waits(caplog: pytest.LogCaptureFixture) -> None:
    caching: Any = Caching.__new__(Caching)
    caching.telemetry = SimpleNamespace()  # has none of its counters
    waiting = [Waiting(started=False), Waiting(started=True)]
    flight = SimpleNamespace(sharing=waiting)
    with caplog.at_level(logging.ERROR, "forebay.worker"):
        caching._found(flight, SimpleNamespace(), Found(n=1, kind=Kind.MISS), "")
    assert [x.told for x in waiting] == [[("refuse", "internal_error")], [("cut", "internal_error")]]
    assert "could not be handled" in caplog.text

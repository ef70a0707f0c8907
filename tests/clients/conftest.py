"""One gateway for every SDK suite of a worker: an engine that obeys `x-forebay-fault`, and one that is never there."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from ports import free_port
from stack import Engine, Forebay, stack


@dataclass(frozen=True)
class House:
    forebay: Forebay
    engine: Engine

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.forebay.port}/v1"


@pytest.fixture(scope="session")
def house() -> Iterator[House]:
    dead_port = free_port()
    config = {
        "limits": {"body_bytes": 200_000},
        "timeouts": {"first_byte": 5.0},
        "models": {"forebay-sim": {"aliases": ["the-alias"]}},
    }
    with stack("--decode-rate", "500", **config) as (forebay, engine):
        full = json.loads(forebay.file.read_text())
        full["engines"].append({"name": "dead", "url": f"http://127.0.0.1:{dead_port}", "models": ["gone"]})
        forebay.hup(full)
        yield House(forebay, engine)


@pytest.fixture
def gateway(house: House) -> Iterator[House]:
    """With an engine that has no faults, before and after."""
    yield house
    house.engine.faults()

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from engine_process import EngineProcess

Start = Callable[..., EngineProcess]


@pytest.fixture
def start_engine() -> Iterator[Start]:
    """Start an engine with these options; it must end cleanly when the test does."""
    started: list[EngineProcess] = []

    def start(*options: str) -> EngineProcess:
        engine = EngineProcess(list(options))
        engine.start()
        started.append(engine)
        return engine

    yield start
    assert [engine.stop() for engine in started] == [0] * len(started)


@pytest.fixture(scope="session")
def shared_engine() -> Iterator[EngineProcess]:
    """One fast engine for tests that do not disturb each other; it obeys fault headers."""
    engine = EngineProcess(
        ["--model", "tiny", "--max-model-len", "2048", "--decode-rate", "500", "--allow-fault-header"]
    )
    engine.start()
    yield engine
    assert engine.stop() == 0


@pytest.fixture(scope="session")
def samples() -> Path:
    """Answers of vLLM 0.32.0, recorded."""
    return Path(__file__).parent / "samples"

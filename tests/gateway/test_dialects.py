"""Which engines have a dialect at all."""

from __future__ import annotations

import pytest

from forebay.config.engine import Engine, EngineKind
from forebay.engines.registry import adapter
from forebay.gateway.dialects import dialect_of

SPOKEN = {EngineKind.SGLANG: "<Fields rid>", EngineKind.LLAMACPP: "<Fields fold>", EngineKind.ANTHROPIC: "<Anthropic>"}


@pytest.mark.parametrize("kind", EngineKind)
def test_an_engine_that_needs_nothing_has_none(kind: EngineKind) -> None:
    found = dialect_of(Engine(name="e", url="http://h", kind=kind), adapter(kind))
    assert (repr(found) if found is not None else None) == SPOKEN.get(kind)


@pytest.mark.parametrize(
    ("kind", "settings", "said"),
    [
        (EngineKind.VLLM, {"priority": True}, "<Fields priority>"),
        (EngineKind.SGLANG, {"priority": True, "fold": True}, "<Fields priority rid fold>"),
        (EngineKind.LLAMACPP, {"fold": False}, None),
        (EngineKind.OPENAI, {"fold": True}, "<Fields fold>"),
    ],
)
def test_settings_make_one(kind: EngineKind, settings: dict[str, bool], said: str | None) -> None:
    found = dialect_of(Engine(name="e", url="http://h", kind=kind, **settings), adapter(kind))
    assert (repr(found) if found is not None else None) == said


def test_an_engine_that_was_found_out_is_asked_by_its_adapter() -> None:
    engine = Engine(name="e", url="http://h", kind=EngineKind.AUTO, priority=True)
    assert dialect_of(engine, adapter(EngineKind.AUTO)) is None
    assert repr(dialect_of(engine, adapter(EngineKind.SGLANG))) == "<Fields priority rid>"

"""Step times out of rates, and the keys of blocks."""

from __future__ import annotations

import pytest

from forebay.hardware.steptime import Chunk
from forebay.sim.blocks import block_keys
from forebay.sim.rates import RateStepTime


def test_prompts_and_decoding_add_up() -> None:
    steps = RateStepTime(prefill_rate=1000.0, decode_rate=50.0, batch_slowdown=0.5)
    assert steps.decode(1, 100, 100) == pytest.approx(0.02)
    assert steps.decode(3, 100, 50) == pytest.approx(0.04)
    chunks = [Chunk(100, 0), Chunk(50, 200, last=False)]
    assert steps.mixed(chunks, 0, 0, 0) == pytest.approx(0.15)
    assert steps.mixed(chunks, 3, 100, 50) == pytest.approx(0.19)


@pytest.mark.parametrize("bad", [{"decode_rate": 0.0}, {"prefill_rate": float("inf")}, {"batch_slowdown": -1.0}])
def test_rates_that_are_none_are_named(bad: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(bad))):
        RateStepTime(**bad)


def test_equal_keys_mean_equal_content_from_the_beginning() -> None:
    one = block_keys([b"a", b"b", b"c", b"d", b"e"], 2, "m")
    assert len(one) == 2 and all(size == 2 for _, size in one)
    assert block_keys([b"a", b"b", b"c", b"d"], 2, "m") == one
    assert block_keys([b"a", b"b", b"x", b"d"], 2, "m")[0] == one[0]
    other_begin = block_keys([b"x", b"b", b"c", b"d"], 2, "m")
    assert not set(other_begin) & set(one)
    assert not set(block_keys([b"a", b"b", b"c", b"d"], 2, "other")) & set(one)
    assert block_keys([b"a"], 2, "m") == ()

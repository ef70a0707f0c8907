"""What a deployment takes of each GPU's memory, and how many sequences fit."""

from __future__ import annotations

import pytest

from forebay.hardware.catalogue import find_any, find_any_gpu
from forebay.hardware.memory import GIB, Deployment, DoesNotFit, Slots, budget, slots_of

SEVENTY = "params=70e9,layers=80,kv_heads=8,head_dim=128"


def test_slots_of_plain_numbers() -> None:
    given = {"total": 80 * GIB, "weights": 64 * GIB, "activations": 6 * GIB}
    assert slots_of(**given, tokens=4096, bytes_per_token=1 << 20) == Slots(2.5, 2)
    with pytest.raises(DoesNotFit, match=r"take 90\.0 GiB, 10\.0 more than the 80\.0") as refused:
        slots_of(total=80 * GIB, weights=64 * GIB, activations=26 * GIB, tokens=1, bytes_per_token=1)
    assert refused.value.short == 10 * GIB
    with pytest.raises(ValueError, match="tokens must be more than 0"):
        slots_of(**given, tokens=0, bytes_per_token=1)


def test_a_user_of_a_70b_model_holds_1_34_gb() -> None:
    found = budget(Deployment(find_any(SEVENTY), find_any_gpu("A100"), tp=4))
    assert found.deployment.model.parameters() == 70_000_000_000
    assert found.replica_kv_bytes_per_token == 2 * 80 * 8 * 128 * 2
    assert found.kv_bytes(4096) * 4 == 1_342_177_280


def test_the_parts_add_up_to_the_share_of_the_gpu() -> None:
    for eager in (False, True):
        found = budget(Deployment(find_any("llama-3.1-8b"), find_any_gpu("h100"), enforce_eager=eager))
        parts = found.weights + found.activations + found.cuda_graphs + found.overhead + found.kv
        assert parts == found.usable
        assert (found.cuda_graphs == 0) == eager
        assert sum(found.weights_by_part.values()) == found.weights
        assert found.num_blocks == found.kv // (131_072 * 16)
        assert found.kv_tokens == found.num_blocks * 16


def test_what_does_not_fit_says_by_how_much_and_what_would() -> None:
    with pytest.raises(DoesNotFit, match=r"are missing on each; what would fit: tp 2, .* fp8 weights") as refused:
        budget(Deployment(find_any("llama-3.1-70b"), find_any_gpu("h100")))
    for fix in refused.value.fixes:
        assert budget(fix.deployment).kv_tokens == fix.kv_tokens > 0

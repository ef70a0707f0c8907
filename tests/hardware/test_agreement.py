"""A profile is taken for what it is of, and whoever asks for something else is told."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from forebay.hardware import aiconf
from forebay.hardware.catalogue import find_gpu, find_model
from forebay.hardware.csvtable import BadProfile
from forebay.hardware.fitted import Coefficients, EngineFacts, FitError, FittedProfile, Host, Ranges, save
from forebay.hardware.profiles import resolve
from hardware_bundles import META

Make = Callable[..., Path]


@pytest.fixture
def fitted(tmp_path: Path) -> Path:
    path = tmp_path / "fitted.yaml"
    engine = EngineFacts("vllm", "0.19.0", "meta-llama/Llama-3.1-8B", 16, 16_000, 32, 512, 4096)
    curve = Coefficients(((1, 0.01), (512, 0.05)))
    save(FittedProfile(engine, "2025-01-01", curve, Host(), Ranges(16, 10_000, 512, 4096), FitError(0.99)), path)
    return path


def bundle(make: Make, extra: str = "variant: bf16\n") -> Path:
    return make(meta=META + extra)


def both(says: str | None, **asked: Any) -> None:
    """A note, and no use of it where it is strict; `says` None: neither."""
    loose = resolve(**asked)
    assert [says is not None and says in note for note in loose.notes] == ([] if says is None else [True]), loose.notes
    if says is None:
        resolve(**asked, strict=True)
        return
    with pytest.raises(BadProfile, match=says):
        resolve(**asked, strict=True)


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"model": "qwen3-32b"}, "is of the model meta-llama/Llama-3.1-8B, not Qwen/Qwen3-32B"),
        ({"gpu": "h100"}, "is of the GPU rtx_4090, not h100_sxm"),
        ({"dtype": "fp8"}, "is of weights in bf16, not fp8"),
        ({"kv_dtype": "fp8"}, "is of a KV cache in bf16, not fp8"),
        ({"model": "llama-3.1-8b", "gpu": "rtx 4090", "dtype": "bfloat16", "kv_dtype": "bf16"}, None),
        ({"model": "llama-3-8b"}, None),  # the same layers, another context
        ({"dtype": "fp16"}, None),
    ],
)
def test_measured_tables(make_bundle: Make, asked: dict[str, Any], says: str | None) -> None:
    both(says, profile=bundle(make_bundle), **asked)


def test_what_tables_do_not_say_is_not_taken_for_granted(make_bundle: Make) -> None:
    both("does not say the dtype of its weights", profile=bundle(make_bundle, ""), dtype="fp8")
    both("is of a KV cache in fp8, not bf16", profile=bundle(make_bundle, KV_FP8), kv_dtype="bf16")


KV_FP8 = "variant: fp8\nengine_effective: {kv_cache_dtype: fp8}\n"


def test_the_precision_of_tables_is_theirs_where_none_is_given(make_bundle: Make) -> None:
    found = resolve(profile=bundle(make_bundle, KV_FP8))
    assert (found.dtype, found.kv_dtype) == ("fp8", "fp8")


def test_what_the_catalogue_does_not_know_is_said_by_whoever_asks(make_bundle: Make) -> None:
    strange = META.replace("RTX4090", "Z1000").replace("meta-llama/Llama-3.1-8B", "nobody/knows-this")
    folder = make_bundle(meta=strange)
    found = resolve(profile=folder, model="llama-3.1-8b", gpu="h100", strict=True)
    assert [note.partition(": ")[2] for note in found.notes] == [
        "is of the model 'nobody/knows-this', taken to be meta-llama/Llama-3.1-8B",
        "is of the GPU 'Z1000', whose memory, link and price are taken from h100_sxm",
    ]


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"model": "qwen3-32b"}, "is of the model meta-llama/Llama-3.1-8B, not Qwen/Qwen3-32B"),
        ({"gpu": "h100"}, "does not say of which GPU it is"),
        ({"dtype": "fp8"}, "does not say the dtype of its weights"),
        ({"kv_dtype": "fp8"}, "does not say the dtype of its KV cache"),
        ({"tp": 2}, "is of an engine as it ran, which tp 2 does not change"),
        ({"model": "llama-3.1-8b"}, None),
        ({}, None),
    ],
)
def test_calibrated(fitted: Path, asked: dict[str, Any], says: str | None) -> None:
    both(says, profile=fitted, **asked)


def test_compiled_kernels(tmp_path: Path) -> None:
    import dataclasses

    shape = find_model("llama-3.1-8b")
    axis = [1, 2, 4]
    curves = dict.fromkeys(("dense", "collectives", "decode_dense", "decode_collectives", "sequences"), [0.1] * 3)
    grid = [[0.1] * 3] * 3
    document = {
        "forebay_aiconfigurator": 1,
        "gpu": "h100_sxm",
        "model": shape.name,
        "shape": dataclasses.asdict(shape),
        "engine": {"tp": 2, "dp": 1, "ep": 1},
        "dtype": "bf16",
        "kv_dtype": "auto",
        "axes": dict.fromkeys(("tokens", "chunk", "context", "n", "kv"), axis),
        "seconds": {**curves, "prefill": grid, "decode": grid},
    }
    path = tmp_path / "kernels.json"
    path.write_text(json.dumps(document))
    assert aiconf.shape_of(document, path) == shape
    both(None, profile=path, tp=2)
    both("is of tp 2, not 1", profile=path)
    both("is of the GPU h100_sxm, not l40s", profile=path, tp=2, gpu="l40s")
    both("is of the model meta-llama/Llama-3.1-8B, not Qwen/Qwen3-8B", profile=path, tp=2, model="qwen3-8b")
    both("is of weights in bf16, not fp8", profile=path, tp=2, dtype="fp8")
    for change, says in (({"layers": "many"}, "shape.layers is 'many', no int"), ({"tied": 1}, "shape.tied is '1'")):
        path.write_text(json.dumps(document | {"shape": dataclasses.asdict(shape) | change}))
        with pytest.raises(BadProfile, match=says):
            resolve(profile=path, tp=2)


@pytest.mark.parametrize(
    ("model", "fits", "not_"),
    [
        ("llama-3.1-8b", (1, 2, 4, 8, 16, 32), (3, 5, 6, 64, 1000)),  # 32 heads, 8 of KV: split, then copied
        ("qwen2.5-0.5b", (1, 2), (4, 7 * 3)),  # 14 heads, 2 of KV
        ("smollm2-135m", (1, 3), (2,)),
        ("deepseek-v3", (1, 8, 128), (3,)),  # one latent for all heads
    ],
)
def test_heads_decide_over_how_many_gpus_a_model_goes(model: str, fits: tuple[int, ...], not_: tuple[int, ...]) -> None:
    shape = find_model(model)
    for tp in fits:
        shape.check_tp(tp)
    for tp in not_:
        with pytest.raises(ValueError, match="heads"):
            shape.check_tp(tp)


def test_no_source_takes_a_tp_that_the_heads_do_not(make_bundle: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aiconf, "installed_version", lambda: None)
    with pytest.raises(ValueError, match="32 attention heads, which tp 3 does not divide"):
        resolve("h100", "llama-3.1-8b", tp=3)
    with pytest.raises(BadProfile, match=r"bundle: .* 32 attention heads, which tp 3 does not divide"):
        resolve(profile=make_bundle(tp=3), tp=3)
    assert find_gpu("h100").name == "h100_sxm"

"""Models and GPUs that are typed in as numbers, or written in a file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from forebay.hardware.catalogue import UnknownGpu, find_any, find_any_gpu, find_gpu
from forebay.hardware.numbers import BadNumbers


def test_a_model_by_numbers_is_as_large_as_it_is_said_to_be() -> None:
    seventy = find_any("params=70e9, layers=80, kv_heads=8, head_dim=128")
    assert seventy.parameters() == 70_000_000_000
    assert (seventy.hidden, seventy.heads) == (8192, 64)
    assert seventy.kv_bytes_per_token() == 327_680
    exact = find_any("layers=32,hidden=4096,heads=32,kv_heads=8,head_dim=128,intermediate=14336,vocab=128256")
    assert exact.parameters() == find_any("llama-3.1-8b").parameters()
    latent = find_any("params=16B,layers=27,latent=512,head_dim=128,heads=16,hidden=2048,context=163840")
    assert latent.kv_bytes_per_token() == 27 * 576 * 2
    experts = find_any(
        "params=47B,layers=32,kv_heads=8,head_dim=128,hidden=4096,experts=8,experts_per_token=2,dtype=fp8"
    )
    assert experts.parameters() == 47_000_000_000
    assert experts.dtype == "fp8"
    assert experts.active_parameters() < 15e9
    windowed = find_any("name=mine,params=7B,layers=32,kv_heads=8,head_dim=128,window=4k")
    assert (windowed.name, windowed.window, windowed.window_layers) == ("mine", 4000, 32)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("params=70e9,kv_heads=8,head_dim=128", "layers is missing"),
        ("params=70e9,layers=80,head_dim=128", "kv_heads is missing"),
        ("layers=80,kv_heads=8,head_dim=128", "params is missing"),
        ("params=many,layers=80,kv_heads=8,head_dim=128", "params is 'many' where a number such as 80 or 70e9"),
        ("params=70e9,layer=80,kv_heads=8,head_dim=128", "layer is unknown; is layers meant"),
        ("params=70e9,layers=80,layers=81,kv_heads=8", "layers is given twice"),
        ("params=70e9,layers", "'layers' is not NAME=NUMBER"),
        ("params=1e6,layers=80,kv_heads=8,head_dim=128,hidden=8192", "params 1,000,000 is less than"),
        ("params=1e9,layers=8,kv_heads=8,head_dim=128,heads=12", "kv_heads 8 does not divide heads 12"),
        ("params=1e9,layers=8,kv_heads=8,head_dim=128,window_layers=4", "window_layers needs window"),
        ("params=1e9,layers=8,kv_heads=8,head_dim=128,window=64,window_layers=9", "are more than the 8 layers"),
        ("params=1e9,layers=8,kv_heads=8,head_dim=128,experts=8", "experts needs experts_per_token"),
        ("params=1e9,layers=8,kv_heads=8,head_dim=128,dtype=fp7", "dtype 'fp7' is unknown"),
        ("params=1e30,layers=8,kv_heads=8,head_dim=128", "params is '1e30'"),
    ],
)
def test_numbers_that_are_no_model(text: str, message: str) -> None:
    with pytest.raises(BadNumbers, match=message):
        find_any(text)


def test_a_gpu_by_numbers() -> None:
    gpu = find_any_gpu("vram=80GB,bandwidth=2TB/s,flops=312e12,price=2.5")
    assert gpu.memory == 80 * 2**30  # as on the label
    assert (gpu.bandwidth, gpu.bf16, gpu.example_price) == (2e12, 312e12, 2.5)
    assert (gpu.fp8, gpu.switched) == (None, False)
    assert gpu.flops("fp8") == 312e12
    fast = find_any_gpu("name=new,vram=1e11,bandwidth=8000GB/s,flops=2.5PFLOPS,fp8=5P,link=450GB/s")
    assert (fast.name, fast.memory, fast.fp8, fast.switched) == ("new", 100_000_000_000, 5e15, True)
    assert fast.example_price is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("vram=80GB,bandwidth=2TB/s", "flops is missing, such as flops=312e12"),
        ("vram=80GB,bandwith=2TB/s,flops=1T", "bandwith is unknown; is bandwidth meant"),
        ("vram=lots,bandwidth=2TB/s,flops=1T", "vram is 'lots' where a number such as 80GB"),
        ("vram=0,bandwidth=2TB/s,flops=1T", "vram must be more than 0"),
        ("vram=80,bandwidth=2TB/s,flops=1T", "vram is 80, less than any GPU has: give its unit, as in 80GiB"),
        ("vram=80GB,bandwidth=2,flops=1T", "bandwidth is 2, less than any GPU has: give its unit, as in 2TB/s"),
        ("vram=80GB,bandwidth=2TB/s,flops=-1", "flops is '-1' where a number"),
    ],
)
def test_numbers_that_are_no_gpu(text: str, message: str) -> None:
    with pytest.raises(BadNumbers, match=message):
        find_any_gpu(text)


def test_gpus_in_a_file(tmp_path: Path) -> None:
    one = tmp_path / "card.yaml"
    one.write_text("vram: 48GB\nbandwidth: 864GB/s\nflops: 181T\nprice: 0.9\n")
    assert (find_any_gpu(str(one)).name, find_any_gpu(str(one)).memory) == ("card", 48 * 2**30)
    several = tmp_path / "cards.json"
    card = {"vram": "48GB", "bandwidth": 864e9, "flops": 181e12}
    several.write_text(json.dumps({"gpus": {"left": card, "right": {**card, "price": 2}}}))
    assert find_any_gpu(f"{several}#right").example_price == 2
    with pytest.raises(BadNumbers, match=r"has the GPUs left, right; say which one: .*cards\.json#left"):
        find_any_gpu(str(several))
    one.write_text("gpus: {only: {vram: 1GB, bandwidth: 1e9, flops: 1e12}}")
    assert find_any_gpu(str(one)).name == "only"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- 1", "holds list where vram, bandwidth, flops are needed"),
        ("gpus: []", "gpus must be names, each with its vram"),
        ("vram: [", "cannot be understood"),
        ("vram: 1GB\nbandwidth: 1e9", "flops is missing"),
    ],
)
def test_files_that_hold_no_gpu(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "card.yaml"
    path.write_text(text)
    with pytest.raises(BadNumbers, match=message):
        find_any_gpu(str(path))
    with pytest.raises(BadNumbers, match=r"none\.yaml: cannot be read"):
        find_any_gpu(str(tmp_path / "none.yaml"))


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ("A100-80G", "a100_sxm"),
        ("A100-40G", "a100_sxm_40"),
        ("NVIDIA A100-SXM4-80GB", "a100_sxm"),
        ("NVIDIA A100-SXM4-40GB", "a100_sxm_40"),
        ("NVIDIA A100-PCIE-40GB", "a100_pcie_40"),
        ("NVIDIA H100 80GB HBM3", "h100_sxm"),
        ("V100-32", "v100_sxm"),
        ("RTX 3090", "rtx_3090"),
        ("H20", "h20_sxm"),
    ],
)
def test_gpus_as_drivers_and_people_call_them(asked: str, found: str) -> None:
    assert find_gpu(asked).name == found


def test_a_size_that_a_gpu_does_not_have() -> None:
    with pytest.raises(UnknownGpu, match="no GPU 'A100-60' is known; there are NVIDIA A100 SXM 80 GB"):
        find_gpu("A100-60")
    with pytest.raises(UnknownGpu, match="or numbers such as vram=80GB"):
        find_gpu("910B")

"""Which source answers, and profiles compiled from NVIDIA's package, whose place a stand-in of the same face takes."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from forebay.hardware import aiconf
from forebay.hardware.catalogue import UnknownGpu, UnknownModel, find_gpu, find_model
from forebay.hardware.comm import Ranks, logits_seconds, step_seconds
from forebay.hardware.csvtable import BadProfile
from forebay.hardware.profiles import profile_kind, resolve
from forebay.hardware.steptime import Chunk, OutOfProfile
from hardware_bundles import META

Make = Callable[..., Path]

ENGINE = '''
import json, pathlib

class EngineHandle:
    """Linear in everything: ms."""
    @classmethod
    def compile(cls, model_path, system, backend, **options):
        config = json.loads((pathlib.Path(model_path) / "config.json").read_text())
        if config["num_hidden_layers"] == 80:
            raise RuntimeError("perf data missing at /some/where; available: none")
        handle = cls()
        handle.options = options | {"hidden": config["hidden_size"], "type": config["model_type"], "system": system}
        (pathlib.Path(__file__).parent / "asked.json").write_text(json.dumps(handle.options))
        return handle

    def run_static_per_op(self, *, batch_size, isl, osl, prefix, mode):
        assert mode == "static_ctx" and batch_size == 1
        chunk = isl - prefix
        ops = [("context_qkv_gemm", 5 + 0.01 * chunk, 0.0, "silicon"), ("context_logits_gemm", 0.5, 0.0, "silicon")]
        return ops + [("context_attention", 1e-6 * chunk * (prefix + 500), 0.0, "silicon")], []

    def decode_step_per_op(self, n, kv, osl):
        return [
            ("generation_qkv_gemm", 4 + 0.01 * n, 0.0, "silicon"),
            ("generation_logits_gemm", 0.5 + 0.001 * n, 0.0, "silicon"),
            ("generation_attention", 1e-4 * n * kv, 0.0, "silicon"),
            ("generation_ar_1", 0.0 if self.options["tp_size"] == 1 else 0.1, 0.0, "silicon"),
        ]
'''


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(aiconf, "installed_version", lambda: None)
    monkeypatch.setitem(sys.modules, "aiconfigurator_core", None)
    return tmp_path / "cache" / "forebay" / "profiles"


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package of the name, with kernels of an H100 and no model of its own."""
    root = tmp_path / "site" / "aiconfigurator_core"
    (root / "sdk").mkdir(parents=True)
    (root / "model_configs").mkdir()
    for system in ("h100_sxm", "rtx_pro_6000_server"):
        (root / "systems" / "data" / system / "gemm" / "vllm").mkdir(parents=True)
    (root / "__init__.py").write_text("")
    (root / "sdk" / "__init__.py").write_text("")
    (root / "sdk" / "engine.py").write_text(ENGINE)
    monkeypatch.delitem(sys.modules, "aiconfigurator_core")
    monkeypatch.syspath_prepend(root.parent)
    monkeypatch.setattr(aiconf, "installed_version", lambda: "0.12.3")
    for name in ("aiconfigurator_core", "aiconfigurator_core.sdk", "aiconfigurator_core.sdk.engine"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return root


def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("aiconfigurator_core.sdk.engine", "aiconfigurator_core.sdk", "aiconfigurator_core"):
        monkeypatch.delitem(sys.modules, name, raising=False)


def test_without_profile_or_package_a_roofline_answers_and_says_so() -> None:
    found = resolve("H100", "llama-3.1-8b")
    assert (found.source, found.gpu, found.model.layers) == ("roofline", find_gpu("h100_sxm"), 32)
    assert "published numbers" in found.note
    assert "not measured" in found.note
    assert 0.004 < found.step_time.decode(1, 1000, 1000) < 0.01


def test_kernels_are_compiled_once_and_read_without_the_package(
    package: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = resolve("h100_sxm", "llama-3.1-8b", host=0.001)
    assert found.source == "aiconfigurator"
    assert "sampler" in found.note
    steps = found.step_time
    assert steps.decode(8, 8 * 700, 700) == pytest.approx(0.001 + (4.08 + 0.508 + 1e-4 * 8 * 700) * 1e-3)
    chunk = 5 + 0.01 * 520 + 0.509 + 1e-6 * 512 * 800 + 1e-4 * 8 * 700
    assert steps.mixed([Chunk(512, 300)], 8, 8 * 700, 700) == pytest.approx(0.001 + chunk * 1e-3)
    assert [p.name for p in own_cache.iterdir()] == [
        "0.12.3_vllm_h100_sxm_meta-llama-llama-3.1-8b_32x4096_tp1dp1ep1_bf16_auto.json"
    ]
    (package / "sdk" / "asked.json").unlink()
    again = resolve("h100_sxm", "llama-3.1-8b", host=0.001)
    assert not (package / "sdk" / "asked.json").exists()
    forget(monkeypatch)
    monkeypatch.setattr(aiconf, "installed_version", lambda: None)
    monkeypatch.setitem(sys.modules, "aiconfigurator_core", None)
    later = resolve("h100_sxm", "llama-3.1-8b", host=0.001)
    assert again.step_time.decode(5, 999, 400) == later.step_time.decode(5, 999, 400) == steps.decode(5, 999, 400)
    by_path = resolve(profile=next(own_cache.iterdir()), strict=True)
    assert (by_path.source, by_path.model.name) == ("aiconfigurator", "meta-llama/Llama-3.1-8B")
    with pytest.raises(OutOfProfile, match=r"h100_sxm/meta-llama/Llama-3.1-8B/tp1: sequences that decode 2,000"):
        by_path.step_time.decode(2000, 2000, 1)


def test_over_pcie_the_slower_link_counts_and_decodes_pay_for_a_chunk_beside_them(package: Path) -> None:
    kernels = 4.08 + 0.508 + 1e-4 * 8 * 700
    shape = find_model("llama-3.1-8b")
    for name, collectives in (("h100_sxm", 0.1e-3), ("rtx_pro_6000", None)):
        gpu = find_gpu(name)
        steps = resolve(name, "llama-3.1-8b", tp=2).step_time
        ours = step_seconds(shape, gpu, Ranks(tp=2), 8)
        assert ours > 0.1e-3
        want = kernels * 1e-3 + (collectives or ours) + logits_seconds(shape, gpu, 2, 8)
        assert steps.decode(8, 8 * 700, 700) == pytest.approx(want)
    alone = resolve("rtx_pro_6000", "llama-3.1-8b").step_time
    more = alone.mixed([Chunk(504, 0)], 8, 5600, 700) - alone.mixed([Chunk(504, 0)], 8, 2800, 350)
    assert more == pytest.approx(aiconf.BESIDE * 1e-7 * 2800)


def test_what_the_package_is_asked(package: Path) -> None:
    wanted = aiconf.Wanted(
        find_model("qwen3-30b-a3b"), find_gpu("h100"), tp=2, dp=2, ep=4, dtype="fp8", kv_dtype="fp8"
    )  # fmt: skip
    aiconf.compile_profile(wanted)
    assert json.loads((package / "sdk" / "asked.json").read_text()) == {
        "tp_size": 2,
        "attention_dp_size": 2,
        "gemm_quant_mode": "fp8",
        "moe_quant_mode": "fp8",
        "kvcache_quant_mode": "fp8",
        "moe_tp_size": 1,
        "moe_ep_size": 4,
        "hidden": 2048,
        "type": "qwen3_moe",
        "system": "h100_sxm",
    }


def test_what_the_package_cannot_do_is_one_sentence_and_auto_goes_on(package: Path) -> None:
    with pytest.raises(
        aiconf.Unavailable, match="no vllm kernels of rtx_4090; it has those of h100_sxm, rtx_pro_6000_server"
    ):
        resolve("rtx_4090", "llama-3.1-8b", source="aiconfigurator")
    with pytest.raises(
        aiconf.Unavailable, match=r"cannot give vllm with .*70B .*: perf data missing; available: none$"
    ):
        resolve("h100", "llama-3.1-70b", tp=4, source="aiconfigurator")
    with pytest.raises(aiconf.Unavailable, match="experts on 3 ranks do not divide"):
        resolve("h100", "qwen3-30b-a3b", tp=2, ep=3, source="aiconfigurator")
    with pytest.raises(aiconf.Unavailable, match="does not ship deepseek-ai/DeepSeek-V3"):
        resolve("h100", "deepseek-v3", source="aiconfigurator")
    assert resolve("rtx_4090", "llama-3.1-8b").source == "roofline"


def test_the_missing_package_says_how_to_get_it() -> None:
    with pytest.raises(aiconf.MissingPackage, match=r"pip install 'forebay\[gpus\]'"):
        resolve("h100", "llama-3.1-8b", source="aiconfigurator")


def test_an_explicit_folder_wins(make_bundle: Make) -> None:
    found = resolve(profile=make_bundle(meta=META + "vllm_version: 0.19.0\n"))
    assert (found.source, found.model.name) == ("measured", "meta-llama/Llama-3.1-8B")
    assert found.gpu is find_gpu("rtx_4090")
    assert "vLLM 0.19.0" in found.note
    with pytest.raises(BadProfile, match="is measured where calibrated was asked for"):
        resolve(profile=make_bundle(), source="calibrated")
    assert profile_kind(make_bundle() / "meta.yaml") == "measured"


@pytest.mark.parametrize("source", ["measured", "calibrated"])
def test_a_source_that_needs_a_path(source: Any) -> None:
    with pytest.raises(BadProfile, match=f"step times that are {source} need the path"):
        resolve("h100", "llama-3.1-8b", source=source)


def test_names_and_paths_that_are_none(tmp_path: Path, make_bundle: Make) -> None:
    with pytest.raises(UnknownGpu, match="the nearest are h100_sxm"):
        resolve("h10_sxm", "llama-3.1-8b")
    with pytest.raises(UnknownModel, match="a model must be named"):
        resolve("h100")
    with pytest.raises(UnknownGpu, match="a GPU must be named"):
        resolve(model="llama-3.1-8b")
    with pytest.raises(BadProfile, match="nowhere: does not exist"):
        resolve(profile=tmp_path / "nowhere")
    with pytest.raises(
        BadProfile, match=r"has no meta\.yaml, so it is no folder of tables; it holds the profiles bundle"
    ):
        resolve(profile=make_bundle().parent)
    text = tmp_path / "notes.txt"
    text.write_text("")
    with pytest.raises(BadProfile, match=r"a profile is a folder of tables, a calibrated \.yaml or a compiled \.json"):
        resolve(profile=text)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.pop("axes"), "the key 'axes' is missing"),
        (lambda d: d.update(forebay_aiconfigurator=9), "is not a compiled profile"),
        (lambda d: d["seconds"]["dense"].pop(), r"seconds\.dense must be 23 numbers"),
        (
            lambda d: d["seconds"]["decode"][3].__setitem__(0, -1),
            r"seconds\.decode\[3\] must be numbers from 0 to 1,000",
        ),
        (lambda d: d.pop("shape"), "shape does not describe a model"),
        (lambda d: d["axes"]["kv"].reverse(), r"axes\.kv must rise"),
    ],
)
def test_a_spoilt_profile_is_named(package: Path, change: Callable[[Any], object], message: str) -> None:
    path = aiconf.compile_profile(aiconf.Wanted(find_model("llama-3.1-8b"), find_gpu("h100")))
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))
    with pytest.raises(BadProfile, match=message):
        aiconf.load_profile(path)
    path.write_text("{")
    with pytest.raises(BadProfile, match="is not JSON"):
        aiconf.load_profile(path)

"""`forebay tune` as it is typed: what it prints and writes, and how it ends."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from forebay.cli.main import main
from forebay.plan.tune.launch import Shares, starts
from forebay.plan.tune.manifests import dns_name, manifests
from forebay.plan.tune.space import Setting

COMPARED = [
    "tune", "poisson:rate=4,requests=60,system=500,prompt=100,output=20", "--model", "Qwen/Qwen2.5-0.5B", "--gpu", "t4",
    "--gpus", "1", "--compare", "--try", "max_num_seqs=1,8", "--requests", "50", "--seeds", "1", "--jobs", "1",
]  # fmt: skip


def call(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr("sys.argv", ["forebay", *words])
    with pytest.raises(SystemExit) as e:
        main()
    return int(e.value.code or 0)


def test_a_comparison_is_printed_drawn_and_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert call(monkeypatch, *COMPARED, "--out", str(tmp_path / "out")) == 0
    said = capsys.readouterr().out
    assert "Side by side" in said
    assert "vllm serve Qwen/Qwen2.5-0.5B" in said
    result: dict[str, Any] = json.loads((tmp_path / "out/result.json").read_text())
    assert (result["kind"], result["format"]) == ("tuning", 1)
    assert [row["setting"]["max_num_seqs"] for row in result["compared"]] == [1, 8]
    assert all(row["full"]["output"] > 0 for row in result["compared"])
    page = (tmp_path / "out/report.html").read_text()
    figures = json.loads(re.search(r'id="figures">(.*?)</script>', page, re.DOTALL)[1])  # type: ignore[index]
    assert {"throughput", "cost", "load-ttft", "load-tpot", "load-output", "choices"} <= {f["id"] for f in figures}
    assert (tmp_path / "out/vllm.sh").read_text().startswith("#!/bin/sh\n")
    assert "kind: PodDisruptionBudget" in (tmp_path / "out/kubernetes-vllm.yaml").read_text()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--slo-tpot", "0"], "--slo-tpot must be more than 0"),
        (["--model", "nothing"], "model 'nothing' is unknown; "),
        (["--try", "max_num_seqs=1"], "--try names max_num_seqs twice"),
        (["--json", "/nowhere/x.json"], "there is no folder /nowhere"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert call(monkeypatch, *COMPARED, *words) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("forebay tune: ")
    assert said in captured.err
    assert captured.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_manifests_select_the_pods_that_they_make_and_disturb_one_at_a_time() -> None:
    setting = Setting(tp=2, engines=3, decode_engines=2, decode_tp=4, enable_prefix_caching=False)
    found = manifests(
        starts(setting, "org/Some_Model-1.5", Shares(0.4, 0.4, 0.9)), "org/Some_Model-1.5", {"prefill": 2, "decode": 4}
    )
    assert set(found) == {"kubernetes-vllm.yaml", "kubernetes-sglang.yaml", "kubernetes-trtllm.yaml"}  # TGI cannot
    objects = [o for text in found.values() for o in YAML(typ="safe").load_all(text)]
    for kind in ("Deployment", "Service", "PodDisruptionBudget"):
        assert sum(o["kind"] == kind for o in objects) == 6
    deployments = {o["metadata"]["name"]: o["spec"] for o in objects if o["kind"] == "Deployment"}
    assert deployments["vllm-some-model-1-5-prefill"]["replicas"] == 3
    for name, spec in deployments.items():
        labels = spec["template"]["metadata"]["labels"]
        (service,) = [o for o in objects if o["kind"] == "Service" and o["metadata"]["name"] == name]
        (budget,) = [o for o in objects if o["kind"] == "PodDisruptionBudget" and o["metadata"]["name"] == name]
        for selector in (
            spec["selector"]["matchLabels"],
            service["spec"]["selector"],
            budget["spec"]["selector"]["matchLabels"],
        ):
            assert selector.items() <= labels.items()
        assert budget["spec"]["maxUnavailable"] == 1
        (container,) = spec["template"]["spec"]["containers"]
        assert container["resources"]["limits"]["nvidia.com/gpu"] == (4 if name.endswith("decode") else 2)
        assert {m["name"] for m in container["volumeMounts"]} == {
            v["name"] for v in spec["template"]["spec"]["volumes"]
        }
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            assert container[probe]["httpGet"] == {"path": "/health", "port": "http"}


@pytest.mark.parametrize("name", ["Qwen2.5-72B_Instruct", "7b", "x" * 200, "a-" * 40])
def test_names_are_labels_of_dns(name: str) -> None:
    assert re.fullmatch(r"[a-z]([a-z0-9-]{0,50}[a-z0-9])?", dns_name(name))

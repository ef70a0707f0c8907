"""`forebay plan`: from the command line to its answer, and each kind of bad input."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from forebay.cli.main import run
from forebay.hardware.catalogue import find_any, find_any_gpu, find_gpu, find_named
from forebay.hardware.memory import Deployment
from forebay.plan import capacity_check
from forebay.plan.capacity_fleet import cost, fleet
from forebay.plan.capacity_lengths import independent
from forebay.plan.capacity_question import PlanError, Promise, Question, Traffic, replica
from forebay.plan.capacity_slo import highest

QWEN = ("--model", "Qwen/Qwen3-32B", "--gpu", "A100-80G")
LLAMA = ("--model", "llama-3.1-8b", "--gpu", "h100", "--prompt", "600", "--output", "200", "--no-simulate")


def question(**more: Any) -> Question:
    deployment = Deployment(find_named("llama-3.1-8b"), find_gpu("h100"))
    return Question(deployment=deployment, lengths=independent("600", "200"), **more)


def plan(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = run(["plan", *arguments])
    said = capsys.readouterr()
    return code, said.out, said.err


# --- the fleet --------------------------------------------------------------------------------------------------------


def test_replicas_nodes_and_headroom_by_hand() -> None:
    found = fleet(question(traffic=Traffic(peak=100), spare_nodes=1), rate=3, gpus=2, e2e=5)
    assert (found.needed, found.replicas_per_node, found.replicas) == (34, 4, 38)
    assert (found.gpus, found.nodes, found.lost) == (76, 10, 4)
    assert found.headroom == pytest.approx(38 * 3 / 100 - 1)
    assert found.headroom_less_one == pytest.approx(34 * 3 / 100 - 1)


def test_replicas_larger_than_a_node() -> None:
    found = fleet(question(traffic=Traffic(peak=10)), rate=3, gpus=16, e2e=5)
    assert (found.needed, found.nodes, found.lost) == (4, 8, 1)


def test_users_wait_and_think() -> None:
    found = fleet(question(traffic=Traffic(users=900, think=40)), rate=3, gpus=1, e2e=5)
    assert found.peak == pytest.approx(20)
    assert found.needed == 7


def test_money_by_hand() -> None:
    hours = (1.0,) * 12 + (9.0,) * 12
    asked = question(traffic=Traffic(hours=hours), price=2.0)
    found = fleet(asked, rate=3, gpus=2, e2e=5)
    money = cost(asked, found, 2, prompt=600, output=200, valid=0.96)
    assert found.needed == 3
    assert [hour.replicas for hour in found.hours] == [1] * 12 + [3] * 12
    assert money.hourly == 12
    assert money.daily == 288
    assert money.daily_by_hour == 12 * 4 + 12 * 12
    assert money.million_output == pytest.approx(288 / (5 * 86_400 * 200) * 1e6)
    assert money.valid_request == pytest.approx(288 / (5 * 86_400 * 0.96))


def test_no_end_of_replicas_is_refused() -> None:
    with pytest.raises(PlanError, match="replicas"):
        fleet(question(traffic=Traffic(peak=1e9)), rate=1e-3, gpus=1, e2e=5)


# --- the command ------------------------------------------------------------------------------------------------------


def test_the_show_case_explains_itself_on_one_screen(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    page, file = tmp_path / "plan.html", tmp_path / "plan.json"
    asked = (*QWEN, "--slo-ttft", "1.5", "--users", "10000", "--html", str(page), "--json", str(file))
    code, out, err = plan(capsys, *asked)
    assert (code, err) == (0, "")
    assert len(out.splitlines()) < 60
    for word in (
        "10,000 users",
        "MaxConcurrentSlots",
        "2 · 64 · 8 · 128",
        "binding",
        "What to change first",
        "a node dies",
    ):
        assert word in out
    assert "8 KV heads for 64 query heads (GQA)" in out
    html = page.read_text()
    assert "<script src" not in html
    assert "<link" not in html
    assert "MaxConcurrentSlots" in html
    found = json.loads(file.read_text())
    assert found["memory"]["kv_bytes_per_token"] == 262_144
    assert found["fleet"]["gpus"] == found["fleet"]["needed"]
    each, all_ = found["replica"]["requests_per_s"], found["fleet"]["peak"]
    assert (found["fleet"]["needed"] - 1) * each < all_ <= found["fleet"]["needed"] * each * 1.0001
    assert found["replica"]["simulated"]["ttft"] <= 1.5
    # prompts that take most of the KV cache are where formulas end, and the plan says so
    assert each < 0.9 * found["replica"]["requests_per_s_by_formula"]
    assert any("of the KV cache, and all behind it wait" in note for note in found["notes"])
    code, out, _ = plan(capsys, *asked[:-4], "--json", "-")
    assert json.loads(out) | {"curves": None} == found | {"curves": None}


def test_cached_prompts_and_fewer_bits_carry_more() -> None:
    base, deployment = question(), question().deployment
    asked = (base, replace(base, cache_hit=0.5), replace(base, deployment=replace(deployment, dtype="fp8")))
    plain, cached, small = (highest(replica(one).engine, one.promise, 0.05).rate for one in asked)
    assert cached > 1.1 * plain
    assert small > 1.1 * plain


def test_the_numbers_of_the_slides_come_out(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = plan(capsys, "--rules", "--json", "-")
    assert code == 0
    slots, seventy, cards, users = (rule["values"] for rule in json.loads(out))
    assert slots == {"kv_gib": 10, "exact": 2.5, "whole": 2}
    assert seventy["gb"] == pytest.approx(1.34, abs=0.005)
    assert {card: one["requests_per_s"] for card, one in cards.items()} == {
        "A100-80G": 30, "A100-40G": 15, "V100-32G": 10, "RTX 3090": 5,
    }  # fmt: skip
    for card, one in cards.items():  # with the lengths that are named, the simulator carries as many
        deployment = Deployment(find_any(one["model"]), find_any_gpu(card), dtype="fp16", max_model_len=4296)
        lengths = independent(str(one["prompt"]), str(one["output"]))
        engine = replica(Question(deployment=deployment, lengths=lengths, measured=False)).engine
        run_ = capacity_check.run(engine, 0.95 * one["requests_per_s"], Promise(), count=1000)
        assert run_.kept(Promise()), card
    assert {one["model"] for one in users} >= {"Qwen/Qwen3-32B", "meta-llama/Llama-2-13b"}
    assert all(10 <= one["slots"] <= 20 for one in users)


def test_hours_and_spare_nodes(capsys: pytest.CaptureFixture[str]) -> None:
    hours = ",".join(str(20 * (i % 12 + 1)) for i in range(24))
    code, out, _ = plan(capsys, *LLAMA, "--hours", hours, "--spare-nodes", "1", "--price", "2", "--json", "-")
    assert code == 0
    found = json.loads(out)
    counts = [hour["replicas"] for hour in found["fleet"]["hours"]]
    assert counts[:12] == counts[12:] == sorted(counts[:12])
    assert found["fleet"]["replicas"] == max(counts) + 8
    assert found["fleet"]["headroom_less_one"] >= 0
    assert found["cost"]["daily_by_hour"] == pytest.approx(2 * (sum(counts) + 8 * 24))
    assert found["cost"]["gpu_hour_is"] == "as given"


def test_what_a_change_gives_is_of_what_is_planned_with(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = plan(capsys, *QWEN, "--slo-ttft", "1.5", "--users", "10000", "--json", "-")
    assert code == 0
    found = json.loads(out)
    here = found["replica"]["requests_per_s"]
    assert here < 0.9 * found["replica"]["requests_per_s_by_formula"]
    by_name = {change["name"]: change for change in found["changes"]}
    assert by_name["tensor parallelism 2"]["rate"] / 2 / here - 1 == pytest.approx(
        by_name["tensor parallelism 2"]["gain"], abs=1e-4
    )
    assert by_name["weights in int8"]["rate"] / here - 1 == pytest.approx(by_name["weights in int8"]["gain"], abs=1e-4)
    useless = by_name["--max-num-seqs 512"]
    assert useless["gain"] < 0.01
    code, out, _ = plan(capsys, *QWEN, "--users", "10000", "--no-simulate")
    assert "weights in int8" in out
    assert "--max-num-seqs 512" not in out


def test_formulas_give_the_numbers_behind_them(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = plan(capsys, *QWEN, "--users", "300000", "--no-simulate", "--json", "-")
    assert code == 0
    found = {one["name"]: one["text"] for one in json.loads(out)["formulas"]}
    for name, factors in {"decoding": (1, 1e-3, 1e-3), "peak": (1, 1, 1), "decode": (1, 1e-3)}.items():
        given, _, result = found[name].rpartition(" = ")
        values = [float(number.replace(",", "")) for number in re.findall(r"[\d,.]*\d", given.rpartition(" = ")[2])]
        if name == "decoding":
            rate, answer, one, step, echo = values
            assert one == 1
            worked = rate * ((answer - 1) * step * factors[1] + echo * factors[2])
        elif name == "peak":
            worked = values[0] / (values[1] + values[2])
        else:
            worked = values[0] / (values[1] * factors[1])
        assert worked == pytest.approx(float(result.split()[0].replace(",", "")), rel=3e-3), found[name]


def test_thousands_of_requests_a_second_are_no_power_of_ten(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = plan(capsys, *LLAMA, "--qps", "2000")
    assert code == 0
    assert "2,000 requests/s at the peak" in out
    assert "e+0" not in out


def test_one_request_in_the_kv_cache_does_not_wait_for_nobody(capsys: pytest.CaptureFixture[str]) -> None:
    """With room for one at a time, none waits longer than one takes, and only where one runs: no thousands of GPUs."""
    long = (*QWEN, "--prompt", "30000", "--output", "1000", "--slo-ttft", "60", "--qps", "0.1", "--json", "-")
    code, out, _ = plan(capsys, *long)
    assert code == 0
    found = json.loads(out)["replica"]
    alone = found["formula"]["e2e_mean_s"]
    assert found["requests_per_s"] > 0.1 / alone
    assert found["simulated"]["ttft"] <= 60


def test_a_narrow_terminal_has_every_number() -> None:
    from rich.console import Console

    from forebay.plan.capacity import plan as answered
    from forebay.plan.capacity_view import change_rows, lines, show

    document = answered(question(traffic=Traffic(peak=90), simulate=False))
    console = Console(width=40, record=True, file=io.StringIO(), highlight=False)
    show(document, console)
    out = console.export_text()
    assert "…" not in out
    assert all(len(line) <= 40 for line in out.splitlines())
    plain = " ".join(out.split())
    for _, rows in [*lines(document), ("", change_rows(document)[:1])]:
        for what, number, how in rows:
            assert f"{what} {number}" in plain
            assert " ".join(how.split()) in plain


def test_a_gpu_without_a_price_has_no_cost(capsys: pytest.CaptureFixture[str]) -> None:
    given = ("--model", "llama-3.1-8b", "--gpu", "vram=80GB,bandwidth=2TB/s,flops=312e12", "--no-simulate")
    code, out, _ = plan(capsys, *given, "--qps", "5")
    assert code == 0
    assert "the GPU has no price: give --price USD an hour" in out
    assert "5 requests/s at the peak need 1 GPU.\n" in out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((*QWEN[:2], "--gpu", "L4", "--qps", "1"), r"does not fit on NVIDIA L4.* GB are missing.* would fit: tp"),
        (("--model", "Qwen/Qwen3-33B", "--gpu", "L4", "--qps", "1"), "nearest are .*Qwen3-32B"),
        (("--model", "Qwen/Qwen3-32B", "--gpu", "H101", "--qps", "1"), "nearest are .*h100"),
        (("--gpu", "H100", "--qps", "1"), "--model is missing"),
        ((*QWEN, "--qps", "1", "--tp", "3"), "64 attention heads, which tp 3 does not divide"),
        ((*QWEN, "--qps", "1", "--max-model-len", "100000"), "40,960 tokens of Qwen/Qwen3-32B; rope scaling"),
        ((*QWEN, "--qps", "1", "--slo-ttft", "0.1"), r"--slo-ttft 0.1 is below .*give 0\.\d+ or more"),
        ((*QWEN, "--qps", "1", "--slo-tpot", "0.01"), r"--slo-tpot 0.01 is below .*a token every 0\.0[34]"),
        (QWEN, "no traffic to plan for: give one of --users, --qps, --hours, --traffic"),
        ((*QWEN, "--qps", "1", "--users", "3"), "--users and --qps say the same twice"),
        ((*QWEN, "--qps", "0"), "--qps must be more than 0"),
        ((*QWEN, "--qps", "1", "--cache-hit", "1"), "--cache-hit must be at least 0 and at most 0.99"),
        ((*QWEN, "--qps", "1", "--percentile", "100"), "--percentile must be"),
        ((*QWEN, "--qps", "1", "--prompt", "50000"), "all requests are longer than the .* tokens"),
        ((*QWEN, "--qps", "1", "--prompt", "50000"), "the shortest has 50,0.*give the KV cache more memory"),
        ((*LLAMA[:4], "--qps", "1", "--prompt", "2e5"), "all that meta-llama/Llama-3.1-8B takes"),
        ((*LLAMA[:4], "--qps", "1", "--prompt", "500", "--max-model-len", "90"), "up to the 131,072"),
        (("--model", "llama-3.1-405b", *QWEN[2:], "--qps", "1"), "would fit: tp 16, pp 12, tp 8 with fp8 weights"),
        ((*QWEN, "--qps", "1", "--max-num-seqs", "1000000"), "GB of activations .max_num_seqs 1,000,000"),
        (("--model", "./no-such-folder", *QWEN[2:], "--qps", "1"), "'./no-such-folder' is a path that does not exist"),
        (("--model", "/dev", *QWEN[2:], "--qps", "1"), "'/dev' is a folder without a config.json"),
        ((*QWEN, "--qps", "1", "--max-num-batched-tokens", "1"), "--slo-ttft 1.5 is below"),
        ((*QWEN, "--traffic", "no-such.csv"), "no-such.csv: no such file"),
        ((*QWEN, "--qps", "1", "--profile", "no-such"), "no-such: does not exist"),
        ((*QWEN, "--qps", "1", "--json", "/no/such/place.json"), "/no/such/place.json"),
    ],
)  # fmt: skip
def test_bad_input_names_what_is_wrong_and_the_way_out(
    arguments: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = plan(capsys, *arguments, "--no-simulate")
    assert (code, out) == (2, "")
    assert err.startswith("forebay plan: ")
    assert re.search(said, err), err
    assert len(err.splitlines()) == 1

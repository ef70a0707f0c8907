"""The search for the knee against servers whose knee is known, and runs compared."""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any, cast

import pytest
from rich.console import Console

from forebay.plan.load import Load, Plan, Result, Slo
from forebay.plan.load.asks import survey
from forebay.plan.load.compare import compare, load
from forebay.plan.load.document import Facts, as_json
from forebay.plan.load.knee import Knee, Search, find
from forebay.plan.load.money import by_tokens, price_from, price_of, statement
from forebay.plan.load.page import html
from forebay.plan.load.table import print_table
from forebay.plan.target import LoadError


def came(ttft: float, good: int, bad: int) -> Result:
    result = Result(seconds=10.0, sent=good + bad, completed=good + bad, good=good)
    for _ in range(good + bad):
        result.ttft.add(ttft)
        result.tpot.add(0.02)
        result.e2e.add(ttft + 1)
    return result


def search(capacity: float, settings: Search, slo: Slo = Slo(ttft=1.0)) -> Knee:  # noqa: B008 - frozen
    """Of a server that keeps everything up to `capacity` and nothing above it."""

    async def run(rate: float, slo: Slo, hopeless: Callable[[Load], str] | None) -> Result:
        ttft = 0.1 if rate <= capacity else 9.0
        kept = not slo or slo.keeps(0, ttft, 0.02, ttft + 1)
        return came(ttft, 100 if kept else 0, 0 if kept else 100)

    return asyncio.run(find(run, slo, settings, lambda rate: 100, lambda step: None))


@pytest.mark.parametrize("capacity", [0.3, 7.0, 450.0])
@pytest.mark.parametrize("start", [1.0, 64.0])
def test_the_knee_is_found_from_below_and_from_above(capacity: float, start: float) -> None:
    found = search(capacity, Search(start, precision=0.05, steps=30))
    assert found.best is not None
    assert found.worst is not None
    assert found.best.rate <= capacity < found.worst.rate <= found.best.rate * 1.05


def test_the_search_is_bounded_and_says_what_it_has() -> None:
    found = search(1e9, Search(1.0, steps=5))
    assert (len(found.steps), found.worst) == (5, None)
    assert found.best is not None
    assert found.best.rate == 16.0
    assert search(0.0, Search(1.0, steps=4)).best is None


def test_without_an_slo_the_lightest_step_gives_one() -> None:
    found = search(5.0, Search(1.0), Slo())
    assert found.drawn
    assert (found.slo.ttft, found.slo.tpot) == (pytest.approx(0.5, rel=0.02), pytest.approx(0.04, rel=0.02))
    assert found.best is not None
    assert 4.5 < found.best.rate <= 5.0


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"least_share": 0.0}, "knee-share must be over 0"),
        ({"precision": 0.0}, "knee-precision must be from"),
        ({"steps": 1}, "knee-steps must be from 2"),
        ({"start": 1e9}, "the search begins at a rate from"),
    ],
)
def test_a_search_that_makes_no_sense_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(LoadError, match=message):
        Search(**{"start": 1.0, **fields})


# --- documents -------------------------------------------------------------------------------------------------------


def document(ttft: float = 0.1, n: int = 400, **fields: Any) -> dict[str, Any]:
    plan = Plan("m", **{"rate": 10.0, "requests": n, "slo": Slo(ttft=1.0), **fields})
    result = came(ttft, n, 0)
    result.output_tokens, result.prompt_tokens = 20 * n, 50 * n
    return json.loads(json.dumps(as_json(Facts("http://h", survey(plan)), plan, result), allow_nan=False))  # type: ignore[no-any-return]


def test_a_difference_counts_where_the_intervals_are_apart(tmp_path: Path) -> None:
    rows = {row.name: row for row in compare(document(0.1), document(0.2)).rows}
    assert rows["TTFT P50"].better == -1
    assert rows["TTFT P50"].change == pytest.approx(1.0, rel=0.02)
    assert rows["TPOT P50"].better == 0
    assert {row.name: row.better for row in compare(document(0.2), document(0.1)).rows}["TTFT P50"] == 1


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"seed": 5}, "load_fingerprint is"),
        ({"rate": 11.0}, "rate is 10.0 in A and 11.0 in B"),
        ({"extra": {"temperature": 0}}, "extra is {} in A"),
        ({"slo": Slo(ttft=2.0)}, "slo is"),
        ({"prompt_tokens": 65}, "prompt_tokens is 64 in A and 65 in B"),
    ],
)
def test_runs_that_differ_are_refused_unless_told_otherwise(fields: dict[str, Any], said: str) -> None:
    a, b = document(), document(**fields)
    with pytest.raises(LoadError) as e:
        compare(a, b)
    assert said in str(e.value)
    forced = compare(a, b, force=True)
    assert any(said in line for line in forced.differences)
    assert forced.as_json()["forced"] is True
    assert said in html([a, b], forced).replace("&#x27;", "'")


def test_two_knees_are_compared_although_their_rates_differ() -> None:
    a, b = document(), document(rate=20.0)
    a["knee"], b["knee"] = {"rate": 10.0}, {"rate": 20.0}
    first = compare(a, b).rows[0]
    assert (first.name, first.a, first.b, first.change) == ("knee", 10.0, 20.0, 1.0)
    b["load"]["slo"] = {"ttft_s": 9.0}
    with pytest.raises(LoadError, match="slo is"):
        compare(a, b)


def test_a_run_that_was_broken_off_is_no_equal() -> None:
    b = document()
    b["interrupted"] = True
    with pytest.raises(LoadError, match="B did not run to its end"):
        compare(document(), b)


@pytest.mark.parametrize(
    ("text", "message"), [("{", "not JSON"), ("{}", "is no result of forebay bench"), ("[]", "is no result")]
)
def test_what_is_no_result_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(LoadError, match=message):
        load(str(path))


def test_a_result_that_was_cut_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    cut = copy.deepcopy(document())
    del cut["intervals"]
    path.write_text(json.dumps(cut))
    with pytest.raises(LoadError, match="was cut or changed"):
        load(str(path))


def test_the_page_holds_the_run_and_no_script_of_anybody_s() -> None:
    run = document()
    run["notes"] = ["</script><script>alert(1)</script>"]
    run["knee"] = search(5.0, Search(1.0)).as_json() | {"least_share": 0.95}
    text = html([run])
    assert "alert(1)</script>" not in text
    figures = json.loads(text.split('id="figures">')[1].split("</script>")[0])
    assert [figure["id"] for figure in figures][:5] == ["knee", "ttft", "itl", "tpot", "e2e"]
    assert figures[0]["data"][0]["x"] == sorted(step["rate"] for step in run["knee"]["steps"])


# --- money -----------------------------------------------------------------------------------------------------------


def test_a_price_is_applied_to_each_kind_of_token() -> None:
    price = price_from("2/10/0.5", "m")
    assert by_tokens(price)(1_000, 200, 100) == 800 * 2_000 + 200 * 500 + 100 * 10_000
    result = Result(seconds=36.0, sent=4, completed=4, good=2, output_tokens=1_000)
    result.cost = 4_000_000_000
    found = statement(result, price, 100.0, None)
    assert found is not None
    tokens, hours = found["by"]
    assert (tokens["total"], tokens["per_valid_request"], tokens["per_million_output_tokens"]) == (4.0, 2.0, 4000.0)
    assert (hours["total"], hours["per_valid_request"]) == (1.0, 0.5)


@pytest.mark.parametrize("text", ["1", "1/x", "-1/2", "1/2/3/4", "nan/1"])
def test_a_price_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(LoadError, match="wanted is INPUT/OUTPUT"):
        price_from(text, "m")


def test_a_model_without_a_price_is_named(tmp_path: Path) -> None:
    path = tmp_path / "prices.yaml"
    path.write_text("prices:\n  - model: other\n    input: 1\n    output: 2\n")
    with pytest.raises(LoadError, match="has no price for the model 'm'"):
        price_of(str(path), "m")
    assert by_tokens(price_of(str(path), "other"))(1, 0, 1) == 3_000


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_the_table_has_whole_figures_however_narrow_the_terminal(width: int) -> None:
    run = document()
    some = {"p50": 100.0, "p99": 12_345.0}
    group = dict.fromkeys(("sent", "completed", "failed", "good"), 12_345) | dict.fromkeys(
        ("ttft_ms", "tpot_ms", "e2e_ms"), some
    )
    run["classes"] = {"vip": group, "low": group}
    out = Console(file=StringIO(), width=width)
    print_table(run, out)
    lines = cast("StringIO", out.file).getvalue().splitlines()
    assert max(map(len, lines)) <= width
    assert not [line for line in lines if line.startswith("│") and ("… " in line or " …" in line)], "nothing is cut"
    assert any(line.startswith(("│ TTFT ", "│ time to first")) and "100." in line for line in lines)


@pytest.mark.parametrize("field", ["least_share", "precision", "slo"])
def test_knees_of_other_promises_are_not_compared(field: str) -> None:
    a, b = document(), document(rate=20.0)
    a["knee"] = {"rate": 10.0, "least_share": 0.95, "precision": 0.1, "slo": "TTFT ≤ 1 s"}
    b["knee"] = a["knee"] | {field: "other"}
    with pytest.raises(LoadError, match=f"the knee's {field} is"):
        compare(a, b)


def test_a_warm_up_is_a_setting() -> None:
    plan = Plan("m", rate=10.0, requests=10)
    runs = [as_json(Facts("http://h", survey(plan), warmup=n), plan, came(0.1, 10, 0)) for n in (0, 5)]
    with pytest.raises(LoadError, match="warmup is 0 in A and 5 in B"):
        compare(*runs)


def test_a_generator_that_is_late_says_whose_fault_it_is() -> None:
    plan, result = Plan("m", rate=10.0, requests=100), came(0.1, 100, 0)
    result.lag.add(0.2)
    for cpu, advice in ((9.5, "Run several."), (0.1, "The machine has other work")):
        result.cpu = cpu
        (note,) = [n for n in as_json(Facts("http://h", survey(plan)), plan, result)["notes"] if "bottleneck" in n]
        assert "200 ms late (p99)" in note
        assert note.endswith(advice) or advice in note


@pytest.mark.parametrize("value", [None, "x", [], {}, 1e308])
def test_a_result_with_a_field_of_another_kind_is_refused_and_not_half_shown(tmp_path: Path, value: object) -> None:
    path = tmp_path / "x.json"
    whole = document()
    for field in ("notes", "failed", "curves", "timeline", "goodput", "load", "ttft_ms", "intervals", "interrupted"):
        path.write_text(json.dumps(whole | {field: value}))
        try:
            found = load(str(path))
        except LoadError as e:
            assert f"$.{field}" in str(e)
        else:
            assert (field, value) == ("notes", []), "only what is one is taken"
            html([whole, found], compare(whole, found))
    path.write_text(json.dumps(whole))
    assert load(str(path)) == whole


def test_the_page_of_a_search_without_an_end_does_not_make_one_up() -> None:
    run = document()
    step = {"rate": 10.0, "ttft_p99_ms": 1.0, "ttft_p50_ms": 1.0, "tpot_p50_ms": 1.0}
    run["knee"] = {"rate": 10.0, "not_kept_at": None, "slo": "TTFT", "least_share": 0.9, "steps": [step]}
    page = html([run])
    assert "10 requests/s were kept; 90.0% of the requests within TTFT" in page
    assert "not kept at None" not in page

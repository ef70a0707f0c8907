"""The report of a simulation: complete, self-contained, and deaf to what a user types into names."""

from __future__ import annotations

import io
import json
import math
import re
from collections.abc import Sequence
from html.parser import HTMLParser
from typing import Any

import plotly.graph_objects as go
import pytest
from plotly.offline import get_plotlyjs
from rich.console import Console

from forebay.hardware.steptime import Chunk
from forebay.plan import report, report_figures
from forebay.plan.report_metrics import METRICS, difference, seconds, shown
from forebay.plan.simulate import Setup, document
from forebay.plan.simulate_hardware import Hardware
from forebay.plan.simulate_result import entry
from forebay.policy.placement import RoundRobin
from forebay.sim.cluster import Cluster, PassThrough
from forebay.sim.engine import EngineModel
from forebay.sim.results import Slo
from forebay.sim.settings import EngineSettings
from forebay.sim.workload import Ask

EVIL = '</script><img src=x onerror=alert(1)>&<b>"it\'s"'


class Steps:
    warnings: Sequence[str] = ("decode of 9 sequences: 12 % beyond the table",)

    def decode(self, n: int, context: int, longest: int) -> float:
        return 0.01 + n * 1e-4

    def mixed(self, chunks: Sequence[Chunk], n: int, context: int, longest: int) -> float:
        return 0.01 + 1e-3 * sum(chunk.tokens for chunk in chunks)


def run(name: str, *, engines: int = 2, n: int = 200, tenant: str = "t", blocks: int = 24) -> dict[str, Any]:
    settings = EngineSettings(num_blocks=blocks, max_num_seqs=8, max_num_batched_tokens=256, max_model_len=1024)
    cluster = Cluster(
        lambda listener, i: EngineModel(settings, Steps(), listener, name=i),
        engines,
        PassThrough(RoundRobin(), engines),
        max_model_len=1024,
        interval=0.1,
    )
    cluster.run(
        Ask(
            i * 0.02,
            20 + i % 50,
            1 + i % 120,
            prefix=((f"p{i % 3}", 16),),
            tenant=f"{tenant}{i % 12}",
            cls=("vip", "normal", "low")[i % 3],
        )
        for i in range(n)
    )
    shown_settings = {"engines": engines, "num_blocks": blocks}
    hardware = Hardware(Steps(), "measured", "tables of a test", "h100_sxm", "a-model", {}, 2.5, ("a note",))
    return entry(name, shown_settings, hardware, cluster, Slo(), ["3 rows skipped"])


def result(*runs: dict[str, Any], workload: str = "trace.csv", slo: Slo | None = None) -> dict[str, Any]:
    return document([Setup(workload=workload, slo=slo or Slo())], runs)


@pytest.fixture(scope="module")
def two() -> dict[str, Any]:
    return result(run("first"), run("second", blocks=600), slo=Slo(1.5, 0.1, 0.05))


class Page(HTMLParser):
    """Tags, their attributes, and the text outside of scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self._inside: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag in ("script", "style"):
            self._inside.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if self._inside and tag == self._inside[-1]:
            self._inside.pop()

    def handle_data(self, data: str) -> None:
        if not self._inside:
            self.text += data


def embedded(page: str) -> list[dict[str, Any]]:
    found = re.search(r'<script type="application/json" id="figures">(.*?)</script>', page, re.S)
    assert found
    figures: list[dict[str, Any]] = json.loads(found[1])
    return figures


def test_the_page_asks_the_network_for_nothing(two: dict[str, Any]):
    page = report.html(two)
    own = page.replace(get_plotlyjs(), "")
    assert len(own) < len(page) - 1_000_000, "plotly.js is in it, once"
    assert not re.search(r"https?:|//[a-z]|@import|url\(", own)
    for tag, attrs in Page(page).tags:
        assert tag not in ("link", "iframe", "object", "embed", "img", "base")
        assert not {"src", "href", "srcset", "action"} & attrs.keys(), tag
    policy = [attrs["content"] for _, attrs in Page(page).tags if attrs.get("http-equiv")]
    assert len(policy) == 1 and policy[0] and policy[0].startswith("default-src 'none'")


def test_every_figure_is_one_that_plotly_knows(two: dict[str, Any]):
    figures = embedded(report.html(two))
    for figure in figures:
        go.Figure(data=figure["data"], layout=figure["layout"])  # raises for a property that is none
    ids = [figure["id"] for figure in figures]
    assert len(set(ids)) == len(ids)
    assert {"ttft", "itl", "tpot", "e2e", "goodput", "kv", "running", "waiting", "preemptions", "hits"} <= set(ids)
    assert {"classes-attainment", "classes-ttft", "tenants-attainment", "tenants-ttft", "map-0", "map-1"} <= set(ids)


def test_runs_lie_side_by_side_in_colours_of_their_own(two: dict[str, Any]):
    figures = {figure["id"]: figure for figure in embedded(report.html(two))}
    ttft = figures["ttft"]["data"]
    assert [line["name"] for line in ttft] == ["first", "second"]
    assert ttft[0]["line"]["color"] != ttft[1]["line"]["color"]
    text = Page(report.html(two)).text
    assert text.count("met the SLO") == 2
    for words in ("first", "second", "pp", "TTFT P99", "Prefix cache hit rate", "measured", "tables of a test"):
        assert words in text


def test_the_slo_is_drawn_where_it_is_measured(two: dict[str, Any]):
    figures = {figure["id"]: figure for figure in embedded(report.html(two))}
    ttft, tpot = (figures[name]["layout"]["shapes"][0] for name in ("ttft", "tpot"))
    assert (ttft["x0"], tpot["x0"]) == (1.5, 0.05)
    assert figures["ttft-time"]["layout"]["shapes"][0]["y0"] == 1.5
    assert "0.1 s per 1,000 prompt tokens" in figures["ttft"]["note"]
    assert "shapes" not in figures["e2e"]["layout"]


def test_warnings_are_seen_once_each(two: dict[str, Any]):
    text = Page(report.html(two)).text
    for warning in ("decode of 9 sequences: 12 % beyond the table", "a note", "3 rows skipped"):
        assert text.count(warning) == 1
    alone = two | {"runs": [two["runs"][0], two["runs"][1] | {"warnings": []}]}
    assert "3 rows skipped (first)" in Page(report.html(alone)).text


def test_an_interrupted_run_says_so(two: dict[str, Any]):
    assert "Interrupted" not in Page(report.html(two)).text
    assert "Interrupted" in Page(report.html(two | {"interrupted": True})).text


def test_what_a_user_typed_stays_text():
    evil = result(run(EVIL, n=30, tenant=EVIL), run("b", n=30), workload=EVIL)
    page = report.html(evil)
    parsed = Page(page)
    assert EVIL in parsed.text
    assert not [tag for tag, _ in parsed.tags if tag in ("img", "b")]
    assert len([tag for tag, _ in parsed.tags if tag == "script"]) == 3
    figures = embedded(page)
    names = {trace["name"] for figure in figures for trace in figure["data"] if "name" in trace}
    names |= {str(x) for figure in figures if figure["id"].startswith("tenants") for x in figure["data"][0]["x"]}
    assert any("script" in name for name in names)
    assert not any("<" in name or ">" in name for name in names), "plotly would take it for markup"


def test_curves_are_thinned_and_keep_their_sums():
    n = 1999
    series: dict[str, Any] = {name: [1] * n for name in report_figures.COUNTERS + report_figures.GAUGES}
    series |= {"time": [float(i + 1) for i in range(n)], "engines": [{"kv": [0.5] * n}]}
    series["kv_high"] = [0.1] * (n - 1) + [1.0]
    found = report_figures.thinned(series)
    assert len(found["time"]) <= report_figures.POINTS and found["time"][-1] == n
    assert sum(found["decode_tokens"]) == n and max(found["kv_high"]) == 1.0
    assert {len(values) for values in found.values() if values is not found["engines"]} == {len(found["time"])}


def test_no_requests_make_a_page_too():
    empty = result(run("nothing", n=0))
    figures = embedded(report.html(empty))
    assert {"ttft", "goodput"} <= {figure["id"] for figure in figures}
    console = Console(file=io.StringIO(), width=100)
    report.print_summary(empty, console)


def test_many_runs_make_a_page_and_a_summary_that_fits():
    one = run("x", n=30)
    many = result(*(one | {"name": f"run {i}"} for i in range(12)))
    out = io.StringIO()
    report.print_summary(many, Console(file=out, width=120))
    assert all(f"run {i}" in out.getvalue() for i in range(12))
    assert max(map(len, out.getvalue().splitlines())) <= 120
    figures = {figure["id"]: figure for figure in embedded(report.html(many))}
    styles = {(line["line"]["color"], line["line"]["dash"]) for line in figures["ttft"]["data"]}
    assert len(styles) == 12


def test_the_summary_is_plain_where_markup_is_typed():
    out = io.StringIO()
    report.print_summary(
        result(run("[red]a[/]", n=30), run("[/]", n=30), workload="[bold]w"), Console(file=out, width=120)
    )
    for words in ("[red]a[/]", "[bold]w", "SLO attainment", "Goodput", "a note"):
        assert words in out.getvalue()


def metric(name: str) -> Any:
    return next(m for m in METRICS if m.name == name)


@pytest.mark.parametrize(
    ("name", "base", "value", "want"),
    [
        ("TTFT P99", 2.0, 1.0, ("-50.0%", 1)),
        ("TTFT P99", 1.0, 2.0, ("+100.0%", -1)),
        ("TTFT P99", 1.0, 1.0, ("", 0)),
        ("TTFT P99", 1.0, 1.0001, ("±0", 0)),
        ("TTFT P99", None, 1.0, ("", 0)),
        ("SLO attainment", 0.5, 0.75, ("+25.0 pp", 1)),
        ("Goodput, requests/s", 0.01, 1.0, ("× 100", 1)),
        ("Preemptions", 0, 5, ("", -1)),
        ("Arrived", 5, 6, ("+20.0%", 0)),
    ],
)
def test_differences_say_which_way_is_better(name: str, base: float | None, value: float, want: tuple[str, int]):
    assert difference(metric(name), base, value) == want


def test_rows_of_nothing_are_left_out(two: dict[str, Any]):
    names = {m.name for m in shown(two["runs"])}
    assert "Refused (429)" not in names and "Abandoned" not in names
    assert {"Arrived", "Preemptions", "GPU cost"} <= names


@pytest.mark.parametrize(
    ("x", "text"), [(0.0123, "12.3 ms"), (0.9999, "1 s"), (0.5, "500 ms"), (12.34, "12.3 s"), (5000.0, "5,000 s")]
)
def test_seconds_have_three_digits(x: float, text: str):
    assert seconds(x) == text


def test_the_document_is_json_without_infinities(two: dict[str, Any]):
    assert json.loads(json.dumps(two, allow_nan=False)) == two
    assert document([Setup(workload="w")], [])["slo"]["tpot_s"] is None
    assert math.isinf(Setup(workload="w").slo.tpot)

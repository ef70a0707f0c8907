"""The overhead benchmark's own parts: what it counts, how it judges, what it refuses; and small real runs of it and the
soak."""

from __future__ import annotations

import json
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from benchmarks.common import BenchError, Tree, env_flag, env_int, env_names, verdict
from benchmarks.overhead.measure import LOADS, Sample, probe, write_bodies
from benchmarks.overhead.report import lines, picture, shortfalls
from benchmarks.overhead.subjects import bare

from benchmarks import common

BURN = "import time\nend = time.process_time() + {seconds}\nwhile time.process_time() < end: pass\n"
PARENT = """
import subprocess, sys
code = {child!r} + "print('burnt', flush=True); input()"
child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE)
{own}
print("ready", flush=True)
sys.stdin.readline()
child.communicate(b"\\n")
"""


@contextmanager
def family(own: float, child: float) -> Iterator[int]:
    """A process with a child, having burnt so many CPU seconds each."""
    code = PARENT.format(child=BURN.format(seconds=child), own=BURN.format(seconds=own))
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as p:
        assert p.stdout is not None
        assert {p.stdout.readline(), p.stdout.readline()} == {"ready\n", "burnt\n"}
        yield p.pid
        p.communicate("\n")


def test_the_cpu_time_of_a_tree_is_that_of_all_its_processes() -> None:
    with family(0.15, 0.25) as pid:
        tree = Tree(pid)
        found = tree.cpu()
        assert len(found) == 2
        assert sum(found.values()) == pytest.approx(0.4, abs=0.25)
        child = max(found.values())
        stat = Path(f"/proc/{max(found, key=lambda p: found[p])}/stat").read_text().rsplit(") ", 1)[1].split()
        ticks = (int(stat[11]) + int(stat[12])) / 100
        assert child == pytest.approx(ticks, abs=0.03), "the clock is the sum of utime and stime"
        assert tree.spent(found, tree.cpu()) < 0.1
        assert all(n > 1_000_000 for n in tree.rss().values())


def test_a_process_lost_during_a_round_voids_it() -> None:
    tree = Tree(1)
    with pytest.raises(BenchError, match="process 7 of the tree under 1 ended"):
        tree.spent({1: 1.0, 7: 1.0}, {1: 2.0})


def test_a_tree_without_its_root_is_an_error() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as p:
        p.wait()
    with pytest.raises(BenchError, match="is gone"):
        Tree(p.pid).cpu()


def sample(subject: str, round_: str, cpu_us: float, load: str = "unary") -> Sample:
    return Sample(subject, load, round_, 1000, cpu_us, 100.0, 1.0, 2.0, 0.0)


def test_a_ratio_is_the_median_of_the_ratios_within_rounds() -> None:
    samples = [
        *(sample("nginx", r, x) for r, x in (("1", 10), ("2", 20), ("3", 10))),
        *(sample("forebay", r, x) for r, x in (("1", 19), ("2", 42), ("3", 30))),
    ]
    nginx, forebay = lines(samples, LOADS["unary"])
    assert (nginx.ratio, nginx.cpu_us) == (1.0, 10)
    assert (forebay.ratio, forebay.low, forebay.high, forebay.cpu_us) == (2.1, 1.9, 3.0, 30)


def test_what_falls_short_is_named_and_the_rest_is_not() -> None:
    samples = [
        *(sample(s, "1", x) for s, x in (("nginx", 10), ("forebay", 19.9), ("litellm", 9_000))),
        *(sample(s, "1", x, "stream") for s, x in (("nginx", 800), ("forebay", 1_200), ("litellm", 90_000))),
    ]
    found = shortfalls({name: lines(samples, load) for name, load in LOADS.items()})
    assert found == ["forebay, stream: 1.50 × nginx, the bar is 1.3 × (1200.0 µs a request)"]


def test_the_picture_is_a_picture_of_each_subject() -> None:
    samples = [sample(s, "1", x) for s, x in (("nginx", 10), ("forebay", 15), ("<peer>", 9_000))]
    root = ET.fromstring(picture({"unary": lines(samples, LOADS["unary"])}))
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    texts = {t.text for t in root.iter("{http://www.w3.org/2000/svg}text")}
    assert {"nginx", "forebay", "<peer>", "9,000 µs · 900 ×", "15 µs · 1.50 ×"} <= texts


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "line 1 is not JSON"),
        ('{"messages": []}\n[]', "line 2 is not a chat completion body"),
        ('{"prompt": "x"}', "line 1 is not a chat completion body: it has no list 'messages'"),
        ("\n", "has no request in it"),
    ],
)
def test_a_data_file_that_will_not_do_is_refused_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    data = tmp_path / "d.jsonl"
    data.write_text(text)
    with pytest.raises(BenchError, match=message):
        write_bodies(LOADS["unary"], data, tmp_path / "out")


def test_a_data_file_keeps_its_bodies_but_for_what_the_load_sets(tmp_path: Path) -> None:
    data, out = tmp_path / "d.jsonl", tmp_path / "out"
    data.write_text('{"messages": [{"role": "user", "content": "è"}], "model": "x", "max_tokens": 5, "top_p": 0.5}\n')
    assert write_bodies(LOADS["stream"], data, out) == 1
    body = json.loads(out.read_text(encoding="utf-8"))
    assert body == {"messages": [{"role": "user", "content": "è"}], "model": "mock", "top_p": 0.5, "stream": True}
    write_bodies(LOADS["unary"], data, out)
    assert "stream" not in json.loads(out.read_text(encoding="utf-8"))


def test_the_built_in_request_is_small(tmp_path: Path) -> None:
    write_bodies(LOADS["unary"], None, tmp_path / "out")
    assert 250 < (tmp_path / "out").stat().st_size < 400


def test_the_bare_proxy_passes_on_whole_answers(tmp_path: Path) -> None:
    with common.mock(tmp_path, core=None, interval_ms=1) as upstream, bare(tmp_path, upstream, 0) as up:
        for load in LOADS.values():
            write_bodies(load, None, tmp_path / load.name)
            probe("bare", up.url, tmp_path / load.name)


def test_a_subject_that_answers_something_else_is_found_out(tmp_path: Path) -> None:
    with common.mock(tmp_path, core=None) as upstream:
        bodies = tmp_path / "b"
        bodies.write_text('{"model":"mock","messages":[],"mock_fault":"error"}\n')
        with pytest.raises(BenchError, match="x answered 500"):
            probe("x", upstream, bodies)
        bodies.write_text('{"model":"mock","messages":[],"stream":true,"max_tokens":3}\n')
        with pytest.raises(BenchError, match="x passed on 3 of 100 content events"):
            probe("x", upstream, bodies)


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("ROUNDS", "many", "ROUNDS must be a whole number, not 'many'"),
        ("ROUNDS", "0", "ROUNDS must be at least 1, not 0"),
        ("SUBJECTS", "nginx,apache", "SUBJECTS knows nginx, forebay; not 'apache'"),
        ("CHECK", "yes", "CHECK must be 0 or 1, not 'yes'"),
    ],
)
def test_a_setting_that_makes_no_sense_is_refused(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, message: str
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(BenchError) as e:
        (env_int("ROUNDS", 5), env_names("SUBJECTS", ["nginx"], ["nginx", "forebay"]), env_flag("CHECK"))
    assert str(e.value) == message


@pytest.mark.parametrize(("check", "fell", "code"), [("1", ["x"], 1), ("1", [], 0), ("", ["x"], 0), ("0", ["x"], 0)])
def test_only_check_turns_a_shortfall_into_an_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], check: str, fell: list[str], code: int
) -> None:
    monkeypatch.setenv("CHECK", check)
    assert verdict(fell) == code
    assert capsys.readouterr().out == ("fell short: x\n" if fell else "all bars met\n")


def run(name: str, tmp_path: Path, **env: str) -> tuple[subprocess.CompletedProcess[str], dict[str, object]]:
    environment = {**{k: v for k, v in common.os.environ.items() if k != "CHECK"}, "RESULTS": str(tmp_path), **env}
    done = subprocess.run(
        [sys.executable, "-m", f"benchmarks.{name}"],
        capture_output=True,
        text=True,
        cwd=common.ROOT,
        env=environment,
        timeout=100,
        check=False,
    )
    assert done.returncode in (0, 1), done.stderr
    return done, json.loads((tmp_path / f"{name}.json").read_text())


@pytest.mark.system
def test_nginx_costs_what_nginx_costs(tmp_path: Path) -> None:
    done, found = run("overhead", tmp_path, SUBJECTS="nginx,bare", ROUNDS="1", PEERS="0", CHECK="1")
    assert done.returncode == 1
    assert "forebay was not among the subjects" in done.stdout
    figures = found["figures"]
    assert isinstance(figures, dict)
    for load in LOADS:
        nginx, proxy = figures[load]
        assert (nginx["subject"], nginx["ratio"], proxy["subject"]) == ("nginx", 1.0, "bare")
        assert 0.5 < proxy["ratio"] < 5
    assert (tmp_path / "overhead.svg").exists()


def test_a_small_soak_of_the_real_gateway_leaves_nothing_and_answers_rightly(tmp_path: Path) -> None:
    _, found = run("soak", tmp_path, REQUESTS="1500")
    answers = found["answers"]
    assert isinstance(answers, dict)
    assert sum(answers.values()) == 1500
    assert (found["wrong"], found["left"]) == ({}, {})

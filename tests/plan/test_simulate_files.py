"""What becomes of a simulation's files: whole or as before, never over what was read, and said by safe names."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from forebay.cli.main import run
from forebay.hardware.fitted import Coefficients, EngineFacts, FitError, FittedProfile, Host, Ranges, save
from forebay.plan.simulate_result import COLUMNS
from forebay.plan.written import replacing

FOREBAY = str(Path(sys.executable).with_name("forebay"))
LOAD = "constant:rate=5,requests=5,prompt=50,output=5"
HOSTILE = "a\x1b[31m\u202eb"


@pytest.fixture
def profile(tmp_path: Path) -> str:
    path = tmp_path / "engine.yaml"
    engine = EngineFacts("vllm", "0.19.0", "a-model", 16, 16_000, 32, 512, 4096, False)
    curve = Coefficients(((1, 0.01), (512, 0.05)))
    save(FittedProfile(engine, "2025-01-01", curve, Host(), Ranges(16, 10_000, 512, 4096), FitError(0.99)), path)
    return str(path)


def simulate(profile: str, *arguments: str, workload: str = LOAD) -> int:
    return run(["simulate", workload, "--profile", profile, "--jobs", "1", *arguments])


def shell(text: str, *, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = f"{FOREBAY} simulate '{LOAD}' --profile engine.yaml {text}"
    return subprocess.run(["sh", "-c", command], cwd=cwd, capture_output=True, text=True, timeout=60, check=False)


# --- whole, or as before ---------------------------------------------------------------------------------------------


def test_what_cannot_be_written_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "old.json"
    path.write_text("old")
    path.chmod(0o640)
    with pytest.raises(OSError, match="No space left") as found, replacing(path) as file:
        file.write("half of the new")
        raise OSError(28, "No space left on device")
    assert (path.read_text(), found.value.filename) == ("old", str(path))
    assert [p.name for p in tmp_path.iterdir()] == ["old.json"]
    with replacing(path) as file:
        file.write("new")
    assert path.read_text() == "new" and path.stat().st_mode & 0o777 == 0o640


def test_a_link_stays_one(tmp_path: Path) -> None:
    (tmp_path / "real").write_text("old")
    link = tmp_path / "link"
    link.symlink_to("real")
    with replacing(link) as file:
        file.write("new")
    assert link.is_symlink() and (tmp_path / "real").read_text() == "new"


@pytest.mark.parametrize("option", ["--json", "--html"])
def test_a_full_disk_is_said_in_a_sentence_after_the_summary(
    option: str, profile: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert simulate(profile, option, "/dev/full") == 2
    found = capsys.readouterr()
    assert found.err == "forebay simulate: /dev/full: No space left on device\n"
    assert "SLO attainment" in found.out and "written:" not in found.out


def test_rows_that_cannot_be_written_are_said_in_a_sentence(
    profile: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "requests-1.csv").symlink_to("/dev/full")
    assert simulate(profile, "--out", str(out)) == 2
    err = capsys.readouterr().err
    assert err == f"forebay simulate: {out}/requests-1.csv: cannot be written: No space left on device\n"


@pytest.mark.parametrize(
    ("end", "code", "says"),
    [
        ("--json - >&-", 2, "forebay simulate: standard output: is closed"),
        ("--json - > /dev/full", 2, "forebay simulate: standard output: No space left on device"),
        ("--json x.json > /dev/full", 2, "forebay simulate: standard output: No space left on device"),
        ("--json x.json >&-", 0, ""),
    ],
)
def test_a_standard_output_that_takes_nothing(end: str, code: int, says: str, profile: str, tmp_path: Path) -> None:
    done = shell(end, cwd=tmp_path)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr and "Exception" not in done.stderr
    assert says in done.stderr
    if "x.json" in end:
        assert json.loads((tmp_path / "x.json").read_text())["kind"] == "simulation"


# --- not over what is read, nor beside what is old -------------------------------------------------------------------


def test_results_go_over_nothing_that_is_read(profile: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = tmp_path / "in.csv"
    trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.68,5,5\n")
    (tmp_path / "link.json").symlink_to("in.csv")
    for workload in (str(trace), f"azure:{trace},speed=2", f'trace:path="{trace}"', f"{LOAD} + {trace}"):
        for option, target in (("--json", trace), ("--html", trace), ("--json", tmp_path / "link.json")):
            assert simulate(profile, option, str(target), workload=workload) == 2, workload
            assert f"{target}: is read from, so no result is written to it" in capsys.readouterr().err
    lengths = tmp_path / "cdf.json"
    lengths.write_text("[[10, 1.0]]")
    assert simulate(profile, "--json", str(lengths), workload=f"{LOAD[:30]},prompt=cdf({lengths})") == 2
    assert simulate(profile, "--json", profile) == 2
    assert (
        "Context" in trace.read_text() and lengths.read_text() == "[[10, 1.0]]" and "curve" in Path(profile).read_text()
    )


def test_a_trace_in_the_folder_of_results_is_safe(profile: str, tmp_path: Path) -> None:
    trace = tmp_path / "requests-1.csv"
    trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.68,5,5\n")
    assert simulate(profile, "--out", str(tmp_path), workload=str(trace)) == 2
    assert "Context" in trace.read_text()
    other = trace.rename(tmp_path / "requests-7.csv")
    assert simulate(profile, "--out", str(tmp_path), workload=str(other)) == 0
    assert "Context" in other.read_text(), "no rows of this command"


def test_rows_of_an_earlier_result_go(profile: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert simulate(profile, "--out", str(out), "--vary", "max_num_seqs=1,2,3") == 0
    others = ("requests-02.csv", "requests-x.csv", "my-requests-3.csv", "requests-3.csv.bak", "requests-9.csv")
    for name in others[:-1]:
        (out / name).write_text(",".join(COLUMNS) + "\n")
    (out / others[-1]).write_text("somebody's own\n")
    assert simulate(profile, "--out", str(out), "--vary", "max_num_seqs=1,2") == 0
    names = {p.name for p in out.iterdir()}
    assert names == {"result.json", "report.html", "requests-1.csv", "requests-2.csv", *others}


# --- names -----------------------------------------------------------------------------------------------------------


def test_no_escape_reaches_the_terminal(profile: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    trace = tmp_path / f"{HOSTILE}.csv"
    trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.68,5,5\n")
    named = tmp_path / f"{HOSTILE}.yaml"
    text = Path(profile).read_text()
    assert "notes: []" in text
    named.write_text(text.replace("notes: []", 'notes: ["x\\e[31my\\u202ez"]'))
    html = tmp_path / f"{HOSTILE}.html"
    assert simulate(str(named), "--html", str(html), workload=str(trace)) == 0
    assert simulate(str(named), "--speed", "0", workload=str(trace)) == 2
    assert simulate(str(named), workload=str(tmp_path / f"no{HOSTILE}.csv")) == 2
    assert simulate(str(named) + HOSTILE, workload=LOAD) == 2
    found = capfd.readouterr()
    assert "a�[31m�b" in found.out and "x�[31m�yz" not in found.out and "note: x�[31my�z" in found.out
    for said in (found.out, found.err, html.read_text()):
        assert "\x1b" not in said and "\u202e" not in said.partition("<script")[0]


def test_names_that_are_not_utf8(profile: str, tmp_path: Path) -> None:
    trace = os.path.join(os.fsencode(tmp_path), b"caf\xe9.csv")  # noqa: PTH118 - bytes
    with open(trace, "w") as file:  # noqa: PTH123
        file.write("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.68,5,5\n")
    for outputs in (["--out", "out"], ["--json", "-"], ["--html", b"caf\xe9.html"]):
        done = subprocess.run(
            [FOREBAY, "simulate", trace, "--profile", profile, *outputs],
            cwd=tmp_path, capture_output=True, timeout=60, check=False,
        )  # fmt: skip
        assert (done.returncode, b"Traceback" in done.stderr) == (0, False), done.stderr
        if "-" in outputs:
            assert json.loads(done.stdout.decode())["workload"]["name"] == os.fsdecode(trace)
    found = json.loads((tmp_path / "out/result.json").read_text(encoding="utf-8"))
    assert found["workload"]["name"] == os.fsdecode(trace)
    assert "caf" in (tmp_path / "out/report.html").read_text(encoding="utf-8")


# --- what the settings say -------------------------------------------------------------------------------------------


def settings(profile: str, tmp_path: Path, *arguments: str) -> list[dict[str, object]]:
    path = tmp_path / "settings.json"
    assert simulate(profile, "--json", str(path), *arguments) == 0
    return [run["settings"] for run in json.loads(path.read_text())["runs"]]


def test_the_settings_are_those_that_held(profile: str, tmp_path: Path) -> None:
    found = settings(profile, tmp_path, "--batching", "continuous,static,dynamic")
    assert [s["batch_wait"] for s in found] == [None, 10.0, 0.1]
    assert {"kv_bandwidth", "gpu_memory_utilization", "async_scheduling", "host"} <= set(found[0])
    assert found[0]["async_scheduling"] is False, "as the calibrated engine schedules"
    assert settings(profile, tmp_path, "--vary", "async_scheduling=true")[0]["async_scheduling"] is True
    assert settings(profile, tmp_path, "--batching", "static", "--vary", "batch_wait=3")[0]["batch_wait"] == 3


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--tp", "2"], "is of an engine as it ran, which tp 2 does not change"),
        (["--gpu", "h100"], "does not say of which GPU it is"),
        (["--dtype", "fp8"], "does not say the dtype of its weights"),
        (["--kv-dtype", "fp8"], "does not say the dtype of its KV cache"),
        (["--model", "qwen3-32b"], "is of the model 'a-model', taken to be Qwen/Qwen3-32B"),
        (["--vary", "enforce_eager=true"], "is of an engine as it ran, which enforce_eager does not change"),
        (["--vary", "gpu_memory_utilization=0.5"], "which gpu_memory_utilization does not change"),
    ],
)
def test_a_profile_used_for_something_else_is_said_and_strictly_refused(
    arguments: list[str], says: str, profile: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "x.json"
    assert simulate(profile, "--json", str(path), *arguments) == 0
    (run,) = json.loads(path.read_text())["runs"]
    assert any(says in warning for warning in run["warnings"]), run["warnings"]
    if arguments[0] != "--vary":
        assert arguments[1] in run["name"]
    assert says in " ".join(capsys.readouterr().out.split())
    if "taken to be" not in says:
        assert simulate(profile, "--json", str(path), "--strict", *arguments) == 2
        assert says in capsys.readouterr().err

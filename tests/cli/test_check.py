from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from forebay.config.schema import editor_schema

PROGRAM = Path(sys.executable).with_name("forebay")

BAD = """\
admin: 127.0.0.1:8080
engines:
  - name: a
    url: http://h:8000/v1
    kind: ${KIND}
    api_key: sk-in-the-file
limits:
  pipelined: 0
  pipelnied: 1
"""
PROBLEMS = """\
{0}:1: admin: the address is taken: listeners[0].address by default is 127.0.0.1:8080 (found '127.0.0.1:8080')
{0}:4: engines[0].url: leave /v1 off: it is added to each request's path (found 'http://h:8000/v1')
{0}:5: engines[0].kind: the environment variable KIND is not set; set it or write ${{KIND:-default}}
{0}:8: limits.pipelined: out of range (found 0; allowed a whole number from 1 to 1,000)
{0}:9: limits.pipelnied: unknown key; did you mean pipelined? (allowed header_bytes, header_count, body_bytes, \
response_bytes, error_bytes, event_bytes, write_buffer_bytes, connections, pipelined, end_users)
"""


def check(*arguments: str | Path, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if k != "KIND"} | (env or {})
    return subprocess.run([PROGRAM, "check", *arguments], capture_output=True, text=True, timeout=60, env=environment)


def test_a_bad_file_names_everything(tmp_path: Path) -> None:
    file = tmp_path / "forebay.yaml"
    file.write_text(BAD)
    done = check(file)
    assert (done.returncode, done.stdout, done.stderr) == (78, PROBLEMS.format(file), "")


def test_the_same_for_programs(tmp_path: Path) -> None:
    file = tmp_path / "forebay.yaml"
    file.write_text(BAD)
    done = check("--format", "json", file)
    assert (done.returncode, done.stderr) == (78, "")
    answer = json.loads(done.stdout)
    assert answer["ok"] is False
    assert [(p["line"], p["key"]) for p in answer["problems"]] == [
        (1, "admin"),
        (4, "engines[0].url"),
        (5, "engines[0].kind"),
        (8, "limits.pipelined"),
        (9, "limits.pipelnied"),
    ]
    assert answer["problems"][3] == {
        "file": str(file),
        "line": 8,
        "key": "limits.pipelined",
        "message": "out of range",
        "found": "0",
        "allowed": "a whole number from 1 to 1,000",
        "severity": "error",
    }


def test_a_good_file(tmp_path: Path) -> None:
    file = tmp_path / "forebay.yaml"
    file.write_text("engines: [{name: a, url: 'http://h', kind: '${KIND}'}]\n")
    done = check(file, env={"KIND": "openai"})
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{file}: can be used\n", "")
    done = check(file, "--format", "json", env={"KIND": "openai"})
    assert (done.returncode, json.loads(done.stdout)) == (0, {"ok": True, "problems": []})


def test_warnings_are_shown_and_the_file_can_be_used(tmp_path: Path) -> None:
    file = tmp_path / "forebay.yaml"
    file.write_text("admin: 0.0.0.0:8081\nlogging: {bodies: true}\nengines: []\n")
    done = check(file)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == (
        f"{file}:1: admin: warning: the admin port is open to the network, without keys (found 0.0.0.0:8081)\n"
        f"{file}:2: logging.bodies: warning: prompts and answers are written to the log\n"
        f"{file}:3: engines: warning: there are none: `forebay serve` needs one here, or its --engine\n"
        f"{file}: can be used, with 3 warnings\n"
    )


def test_the_price_file_is_part_of_it(tmp_path: Path) -> None:
    file, prices = tmp_path / "forebay.yaml", tmp_path / "prices.yaml"
    file.write_text(
        "ledger: {prices: prices.yaml}\n"
        "engines:\n"
        "  - name: a\n"
        "    url: http://h\n"
        "    price: {gpu_hour: 2, currency: CNY}\n"
    )
    prices.write_text("prices:\n  - model: m\n    input: 1\n    outptu: 2\n")
    done = check(file)
    assert (done.returncode, done.stderr) == (78, "")
    assert done.stdout.startswith(f"{prices}:4: prices[0].outptu: unknown key; did you mean output")
    prices.write_text("prices:\n  - model: m\n    provider: opnai\n    input: 1\n    output: 2\n")
    done = check(file)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == (
        f"{prices}:2: prices[0].provider: warning: no engine is of this provider, and it is none that is known; "
        "did you mean openai? (found 'opnai')\n"
        f"{file}:5: engines[0].price.currency: warning: there is no exchange rate into USD in the price file: its "
        "requests are unpriced (found CNY)\n"
        f"{file}: can be used, with 2 warnings\n"
    )
    file.write_text("ledger: {prices: none.yaml}\nengines: [{name: a, url: 'http://h'}]\n")
    done = check(file)
    assert (done.returncode, done.stdout) == (
        78,
        f"{tmp_path / 'none.yaml'}: cannot be read: No such file or directory\n",
    )


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    file = tmp_path / "none.yaml"
    done = check(file)
    assert (done.returncode, done.stdout, done.stderr) == (
        78,
        f"{file}: cannot be read: No such file or directory\n",
        "",
    )


def test_an_ascii_terminal_shows_what_it_can(tmp_path: Path) -> None:
    file = tmp_path / "f.yaml"
    file.write_text("admin: é\n")
    done = check(file, env={"PYTHONIOENCODING": "ascii"})
    assert (done.returncode, done.stderr) == (78, "")
    assert done.stdout.endswith("(found '\\xe9')\n")


def test_the_schema_is_printed() -> None:
    done = subprocess.run([PROGRAM, "schema"], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == editor_schema()

"""The program as a shell sees it: real processes, their output, their exit codes."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
import typer

from forebay import __version__
from forebay.cli import main
from forebay.cli.main import COMMANDS, overview
from forebay.config.load import loads

PROGRAM = Path(sys.executable).with_name("forebay")


def forebay(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([PROGRAM, *arguments], capture_output=True, text=True, timeout=60)


def test_version_and_help() -> None:
    done = forebay("--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"forebay {__version__}\n", "")
    for spelling in ("--help", "-h", "help"):
        done = forebay(spelling)
        assert (done.returncode, done.stdout, done.stderr) == (0, overview() + "\n", "")
    width = max(map(len, COMMANDS))
    for name, command in COMMANDS.items():
        assert f"  {name:<{width}}  {command.summary}\n" in overview()


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("chekc", "forebay: there is no command 'chekc'; did you mean 'check'?"),
        ("xyzzy", "forebay: there is no command 'xyzzy'; 'forebay --help' lists them."),
        ("--versoin", "forebay: there is no option '--versoin'; did you mean '--version'?"),
        ("\x1b[31m", "forebay: there is no command '�[31m'; 'forebay --help' lists them."),
    ],
)
def test_unknown_words(word: str, message: str) -> None:
    done = forebay(word)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", message + "\n")


def test_no_command() -> None:
    done = forebay()
    assert (done.returncode, done.stdout, done.stderr) == (2, "", overview() + "\n")


def test_as_a_module() -> None:
    done = subprocess.run([sys.executable, "-m", "forebay", "--version"], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, f"forebay {__version__}\n")


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_where_the_table_says(name: str) -> None:
    command = COMMANDS[name]
    target = getattr(import_module(command.module), command.attribute)
    assert isinstance(target, typer.Typer) if command.attribute == "app" else callable(target)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_helps(name: str) -> None:
    done = forebay(name, "--help")
    assert done.returncode == 0
    assert done.stdout.startswith(f"Usage: forebay {name} ")
    assert forebay("help", name).stdout == done.stdout


def test_a_wrong_option_is_named() -> None:
    done = forebay("check", "--colour", "red", "f")
    assert (done.returncode, done.stdout) == (2, "")
    assert "No such option" in done.stderr
    assert "--colour" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["bench", "http://h", "--arrivals", "often"], "'often' is not one of 'poisson', 'uniform', 'gamma'."),
        (["check", "--format", "xml", "f"], "'xml' is not one of 'text', 'json'."),
        (["serve", "--engine", "diesel"], "'diesel' is not one of 'emulated', 'local'."),
        (["engine", "--port", "foo"], "Invalid value for '--port': "),
        (["engine", "--max-num-seqs", "0"], "forebay engine: --max-num-seqs must be greater than 0, not 0"),
        (["key", "create", "--name"], "--name"),
    ],
)
def test_a_wrong_value_is_told_from_the_right_ones(arguments: list[str], said: str) -> None:
    done = forebay(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
    assert "Value error" not in done.stderr
    assert "Traceback" not in done.stderr


IMPORTED = """
import sys
sys.argv = ["forebay", *{arguments!r}]
from forebay.cli.main import main
try:
    main()
except SystemExit:
    pass
print(sorted({{m.partition(".")[0] for m in sys.modules}} & {{*{names!r}}}), file=sys.stderr)
"""


@pytest.mark.parametrize(
    ("arguments", "absent"),
    [
        (["--version"], ["pydantic", "typer", "rich", "ruamel", "ssl", "asyncio"]),
        (["--help"], ["pydantic", "typer", "rich", "ruamel", "ssl", "asyncio"]),
        (["schema"], ["rich", "ruamel", "sqlalchemy", "uvloop"]),
        (["check", "/no/such/file"], ["rich", "ruamel", "sqlalchemy", "uvloop"]),
    ],
)
def test_what_a_command_does_not_use_is_not_imported(arguments: list[str], absent: list[str]) -> None:
    script = IMPORTED.format(arguments=arguments, names=absent)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.stderr == "[]\n"


@pytest.mark.parametrize(("arguments", "code"), [(["--help"], 1), (["schema"], 1), (["check", "/no/such/file"], 78)])
def test_a_closed_pipe_is_no_traceback(arguments: list[str], code: int) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run([PROGRAM, *arguments], stdout=writer, stderr=subprocess.PIPE, text=True, timeout=60)
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (code, "")


def test_no_stdout_at_all() -> None:
    done = subprocess.run(["sh", "-c", f"{PROGRAM} --help >&-"], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def refuse() -> None:
    """Read a configuration that cannot be used."""
    loads("admin: 1\n", "forebay.yaml", {})


def interrupted() -> None:
    raise KeyboardInterrupt


def run(command: str, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(main, "COMMANDS", {"x": main.Command(__name__, command, "")})
    return main.run(["x"])


def test_a_bad_configuration_ends_any_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("refuse", monkeypatch) == 78
    out, err = capsys.readouterr()
    allowed = "an address is written host:port (port 0 to 65535), [v6]:port or unix:/absolute/path"
    assert (out, err) == ("", f"forebay.yaml:1: admin: {allowed} (found 1)\n")


def test_ctrl_c(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run("interrupted", monkeypatch) == 130

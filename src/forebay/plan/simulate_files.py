"""Where a simulation's results go: looked at before anything runs, written when all is done."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from forebay.plan.simulate import Setup, SimulateError
from forebay.plan.written import replacing, to_stdout

REPORT: Final = "forebay-simulation.html"
"""Where the report goes if nothing else is said."""


class Outputs:
    """Files of one command. Makes the folder. Raises SimulateError, and OSError for a folder that cannot be made.

    `inputs`: paths that may be read, of files or folders; none of them is written to.
    """

    def __init__(
        self, out: str | None, json_file: str | None, html_file: str | None, runs: int, inputs: Sequence[str]
    ) -> None:
        for option, given in (("--out", out), ("--json", json_file), ("--html", html_file)):
            if given == "" or (given == "-" and option != "--json"):
                what = "DIR" if option == "--out" else "FILE"
                raise SimulateError(f"{option} needs the name of a {what}, not '{given}'")
        if out is None and json_file is None and html_file is None:
            html_file = REPORT
        self.out = None if out is None else Path(out)
        self.to_stdout = json_file == "-"
        self.runs = runs
        self.json = [] if json_file is None or self.to_stdout else [Path(json_file)]
        self.html = [] if html_file is None else [Path(html_file)]
        named = [*self.json, *self.html]
        if self.out is not None:
            self.json.append(self.out / "result.json")
            self.html.append(self.out / "report.html")
        self._apart(inputs)
        if self.out is not None:
            self.out.mkdir(parents=True, exist_ok=True)
            named += [self.json[-1], self.html[-1], *map(self._rows, range(1, runs + 1))]
        for path in named:
            _writable(path)

    def rows(self, setups: Sequence[Setup]) -> list[Setup]:
        """Each with its file of rows."""
        if self.out is None:
            return list(setups)
        return [replace(setup, rows=str(self._rows(i))) for i, setup in enumerate(setups, 1)]

    def write(self, result: dict[str, Any]) -> Iterator[Path]:
        """Write all; yields each file that is there. Raises OSError that names the first that cannot be."""
        from forebay.plan.report import write_html
        from forebay.plan.simulate_result import drop_old_rows

        # A lone surrogate (of a name that is not UTF-8) has no bytes; Python's escape of it is JSON's, too.
        text = json.dumps(result, indent=1, allow_nan=False, ensure_ascii=False) + "\n"
        for path in self.json:
            with replacing(path, errors="backslashreplace") as file:
                file.write(text)
            yield path
        for path in self.html:
            write_html(result, path)
            yield path
        if self.out is not None:
            drop_old_rows(self.out, self.runs)
        if self.to_stdout:
            to_stdout(text)

    def _rows(self, i: int) -> Path:
        assert self.out is not None
        return self.out / f"requests-{i}.csv"

    def _apart(self, inputs: Sequence[str]) -> None:
        """Raises SimulateError where two results go to one file, or a result to what is read."""
        ours = [*self.json, *self.html]
        if self.out is not None:
            ours += map(self._rows, range(1, self.runs + 1))
        seen: set[Path] = set()
        for path in ours:
            whole = _resolved(path)
            if whole in seen:
                raise SimulateError(f"{path}: two results would be written to it")
            seen.add(whole)
            for name in inputs:
                if _is_of(path, whole, Path(name)):
                    raise SimulateError(f"{path}: is read from, so no result is written to it")


def _resolved(path: Path) -> Path:
    try:
        return path.resolve()
    except (OSError, RuntimeError, ValueError) as e:
        raise SimulateError(f"{path}: cannot be written: {e}") from None


def _is_of(path: Path, whole: Path, read: Path) -> bool:
    """Whether writing to `path` would change the file or the folder that is `read`."""
    try:
        if not path.is_file():
            return False
        return path.samefile(read) or (read.is_dir() and whole.is_relative_to(read.resolve()))
    except (OSError, ValueError):
        return False


def _writable(path: Path) -> None:
    try:
        if path.is_dir():
            raise SimulateError(f"{path}: is a folder, a file is needed")
        if not path.parent.is_dir():
            raise SimulateError(f"{path}: there is no folder {path.parent}")
        if not os.access(path if path.exists() else path.parent, os.W_OK):
            raise SimulateError(f"{path}: cannot be written")
    except ValueError as e:  # a NUL in the name
        raise SimulateError(f"{path}: cannot be written: {e}") from None

"""Compile the modules that pyproject.toml names (tool.hatch…hooks.mypyc) to C, beside their sources, for this Python.

    python tools/compile.py            # a minute or two; says so and does nothing where there is no C compiler
    python tools/compile.py --remove   # the same files run as Python again

A compiled module hides its source: whoever edits one runs this again. The Makefile does, and tests refuse to run on one
that is older than its source.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src"
SUFFIX = sysconfig.get_config_var("EXT_SUFFIX")
SETUP = Path(__file__).with_name("compile_setup.py")


def modules() -> list[str]:
    """Paths below src."""
    hook = tomllib.loads((ROOT / "pyproject.toml").read_text())
    section = hook["tool"]["hatch"]["build"]["targets"]["wheel"]["hooks"]["mypyc"]
    left_out = {path for pattern in section["exclude"] for path in ROOT.glob(pattern)}
    found = {path for pattern in section["include"] for path in ROOT.glob(pattern)} - left_out
    return sorted(str(path.relative_to(SOURCE)) for path in found)


def compiled() -> list[Path]:
    """What an earlier run left, of any module, for this Python."""
    return sorted(SOURCE.rglob(f"*{SUFFIX}"))


def remove() -> None:
    for path in compiled():
        path.unlink()


def unable() -> str:
    """Why nothing can be compiled here; "": it can."""
    compiler = (os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc").split()[0]
    if shutil.which(compiler) is None:
        return f"there is no C compiler ({compiler})"
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        return "Python's headers are not installed (Debian: python3-dev)"
    return ""


def up_to_date() -> bool:
    """Everything that is to be compiled is, and nothing else, after the last change of its source."""
    wanted = {SOURCE / name.removesuffix(".py") for name in modules()}
    there = {
        Path(str(path).removesuffix(SUFFIX)): path.stat().st_mtime for path in compiled() if "__mypyc" not in path.name
    }
    asked = max(path.stat().st_mtime for path in (ROOT / "pyproject.toml", Path(__file__), SETUP))
    return wanted == set(there) and all(
        built >= max(asked, module.with_suffix(".py").stat().st_mtime) for module, built in there.items()
    )


def build() -> str:
    """Compile, and put all beside their sources, or nothing. Returns what went wrong; "": nothing did."""
    names = modules()
    with tempfile.TemporaryDirectory(prefix="forebay-compile-") as folder:
        listed = Path(folder, "modules")
        listed.write_text("\n".join(names))
        out = Path(folder, "out")
        command = [sys.executable, str(SETUP), str(listed), str(Path(folder, "c")), "-q", "build_ext"]
        command += ["--build-lib", str(out), "--build-temp", folder]
        ran = subprocess.run(
            command,
            cwd=SOURCE,
            env=os.environ | {"MYPYPATH": str(SOURCE), "MYPY_CACHE_DIR": str(Path(folder, "cache"))},
            capture_output=True,
            text=True,
            check=False,
        )
        remove()
        if ran.returncode:
            return (ran.stdout + ran.stderr)[-4000:]
        for path in sorted(out.rglob(f"*{SUFFIX}")):
            shutil.copyfile(path, SOURCE / path.relative_to(out))
    return ""


def main() -> int:
    if "--remove" in sys.argv[1:]:
        remove()
        return 0
    why = unable()
    if why:
        remove()
        print(f"nothing is compiled: {why}. Everything runs, as Python, at more CPU time a request.")
        return 0
    if up_to_date():
        return 0
    print(f"compiling {len(modules())} modules: a minute or two", flush=True)
    why = build()
    if why:
        print(f"{why}\nnot compiled: see above. Everything runs, as Python, at more CPU time a request.")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

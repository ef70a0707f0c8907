"""What mypyc does otherwise than Python, kept out of the modules that it compiles."""

from __future__ import annotations

import ast
import runpy
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MODULES: list[str] = runpy.run_path(str(ROOT / "tools" / "compile.py"))["modules"]()
PURE = {"bisect_left", "end", "find", "index", "len", "rfind", "round", "start"}
"""What may be called twice, and is quick."""


def doubled(source: str) -> Iterator[str]:
    """Slices whose bounds call something: mypyc 2.4 evaluates the bounds of a slice of anything but a list, tuple, str
    or bytes twice (`try_gen_slice_op`)."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Subscript) or not isinstance(node.slice, ast.Slice):
            continue
        for bound in (node.slice.lower, node.slice.upper):
            for call in ast.walk(bound) if bound is not None else ():
                if isinstance(call, ast.Await) or (isinstance(call, ast.Call) and _name(call) not in PURE):
                    yield f"{node.lineno}: {ast.unparse(node)}"


def _name(call: ast.Call) -> str:
    of = call.func
    return of.attr if isinstance(of, ast.Attribute) else of.id if isinstance(of, ast.Name) else ""


@pytest.mark.parametrize("module", MODULES)
def test_no_slice_does_anything_in_its_bounds(module: str) -> None:
    assert list(doubled((ROOT / "src" / module).read_text())) == []


def test_one_that_does_is_found() -> None:
    assert list(doubled("view = view[os.write(fd, view) :]")) == ["1: view[os.write(fd, view):]"]
    assert list(doubled("a[len(b) : x.end()]")) == []


def test_nothing_copies_or_pickles_what_is_compiled() -> None:
    """`copy.copy` calls the class without arguments where it is compiled, and pickle cannot make one."""
    for module in MODULES:
        for node in ast.walk(ast.parse((ROOT / "src" / module).read_text())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            of = [node.module] if isinstance(node, ast.ImportFrom) else []
            assert not {"copy", "pickle", "weakref"} & {*names, *of}, module

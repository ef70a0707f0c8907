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


def lost_defaults(source: str) -> Iterator[str]:
    """Methods that interpreted code may inherit, with a default of type float: called by compiled code on an
    interpreted subclass, mypyc 2.4 gives them 0 instead."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.ClassDef) or "allow_interpreted_subclasses" not in map(_names, node.decorator_list):
            continue
        for method in node.body:
            if isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef):
                takes = method.args
                behind = [*takes.posonlyargs, *takes.args][::-1]
                given = [
                    *zip(behind, takes.defaults[::-1], strict=False),
                    *zip(takes.kwonlyargs, takes.kw_defaults, strict=True),
                ]
                for argument, default in given:
                    said = ast.unparse(argument.annotation) if argument.annotation is not None else ""
                    if default is not None and said == "float":
                        yield f"{method.lineno}: {node.name}.{method.name}: {argument.arg}"


def _names(decorator: ast.expr) -> str:
    return (decorator.keywords[0].arg or "") if isinstance(decorator, ast.Call) and decorator.keywords else ""


@pytest.mark.parametrize("module", MODULES)
def test_no_default_is_lost_on_the_way_to_a_subclass(module: str) -> None:
    assert list(lost_defaults((ROOT / "src" / module).read_text())) == []


def test_a_default_that_is_lost_is_found() -> None:
    of = "@mypyc_attr(allow_interpreted_subclasses=True)\nclass A:\n def f(self, a: int, {}) -> None: ..."
    assert list(lost_defaults(of.format("b: float = 1.0"))) == ["3: A.f: b"]
    assert list(lost_defaults(of.format("*, b: float = 1.0"))) == ["3: A.f: b"]
    assert list(lost_defaults(of.format("b: float, *, c: int = 1, d: float | None = None"))) == []


def test_nothing_copies_or_pickles_what_is_compiled() -> None:
    """`copy.copy` calls the class without arguments where it is compiled, and pickle cannot make one."""
    for module in MODULES:
        for node in ast.walk(ast.parse((ROOT / "src" / module).read_text())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            of = [node.module] if isinstance(node, ast.ImportFrom) else []
            assert not {"copy", "pickle", "weakref"} & {*names, *of}, module

"""Compiled modules as Python, for tests whose doubles compiled code would refuse: it looks at the types it is given."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import forebay

_SOURCE = Path(forebay.__file__).parent.parent


def pure(*names: str) -> Any:
    """The module of the last name, from its source; where it imports those named before it, it gets theirs. Everybody
    else's stay as they are."""
    before = {name: sys.modules.get(name) for name in names}
    try:
        for name in names:
            path = _SOURCE.joinpath(*name.split(".")).with_suffix(".py")
            spec = importlib.util.spec_from_file_location(name, path)
            assert spec is not None and spec.loader is not None
            module = sys.modules[name] = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
        made: ModuleType = sys.modules[names[-1]]
        return made
    finally:
        for name, was in before.items():
            if was is None:
                sys.modules.pop(name, None)
            else:
                sys.modules[name] = was

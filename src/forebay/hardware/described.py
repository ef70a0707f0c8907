"""The models whose config.json PyPI `aiconfigurator-core` (the extra `forebay[gpus]`) ships; nothing is imported."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

_END = "_config.json"
_QUANTISED = "_hf_quant_config.json"


def descriptions() -> Mapping[str, Path]:
    """The files by the models' hub names; none where the package is not installed."""
    spec = find_spec("aiconfigurator_core")
    if spec is None or not spec.submodule_search_locations:
        return {}
    folder = Path(next(iter(spec.submodule_search_locations))) / "model_configs"
    files = sorted(path for path in folder.glob(f"*{_END}") if not path.name.endswith(_QUANTISED))
    return {path.name.removesuffix(_END).replace("--", "/"): path for path in files}


def described(name: str) -> Path | None:
    """The config.json of this model; upper and lower case are one."""
    plain = name.strip().lower()
    return next((path for known, path in descriptions().items() if known.lower() == plain), None)

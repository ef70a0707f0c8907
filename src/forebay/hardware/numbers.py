"""A model or a GPU that no catalogue knows, from numbers that somebody types."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from difflib import get_close_matches
from math import sqrt
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from .files import read
from .shapes import Gpu, ModelShape, dtype_name


class BadNumbers(ValueError):
    """Numbers that do not describe a model or a GPU. The message names the one and says what is needed."""


_WORD = re.compile(r"\s*([A-Za-z_][A-Za-z_0-9]*)\s*=\s*([^,]+?)\s*(?:,|$)")
_NUMBER = re.compile(r"([0-9][0-9_]*(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?)\s*([A-Za-z/]*)", re.IGNORECASE)
_PREFIX: Final = MappingProxyType({"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "b": 1e9, "t": 1e12, "p": 1e15})
_BINARY: Final = MappingProxyType({"ki": 1024.0, "mi": 1024.0**2, "gi": 1024.0**3, "ti": 1024.0**4})
_MOST = 1e18


def _pairs(text: str, what: str) -> dict[str, str]:
    pairs: dict[str, str] = {}
    at = 0
    for found in _WORD.finditer(text):
        if found.start() != at:
            break
        at = found.end()
        if found[1].lower() in pairs:
            raise BadNumbers(f"{what}: {found[1]} is given twice")
        pairs[found[1].lower()] = found[2]
    if at != len(text):
        raise BadNumbers(f"{what}: {text[at : at + 40]!r} is not NAME=NUMBER; they are separated by commas")
    return pairs


def _quantity(what: str, name: str, text: str, unit: str) -> float:
    """A number with an optional prefix and `unit` (`b`, `b/s`, `flop/s` or none)."""
    found = _NUMBER.fullmatch(text.strip())
    if found is not None:
        number, end = float(found[1].replace("_", "")), found[2].lower().removesuffix("/s")
        if unit == "flop/s":
            end = re.sub(r"(fl)?ops?$", "", end)
        factor = _PREFIX.get(end)
        if unit.startswith("b") and end:
            bare = end.removesuffix("b")
            factor = _BINARY.get(bare, _PREFIX.get(bare))
        if factor is not None and 0 <= number * factor < _MOST:
            return number * factor
    raise BadNumbers(f"{what}: {name} is {text[:40]!r} where a number such as {_EXAMPLES[unit]} is needed")


_EXAMPLES: Final = MappingProxyType(
    {"": "80 or 70e9", "b": "80GB or 80GiB", "b/s": "2TB/s", "flop/s": "312e12 or 312T"}
)

_COUNTS: Final = MappingProxyType(
    {
        "layers": "layers",
        "hidden": "hidden",
        "heads": "heads",
        "kv_heads": "kv_heads",
        "head_dim": "head_dim",
        "intermediate": "intermediate",
        "vocab": "vocab",
        "experts": "experts",
        "experts_per_token": "experts_per_token",
        "moe_intermediate": "moe_intermediate",
        "shared_experts": "shared_experts",
        "dense_layers": "dense_layers",
        "latent": "kv_lora_rank",
        "kv_lora_rank": "kv_lora_rank",
        "rope_head_dim": "rope_head_dim",
        "v_head_dim": "v_head_dim",
        "q_lora_rank": "q_lora_rank",
        "window": "window",
        "window_layers": "window_layers",
        "linear_layers": "linear_layers",
        "state_bytes": "state_bytes",
        "context": "max_context",
    }
)
"""Words for a model, and the fields that they set."""
_VOCAB = 128_256
_WIDTH = 3.5
"""The MLP's width over the hidden size where neither is given: that of Llama 3."""

_WIDE = 128
"""A width that is solved for is a multiple of this, so that ranks can split it; what is left over is not of a layer."""


def model_of(text: str) -> ModelShape:
    """A model from `layers`, `kv_heads` and `head_dim` at least, beside `params` or all of `hidden`, `heads` and
    `intermediate`. What is not given is as in Llama 3, the MLP as wide as `params` demands. `window` without
    `window_layers` is of all layers. Raises `BadNumbers`."""
    what = f"model {text[:80]!r}"
    pairs = _pairs(text, what)
    name, dtype = pairs.pop("name", text.strip()), pairs.pop("dtype", "bf16")
    unknown = next((word for word in pairs if word not in _COUNTS and word != "params"), None)
    if unknown is not None:
        words = [*_COUNTS, "params", "dtype", "name"]
        near = get_close_matches(unknown, words, n=1)
        raise BadNumbers(
            f"{what}: {unknown} is unknown" + (f"; is {near[0]} meant?" if near else f"; known are {', '.join(words)}")
        )
    params = _quantity(what, "params", pairs.pop("params"), "") if "params" in pairs else None
    given = {_COUNTS[word]: int(_quantity(what, word, value, "")) for word, value in pairs.items()}
    for word in ("layers", "head_dim"):
        if not given.get(word):
            raise BadNumbers(f"{what}: {word} is missing, without which nothing is known of its KV cache")
    if not given.get("kv_heads") and not given.get("kv_lora_rank"):
        raise BadNumbers(
            f"{what}: kv_heads is missing (of MLA: latent), without which nothing is known of its KV cache"
        )
    if params is None and not ("hidden" in given and ("intermediate" in given or "moe_intermediate" in given)):
        raise BadNumbers(f"{what}: params is missing; without it hidden and intermediate are needed")
    try:
        shape = _filled(given, params, name, dtype_name(dtype))
    except ValueError as e:
        raise BadNumbers(f"{what}: {e}") from None
    return shape


def _filled(given: dict[str, int], params: float | None, name: str, dtype: str) -> ModelShape:
    """Raises ValueError."""
    fields = {"vocab": _VOCAB, "heads": 0, "intermediate": 0, "kv_heads": 1} | given
    step = fields["kv_heads"] * fields["head_dim"]
    if "hidden" not in fields:
        assert params is not None
        fields["hidden"] = _hidden(params, fields["layers"], step, fields["vocab"])
    hidden = fields["hidden"]
    fields["heads"] = fields["heads"] or max(1, round(hidden / step)) * fields["kv_heads"]
    if fields["heads"] % fields["kv_heads"]:
        raise ValueError(f"kv_heads {fields['kv_heads']} does not divide heads {fields['heads']}")
    if fields.get("kv_lora_rank"):
        fields |= {"rope_head_dim": fields.get("rope_head_dim", 64)}
        fields |= {"v_head_dim": fields.get("v_head_dim", fields["head_dim"])}
    if fields.get("window") and "window_layers" not in fields:
        fields["window_layers"] = fields["layers"] - fields.get("linear_layers", 0)
    if fields.get("window_layers") and not fields.get("window"):
        raise ValueError("window_layers needs window, the tokens that they look back")
    beside = fields.get("window_layers", 0) + fields.get("linear_layers", 0)
    if beside > fields["layers"] or fields.get("dense_layers", 0) > fields["layers"]:
        raise ValueError(f"window_layers, linear_layers or dense_layers are more than the {fields['layers']} layers")
    width = "moe_intermediate" if fields.get("experts") else "intermediate"
    if fields.get("experts") and not fields.get("experts_per_token"):
        raise ValueError("experts needs experts_per_token")
    whole: dict[str, Any] = dict(fields)
    shape = ModelShape(name=name, dtype=dtype, **whole)
    if params is None:
        return shape
    if not fields.get(width):
        one: dict[str, Any] = {width: 1}
        each = replace(shape, **one).parameters() - shape.parameters()
        most = max(0, int((params - shape.parameters()) // each))
        solved: dict[str, Any] = {width: most - most % _WIDE}
        shape = replace(shape, **solved)
    extra = int(params) - shape.parameters()
    if extra < 0:
        raise ValueError(f"params {params:,.0f} is less than the {shape.parameters():,} of these layers")
    return replace(shape, extra=extra)


def _hidden(params: float, layers: int, step: int, vocab: int) -> int:
    """The hidden size of a Llama 3 of so many weights, a multiple of `step`: the root of
    layers · ((2 + 3 · width) h² + 2 · step · h) + 2 · vocab · h = params."""
    a, b = layers * (2 + 3 * _WIDTH), 2.0 * (layers * step + vocab)
    return max(1, round((sqrt(b * b + 4 * a * params) - b) / (2 * a) / step)) * step


_GPU: Final = MappingProxyType(
    {"vram": "b", "bandwidth": "b/s", "flops": "flop/s", "fp8": "flop/s", "int8": "flop/s", "link": "b/s", "price": ""}
)
"""Words for a GPU and their units."""
_PCIE = 19e9
_SWITCHED = 100e9
"""A link of this many bytes a second or more is taken for a switched one (NVLink) and not for PCIe."""


def gpu_of(text: str) -> Gpu:
    """A GPU from `vram` (GB as on the label, which are GiB), `bandwidth` and `flops` (dense, bf16), and where they
    matter `fp8`, `int8`, `link` (bytes a second of an all-reduce; PCIe where not given), `price` an hour. Raises
    `BadNumbers`."""
    return gpu_of_fields(_pairs(text, f"GPU {text[:80]!r}"), f"GPU {text[:80]!r}", text.strip())


def gpu_of_fields(fields: Mapping[str, object], what: str, name: str) -> Gpu:
    """The same from the values of a file. Raises `BadNumbers`."""
    words = [*_GPU, "name"]
    unknown = next((word for word in fields if word not in words), None)
    if unknown is not None:
        near = get_close_matches(str(unknown), words, n=1)
        raise BadNumbers(
            f"{what}: {unknown} is unknown" + (f"; is {near[0]} meant?" if near else f"; known are {', '.join(words)}")
        )
    numbers: dict[str, float] = {}
    for word, unit in _GPU.items():
        if fields.get(word) is not None:
            text = str(fields[word])
            if word == "vram":
                text = re.sub(r"(?i)([kmgt])b$", r"\1iB", text.strip())
            numbers[word] = _quantity(what, word, text, unit)
        elif word in ("vram", "bandwidth", "flops"):
            raise BadNumbers(f"{what}: {word} is missing, such as {word}={_EXAMPLES[unit].split(' or ')[0]}")
    for word in ("vram", "bandwidth", "flops"):
        if numbers[word] <= 0:
            raise BadNumbers(f"{what}: {word} must be more than 0")
    for word, least in _LEAST.items():
        if numbers[word] < least:
            example = _EXAMPLES[_GPU[word]].split(" or ")[-1]
            raise BadNumbers(f"{what}: {word} is {fields[word]}, less than any GPU has: give its unit, as in {example}")
    link = numbers.get("link", _PCIE)
    title = str(fields.get("name") or name)
    return Gpu(
        title,
        title,
        int(numbers["vram"]),
        numbers["bandwidth"],
        numbers["flops"],
        numbers.get("fp8"),
        numbers.get("int8"),
        link,
        5e-6 if link >= _SWITCHED else 10e-6,
        link >= _SWITCHED,
        numbers.get("price"),
        "",
    )


_LEAST: Final = MappingProxyType({"vram": 2**28, "bandwidth": 1e9, "flops": 1e9})
"""Less is a number whose unit was forgotten."""
_MAX_FILE = 1 << 20


def gpu_from_file(path: Path, name: str | None = None) -> Gpu:
    """A GPU from a YAML or JSON file: either its numbers, or under `gpus` several by their names.
    Raises `BadNumbers`."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    try:
        raw = read(path, _MAX_FILE)
        document: Any = json.loads(raw) if path.suffix == ".json" else YAML(typ="safe", pure=True).load(raw)
    except OSError as e:
        raise BadNumbers(f"{path}: cannot be read: {e.strerror or e}") from e
    except RecursionError:
        raise BadNumbers(f"{path}: is nested too deeply") from None
    except (YAMLError, ValueError) as e:
        raise BadNumbers(f"{path}: cannot be understood: {' '.join(str(e).split())[:200]}") from e
    if not isinstance(document, dict):
        raise BadNumbers(f"{path}: holds {type(document).__name__} where vram, bandwidth, flops are needed")
    several = document.get("gpus")
    if several is None:
        return gpu_of_fields(document, str(path), path.stem)
    if not isinstance(several, dict) or not several or not all(isinstance(v, dict) for v in several.values()):
        raise BadNumbers(f"{path}: gpus must be names, each with its vram, bandwidth, flops")
    if name is None and len(several) == 1:
        name = next(iter(several))
    if name not in several:
        known = ", ".join(map(str, several))
        raise BadNumbers(f"{path}: has the GPUs {known}; say which one: {path}#{next(iter(several))}")
    return gpu_of_fields(several[name], f"{path}: gpus.{name}", str(name))

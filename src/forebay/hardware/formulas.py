"""The reckoning of a memory budget, line by line: formulas with their values filled in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from .shapes import DTYPE_BYTES, ModelShape, dtype_name


@dataclass(frozen=True, slots=True)
class Formula:
    """One line."""

    name: str
    formula: str
    """Words and signs between spaces; the words are keys of `values`."""
    values: Mapping[str, float | str]
    result: float
    unit: str

    def text(self) -> str:
        """`name = formula = values = result unit`; where the formula is one value, `name = result unit`."""
        filled = " ".join(_shown(self.values[word]) if word in self.values else word for word in self.formula.split())
        shown = f"{_shown(self.result)} {self.unit}"
        if self.formula in self.values:
            return f"{self.name} = {self.formula} = {shown}"
        return f"{self.name} = {self.formula} = {filled} = {shown}"


def _shown(value: float | str) -> str:
    if isinstance(value, str):
        return value
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.4g}"


def sum_formula(name: str, parts: Mapping[str, int], unit: str) -> Formula:
    """`a + b + c`, where names of parts may have spaces."""
    words = {part.replace(" ", "_"): value for part, value in parts.items()}
    return Formula(name, " + ".join(words), words, sum(parts.values()), unit)


def per_token(model: ModelShape, kv_dtype: str, tp: int, share: float = 1.0) -> Iterator[Formula]:
    """What a token takes of the KV cache of one rank with `share` of the layers: of layers with full attention, of
    those with a window as long as it is not full, and what a sequence takes of layers with a state."""
    each = DTYPE_BYTES[dtype_name(kv_dtype)]
    if model.full_layers:
        yield _of_layers("KV bytes per token", model, model.full_layers * share, each, tp, windowed=False)
    if model.window_layers:
        name = f"KV bytes per token of the last {model.window:,}"
        yield _of_layers(name, model, model.window_layers * share, each, tp, windowed=True)
    if model.linear_layers:
        values = {"layers": model.linear_layers * share, "state_bytes": model.state_bytes, "tp": tp}
        result = model.linear_layers * share * model.state_bytes / tp
        yield Formula("state per sequence", "layers · state_bytes / tp", values, result, "B")


def _of_layers(name: str, model: ModelShape, layers: float, each: float, tp: int, *, windowed: bool) -> Formula:
    values: dict[str, float | str]
    if model.kv_lora_rank:
        values = {"layers": layers, "latent": model.kv_lora_rank, "rope": model.rope_head_dim, "bytes": each}
        if not model.index_head_dim:
            formula = "layers · ( latent + rope ) · bytes"
            return Formula(name, formula, values, layers * (model.kv_lora_rank + model.rope_head_dim) * each, "B")
        values["index"] = model.index_head_dim + 4
        result = layers * ((model.kv_lora_rank + model.rope_head_dim) * each + model.index_head_dim + 4)
        return Formula(name, "layers · ( ( latent + rope ) · bytes + index )", values, result, "B")
    heads, size = model.heads_of(windowed)
    here = max(1, -(-heads // tp))
    values = {"layers": layers, "kv_heads": here, "head_dim": size, "bytes": each}
    return Formula(name, "2 · layers · kv_heads · head_dim · bytes", values, 2 * layers * here * size * each, "B")

"""Step times fitted to a live engine by `forebay calibrate`, and their file.

    seconds = curve(n + Σ tokens) + per_sequence · (n + chunks that end a prompt) + per_chunk · chunks
              + per_context_token · context + per_attention_pair · Σ tokens · (context + tokens / 2)

`n` sequences decode beside chunks of prefill; `tokens` and `context` in the sums are a chunk's. The curve is the cost
of everything that sees the batch's tokens as one matrix (linear layers, norms) and of the host's own work a step:
straight between its points, beyond the last one on with the last slope. Attention is linear in the pairs of query and
key: one query a decoding sequence over its context, `tokens` queries over `context + tokens / 2` keys on average in a
chunk.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from forebay.hardware.files import opened
from forebay.hardware.keys import FittedError as FittedError
from forebay.hardware.keys import Table, point_of, said, text_of
from forebay.hardware.steptime import Chunk, OutOfProfile

FORMAT: Final = 1
KIND: Final = "fitted"
MAX_BYTES: Final = 1 << 20
MAX_SECONDS: Final = 1e4
"""Of any coefficient."""


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """The engine as it was found. None: it does not say, and nobody else did."""

    kind: str = "openai"
    """vllm, llama.cpp, or openai for any other."""
    version: str | None = None
    model: str = ""
    block_size: int | None = None
    kv_tokens: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    max_model_len: int | None = None
    async_scheduling: bool | None = None
    """Whether a step is put together while the one before it runs."""


@dataclass(frozen=True, slots=True)
class Coefficients:
    """Those of the module's formula, in seconds."""

    curve: tuple[tuple[int, float], ...]
    """(tokens of the step, seconds), tokens rising."""
    per_sequence: float = 0.0
    per_chunk: float = 0.0
    per_context_token: float = 0.0
    per_attention_pair: float = 0.0


@dataclass(frozen=True, slots=True)
class Host:
    """What a request costs before and after its steps: HTTP, tokenizing, hand-over to the engine's process and back.
    Part of its time to first token, of no step. Seconds."""

    per_request: float = 0.0
    per_prompt_token: float = 0.0


@dataclass(frozen=True, slots=True)
class Ranges:
    """The most of each axis that was measured."""

    sequences: int
    """That decode at once."""
    context: int
    """KV tokens of the decoding sequences in sum."""
    tokens: int
    """Of one step, prefill and decode."""
    chunk_context: int
    """KV tokens before a chunk of prefill, and in it."""


@dataclass(frozen=True, slots=True)
class FitError:
    """How far the fit is from the medians that were measured."""

    r2: float
    mape: Mapping[str, float] = field(default_factory=dict)
    """Mean absolute error as a share of what was measured, by axis: prefill, decode, mixed."""
    points: int = 0
    samples: int = 0


@dataclass(frozen=True, slots=True)
class FittedProfile:
    engine: EngineFacts
    date: str
    """ISO 8601."""
    coefficients: Coefficients
    host: Host
    ranges: Ranges
    error: FitError
    notes: tuple[str, ...] = ()
    """What was estimated or left out."""

    def __post_init__(self) -> None:
        _check(self)


_AXES: Final = MappingProxyType(
    {
        "sequences": "sequences that decode",
        "context": "KV tokens in sum",
        "tokens": "tokens in a step",
        "chunk_context": "KV tokens before the end of a chunk",
    }
)


class FittedStepTime:
    """A `StepTime` out of a profile. State: how far outside of it was asked, an axis."""

    __slots__ = (
        "_beyond",
        "_chunk",
        "_context",
        "_curve",
        "_decode",
        "_most",
        "_most_context",
        "_most_n",
        "_pair",
        "_sequence",
        "profile",
        "strict",
    )

    def __init__(self, profile: FittedProfile, strict: bool = False) -> None:
        self.profile = profile
        self.strict = strict
        found = profile.coefficients
        self._sequence = found.per_sequence
        self._chunk = found.per_chunk
        self._context = found.per_context_token
        self._pair = found.per_attention_pair
        self._curve = found.curve
        self._most = profile.ranges
        self._most_n = profile.ranges.sequences
        self._most_context = profile.ranges.context
        self._decode = [curve_at(self._curve, n) + self._sequence * n for n in range(min(self._most_n, 4096) + 1)]
        self._beyond: dict[str, int] = {}

    @property
    def warnings(self) -> Sequence[str]:
        """A line for each axis that was extrapolated."""
        return [self._says(axis, value) for axis, value in self._beyond.items()]

    def decode(self, n: int, context: int, longest: int) -> float:
        """Raises OutOfProfile where it is strict and the batch was not measured."""
        if n > self._most_n:
            self._outside("sequences", n)
        if context > self._most_context:
            self._outside("context", context)
        if n < len(self._decode):
            return self._decode[n] + self._context * context
        return curve_at(self._curve, n) + self._sequence * n + self._context * context

    def mixed(self, chunks: Sequence[Chunk], n: int, context: int, longest: int) -> float:
        """Raises OutOfProfile where it is strict and the batch was not measured."""
        tokens, ends, pairs, deepest = n, n, 0.0, 0
        for size, before, last in chunks:
            tokens += size
            ends += last
            pairs += size * (before + 0.5 * size)
            if before + size > deepest:
                deepest = before + size
        if n > self._most_n or context > self._most_context:
            self._outside("sequences", n)
            self._outside("context", context)
        if tokens > self._most.tokens or deepest > self._most.chunk_context:
            self._outside("tokens", tokens)
            self._outside("chunk_context", deepest)
        return (
            curve_at(self._curve, tokens)
            + self._sequence * ends
            + self._chunk * len(chunks)
            + self._context * context
            + self._pair * pairs
        )

    def _outside(self, axis: str, value: int) -> None:
        if value <= getattr(self._most, axis):
            return
        if self.strict:
            raise OutOfProfile(self._says(axis, value))
        if value > self._beyond.get(axis, 0):
            self._beyond[axis] = value

    def _says(self, axis: str, value: int) -> str:
        most = getattr(self._most, axis)
        far = f"{value / most:.1f} × that" if most else "more"
        return f"the fit to {self.profile.engine.model} covers up to {most:,} {_AXES[axis]}; {value:,} is {far}"

    def __repr__(self) -> str:
        c = self.profile.coefficients
        return f"<FittedStepTime {self.profile.engine.model}: {len(c.curve)} points, error {self.profile.error.mape}>"


def curve_at(curve: Sequence[tuple[int, float]], tokens: int) -> float:
    """Seconds of a step of so many tokens: straight between the points, flat before the first, on after the last."""
    i = min(max(1, bisect_left(curve, (tokens,))), len(curve) - 1)
    if not i or tokens <= curve[i - 1][0]:
        return curve[max(0, i - 1)][1]
    (low, below), (high, above) = curve[i - 1], curve[i]
    if tokens > high and above < below:
        return above
    return below + (above - below) * (tokens - low) / (high - low)


# --- the file ---------------------------------------------------------------------------------------------------------

_UNITS: Final = MappingProxyType(
    {
        "curve": "[tokens of the step, s]",
        "per_sequence": "s for each sequence that samples a token",
        "per_chunk": "s for each chunk of prefill",
        "per_context_token": "s for each KV token of the sequences that decode",
        "per_attention_pair": "s for tokens × (context + tokens / 2) of each chunk of prefill",
    }
)


def load_fitted(path: str | Path, strict: bool = False) -> FittedStepTime:
    """Raises FittedError that names the file and the key."""
    return FittedStepTime(read(Path(path)), strict)


def read(path: Path) -> FittedProfile:
    """Raises FittedError that names the file and the key."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    try:
        with opened(path) as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as e:
        raise FittedError(f"{path}: cannot be read: {e.strerror or e}") from None
    if len(data) > MAX_BYTES:
        raise FittedError(f"{path}: is larger than {MAX_BYTES:,} bytes, so it is no profile")
    try:
        tree = YAML(typ="safe", pure=True).load(data)
    except (YAMLError, ValueError, RecursionError) as e:
        mark = getattr(e, "problem_mark", None)
        where = f":{mark.line + 1}" if mark is not None else ""
        raise FittedError(f"{path}{where}: is not YAML: {getattr(e, 'problem', None) or e}") from None
    try:
        return parse(tree)
    except FittedError as e:
        raise FittedError(f"{path}: {e}") from None


def parse(tree: object) -> FittedProfile:
    """The profile out of what a YAML file holds. Raises FittedError that names the key."""
    top = Table("", tree)
    top.only("forebay_profile", "kind", "date", *_TABLES, "notes")
    for key, wanted in (("forebay_profile", FORMAT), ("kind", KIND)):
        if (found := top.get(key)) != wanted or isinstance(found, bool):
            raise FittedError(f"{key} must be {wanted!r}, not {said(found)}")
    engine = top.table("engine").only("kind", "version", "model", *_FACTS, "async_scheduling")
    facts = EngineFacts(
        kind=engine.text("kind"),
        version=engine.text("version", optional=True),
        model=engine.text("model"),
        **{name: engine.whole(name) for name in _FACTS},
        async_scheduling=engine.flag("async_scheduling"),
    )
    given = top.table("coefficients").only(*_UNITS, "units")
    curve = tuple(point_of(f"coefficients.curve[{i}]", x) for i, x in enumerate(given.items("curve")))
    host = top.table("host").only("per_request", "per_prompt_token", "units")
    ranges = top.table("ranges").only(*_AXES)
    error = top.table("error").only("r2", "mape", "points", "samples")
    mape = error.table("mape").only("prefill", "decode", "mixed")
    return FittedProfile(
        engine=facts,
        date=top.date("date"),
        coefficients=Coefficients(curve, **{name: given.number(name) for name in _UNITS if name != "curve"}),
        host=Host(host.number("per_request"), host.number("per_prompt_token")),
        ranges=Ranges(**{name: ranges.whole(name, optional=False) or 0 for name in _AXES}),
        error=FitError(
            r2=error.number("r2"),
            mape={axis: mape.number(axis) for axis in mape.keys},
            points=error.whole("points", optional=False) or 0,
            samples=error.whole("samples", optional=False) or 0,
        ),
        notes=tuple(text_of(f"notes[{i}]", x) for i, x in enumerate(top.items("notes"))),
    )


def save(profile: FittedProfile, path: str | Path) -> None:
    """Write it, whole or not at all. Raises OSError."""
    from ruamel.yaml import YAML

    def plain(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {k: plain(v) for k, v in value.items()}
        if isinstance(value, (list, tuple)):
            return [plain(v) for v in value]
        return float(f"{value:.6g}") if isinstance(value, float) else value

    found = asdict(profile)
    tree = {"forebay_profile": FORMAT, "kind": KIND, "date": found.pop("date"), **found}
    tree["coefficients"] = {**tree["coefficients"], "units": _UNITS}
    tree["host"] = {**tree["host"], "units": {"per_request": "s", "per_prompt_token": "s"}}
    yaml = YAML(typ="safe", pure=True)
    yaml.default_flow_style = None
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]
    path = Path(path)
    unfinished = path.with_name(f".{path.name}.unfinished")
    try:
        with unfinished.open("w", encoding="utf-8", errors="backslashreplace") as file:
            yaml.dump(plain(tree), file)
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


# --- checks -----------------------------------------------------------------------------------------------------------

_TABLES: Final = ("engine", "coefficients", "host", "ranges", "error")
_FACTS: Final = ("block_size", "kv_tokens", "max_num_seqs", "max_num_batched_tokens", "max_model_len")


def _check(profile: FittedProfile) -> None:
    """Raises FittedError for numbers that no engine has."""
    found = profile.coefficients
    if not found.curve:
        raise FittedError("coefficients.curve must have at least one point")
    before = 0
    for i, (tokens, seconds) in enumerate(found.curve):
        if tokens <= before:
            raise FittedError(f"coefficients.curve[{i}] must have more than {before} tokens, not {tokens}")
        if not 0 <= seconds <= MAX_SECONDS:
            raise FittedError(f"coefficients.curve[{i}] must have 0 to {MAX_SECONDS:,.0f} seconds, not {seconds:g}")
        before = tokens
    if max(s for _, s in found.curve) + found.per_sequence <= 0:
        raise FittedError("coefficients say that a step takes no time")
    for at, table in (("coefficients", found), ("host", profile.host)):
        for name, value in asdict(table).items():
            if name != "curve" and not 0 <= value <= MAX_SECONDS:
                raise FittedError(f"{at}.{name} must be 0 to {MAX_SECONDS:,.0f} seconds, not {value:g}")
    facts = profile.engine
    for name in _FACTS:
        if (value := getattr(facts, name)) is not None and value < 1:
            raise FittedError(f"engine.{name} must be at least 1 or nothing, not {value}")
    if facts.kv_tokens is not None and facts.kv_tokens < (facts.block_size or 1):
        raise FittedError(f"engine.kv_tokens must be at least a block of {facts.block_size}, not {facts.kv_tokens}")
    if (facts.max_num_batched_tokens or math.inf) < (facts.max_num_seqs or 1):
        raise FittedError(
            f"engine.max_num_batched_tokens must be at least engine.max_num_seqs, {facts.max_num_seqs}, "
            f"not {facts.max_num_batched_tokens}"
        )

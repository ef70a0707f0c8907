"""What is searched: settings of a group of engines on the GPUs at hand, and the axes that they are made of."""

from __future__ import annotations

import itertools
import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from types import MappingProxyType
from typing import Any, Final, Union, get_args, get_origin, get_type_hints

from forebay.errors import shown
from forebay.plan.simulate import Setup

MOST_GPUS: Final = 1024
MOST_COMBINATIONS: Final = 200_000


Layout = tuple[int, int, int, int]
"""tp, engines, decode engines, and the tp of these."""


class TuneError(Exception):
    """What cannot be tuned, in one sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """How a group of engines is started, which all take part in one workload. Fields have vLLM's names."""

    tp: int = 1
    """GPUs of each engine."""
    engines: int = 1
    """Replicas; with `decode_engines` those that prefill."""
    decode_engines: int = 0
    decode_tp: int = 0
    """GPUs of each of these; 0: as `tp`."""
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    gpu_memory_utilization: float = 0.9
    max_model_len: int = 8192
    enable_prefix_caching: bool = True
    enable_chunked_prefill: bool = True
    speculative_tokens: int = 0
    dtype: str = "auto"
    kv_dtype: str = "auto"
    enforce_eager: bool = False

    @property
    def gpus(self) -> int:
        return self.tp * self.engines + (self.decode_tp or self.tp) * self.decode_engines

    @property
    def layout(self) -> Layout:
        """How the GPUs are shared out."""
        return self.tp, self.engines, self.decode_engines, self.decode_tp

    def setup(self, base: Setup, acceptance: float, draft_seconds: float) -> Setup:
        """Of `base` with this setting. `draft_seconds`: of one draft token."""
        k = self.speculative_tokens
        speculation = (
            {"speculative_tokens": k, "acceptance": acceptance, "draft_seconds": k * draft_seconds} if k else {}
        )
        return replace(
            base,
            name=str(self),
            engines=self.engines,
            decode_engines=self.decode_engines,
            decode_tp=self.decode_tp or None,
            placement="least_requests" if self.decode_engines else base.placement,
            hardware=replace(
                base.hardware,
                tp=self.tp,
                dtype=self.dtype,
                kv_dtype=self.kv_dtype,
                gpu_memory_utilization=self.gpu_memory_utilization,
                enforce_eager=self.enforce_eager,
            ),
            engine={
                **base.engine,
                "max_num_seqs": self.max_num_seqs,
                "max_num_batched_tokens": self.max_num_batched_tokens,
                "max_model_len": self.max_model_len,
                "enable_prefix_caching": self.enable_prefix_caching,
                "enable_chunked_prefill": self.enable_chunked_prefill,
                **speculation,
            },
        )

    def differs(self, other: Setting) -> dict[str, Any]:
        """Its fields that are not as the other's."""
        return {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) != getattr(other, f.name)}

    def __str__(self) -> str:
        parts = [layout_words(self), f"seqs {self.max_num_seqs}", f"tokens {self.max_num_batched_tokens}"]
        parts += [f"mem {self.gpu_memory_utilization:g}"]
        parts += [] if self.enable_prefix_caching else ["no prefix cache"]
        parts += [] if self.enable_chunked_prefill else ["no chunks"]
        parts += [f"drafts {self.speculative_tokens}"] if self.speculative_tokens else []
        parts += [
            f"{name} {value}" for name, value in (("weights", self.dtype), ("KV", self.kv_dtype)) if value != "auto"
        ]
        parts += ["eager"] if self.enforce_eager else []
        return ", ".join(parts)


def layout_words(setting: Setting) -> str:
    if setting.decode_engines:
        if setting.decode_tp in (0, setting.tp):
            return f"{setting.engines} prefill + {setting.decode_engines} decode × TP {setting.tp}"
        return f"{setting.engines} prefill × TP {setting.tp} + {setting.decode_engines} decode × TP {setting.decode_tp}"
    return f"{setting.engines} × TP {setting.tp}"


LAYOUT: Final = ("tp", "engines", "decode_engines", "decode_tp")
"""The axes that share the GPUs out; one axis here, since they hang together."""
_ALIASES: Final[Mapping[str, str]] = MappingProxyType(
    {"tensor_parallel_size": "tp", "replicas": "engines", "num_speculative_tokens": "speculative_tokens"}
    | {"kv_cache_dtype": "kv_dtype"}
)
SEQS: Final = (16, 32, 64, 128, 256, 512, 1024)
TOKENS: Final = (512, 1024, 2048, 4096, 8192, 16384)
SHARES: Final = (0.9, 0.95)
DRAFTS: Final = (0, 1, 2, 3, 5)
_KINDS: Final[Mapping[type, str]] = MappingProxyType(
    {int: "a whole number", float: "a number", bool: "true or false", str: "a name"}
)


def parse_axes(texts: Sequence[str], option: str = "--try") -> dict[str, tuple[Any, ...]]:
    """`FIELD=A[,B,…]` each. Raises TuneError that names the field and what it can be."""
    hints, found = get_type_hints(Setting), {}
    for text in texts:
        name, equals, values = text.partition("=")
        name = name.strip().lstrip("-").replace("-", "_")
        name = _ALIASES.get(name, name)
        if not equals or not values.strip():
            raise TuneError(f"{option} must be FIELD=A[,B,…], not '{shown(text, 80)}'")
        if name not in hints:
            near = get_close_matches(name, list(hints), n=3, cutoff=0.5)
            advice = f"the nearest are {', '.join(near)}" if near else f"known are {', '.join(hints)}"
            raise TuneError(f"{option}: there is no field '{shown(name, 80)}'; {advice}")
        if name in found:
            raise TuneError(f"{option} names {name} twice")
        found[name] = tuple(
            dict.fromkeys(typed(name, value.strip(), hints[name], option) for value in values.split(","))
        )
    return found


def typed(name: str, text: str, hint: Any, option: str) -> Any:
    """What was typed as a value of the field's type, in its bounds. Raises TuneError."""
    kind = next(k for k in get_args(hint) if k is not type(None)) if _optional(hint) else hint
    value: Any
    if kind is bool:
        value = {"true": True, "false": False}.get(text.lower())
    else:
        try:
            value = kind(text)
        except ValueError:
            value = None
    if value is None:
        raise TuneError(f"{option}: {name} must be {_KINDS[kind]}, not '{shown(text, 80)}'")
    least = 0 if name in ("decode_engines", "decode_tp", "speculative_tokens") else 1
    if kind is int and not least <= value <= 1 << 30:
        raise TuneError(f"{option}: {name} must be at least {least}, not {value}")
    if name == "gpu_memory_utilization" and not 0 < value <= 1:
        raise TuneError(f"{option}: {name} must be more than 0 and at most 1, not {value:g}")
    return value


def _optional(hint: Any) -> bool:
    return get_origin(hint) in (Union, types.UnionType)


def layouts(gpus: int, given: Mapping[str, Sequence[Any]], *, split: bool) -> Iterator[Layout]:
    """Ways to share `gpus` GPUs out. `split`: also with prefill and decode apart, the two of the same or of different
    tp. An axis that was given is taken as it is; what leaves GPUs over is only a layout where it was. Raises
    TuneError."""
    sizes = given.get("tp") or [2**i for i in range(gpus.bit_length()) if gpus % 2**i == 0]
    for tp in sizes:
        if tp > gpus:
            raise TuneError(f"tp {tp} is more than the {gpus} GPUs there are: give --gpus {tp}, or a smaller tp")
        for decode_tp in given.get("decode_tp") or ([0, *(s for s in sizes if s != tp)] if split else [0]):
            each = decode_tp or tp
            decoders = given.get("decode_engines") or ((0, *_splits(gpus, tp, each)) if split else (0,))
            for decode in decoders:
                if decode_tp and not decode:
                    continue
                left = gpus - each * decode
                for engines in given.get("engines") or [left // tp]:
                    if engines >= 1 and tp * engines <= left:
                        yield tp, engines, decode, decode_tp


def _splits(gpus: int, tp: int, decode_tp: int) -> list[int]:
    """Decode engines worth trying: about a quarter, a half and three quarters of the GPUs, with none left over."""
    counts = {round(gpus * share / decode_tp) for share in (0.25, 0.5, 0.75)}
    return sorted(n for n in counts if n > 0 and gpus > decode_tp * n and (gpus - decode_tp * n) % tp == 0)


def settings(
    gpus: int, given: Mapping[str, Sequence[Any]], *, needs: int, split: bool, drafts: bool
) -> tuple[dict[str, tuple[Any, ...]], list[Setting]]:
    """The axes beside the layout, and every combination of them that an engine could be started with. `needs`: tokens
    of the longest request, for max_model_len; `drafts`: whether speculation is tried. Raises TuneError."""
    if not 1 <= gpus <= MOST_GPUS:
        raise TuneError(f"gpus must be at least 1 and at most {MOST_GPUS:,}, not {gpus}")
    axes: dict[str, tuple[Any, ...]] = {
        "max_num_seqs": SEQS,
        "max_num_batched_tokens": TOKENS,
        "gpu_memory_utilization": SHARES,
        "max_model_len": (needs,),
        "enable_prefix_caching": (True, False),
        "enable_chunked_prefill": (True, False),
        "speculative_tokens": DRAFTS if drafts else (0,),
        "dtype": ("auto",),
        "kv_dtype": ("auto",),
        "enforce_eager": (False,),
    } | {name: tuple(values) for name, values in given.items() if name not in LAYOUT}
    ways = list(dict.fromkeys(layouts(gpus, given, split=split)))
    if not ways:
        raise TuneError(f"no layout of those that were asked for fits on {gpus} GPUs: give more --gpus")
    count = len(ways)
    for values in axes.values():
        count *= len(values)
    if count > MOST_COMBINATIONS:
        raise TuneError(f"that would be {count:,} settings, and {MOST_COMBINATIONS:,} are the most: try fewer values")
    names = list(axes)
    found = []
    for tp, engines, decode, decode_tp in ways:
        layout: dict[str, Any] = dict(zip(LAYOUT, (tp, engines, decode, decode_tp), strict=True))
        for values in itertools.product(*axes.values()):
            setting = Setting(**layout, **dict(zip(names, values, strict=True)))
            if why_not(setting) is None:
                found.append(setting)
    return axes, found


def why_not(setting: Setting) -> str | None:
    """What no engine accepts of it; None where nothing."""
    step = setting.max_num_seqs * (1 + setting.speculative_tokens)
    if setting.max_num_batched_tokens < step:
        return f"a step of {setting.max_num_batched_tokens} tokens has no room for {step}, one a sequence (and draft)"
    if not setting.enable_chunked_prefill and setting.max_num_batched_tokens < setting.max_model_len:
        return (
            f"without chunked prefill a step of {setting.max_num_batched_tokens} tokens must hold a prompt of up to "
            f"{setting.max_model_len}"
        )
    return None

"""Step times from NVIDIA's measured kernels, through PyPI `aiconfigurator-core` (the extra `forebay[gpus]`).

`compile_profile` asks the package once for every kernel on a grid and keeps what it said as one JSON file in the user's
cache folder; `load_profile` reads it back without the package. A step is put together as in `tables`: what acts on
tokens at all tokens of the step, the LM head at its sequences, attention of the chunk and of the decodes by themselves,
as the package does it (`mixed_step_breakdown`).

Two things depend on what the package does not know:

- Collectives over PCIe depend on the host. They take the slower of the package's time and the catalogue's link.
- FlashAttention 2, which vLLM takes where the GPU is neither Hopper nor a Blackwell of the data centre, reads the KV
  cache of decodes more slowly beside a chunk of prefill than alone: `BESIDE` times, the middle of three measured tables
  (LLMServingSim's of Llama-3.1-8B: medians 1.9 on an RTX 4090, 1.4 and 1.3 on RTX PRO 6000 with tp 1 and 2).

Not in it (`MISSING`): rotary embedding, QK norm, the KV cache's write, the sampler, gaps between kernels, the host. The
package fills norms and activations in by formula. As it comes, it gives 44-50 ms for a decode step of 128 sequences
that takes vLLM 60; on two RTX PRO 6000 without peer access most of the difference is the link.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from math import isfinite
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from .catalogue import find_gpu
from .comm import Ranks, logits_seconds, step_seconds
from .csvtable import MAX_NUMBER, MAX_US, BadProfile
from .files import read
from .shapes import Gpu, ModelShape, dtype_name
from .tables import CAPTURE_SIZES, Curve, Decode, MeasuredSteps, Prefill

MISSING = ("rotary embedding", "QK norm", "KV cache write", "sampler", "gaps between kernels", "host")
PACKAGE = "aiconfigurator-core"
_FORMAT = 1
_MS = 1e-3
_MAX_SECONDS = MAX_US * 1e-6

_TOKENS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 8192, 16384)
_CHUNKS = (16, 32, 64, 128, 256, 512, 768, 1024, 1536, 2048, 3072, 4096, 8192, 16384)
_CONTEXTS = (0, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)
_COUNTS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 1024)
_KVS = (16, 64, 128, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 8192, 16384, 32768, 65536, 131072)

BESIDE = 1.5
_FLASH_ATTENTION_2 = frozenset({"a100_sxm", "a100_pcie", "l40s", "l4", "a10", "a30", "rtx_4090", "rtx_pro_6000"})

_SYSTEMS: Final = MappingProxyType({"rtx_pro_6000": "rtx_pro_6000_server"})
_CURVES: Final = MappingProxyType(
    {
        "dense": "tokens",
        "collectives": "tokens",
        "decode_dense": "n",
        "decode_collectives": "n",
        "sequences": "n",
    }
)
_GEMM: Final = MappingProxyType(
    {"bf16": "bfloat16", "fp16": "bfloat16", "fp8": "fp8", "int8": "sq", "int4": "int4_wo", "nvfp4": "nvfp4"}
)
_EXPERTS: Final = MappingProxyType(
    {
        "bf16": "bfloat16",
        "fp16": "bfloat16",
        "fp8": "fp8",
        "int4": "int4_wo",
        "nvfp4": "nvfp4",
        "mxfp4": "w4a16_mxfp4",
    }
)


class MissingPackage(ImportError):
    """The extra is not installed. The message says how to install it."""


class Unavailable(ValueError):
    """The package has no measurements for the GPU, the model or the dtype. The message is one sentence."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a profile is of."""

    model: ModelShape
    gpu: Gpu
    tp: int = 1
    dp: int = 1
    ep: int = 1
    dtype: str = "bf16"
    kv_dtype: str = "auto"
    backend: str = "vllm"

    @property
    def key(self) -> str:
        slug = re.sub(r"[^a-z0-9.]+", "-", self.model.name.lower()).strip("-")
        ranks = f"tp{self.tp}dp{self.dp}ep{self.ep}"
        shape = f"{self.model.layers}x{self.model.hidden}"
        return f"{self.backend}_{self.gpu.name}_{slug}_{shape}_{ranks}_{self.dtype}_{self.kv_dtype}"


def cache_dir() -> Path:
    """Where compiled profiles are kept: $XDG_CACHE_HOME/forebay/profiles, by default under ~/.cache."""
    base = os.environ.get("XDG_CACHE_HOME")
    root = Path(base) if base and Path(base).is_absolute() else Path.home() / ".cache"
    return root / "forebay" / "profiles"


def installed_version() -> str | None:
    """The package's version, None where it is not installed; nothing is imported."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(PACKAGE)
    except PackageNotFoundError:
        return None


def find_cached(wanted: Wanted, folder: Path | None = None) -> Path | None:
    """The compiled profile of this, of the installed package or else of the newest that was used; None if none."""
    root = folder or cache_dir()
    have = installed_version()
    if have is not None:
        exact = root / f"{have}_{wanted.key}.json"
        return exact if exact.exists() else None
    found = [p for p in root.glob(f"*_{wanted.key}.json") if p.name.split("_", 1)[1] == f"{wanted.key}.json"]
    return max(found, key=lambda p: [int(n) for n in re.findall(r"\d+", p.name.split("_", 1)[0])], default=None)


@contextmanager
def _quiet() -> Iterator[None]:
    """The package logs each table that it reads."""
    log = logging.getLogger("aiconfigurator_core")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(before)


def _engine(wanted: Wanted, scratch: Path) -> Any:
    try:
        import aiconfigurator_core
        from aiconfigurator_core.sdk.engine import EngineHandle
    except ImportError as e:
        raise MissingPackage(
            f"step times of {wanted.gpu.name} need NVIDIA's tables: pip install 'forebay[gpus]' ({PACKAGE})"
        ) from e
    root = Path(aiconfigurator_core.__file__).parent
    system = _SYSTEMS.get(wanted.gpu.name, wanted.gpu.name)
    systems = sorted(p.parts[-3] for p in (root / "systems" / "data").glob(f"*/gemm/{wanted.backend}"))
    if system not in systems:
        raise Unavailable(
            f"{PACKAGE} has no {wanted.backend} kernels of {wanted.gpu.name}; it has those of {', '.join(systems)}"
        )
    shipped = _shipped(wanted.model, root / "model_configs")
    _write_config(wanted.model, shipped, scratch)
    options = _options(wanted, wanted.model.dtype if shipped else "bf16")
    try:
        with _quiet():
            return EngineHandle.compile(str(scratch), system, wanted.backend, **options)
    except Exception as e:  # the package raises a dozen kinds, some of them its own
        raise _unavailable(wanted, e) from e


def _options(wanted: Wanted, stored: str) -> dict[str, Any]:
    """What the package must be told; it takes the dtype that the weights are `stored` in for granted."""
    options: dict[str, Any] = {"tp_size": wanted.tp, "attention_dp_size": wanted.dp}
    if wanted.dtype != stored:
        if wanted.dtype not in _GEMM and not (wanted.model.moe and wanted.dtype in _EXPERTS):
            raise Unavailable(f"{PACKAGE} has no weights in {wanted.dtype}; it has {', '.join(_GEMM)}")
        options["gemm_quant_mode"] = _GEMM.get(wanted.dtype)
        options["moe_quant_mode"] = _EXPERTS.get(wanted.dtype) if wanted.model.moe else None
    if wanted.kv_dtype == "fp8":
        options["kvcache_quant_mode"] = "fp8"
    if wanted.model.moe:
        ranks = wanted.tp * wanted.dp
        if ranks % wanted.ep:
            raise Unavailable(f"experts on {wanted.ep} ranks do not divide tp · dp = {ranks}")
        options |= {"moe_tp_size": ranks // wanted.ep, "moe_ep_size": wanted.ep}
    return {name: value for name, value in options.items() if value is not None}


def _unavailable(wanted: Wanted, e: Exception) -> Unavailable:
    why = re.sub(r" at /\S+;", ";", " ".join(str(e).split()))[:300]
    return Unavailable(
        f"{PACKAGE} cannot give {wanted.backend} with {wanted.model.name} in {wanted.dtype} on {wanted.tp} × "
        f"{wanted.gpu.name}: {why}"
    )


def _shipped(model: ModelShape, folder: Path) -> Path | None:
    """The package's own description of this very shape, which says more than a shape does."""
    from .configs import BadConfig, from_config

    for path in sorted(folder.glob("*_config.json"), key=lambda p: (len(p.name), p.name)):
        other = path.with_name(path.name.replace("_config.json", "_hf_quant_config.json"))
        if path.name.endswith("_hf_quant_config.json") or other.exists():
            continue
        try:
            shape = from_config(path)
        except BadConfig:
            continue
        # what a vision tower weighs is estimated in one of them
        same = (shape.parameters() - shape.extra, shape.layers, shape.heads, shape.kv_heads, shape.dtype)
        if same == (model.parameters() - model.extra, model.layers, model.heads, model.kv_heads, model.dtype):
            return path
    return None


def _write_config(model: ModelShape, shipped: Path | None, scratch: Path) -> None:
    """A config.json for the package: its own, or else one of the family whose layers are alike. By a path it is not
    looked up on the network."""
    target = scratch / "config.json"
    if shipped is not None:
        target.write_bytes(shipped.read_bytes())
        return
    own = model.kv_lora_rank or model.bias or model.window_layers or model.linear_layers or model.attention_gate
    if own or model.shared_experts or model.dense_layers or (model.norms, model.matrices) != (2, 3):
        raise Unavailable(
            f"{PACKAGE} does not ship {model.name}, and its layers are not those of Llama, Qwen or Mixtral"
        )
    if model.moe:
        kind, cls = ("qwen3_moe", "Qwen3MoeForCausalLM") if model.qk_norm else ("mixtral", "MixtralForCausalLM")
    else:
        kind, cls = ("qwen3", "Qwen3ForCausalLM") if model.qk_norm else ("llama", "LlamaForCausalLM")
    config: dict[str, Any] = {
        "architectures": [cls],
        "model_type": kind,
        "hidden_size": model.hidden,
        "intermediate_size": model.intermediate,
        "num_hidden_layers": model.layers,
        "num_attention_heads": model.heads,
        "num_key_value_heads": model.kv_heads,
        "head_dim": model.head_dim,
        "vocab_size": model.vocab,
        "max_position_embeddings": model.max_context,
        "tie_word_embeddings": model.tied,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "torch_dtype": "bfloat16",
    }
    if model.moe:
        config |= {
            "num_experts" if model.qk_norm else "num_local_experts": model.experts,
            "num_experts_per_tok": model.experts_per_token,
            "moe_intermediate_size": model.moe_intermediate,
        }
    target.write_text(json.dumps(config))


def _is_attention(op: str) -> bool:
    return any(word in op for word in ("attention", "mla", "dsa", "msa"))


class _Parts(NamedTuple):
    """Seconds of a step's parts."""

    dense: float
    collectives: float
    head: float
    attention: float


def _split(ops: Sequence[Sequence[Any]]) -> _Parts:
    """The parts in a list of (name, ms, …)."""
    dense = collectives = head = attention = 0.0
    for name, ms, *_ in ops:
        if not isinstance(ms, int | float) or not isfinite(ms) or ms < 0:
            raise ValueError(f"{name} takes {ms!r} ms")
        if "logits" in name:
            head += ms * _MS
        elif _is_attention(name):
            attention += ms * _MS
        elif re.search(r"_ar(_\d+)?$|allreduce|dispatch|p2p", name):
            collectives += ms * _MS
        else:
            dense += ms * _MS
    return _Parts(dense, collectives, head, attention)


def compile_profile(wanted: Wanted, folder: Path | None = None) -> Path:
    """Ask the package for every kernel of this and keep it; the path of the file. Takes about a second. Raises
    `MissingPackage`, `Unavailable`."""
    import tempfile

    wanted = _named(wanted)
    with tempfile.TemporaryDirectory(prefix="forebay-") as scratch:
        engine = _engine(wanted, Path(scratch))

        def prefill(chunk: int, before: int) -> _Parts:
            ops, _ = engine.run_static_per_op(batch_size=1, isl=before + chunk, osl=2, prefix=before, mode="static_ctx")
            return _split(ops)

        def decode(n: int, kv: int) -> _Parts:
            return _split(engine.decode_step_per_op(n, kv, 2))

        try:
            with _quiet():
                whole = [prefill(t, 0) for t in _TOKENS]
                steps = [decode(n, 256) for n in _COUNTS]
                body = {
                    "dense": [p.dense for p in whole],
                    "collectives": [p.collectives for p in whole],
                    "decode_dense": [p.dense for p in steps],
                    "decode_collectives": [p.collectives for p in steps],
                    "sequences": [p.head for p in steps],
                    "prefill": [[prefill(c, k).attention for k in _CONTEXTS] for c in _CHUNKS],
                    "decode": [[decode(n, kv).attention for kv in _KVS] for n in _COUNTS],
                }
        except Exception as e:  # as above
            raise _unavailable(wanted, e) from e
    version = installed_version() or "0"
    document = {
        "forebay_aiconfigurator": _FORMAT,
        "package": f"{PACKAGE} {version}",
        "gpu": wanted.gpu.name,
        "model": wanted.model.name,
        "shape": asdict(wanted.model),
        "engine": {"backend": wanted.backend, "tp": wanted.tp, "dp": wanted.dp, "ep": wanted.ep},
        "dtype": wanted.dtype,
        "kv_dtype": wanted.kv_dtype,
        "missing": list(MISSING),
        "axes": {"tokens": _TOKENS, "chunk": _CHUNKS, "context": _CONTEXTS, "n": _COUNTS, "kv": _KVS},
        "seconds": body,
    }
    root = folder or cache_dir()
    root.mkdir(parents=True, exist_ok=True)
    path = root / f"{version}_{wanted.key}.json"
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_text(json.dumps(document))
    draft.replace(path)
    return path


def _named(wanted: Wanted) -> Wanted:
    from dataclasses import replace

    kv = wanted.kv_dtype if wanted.kv_dtype == "auto" else dtype_name(wanted.kv_dtype)
    return replace(wanted, dtype=dtype_name(wanted.dtype), kv_dtype=kv)


def _numbers(value: Any, length: int, where: str, most: float = MAX_NUMBER) -> list[float]:
    if not isinstance(value, list) or len(value) != length:
        raise BadProfile(f"{where} must be {length} numbers")
    if not all(isinstance(v, int | float) and not isinstance(v, bool) and 0 <= v <= most for v in value):
        raise BadProfile(f"{where} must be numbers from 0 to {most:,.0f}")
    return [float(v) for v in value]


def read_document(path: Path) -> dict[str, Any]:
    """A compiled profile as it was written. Raises `BadProfile`."""
    try:
        document = json.loads(read(path))
    except OSError as e:
        raise BadProfile(f"{path}: cannot be read: {e.strerror or e}") from e
    except RecursionError:
        raise BadProfile(f"{path}: is nested too deeply") from None
    except ValueError as e:
        raise BadProfile(f"{path}: is not JSON: {e}") from e
    if not isinstance(document, dict) or document.get("forebay_aiconfigurator") != _FORMAT:
        raise BadProfile(f"{path}: is not a compiled profile: the key forebay_aiconfigurator: {_FORMAT} is missing")
    return document


def shape_of(document: dict[str, Any], path: Path) -> ModelShape:
    """The model that a compiled profile is of. Raises `BadProfile`."""
    try:
        shape = ModelShape(**document["shape"])
    except (KeyError, TypeError) as e:
        raise BadProfile(f"{path}: shape does not describe a model: {e}") from e
    for f in fields(ModelShape):
        value = getattr(shape, f.name)
        if type(value).__name__ != f.type or (f.type == "int" and not 0 <= value <= MAX_NUMBER):
            raise BadProfile(f"{path}: shape.{f.name} is {str(value)[:40]!r}, no {f.type} of a model")
    return shape


def load_profile(
    path: Path,
    *,
    gpu: Gpu | None = None,
    host: float = 0.0,
    pad: Sequence[int] = CAPTURE_SIZES,
    strict: bool = False,
) -> MeasuredSteps:
    """Step times from a compiled profile. `gpu`: whose link is taken, by default the catalogue's of that name; `host`:
    seconds added to each step; `pad`: CUDA graph sizes. Raises `BadProfile`, `UnknownGpu`."""
    document = read_document(path)
    try:
        axes, seconds, engine = document["axes"], document["seconds"], document["engine"]
        title = f"{document['gpu']}/{document['model']}/tp{engine['tp']}"
        axis = {
            k: _numbers(axes[k], len(axes[k]), f"{path}: axes.{k}") for k in ("tokens", "chunk", "context", "n", "kv")
        }
        curves = {
            name: Curve(axis[on], _numbers(seconds[name], len(axis[on]), f"{path}: seconds.{name}", _MAX_SECONDS))
            for name, on in _CURVES.items()
        }
        grids = {
            name: [
                _numbers(row, len(axis[across]), f"{path}: seconds.{name}[{i}]", _MAX_SECONDS)
                for i, row in enumerate(_rows(seconds[name], len(axis[down]), f"{path}: seconds.{name}"))
            ]
            for name, down, across in (("prefill", "chunk", "context"), ("decode", "n", "kv"))
        }
    except (KeyError, TypeError) as e:
        raise BadProfile(f"{path}: the key {e} is missing or of another kind") from e
    for name, points in axis.items():
        if sorted(set(points)) != points:
            raise BadProfile(f"{path}: axes.{name} must rise")
    model, card = shape_of(document, path), gpu or find_gpu(str(document["gpu"]))
    try:
        ranks = Ranks(*(int(engine[k]) for k in ("tp", "dp", "ep")))
        model.check_tp(ranks.tp)
    except (KeyError, TypeError, ValueError) as e:
        raise BadProfile(f"{path}: engine: {e}") from e
    logits = [v + logits_seconds(model, card, ranks.tp, n) for n, v in zip(*curves["sequences"], strict=True)]
    return MeasuredSteps(
        title,
        dense=_with_collectives(curves["dense"], curves["collectives"], model, card, ranks),
        decode_dense=_with_collectives(curves["decode_dense"], curves["decode_collectives"], model, card, ranks),
        sequences=Curve(axis["n"], logits),
        prefill=Prefill(axis["chunk"], axis["context"], grids["prefill"]),
        decode=Decode(axis["n"], axis["kv"], grids["decode"]),
        mixed=None,
        beside=BESIDE if card.name in _FLASH_ATTENTION_2 else 1.0,
        pad=pad,
        host=host,
        strict=strict,
    )


def _with_collectives(dense: Curve, measured: Curve, model: ModelShape, gpu: Gpu, ranks: Ranks) -> Curve:
    """The link of this host may be slower than that of the package's, where it is not NVIDIA's own."""
    values = []
    for tokens, part, theirs in zip(*dense, measured.values, strict=True):
        ours = 0.0 if gpu.switched else step_seconds(model, gpu, ranks, tokens)
        values.append(part + max(theirs, ours))
    return Curve(dense.axis, values)


def _rows(value: Any, length: int, where: str) -> list[Any]:
    if not isinstance(value, list) or len(value) != length:
        raise BadProfile(f"{where} must be {length} rows")
    return value

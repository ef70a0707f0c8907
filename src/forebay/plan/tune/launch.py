"""A setting as the commands that start it, for each engine, looked at against the flags that the engine knows.

What an engine calls a setting is in `engines/launching`. Shares of memory differ in what they are of: vLLM's and TGI's
hold weights, activations and KV cache; SGLang's weights and KV cache; TensorRT-LLM's is of what weights and activations
leave. They are converted, so that each has the same KV cache.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, Literal

from forebay.config.engine import Engine
from forebay.config.launch import filled_in
from forebay.engines.launching.commands import PROGRAMS, CommandLine, command_of, mistakes
from forebay.hardware.catalogue import find_gpu, find_model
from forebay.hardware.memory import Deployment, budget
from forebay.plan.simulate import Ready
from forebay.plan.tune import flags
from forebay.plan.tune.space import Setting

Role = Literal["both", "prefill", "decode"]
PORT: Final = 8000
CONFIG: Final = "trtllm.yaml"
"""Name of the file that TensorRT-LLM's settings without a flag go into."""
_KV: Final[Mapping[str, Mapping[str, str]]] = MappingProxyType(
    {
        "vllm": {"fp8": "fp8", "bf16": "bfloat16", "fp16": "float16"},
        "sglang": {"fp8": "fp8_e4m3", "bf16": "bfloat16"},
        "tgi": {"fp8": "fp8_e4m3fn"},
        "trtllm": {"fp8": "fp8"},
    }
)
"""What a KV dtype is called; one that is not there is the engine's `auto`, or nothing it has."""
_PLAIN: Final[Mapping[str, str]] = MappingProxyType({"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"})


@dataclass(frozen=True, slots=True)
class Shares:
    """Of a GPU's memory, 0 to 1: what a setting gives to each."""

    weights: float
    kv: float
    utilization: float

    @property
    def static(self) -> float:
        """Weights and KV cache."""
        return self.weights + self.kv

    @property
    def of_free(self) -> float:
        """KV cache, of what the weights leave."""
        return self.kv / max(1e-6, 1 - self.weights)


@dataclass(frozen=True, slots=True)
class Start:
    """How one engine of a role is started. `command`: None where the engine cannot be started so; `notes` say why, and
    what else there is to mind."""

    engine: str
    kind: str
    role: Role
    count: int
    command: CommandLine | None
    notes: tuple[str, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)
    """Names and contents of files that the command names."""

    @property
    def text(self) -> str | None:
        return None if self.command is None else self.command.shown()


def shares(ready: Ready, setting: Setting) -> Shares | None:
    """None where the memory of the GPU or the shape of the model is not known. Where decode engines have a `tp` of
    their own, those of the prefill engines."""
    hardware = ready.hardware
    if hardware.gpu is None or hardware.model is None:
        return None
    try:
        card, shape = find_gpu(hardware.gpu), find_model(hardware.model)
        found = budget(
            Deployment(
                model=shape,
                gpu=card,
                tp=setting.tp,
                dtype=setting.dtype,
                kv_dtype=setting.kv_dtype,
                max_model_len=setting.max_model_len,
                max_num_seqs=setting.max_num_seqs,
                max_num_batched_tokens=setting.max_num_batched_tokens,
                gpu_memory_utilization=setting.gpu_memory_utilization,
                enforce_eager=setting.enforce_eager,
            )
        )
    except (LookupError, ValueError):  # a model or GPU that only a profile knows
        return None
    return Shares(found.weights / found.total, found.kv / found.total, setting.gpu_memory_utilization)


def starts(
    setting: Setting, model: str, memory: Shares | None, *, kinds: Sequence[str] = flags.KINDS, draft: str | None = None
) -> list[Start]:
    """For each engine and role. `model`: a Hugging Face name or a path; `draft`: of the model that drafts, None:
    n-grams of the prompt."""
    roles: list[tuple[Role, int]] = [("both", setting.engines)]
    if setting.decode_engines:
        roles = [("prefill", setting.engines), ("decode", setting.decode_engines)]
    return [_start(setting, model, memory, kind, role, count, draft) for kind in kinds for role, count in roles]


def _start(
    setting: Setting, model: str, memory: Shares | None, kind: str, role: Role, count: int, draft: str | None
) -> Start:
    title = PROGRAMS[kind].title
    extra = _Extra(kind, setting, role, draft)
    if extra.refused is not None:
        return Start(title, kind, role, count, None, (extra.refused,))
    launch: dict[str, Any] = {
        "model": model,
        "host": "0.0.0.0",  # noqa: S104 - a server in a container
        "port": PORT,
        "tensor_parallel_size": (setting.decode_tp or setting.tp) if role == "decode" else setting.tp,
        "gpu_memory_utilization": _share(kind, setting, memory),
        "max_model_len": setting.max_model_len,
        "max_num_seqs": setting.max_num_seqs,
        "max_num_batched_tokens": None if extra.whole_prompts else setting.max_num_batched_tokens,
        "enable_prefix_caching": None if extra.no_switch else setting.enable_prefix_caching,
        "dtype": None if kind == "trtllm" else _PLAIN.get(setting.dtype),
        "flags": extra.words,
    }
    entry = {"name": f"{kind}-{role}", "kind": kind, "launch": {k: v for k, v in launch.items() if v is not None}}
    engine = Engine.model_validate(filled_in(entry))
    wrong = [f"{problem.message}" for problem in mistakes(engine) if not _said_by_us(problem.path)]
    command = command_of(engine, which=lambda name: name)
    wrong += flags.problems(command.words[len(_head(command)) :], flags.load(kind))
    notes = [*extra.notes, *(f"refused: {text}" for text in wrong)]
    if memory is None and kind in ("sglang", "trtllm"):
        notes.append(
            "its share of memory means another thing than vLLM's, and could not be converted: it is the same number"
        )
    return Start(title, kind, role, count, command, tuple(notes), extra.files)


def _said_by_us(path: tuple[str | int, ...]) -> bool:
    """Flags that stand for a field's value which the field cannot hold, such as -1."""
    return path[:2] == ("launch", "flags")


def _head(command: CommandLine) -> list[str]:
    """The words in front of the flags."""
    head: list[str] = []
    for word in command.words:
        if word.startswith("--"):
            break
        head.append(word)
    return head


def _share(kind: str, setting: Setting, memory: Shares | None) -> float:
    if memory is None or kind in ("vllm", "tgi"):
        return setting.gpu_memory_utilization
    share = memory.static if kind == "sglang" else memory.of_free
    return min(0.99, max(0.01, round(share, 3)))


class _Extra:
    """What a setting needs that `engines[].launch` has no field for."""

    def __init__(self, kind: str, setting: Setting, role: Role, draft: str | None) -> None:
        self.words: list[str] = []
        self.notes: list[str] = []
        self.files: dict[str, str] = {}
        self.refused: str | None = None
        self.whole_prompts = False
        """A step has no limit of tokens that is given as a number."""
        self.no_switch = False
        """Prefix caching is set in a file."""
        self._yaml: dict[str, Any] = {}
        getattr(self, f"_{kind}")(setting, role, draft)
        if self._yaml:
            self.words += ["--config", CONFIG]
            self.files[CONFIG] = "".join(_yaml(self._yaml))

    def _quantised(self, kind: str, setting: Setting) -> None:
        dtype = setting.dtype
        if dtype == "auto" or dtype in _PLAIN:
            return
        flag = {"vllm": "--quantization", "sglang": "--quantization", "tgi": "--quantize"}.get(kind)
        if dtype == "fp8" and flag is not None:
            self.words += [flag, "fp8"]
            self.notes.append("weights are made fp8 while they are loaded; a checkpoint in fp8 starts faster")
        else:
            self.notes.append(f"name a checkpoint of the model whose weights are {dtype}: no flag makes them so")

    def _cache(self, kind: str, setting: Setting) -> None:
        if setting.kv_dtype == "auto":
            return
        name = _KV[kind].get(setting.kv_dtype)
        if name is None:
            self.refused = f"knows no KV cache of {setting.kv_dtype}"
        elif kind == "trtllm":
            self._yaml.setdefault("kv_cache_config", {})["dtype"] = name
        else:
            self.words += ["--kv-cache-dtype", name]

    def _vllm(self, setting: Setting, role: Role, draft: str | None) -> None:
        self._quantised("vllm", setting)
        self._cache("vllm", setting)
        if not setting.enable_chunked_prefill:
            self.words.append("--no-enable-chunked-prefill")
        if setting.enforce_eager:
            self.words.append("--enforce-eager")
        if (k := setting.speculative_tokens) > 0:
            config: dict[str, Any] = {"num_speculative_tokens": k}
            config |= {"method": "ngram", "prompt_lookup_max": 4} if draft is None else {"model": draft}
            self.words += ["--speculative-config", json.dumps(config)]
        if role != "both":
            self.words += ["--kv-transfer-config", json.dumps({"kv_connector": "NixlConnector", "kv_role": "kv_both"})]

    def _sglang(self, setting: Setting, role: Role, draft: str | None) -> None:
        self._quantised("sglang", setting)
        self._cache("sglang", setting)
        if not setting.enable_chunked_prefill:
            self.whole_prompts = True
            self.words += ["--chunked-prefill-size", "-1"]
        if setting.enforce_eager:
            self.words.append("--disable-decode-cuda-graph")
        if (k := setting.speculative_tokens) > 0:
            if draft is None:
                self.words += ["--speculative-algorithm", "NGRAM", "--speculative-num-draft-tokens", str(k + 1)]
            else:
                self.words += ["--speculative-algorithm", "EAGLE3", "--speculative-draft-model-path", draft]
                self.words += ["--speculative-num-steps", str(k), "--speculative-eagle-topk", "1"]
                self.words += ["--speculative-num-draft-tokens", str(k + 1)]
        if role != "both":
            self.words += ["--disaggregation-mode", role]

    def _trtllm(self, setting: Setting, role: Role, draft: str | None) -> None:
        self._quantised("trtllm", setting)
        self._cache("trtllm", setting)
        if setting.enable_chunked_prefill:
            self.words.append("--enable_chunked_prefill")
        if not setting.enable_prefix_caching:
            self.no_switch = True
            self._yaml.setdefault("kv_cache_config", {})["enable_block_reuse"] = False
        if setting.enforce_eager:
            self._yaml["cuda_graph_config"] = None
        if (k := setting.speculative_tokens) > 0:
            self._yaml["speculative_config"] = (
                {"decoding_type": "NGram", "max_draft_len": k, "max_matching_ngram_size": 4}
                if draft is None
                else {"decoding_type": "Eagle", "max_draft_len": k, "speculative_model_dir": draft}
            )
        if role != "both":
            self._yaml["cache_transceiver_config"] = {"backend": "DEFAULT"}
            self.notes.append("prefill and decode engines need `trtllm-serve disaggregated` in front of them")

    def _tgi(self, setting: Setting, role: Role, draft: str | None) -> None:
        if role != "both":
            self.refused = "cannot split prefill and decode"
            return
        self._quantised("tgi", setting)
        self._cache("tgi", setting)
        self.words += ["--max-input-tokens", str(max(1, setting.max_model_len - 1))]
        if not setting.enable_chunked_prefill:
            self.notes.append("chunking of prompts cannot be switched: it chunks where its attention kernel can")
        if setting.enforce_eager:
            self.words += ["--cuda-graphs", "0"]
        if (k := setting.speculative_tokens) > 0:
            self.words += ["--speculate", str(k)]
            if draft is not None:
                self.notes.append(
                    "drafts by n-grams, or by the Medusa heads of the model itself; it takes no draft model"
                )


def _yaml(value: Mapping[str, Any], indent: str = "") -> list[str]:
    lines = []
    for key, inner in value.items():
        if isinstance(inner, dict):
            lines += [f"{indent}{key}:\n", *_yaml(inner, indent + "  ")]
        else:
            lines.append(f"{indent}{key}: {json.dumps(inner)}\n")
    return lines


def as_list(found: Sequence[Start]) -> list[dict[str, Any]]:
    """For the JSON result."""
    known = {kind: flags.load(kind) for kind in flags.KINDS}
    return [
        {
            "engine": start.engine,
            "kind": start.kind,
            "role": "" if start.role == "both" else start.role,
            "count": start.count,
            "command": start.text,
            "words": None if start.command is None else list(start.command.words),
            "checked_against": f"{known[start.kind].engine} {known[start.kind].version}",
            "notes": list(start.notes),
            "files": dict(start.files),
        }
        for start in found
    ]


def read_vllm(text: str) -> tuple[str | None, dict[str, Any]]:
    """The model and the fields of a Setting that a `vllm serve …` command sets. Raises ValueError that names a flag
    which vLLM does not know, or whose value it would refuse."""
    try:
        words = shlex.split(text)
    except ValueError as e:
        raise ValueError(f"is no command line: {e}") from None
    known = flags.load("vllm")
    if words[1:2] == ["-m"]:
        del words[:2]
    if wrong := flags.problems(words, known):
        raise ValueError(wrong[0])
    model, found = None, {}
    taken: set[str] = set()
    for flag, values in flags.pairs(words, known):
        taken.update(values)
        name = known.canonical(flag)
        if name == "--model":
            model = values[0]
        elif name in _READ:
            field_name, kind = _READ[name]
            found[field_name] = _size(values[0]) if kind is int else kind(values[0])
        elif name in _SWITCHES:
            field_name, on = _SWITCHES[name]
            found[field_name] = on
    if model is None:
        bare = [word for word in words if not word.startswith("-") and word not in taken]
        bare = [word for word in bare if word.rpartition("/")[2] not in _WORDS and not word.endswith("python3")]
        model = bare[0] if bare else None
    return model, found


_WORDS: Final = frozenset({"vllm", "serve", "python", "vllm.entrypoints.openai.api_server"})
_READ: Final[Mapping[str, tuple[str, type]]] = MappingProxyType(
    {
        "--tensor-parallel-size": ("tp", int),
        "--gpu-memory-utilization": ("gpu_memory_utilization", float),
        "--max-model-len": ("max_model_len", int),
        "--max-num-seqs": ("max_num_seqs", int),
        "--max-num-batched-tokens": ("max_num_batched_tokens", int),
        "--kv-cache-dtype": ("kv_dtype", str),
        "--data-parallel-size": ("engines", int),
    }
)
_SWITCHES: Final[Mapping[str, tuple[str, bool]]] = MappingProxyType(
    {
        "--enable-prefix-caching": ("enable_prefix_caching", True),
        "--no-enable-prefix-caching": ("enable_prefix_caching", False),
        "--enable-chunked-prefill": ("enable_chunked_prefill", True),
        "--no-enable-chunked-prefill": ("enable_chunked_prefill", False),
        "--enforce-eager": ("enforce_eager", True),
    }
)


def _size(text: str) -> int:
    """vLLM's: 8k is 8,000 and 8K 8,192 (vllm/utils/argparse_utils.py `human_readable_int`)."""
    unit = {"k": 10**3, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30}.get(text[-1:])
    if unit is not None:
        return int(float(text[:-1]) * unit)
    if not text.lstrip("-").isdigit() or int(text) < 1:
        raise ValueError(f"'{shown_word(text)}' depends on the engine: write it as a number of tokens")
    return int(text)


def shown_word(text: str) -> str:
    from forebay.errors import shown

    return shown(text, 80)

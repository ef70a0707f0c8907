"""How an engine is started: `engines[].launch`. The engine's url follows from it, so that `forebay serve` and `forebay
launch` agree by the file alone."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, Field, StringConstraints, ValidationError, model_validator

from forebay.config.section import Name, Seconds, Section, clash


def _one_line(text: str) -> str:
    if not text.isprintable():
        raise ValueError("line ends and control characters cannot be used here")
    return text


def _no_nul(text: str) -> str:
    if "\0" in text:
        raise ValueError("a NUL character cannot be used here")
    return text


def _folder(path: Path) -> Path:
    _one_line(str(path))
    return path


def _address(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9.:_-]+", text):
        raise ValueError("an address or a host's name is needed; an IPv6 address without brackets")
    return text


Word = Annotated[str, StringConstraints(min_length=1, max_length=4096), AfterValidator(_one_line)]
Variable = Annotated[str, StringConstraints(max_length=128, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]

SECRET_VARIABLE = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL|AUTH", re.IGNORECASE)
"""In the name of an environment variable: its value is shown nowhere."""

# Where one listens on all, this machine asks on loopback.
_ANY: Final = MappingProxyType({"0.0.0.0": "127.0.0.1", "::": "::1"})  # noqa: S104


class Launch(Section):
    """What is None is the engine's own default: no flag is written for it."""

    model: Word
    """A Hugging Face name, or a path that begins with /, ./, ../ or ~; for llama.cpp a .gguf file."""
    port: Annotated[int, Field(ge=1, le=65_535)]
    """Where it listens; the gateway finds it there."""
    host: Annotated[str, StringConstraints(min_length=1, max_length=253), AfterValidator(_address)] = "127.0.0.1"
    """The address it listens on."""
    served_model_name: Name | None = None
    """What the model is called on the API."""
    tensor_parallel_size: Annotated[int, Field(ge=1, le=1_024)] | None = None
    """GPUs that share each layer."""
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)] | None = None
    """Share of the GPU's memory; of what each engine takes it, docs/launch.md says."""
    max_model_len: Annotated[int, Field(ge=1, le=1 << 30)] | None = None
    """Tokens of prompt and answer together."""
    dtype: Annotated[str, StringConstraints(min_length=1, max_length=32), AfterValidator(_one_line)] | None = None
    """Type of weights and activations: auto, bfloat16, float16, …"""
    block_size: Annotated[int, Field(ge=1, le=65_536)] | None = None
    """Tokens of a KV block (SGLang: of a page)."""
    max_num_seqs: Annotated[int, Field(ge=1, le=65_536)] | None = None
    """Sequences it runs at once; also what the entry's max_num_seqs is by default."""
    max_num_batched_tokens: Annotated[int, Field(ge=1, le=1 << 24)] | None = None
    """Tokens of one of its steps; also what the entry's max_num_batched_tokens is by default."""
    enable_prefix_caching: bool | None = None
    """Whether it keeps the KV blocks of prompts to find them again."""
    scheduling_policy: Literal["fcfs", "priority"] | None = None
    """Who goes first: in order of arrival, or by the request's priority."""
    report: bool = True
    """Also the flags by which the gateway learns more of it: cached tokens, metrics, request ids."""
    flags: tuple[Word, ...] = ()
    """Further flags, one word each, as they are: [--enforce-eager, --seed, "7"]."""
    env: dict[Variable, Annotated[str, StringConstraints(max_length=65_536), AfterValidator(_no_nul)]] = Field(
        default={}, repr=False
    )
    """Environment variables beside those of `forebay launch`; write secrets as ${VAR}."""
    directory: Annotated[Path, AfterValidator(_folder)] | None = None
    """The folder it runs in."""
    python: Word | None = None
    """The Python that has the engine installed: /opt/vllm/bin/python."""
    command: tuple[Word, ...] = ()
    """The words in front of the flags, instead of what is looked for: [/opt/vllm/bin/vllm, serve]."""
    start_timeout: Seconds = 900.0
    """From its start to its first good health check."""
    stop_timeout: Seconds = 30.0
    """From SIGTERM until what is left of it is killed."""
    restarts: Annotated[int, Field(ge=0, le=1_000)] = 5
    """Failures in a row before it is given up; a minute of health begins the count anew. 0: never started again."""
    log_bytes: Annotated[int, Field(ge=65_536, le=1 << 40)] = 64 << 20
    """Size at which its log in state_dir/logs is moved aside; the one before it is kept too."""

    @model_validator(mode="after")
    def _one_way_to_start(self) -> Launch:
        if self.command and self.python is not None:
            raise clash("command and python are two ways to say what is started: leave one out")
        return self

    @property
    def url(self) -> str:
        """Where this machine reaches it."""
        host = _ANY.get(self.host, self.host)
        return f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"


UNKNOWN = "http://127.0.0.1:1"
"""Stands for the url where the launch section has mistakes, which are told by themselves."""


def filled_in(entry: Mapping[str, Any]) -> dict[str, Any]:
    """An engine's entry, with what its launch section says of it where it does not say so itself."""
    given = entry.get("launch")
    try:
        launch = given if isinstance(given, Launch) else Launch.model_validate(given)
    except ValidationError:
        return {"url": UNKNOWN, **entry}
    told: dict[str, Any] = {"url": launch.url}
    for name in ("max_num_seqs", "max_num_batched_tokens"):
        if (value := getattr(launch, name)) is not None:
            told[name] = value
    if launch.served_model_name is not None:
        told["models"] = (launch.served_model_name,)
    return {**told, **{key: value for key, value in entry.items() if value is not None}}

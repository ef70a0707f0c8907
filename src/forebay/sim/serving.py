"""How an emulated server is set up: what `options.py` reads from the command line."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from forebay.hardware.steptime import StepTime
from forebay.sim.faults import Fault
from forebay.sim.rates import RateStepTime
from forebay.sim.settings import EngineSettings

Role = Literal["null", "prefill", "decode"]
"""SGLang's --disaggregation-mode."""


@dataclass(frozen=True, slots=True)
class Settings:
    kind: str = "vllm"
    models: tuple[str, ...] = ("forebay-sim",)
    max_model_len: int = 8192
    seed: int = 0
    engine: EngineSettings = field(default_factory=lambda: EngineSettings(num_blocks=16_384, policy="priority"))
    steps: StepTime = field(default_factory=RateStepTime)
    speed: float = 1.0
    """Seconds of the engine in one of the wall."""
    prompt_tokens_details: bool = False
    """usage says how many prompt tokens were cached, where the engine has to be told to."""
    kv_transfer: bool = False
    """kv_transfer_params are obeyed."""
    kv_events: str | None = None
    """A ZeroMQ endpoint to publish KV cache events at; None: nowhere."""
    kv_events_shape: Literal["map", "array"] = "map"
    """Events as maps with a type, or as arrays that begin with it, as vLLM published them earlier."""
    queue_limit: int | None = None
    """Where the server counts who waits, not the model: what that means is the face's."""
    metrics: bool = True
    """The pages that an engine shows only when told to."""
    low_first: bool = False
    """SGLang's --schedule-low-priority-values-first."""
    role: Role = "null"
    bootstrap_port: int | None = None
    """Where decode engines find this prefill engine; None: its own port."""
    bootstrap_timeout: float = 300.0
    """Seconds of the wall that one engine waits for the other."""
    api_key: str | None = field(default=None, repr=False)
    allow_fault_header: bool = False
    faults: tuple[Fault, ...] = ()

"""Questions that are asked of both: `forebay tune` and aiconfigurator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from forebay.plan.tune.asked import Asked, wish_of
from forebay.plan.tune.search import Wish
from forebay.plan.tune.space import Setting


@dataclass(frozen=True)
class Case:
    """Prompts and answers of one length each, which is what aiconfigurator knows; Poisson arrivals."""

    name: str
    model: str
    gpu: str
    gpus: int
    prompt: int
    output: int
    ttft: float
    tpot: float

    def wish(self, jobs: int) -> Wish:
        workload = f"poisson:rate=10,requests=40000,prompt={self.prompt},output={self.output}"
        return wish_of(
            Asked(
                workload=workload, model=self.model, gpu=self.gpu, gpus=self.gpus, slo_ttft=self.ttft,
                slo_tpot=self.tpot, jobs=jobs,
            )
        )  # fmt: skip

    @staticmethod
    def setting(fields: dict[str, Any]) -> Setting:
        return Setting(**{name: value for name, value in fields.items() if name != "gpus"})


CASES: Final = (
    Case("qwen3-32b", "Qwen/Qwen3-32B", "h100_sxm", 8, 3000, 300, 1.5, 0.05),
    Case("llama-3.1-70b", "meta-llama/Meta-Llama-3.1-70B", "h200_sxm", 8, 4000, 500, 2.0, 0.04),
    Case("qwen3-8b", "Qwen/Qwen3-8B", "h100_sxm", 4, 1500, 400, 0.5, 0.03),
)

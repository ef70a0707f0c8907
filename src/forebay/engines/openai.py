"""Any server with OpenAI's API: health is that its model list answers; it has no metrics we know."""

from __future__ import annotations

from forebay.engines.base import EngineReport
from forebay.errors import Outcome


class OpenAIAdapter:
    kind = "openai"
    health_path = b"/v1/models"
    models_path = b"/v1/models"
    metrics_path: bytes | None = None

    def report(self, metrics: str) -> EngineReport:
        return EngineReport()

    def refused(self, status: int) -> Outcome | None:
        if status in (429, 503):
            return Outcome.OVERLOADED
        if status >= 500 or status in (401, 403, 407) or 300 <= status < 400:
            return Outcome.ENGINE_ERROR
        return None

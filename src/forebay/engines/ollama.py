"""Ollama. Written after ollama/ollama 0.33.0-rc2 (commit fb307609):

- server/routes.go: no metrics. `/api/ps` names the models in memory (api/types.go, `ProcessModelResponse`: `name`,
  `context_length` in tokens of one sequence, `size_vram` in bytes); `/v1/models` names all that were pulled, and
  loads one when it is asked for. `/api/version`.
- server/sched.go, `ErrMaxQueue`: over OLLAMA_MAX_QUEUE (512) requests wait: 503 "server busy, please try again.
  maximum pending requests exceeded" (server/routes.go, `handleScheduleError`). A request to a model that is not in
  memory waits for others to leave it. OLLAMA_NUM_PARALLEL (1) sequences a model (envconfig/config.go), which no page
  tells.
- A client that leaves cancels its request (the handlers run under the request's context).
- openai/openai.go, struct Usage: no cached tokens. `owned_by` is the name's namespace, "library" for Ollama's own
  models.
"""

from __future__ import annotations

from collections.abc import Mapping

from forebay.engines import pages
from forebay.engines.base import EngineReport, Notes
from forebay.engines.openai import OpenAIAdapter


class OllamaAdapter(OpenAIAdapter):
    kind = "ollama"
    notes = Notes(
        title="Ollama",
        load="no metrics; `/api/ps` names the models in memory",
        overload="503 “server busy, please try again”, over OLLAMA_MAX_QUEUE waiting requests",
        abort="closing the connection",
        priority="none",
        cached="not told",
        capacity="`/api/ps`: `context_length` of a loaded model; sequences (OLLAMA_NUM_PARALLEL) and the whole are not"
        " told",
        lora="a model of its own name",
        restart="not seen",
        sources="ollama/ollama 0.33.0-rc2: server/routes.go, server/sched.go, api/types.go, openai/openai.go, "
        "envconfig/config.go",
    )
    health_path = b"/api/version"
    metrics_paths = (b"/api/ps",)
    info_paths = ((b"/api/version",),)
    says = ("loaded",)
    least_interval = 5.0

    def report(self, metrics: str) -> EngineReport:
        found = pages.fields(pages.decoded(metrics)).get("models")
        if not isinstance(found, list):
            return EngineReport()
        models = [pages.fields(m) for m in pages.items(found)]
        lengths = [n for m in models if (n := pages.whole(m.get("context_length"))) is not None]
        return EngineReport(loaded=pages.names(m.get("name") for m in models), max_model_len=min(lengths, default=None))

    def info(self, path: bytes, page: bytes) -> EngineReport:
        return EngineReport(version=pages.text(pages.fields(pages.decoded(page)).get("version")))

    def cached_tokens(self, answer: Mapping[str, object]) -> int | None:
        return None

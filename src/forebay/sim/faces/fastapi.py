"""What SGLang and TensorRT-LLM have in common: FastAPI under uvicorn, and the flat error of early vLLM."""

from __future__ import annotations

from typing import Any

from forebay.sim.checks import Fields, Rejected, read_body
from forebay.sim.faces.base import Face
from forebay.wire.message import Request


class FastApiFace(Face):
    def fields(self, request: Request) -> Fields:
        """Raises Rejected."""
        return read_body(request.body, request.header(b"content-type"))

    def error_body(self, e: Rejected) -> Any:
        return {"object": "error", "message": e.message, "type": e.kind, "param": e.param, "code": e.status}

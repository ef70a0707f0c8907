"""The faces there are."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from forebay.sim.answers import Sent
from forebay.sim.faces.base import Face, House
from forebay.sim.faces.llamacpp import LlamacppFace
from forebay.sim.faces.ollama import OllamaFace
from forebay.sim.faces.sglang import SglangFace
from forebay.sim.faces.tgi import TgiFace
from forebay.sim.faces.trtllm import TrtllmFace
from forebay.sim.faces.vllm import VllmFace

KINDS: Final[Mapping[str, type[Face]]] = MappingProxyType(
    {face.kind: face for face in (VllmFace, SglangFace, TgiFace, TrtllmFace, LlamacppFace, OllamaFace)}
)


def wear(kind: str, house: House) -> Face:
    return KINDS[kind](house)


def other_page(face: Face, house: House) -> Sent:
    """The metrics of this engine as another kind would show them."""
    return KINDS["tgi" if face.kind == "vllm" else "vllm"](house).metrics()

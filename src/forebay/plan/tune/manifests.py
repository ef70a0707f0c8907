"""A setting as Kubernetes objects: a Deployment, a Service and a PodDisruptionBudget for each role.

An engine is a pod: its tensor-parallel ranks need one node. It gets no request before its health page answers
(readiness), is given START minutes to load its weights (startup), and is restarted where it does not answer any more
(liveness). A drain of nodes takes one engine of a role at a time.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from io import StringIO
from types import MappingProxyType
from typing import Any, Final

from forebay.engines.launching.commands import PROGRAMS
from forebay.plan.tune.launch import CONFIG, PORT, Start

_COMPONENT: Final[Mapping[str, str]] = MappingProxyType({"both": "engine", "prefill": "prefill", "decode": "decode"})
IMAGES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "vllm": "vllm/vllm-openai:v0.32.0",
        "sglang": "lmsysorg/sglang:v0.5.23",
        "trtllm": "nvcr.io/nvidia/tensorrt-llm/release:1.2.0",
        "tgi": "ghcr.io/huggingface/text-generation-inference:3.3.5",
    }
)
"""Of the versions whose flags are known here; pin the image that you have tested."""
START: Final = 20
"""Minutes until the first good health check."""
GRACE: Final = 120
"""Seconds that running requests have to end."""
_NAME: Final = 52
"""Characters of a name: a Deployment's pods add some to theirs, and 63 are allowed."""


def manifests(starts: Sequence[Start], model: str, gpus: Mapping[str, int]) -> dict[str, str]:
    """Name of a file and its YAML, for each engine that can be started so. `gpus`: of a pod, by role."""
    found = {}
    for kind in dict.fromkeys(start.kind for start in starts):
        ours = [start for start in starts if start.kind == kind and start.command is not None]
        if ours:
            found[f"kubernetes-{kind}.yaml"] = _yaml(
                [o for start in ours for o in objects(start, model, gpus[start.role])]
            )
    return found


def objects(start: Start, model: str, gpus: int) -> list[dict[str, Any]]:
    """Of one role of one engine."""
    assert start.command is not None
    name = dns_name(f"{start.kind}-{model.rpartition('/')[2]}" + ("" if start.role == "both" else f"-{start.role}"))
    labels = {"app.kubernetes.io/name": name, "app.kubernetes.io/component": _COMPONENT[start.role]}
    match = {"app.kubernetes.io/name": name}
    health = {"httpGet": {"path": PROGRAMS[start.kind].health, "port": "http"}}
    words, mounts, volumes = list(start.command.words), _MOUNTS, _VOLUMES
    made: list[dict[str, Any]] = []
    if start.files:
        words = [f"/config/{word}" if word == CONFIG else word for word in words]
        mounts = [*mounts, {"name": "config", "mountPath": "/config", "readOnly": True}]
        volumes = [*volumes, {"name": "config", "configMap": {"name": name}}]
        made.append(_object("v1", "ConfigMap", name, labels) | {"data": dict(start.files)})
    container = {
        "name": "engine",
        "image": IMAGES[start.kind],
        "command": words[:1],
        "args": words[1:],
        "env": [
            *({"name": key, "value": value} for key, value in start.command.variables.items()),
            *(_NIXL if start.kind == "vllm" and start.role != "both" else ()),
            {
                "name": "HF_TOKEN",
                "valueFrom": {"secretKeyRef": {"name": "huggingface", "key": "token", "optional": True}},
            },
        ],
        "ports": [{"name": "http", "containerPort": PORT}],
        "resources": {"limits": {"nvidia.com/gpu": gpus}},
        "startupProbe": health | {"periodSeconds": 10, "failureThreshold": START * 6},
        "readinessProbe": health | {"periodSeconds": 5, "timeoutSeconds": 5, "failureThreshold": 3},
        "livenessProbe": health | {"periodSeconds": 10, "timeoutSeconds": 10, "failureThreshold": 6},
        "volumeMounts": mounts,
    }
    deployment = _object("apps/v1", "Deployment", name, labels) | {
        "spec": {
            "replicas": start.count,
            "selector": {"matchLabels": match},
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}},
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "terminationGracePeriodSeconds": GRACE,
                    "containers": [container],
                    "volumes": volumes,
                },
            },
        }
    }
    service = _object("v1", "Service", name, labels) | {
        "spec": {
            "clusterIP": "None",
            "selector": match,
            "ports": [{"name": "http", "port": PORT, "targetPort": "http"}],
        }
    }
    budget = _object("policy/v1", "PodDisruptionBudget", name, labels) | {
        "spec": {"maxUnavailable": 1, "selector": {"matchLabels": match}}
    }
    return [*made, deployment, service, budget]


_NIXL: Final[tuple[dict[str, Any], ...]] = (
    {"name": "VLLM_NIXL_SIDE_CHANNEL_HOST", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
)
"""Where decode engines ask for KV; without it every engine says it is on its own loopback."""
_MOUNTS: Final[list[dict[str, Any]]] = [
    {"name": "shm", "mountPath": "/dev/shm"},  # noqa: S108
    {"name": "cache", "mountPath": "/root/.cache/huggingface"},
]
_VOLUMES: Final[list[dict[str, Any]]] = [
    {"name": "shm", "emptyDir": {"medium": "Memory"}},  # NCCL's buffers; the 64 MiB of a container are too few
    {"name": "cache", "emptyDir": {}},
]


def _object(version: str, kind: str, name: str, labels: Mapping[str, str]) -> dict[str, Any]:
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name, "labels": dict(labels)}}


def dns_name(text: str) -> str:
    """A label of RFC 1123: lower-case letters, digits and dashes, a letter first."""
    plain = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    return (plain if plain[:1].isalpha() else f"engine-{plain}")[:_NAME].rstrip("-")


def _yaml(made: Iterable[Mapping[str, Any]]) -> str:
    from ruamel.yaml import YAML

    yaml = YAML(typ="safe", pure=True)
    yaml.default_flow_style = False
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]
    yaml.representer.ignore_aliases = lambda *_: True
    yaml.width = 4096
    text = StringIO()
    yaml.dump_all(list(made), text)
    return text.getvalue()

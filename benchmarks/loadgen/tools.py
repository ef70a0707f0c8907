"""The load tools: each sends the same prompts in the same order at the same even spacing, and its figures are named
alike, in milliseconds and a second."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.common import ROOT, BenchError
from forebay.plan.load import WORDS

sys.path.append(str(ROOT / "tests"))
from engines import install

AIPERF = "aiperf==0.13.0"
FIGURES = ("ttft_mean", "ttft_p50", "tpot_mean", "e2e_mean", "e2e_p50")
SECONDS = 300.0
"""A tool has for one run."""
WARM = 4
"""Requests that are not counted, of each tool."""
QUIET = {**install.QUIET, "TOKENIZERS_PARALLELISM": "false"}


@dataclass(frozen=True)
class Job:
    """What all tools send."""

    url: str
    model: str
    prompts: Path
    requests: int
    rate: float
    output_tokens: int
    key: str = ""


def write_prompts(path: Path, requests: int, words: int, output_tokens: int, seed: int) -> None:
    """Of words that are a token each; new ones for each seed, so that no cache knows them."""
    rng = random.Random(seed)
    with path.open("w") as file:
        for _ in range(requests):
            text = " ".join(rng.choices(WORDS, k=words))
            # `text` and `output_length` are aiperf's names.
            row = {"prompt": text, "output_tokens": output_tokens}
            file.write(json.dumps(row) + "\n")


def forebay(job: Job, work: Path, core: int) -> dict[str, float]:
    out = work / "forebay.json"
    program = str(Path(sys.executable).with_name("forebay"))
    command = [program, "bench", job.url, "--model", job.model, "--endpoint", "completions"]
    command += ["--prompts", str(job.prompts), "--rate", str(job.rate), "--arrivals", "uniform"]
    command += ["--requests", str(job.requests), "--warmup", str(WARM), "--extra", '{"ignore_eos": true}']
    _run([*command, "--json", str(out)], work, core, {"FOREBAY_API_KEY": job.key})
    found = json.loads(out.read_text())
    _whole(found["completed"], job, "forebay bench")
    return {
        "ttft_mean": found["ttft_ms"]["mean"],
        "ttft_p50": found["ttft_ms"]["p50"],
        "ttft_p99": found["ttft_ms"]["p99"],
        "tpot_mean": found["tpot_ms"]["mean"],
        "e2e_mean": found["e2e_ms"]["mean"],
        "e2e_p50": found["e2e_ms"]["p50"],
        "e2e_p99": found["e2e_ms"]["p99"],
        "output_tokens_per_s": found["output_tokens_per_s"],
        "lag_p99": found["generator"]["lag_ms"]["p99"],
    }


def vllm(job: Job, work: Path, core: int) -> dict[str, float]:
    out = work / "vllm.json"
    driver = Path(__file__).with_name("vllm_driver.py")
    command = [str(install.python()), str(driver), str(job.prompts), "--backend", "openai", "--base-url", job.url]
    command += ["--endpoint", "/v1/completions", "--model", job.model, "--tokenizer", str(install.model())]
    # Gamma gaps of a shape so large are even ones.
    command += ["--num-prompts", str(job.requests), "--request-rate", str(job.rate), "--burstiness", "100000"]
    command += ["--ignore-eos", "--num-warmups", str(WARM), "--percentile-metrics", "ttft,tpot,e2el"]
    command += ["--metric-percentiles", "50,99", "--save-result", "--result-filename", str(out), "--disable-tqdm"]
    _run(command, work, core, {"OPENAI_API_KEY": job.key or "none"})
    found = json.loads(out.read_text())
    _whole(found["completed"], job, "vllm bench serve")
    return {
        "ttft_mean": found["mean_ttft_ms"],
        "ttft_p50": found["median_ttft_ms"],
        "ttft_p99": found["p99_ttft_ms"],
        "tpot_mean": found["mean_tpot_ms"],
        "e2e_mean": found["mean_e2el_ms"],
        "e2e_p50": found["median_e2el_ms"],
        "e2e_p99": found["p99_e2el_ms"],
        "output_tokens_per_s": found["output_throughput"],
    }


def aiperf(job: Job, work: Path, core: int) -> dict[str, float]:
    out, rows = work / "aiperf", work / "aiperf.jsonl"
    shutil.rmtree(out, ignore_errors=True)
    given = [json.loads(line) for line in job.prompts.read_text().splitlines()]
    rows.write_text("".join(json.dumps({"text": row["prompt"]}) + "\n" for row in given))
    command = [str(aiperf_home() / "bin" / "aiperf"), "profile", "--url", job.url, "--model", job.model]
    command += ["--endpoint-type", "completions", "--streaming", "--tokenizer", str(_tokenizer(work))]
    command += ["--input-file", str(rows), "--custom-dataset-type", "single_turn", "--use-server-token-count"]
    command += ["--request-rate", str(job.rate), "--arrival-pattern", "constant"]
    command += ["--request-count", str(job.requests), "--warmup-request-count", str(WARM), "--no-gpu-telemetry"]
    command += ["--extra-inputs", "ignore_eos:true", "--extra-inputs", f"max_tokens:{job.output_tokens}"]
    command += ["--dataset-sampling-strategy", "sequential", "--output-artifact-dir", str(out), "--ui", "none"]
    command += ["--api-key", job.key] if job.key else []
    # Offline it looks for a tokenizer only among downloaded ones, and not in a folder.
    _run(command, work, core, {}, without=("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"))
    found = json.loads((out / "profile_export_aiperf.json").read_text())
    _whole(int(found["request_count"]["avg"]), job, "aiperf")
    return {
        "ttft_mean": found["time_to_first_token"]["avg"],
        "ttft_p50": found["time_to_first_token"]["p50"],
        "ttft_p99": found["time_to_first_token"]["p99"],
        "tpot_mean": found["inter_token_latency"]["avg"],
        "e2e_mean": found["request_latency"]["avg"],
        "e2e_p50": found["request_latency"]["p50"],
        "e2e_p99": found["request_latency"]["p99"],
        "output_tokens_per_s": found["output_token_throughput"]["avg"],
    }


Tool = Callable[[Job, Path, int], dict[str, float]]
TOOLS: dict[str, Tool] = {"forebay": forebay, "vllm": vllm, "aiperf": aiperf}


def aiperf_home() -> Path:
    """aiperf's own environment beside the engines', made where it is not there: 1 GB, a minute or two."""
    home = install.cache() / AIPERF.replace("==", "-")
    if (home / ".installed").exists():
        return home
    install.cache().mkdir(parents=True, exist_ok=True)
    with install.locked(install.cache() / "aiperf.lock"):
        if not (home / ".installed").exists():
            print(f"installing {AIPERF} into {home}, once", flush=True)
            shutil.rmtree(home, ignore_errors=True)
            for command in (
                [sys.executable, "-m", "venv", str(home)],
                [str(home / "bin" / "python"), "-m", "pip", "install", "--quiet", AIPERF],
            ):
                done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=1_200)
                if done.returncode:
                    raise BenchError(f"{AIPERF} could not be installed: {_last(done.stderr)}")
            (home / ".installed").touch()
    return home


def need_vllm() -> None:
    """Raises BenchError where it is not installed: 2.5 GB are not fetched unasked."""
    if not install.ready():
        raise BenchError("vLLM is not installed: run python tests/engines/install.py (2.5 GB), or leave it out")


def _tokenizer(work: Path) -> Path:
    """In a folder with little else: aiperf reads it to count, which the server's own usage then overrules."""
    folder = work / "tokenizer"
    folder.mkdir(exist_ok=True)
    for name in ("tokenizer.json", "tokenizer_config.json", "config.json"):
        shutil.copy(install.model() / name, folder / name)
    return folder


def _run(command: list[str], work: Path, core: int, env: dict[str, str], without: tuple[str, ...] = ()) -> None:
    try:
        done = subprocess.run(
            ["taskset", "-c", str(core), *command],
            cwd=work,
            env={k: v for k, v in {**os.environ, **QUIET, **env}.items() if k not in without},
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise BenchError(f"{command[0]} did not end within {SECONDS:g} s") from None
    if done.returncode:
        raise BenchError(
            f"{' '.join(command[:3])} ended with code {done.returncode}: {_last(done.stderr or done.stdout)}"
        )


def _last(text: str) -> str:
    lines: list[Any] = [line for line in text.splitlines() if line.strip()]
    return "\n".join(lines[-6:]) or "it said nothing"


def _whole(completed: int, job: Job, tool: str) -> None:
    if completed != job.requests:
        raise BenchError(f"{tool} completed {completed} of {job.requests} requests at {job.url}")

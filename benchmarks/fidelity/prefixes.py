"""python -m benchmarks.fidelity.prefixes WORKLOAD.jsonl …: which prompts of a workload begin alike.

A recorded run has no token ids, but its prompts share prefixes, which the engine's prefix cache finds. prefixes.json
keeps what the simulator needs of a public workload, by the SHA-256 of its file (`dataset_hash` of the runs made with
it): for each request with a first block in common with an earlier one, [its line, the earlier one's line, tokens in
common], where the earlier one is the first of those with the most in common. All else follows: two requests have in
common what the shorter link of the chain between them says.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.common import BenchError, run

FILE = Path(__file__).with_name("prefixes.json")
LEAST = 16
"""Tokens in common that are kept: vLLM's smallest usual block."""

Link = tuple[int, int, int]
"""A request, an earlier one, the tokens that both begin with."""
Prefix = tuple[tuple[str, int], ...]
"""(key, tokens) pieces, as `forebay.sim.jobs.Job` takes them."""


def read_workload(path: Path) -> tuple[str, list[list[int]]]:
    """SHA-256 and the prompts' token ids of a workload in LLMServingSim's form (JSONL with input_tok_ids, which its
    recorder replays line by line). Raises BenchError."""
    try:
        data = path.read_bytes()
    except OSError as e:
        raise BenchError(f"{path}: cannot be read: {e.strerror or e}") from e
    prompts = []
    for number, line in enumerate(data.splitlines(), 1):
        if not line.strip():
            continue
        try:
            row: Any = json.loads(line)
        except ValueError as e:
            raise BenchError(f"{path}: line {number}: is not JSON: {e}") from e
        if isinstance(row, dict) and "sub_requests" in row:
            continue  # the recorder leaves sessions out
        ids = row.get("input_tok_ids") if isinstance(row, dict) else None
        if not isinstance(ids, list) or not ids or not all(isinstance(i, int) for i in ids):
            raise BenchError(f"{path}: line {number}: input_tok_ids must be a list of token ids")
        prompts.append(ids)
    if not prompts:
        raise BenchError(f"{path}: has no request in it")
    return hashlib.sha256(data).hexdigest(), prompts


def common_prefixes(prompts: Sequence[Sequence[int]]) -> list[Link]:
    """One link for each prompt that has `LEAST` tokens or more in common with one before it."""
    earlier: dict[tuple[int, ...], list[int]] = {}
    links = []
    for i, ids in enumerate(prompts):
        head = tuple(ids[:LEAST])
        if len(head) < LEAST:
            continue
        alike = earlier.setdefault(head, [])
        best = max(((_common(ids, prompts[j]), -j) for j in alike), default=None)
        if best is not None:
            links.append((i, -best[1], best[0]))
        alike.append(i)
    return links


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    for n, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return n
    return min(len(a), len(b))


def chains(links: Iterable[Link], block_size: int) -> dict[int, Prefix]:
    """Each request's blocks that another one has too, under the name of the first that had them."""
    shared: dict[int, int] = {}  # blocks of a request that some other has
    parents: dict[int, tuple[int, int]] = {}
    for i, j, tokens in sorted(links):
        blocks = tokens // block_size
        if blocks:
            parents[i] = (j, blocks)
            shared[i] = max(shared.get(i, 0), blocks)
            shared[j] = max(shared.get(j, 0), blocks)

    names: dict[int, list[str]] = {}
    for i in sorted(shared):
        j, blocks = parents.get(i, (i, 0))
        own = names[j][:blocks] if blocks else []
        names[i] = own + [f"{i}.{b}" for b in range(len(own), shared[i])]
    return {i: tuple((name, block_size) for name in found) for i, found in names.items()}


def known(dataset: str | None) -> list[Link] | None:
    """The links of a public workload; None where the hash is not one of them."""
    document = json.loads(FILE.read_bytes())
    found = document["workloads"].get(dataset)
    return None if found is None else [(i, j, tokens) for i, j, tokens in found["links"]]


def document(workloads: Mapping[str, tuple[str, Sequence[Link], int]]) -> str:
    """The text of prefixes.json; `workloads`: by hash (file's name, links, requests)."""
    head = {
        "source": "workloads/*.jsonl of https://github.com/casys-kaist/LLMServingSim (ShareGPT prompts, tokenised)",
        "licence": "MIT, Copyright (c) 2024 CASYS Lab at KAIST",
        "made_by": "python -m benchmarks.fidelity.prefixes WORKLOAD.jsonl ...",
        "links": "[line of a request, line of an earlier one, tokens both begin with]; lines counted from 0",
    }
    parts = [json.dumps(head, indent=1)[:-2], ',\n "workloads": {\n']
    for at, (digest, (name, links, requests)) in enumerate(workloads.items()):
        rows = ", ".join(json.dumps(list(link)) for link in links)
        end = "" if at == len(workloads) - 1 else ","
        parts.append(f'  "{digest}": {{"file": "{name}", "requests": {requests}, "links": [{rows}]}}{end}\n')
    parts.append(" }\n}\n")
    return "".join(parts)


def main() -> int:
    if len(sys.argv) < 2:
        raise BenchError("name at least one workload file: python -m benchmarks.fidelity.prefixes WORKLOAD.jsonl")
    found: dict[str, tuple[str, Sequence[Link], int]] = {}
    for argument in sys.argv[1:]:
        path = Path(argument)
        digest, prompts = read_workload(path)
        links = common_prefixes(prompts)
        # Two files with equal content have one hash; the first one's name is enough.
        found.setdefault(digest, (path.name, links, len(prompts)))
        tokens = sum(n for _, _, n in links)
        total = sum(len(p) for p in prompts)
        print(f"{path.name}: {len(links)} of {len(prompts)} prompts share {tokens:,} of {total:,} tokens")
    FILE.write_text(document(found))
    print(FILE)
    return 0


if __name__ == "__main__":
    run(main)

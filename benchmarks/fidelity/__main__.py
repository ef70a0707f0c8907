"""make bench-fidelity: recorded runs of real engines, simulated, and how far off the simulator is."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from rich.console import Console

from benchmarks.common import RESULTS, ROOT, BenchError, env_flag, env_names, run, verdict, write_results
from benchmarks.fidelity.prefixes import Link, chains, common_prefixes, known, read_workload
from benchmarks.fidelity.report import picture, tables
from benchmarks.fidelity.runs import Run, find_runs, read_run
from benchmarks.fidelity.score import samples
from benchmarks.fidelity.setup import describe, gpu_name
from benchmarks.fidelity.sources import SOURCES, Skipped, step_times
from benchmarks.fidelity.study import Case, Study, shortfalls, study

_DATA = ROOT.parent / "shared" / "data"


def path_of(name: str, default: Path) -> Path:
    text = os.environ.get(name, "")
    return Path(text).expanduser() if text else default


class Workload:
    """A workload file named by WORKLOAD."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.digest, prompts = read_workload(path)
        self.sizes = [len(p) for p in prompts]
        self.links = common_prefixes(prompts)

    def links_of(self, run: Run) -> list[Link]:
        """Raises BenchError where the run was made with another file."""
        for r in run.requests:
            if r.index >= len(self.sizes) or self.sizes[r.index] != r.prompt_tokens:
                there = self.sizes[r.index] if r.index < len(self.sizes) else "no"
                raise BenchError(
                    f"{self.path}: is not the workload of {run.folder}: request {r.index} has {r.prompt_tokens} prompt "
                    f"tokens there and {there} here"
                )
        return self.links


def load_cases(
    runs: Sequence[Run], source: str, profiles: Path, workload: Workload | None, skew: bool, skipped: list[str]
) -> list[Case]:
    """Those that the source has step times for; why not the others goes into `skipped`."""
    cases = []
    for r in runs:
        setup = describe(r, gpu_name(r, profiles))
        try:
            found = step_times(source, r, setup, profiles, skew=skew)
        except Skipped as e:
            skipped.append(f"{r.name}, {source}: {e}")
            continue
        links = known(r.dataset) if workload is None else workload.links_of(r)
        caches = setup.settings.enable_prefix_caching
        size = setup.settings.block_size
        cases.append(
            Case(r, setup, source, found, chains(links or () if caches else (), size) if links is not None else None)
        )
    return cases


def figures(s: Study) -> dict[str, object]:
    """For results/fidelity.json; seconds, errors relative."""

    def real_and_mine() -> list[dict[str, object]]:
        rows = []
        for real, mine in zip(s.run.requests, s.judged.replay.requests, strict=True):
            row: dict[str, object] = {"index": real.index, "prompt": real.prompt_tokens, "output": real.output_tokens}
            for name, one in (("real", real), ("simulated", mine)):
                row[name] = {k: round(v[0], 6) for k, v in samples([one]).items() if v}
            rows.append(row)
        return rows

    return {
        "run": s.run.name,
        "requests_sha256": s.run.digest,
        "source": s.source,
        "step_times": s.note,
        "engine": asdict(s.setup.settings),
        "ranks": {"tp": s.setup.tp, "dp": s.setup.dp, "ep": s.setup.ep},
        "notes": s.notes,
        "fit_on_first_third": asdict(s.first_third),
        "rows": [
            {
                "host": row.host,
                "constants_s": row.constants,
                "prefixes": row.prefixes,
                "scored_on": row.scored,
                "judged": row is s.judged,
                "preemptions": row.replay.preemptions,
                "prefix_hits": row.replay.hits,
                "figures": [{**asdict(f), "error": f.error, "met": f.met} for f in row.figures],
            }
            for row in s.rows
        ],
        "samples": real_and_mine(),
    }


def main() -> int:
    data = path_of("DATA", _DATA / "vllm-runs")
    profiles = path_of("PROFILES", _DATA / "profiles" / "llmservingsim")
    skew = env_flag("SKEW") or False
    sources = env_names("SOURCE", SOURCES, SOURCES)
    workload = Workload(Path(os.environ["WORKLOAD"])) if os.environ.get("WORKLOAD") else None
    runs = [read_run(folder) for folder in find_runs(data)]
    digests = {r.digest for r in runs}
    given = _DATA / "vllm-runs"
    extra = [r for r in map(read_run, find_runs(given)) if r.digest not in digests] if given.is_dir() else []

    console = Console(width=None if sys.stdout.isatty() else 120)
    skipped: list[str] = []
    studies: list[Study] = []
    with console.status("reading") as status:
        for source in sources:
            cases = load_cases(runs, source, profiles, workload, skew, skipped)
            others = cases + (load_cases(extra, source, profiles, None, skew, []) if cases else [])
            studies += [study(case, others, status.update) for case in cases]
    studies.sort(key=lambda s: (s.run.name, sources.index(s.source)))
    for s in studies:
        tables(s, console)
    for line in skipped:
        console.print(f"skipped: {line}", markup=False, highlight=False)
    if not studies:
        raise BenchError(f"{data}: no run of it can be simulated: {skipped[0]}")
    fell = shortfalls(studies)
    path = write_results(
        "fidelity", {"skew": skew, "studies": list(map(figures, studies)), "skipped": skipped, "fell_short": fell}
    )
    drawn = RESULTS / "fidelity.svg"
    drawn.write_text(picture(studies))
    console.print(path, highlight=False)
    console.print(drawn, highlight=False)
    return verdict(fell)


if __name__ == "__main__":
    run(main)

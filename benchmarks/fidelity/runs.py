"""Recorded runs of a real vLLM: a folder with meta.json, requests.jsonl and timeseries.csv, as LLMServingSim's recorder
writes them (casys-kaist/LLMServingSim, bench/core/runner.py and stat_logger.py).

arrival_time is wall-clock time of the front end, the other times are monotonic: the arrival is put on the monotonic
clock by the least queued_ts - arrival_time of the run, which is what the way into an idle engine takes at best.
"""

from __future__ import annotations

import csv
import hashlib
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.common import BenchError

_TIMES = ("arrival_time", "queued_ts", "scheduled_ts", "first_token_ts", "last_token_ts")
_SERIES = ("t", "running", "waiting", "kv_cache_pct")
_ORDER_SLACK = 1e-3


@dataclass(frozen=True, slots=True)
class Request:
    """What one request took in the real run; seconds since the first arrival."""

    index: int
    """Its place in the workload file."""
    prompt_tokens: int
    output_tokens: int
    arrival: float
    first: float
    """When its first token came out."""
    last: float


@dataclass(frozen=True, slots=True)
class Tick:
    """The engines' state, of all ranks in sum. `t`: seconds since the engine started, which is shortly before the first
    arrival; `kv`: share of the KV blocks, 0 to 1."""

    t: float
    running: float
    waiting: float
    kv: float


@dataclass(frozen=True, slots=True)
class Run:
    folder: Path
    meta: dict[str, Any]
    requests: tuple[Request, ...]
    """In order of arrival."""
    ticks: tuple[Tick, ...]
    digest: str
    """SHA-256 of requests.jsonl: what run it is, wherever it lies."""

    @property
    def name(self) -> str:
        """Its folder's; where a recorder calls all folders vllm, that of those around it."""
        folder = self.folder
        return f"{folder.parent.parent.name}-{folder.parent.name}" if folder.name == "vllm" else folder.name

    @property
    def dataset(self) -> str | None:
        found = self.meta.get("dataset_hash")
        return found if isinstance(found, str) else None

    def option(self, name: str, *sections: str) -> Any:
        """An engine argument: as vLLM resolved it, else as it was asked for; None where neither says."""
        for section in sections:
            at: Any = self.meta
            for key in section.split("."):
                at = at.get(key) if isinstance(at, dict) else None
            if isinstance(at, dict) and at.get(name) is not None:
                return at[name]
        return self.meta["engine_kwargs"].get(name)


def find_runs(path: Path) -> list[Path]:
    """The run at a path, or those in the folders under it. Raises BenchError where there is none."""
    if (path / "requests.jsonl").exists():
        return [path]
    if not path.is_dir():
        raise BenchError(f"{path}: is neither a run (meta.json, requests.jsonl, timeseries.csv) nor a folder of runs")
    # ** does not follow links to folders, * does
    found = sorted({p.parent for form in ("*/requests.jsonl", "**/requests.jsonl") for p in path.glob(form)})
    if not found:
        raise BenchError(f"{path}: holds no run; a run is a folder with meta.json, requests.jsonl and timeseries.csv")
    return found


def read_run(folder: Path) -> Run:
    """Raises BenchError with the file, the line and the field."""
    meta = _read_meta(folder / "meta.json")
    path = folder / "requests.jsonl"
    data = _bytes(path)
    return Run(folder.absolute(), meta, _requests(path, data), _ticks(folder / "timeseries.csv"), _sha(data))


def _sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as e:
        raise BenchError(f"{path}: cannot be read: {e.strerror or e}") from e


def _read_meta(path: Path) -> dict[str, Any]:
    try:
        meta = json.loads(_bytes(path))
    except ValueError as e:
        raise BenchError(f"{path}: is not JSON: {e}") from e
    if not isinstance(meta, dict):
        raise BenchError(f"{path}: holds {type(meta).__name__} where an object is needed")
    if not isinstance(meta.get("model"), str):
        raise BenchError(f"{path}: model must be the name of a model, not {meta.get('model')!r}")
    if not isinstance(meta.get("engine_kwargs"), dict):
        raise BenchError(f"{path}: engine_kwargs must be an object, not {meta.get('engine_kwargs')!r}")
    return meta


def whole(value: Any, field: str, where: str, *, least: int = 1) -> int:
    """A whole number of a file. Raises BenchError."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise BenchError(f"{where}: {field} must be a whole number of at least {least}, not {value!r}")
    return value


def _requests(path: Path, data: bytes) -> tuple[Request, ...]:
    rows: list[tuple[int, int, int, list[float]]] = []
    seen: dict[int, int] = {}
    for number, line in enumerate(data.splitlines(), 1):
        if not line.strip():
            continue
        where = f"{path}: line {number}"
        try:
            row = json.loads(line)
        except ValueError as e:
            raise BenchError(f"{where}: is not JSON: {e}") from e
        if not isinstance(row, dict):
            raise BenchError(f"{where}: holds {type(row).__name__} where an object is needed")
        index = _index(row.get("request_id"), len(rows), where)
        if index in seen:
            raise BenchError(f"{where}: request_id {row.get('request_id')!r} is that of line {seen[index]} again")
        seen[index] = number
        prompt = whole(row.get("input_toks"), "input_toks", where)
        output = whole(row.get("output_toks"), "output_toks", where)
        times = [_seconds(row.get(name), name, where) for name in _TIMES]
        _, queued, scheduled, first, last = times
        for early, late, a, b in (
            ("queued_ts", "scheduled_ts", queued, scheduled),
            ("scheduled_ts", "first_token_ts", scheduled, first),
            ("first_token_ts", "last_token_ts", first, last),
        ):
            if b < a - _ORDER_SLACK:
                raise BenchError(f"{where}: {late} ({b}) lies before {early} ({a})")
        rows.append((index, prompt, output, times))
    if not rows:
        raise BenchError(f"{path}: has no request in it")
    offset = min(times[1] - times[0] for _, _, _, times in rows)
    start = min(times[0] for _, _, _, times in rows) + offset
    found = [
        Request(index, prompt, output, times[0] + offset - start, times[3] - start, times[4] - start)
        for index, prompt, output, times in rows
    ]
    return tuple(sorted(found, key=lambda r: (r.arrival, r.index)))


def _index(name: Any, count: int, where: str) -> int:
    """bench-17 is line 17 of the workload; without such an id, the order of the lines."""
    if name is None:
        return count
    tail = str(name).rpartition("-")[2]
    if not (isinstance(name, str) and tail.isascii() and tail.isdigit()):
        raise BenchError(f"{where}: request_id must end in a number, as bench-0 does, not be {name!r}")
    return int(tail)


def _seconds(value: Any, field: str, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or value < 0:
        raise BenchError(f"{where}: {field} must be a number of seconds, at least 0, not {value!r}")
    return float(value)


def _ticks(path: Path) -> tuple[Tick, ...]:
    try:
        lines = list(csv.reader(_bytes(path).decode().splitlines()))
    except (UnicodeDecodeError, csv.Error) as e:
        raise BenchError(f"{path}: is no CSV: {e}") from e
    if not lines:
        raise BenchError(f"{path}: is empty; line 1 must name the columns {', '.join(_SERIES)}")
    for name in _SERIES:
        if name not in lines[0]:
            raise BenchError(f"{path}: line 1: column {name} is missing; found {', '.join(lines[0])[:200]}")
    at = [lines[0].index(name) for name in _SERIES]
    ticks: list[Tick] = []
    for number, row in enumerate(lines[1:], 2):
        if not row:
            continue
        values = []
        for name, column in zip(_SERIES, at, strict=True):
            text = row[column] if column < len(row) else ""
            try:
                value = float(text)
            except ValueError:
                value = math.nan
            if not (math.isfinite(value) and value >= 0):
                raise BenchError(f"{path}: line {number}: {name} must be a number, at least 0, not {text!r}")
            values.append(value)
        t, running, waiting, kv = values
        if ticks and t <= ticks[-1].t:
            raise BenchError(f"{path}: line {number}: t ({t}) does not lie behind that of the line before")
        ticks.append(Tick(t, running, waiting, kv / 100))
    return tuple(ticks)

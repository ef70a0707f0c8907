"""The fidelity benchmark's own parts: what it reads and refuses, which blocks it takes for shared, how ranks step, what
it fits, how it judges; and a whole run of it against an engine that is known exactly."""

from __future__ import annotations

import json
import random
import xml.etree.ElementTree as ET
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from benchmarks.common import BenchError
from benchmarks.fidelity import __main__ as command
from benchmarks.fidelity import prefixes
from benchmarks.fidelity.fit import fit, residuals
from benchmarks.fidelity.fleet import Asked, Independent, Lockstep, Rank, fleet_of
from benchmarks.fidelity.report import picture
from benchmarks.fidelity.runs import Request, Run, find_runs, read_run
from benchmarks.fidelity.score import GIVEN, bars, compare
from benchmarks.fidelity.setup import describe, gpu_name, tables_folder
from benchmarks.fidelity.simulate import replay
from benchmarks.fidelity.sources import Source, step_times
from benchmarks.fidelity.study import Case, shortfalls, study
from hypothesis import given
from hypothesis import strategies as st

from forebay.hardware.steptime import Chunk
from forebay.sim.engine import EngineModel
from forebay.sim.jobs import Job
from forebay.sim.settings import EngineSettings
from hardware_bundles import BLOCK, CHUNKS, CONTEXTS, COUNTS, KVS, SEQUENCES, TOKENS, attention, dense, write

META: dict[str, Any] = {
    "model": "meta-llama/Llama-3.1-8B",
    "engine_kwargs": {"max_num_seqs": 8, "max_num_batched_tokens": 256, "max_model_len": 4096, "dtype": "bfloat16"},
    "kv_cache": {"num_gpu_blocks": 400, "block_size": 16},
    "hardware": {"device_name": "NVIDIA GeForce RTX 4090"},
}
HOST = (0.002, 0.006)


class Flat:
    """10 ms a step, a tenth of a millisecond more for each token of prefill."""

    warnings = ()

    def decode(self, n: int, context: int, longest: int) -> float:
        return 0.010

    def mixed(self, chunks: Sequence[Chunk], n: int, context: int, longest: int) -> float:
        return 0.010 + 1e-4 * sum(c.tokens for c in chunks)


Rows = list[dict[str, Any]]


def plain_rows(n: int = 3) -> Rows:
    return [
        {
            "request_id": f"bench-{i}",
            "input_toks": 100,
            "output_toks": 11,
            "arrival_time": 1_000.0 + i,
            "queued_ts": 50.002 + i + 0.001 * (i > 0),
            "scheduled_ts": 50.003 + i,
            "first_token_ts": 50.1 + i,
            "last_token_ts": 50.6 + i,
        }
        for i in range(n)
    ]


def write_run(
    folder: Path,
    rows: Rows,
    *,
    meta: Mapping[str, Any] = META,
    series: str = "t,running,waiting,kv_cache_pct\n1,1,0,5\n",
) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "meta.json").write_text(json.dumps(meta))
    (folder / "requests.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    (folder / "timeseries.csv").write_text(series)
    return folder


# --- reading ---------------------------------------------------------------------------------------------------------


def test_arrivals_are_put_on_the_clock_of_the_tokens(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / "RTX4090-x", list(reversed(plain_rows()))))
    assert [r.index for r in run.requests] == [0, 1, 2], "in order of arrival"
    assert [r.arrival for r in run.requests] == pytest.approx([0, 1, 2])
    assert run.requests[1].first == pytest.approx(1.098), "the least queued - arrival is the way in"
    assert (run.ticks[0].running, run.ticks[0].kv) == (1, 0.05)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"input_toks": 0}, r"requests.jsonl: line 2: input_toks must be a whole number of at least 1, not 0"),
        ({"output_toks": 1.5}, "line 2: output_toks must be a whole number"),
        ({"first_token_ts": None}, "line 2: first_token_ts must be a number of seconds, at least 0, not None"),
        ({"queued_ts": float("nan")}, "line 2: queued_ts must be a number of seconds"),
        ({"last_token_ts": 1.0}, r"line 2: last_token_ts \(1.0\) lies before first_token_ts"),
        ({"request_id": "bench-0"}, "line 2: request_id 'bench-0' is that of line 1 again"),
        ({"request_id": "x"}, "line 2: request_id must end in a number"),
    ],
)
def test_a_request_that_makes_no_sense_is_named(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    rows = plain_rows()
    rows[1].update(change)
    with pytest.raises(BenchError, match=message):
        read_run(write_run(tmp_path / "run", rows))


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("requests.jsonl", "", "has no request in it"),
        ("requests.jsonl", "{", "line 1: is not JSON"),
        ("requests.jsonl", "[1]", "line 1: holds list"),
        ("meta.json", "[]", "meta.json: holds list where an object is needed"),
        ("meta.json", '{"model": 1}', "model must be the name of a model, not 1"),
        ("meta.json", '{"model": "m"}', "engine_kwargs must be an object, not None"),
        ("timeseries.csv", "", "is empty; line 1 must name the columns"),
        ("timeseries.csv", "t,running,waiting\n", "line 1: column kv_cache_pct is missing"),
        ("timeseries.csv", "t,running,waiting,kv_cache_pct\n1,2,x,4\n", "line 2: waiting must be a number"),
        ("timeseries.csv", "t,running,waiting,kv_cache_pct\n1,2,0,4\n1,2,0,4\n", "line 3: t .* does not lie behind"),
    ],
)
def test_a_file_that_makes_no_sense_is_named(tmp_path: Path, name: str, text: str, message: str) -> None:
    folder = write_run(tmp_path / "run", plain_rows())
    (folder / name).write_text(text)
    with pytest.raises(BenchError, match=message):
        read_run(folder)


def test_runs_are_found_below_a_folder_and_behind_links(tmp_path: Path) -> None:
    deep = write_run(tmp_path / "a" / "RTX4090" / "Llama" / "vllm", plain_rows())
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "linked").symlink_to(deep)
    assert find_runs(deep) == find_runs(tmp_path / "a") == [deep]
    assert find_runs(tmp_path / "b") == [tmp_path / "b" / "linked"]
    assert read_run(deep).name == "RTX4090-Llama"
    (tmp_path / "c").mkdir()
    with pytest.raises(BenchError, match="holds no run"):
        find_runs(tmp_path / "c")


# --- the engine it was -----------------------------------------------------------------------------------------------


def test_an_engine_is_what_meta_json_says(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / "run", plain_rows()))
    setup = describe(run, gpu_name(run, None))
    s = setup.settings
    assert (s.num_blocks, s.block_size, s.max_num_seqs, s.max_num_batched_tokens) == (400, 16, 8, 256)
    assert (s.async_scheduling, s.reserve_full_isl, s.enable_prefix_caching) == (True, True, True)
    assert setup.pad == (1, 2, 4, 8, 16), "vLLM captures up to twice max_num_seqs"
    assert setup.notes == ("resolved_config is not recorded: vLLM's defaults stand for what engine_kwargs leaves out",)

    resolved = {
        "scheduler_config": {"async_scheduling": False, "scheduler_reserve_full_isl": False, "max_num_seqs": 4},
        "cache_config": {"enable_prefix_caching": False},
        "compilation_config": {"cudagraph_capture_sizes": [1, 4]},
    }
    setup = describe(replace(run, meta=META | {"resolved_config": resolved}), "rtx_4090")
    s = setup.settings
    assert (s.async_scheduling, s.reserve_full_isl, s.enable_prefix_caching) == (False, False, False)
    assert (s.max_num_seqs, setup.pad, setup.notes) == (4, (1, 4), ())


def test_kv_blocks_that_are_not_recorded_are_derived_and_said(tmp_path: Path) -> None:
    meta = {k: v for k, v in META.items() if k != "kv_cache"}
    setup = describe(read_run(write_run(tmp_path / "run", plain_rows(), meta=meta)), "rtx_4090")
    assert 2_500 < setup.settings.num_blocks < 3_500
    assert any("KV blocks are not recorded" in note for note in setup.notes)


def test_experts_over_replicas_step_together(tmp_path: Path) -> None:
    args = {**META["engine_kwargs"], "data_parallel_size": 2, "enable_expert_parallel": True}
    run = read_run(write_run(tmp_path / "run", plain_rows(), meta={**META, "engine_kwargs": args}))
    dense_model = describe(run, "rtx_4090")
    assert (dense_model.dp, dense_model.ep, dense_model.lockstep) == (2, 1, False)
    experts = describe(replace(run, meta={**run.meta, "model": "Qwen/Qwen3-30B-A3B"}), "rtx_4090")
    assert (experts.dp, experts.ep, experts.lockstep) == (2, 2, True)


def test_what_no_engine_could_be_is_refused(tmp_path: Path) -> None:
    args = {**META["engine_kwargs"], "max_num_seqs": "many"}
    run = read_run(write_run(tmp_path / "run", plain_rows(), meta={**META, "engine_kwargs": args}))
    with pytest.raises(BenchError, match=r"meta.json: max_num_seqs must be a whole number of at least 1, not 'many'"):
        describe(run, "rtx_4090")


def test_the_gpu_and_its_tables_are_found(tmp_path: Path) -> None:
    profiles = tmp_path / "profiles"
    for model, variant in (
        ("meta-llama/Llama-3.1-8B", "bf16"),
        ("meta-llama/Llama-3.1-8B", "bf16-kvfp8"),
        ("x/y", "bf16"),
    ):
        folder = profiles / "RTX4090" / model / variant
        folder.mkdir(parents=True)
        (folder / "meta.yaml").write_text(f"model: {model}\nvariant: {variant}\n")
    run = read_run(write_run(tmp_path / "run", plain_rows()))
    assert gpu_name(run, profiles) == "RTX4090"
    assert tables_folder(run, profiles, "RTX4090") == profiles / "RTX4090/meta-llama/Llama-3.1-8B/bf16"
    args = {**META["engine_kwargs"], "kv_cache_dtype": "fp8"}
    fp8 = replace(run, meta={**META, "engine_kwargs": args})
    assert tables_folder(fp8, profiles, "RTX4090").name == "bf16-kvfp8"
    with pytest.raises(BenchError, match=r"has no tables of z; found meta-llama/Llama-3.1-8B, x/y"):
        tables_folder(replace(run, meta={**META, "model": "z"}), profiles, "RTX4090")
    with pytest.raises(BenchError, match="has no tables of H100; found RTX4090"):
        tables_folder(run, profiles, "H100")

    unsaid = {k: v for k, v in META.items() if k != "hardware"}
    by_folder = read_run(write_run(tmp_path / "rtx4090" / "Llama" / "vllm", plain_rows(), meta=unsaid))
    assert gpu_name(by_folder, profiles) == "RTX4090"
    assert gpu_name(read_run(write_run(tmp_path / "h100_sxm-Llama", plain_rows(), meta=unsaid)), None) == "h100_sxm"
    with pytest.raises(BenchError, match="no folder on the way to it is named for a GPU"):
        gpu_name(read_run(write_run(tmp_path / "deep" / "er" / "some", plain_rows(), meta=unsaid)), profiles)


# --- prefixes --------------------------------------------------------------------------------------------------------

PROMPTS = st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=12), min_size=1, max_size=8)


@given(PROMPTS, st.sampled_from([16, 32]))
def test_blocks_are_shared_exactly_where_all_tokens_up_to_their_end_are(prompts: list[list[int]], size: int) -> None:
    ids = [[token for token in p for _ in range(8)] for p in prompts]
    found = prefixes.chains(prefixes.common_prefixes(ids), size)
    heads = [[tuple(x[: end + size]) for end in range(0, len(x) // size * size, size)] for x in ids]
    everywhere = [h for head in heads for h in head]
    names: dict[tuple[int, ...], str] = {}
    for i, head in enumerate(heads):
        mine = found.get(i, ())
        shared = [h for h in head if everywhere.count(h) > 1]
        assert [tokens for _, tokens in mine] == [size] * len(shared)
        for h, (name, _) in zip(shared, mine, strict=True):
            assert names.setdefault(h, name) == name
    assert len(set(names.values())) == len(names)


def test_the_public_workloads_are_known() -> None:
    document = json.loads(prefixes.FILE.read_bytes())
    assert "MIT" in document["licence"]
    for digest, one in document["workloads"].items():
        links = prefixes.known(digest)
        assert links
        assert all(0 <= j < i < one["requests"] and tokens >= prefixes.LEAST for i, j, tokens in links)
    assert prefixes.known("0" * 64) is None
    assert prefixes.known(None) is None


def test_a_workload_gives_the_file_that_it_is_kept_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = [list(range(40)), [9] * 20, list(range(20)) + [7] * 30]
    path = tmp_path / "w.jsonl"
    path.write_text("".join(json.dumps({"input_tok_ids": i}) + "\n" for i in ids))
    monkeypatch.setattr(prefixes, "FILE", tmp_path / "prefixes.json")
    monkeypatch.setattr("sys.argv", ["prefixes", str(path)])
    assert prefixes.main() == 0
    digest, _ = prefixes.read_workload(path)
    assert prefixes.known(digest) == [(2, 0, 20)]
    path.write_text('{"input_toks": 4}\n')
    with pytest.raises(BenchError, match="line 1: input_tok_ids must be a list of token ids"):
        prefixes.read_workload(path)


# --- ranks -----------------------------------------------------------------------------------------------------------


class Notes:
    """A listener that keeps first tokens and ends."""

    def __init__(self) -> None:
        self.first: dict[str, float] = {}
        self.last: dict[str, float] = {}

    def on_scheduled(self, job: Job, at: float) -> None: ...
    def on_tokens(self, *_: Any) -> None: ...
    def on_preempt(self, job: Job, at: float) -> None: ...

    def on_first_token(self, job: Job, at: float) -> None:
        self.first[job.tag] = at

    def on_finish(self, job: Job, at: float) -> None:
        self.last[job.tag] = at


SETTINGS = EngineSettings(num_blocks=1_000, max_num_seqs=8, max_num_batched_tokens=256, async_scheduling=False)


def drain(fleet: Independent | Lockstep) -> None:
    while (due := fleet.due()) < float("inf"):
        fleet.advance(due)


def group(notes: Notes, together: Callable[[float], float] | None = None, pad: Sequence[int] = ()) -> Lockstep:
    ranks = [Rank(SETTINGS, Asked(Flat()), notes, name=i, max_run=1) for i in range(2)]
    return Lockstep(ranks, pad, together)


def test_ranks_that_share_experts_end_a_step_together() -> None:
    notes = Notes()
    fleet = group(notes)
    fleet.submit(Job(100, 3, tag="a"), 0.0)  # 20 ms of prefill, then 10 ms a token
    fleet.submit(Job(200, 2, tag="b"), 0.005)  # to the idle rank: begins at 20 ms, takes 30 there
    assert fleet.state(0.005).waiting == 1, "it is held until the group's step ends"
    drain(fleet)
    assert notes.first == pytest.approx({"a": 0.020, "b": 0.050})
    assert notes.last == pytest.approx({"a": 0.060, "b": 0.060}), "a's second token took as long as b's prefill"


def test_engines_of_their_own_do_not_wait() -> None:
    notes = Notes()
    fleet = Independent([EngineModel(SETTINGS, Flat(), notes, name=i) for i in range(2)])
    fleet.submit(Job(100, 3, tag="a"), 0.0)
    fleet.submit(Job(200, 2, tag="b"), 0.005)
    drain(fleet)
    assert notes.last == pytest.approx({"a": 0.040, "b": 0.045})


@pytest.mark.parametrize(("pad", "tokens"), [((), 101), ((64,), 101), ((64, 128), 256)])
def test_experts_compute_what_all_ranks_bring(pad: tuple[int, ...], tokens: int) -> None:
    """A rank's own steps are for as many tokens on every rank: 100 here and 1 on the idle one are fewer, but for
    padding."""
    notes = Notes()
    fleet = group(notes, together=lambda t: 1e-5 * t, pad=pad)
    fleet.submit(Job(100, 1, tag="a"), 0.0)
    drain(fleet)
    own = 128 if max(pad, default=0) >= 100 else 100
    assert notes.first["a"] == pytest.approx(0.020 + 1e-5 * (tokens - 2 * own))


def test_a_front_end_knows_the_loads_of_a_tenth_of_a_second_ago() -> None:
    fleet = Independent([EngineModel(SETTINGS, Flat(), Notes(), name=i) for i in range(2)])
    fleet.submit(Job(16, 1, tag="a"), 0.0)
    fleet.submit(Job(16, 50, tag="b"), 0.01)
    fleet.submit(Job(16, 50, tag="c"), 0.09)  # a has ended; the counts still say 4 : 4
    assert [e.running + e.waiting for e in fleet.engines] == [1, 1]
    fleet.submit(Job(16, 50, tag="d"), 0.095)
    assert [e.running + e.waiting for e in fleet.engines] == [1, 2]
    fleet.submit(Job(16, 50, tag="e"), 0.2)
    assert [e.running + e.waiting for e in fleet.engines] == [2, 2]


# --- fitting and judging ---------------------------------------------------------------------------------------------


def tables(folder: Path) -> Path:
    """PROFILES with tables of a made-up RTX4090."""
    here = folder / "RTX4090" / "Llama-3.1-8B-bf16" / "tp1"
    names = ("embedding", "layernorm", *BLOCK, "final_layernorm")
    write(here / "dense.csv", ("layer", "tokens", "time_us"), [(n, t, dense(n, t)) for n in names for t in TOKENS])
    rows = [(n, s, 100 + s) for n in ("lm_head", "sampler") for s in SEQUENCES]
    write(here / "per_sequence.csv", ("layer", "sequences", "time_us"), rows)
    points = [(0, 0, n, kv) for n in COUNTS for kv in KVS] + [(c, k, 0, 0) for c in CHUNKS for k in CONTEXTS]
    points += [(c, k, n, kv) for c in CHUNKS for k in CONTEXTS for n in COUNTS for kv in KVS]
    axes = ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode")
    write(here / "attention.csv", (*axes, "time_us"), [(*p, attention(*p)) for p in sorted(points)])
    meta = "hardware: RTX4090\nmodel: meta-llama/Llama-3.1-8B\nvariant: bf16\n"
    (here.parent / "meta.yaml").write_text(meta)
    return folder


def flood(tmp_path: Path, host: tuple[float, float] = HOST, factor: float = 1.0) -> Path:
    """A run of the engine model itself, with constants of the host; times stretched by `factor` in its latter half."""
    chance = random.Random(4)
    at, asked = 0.0, []
    for i in range(45):
        at += chance.expovariate(4)
        asked.append(Request(i, chance.randint(40, 700), chance.randint(8, 60), at, 0, 0))
    blank = read_run(write_run(tmp_path / "RTX4090-made", plain_rows()))
    run = replace(blank, requests=tuple(asked))
    setup = describe(run, "RTX4090")
    source = step_times("tables", run, setup, tables(tmp_path / "profiles"), skew=False)
    done = replay(run, setup, source, {}, host=host).requests
    rows = []
    for i, r in enumerate(done):
        stretch = factor if i > len(done) // 2 else 1.0
        first = r.arrival + stretch * (r.first - r.arrival)
        row = {"request_id": f"bench-{r.index}", "input_toks": r.prompt_tokens, "output_toks": r.output_tokens}
        row |= {"arrival_time": 9e5 + r.arrival, "queued_ts": 100 + r.arrival, "scheduled_ts": 100 + r.arrival}
        row |= {"first_token_ts": 100 + first, "last_token_ts": 100 + first + r.last - r.first}
        rows.append(row)
    return write_run(tmp_path / "RTX4090-made", rows)


def case_of(folder: Path, profiles: Path) -> Case:
    run = read_run(folder)
    setup = describe(run, gpu_name(run, profiles))
    return Case(run, setup, "tables", step_times("tables", run, setup, profiles, skew=False), None)


def test_the_first_third_tells_the_hosts_constants(tmp_path: Path) -> None:
    case = case_of(flood(tmp_path), tmp_path / "profiles")
    found = study(case, [case], lambda _: None)
    assert found.first_third.constants == pytest.approx(HOST, rel=0.05)
    assert found.first_third.replays < 200
    none, others, whole = found.rows
    assert (none.host, none.scored, none.met) == ("none", "all", False)
    assert found.judged is others, "not on the requests that were fitted on"
    assert (others.host, others.scored, others.met, whole.scored) == ("first third", "others", True, "all")
    assert shortfalls([found]) == []


def test_a_run_without_a_host_to_speak_of_is_judged_without_one(tmp_path: Path) -> None:
    case = case_of(flood(tmp_path, host=(0.0, 0.0)), tmp_path / "profiles")
    found = study(case, [], lambda _: None)
    assert found.judged.host == "none"
    assert all(f.error == pytest.approx(0, abs=1e-6) for f in found.judged.figures)


def test_a_fit_looks_at_no_outcome_of_the_rest(tmp_path: Path) -> None:
    """The latter half took twice as long: the constants are the same, and the error shows."""
    case = case_of(flood(tmp_path, factor=2.0), tmp_path / "profiles")
    found = study(case, [], lambda _: None)
    assert found.first_third.constants == pytest.approx(HOST, rel=0.05)
    fell = shortfalls([found])
    assert fell
    assert all("RTX4090-made, tables: " in line and "the bar is 5%" in line for line in fell)
    assert any("TTFT mean" in line for line in fell)


def test_constants_of_other_runs_come_from_the_same_gpu_if_there_is_one(tmp_path: Path) -> None:
    mine = case_of(flood(tmp_path / "a"), tmp_path / "a" / "profiles")
    near = case_of(flood(tmp_path / "b", host=(0.004, 0.002)), tmp_path / "b" / "profiles")
    far = case_of(flood(tmp_path / "c", host=(0.001, 0.001)), tmp_path / "c" / "profiles")
    far.setup = replace(far.setup, gpu="h100_sxm")
    row = study(mine, [mine, near, far], lambda _: None).rows[-1]
    assert (row.host, row.scored) == ("other runs", "all")
    assert row.constants == pytest.approx((0.004, 0.002), rel=0.05)


def test_a_fit_solves_two_equations() -> None:
    """TTFT = 2 x + y and decode = x of a linear machine; below 0 there is nothing."""
    real = [Request(i, 10, 11, 0.0, 1.0, 2.0) for i in range(5)]

    def machine(x0: float, y0: float) -> Callable[[tuple[float, float]], list[Request]]:
        def simulate(host: tuple[float, float]) -> list[Request]:
            first = 1.0 + 20 * (host[0] - x0) + 10 * (host[1] - y0)
            return [Request(i, 10, 11, 0.0, first, first + 1.0 + 50 * (host[0] - x0)) for i in range(5)]

        return simulate

    found = fit(real, machine(0.0021, 0.0043))
    assert found.constants == pytest.approx((0.0021, 0.0043), abs=1e-4)
    assert fit(real, machine(-0.001, -0.001)).constants == (0.0, 0.0)
    assert residuals(real, machine(0.0, 0.0)((0.0, 0.0))) == (0.0, 0.0)


def test_figures_are_what_their_names_say() -> None:
    real = [Request(i, 5, 11, 0.0, 1.0 + i, 3.0 + i) for i in range(101)]
    slow = [replace(r, first=r.first * 1.04, last=r.first * 1.04 + 2.0) for r in real]
    by_name = {f.name: f for f in compare(real, slow, {"TTFT": 0.03, "TPOT": 0.02, "E2E": 0.05})}
    assert len(by_name) == 12
    assert by_name["TTFT P90"].real == pytest.approx(91)
    assert by_name["TTFT mean"].error == pytest.approx(0.04)
    assert not by_name["TTFT mean"].met
    assert by_name["TPOT P99"].real == pytest.approx(0.2)
    assert by_name["TPOT P99"].met
    assert by_name["E2E P50"].real == pytest.approx(53)
    assert "TPOT mean" not in {
        f.name for f in compare([Request(0, 5, 1, 0, 1, 1)], [Request(0, 5, 1, 0, 1, 1)], bars("", "tables"))
    }


def test_bars_are_by_run_and_source() -> None:
    assert len(GIVEN) == 2
    for digest in GIVEN:
        assert bars(digest, "tables") == {"TTFT": 0.03, "TPOT": 0.02, "E2E": 0.02}
        assert bars(digest, "aiconfigurator")["TTFT"] == 0.15
    assert bars("another", "tables") == {"TTFT": 0.05, "TPOT": 0.05, "E2E": 0.05}


def test_shared_prefixes_shorten_what_is_computed(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / "run", plain_rows()))
    setup, source = describe(run, "RTX4090"), Source(Flat(), "flat")
    chain = dict.fromkeys(range(3), (("0.0", 16), ("0.1", 16), ("0.2", 16)))
    without, found = (replay(run, setup, source, c, ticks=(0.5, 9.0)) for c in ({}, chain))
    assert (without.hits, found.hits) == (0, 2 * 48)
    gained = [a.first - b.first for a, b in zip(without.requests, found.requests, strict=True)]
    assert gained == pytest.approx([0, 0.0048, 0.0048])
    assert [t.t for t in found.ticks] == [0.5, 9.0]
    assert len(replay(run, setup, source, {}, first=1).requests) == 1


# --- the whole -------------------------------------------------------------------------------------------------------


@pytest.fixture
def setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, value in {"DATA": "RTX4090-made", "PROFILES": "profiles", "SOURCE": "tables", "CHECK": "1"}.items():
        monkeypatch.setenv(name, value if name in ("SOURCE", "CHECK") else str(tmp_path / value))
    for name in ("SKEW", "WORKLOAD"):
        monkeypatch.delenv(name, raising=False)
    for module in ("benchmarks.common", "benchmarks.fidelity.__main__"):
        monkeypatch.setattr(f"{module}.RESULTS", tmp_path / "results")
    monkeypatch.setattr(command, "_DATA", tmp_path / "no data")
    return tmp_path


def test_a_run_that_is_met(setting: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flood(setting)
    assert command.main() == 0
    said = capsys.readouterr().out
    assert "RTX4090-made: tables; host first third 2.00 + 6.00, no prefixes: others requests" in said
    assert "which prompts share prefixes is not known" in said
    result = json.loads((setting / "results" / "fidelity.json").read_text())
    assert result["fell_short"] == []
    (one,) = result["studies"]
    assert [row["judged"] for row in one["rows"]] == [False, True, False]
    assert len(one["samples"]) == 45
    assert one["samples"][7]["real"]["TTFT"] == pytest.approx(one["samples"][7]["simulated"]["TTFT"], rel=0.05)
    root = ET.parse(setting / "results" / "fidelity.svg").getroot()
    assert len(root.findall("{http://www.w3.org/2000/svg}polyline")) == 12, "two curves in each of six panels"


def test_a_run_that_is_missed(setting: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flood(setting, factor=2.0)
    assert command.main() == 1
    assert "fell short: RTX4090-made, tables: TTFT mean is" in capsys.readouterr().out


def test_a_run_without_tables_cannot_be_measured(setting: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flood(setting)
    monkeypatch.setenv("PROFILES", str(setting / "none"))
    with pytest.raises(
        BenchError, match=r"no run of it can be simulated: RTX4090-made, tables: .*none: has no tables of"
    ):
        command.main()


def test_a_workload_must_be_that_of_the_run(setting: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = read_run(flood(setting))
    path = setting / "w.jsonl"
    sizes = {r.index: r.prompt_tokens for r in run.requests}
    path.write_text("".join(json.dumps({"input_tok_ids": [1] * sizes[i]}) + "\n" for i in range(45)))
    monkeypatch.setenv("WORKLOAD", str(path))
    command.main()
    (one,) = json.loads((setting / "results" / "fidelity.json").read_text())["studies"]
    assert {row["prefixes"] for row in one["rows"]} == {True, False}
    assert one["rows"][0]["prefix_hits"] > 0
    path.write_text(json.dumps({"input_tok_ids": [1, 2]}) + "\n")
    with pytest.raises(BenchError, match=r"is not the workload of .*: request 0 has"):
        command.main()


def test_the_picture_says_what_was_not_recorded(tmp_path: Path) -> None:
    folder = flood(tmp_path)
    (folder / "timeseries.csv").write_text("t,running,waiting,kv_cache_pct\n1,1,0,0\n2,1,0,0\n")
    case = case_of(folder, tmp_path / "profiles")
    root = ET.fromstring(picture([study(case, [], lambda _: None)]))
    assert "KV blocks held, share (not recorded by vLLM), over seconds" in {t.text for t in root.iter()}


def test_lockstep_is_for_ranks_that_share_experts(tmp_path: Path) -> None:
    run: Run = read_run(write_run(tmp_path / "run", plain_rows()))
    setup = replace(describe(run, "RTX4090"), dp=2)
    assert isinstance(fleet_of(setup, Flat(), Notes()), Independent)
    assert isinstance(fleet_of(replace(setup, lockstep=True), Flat(), Notes()), Lockstep)

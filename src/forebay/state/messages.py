"""What the processes of one host say to each other.

Two channels, one framing (`state.channel`):

- supervisor ↔ child: an inherited socket pair, fd number in `FOREBAY_CHANNEL`. The supervisor sends `Start`, later
  `Reload` and `Drain`; the child answers `Ready` once. End of file means that the supervisor is gone: drain and leave.
  The cache's helper answers each `Ping` by a `Pong`; of its state the admin process hears by `HelperState`.
- admin → worker: the worker's Unix socket `worker-N.sock` in the run directory. The admin process sends `GetSnapshot`,
  `GetAdmission`, `GetPrefix`, `SetKeys` and `SetEngines`; the worker answers with `Snapshot`, `AdmissionState` or
  `NoAdmission`, `PrefixState`, and `Done`, by which it answers `Forget`, too. Of the books it sends, over a channel of
  its own, `Follow`, and the worker answers `Committed`; and over another `GetBudgets`, answered by `Budgets`, and
  `SetUse`, by `Done`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

from forebay.ledger.limit_state import Use
from forebay.ledger.records import Account, KeyRecord
from forebay.ledger.rules import Rule


class HelperState(msgspec.Struct, tag="helper", frozen=True):
    """To the admin process: how the cache's helper fares, since the start of the supervisor."""

    up: bool = False
    ended: int = 0
    """How often it ended by itself."""
    hung: int = 0
    """How often it was killed, since it did not answer or a thread of it hung."""
    why: str = ""
    """Of the last of these."""


class Start(msgspec.Struct, tag="start", frozen=True):
    """Everything a child needs. `config` is the checked configuration as JSON, secrets resolved; it is not on disk."""

    config: str
    index: int
    boot: str
    """Identity of this run of the supervisor."""
    listed: int = 0
    """How many of the configuration's engines, the last ones, are of the watched file."""
    prices: str = "{}"
    """Every price that is known: a `ledger.pricing.PriceBook` as JSON."""
    fds: tuple[int, ...] = ()
    """Listening sockets, in the order of `config.listeners` (worker) or one for the admin address (admin)."""
    helper: HelperState | None = None
    """To the admin process."""


class Reload(msgspec.Struct, tag="reload", frozen=True):
    config: str
    listed: int = 0
    prices: str = "{}"
    """As in `Start`."""


class Drain(msgspec.Struct, tag="drain", frozen=True):
    """Refuse new work, finish what runs until `deadline` seconds from now, then leave with exit code 0."""

    deadline: float


class Draining(msgspec.Struct, tag="draining", frozen=True):
    """To the admin process: readiness is false from now on."""


class Ready(msgspec.Struct, tag="ready", frozen=True):
    pid: int


class Ping(msgspec.Struct, tag="ping", frozen=True):
    """To the cache's helper: does its event loop still turn? Answered by a `Pong` of the same number."""

    n: int


class Pong(msgspec.Struct, tag="pong", frozen=True):
    n: int
    hangs: str = ""
    """What one of its threads has been at for far too long; "": none."""


class GetSnapshot(msgspec.Struct, tag="get_snapshot", frozen=True):
    pass


class SetKeys(msgspec.Struct, tag="set_keys", frozen=True):
    """Who may call, and how much, as the database has it."""

    version: int
    keys: tuple[KeyRecord, ...]
    suspended: tuple[Account, ...] = ()
    """Accounts whose keys are refused; keys of the configuration too."""
    rules: tuple[Rule, ...] = ()
    """Limits beside the configuration's `quotas`, as far as those have other names."""


class SetEngines(msgspec.Struct, tag="set_engines", frozen=True):
    """What `forebay engines` has changed: entries beside the configuration's, as JSON with secrets resolved, and names
    that get no new requests."""

    version: int
    engines: tuple[str, ...] = ()
    draining: tuple[str, ...] = ()


class Done(msgspec.Struct, tag="done", frozen=True):
    pass


class Follow(msgspec.Struct, tag="follow", frozen=True):
    """Up to `position` the journal of `owner` is in the database. Answered when more of it is on disk, or after a
    second. Positions are those of `ledger.journal_format`."""

    owner: str = ""
    """"": not known yet."""
    position: int = 0


class Committed(msgspec.Struct, tag="committed", frozen=True):
    """The worker's journal, and up to where it is on disk."""

    owner: str
    position: int


class GetBudgets(msgspec.Struct, tag="get_budgets", frozen=True):
    version: int
    """That is known; -1: none."""


class Budgets(msgspec.Struct, tag="budgets", frozen=True):
    """What a worker wants to know the use of."""

    version: int
    owner: str
    """Of its journal."""
    position: int
    """Up to where that is on disk: at least what it held when the worker started."""
    rules: tuple[Rule, ...] = ()
    """Those with budgets; none where `version` is known."""
    since: dict[str, float] = {}
    """Since when it counts each itself: Unix time, by `Rule.id`."""


class SetUse(msgspec.Struct, tag="set_use", frozen=True):
    """What others than this worker have used, of the scopes where that changed."""

    uses: tuple[Use, ...]
    complete: bool
    """Nothing is missing of what was used before it started."""


class FamilySnapshot(msgspec.Struct, frozen=True):
    name: str
    help: str
    kind: Literal["counter", "gauge", "histogram"]
    labels: tuple[str, ...]
    edges: tuple[float, ...] = ()
    values: tuple[tuple[tuple[str, ...], float], ...] = ()
    """(label values, value) of a counter or gauge."""
    histograms: tuple[tuple[tuple[str, ...], tuple[int, ...], float], ...] = ()
    """(label values, counts by bucket with the last for +Inf, sum) of a histogram."""


class EngineState(msgspec.Struct, frozen=True):
    name: str
    url: str
    healthy: bool
    models: tuple[str, ...]
    in_flight: int
    why: str = ""
    """What the last failed check said, or why it gets no requests."""
    kind: str = ""
    """What it is taken for."""
    version: str = ""
    state: str = ""
    """In one word: gateway.handles, Handle.state."""
    usable: bool = True
    """It gets new requests."""
    source: str = "file"
    """gateway.handles, Source."""


class Snapshot(msgspec.Struct, tag="snapshot", frozen=True):
    """One worker, as it stands. `boot` differs after every start, so that counters can be carried over a crash."""

    boot: str
    pid: int
    index: int
    draining: bool
    keys_version: int
    families: tuple[FamilySnapshot, ...] = ()
    engines: tuple[EngineState, ...] = ()


class GetAdmission(msgspec.Struct, tag="get_admission", frozen=True):
    pass


class NoAdmission(msgspec.Struct, tag="no_admission", frozen=True):
    """It is not enabled."""


class ShedChange(msgspec.Struct, frozen=True):
    """From `time` (seconds since 1970) on, an engine shed at this level for this reason; "": it ended."""

    time: float
    level: float
    reason: str


class Margin(msgspec.Struct, frozen=True):
    """What is added to an expected time to first token, in units of what it varies by; `seen`: answers that say so."""

    margin: float
    seen: int


class EngineAdmission(msgspec.Struct, frozen=True):
    """Shares are 0 to 1; times seconds; what is ahead, tokens."""

    name: str
    shed_level: float
    reason: str
    kv_predicted: float
    kv_tokens: int | None
    ceilings: dict[str, float]
    """By class."""
    in_flight: int
    cap: int
    scale_factor: float | None
    load: float
    pace: float
    prefill_rate: float
    prefill_ahead: float
    margins: dict[str, Margin]
    """By level of load."""
    history: tuple[ShedChange, ...]


class Waiting(msgspec.Struct, frozen=True):
    requests: int
    tokens: int


class ModelAdmission(msgspec.Struct, frozen=True):
    name: str
    desired_replicas: int
    demand: float
    """In the capacity of one engine."""
    waiting: dict[str, Waiting]
    """By class."""


class GetPrefix(msgspec.Struct, tag="get_prefix", frozen=True):
    pass


class Forget(msgspec.Struct, tag="forget", frozen=True):
    """To a worker, where no helper process tells it: answers in its memory that fit all that is given must not be given
    any more; nothing given: all. Fields as in `cache.messages.Purge`."""

    entry: str = ""
    tag: str = ""
    source: str = ""
    partition: str = ""
    model: str = ""
    version: str = ""


class PrefixBreak(msgspec.Struct, frozen=True):
    """What varies in prompts and has much of the same behind it (cache.prefix.watch)."""

    where: str
    """tools, messages[0] (system)."""
    at: int
    """Character of that part, from 0, when it was last seen."""
    kind: str
    shape: str
    """0000-00-00T00:00; "" where there is none."""
    requests: int
    """Of those compared."""
    lost_tokens: int
    """Prompt tokens behind it, of these."""
    ago: float = 0.0
    """Seconds since it was last seen."""


class PrefixGroup(msgspec.Struct, frozen=True):
    """The prompts of one model and organisation, in the last one to two windows."""

    model: str
    organisation: str
    requests: int
    prompt_tokens: int
    """Of all."""
    reported_tokens: int
    """Prompt tokens of those whose engine says how many were cached."""
    cached_tokens: int
    """Of these."""
    compared: int
    """Requests whose prompts were compared with earlier ones."""
    compared_tokens: int
    as_sent_tokens: int
    """Of the compared: what a cache that forgets nothing would find."""
    could_be_tokens: int
    """What it would find if nothing varied before what is the same."""
    breaks: tuple[PrefixBreak, ...] = ()
    """The dearest first."""
    engines: tuple[str, ...] = ()
    """Hints about its engines: `gateway.prefix_words.HINTS`."""


class PrefixState(msgspec.Struct, tag="prefix", frozen=True):
    """One worker's."""

    watched: bool
    groups: tuple[PrefixGroup, ...] = ()


class AdmissionState(msgspec.Struct, tag="admission", frozen=True):
    """One worker's."""

    models: tuple[ModelAdmission, ...]
    engines: tuple[EngineAdmission, ...]


Message = (
    Start
    | Reload
    | Drain
    | Draining
    | Ready
    | Ping
    | Pong
    | HelperState
    | GetSnapshot
    | GetAdmission
    | GetPrefix
    | Forget
    | SetKeys
    | SetEngines
    | Done
    | Follow
    | Committed
    | GetBudgets
    | Budgets
    | SetUse
    | Snapshot
    | AdmissionState
    | NoAdmission
    | PrefixState
)


def run_dir(state_dir: Path) -> Path:
    """Sockets live here; mode 0700."""
    return state_dir / "run"


def worker_socket(state_dir: Path, index: int) -> Path:
    return run_dir(state_dir) / f"worker-{index}.sock"


def admin_socket(state_dir: Path) -> Path:
    """The admin API over a Unix socket: what the command line talks to."""
    return run_dir(state_dir) / "admin.sock"


def live_engines(state_dir: Path) -> Path:
    """What `forebay engines` has added and drained, as `state.live` reads it."""
    return state_dir / "engines.json"


def journal_folder(state_dir: Path, index: int) -> Path:
    """A worker's journal."""
    return journals(state_dir) / f"worker-{index}"


def journals(state_dir: Path) -> Path:
    return state_dir / "journal"


def alerts_outbox(state_dir: Path) -> Path:
    """Alerts that receivers have still to get."""
    return state_dir / "alerts.json"


def limits_snapshot(state_dir: Path, index: int) -> Path:
    """What was used of quotas when a worker ended (`ledger.limit_state`); the next one takes it up and removes it."""
    return state_dir / f"limits-{index}.snapshot"


def keys_snapshot(state_dir: Path) -> Path:
    """The last key list (hashes only), so that a worker can start while the database or the admin process is gone.

    It holds the JSON of a `SetKeys`, without the frame's length: `state.channel.unpack` reads it.
    """
    return state_dir / "keys.snapshot"

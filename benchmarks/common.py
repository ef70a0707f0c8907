"""What the benchmarks share: settings from the environment, processes on chosen cores, their CPU time and memory,
facts about the machine, and the results file with its verdict."""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import platform
import resource
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RESULTS = Path(os.environ.get("RESULTS") or ROOT / "results")
BENCH_KEY = "sk-bench-0123456789abcdefghijklmnop"
MODEL = "mock"


class BenchError(Exception):
    """The measurement cannot be made: what is missing or failed, and what to do."""


# --- settings --------------------------------------------------------------------------------------------------------


def env_int(name: str, default: int, *, least: int = 1) -> int:
    """A whole number from the environment. Raises BenchError where it is none or below `least`."""
    text = os.environ.get(name, "")
    if not text:
        return default
    try:
        value = int(text)
    except ValueError:
        raise BenchError(f"{name} must be a whole number, not {text!r}") from None
    if value < least:
        raise BenchError(f"{name} must be at least {least}, not {value}")
    return value


def env_names(name: str, default: Sequence[str], known: Sequence[str]) -> list[str]:
    """A comma-separated choice from the environment. Raises BenchError for a name that is not known."""
    text = os.environ.get(name, "")
    chosen = [part.strip() for part in text.split(",") if part.strip()] if text else list(default)
    for one in chosen:
        if one not in known:
            raise BenchError(f"{name} knows {', '.join(known)}; not {one!r}")
    return chosen


def env_flag(name: str) -> bool | None:
    """True for 1, False for 0, None where it is not set. Raises BenchError for anything else."""
    text = os.environ.get(name, "")
    if text not in ("", "0", "1"):
        raise BenchError(f"{name} must be 0 or 1, not {text!r}")
    return None if text == "" else text == "1"


# --- processes -------------------------------------------------------------------------------------------------------


def two_cores() -> tuple[int, int]:
    """The core for the subject and the core for mock and load. Raises BenchError on a machine with one."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        raise BenchError("two cores are needed: one for the gateway, one for the mock upstream and the load")
    return cores[0], cores[1]


def need_files(count: int) -> None:
    """Let this process and its children open `count` files each. Raises BenchError where the hard limit is lower."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < count:
        raise BenchError(f"{count:,} open files a process are needed and the hard limit is {hard:,} (ulimit -Hn)")
    if soft < count:
        resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port: int = s.getsockname()[1]
        return port


@contextlib.contextmanager
def running(
    command: Sequence[str],
    *,
    core: int | None,
    log: Path,
    env: dict[str, str] | None = None,
    cwd: Path | None = None,
    grace: float = 15.0,
) -> Iterator[subprocess.Popen[bytes]]:
    """A process in its own session, pinned to `core`, its output in `log`; stopped at the end, killed after `grace`
    seconds."""
    pinned = list(command) if core is None else ["taskset", "-c", str(core), *command]
    with log.open("wb") as out:
        process = subprocess.Popen(
            pinned,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            env={**os.environ, **(env or {})},
            cwd=cwd or ROOT,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(grace)
            except subprocess.TimeoutExpired:
                process.kill()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # whatever it left behind in its session
        process.wait()


def tail(log: Path, lines: int = 12) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])


def get(url: str, timeout: float = 2.0, headers: dict[str, str] | None = None) -> tuple[int, bytes]:
    """Status and body. Raises OSError where nothing answers."""
    request = urllib.request.Request(url, headers=headers or {})
    try:
        with urllib.request.urlopen(request, timeout=timeout) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as e:
        with e:
            return e.code, e.read()


def wait_until(
    done: Callable[[], bool], process: subprocess.Popen[bytes], log: Path, what: str, timeout: float = 30.0
) -> None:
    """Poll `done` every 20 ms. Raises BenchError with the end of the log where the process ends or time runs out."""
    end = time.monotonic() + timeout
    while True:
        try:
            if done():
                return
        except OSError:
            pass  # not listening yet
        if process.poll() is not None:
            raise BenchError(f"{what} ended with code {process.returncode} before it was ready:\n{tail(log)}")
        if time.monotonic() > end:
            raise BenchError(f"{what} was not ready within {timeout:g} s:\n{tail(log)}")
        time.sleep(0.02)


def answers_ok(url: str) -> Callable[[], bool]:
    return lambda: get(url)[0] == 200


class Tree:
    """A process and all that descend from it."""

    def __init__(self, root: int) -> None:
        self.root = root

    def pids(self) -> list[int]:
        """Depth first, the root first. Raises BenchError once the root is gone."""
        children: dict[int, list[int]] = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    stat = (entry / "stat").read_text()
                except OSError:
                    continue  # ended while we looked
                children.setdefault(int(stat[stat.rindex(")") + 2 :].split()[1]), []).append(int(entry.name))
        if not Path(f"/proc/{self.root}").exists():
            raise BenchError(f"process {self.root} is gone")
        found = []
        todo = [self.root]
        while todo:
            pid = todo.pop()
            found.append(pid)
            todo += children.get(pid, ())
        return found

    def cpu(self) -> dict[int, float]:
        """CPU seconds, user and system, all threads, by process. Read from each process's CPU clock: the same sum as
        utime + stime of /proc/PID/stat, in nanoseconds instead of hundredths."""
        return {pid: time.clock_gettime(_cpu_clock(pid)) for pid in self.pids()}

    def spent(self, before: dict[int, float], after: dict[int, float]) -> float:
        """CPU seconds between two readings. Raises BenchError where a process ended in between."""
        lost = before.keys() - after.keys()
        if lost:
            raise BenchError(f"process {min(lost)} of the tree under {self.root} ended during the measurement")
        return sum(after.values()) - sum(before.values())

    def rss(self) -> dict[int, int]:
        """Resident bytes by process."""
        return {pid: rss(pid) for pid in self.pids()}


def _cpu_clock(pid: int) -> int:
    return (~pid << 3) | 2  # clock_getcpuclockid(3): CPUCLOCK_SCHED of a whole process


def rss(pid: int) -> int:
    """Resident bytes of one process."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def command_line(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()


def core_busy(core: int) -> float:
    """Seconds a core has been busy since boot, time stolen by the host included."""
    for line in Path("/proc/stat").read_text().splitlines():
        if line.startswith(f"cpu{core} "):
            user, nice, system, _idle, _iowait, irq, softirq, steal = (int(x) for x in line.split()[1:9])
            return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")
    raise BenchError(f"/proc/stat has no cpu{core}")


# --- the gateway under measurement -----------------------------------------------------------------------------------


class Gateway:
    """`forebay serve` with every feature on, in front of one vLLM-like engine."""

    def __init__(self, process: subprocess.Popen[bytes], port: int, admin: int, log: Path) -> None:
        self.process = process
        self.tree = Tree(process.pid)
        self.url = f"http://127.0.0.1:{port}"
        self.admin = f"http://127.0.0.1:{admin}"
        self.log = log

    def worker(self) -> int:
        """The pid of the one worker."""
        found = [pid for pid in self.tree.pids() if "forebay.gateway.worker" in command_line(pid)]
        if len(found) != 1:
            raise BenchError(f"expected one forebay worker, found {len(found)}:\n{tail(self.log)}")
        return found[0]

    def metric(self, name: str, **labels: str) -> float:
        """The sum of a family's series that carry `labels`."""
        total = 0.0
        wanted = [f'{k}="{v}"' for k, v in labels.items()]
        for line in get(f"{self.admin}/metrics", timeout=10)[1].decode().splitlines():
            series, _, value = line.rpartition(" ")
            if series.partition("{")[0] == name and all(w in series for w in wanted):
                total += float(value)
        return total


def gateway_config(port: int, admin: int, upstream: str, state: Path, extra: dict[str, object] | None = None) -> str:
    """A forebay.yaml (JSON is YAML): keys, metrics and a JSON log line a request; the key's text in $BENCH_KEY."""
    config: dict[str, object] = {
        "listeners": [{"address": f"127.0.0.1:{port}"}],
        "admin": f"127.0.0.1:{admin}",
        "state_dir": str(state),
        "engines": [{"name": "mock", "url": upstream, "kind": "vllm"}],
        "callers": {"keys": [{"name": "bench", "key": "${BENCH_KEY}", "organisation": "bench", "project": "overhead"}]},
        "logging": {"format": "json"},
        **(extra or {}),
    }
    return json.dumps(config, indent=2)


@contextlib.contextmanager
def gateway(
    work: Path,
    upstream: str,
    *,
    core: int | None,
    extra: dict[str, object] | None = None,
    env: dict[str, str] | None = None,
) -> Iterator[Gateway]:
    """Start it and wait until the admin port says it is ready. Raises BenchError where it does not come up."""
    port, admin = free_port(), free_port()
    file, log = work / "forebay.yaml", work / "forebay.log"
    file.write_text(gateway_config(port, admin, upstream, work / "state", extra))
    command = [str(Path(sys.executable).with_name("forebay")), "serve", "--config", str(file)]
    with running(command, core=core, log=log, env={"BENCH_KEY": BENCH_KEY, **(env or {})}, grace=40) as process:
        wait_until(answers_ok(f"http://127.0.0.1:{admin}/ready"), process, log, "forebay serve")
        yield Gateway(process, port, admin, log)


@contextlib.contextmanager
def mock(
    work: Path, *, core: int | None, interval_ms: float = 5.0, phases: int = 1, ttft_ms: float = 0.0
) -> Iterator[str]:
    """Start benchmarks.mock_upstream; its URL."""
    port = free_port()
    log = work / "mock.log"
    command = [sys.executable, "-m", "benchmarks.mock_upstream", "--port", str(port)]
    command += ["--interval-ms", str(interval_ms), "--phases", str(phases), "--ttft-ms", str(ttft_ms)]
    with running(command, core=core, log=log) as process:
        url = f"http://127.0.0.1:{port}"
        wait_until(answers_ok(f"{url}/health"), process, log, "the mock upstream")
        yield url


def mock_counts(url: str) -> dict[str, int]:
    counts: dict[str, int] = json.loads(get(f"{url}/mock/stats", timeout=10)[1])
    return counts


# --- results ---------------------------------------------------------------------------------------------------------


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _first_line(*command: str) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False, cwd=ROOT)
    except OSError:
        return None
    lines = (done.stdout or done.stderr).strip().splitlines()
    return lines[0] if lines else None


def machine() -> dict[str, object]:
    """What a reader needs to place the figures: processor, kernel, versions, commit, what else the machine does."""
    cpu = next(
        (x.partition(":")[2].strip() for x in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in x),
        platform.processor(),
    )
    memory = next(x.split()[1] for x in Path("/proc/meminfo").read_text().splitlines() if x.startswith("MemTotal"))
    dirty = subprocess.run(["git", "status", "--porcelain", "-uno"], capture_output=True, cwd=ROOT, check=False).stdout
    return {
        "cpu": cpu,
        "cores": os.cpu_count(),
        "memory_gib": round(int(memory) / 1024**2, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "versions": {p: _version(p) for p in ("forebay", "uvloop", "httptools", "msgspec")},
        "nginx": _first_line("nginx", "-v"),
        "wrk": _first_line("wrk", "-v"),
        "commit": _first_line("git", "rev-parse", "HEAD"),
        "uncommitted_changes": bool(dirty.strip()),
        "load_average": os.getloadavg(),
        "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def write_results(name: str, figures: dict[str, object]) -> Path:
    """results/NAME.json: the figures and the machine they were taken on."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps({"benchmark": name, "machine": machine(), **figures}, indent=2) + "\n")
    return path


def verdict(shortfalls: Sequence[str]) -> int:
    """Name what fell short of its bar; the exit code: 1 only with CHECK=1."""
    for line in shortfalls:
        print(f"fell short: {line}")
    if not shortfalls:
        print("all bars met")
    return 1 if shortfalls and env_flag("CHECK") else 0


def run(main: Callable[[], int]) -> None:
    """The entry point of a benchmark: a measurement that cannot be made exits with 2 and says why."""
    try:
        code = main()
    except BenchError as e:
        print(f"cannot measure: {e}", file=sys.stderr)
        code = 2
    except KeyboardInterrupt:
        code = 130
    sys.exit(code)

"""What is measured: each subject is started in front of the mock upstream, pinned to one core, and named by its URL and
process tree."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.common import BENCH_KEY, MODEL, BenchError, Tree, answers_ok, free_port, gateway, running, wait_until


@dataclass(frozen=True)
class Running:
    url: str
    tree: Tree


EVENTS = 100
"""Content events of a stream."""

Start = Callable[[Path, str, int], contextlib.AbstractContextManager[Running]]
"""(work directory, upstream URL, core) → the subject, up and ready."""

NGINX = """
daemon off;
{user}
worker_processes 1;
worker_rlimit_nofile 16384;
pid {work}/nginx.pid;
error_log {work}/nginx-error.log warn;
events {{ worker_connections 8192; }}
http {{
  access_log {work}/nginx-access.log combined;
  client_body_temp_path {work}/nginx-body;
  proxy_temp_path {work}/nginx-proxy;
  fastcgi_temp_path {work}/nginx-fastcgi;
  uwsgi_temp_path {work}/nginx-uwsgi;
  scgi_temp_path {work}/nginx-scgi;
  keepalive_requests 1000000000;
  upstream engine {{ server {upstream}; keepalive 128; keepalive_requests 1000000000; }}
  server {{
    listen 127.0.0.1:{port} backlog=4096;
    tcp_nodelay on;
    client_body_buffer_size 64k;
    location / {{
      proxy_pass http://engine;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_buffering off;
    }}
  }}
}}
"""


@contextlib.contextmanager
def nginx(work: Path, upstream: str, core: int) -> Iterator[Running]:
    program = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")
    if program is None:
        raise BenchError("nginx is the yardstick and is not installed (Debian: apt-get install nginx-light)")
    port = free_port()
    conf = work / "nginx.conf"
    user = "user root;" if os.geteuid() == 0 else ""
    conf.write_text(NGINX.format(work=work, port=port, upstream=upstream.removeprefix("http://"), user=user))
    log = work / "nginx.log"
    with running([program, "-c", str(conf), "-p", str(work)], core=core, log=log) as process:
        url = f"http://127.0.0.1:{port}"
        wait_until(answers_ok(f"{url}/health"), process, log, "nginx")
        yield Running(url, Tree(process.pid))


@contextlib.contextmanager
def bare(work: Path, upstream: str, core: int) -> Iterator[Running]:
    port = free_port()
    log = work / "bare.log"
    command = [sys.executable, "-m", "benchmarks.bare_proxy", "--port", str(port)]
    command += ["--upstream", upstream.removeprefix("http://")]
    with running(command, core=core, log=log) as process:
        url = f"http://127.0.0.1:{port}"
        wait_until(answers_ok(f"{url}/health"), process, log, "the bare proxy")
        yield Running(url, Tree(process.pid))


WITHOUT_LEDGER: dict[str, object] = {"ledger": {"enabled": False}}


@contextlib.contextmanager
def forebay(work: Path, upstream: str, core: int) -> Iterator[Running]:
    with gateway(work, upstream, core=core, extra=WITHOUT_LEDGER) as up:
        yield Running(up.url, up.tree)


def _admitting(upstream: str) -> dict[str, object]:
    """Told that the engine is as fast as the mock is."""
    engine = {"name": "mock", "url": upstream, "kind": "vllm", "max_num_seqs": 4096}
    fast = {"prefill_tokens_per_s": 10_000_000, "decode_step": 0.001}
    return {"engines": [{**engine, **fast}], "admission": {"enabled": True}}


@contextlib.contextmanager
def admission(work: Path, upstream: str, core: int) -> Iterator[Running]:
    with gateway(work, upstream, core=core, extra={**_admitting(upstream), **WITHOUT_LEDGER}) as up:
        yield Running(up.url, up.tree)


QUOTAS: list[dict[str, object]] = [
    {"name": "rates", "each": "key", "requests_per_minute": 10**9, "tokens_per_minute": 10**12, "concurrent": 10**6},
    {"name": "project", "project": "overhead", "tokens_per_day": 10**15},
    {"name": "everybody", "money_per_month": 4_000_000_000},
]
"""Three rules that every request holds of; those without max_tokens are given as many as a stream of the mock has."""


def _booked(upstream: str, database: str, extra: dict[str, object]) -> dict[str, object]:
    """With quotas and an engine that costs by the hour, of whose price each request has its share."""
    engines = extra.get("engines") or [{"name": "mock", "url": upstream, "kind": "vllm"}]
    assert isinstance(engines, list)
    price = {"gpu_hour": 4.0, "gpus": 8}
    return {
        **extra,
        "engines": [{"prefill_tokens_per_s": 10_000_000, "decode_step": 0.001, **e, "price": price} for e in engines],
        "quotas": [{**quota, "answer_tokens": EVENTS} for quota in QUOTAS],
        "database": database,
    }


@contextlib.contextmanager
def ledger_only(work: Path, upstream: str, core: int) -> Iterator[Running]:
    with postgres() as database, gateway(work, upstream, core=core, extra=_booked(upstream, database, {})) as up:
        yield Running(up.url, up.tree)


@contextlib.contextmanager
def ledger(work: Path, upstream: str, core: int) -> Iterator[Running]:
    """Everything on; the database's own processes are none of the subject's."""
    engine = _admitting(upstream)
    with postgres() as database, gateway(work, upstream, core=core, extra=_booked(upstream, database, engine)) as up:
        yield Running(up.url, up.tree)


@contextlib.contextmanager
def cache(work: Path, upstream: str, core: int) -> Iterator[Running]:
    """The same with `cache.enabled`: answers in memory and, by the helper process, on disk."""
    settings = {**_admitting(upstream), "cache": {"enabled": True}}
    with postgres() as database, gateway(work, upstream, core=core, extra=_booked(upstream, database, settings)) as up:
        yield Running(up.url, up.tree)


@contextlib.contextmanager
def cache_in_memory(work: Path, upstream: str, core: int) -> Iterator[Running]:
    """The same without the disk, and so without a helper process."""
    settings = {**_admitting(upstream), "cache": {"enabled": True, "disk_bytes": 0}}
    with postgres() as database, gateway(work, upstream, core=core, extra=_booked(upstream, database, settings)) as up:
        yield Running(up.url, up.tree)


@contextlib.contextmanager
def postgres() -> Iterator[str]:
    """The URL of a new database on a PostgreSQL server that writes nothing through to the disk."""
    from tests.postgres_server import Postgres

    folder = Path(tempfile.mkdtemp(prefix="forebay-pg-"))  # short: a Unix socket's path has 107 bytes
    try:
        server = Postgres(folder)
        try:
            yield server.new()
        finally:
            server.close()
    finally:
        shutil.rmtree(folder)


# --- peers from PyPI -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Peer:
    requirement: str
    """Pinned, so that the table can be repeated."""
    command: Callable[[Path, str, int, Path], list[str]]
    """(its venv's bin, upstream, port, work directory) → command line; writes what files it needs."""
    health: str
    ready: float = 60.0

    @property
    def venv(self) -> Path:
        return cache_dir() / self.requirement.replace("[proxy]", "").replace("==", "-")

    @property
    def installed(self) -> bool:
        return (self.venv / ".installed").exists()

    def install(self, seconds: float) -> None:
        """Into its own venv, wheels only. Raises BenchError with pip's own last words."""
        if self.installed:
            return
        shutil.rmtree(self.venv, ignore_errors=True)
        self.venv.parent.mkdir(parents=True, exist_ok=True)
        pip = [str(self.venv / "bin" / "pip"), "install", "--quiet", "--only-binary", ":all:", self.requirement]
        try:
            subprocess.run([sys.executable, "-m", "venv", str(self.venv)], check=True, capture_output=True, timeout=60)
            subprocess.run(pip, check=True, capture_output=True, text=True, timeout=seconds)
        except subprocess.TimeoutExpired:
            raise BenchError(f"not installable: pip took over {seconds:g} s") from None
        except subprocess.CalledProcessError as e:
            words = [x for x in (e.stderr or "").splitlines() if x.startswith("ERROR")] or ["pip failed"]
            raise BenchError(f"not installable: {words[-1].removeprefix('ERROR: ')}") from None
        (self.venv / ".installed").touch()

    @contextlib.contextmanager
    def start(self, work: Path, upstream: str, core: int) -> Iterator[Running]:
        port = free_port()
        name = self.venv.name
        log = work / f"{name}.log"
        command = self.command(self.venv / "bin", upstream, port, work)
        quiet = {"DO_NOT_TRACK": "1", "LITELLM_TELEMETRY": "False", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
        with running(command, core=core, log=log, env=quiet, cwd=work, grace=5) as process:
            url = f"http://127.0.0.1:{port}"
            wait_until(answers_ok(f"{url}{self.health}"), process, log, name, timeout=self.ready)
            yield Running(url, Tree(process.pid))


def cache_dir() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "forebay" / "peers"


def _vllm_router(bin_: Path, upstream: str, port: int, work: Path) -> list[str]:
    command = [str(bin_ / "vllm-router"), "--host", "127.0.0.1", "--port", str(port), "--worker-urls", upstream]
    return [*command, "--policy", "round_robin", "--prometheus-port", str(free_port())]


def _sglang_router(bin_: Path, upstream: str, port: int, work: Path) -> list[str]:
    command = [str(bin_ / "python"), "-m", "sglang_router.launch_router", "--host", "127.0.0.1", "--port", str(port)]
    return [*command, "--worker-urls", upstream, "--policy", "round_robin", "--prometheus-port", str(free_port())]


def _litellm(bin_: Path, upstream: str, port: int, work: Path) -> list[str]:
    config = {
        "model_list": [
            {
                "model_name": MODEL,
                "litellm_params": {"model": f"openai/{MODEL}", "api_base": f"{upstream}/v1", "api_key": "none"},
            }
        ],
        "general_settings": {"master_key": BENCH_KEY},
        "litellm_settings": {"telemetry": False},
    }
    file = work / "litellm.yaml"
    file.write_text(json.dumps(config))
    return [
        str(bin_ / "litellm"),
        "--config",
        str(file),
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--num_workers",
        "1",
    ]


PEERS = {
    "vllm-router": Peer("vllm-router==0.1.17", _vllm_router, "/health"),
    "sglang-router": Peer("sglang-router==0.3.2", _sglang_router, "/health"),
    "litellm": Peer("litellm[proxy]==1.106.12", _litellm, "/health/liveliness", ready=120.0),
}
OWN: dict[str, Start] = {
    "nginx": nginx,
    "bare": bare,
    "forebay": forebay,
    "admission": admission,
    "ledger-only": ledger_only,
    "ledger": ledger,
    "cache-memory": cache_in_memory,
    "cache": cache,
    "cache-hits": cache,
}
SELDOM = ("admission", "ledger-only", "ledger", "cache-memory", "cache", "cache-hits")
"""Measured where they are named."""

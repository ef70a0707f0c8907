"""One gateway under load in front of an engine that counts, and the database it books into."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
from benchmarks.common import free_port, get

from crash_books import Found, compare, deaths_of_workers
from crash_children import deaths
from crash_load import MODEL, Clients, Engine
from crash_trace import trace
from forebay.ledger.database import Database
from forebay.state.messages import journal_folder

KEYS = [f"crash-campaign-key-{i:02}-0123456789" for i in range(5)]
TESTS = Path(__file__).parent
TRACED = 20
"""Requests that are explained, at most."""
Plan = dict[str, list[tuple[str, str, int, bool]]]
"""What each life of a worker and of an admin process ends at (`crash_children.Fate`)."""


class Stuck(Exception):
    """What did not come in time."""


class Lane:
    def __init__(
        self,
        name: str,
        folder: Path,
        database: str,
        plan: Plan,
        *,
        rate: float,
        seed: int,
        wait: float,
        pace: float = 1.0,
        state: Path | None = None,
    ) -> None:
        """`wait`: `ledger.first_byte_wait`."""
        self.name, self.folder = name, folder
        self.plan, self.planned = plan, sum(map(len, plan.values()))
        self.stem = name.lower().replace(" ", "-")
        self.state = state or folder / "state"
        self.url = database
        self.port, self.admin_port = free_port(), free_port()
        self._engine = Engine(seed, pace)
        self._clients = Clients(self.port, KEYS, rate, seed, self.stem)
        self._wait = wait
        self._stop = asyncio.Event()
        self.starts = 0
        self.process: subprocess.Popen[bytes]
        folder.mkdir(exist_ok=True)
        (folder / "plan.json").write_text(json.dumps(plan))

    async def start(self) -> None:
        await self._engine.start()
        prices = self.folder / "prices.yaml"
        prices.write_text(f"prices:\n  - {{model: {MODEL}, input: 2.5, output: 10}}\n")
        url = f"http://127.0.0.1:{self._engine.port}"
        engine = {"url": url, "kind": "openai", "models": [MODEL], "health_interval": 0.5}
        config: dict[str, Any] = {
            "listeners": [{"address": f"127.0.0.1:{self.port}"}],
            "admin": f"127.0.0.1:{self.admin_port}",
            "state_dir": str(self.state),
            "engines": [{"name": "one", **engine}, {"name": "two", **engine, "url": f"{url}/two"}],
            "callers": {"keys": [{"name": f"key-{i}", "key": key} for i, key in enumerate(KEYS)]},
            "ledger": {"prices": str(prices), "first_byte_wait": self._wait},
            "health": {"failures": 1_000, "error_share": 1.0, "rest_most": 0.001},
            "logging": {"requests": False},
            **({"database": self.url} if self.url else {}),
        }
        self.file = self.folder / "forebay.yaml"
        self.file.write_text(json.dumps(config))
        self._serve()
        await self.until(self._ready, 60, "the gateway to be ready")
        self._load = asyncio.create_task(self._clients.run(self._stop))

    def _serve(self) -> None:
        """Root's right to write anywhere is taken from it, so that a folder can be read-only for it."""
        command = [sys.executable, "-m", "crash_children", "serve", "--config", str(self.file)]
        if os.geteuid() == 0 and shutil.which("setpriv"):
            command = ["setpriv", "--bounding-set", "-dac_override,-dac_read_search", *command]
        env = {**os.environ, "PYTHONPATH": str(TESTS), "CRASH_PLAN": str(self.folder)}
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env)
        self.starts += 1

    def _ready(self) -> bool:
        return get(f"http://127.0.0.1:{self.admin_port}/ready")[0] == 200

    def metric(self, name: str) -> float:
        """The sum of its series, or the one that is named with its label. Raises OSError where nothing answers."""
        page = get(f"http://127.0.0.1:{self.admin_port}/metrics", timeout=5)[1].decode()
        samples = [line.rpartition(" ") for line in page.splitlines()]
        lines = [value for sample, _, value in samples if name in (sample, sample.partition("{")[0])]
        if not lines:
            raise OSError(f"no {name}")
        return sum(map(float, lines))

    async def until(self, look: Callable[[], bool], within: float, what: str) -> float:
        """Seconds until `look` is true, asked in a thread; an OSError is not yet. Raises Stuck."""
        began = time.monotonic()
        while True:
            with contextlib.suppress(OSError):
                if await asyncio.to_thread(look):
                    return time.monotonic() - began
            if time.monotonic() - began > within:
                tail = (self.folder / "log").read_text(errors="replace")[-3000:]
                raise Stuck(f"{self.name}: waited {within:.0f} s for {what}\n{tail}")
            await asyncio.sleep(0.1)

    async def die(self, died: Callable[[int], object]) -> None:
        """Until all that was planned has died; a tree that died whole is started again, as an init system would."""
        count, since = 0, time.monotonic()
        while count < self.planned:
            await asyncio.sleep(0.02)
            now = len(deaths(self.folder))
            if now > count:
                died(now - count)
                count, since = now, time.monotonic()
            if self.process.poll() is not None:
                self._serve()
            if time.monotonic() - since > 120:
                tail = (self.folder / "log").read_text(errors="replace")[-3000:]
                raise Stuck(f"{self.name}: nobody died for 120 s, {count} of {self.planned}\n{tail}")

    def _started_again(self) -> bool:
        """The last death may have been the tree's."""
        if self.process.poll() is not None:
            self._serve()
        return self._ready()

    def worker(self) -> psutil.Process:
        return next(p for p in psutil.Process(self.process.pid).children() if "forebay.gateway.worker" in p.cmdline())

    def admin(self) -> psutil.Process:
        return next(p for p in psutil.Process(self.process.pid).children() if "forebay.admin.main" in p.cmdline())

    def failed_since(self, since: float, until: float) -> int:
        """Requests that came then and were not answered whole, but for engines that broke twice."""
        return sum(not one.whole and one.status != 502 for one in self._clients.told if since <= one.sent <= until)

    def came(self, since: float, until: float) -> int:
        return sum(since <= one.sent <= until for one in self._clients.told)

    async def end(self) -> tuple[Found, list[str]]:
        """The load ends; once all is booked, the gateway too. What the books have, and what is wrong beside."""
        self._stop.set()
        await self._load
        wrong: list[str] = []
        if deaths(self.folder):
            await self.until(self._started_again, 60, "the gateway to be ready at the end")
        await self.until(lambda: self.metric("forebay_ledger_lag_bytes") == 0, 60, "the books to be up to date")
        if self.metric("forebay_ledger_alarm"):
            wrong.append(f"{self.name}: the alarm is still set")
        await asyncio.to_thread(self.stop)
        if self.process.returncode:
            wrong.append(f"{self.name}: serve ended with {self.process.returncode}")
        for command in ("verify", "status"):
            wrong += await asyncio.to_thread(self._ledger, command)
        last_words = deaths_of_workers(self.folder)
        database = Database(self.url, self.state)
        try:
            found = compare(self._clients.told, self._engine.calls, database, self.stem, last_words)
        finally:
            database.close()
        for id_ in found.failing()[:TRACED]:
            calls = self._engine.calls.get(id_, [])
            journal = journal_folder(self.state, 0)
            found.traces[id_] = trace(self.folder, journal, id_, self._clients.told, calls, last_words)
        for name, which in (("lost", found.lost), ("double", found.double), ("wrong", found.wrong)):
            wrong += [f"{self.name}: {name}: {one}" for one in which[:10]]
        if found.open:
            wrong.append(f"{self.name}: {found.open} attempts are open")
        unanswered = [t for t in self._clients.told if not t.whole and t.status not in (-1, 502)]
        if not deaths(self.folder) and unanswered:
            wrong.append(f"{self.name}: {len(unanswered)} requests were not answered: {unanswered[:5]}")
        return found, wrong

    def _ledger(self, command: str) -> list[str]:
        done = subprocess.run(
            [sys.executable, "-m", "forebay", "ledger", command, "--json", "--config", str(self.file)],
            capture_output=True,
            text=True,
            timeout=120,
        )
        if done.returncode:
            return [f"{self.name}: forebay ledger {command}: {done.stdout}{done.stderr}"]
        if command == "status":
            behind = [j for j in json.loads(done.stdout) if j["behind"]]
            return [f"{self.name}: not booked: {behind}"] if behind else []
        return []

    def stop(self) -> None:
        family = psutil.Process(self.process.pid).children(recursive=True) if self.process.poll() is None else []
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        for left in psutil.wait_procs(family, timeout=5)[1]:
            left.kill()

    async def close(self) -> None:
        self._stop.set()
        if hasattr(self, "_load"):
            self._load.cancel()
        if hasattr(self, "process"):
            await asyncio.to_thread(self.stop)
        await self._engine.close()

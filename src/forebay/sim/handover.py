"""A prompt's KV from a prefill to a decode engine, in the fields of vLLM's NIXL connector.

Who asks with `kv_transfer_params: {"do_remote_decode": true}` gets, with the answer, the fields that lead a decode
engine here; the blocks are held for it. Who asks with those (`do_remote_prefill`) computes no prompt: its KV is there
after the transfer's time, and the prefill engine is told to free its own (vLLM at commit 0050936b,
vllm/distributed/kv_transfer/kv_connector/v1/nixl/pull_scheduler.py `request_finished`, `get_num_new_matched_tokens`;
docs/features/nixl_connector_usage.md). The side channel, ZeroMQ there, is HTTP here: POST /control/kv/release to
`remote_host`:`remote_port`, the prefill engine's own port.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any, Final
from uuid import uuid4

from forebay.sim.checks import compact
from forebay.sim.driver import Driver
from forebay.sim.gates import Gate
from forebay.sim.jobs import Job, State
from forebay.wire.tasks import Tasks

log = logging.getLogger("forebay.sim")

RELEASE: Final = b"/control/kv/release"
_SECONDS: Final = 5.0
"""For telling the other engine; after its lease it frees the blocks anyway."""
_MAX_TELLING: Final = 1024
_NEEDED: Final = ("remote_engine_id", "remote_request_id", "remote_host", "remote_port")


class Handovers:
    """Mutable state: the jobs whose KV is held here, and the messages to other engines that are on their way."""

    def __init__(self, driver: Driver, tasks: Tasks, host: str, port: int) -> None:
        """`host` and `port`: where other engines reach this one."""
        self.engine_id = str(uuid4())
        self.host = host
        self.port = port
        self._driver = driver
        self._held: dict[str, Job] = {}
        self._sweep_at = 64
        self._next_block = 0
        self._tasks = tasks
        self._telling = 0

    def offer(self, request_id: str, job: Job) -> dict[str, Any]:
        """The fields that lead to the job's KV. Block numbers are made up: the request is what is asked for."""
        held = self._held
        if len(held) >= self._sweep_at:
            for name in [name for name, one in held.items() if one.state is not State.HELD]:
                del held[name]
            self._sweep_at = max(64, 2 * len(held))
        held[request_id] = job
        settings = self._driver.engine.settings
        tokens = job.prompt_tokens + job.output_tokens - 1
        first = self._next_block
        self._next_block = end = first + -(-tokens // settings.block_size)
        return {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_block_ids": [[i % settings.num_blocks for i in range(first, end)]],
            "remote_engine_id": self.engine_id,
            "remote_request_id": request_id,
            "remote_host": self.host,
            "remote_port": self.port,
            "tp_size": 1,
            "dcp_size": 1,
            "pp_size": 1,
            "remote_num_tokens": tokens,
            "remote_blocks_expiry_time": None,
            "transfer_mode": "pull",
        }

    def release(self, request_id: str) -> bool:
        """Free what is held for that request; False where nothing is, its lease having ended, say."""
        job = self._held.pop(request_id, None)
        if job is None or job.state is not State.HELD:
            return False
        self._driver.release(job)
        return True

    def pull(self, asked: Mapping[str, Any]) -> Pull | None:
        """What a request's fields ask to fetch; None where they ask for nothing, or do not say from where (vLLM then
        computes the prompt itself)."""
        if asked.get("do_remote_prefill") is not True or not asked.get("remote_block_ids"):
            return None
        if not all(asked.get(name) for name in _NEEDED):
            return None
        try:
            port = int(asked["remote_port"])
        except (TypeError, ValueError):
            return None
        if not 0 < port < 65_536:
            return None
        return Pull(self, str(asked["remote_host"]), port, str(asked["remote_request_id"]))

    def gate(self, asked: Mapping[str, Any]) -> KvGate:
        return KvGate(self, asked)

    def tell(self, host: str, port: int, request_id: str) -> None:
        if self._telling >= _MAX_TELLING:
            log.warning("%d prefill engines have not answered yet; one more is not told", _MAX_TELLING)
            return
        self._telling += 1
        self._tasks.spawn(self._tell(host, port, request_id))

    async def _tell(self, host: str, port: int, request_id: str) -> None:
        try:
            await _tell(host, port, request_id)
        finally:
            self._telling -= 1

    def transfer_seconds(self, tokens: int) -> float:
        """Of the wall."""
        settings = self._driver.engine.settings
        return (settings.transfer_latency + tokens * settings.transfer_seconds_per_token) / self._driver.speed


class KvGate(Gate):
    """What `kv_transfer_params` ask for: to hold the prompt's KV, or to fetch it."""

    def __init__(self, handovers: Handovers, asked: Mapping[str, Any]) -> None:
        self._handovers = handovers
        self._pull = handovers.pull(asked)
        self.hold = asked.get("do_remote_decode") is True
        self.remote = self._pull is not None

    def submitted(self, tokens: int) -> None:
        if self._pull is not None:
            self._pull.begin(tokens)

    def handed_over(self, job: Job, request_id: str) -> dict[str, Any] | None:
        return self._handovers.offer(request_id, job) if job.hold else None

    def leave(self) -> None:
        if self._pull is not None:
            self._pull.end()


class Pull:
    """A transfer to this engine. The other one is told exactly once, when it is over or is no longer wanted."""

    def __init__(self, handovers: Handovers, host: str, port: int, request_id: str) -> None:
        self._handovers = handovers
        self._where = (host, port, request_id)
        self._timer: asyncio.TimerHandle | None = None
        self._told = False

    def begin(self, tokens: int) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._handovers.transfer_seconds(tokens), self.end)

    def end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._told:
            self._told = True
            self._handovers.tell(*self._where)


async def _tell(host: str, port: int, request_id: str) -> None:
    body = compact({"request_id": request_id})
    try:
        async with asyncio.timeout(_SECONDS):
            reader, writer = await asyncio.open_connection(host, port)
            try:
                head = b"POST %b HTTP/1.1\r\nhost: engine\r\nconnection: close\r\ncontent-type: application/json\r\n"
                writer.write(head % RELEASE + b"content-length: %d\r\n\r\n%b" % (len(body), body))
                await reader.read(65_536)
            finally:
                writer.close()
    except (OSError, TimeoutError) as e:
        why = str(e) or "it is late"
        log.warning("the prefill engine at %s:%d could not be told that its KV was fetched: %s", host, port, why)

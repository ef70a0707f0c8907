"""The same over sockets: `forebay serve` before two emulated engines, chats that stream, and floods of long prompts."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from benchmarks.common import BENCH_KEY, answers_ok, free_port, gateway, running, wait_until

SECONDS = 12.0
CHATS = 12
"""That stream at once."""
FLOOD = 3
EVERY = 4.0
TOKENS = 8_000
MODEL = "forebay-sim"
SPLIT = "1 + 1"
NIXL = '{"kv_connector": "NixlConnector"}'


@contextlib.contextmanager
def _engine(work: Path, name: str) -> Iterator[str]:
    """8,000 prompt tokens a second, 20 ms a step, in steps of up to 2,048 tokens."""
    port = free_port()
    command = [sys.executable, "-m", "forebay.sim.main", "--port", str(port), "--prefill-rate", "8000"]
    command += ["--decode-rate", "50", "--max-model-len", "32768", "--kv-transfer-config", NIXL]
    command += ["--kv-transfer-rate", "200000", "--kv-transfer-latency", "0.01"]
    log = work / f"{name}.log"
    with running(command, core=None, log=log) as process:
        url = f"http://127.0.0.1:{port}"
        wait_until(answers_ok(f"{url}/health"), process, log, "forebay engine")
        yield url


def measure(*, split: bool, flood: bool) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="fb-pd-") as folder, contextlib.ExitStack() as stack:
        work = Path(folder)
        urls = [stack.enter_context(_engine(work, name)) for name in ("a", "b")]
        roles = ("prefill", "decode") if split else ("both", "both")
        engines = [
            {"name": role + str(i), "url": url, "kind": "vllm", "models": [MODEL], "role": role}
            for i, (url, role) in enumerate(zip(urls, roles, strict=True))
        ]
        one = stack.enter_context(gateway(work, urls[0], core=None, extra={"engines": engines}))
        gaps, firsts = asyncio.run(_run(one.url, flood))
        splits = one.metric("forebay_disaggregation_total", prompt="prefill_engine")
    return {
        "engines": SPLIT if split else "2 aggregated",
        "flood": f"{FLOOD} × {TOKENS // 1000}k every {EVERY:g} s" if flood else "none",
        "itl_ms": {p: round(float(np.percentile(gaps, p)) * 1e3, 1) for p in (50, 90, 99)},
        "gaps": len(gaps),
        "flood_ttft_s": round(float(np.median(firsts)), 2) if firsts else None,
        "split": int(splits),
    }


async def _run(url: str, flood: bool) -> tuple[list[float], list[float]]:
    end = time.monotonic() + SECONDS
    gaps: list[float] = []
    firsts: list[float] = []

    async def chat() -> None:
        while time.monotonic() < end:
            times = await _stream(url, "Tell me of rivers. " * 8, 150)
            gaps.extend(b - a for a, b in pairwise(times[1:]))

    async def long(i: int) -> None:
        times = await _stream(url, f"{i} " + "river " * TOKENS, 16)  # none finds another's in the cache
        firsts.append(times[1] - times[0])

    async with asyncio.TaskGroup() as tasks:
        for _ in range(CHATS):
            tasks.create_task(chat())
        at, sent = time.monotonic() + EVERY / 2, 0
        while flood and at < end - 1:
            await asyncio.sleep(at - time.monotonic())
            for _ in range(FLOOD):
                sent += 1
                tasks.create_task(long(sent))
            at += EVERY
    return gaps, firsts


async def _stream(url: str, text: str, tokens: int) -> list[float]:
    """When it was sent, and when each token came. Raises RuntimeError for what is no whole stream."""
    host = urlsplit(url)
    body = json.dumps(
        {"model": MODEL, "messages": [{"role": "user", "content": text}], "stream": True, "max_tokens": tokens,
         "ignore_eos": True}
    ).encode()  # fmt: skip
    reader, writer = await asyncio.open_connection(host.hostname, host.port, limit=1 << 20)
    try:
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {BENCH_KEY}\r\n"
        head += f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        times = [time.monotonic()]
        writer.write(head.encode() + body)
        while line := await reader.readline():
            if line.startswith(b"data: [DONE]"):
                return times
            if b'"content":"' in line and b'"role"' not in line:
                times.append(time.monotonic())
        raise RuntimeError("the stream ended too early")
    finally:
        writer.close()

"""500 real clients at once before a gateway and two emulated engines: what they were told, and how right that was."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.client import Answer, Client, connect
from benchmarks.common import answers_ok, free_port, gateway, need_files, running, wait_until
from benchmarks.retries.returning import Tale
from forebay.sim.workload import Ask
from forebay.wire.head import Header

MODEL = "forebay-sim"
CLIENTS = 500
MOST_TRIES = 10
KEYS = {cls: f"bench-{cls}-0123456789abcdef" for cls in ("vip", "normal", "low")}


@dataclass(frozen=True, slots=True)
class House:
    """Two engines alike, and what is asked of them."""

    name: str
    engine: dict[str, Any]
    """Options of `forebay engine`."""
    words: int
    """The shortest prompt; the longest is twice as long. About a token each."""
    tokens: int
    """The same of answers."""
    told: dict[str, Any] = field(default_factory=dict)
    """What the gateway is told of each."""


HOUSES = (
    House(
        "live prefill",
        {"prefill-rate": 12_000, "decode-rate": 50, "max-num-seqs": 64, "kv-tokens": 100_000},
        500,
        10,
        {"max_num_seqs": 64, "prefill_tokens_per_s": 12_000},
    ),
    House(
        "live sequences",
        {"prefill-rate": 12_000, "decode-rate": 50, "max-num-seqs": 8, "kv-tokens": 100_000},
        50,
        40,
        {"max_num_seqs": 8, "prefill_tokens_per_s": 12_000},
    ),
    House(
        "live kv",
        {"prefill-rate": 12_000, "decode-rate": 50, "max-num-seqs": 64, "kv-tokens": 6_000},
        200,
        40,
        {"max_num_seqs": 64, "prefill_tokens_per_s": 12_000},
    ),
)


class Heard(Answer):
    """Remembers what it was told about coming back."""

    __slots__ = ("headers",)

    def __init__(self, ended: Callable[[Answer], None]) -> None:
        super().__init__(ended)
        self.headers: dict[bytes, bytes] = {}

    def on_head(self, status: int, headers: list[Header], length: int | None) -> None:
        super().on_head(status, headers, length)
        self.headers = dict(headers)


async def _ask(client: Client, tale: Tale) -> Heard:
    done = asyncio.get_running_loop().create_future()
    heard = Heard(done.set_result)
    content = f"{len(tale.tries)} {id(tale)} " + "word " * tale.ask.prompt_tokens
    body = {
        "model": MODEL,
        "stream": True,
        "max_tokens": tale.ask.output_tokens,
        "messages": [{"role": "user", "content": content}],
    }
    client.post(json.dumps(body).encode(), heard, KEYS[tale.ask.cls])
    await done
    return heard


async def _client(client: Client, tale: Tale, begin: float, ends: Counter[str]) -> None:
    """Asks until it is answered, told not to come back, or has come often enough."""
    while True:
        tale.tries.append(time.monotonic() - begin)
        heard = await _ask(client, tale)
        if heard.status != 429:
            ends["answered" if heard.done else f"{heard.status} {heard.failure or ''}"] += 1
            return
        tale.reasons.append(heard.headers[b"x-forebay-reason"].decode())
        tale.told.append(int(heard.headers[b"retry-after"]))
        if heard.headers.get(b"x-should-retry") == b"false" or len(tale.tries) >= MOST_TRIES:
            tale.given_up = True
            return
        await asyncio.sleep(tale.told[-1])


async def _flood(url: str, tales: list[Tale]) -> Counter[str]:
    ends: Counter[str] = Counter()
    async with connect(url, len(tales)) as client:
        begin = time.monotonic()
        await asyncio.gather(*(_client(client, tale, begin, ends) for tale in tales))
    return ends


def crowd(house: House) -> list[Tale]:
    def asked(i: int) -> Ask:
        cls = "vip" if i % 10 == 0 else "normal" if i % 10 < 7 else "low"
        return Ask(0.0, house.words * (100 + i * 37 % 101) // 100, house.tokens * (100 + i * 13 % 101) // 100, cls=cls)

    return [Tale(asked(i)) for i in range(CLIENTS)]


@contextlib.contextmanager
def _engine(house: House, work: Path, i: int) -> Iterator[str]:
    port, log = free_port(), work / f"engine{i}.log"
    options = [part for name, value in house.engine.items() for part in (f"--{name}", str(value))]
    with running(_forebay("engine", "--port", str(port), *options), core=None, log=log) as process:
        url = f"http://127.0.0.1:{port}"
        wait_until(answers_ok(f"{url}/health"), process, log, "forebay engine")
        yield url


def _forebay(*arguments: str) -> list[str]:
    return [str(Path(sys.executable).with_name("forebay")), *arguments]


def measure(house: House) -> tuple[list[Tale], Counter[str]]:
    """What became of each client, and how their last tries ended. Raises BenchError where nothing can be started."""
    need_files(4 * CLIENTS)
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        work = Path(folder)
        urls = [stack.enter_context(_engine(house, work, i)) for i in range(2)]
        extra = {
            "engines": [{"name": f"e{i}", "url": url, "kind": "vllm", **house.told} for i, url in enumerate(urls)],
            "callers": {"keys": [{"name": cls, "key": key, "class": cls} for cls, key in KEYS.items()]},
            "admission": {"enabled": True},
        }
        at = stack.enter_context(gateway(work, urls[0], core=None, extra=extra))
        tales = crowd(house)
        return tales, asyncio.run(_flood(at.url, tales))

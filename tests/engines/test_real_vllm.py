"""What only a real vLLM can show: its KV events, and what is seen of it when its core is killed and it starts again."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import openai
import pytest
import uvloop

from engines.servers import BLOCK, BLOCKS, CHAT, COMPLETIONS, RealVLLM, opened, running
from forebay.config.engine import Engine
from forebay.gateway.kv_events import KvFeeds
from forebay.policy.kv_blocks import LAG_S
from forebay.wire.tasks import Tasks
from stack import KEY, KEYS, Forebay, folder
from waiting import eventually, read_until

pytestmark = pytest.mark.engines

PIECE = 64
"""Bytes a number of a chain."""


@pytest.fixture(scope="module")
def vllm() -> Iterator[RealVLLM]:
    with running("real-vllm") as found:
        assert isinstance(found, RealVLLM)
        yield found


@pytest.fixture(scope="module")
def forebay(vllm: RealVLLM) -> Iterator[Forebay]:
    with folder() as where:
        engine = {
            "name": "vllm",
            "url": vllm.url,
            "health_interval": 0.5,
            "kv_events": {"endpoint": f"tcp://127.0.0.1:{vllm.events_port}", "topic": "kv"},
        }
        config = {
            "listeners": [{"address": "127.0.0.1:0"}],
            "admin": "127.0.0.1:0",
            "state_dir": str(where / "state"),
            "engines": [engine],
            "callers": KEYS,
            "admission": {"enabled": True, "ttft": {"normal": 60}},
        }
        with contextlib.closing(Forebay(where, config)) as found:
            yield found


class Heard:
    def __init__(self) -> None:
        self.lost_: list[tuple[tuple[int, ...], int]] = []
        self.forgotten = 0

    def lost(self, name: str, numbers: Sequence[int], keep: int) -> None:
        self.lost_.append((tuple(numbers), keep))

    def forget(self, name: str) -> None:
        self.forgotten += 1


async def until(done: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not done():  # noqa: ASYNC110 - another process's doing
            await asyncio.sleep(0.005)


def chain_of(text: str) -> list[int]:
    return [hash(text[:end]) & ((1 << 60) - 1) for end in range(PIECE, len(text) + 1, PIECE)]


def prompt_of(seed: str, words: int) -> str:
    return " ".join(f"{seed}{i % 89}" for i in range(words))


@pytest.mark.parametrize("named", [True, False], ids=["by name", "by time"])
def test_evicted_blocks_are_lost_to_the_chain_of_the_prompt(vllm: RealVLLM, named: bool) -> None:
    """A prompt of some blocks; then others, until nothing of it is left by the events; then the same again, of which
    nothing is cached. With the request's name, as the gateway sends it, and without, as of older engines."""

    async def go() -> None:
        heard, tasks = Heard(), Tasks()
        later = 0.0

        def clock() -> float:
            return asyncio.get_running_loop().time() + later

        feeds = KvFeeds(heard, tasks, clock, piece_bytes=PIECE)
        events = {
            "endpoint": f"tcp://127.0.0.1:{vllm.events_port}",
            "replay": f"tcp://127.0.0.1:{vllm.replay_port}",
            "topic": "kv",
        }
        feeds.sync([Engine.model_validate({"name": "e", "url": vllm.url, "kv_events": events})])
        blocks = feeds.blocks("e")
        assert blocks is not None

        async def ask(key: int, text: str) -> tuple[int, int]:
            """Its prompt's tokens, and of them the cached."""
            chain = chain_of(text)
            header = feeds.header("e", key).decode()
            headers = {"x-session-id": header.split(": ")[1].strip()} if named else {}
            before = blocks.stores
            feeds.sent("e", key, chain, clock())
            body = vllm.body(CHAT, text=text, max_tokens=1)
            answer = await asyncio.to_thread(vllm.ask, "POST", CHAT, body, headers, 60)
            assert answer.status == 200, answer
            usage = answer.json()["usage"]
            cached = usage["prompt_tokens_details"]["cached_tokens"]
            if not named:  # one at a time, as far apart as it takes to tell them apart
                await until(lambda: blocks.stores > before)
            feeds.ended("e", key, usage["prompt_tokens"], cached, clock())
            nonlocal later
            later += 2 * LAG_S
            return usage["prompt_tokens"], cached

        try:
            first = 0
            while not blocks.linked:  # what comes before the subscription, or with the replay, is not
                first -= 1
                assert first > -20, blocks
                await ask(first, prompt_of(f"{named:d}{-first}y", 100))
            text = prompt_of("a" if named else "b", 250)
            tokens, cached = await ask(0, text)
            assert cached == 0 and tokens > 5 * BLOCK
            key = 0
            while (tuple(chain_of(text)), 0) not in heard.lost_:
                key += 1
                assert key < 40, (blocks, heard.lost_)
                await ask(key, prompt_of(f"{named:d}{key}x", 250))
            assert blocks.unlinked < -first and int(repr(blocks).split()[2]) <= BLOCKS, blocks
            kept = [keep for numbers, keep in heard.lost_ if numbers == tuple(chain_of(text))]
            assert kept == sorted(kept, reverse=True) and len(kept) > 3, "the end of a prompt goes first"
            print(f"\nKV events, {'by name' if named else 'by time'}: {blocks!r}; kept of the first prompt: {kept}")
            assert (await ask(key + 1, text)) == (tokens, 0)
        finally:
            await feeds.close()
            await tasks.drain()

    uvloop.run(go())


def test_a_subscriber_that_comes_late_is_told_what_it_missed(vllm: RealVLLM) -> None:
    async def go() -> None:
        tasks = Tasks()
        feeds = KvFeeds(Heard(), tasks, asyncio.get_running_loop().time)
        events = {
            "endpoint": f"tcp://127.0.0.1:{vllm.events_port}",
            "replay": f"tcp://127.0.0.1:{vllm.replay_port}",
            "topic": "kv",
        }
        feeds.sync([Engine.model_validate({"name": "e", "url": vllm.url, "kv_events": events})])
        blocks = feeds.blocks("e")
        assert blocks is not None
        try:
            for i in range(8):
                await asyncio.to_thread(vllm.post, CHAT, text=prompt_of(f"late{i}x", 120), max_tokens=1)
            # More than these have stored: what was before is asked for, and comes.
            await until(lambda: int(repr(blocks).split()[2]) > BLOCKS // 2)
            assert blocks.strays == 0
        finally:
            await feeds.close()
            await tasks.drain()

    uvloop.run(go())


def test_the_sdk_through_the_gateway(forebay: Forebay, vllm: RealVLLM) -> None:
    client = openai.OpenAI(api_key=KEY, base_url=f"http://127.0.0.1:{forebay.port}/v1", max_retries=0)
    with contextlib.closing(client):
        stream = client.chat.completions.create(
            model=vllm.model,
            messages=[{"role": "user", "content": "Once upon a time"}],
            max_tokens=12,
            stream=True,
            stream_options={"include_usage": True},
            extra_body={"ignore_eos": True},
        )
        chunks = list(stream)
        assert chunks[-1].usage is not None and chunks[-1].usage.completion_tokens == 12
        whole = client.completions.create(
            model=vllm.model, prompt="Once", max_tokens=3, extra_body={"ignore_eos": True}
        )
        assert whole.usage is not None and whole.usage.completion_tokens == 3


def send(forebay: Forebay, vllm: RealVLLM, path: str, **more: Any) -> Any:
    return opened(forebay.port, path, vllm.body(path, **more), Authorization=f"Bearer {KEY}")


def test_a_killed_core_ends_streams_with_an_error_and_a_new_start_serves_again(
    forebay: Forebay, vllm: RealVLLM
) -> None:
    """Last here: one stream by itself, one and a whole answer through the gateway. vLLM says an error and then [DONE];
    the gateway does not let it look like an end."""
    with contextlib.ExitStack() as open_:
        bare = open_.enter_context(contextlib.closing(vllm.open(stream=True, max_tokens=1_200)))
        stream = open_.enter_context(contextlib.closing(send(forebay, vllm, CHAT, stream=True, max_tokens=1_200)))
        whole = open_.enter_context(contextlib.closing(send(forebay, vllm, COMPLETIONS, max_tokens=1_200)))
        for sock in (bare, stream):
            read_until(sock, b'"finish_reason":null')
        eventually(lambda: vllm.busy() == (3, 0))
        vllm.core.kill()
        said = read_until(bare, b"[DONE]")
        assert b'data: {"error":' in said and said.rstrip(b"\r\n0").endswith(b"data: [DONE]"), said[-500:]
        through = read_until(stream, b"\0")
        assert b'"error"' in through and b"[DONE]" not in through
        head = read_until(whole, b"\r\n")
        assert head.split()[1] in (b"500", b"502"), head
    eventually(lambda: vllm.process.poll() is not None)
    eventually(lambda: forebay.metric('forebay_engine_healthy{engine="vllm"}') == 0)
    refused = forebay.call("POST", CHAT, vllm.body(max_tokens=2))
    assert refused[0] == 503 and "retry-after" in refused[1]
    vllm.start()
    eventually(lambda: forebay.metric('forebay_engine_healthy{engine="vllm"}') == 1, 30)
    status, _, body = forebay.call("POST", CHAT, vllm.body(max_tokens=2))
    assert status == 200 and json.loads(body)["usage"]["completion_tokens"] == 2

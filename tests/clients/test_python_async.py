"""The asynchronous `openai` client: many at once, task cancellation, cancelling a request that waits."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI

from stack import KEY, MODEL, OTHER_KEY
from waiting import eventually

ASK: list[Any] = [{"role": "user", "content": "Tell me about the river."}]
Suite = Callable[[AsyncOpenAI], Awaitable[None]]


def run(gateway: Any, suite: Suite, **more: Any) -> None:
    async def main() -> None:
        async with AsyncOpenAI(**{"base_url": gateway.base_url, "api_key": KEY, "max_retries": 0, **more}) as client:
            await suite(client)

    asyncio.run(main())


def named(request_id: str, fault: str = "") -> dict[str, str]:
    return {"X-Request-Id": request_id, **({"x-forebay-fault": fault} if fault else {})}


def test_whole_answers_and_streams_at_once(gateway: Any) -> None:
    async def suite(client: AsyncOpenAI) -> None:
        async def whole(i: int) -> str:
            answer = await client.chat.completions.create(model=MODEL, messages=ASK, max_tokens=20, seed=i)
            return answer.choices[0].message.content or ""

        async def stream(i: int) -> str:
            text = ""
            async for chunk in await client.chat.completions.create(
                model=MODEL, messages=ASK, max_tokens=20, seed=i, stream=True
            ):
                text += chunk.choices[0].delta.content or ""
            return text

        found = await asyncio.gather(*(f(i) for i in range(20) for f in (whole, stream)))
        assert found[0::2] == found[1::2]
        assert len(set(found)) == 20

    run(gateway, suite)


def test_the_other_routes(gateway: Any) -> None:
    async def suite(client: AsyncOpenAI) -> None:
        assert {m.id async for m in client.models.list()} >= {MODEL}
        assert (await client.embeddings.create(model=MODEL, input="one")).data[0].embedding
        assert (await client.completions.create(model=MODEL, prompt="Once", max_tokens=3)).choices[0].text
        async with client.chat.completions.stream(model=MODEL, messages=ASK) as stream:
            assert (await stream.get_final_completion()).choices[0].message.content

    run(gateway, suite)


@pytest.mark.parametrize("fault", ["", "role-wait=60"], ids=["streaming", "role only"])
def test_cancelling_the_task_ends_the_engines_work(gateway: Any, fault: str) -> None:
    name = f"task-cancel-{bool(fault)}"

    async def suite(client: AsyncOpenAI) -> None:
        begun = asyncio.Event()

        async def read() -> None:
            stream = await client.chat.completions.create(
                model=MODEL,
                messages=ASK,
                stream=True,
                max_tokens=5_000,
                extra_body={"ignore_eos": True},
                extra_headers=named(name, fault),
            )
            async for _ in stream:
                begun.set()

        task = asyncio.create_task(read())
        if fault:
            await asyncio.to_thread(eventually, lambda: gateway.engine.record(name))
        else:
            await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        how = await asyncio.to_thread(eventually, lambda: gateway.engine.record(name)["how"])
        assert how == "aborted"

    run(gateway, suite)


@pytest.mark.parametrize("stream", [False, True])
def test_time_out(gateway: Any, stream: bool) -> None:
    async def suite(client: AsyncOpenAI) -> None:
        with pytest.raises(openai.APITimeoutError):
            await client.chat.completions.create(
                model=MODEL, messages=ASK, stream=stream, timeout=0.3, extra_headers=named(f"late-{stream}", "stall")
            )

    run(gateway, suite)
    assert eventually(lambda: gateway.engine.record(f"late-{stream}")["how"]) == "aborted"


@pytest.mark.parametrize("stream", [False, True])
def test_cancel_ends_a_request_that_waits_for_the_same_key_only(gateway: Any, stream: bool) -> None:
    name = f"waits-{stream}"

    async def suite(client: AsyncOpenAI) -> None:
        waiting = asyncio.create_task(
            client.chat.completions.create(model=MODEL, messages=ASK, stream=stream, extra_headers=named(name, "stall"))
        )
        await asyncio.to_thread(eventually, lambda: gateway.engine.record(name))
        with pytest.raises(openai.NotFoundError):
            await client.with_options(api_key=OTHER_KEY).post(f"/requests/{name}/cancel", cast_to=object)
        assert not waiting.done()
        said: Any = await client.post(f"/requests/{name}/cancel", cast_to=object)
        assert said["cancelled"] == 1
        with pytest.raises(openai.APIStatusError) as caught:
            await waiting
        assert (caught.value.status_code, caught.value.code) == (499, "request_cancelled")

    run(gateway, suite)
    assert eventually(lambda: gateway.engine.record(name)["how"]) == "aborted"


def test_errors_are_the_sdks_own(gateway: Any) -> None:
    async def suite(client: AsyncOpenAI) -> None:
        with pytest.raises(openai.AuthenticationError):
            await client.with_options(api_key="wrong").models.list()
        with pytest.raises(openai.NotFoundError):
            await client.chat.completions.create(model="nothing", messages=ASK)
        with pytest.raises(openai.RateLimitError):
            await client.chat.completions.create(model=MODEL, messages=ASK, extra_headers=named("busy", "overload503"))
        with pytest.raises(openai.APIError, match=r"before its end|middle"):
            async for _ in await client.chat.completions.create(
                model=MODEL, messages=ASK, stream=True, extra_headers=named("cut", "cut=2")
            ):
                pass

    run(gateway, suite)

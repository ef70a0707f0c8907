"""Helpers of two hosts, each with its own state directory, that share a real Redis."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from cache_helper import helper, peer
from forebay.cache.messages import Kind, Purge, Purged
from postgres_server import Postgres
from redis_server import RedisServer

pytestmark = pytest.mark.books
ON = {"enabled": True, "budget": 5.0, "sample": 1e-9}


def test_what_one_host_keeps_another_gives_and_what_it_purges_is_gone_there(
    valkey_server: RedisServer, tmp_path: Path
) -> None:
    url = valkey_server.url()

    async def story() -> None:
        async with peer(tmp_path / "a") as here, peer(tmp_path / "b") as there:
            entry = await here.keep("怎么开具发票", "在订单页面。", exact=b"x" * 16, tags=("t",))
            found = await there.find("怎么开具发票", exact=b"x" * 16)
            assert (found.kind, found.entry) == (Kind.EXACT, entry)
            assert (await here.ask(Purge(0, tag="t"), Purged)).count == 1
            while (drop := await there.dropped()).purge is None or drop.purge.tag != "t":
                pass
            assert (await there.find("怎么开具发票", exact=b"x" * 16)).kind is Kind.MISS
            assert (await here.find("怎么开具发票", exact=b"x" * 16)).kind is Kind.MISS

    with helper(tmp_path / "a", redis=url, semantic=ON), helper(tmp_path / "b", redis=url, semantic=ON):
        asyncio.run(asyncio.wait_for(story(), 60))


def test_a_host_that_comes_later_compares_with_what_is_there(valkey_server: RedisServer, tmp_path: Path) -> None:
    url = valkey_server.url()

    async def keep() -> str:
        async with peer(tmp_path / "a") as here:
            return await here.keep("怎么开具发票", "在订单页面。")

    async def find(entry: str) -> None:
        async with peer(tmp_path / "b") as there:
            await there.until(lambda stats: stats["semantic"]["questions"] == 1)
            found = await there.find("发票如何开")
            assert (found.kind, found.entry) == (Kind.SEMANTIC, entry)

    with helper(tmp_path / "a", redis=url, disk_bytes=0, semantic=ON):
        entry = asyncio.run(keep())
    with helper(tmp_path / "b", redis=url, disk_bytes=0, semantic=ON):
        asyncio.run(find(entry))


def test_an_index_that_hosts_share(redis_server: RedisServer, tmp_path: Path) -> None:
    url = redis_server.url(0)
    shared = {"redis": url, "disk_bytes": 0, "semantic": {**ON, "index": "redis", "budget": 0.2}}

    async def story() -> None:
        async with peer(tmp_path / "a") as here, peer(tmp_path / "b") as there:
            entry = await here.keep("怎么开具发票", "在订单页面。")
            found = await there.find("发票如何开")
            assert (found.kind, found.entry) == (Kind.SEMANTIC, entry)
            assert (await there.find("发票如何不开")).kind is Kind.MISS
            assert (await there.find("发票如何开", partition="other/chat")).kind is Kind.MISS
            assert (await there.ask(Purge(0, like="如何开具发票", at_least=0.8), Purged)).count == 1
            assert (await here.find("怎么开具发票")).kind is Kind.MISS
            redis_server.freeze()
            try:
                found = await there.find("发票如何开", budget=0.05)
                assert (found.kind, found.seconds < 1.0) == (Kind.MISS, True)
            finally:
                redis_server.thaw()

    with helper(tmp_path / "a", **shared), helper(tmp_path / "b", **shared):
        asyncio.run(asyncio.wait_for(story(), 60))


def test_an_index_and_answers_in_postgresql(postgres: Postgres, tmp_path: Path) -> None:
    url = postgres.new()
    shared = {"disk_bytes": 0, "semantic": {**ON, "index": "pgvector"}}

    async def story() -> None:
        async with peer(tmp_path / "a") as here, peer(tmp_path / "b") as there:
            entry = await here.keep("怎么开具发票", "在订单页面。", exact=b"x" * 16)
            assert (await there.find("", exact=b"x" * 16)).entry == entry
            found = await there.find("发票如何开")
            assert (found.kind, found.entry) == (Kind.SEMANTIC, entry)
            assert (await there.find("发票如何不开")).kind is Kind.MISS
            assert (await there.find("发票如何开", partition="other/chat")).kind is Kind.MISS
            assert (await there.ask(Purge(0), Purged)).count == 1
            assert (await here.find("怎么开具发票", exact=b"x" * 16)).kind is Kind.MISS

    here = helper(tmp_path / "a", database=url, **shared)
    with here, helper(tmp_path / "b", database=url, **shared):
        asyncio.run(asyncio.wait_for(story(), 60))


def test_an_index_in_a_redis_without_search_says_what_is_missing(valkey_server: RedisServer, tmp_path: Path) -> None:
    semantic = {**ON, "index": "redis"}

    async def story() -> None:
        async with peer(tmp_path / "a") as here:
            await here.keep("怎么开具发票", "在订单页面。", exact=b"x" * 16)
            assert (await here.find("怎么开具发票", exact=b"x" * 16)).kind is Kind.EXACT
            assert "RediSearch" in (await here.look("stats"))["semantic"]["state"]

    with helper(tmp_path / "a", redis=valkey_server.url(), semantic=semantic):
        asyncio.run(asyncio.wait_for(story(), 60))


def test_a_paused_and_a_dead_redis_are_misses_within_the_budget(tmp_path: Path, valkey_server: RedisServer) -> None:
    url = valkey_server.url()

    async def story() -> None:
        async with peer(tmp_path / "a") as here:
            await here.keep("怎么开具发票", "在订单页面。", exact=b"x" * 16)
            valkey_server.freeze()
            try:
                for _ in range(20):
                    found = await here.find("怎么开具发票", exact=b"x" * 16, budget=0.025)
                    assert found.kind is Kind.MISS
                    assert found.seconds < 1.0
            finally:
                valkey_server.thaw()
            for _ in range(1_000):
                if (await here.find("怎么开具发票", exact=b"x" * 16)).kind is Kind.EXACT:
                    return
                await asyncio.sleep(0.02)
            raise AssertionError("it is not asked again")

    with helper(tmp_path / "a", redis=url, disk_bytes=0, semantic=ON):
        asyncio.run(asyncio.wait_for(story(), 60))

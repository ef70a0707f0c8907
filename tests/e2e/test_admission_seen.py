"""What can be seen of admission: the page, the gauges and the log, while an engine sheds."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from datetime import datetime
from functools import partial
from typing import Any

import pytest

from e2e.crowd import MODEL, PATIENT, Crowd, Told, house, running
from e2e.gateway import Gateway
from engine_process import EngineProcess
from waiting import eventually

CAP = 16


@pytest.fixture(scope="module")
def engine() -> Iterator[EngineProcess]:
    with running("--max-num-seqs", "24", "--decode-rate", "100", "--kv-tokens", "4000") as made:
        yield made


@pytest.fixture(scope="module")
def gateway(engine: EngineProcess) -> Iterator[Gateway]:
    with house(
        engine,
        admission={"ttft": PATIENT, "wait": dict.fromkeys(PATIENT, 20.0)},
        of_each={"max_num_seqs": 24, "concurrency": CAP},
    ) as made:
        yield made


def page(gateway: Gateway) -> dict[str, Any]:
    status, body = gateway.admin("/admin/admission")
    assert status == 200
    found: dict[str, Any] = json.loads(body)
    return found


def engine_on(gateway: Gateway) -> dict[str, Any]:
    (engine,) = page(gateway)["workers"][0]["engines"]
    return engine  # type: ignore[no-any-return]


def logged(gateway: Gateway, words: str) -> list[dict[str, Any]]:
    lines = [json.loads(x) for x in gateway.log.read_text().splitlines() if x.startswith("{")]
    return [x for x in lines if words in x["msg"]]


def test_the_soft_cap_holds_and_who_waits_is_on_the_page(gateway: Gateway) -> None:
    crowd = Crowd(gateway)

    async def scenario() -> dict[str, Any]:
        asked = [asyncio.ensure_future(crowd.ask("vip", tokens=60)) for _ in range(CAP)]
        await crowd.until(lambda: gateway.metric("forebay_engine_in_flight") == CAP)
        asked += await crowd.in_turn([partial(crowd.ask, cls, tokens=2) for cls in ("vip", "normal", "low", "normal")])
        seen = await asyncio.to_thread(page, gateway)
        assert all(t.ok for t in await asyncio.gather(*asked))
        return seen

    seen = asyncio.run(scenario())
    assert seen["enabled"] is True
    assert {cls: w["requests"] for cls, w in seen["waiting"].items()} == {"vip": 1, "normal": 2, "low": 1}
    assert all(w["tokens"] > 0 for w in seen["waiting"].values())
    (model,) = seen["models"]
    assert (model["name"], model["waiting"]) == (MODEL, seen["waiting"])
    assert model["desired_replicas"] >= 1
    (one,) = seen["workers"][0]["engines"]
    assert (one["name"], one["in_flight"], one["cap"], one["scale_factor"]) == ("e0", CAP, CAP, 1.0)
    assert one["kv_tokens"] == pytest.approx(4_000, abs=32)
    assert 0 < one["kv_predicted"] <= 0.97
    assert one["ceilings"] == {"vip": 0.97, "normal": 0.92, "low": 0.75}
    assert {"idle", "flood"} <= set(one["margins"])
    assert one["pace"] > 0
    assert gateway.metric("forebay_engine_scale_factor", engine="e0") == 1
    assert gateway.metric("forebay_desired_replicas", model=MODEL) >= 1


def test_shedding_is_seen_with_its_reason_from_its_begin_to_its_end(gateway: Gateway) -> None:
    crowd = Crowd(gateway)
    shedding = partial(gateway.metric, "forebay_engine_shedding", engine="e0")
    assert engine_on(gateway)["history"] == []
    assert (shedding(reason="shed_kv"), shedding(reason="shed_preempting")) == (0, 0)

    async def scenario() -> tuple[dict[str, Any], Told]:
        asked = [asyncio.ensure_future(crowd.ask("vip", words=200, tokens=60)) for _ in range(CAP)]
        await crowd.until(lambda: shedding(reason="shed_kv") == 1)
        seen = await asyncio.to_thread(engine_on, gateway)
        refused = await crowd.ask()
        assert all(t.ok for t in await asyncio.gather(*asked))
        return seen, refused

    seen, refused = asyncio.run(scenario())
    assert (refused.status, refused.reason) == (429, "shed_kv")
    assert (seen["reason"], seen["shed_level"]) == ("shed_kv", 0)
    assert seen["kv_predicted"] >= 0.8
    (change,) = seen["history"]
    assert change["reason"] == "shed_kv"
    eventually(lambda: shedding() == 0)
    (ended,) = eventually(lambda: logged(gateway, "sheds no more"))
    (begun,) = logged(gateway, "sheds load")
    assert (begun["level"], ended["level"]) == ("warning", "info")
    assert "engine e0 sheds load: shed_kv" in begun["msg"]
    assert abs(_seconds(begun["ts"]) - _seconds(change["time"])) < 1.0
    history = engine_on(gateway)["history"]
    reasons = [one["reason"] for one in history]  # on a busy machine it may begin again
    assert reasons == ["shed_kv", ""] * (len(reasons) // 2) and reasons
    assert history[0] == change
    assert _seconds(history[1]["time"]) > _seconds(change["time"])


def _seconds(time: str) -> float:
    return datetime.fromisoformat(time).timestamp()

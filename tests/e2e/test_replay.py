"""A live run, recorded, and decided again by the same policy in simulated time."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from pathlib import Path

from e2e.crowd import PATIENT, Crowd, Told, house, hup, running, wave
from e2e.gateway import Gateway
from waiting import eventually


def replay(*arguments: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "forebay", "replay", *arguments], capture_output=True, text=True, timeout=60
    )
    return done.returncode, done.stdout + done.stderr


def test_a_recorded_flood_is_decided_the_same_again(tmp_path: Path) -> None:
    options = ("--prefill-rate", "12000", "--decode-rate", "50", "--max-num-seqs", "32", "--kv-tokens", "20000")
    told_of = {"max_num_seqs": 32, "prefill_tokens_per_s": 12_000}
    path = tmp_path / "run.jsonl"

    async def one(crowd: Crowd, i: int, leave: asyncio.Event) -> Told:
        cls = "vip" if i % 10 == 0 else "normal" if i % 10 < 7 else "low"
        unary = {} if i % 7 else {"stream": False}
        asked = {"words": 100 + i * 37 % 200, "tokens": 10 + i * 13 % 30, **unary}
        return await crowd.ask(cls, **asked, leave_at=leave if i % 17 == 0 else None)

    async def flood(gateway: Gateway) -> list[Told]:
        crowd, leave = Crowd(gateway), asyncio.Event()
        asks = [asyncio.ensure_future(one(crowd, i, leave)) for i in range(300)]
        await crowd.until(lambda: gateway.metric("forebay_queue_requests") > 20)
        leave.set()
        await asyncio.to_thread(hup, gateway, {"queue": {"requests": 5}})
        return await asyncio.gather(*asks)

    with running(*options) as a, running(*options) as b:
        rules = {"ttft": dict.fromkeys(PATIENT, 2.5), "queue": {"requests": 60}, "record": str(path)}
        with house(a, b, admission=rules, of_each=told_of) as gateway:
            told: list[Told] = []
            for _ in range(5):  # on a busy machine the queue may be short again before it is told
                hup(gateway, {})
                told += asyncio.run(flood(gateway))
                if any(t.reason == "reload" for t in told):
                    break
            b.stop()
            eventually(lambda: gateway.metric("forebay_engine_healthy") == 1)
            told += asyncio.run(wave(Crowd(gateway), 20))
            decided = gateway.metric("forebay_admission_total")
        b.start()  # for it is stopped again
    assert {t.reason for t in told} >= {"", "reload"}
    assert any(t.status == 0 for t in told), "some left"

    code, said = replay(str(path))
    assert code == 0, said
    found = re.search(r"([\d,]+) decisions, all the same", said)
    assert found is not None, said
    assert int(found[1].replace(",", "")) == decided
    assert "It ends because the gateway stopped" in said
    text = path.read_text()
    assert '"call":"engine_gone"' in text
    assert '"call":"configure"' in text
    assert "word word" not in text
    assert "e2e-" not in text, "a key"

    bound = next(m for m in re.finditer(r'"decision":"admit","engine":"e\d","bound":(\d+\.\d+)', text))
    line = text[: bound.start()].count("\n") + 1
    tampered = tmp_path / "tampered.jsonl"
    nudged = f"{float(bound[1]) * (1 + 2**-52)!r}"
    tampered.write_text(text[: bound.start(1)] + nudged + text[bound.end(1) :])
    code, said = replay(str(tampered))
    assert code == 1
    assert f"line {line}," in said
    assert f"within {nudged} s" in said
    assert f"within {bound[1]} s" in said
    assert "is not what the gateway wrote" in said

    patient, workload = tmp_path / "patient.yaml", tmp_path / "workload.jsonl"
    patient.write_text("admission: {ttft: {vip: 30, normal: 30, low: 30}, wait: {vip: 30, normal: 30}}")
    code, said = replay(str(path), "--rules", str(patient), "--workload", str(workload))
    assert code == 0, said
    arrived = re.findall(r"(?:vip|normal|low) +arrived +(\d+) +(\d+) +(\d+)", said)
    assert [set(row) for row in arrived] == [{"30"}, {"200"}, {"90"}]
    waited = re.search(r"normal +admitted after waiting +(\d+) +(\d+) +(\d+)", said)
    assert waited is not None, said
    assert int(waited[3]) > int(waited[2])
    assert len(workload.read_text().splitlines()) == 320

"""What placing one request costs, hashing included, and what the prefix index weighs."""

from __future__ import annotations

import gc
import os
import time
import tracemalloc
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from random import Random
from typing import Any

from benchmarks.common import rss
from forebay.plan.simulate import Ready
from forebay.policy.admission import Admission
from forebay.policy.asks import Ask
from forebay.policy.decisions import Admit
from forebay.policy.prefix import BLOCK_BYTES, BLOCK_TOKENS, PrefixIndex, chain, salted
from forebay.policy.rules import Rules
from forebay.sim.admitted import facts_of

PROMPT_TOKENS = 8_192
PROMPT_BYTES = PROMPT_TOKENS // BLOCK_TOKENS * BLOCK_BYTES
SHARED_BYTES = PROMPT_BYTES // 2
PREFIXES = 50
BEFORE = 4
"""Requests an engine has before anything is timed."""
KV_TOKENS = 486_304
UNIQUE_BLOCKS = 8
"""Of each prompt of the flood of unique ones."""
OUTPUT = 200


def placing(ready: Ready, engines: int, times: int) -> dict[str, Any]:
    """Microseconds of CPU of one decision: the chain of a prompt of 8,192 tokens, half of it one of 50 shared
    beginnings, and the admission's answer. Each engine has a few requests before, and as many again end as begin."""
    facts = facts_of(ready.settings, ready.steps)
    admission = Admission(Rules(gated=False), {f"engine-{i}": facts for i in range(engines)})
    random = Random(1)
    shared = [random.randbytes(SHARED_BYTES) for _ in range(PREFIXES)]
    running: list[Ask] = []
    hashing, deciding = [], []
    now = 0.0
    gc.collect()
    gc.disable()
    for key in range(BEFORE * engines + times):
        now += 0.001
        text = random.choice(shared) + random.randbytes(PROMPT_BYTES - SHARED_BYTES)
        begin = time.thread_time()
        numbers = chain(text, salted(b"tenant", b"model"))
        middle = time.thread_time()
        ask = Ask(key, prompt_tokens=PROMPT_TOKENS, arrival=now, prefix=numbers, block_tokens=BLOCK_TOKENS)
        decision = admission.offer(ask, now)
        end = time.thread_time()
        if key >= BEFORE * engines:
            hashing.append(middle - begin)
            deciding.append(end - middle)
        if isinstance(decision, Admit):
            admission.on_first_token(ask, now)
            running.append(ask)
        if len(running) > BEFORE * engines:
            gone = running.pop(random.randrange(len(running)))
            admission.on_end(gone, now, tokens=OUTPUT)
        admission.due(now)
    gc.enable()
    both = sorted(a + b for a, b in zip(hashing, deciding, strict=True))

    def at(values: list[float], share: float) -> float:
        return round(1e6 * values[int(share * (len(values) - 1))], 1)

    return {
        "engines": engines,
        "times": times,
        "p50_us": at(both, 0.5),
        "p90_us": at(both, 0.9),
        "p99_us": at(both, 0.99),
        "hashing_p50_us": at(sorted(hashing), 0.5),
        "deciding_p50_us": at(sorted(deciding), 0.5),
    }


def weighing(engines: int) -> dict[str, Any]:
    """Bytes a block of a full index: all blocks different, and each held by two engines."""
    found = {}
    for name, holders in (("alone", 1), ("shared", 2)):
        gc.collect()
        tracemalloc.start()
        before = tracemalloc.get_traced_memory()[0]
        index = PrefixIndex()
        names = [f"engine-{i}" for i in range(engines)]
        for one in names:
            index.engine(one, KV_TOKENS)
        blocks = KV_TOKENS // BLOCK_TOKENS
        text = 0
        for i in range(0, engines, holders):
            for _ in range(2 * blocks // 64):
                text += 1
                numbers = chain(_unique(text, 64), 1)
                for one in names[i : i + holders]:
                    index.sent(one, numbers)
        held = sum(index.held(one) for one in names)
        gc.collect()
        size = tracemalloc.get_traced_memory()[0] - before
        tracemalloc.stop()
        found[name] = {"held": held, "numbers": len(index), "bytes": size, "bytes_a_block": round(size / held, 1)}
    return found


def flooding(engines: int, prompts: int) -> dict[str, Any]:
    """RSS while the index is fed unique prompts: at a fifth of them, and the most and the last after that."""
    index = PrefixIndex()
    names = [f"engine-{i}" for i in range(engines)]
    for one in names:
        index.engine(one, KV_TOKENS)
    gc.collect()
    empty = rss(os.getpid())
    sizes = []
    began = time.process_time()
    for text in range(prompts):
        numbers = chain(_unique(text, UNIQUE_BLOCKS), 2)
        index.match(numbers)
        index.sent(names[text % engines], numbers)
        if text % (prompts // 20) == 0:
            sizes.append(rss(os.getpid()))
    sizes.append(rss(os.getpid()))
    fifth = sizes[len(sizes) // 5]
    return {
        "prompts": prompts,
        "blocks": prompts * UNIQUE_BLOCKS,
        "held": sum(index.held(one) for one in names),
        "rss_empty": empty,
        "rss_fifth": fifth,
        "rss_most": max(sizes),
        "rss_last": sizes[-1],
        "growth": round(max(sizes) / fifth - 1, 4),
        "cpu_seconds": round(time.process_time() - began, 1),
    }


def _unique(number: int, blocks: int) -> bytes:
    """A text that no other number has, from its first block on."""
    return number.to_bytes(8, "little") * (blocks * BLOCK_BYTES // 8)


def measure(ready: Ready, *, quick: bool) -> dict[str, Any]:
    times = 500 if quick else 3_000
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as fresh:  # whose heap has no holes to fill
        flood = fresh.submit(flooding, 64, 200_000 if quick else 1_000_000).result()
    return {
        "placing": [placing(ready, engines, times) for engines in (8, 64, 1_000)],
        "index": weighing(64),
        "flood": flood,
    }

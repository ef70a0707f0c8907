"""Prompt caches: what breaks them is found, and what they could find is what they find once it is mended.

Applications that differ in what stands in their prompts ask an emulated engine with a prefix cache, through a gateway
that watches. Each as it is, then mended: what varies left out, moved behind what stays the same, or put in order by the
gateway. Of each: what share of prompt tokens the engine found (its own word), and what the watch says.
"""

from __future__ import annotations

import http.client
import json
import random
import statistics
import sys
import tempfile
import time
import timeit
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.common import BenchError, Gateway, answers_ok, env_int, free_port, gateway, running, wait_until
from forebay.cli.adminsocket import AdminSocket
from forebay.state.messages import admin_socket

MODEL = "bench"
SPEED = 8
"""The engine's clock runs so many times as fast; times are multiplied by it."""
NEAR = 0.05
"""How far what could be found, as said of the broken one, may be from what is found in the mended one."""
COST = 5e-6
"""Seconds of the event loop a small request may cost."""

Chat = dict[str, Any]
Make = Callable[[random.Random, int], Chat]


@dataclass(frozen=True)
class Application:
    name: str
    make: Make
    mended: Make | None
    """None: nothing is broken."""
    where: str = ""
    kind: str = ""
    by_gateway: bool = False
    """Mended by cache.prefix.reorder."""


@dataclass
class Found:
    name: str
    requests: int
    reported: float
    as_sent: float
    could_be: float
    compared: int
    breaks: list[tuple[str, str, int, str]]
    advice: str
    median_s: float
    """Of an answer of 4 tokens."""


def rules(seed: int, count: int = 70) -> str:
    rng = random.Random(seed)
    what = ("refunds", "late parcels", "invoices", "passwords", "warranties", "gift cards")
    how = ("in two sentences", "with the order's number", "and name the next step", "without a promise")
    lines = [
        f"{i}. Of {rng.choice(what)} speak {rng.choice(how)}; page {rng.randrange(900)} says more."
        for i in range(count)
    ]
    return "\n".join(lines)


RULES = rules(1)
NAMES = ("Ann", "Bo Lindqvist", "Dr. Carla von Thun", "李雷", "Eve O'Neil")


def question(rng: random.Random) -> str:
    words = rng.choices(("order", "parcel", "late", "refund", "number", "please", "why", "when", "card"), k=18)
    return f"{' '.join(words)} {rng.randrange(10**6)}?"


def chat(system: str, user: str, **more: Any) -> Chat:
    return {"messages": [{"role": "system", "content": system}, {"role": "user", "content": user}], **more}


def clock(i: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(1_796_000_000 + 7 * i))


def document(rng: random.Random) -> str:
    return " ".join(f"{rng.choice(('pump', 'valve', 'weir', 'gate'))}-{rng.randrange(10**5)}" for _ in range(150))


def tools(rng: random.Random | None) -> list[dict[str, Any]]:
    made = [
        {
            "type": "function",
            "function": {
                "name": f"{verb}_{thing}",
                "description": f"To {verb} a {thing} of the customer who asks, by its number.",
                "parameters": {"type": "object", "properties": {"number": {"type": "string"}}, "required": ["number"]},
            },
        }
        for verb in ("find", "cancel", "change")
        for thing in ("order", "parcel", "invoice", "card")
    ]
    return made if rng is None else rng.sample(made, len(made))


def conversation(rng: random.Random, i: int) -> Chat:
    """The i-th turn of a conversation of 8, of which 20 go on at once."""
    talk, turn = i % 20, i // 20
    words = random.Random(f"talk {talk}")
    messages = [{"role": "system", "content": RULES}]
    for _ in range(turn % 8):
        messages += [
            {"role": "user", "content": question(words)},
            {"role": "assistant", "content": " ".join(question(words) for _ in range(3))},
        ]
    return {"messages": [*messages, {"role": "user", "content": question(words)}]}


APPLICATIONS = (
    Application("nothing varies", lambda r, i: chat(RULES, question(r)), None),
    Application("conversations", conversation, None),
    Application(
        "a time in the system prompt",
        lambda r, i: chat(f"You answer customers of a shop. It is now {clock(i)}.\n{RULES}", question(r)),
        lambda r, i: chat(f"You answer customers of a shop.\n{RULES}\nIt is now {clock(i)}.", question(r)),
        "messages[0] (system)",
        "time",
    ),
    Application(
        "a request's id before all",
        lambda r, i: chat(f"[{uuid.UUID(int=r.getrandbits(128))}] {RULES}", question(r)),
        lambda r, i: chat(RULES, question(r)),
        "messages[0] (system)",
        "uuid",
    ),
    Application(
        "the asker's name",
        lambda r, i: chat(f"You talk to {r.choice(NAMES)}-{i}, a customer.\n{RULES}", question(r)),
        lambda r, i: chat(f"You talk to a customer.\n{RULES}", f"I am {r.choice(NAMES)}-{i}. {question(r)}"),
        "messages[0] (system)",
        "words",
    ),
    Application(
        "a document before the rules",
        lambda r, i: chat(f"Known:\n{document(r)}\n\nRules:\n{RULES}", question(r)),
        lambda r, i: chat(f"Rules:\n{RULES}", f"Known:\n{document(r)}\n\n{question(r)}"),
        "messages[0] (system)",
        "text",
    ),
    Application(
        "all in one user's message",
        lambda r, i: {"messages": [{"role": "user", "content": f"{question(r)}\n\nAnswer so:\n{RULES}"}]},
        lambda r, i: {"messages": [{"role": "user", "content": f"Answer so:\n{RULES}\n\n{question(r)}"}]},
        "messages[0] (user)",
        "text",
    ),
    Application(
        "tools in any order",
        lambda r, i: chat(RULES, question(r), tools=tools(r)),
        lambda r, i: chat(RULES, question(r), tools=tools(r)),
        "tools",
        "order",
        by_gateway=True,
    ),
)


def organisation(name: str) -> str:
    return "".join(ch if ch.isalnum() else "-" for ch in name)


def key_of(name: str) -> str:
    return f"sk-bench-{organisation(name)}-0123456789"


@contextmanager
def watched(url: str, reorder: str) -> Iterator[Gateway]:
    keys = [
        {"name": f"k{i}", "key": key_of(name), "organisation": organisation(name)}
        for i, name in enumerate(f"{a.name}{end}" for a in APPLICATIONS for end in ("", ", mended"))
    ]
    extra: dict[str, object] = {
        "callers": {"keys": keys},
        "engines": [{"name": "engine", "url": url, "kind": "vllm"}],
        "cache": {"prefix": {"watch": True, "interval": 0.02, "reorder": reorder}},
    }
    with (
        tempfile.TemporaryDirectory(prefix="fb-") as folder,
        gateway(Path(folder), url, core=None, extra=extra) as running_gateway,
    ):
        yield running_gateway


@contextmanager
def engine() -> Iterator[str]:
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "engine.log"
        command = [sys.executable, "-m", "forebay.sim.main", "--port", str(port), "--model", MODEL]
        command += ["--enable-prefix-caching", "--enable-prompt-tokens-details", "--speed", str(SPEED)]
        with running(command, core=None, log=log) as process:
            wait_until(answers_ok(f"http://127.0.0.1:{port}/health"), process, log, "the emulated engine")
            yield f"http://127.0.0.1:{port}"


def drive(gate: Gateway, name: str, make: Make, requests: int) -> Found:
    """Raises BenchError where an answer fails."""
    rng = random.Random(name)
    connection = http.client.HTTPConnection(gate.url.removeprefix("http://"), timeout=30)
    prompt = cached = 0
    times = []
    with closing(connection):
        for i in range(requests):
            body = json.dumps({"model": MODEL, "max_tokens": 4, **make(rng, i)}, ensure_ascii=False).encode()
            head = {"authorization": f"Bearer {key_of(name)}", "content-type": "application/json"}
            begin = time.perf_counter()
            connection.request("POST", "/v1/chat/completions", body, head)
            answer = connection.getresponse()
            data = answer.read()
            times.append((time.perf_counter() - begin) * SPEED)
            if answer.status != 200:
                raise BenchError(f"{name}: {answer.status} {data[:300]!r}")
            usage = json.loads(data)["usage"]
            prompt += usage["prompt_tokens"]
            cached += usage["prompt_tokens_details"]["cached_tokens"]
    state = gate.log.parent / "state"
    page = AdminSocket(admin_socket(state), "bench").ask("GET", "/cache/prefix")
    (row,) = [group for group in page["groups"] if group["organisation"] == organisation(name)]
    if abs(row["reported"] - cached / prompt) > 1e-3:
        raise BenchError(f"{name}: the engine found {cached / prompt:.3f}, the gateway says {row['reported']}")
    return Found(
        name,
        requests,
        row["reported"],
        row["as_sent"],
        row["could_be"],
        row["compared"],
        [(one["where"], one["kind"], one["at"], one["shape"]) for one in row["breaks"]],
        row["advice"],
        statistics.median(times),
    )


def fell_short(application: Application, broken: Found, mended: Found | None) -> Iterator[str]:
    name = application.name
    if application.mended is None:
        if broken.breaks or broken.advice:
            yield f"{name}: nothing breaks it, and {broken.breaks} was found"
        if abs(broken.could_be - broken.reported) > NEAR:
            yield f"{name}: could be {broken.could_be:.1%}, is {broken.reported:.1%}"
        return
    assert mended is not None
    if not any((where, kind) == (application.where, application.kind) for where, kind, _, _ in broken.breaks[:2]):
        yield f"{name}: {application.kind} in {application.where} was not named first, but {broken.breaks[:2]}"
    if not broken.advice:
        yield f"{name}: nothing was advised"
    if abs(broken.could_be - mended.reported) > NEAR:
        yield f"{name}: could be {broken.could_be:.1%}, and mended it is {mended.reported:.1%}"
    if mended.reported - broken.reported < 0.2:
        yield f"{name}: mending it brought {mended.reported - broken.reported:.1%} of its tokens"


def cost() -> dict[str, float]:
    """Seconds of a small request's bookkeeping, and of putting 12 tools in order."""
    from benchmarks.cache.prefix_cost import counted, ordered

    return {
        "counted_s": min(timeit.repeat(counted(), number=20_000, repeat=5)) / 20_000,
        "tools_in_order_s": min(timeit.repeat(ordered(tools(random.Random(1))), number=500, repeat=5)) / 500,
    }


def measure(console: Console) -> tuple[dict[str, object], list[str]]:
    requests = env_int("REQUESTS", 160, least=40)
    table = Table("", "cached", "as sent", "could be", "seconds", "what breaks it")
    for column in table.columns[1:5]:
        column.justify = "right"
    rows: list[dict[str, Any]] = []
    short: list[str] = []
    with engine() as url, watched(url, "nothing") as plain, watched(url, "tools") as ordering:
        for application in APPLICATIONS:
            found = [drive(plain, application.name, application.make, requests)]
            if application.mended is not None:
                gate = ordering if application.by_gateway else plain
                found.append(drive(gate, f"{application.name}, mended", application.mended, requests))
            short += fell_short(application, found[0], found[1] if len(found) > 1 else None)
            for one in found:
                breaks = "; ".join(f"{kind} in {where}" for where, kind, _, _ in one.breaks[:2])
                shares = [f"{share:.1%}" for share in (one.reported, one.as_sent, one.could_be)]
                table.add_row(one.name, *shares, f"{one.median_s:.3f}", breaks)
                rows.append(asdict(one))
    console.print(table)
    costs = cost()
    console.print(
        f"the loop pays {costs['counted_s'] * 1e6:.2f} µs a request to count it, and "
        f"{costs['tools_in_order_s'] * 1e6:.0f} µs to put 12 tools in order, where that is configured"
    )
    if costs["counted_s"] > COST:
        short.append(f"counting a request costs {costs['counted_s'] * 1e6:.1f} µs, the bar is {COST * 1e6:g} µs")
    bars = {"near": NEAR, "counted_s": COST}
    return {"bars": bars, "requests": requests, "speed": SPEED, "applications": rows, "cost": costs}, short

"""Every route × whole or streamed × state of a request: its client leaves, and the engine runs nothing any more."""

from __future__ import annotations

import contextlib
import itertools
import json
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from campaigns import cancel
from stack import Engine, Forebay, config_of, connect, folder, half_close, raw_request, read_all, reset
from waiting import eventually, read_until, until_nobody_reads_from

ROUTES: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Tell me about the river."}]}),
    "completions": ("/v1/completions", {"prompt": "The river"}),
    "embeddings": ("/v1/embeddings", {"input": "The river"}),
}
WAYS: dict[str, Callable[[socket.socket], None]] = {
    "close": socket.socket.close,
    "reset": reset,
    "half-close": half_close,
}
LONG = {"max_tokens": 5_000, "ignore_eos": True}


class Case(NamedTuple):
    route: str
    stream: bool
    state: str
    how: str = ""
    """`folded`: the engine streams to the gateway, whatever the client asked for."""

    def __str__(self) -> str:
        return "-".join(filter(None, (self.route, "stream" if self.stream else "unary", self.state, self.how)))


def cases() -> Iterator[Case]:
    for route, stream in itertools.product(("chat", "completions"), (False, True)):
        for state in ("connecting", "sent", "queued by the engine", "queued by admission", "generating", "retrying"):
            yield Case(route, stream, state)
        for state in ("held", "paused"):
            if stream:
                yield Case(route, stream, state)
        if not stream:
            for state in ("sent", "queued by the engine", "generating", "held"):
                yield Case(route, stream, state, "folded")
    for state in ("connecting", "sent", "queued by the engine", "retrying"):
        yield Case("embeddings", False, state)


CASES = tuple(cases())
WAY_OF = dict(zip(CASES, itertools.cycle(WAYS), strict=False))
MODEL = {
    "connecting": "deaf",
    "queued by the engine": "narrow",
    "queued by admission": "one",
    "paused": "fast",
    "retrying": "twice",
}
COUNTED_AS = {"queued by admission": "queued", "paused": "streaming"}
FREE = frozenset({"connecting", "queued by admission"})
"""Where no engine has anything of it, which is known exactly."""
FAULT = {"sent": "stall", "held": "role-wait=60"}


class House:
    def __init__(self, forebay: Forebay, engines: dict[str, Engine], deaf: cancel.DeafEngine) -> None:
        self.forebay = forebay
        self.engines = engines
        self.deaf = deaf
        self.before: dict[str, float] = {}

    def send(self, case: Case, name: str, model: str, fault: str = "", **fields: Any) -> socket.socket:
        path, content = ROUTES[case.route]
        body = {"model": model, **content}
        if case.route != "embeddings":
            body |= LONG | {"stream": case.stream}
        body |= fields
        sock = socket.socket()
        if case.state == "paused":
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        sock.settimeout(60)
        sock.connect(("127.0.0.1", self.forebay.port))
        headers = {"x_forebay_fault": fault} if fault else {}
        sock.sendall(raw_request(body, request_id=name, path=path, **headers))
        return sock

    def occupy(self, engine: str, model: str) -> socket.socket:
        """Something that takes the only place there is."""
        sock = connect(self.forebay.port)
        path, content = ROUTES["chat"]
        sock.sendall(raw_request({"model": model, **content, **LONG, "stream": True}, path=path))
        read_until(sock, b'"content":"')
        return sock

    def settled(self, name: str) -> dict[str, Any]:
        def look() -> dict[str, Any] | None:
            lines = (x for x in self.forebay.text.splitlines() if f'"{name}"' in x and x.startswith("{"))
            return next((json.loads(x) for x in lines), None)

        found = eventually(look)
        assert found is not None
        return found

    def idle(self) -> bool:
        metrics = self.forebay.metrics()
        names = ("forebay_requests_live", "forebay_engine_in_flight", "forebay_queue_requests", "forebay_client_conn")
        return not any(v for k, v in metrics.items() if k.startswith(names))

    def running(self) -> float:
        """Over all engines, as each of them says."""
        names = ("vllm:num_requests_running", "vllm:num_requests_waiting")
        return sum(e.metric(name) for e in self.engines.values() for name in names)


@pytest.fixture(scope="module")
def house() -> Iterator[House]:
    with contextlib.ExitStack() as cleanup:
        where: Path = cleanup.enter_context(folder())

        def engine(*options: str) -> Engine:
            return cleanup.enter_context(contextlib.closing(Engine(*options)))

        engines = {
            "main": engine(*models_of("main", "twice", "one", "folded-main")),
            "narrow": engine(*models_of("narrow", "folded-narrow"), "--max-num-seqs", "1"),
            "broken": engine("--model", "twice", "--fault", "error=500"),
            "fast": engine("--model", "fast", "--decode-rate", "500", "--max-model-len", "100000"),
        }
        deaf = cleanup.enter_context(contextlib.closing(cancel.DeafEngine()))
        patient = {"vip": 60.0, "normal": 60.0, "low": 60.0}
        config = config_of(
            where / "state",
            retries={"budget": 1.0},
            timeouts={"connect": 60.0},
            logging={"format": "json"},
            admission={"enabled": True, "ttft": patient, "wait": patient},
        )

        def entry(name: str, url: str, *models: str, **more: Any) -> dict[str, Any]:
            return {"name": name, "url": url, "models": models, "health_interval": 1.0, "kind": "vllm", **more}

        main, narrow = engines["main"].url, engines["narrow"].url
        slow = {"health_interval": 3600, "unhealthy_after": 100}
        config["engines"] = [
            entry("main", main, "main", "twice"),
            entry("one", main, "one", max_num_seqs=1),
            entry("narrow", narrow, "narrow"),
            entry("broken", engines["broken"].url, "twice"),
            entry("fast", engines["fast"].url, "fast"),
            entry("deaf", deaf.url, "deaf", **slow | {"kind": "openai"}),
            # The same engines, taken for ones that must be streamed from.
            entry("main-folded", main, "folded-main", kind="llamacpp"),
            entry("narrow-folded", narrow, "folded-narrow", kind="llamacpp"),
        ]
        forebay = cleanup.enter_context(contextlib.closing(Forebay(where, config)))
        eventually(lambda: forebay.metric('forebay_engine_healthy{engine="deaf"}'))
        deaf.deafen()
        yield House(forebay, engines, deaf)


def models_of(*names: str) -> tuple[str, ...]:
    return tuple(itertools.chain.from_iterable(("--model", name) for name in names))


def reach(house: House, case: Case, name: str, model: str, engine: Engine) -> socket.socket:
    """Send it, and wait until it is where it shall be."""
    more: dict[str, Any] = {}
    if case.state == "paused":
        more = {"n": 4, "logprobs": 5 if case.route == "completions" else True, "max_tokens": 50_000}
    sock = house.send(case, name, model, FAULT.get(case.state, ""), **more)
    match case.state:
        case "connecting":
            worker = house.forebay.worker
            eventually(lambda: any(c.raddr and c.raddr.port == house.deaf.port for c in worker.net_connections("tcp")))
        case "queued by the engine":
            eventually(lambda: engine.books()["waiting"])
        case "queued by admission":
            eventually(lambda: house.forebay.metric("forebay_queue_requests"))
        case "generating" if case.stream:
            read_until(sock, b'"content":"' if case.route == "chat" else b'"text":"')
        case "generating":
            eventually(lambda: engine.books()["running"] and (engine.record(name) or {}).get("tokens"))
        case "paused":
            until_nobody_reads_from(engine.port)
        case _:
            eventually(lambda: engine.record(name))
    return sock


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_engine_is_given_back_what_it_had(house: House, case: Case) -> None:
    way = WAY_OF[case]
    name = f"table-{CASES.index(case)}"
    engine = house.engines[{"narrow": "narrow", "fast": "fast"}.get(MODEL.get(case.state, ""), "main")]
    model = MODEL.get(case.state, "main")
    with contextlib.ExitStack() as others:
        if case.state == "queued by the engine":
            others.enter_context(contextlib.closing(house.occupy("narrow", "narrow")))
        elif case.state == "queued by admission":
            others.enter_context(contextlib.closing(house.occupy("main", "one")))
        elif case.state == "retrying":
            house.engines["main"].faults("stall")
            others.callback(house.engines["main"].faults)
        if case.how:
            house.forebay.metric("forebay_requests_live")
            sock = reach(house, case, name, f"folded-{model}", engine)
        else:
            sock = reach(house, case, name, model, engine)
        counted = f'forebay_cancels_total{{state="{expected_state(case)}"}}'
        before = house.forebay.metric(counted)
        WAYS[way](sock)
        line = house.settled(name)
        if case.state not in FREE:
            record = eventually(lambda: engine.record(name) if (engine.record(name) or {}).get("how") else None)
            assert record is not None and record["how"] == "aborted", record
        if way == "half-close":
            read_all(sock)
        sock.close()
        assert (line["outcome"], line["settled"]) == ("client_gone", "exact" if case.state in FREE else "estimated")
        assert house.forebay.metric(counted) == before + 1
        if case.state == "generating" and case.stream:
            assert line["tokens_out"] >= 1
        if case.state == "retrying" and house.engines["broken"].record(name) is not None:
            assert line["attempts"] == 2
    eventually(house.idle)
    eventually(lambda: house.running() == 0)


def expected_state(case: Case) -> str:
    if case.state == "generating" and case.stream:
        return "streaming"
    return COUNTED_AS.get(case.state, "dispatched")

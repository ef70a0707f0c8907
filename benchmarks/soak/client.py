"""A mix of requests, so many at a time, each answer held against what it must be.

    python -m benchmarks.soak.client --url http://127.0.0.1:8080 --requests 100000

Says `{"state": "progress", "done": n}` after each hundredth, and at the end how many of each kind went as they must.
"""

from __future__ import annotations

import argparse
import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass

import uvloop

from benchmarks.client import Answer, Client, chat, connect, say
from benchmarks.common import BENCH_KEY, MODEL

WRONG_KEY = "sk-wrong-0123456789abcdefghijklmnop"


@dataclass(frozen=True)
class Kind:
    """One sort of request: its share of the mix, its body, and what its answer must be."""

    name: str
    share: int
    body: Callable[[random.Random], tuple[bytes, int]]
    """(body, content events it asks for)."""
    right: Callable[[Answer, int], bool]
    key: str = BENCH_KEY
    leaves: bool = False
    """The client goes away, at a moment of its choice."""


def _stream(r: random.Random, least: int = 1, most: int = 24, **fields: object) -> tuple[bytes, int]:
    n = r.randint(least, most)
    return chat(MODEL, stream=True, max_tokens=n, **fields), n


def _whole(answer: Answer, events: int) -> bool:
    return answer.status == 200 and answer.done and answer.events == events and answer.failure is None


def _cut(answer: Answer, events: int) -> bool:
    """Half of the events, then no `[DONE]`: the gateway may still say what happened."""
    return answer.status == 200 and not answer.done and answer.events == events // 2


def _status(*wanted: int) -> Callable[[Answer, int], bool]:
    return lambda answer, _: answer.status in wanted and b'"error"' in answer.body


KINDS = (
    Kind("unary", 50, lambda r: (chat(MODEL), 0), lambda a, _: a.status == 200 and b"power plant" in a.body),
    Kind("stream", 25, _stream, _whole),
    Kind("leave", 10, lambda r: _stream(r, 20, 200), lambda a, _: True, leaves=True),
    Kind("cut", 3, lambda r: _stream(r, 4, 24, mock_fault="cut"), _cut),
    Kind("engine_error", 3, lambda r: (chat(MODEL, mock_fault="error"), 0), _status(500, 502, 503)),
    Kind("bad_json", 3, lambda r: (b'{"model": "mock", "messages": [', 0), _status(400)),
    Kind("unknown_model", 3, lambda r: (chat("no-such-model"), 0), _status(404)),
    Kind("wrong_key", 3, lambda r: (chat(MODEL), 0), _status(401), key=WRONG_KEY),
)


class Mix:
    """Closed loop: `width` requests under way, the next drawn when one ends."""

    def __init__(self, client: Client, requests: int, seed: int) -> None:
        self._client = client
        self._random = random.Random(seed)
        self._kinds = [kind for kind in KINDS for _ in range(kind.share)]
        self._left = requests
        self._of = requests
        self._open = 0
        self._step = max(1, requests // 100)
        self._done = 0
        self.finished = asyncio.Event()
        self.counts: dict[str, int] = dict.fromkeys((k.name for k in KINDS), 0)
        self.wrong: dict[str, int] = {}

    def start(self) -> None:
        if not self._left:
            if not self._open:
                self.finished.set()
            return
        self._left -= 1
        self._open += 1
        kind = self._random.choice(self._kinds)
        body, events = kind.body(self._random)
        answer = Answer(lambda a: self._ended(kind, events, a))
        self._client.post(body, answer, kind.key)
        if kind.leaves:
            self._arrange_leaving(kind, events, answer)

    def _arrange_leaving(self, kind: Kind, events: int, answer: Answer) -> None:
        """At once, after a moment, or after some events."""

        def leave() -> None:
            if answer.call is not None:
                answer.call.cancel()
                self._ended(kind, events, answer)

        loop = asyncio.get_running_loop()
        way = self._random.randrange(3)
        if way == 0:
            loop.call_soon(leave)
        elif way == 1:
            loop.call_later(self._random.random() * 0.02, leave)
        else:
            after = self._random.randint(1, events // 2)
            answer.on_content = lambda a: leave() if a.events == after else None

    def _ended(self, kind: Kind, events: int, answer: Answer) -> None:
        answer.on_content = None
        self.counts[kind.name] += 1
        if not kind.right(answer, events):
            why = f"{kind.name}: status {answer.status}, {answer.events} of {events} events"
            why += f", done {answer.done}, {answer.failure}"
            if len(self.wrong) < 50 or why in self.wrong:
                self.wrong[why] = self.wrong.get(why, 0) + 1
        self._open -= 1
        self._done += 1
        if self._done % self._step == 0:
            say(state="progress", done=self._done)
        asyncio.get_running_loop().call_soon(self.start)


async def _main(args: argparse.Namespace) -> None:
    async with connect(args.url, args.width * 4) as client:
        mix = Mix(client, args.requests, args.seed)
        for _ in range(min(args.width, args.requests)):
            mix.start()
        await mix.finished.wait()
        say(state="done", counts=mix.counts, wrong=mix.wrong)


def main() -> None:
    parser = argparse.ArgumentParser(description="A mix of requests.")
    parser.add_argument("--url", required=True)
    parser.add_argument("--requests", type=int, required=True)
    parser.add_argument("--width", type=int, default=64, help="requests under way at once")
    parser.add_argument("--seed", type=int, default=1)
    uvloop.run(_main(parser.parse_args()))


if __name__ == "__main__":
    main()

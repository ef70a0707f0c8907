"""Many streams at once, each gap between two content events recorded.

    python -m benchmarks.memory.client --url http://127.0.0.1:8080 --streams 8000 --events 40 --ramp 10

Says `{"state": "running"}` once every stream has its first event, and at the end what the gaps were.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
from array import array
from itertools import pairwise
from time import monotonic

import uvloop

from benchmarks.client import Answer, Client, chat, connect, say
from benchmarks.common import MODEL


class Fleet:
    """All streams: when their events came, and how they ended."""

    def __init__(self, client: Client, streams: int, events: int) -> None:
        self._client = client
        self._events = events
        self._times: dict[Answer, array[float]] = {}
        self._open = streams
        self._waiting = streams
        self.finished = asyncio.Event()
        self.bad: dict[str, int] = {}

    def start(self) -> None:
        answer = Answer(self._ended)
        answer.on_content = self._content
        self._times[answer] = array("d")
        self._client.post(chat(MODEL, stream=True, max_tokens=self._events), answer)

    def _content(self, answer: Answer) -> None:
        times = self._times[answer]
        if not times:
            self._waiting -= 1
            if not self._waiting:
                say(state="running")
        times.append(monotonic())

    def _ended(self, answer: Answer) -> None:
        if answer.status != 200 or not answer.done or answer.events != self._events:
            why = f"status {answer.status}, {answer.events} of {self._events} events, failure {answer.failure}"
            self.bad[why] = self.bad.get(why, 0) + 1
        self._open -= 1
        if not self._open:
            self.finished.set()

    def gaps(self) -> dict[str, float]:
        """Over all streams: the median of the medians, the largest gap, and the worst largest-to-median ratio. Gaps
        while other streams still start count too."""
        ratios, medians, largest = [], [], 0.0
        for times in self._times.values():
            own = [b - a for a, b in pairwise(times)]
            if own:
                median = statistics.median(own)
                medians.append(median)
                ratios.append(max(own) / max(median, 1e-6))
                largest = max(largest, *own)
        if not ratios:
            return {}
        return {
            "median_gap_s": statistics.median(medians),
            "largest_gap_s": largest,
            "worst_ratio": max(ratios),
            "median_ratio": statistics.median(ratios),
            "streams_over_5": sum(r > 5 for r in ratios),
        }


async def _main(args: argparse.Namespace) -> None:
    async with connect(args.url, args.streams) as client:
        fleet = Fleet(client, args.streams, args.events)
        loop = asyncio.get_running_loop()
        for i in range(args.streams):
            loop.call_later(i * args.ramp / args.streams, fleet.start)
        await fleet.finished.wait()
        say(state="done", bad=fleet.bad, **fleet.gaps())


def main() -> None:
    parser = argparse.ArgumentParser(description="Many streams at once.")
    parser.add_argument("--url", required=True)
    parser.add_argument("--streams", type=int, required=True)
    parser.add_argument("--events", type=int, default=40)
    parser.add_argument("--ramp", type=float, default=10.0, help="seconds over which the streams start")
    uvloop.run(_main(parser.parse_args()))


if __name__ == "__main__":
    main()

"""How much of prompts engines find cached, how much they could, and why they do not (`cache.prefix.watch`).

Every request of which the engine's usage came is counted: a look-up and a few additions. Some are compared with earlier
ones (`cache.prefix.watch`), in a thread: of each model and organisation the first `EAGER`, then one an interval.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from time import monotonic
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from msgspec.structs import replace

from forebay.api.openai import ChatBody, CompletionBody
from forebay.cache.prefix.watch import NOTHING, PrefixWatch, Seen
from forebay.config.cache_prefix import CacheControl
from forebay.config.cache_prefix import Prefix as Section
from forebay.config.placement import PlacementKind
from forebay.counters import Counter, counters
from forebay.errors import Outcome
from forebay.gateway.prefix_words import ENOUGH, IN_TURN, SILENT, UNMARKED, advice
from forebay.gateway.telemetry import counter_snapshot
from forebay.state.messages import FamilySnapshot, PrefixBreak, PrefixGroup, PrefixState

if TYPE_CHECKING:
    from forebay.gateway.app import Gateway
    from forebay.gateway.attempts import Attempts
    from forebay.gateway.handles import Handle
    from forebay.ledger.tokens import Tokens

log = logging.getLogger("forebay.prefix")

GROUPS: Final = 256
"""Models and organisations that are counted; the longest unused goes first."""
EAGER: Final = 32
"""Requests of one that are compared as they come."""
APART: Final = 0.02
"""Seconds between two comparisons, whatever for: they take some tenths of a millisecond each."""
LARGEST: Final = 1 << 18
"""Bytes of a prompt that is compared."""
QUIET: Final = 3_600.0
"""Seconds between two lines in the log about one model and organisation."""
_WAITING: Final = 8
_BREAKS: Final = 16
"""Of one model and organisation; what comes later is not kept apart."""
_NULL: Final = 4
_OK: Final = Outcome.OK
_VENDOR_LEAST: Final = 1_024
"""Tokens of a prefix that OpenAI and Anthropic cache at least."""
_VENDORS: Final = frozenset({"api.openai.com", "api.anthropic.com"})

Key = tuple[str, str]


class _Sums:
    """Of one window."""

    __slots__ = (
        "as_sent",
        "breaks",
        "cached",
        "compared",
        "compared_tokens",
        "could_be",
        "prompt",
        "reported",
        "requests",
    )

    def __init__(self) -> None:
        self.requests = self.prompt = self.reported = self.cached = 0
        self.compared = self.compared_tokens = self.as_sent = self.could_be = 0
        self.breaks: dict[tuple[str, str], PrefixBreak] = {}
        """`ago` is when it was seen, until it is shown."""


class _Books:
    """Of one model and organisation."""

    __slots__ = ("all", "before", "cached", "compared", "next_at", "now", "said_at", "until")

    def __init__(self, all_: Counter, cached: Counter, until: float) -> None:
        self.all, self.cached = all_, cached
        self.now, self.before = _Sums(), _Sums()
        self.until = until
        self.next_at = 0.0
        self.compared = 0
        self.said_at = float("-inf")


class PromptWatch:
    """Mutable state: the books, and how many prompts wait for the thread, which owns those that are kept."""

    def __init__(
        self,
        section: Section,
        gateway: Gateway,
        loop: asyncio.AbstractEventLoop,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._gateway = gateway
        self._clock = clock
        self._loop = loop
        self._books: OrderedDict[Key, _Books] = OrderedDict()
        self._watch = PrefixWatch(section.memory_bytes)
        self._thread = ThreadPoolExecutor(1, "forebay-prefix")
        self._waiting = 0
        self._next_at = 0.0
        self._tokens = counters(
            "forebay_prompt_cache_tokens",
            "Prompt tokens of engines that report a cache: all, and those cached; of the compared: as_sent, could_be.",
            "model",
            "kind",
        )
        self._broken = counters(
            "forebay_prompt_cache_breaks",
            "Compared prompts in which something varies before what is the same.",
            "model",
            "kind",
        )
        self._configure(section)

    @classmethod
    def reloaded(cls, before: PromptWatch | None, section: Section, gateway: Gateway) -> PromptWatch | None:
        """None where nothing is to be watched."""
        if not section.watch:
            if before is not None:
                before.close()
            return None
        if before is None:
            return cls(section, gateway, asyncio.get_running_loop())
        before._configure(section)
        return before

    def _configure(self, section: Section) -> None:
        self._section = section
        self._watch.most_bytes = section.memory_bytes

    def settled(self, x: Attempts, tokens: Tokens) -> None:
        """A request has ended, and its engine has said what it had: `tokens`."""
        usage = x.usage
        if usage is None or x.outcome is not _OK or not x.attempts or not x.front.route.streams:
            return
        caller = x.front.caller
        model = x.entry.target
        key = (model, caller.organisation if caller is not None else "-")
        books = self._books.get(key)
        now = self._clock()
        if books is None:
            books = self._begin(key, now)
        if now >= books.until:
            self._turn(books, now)
            self._books.move_to_end(key)
        prompt = tokens.prompt
        sums = books.now
        sums.requests += 1
        sums.prompt += prompt
        if usage.cached_tokens is not None:
            cached = tokens.cached
            sums.reported += prompt
            sums.cached += cached
            books.all.value += prompt
            books.cached.value += cached
        if now >= books.next_at and now >= self._next_at and self._waiting < _WAITING:
            self._offer(x, key, books, prompt, now)

    def _begin(self, key: Key, now: float) -> _Books:
        if len(self._books) >= GROUPS:
            self._books.popitem(last=False)
        model = key[0]
        series = self._tokens.series
        books = _Books(series(model, "all"), series(model, "cached"), now + self._section.window)
        self._books[key] = books
        return books

    def _turn(self, books: _Books, now: float) -> None:
        window = self._section.window
        books.before = books.now if now < books.until + window else _Sums()
        books.now = _Sums()
        books.until = now + window

    def _offer(self, x: Attempts, key: Key, books: _Books, prompt: int, now: float) -> None:
        body = x.body
        if isinstance(body, ChatBody):
            messages, tools = bytes(body.messages), bytes(body.tools)
        elif isinstance(body, CompletionBody):
            messages, tools = bytes(body.prompt), b""
        else:
            return
        if len(messages) + len(tools) > LARGEST:
            return
        books.compared += 1
        self._next_at = now + APART
        books.next_at = 0.0 if books.compared < EAGER else now + self._section.interval
        self._waiting += 1
        least = _least(self._gateway.fleet.handles.get(x.engine))
        self._thread.submit(self._work, key, messages, tools if len(tools) > _NULL else b"", prompt, least)

    def _work(self, key: Key, messages: bytes, tools: bytes, prompt: int, least: int) -> None:
        """In the thread."""
        seen: Seen | None = None
        try:
            seen = self._watch.look(key, messages, tools)
        except Exception:
            log.exception("a prompt for %s could not be compared", key[0])
        try:
            self._loop.call_soon_threadsafe(self._done, key, seen, prompt, least)
        except RuntimeError:  # the loop is closed
            return

    def _done(self, key: Key, seen: Seen | None, prompt: int, least: int) -> None:
        self._waiting -= 1
        books = self._books.get(key)
        if seen is None or books is None:
            return
        sums = books.now
        sums.compared += 1
        sums.compared_tokens += prompt
        if seen is NOTHING:
            return
        model, now = key[0], self._clock()
        as_sent, could_be = (_counted(found, prompt, least) for found in (seen.as_sent, seen.could_be))
        sums.as_sent += as_sent
        sums.could_be += could_be
        self._tokens.series(model, "as_sent").value += as_sent
        self._tokens.series(model, "could_be").value += could_be
        for one in seen.breaks:
            self._broken.series(model, one.kind).value += 1
            at = one.where, one.kind
            known = sums.breaks.get(at)
            if known is None and len(sums.breaks) >= _BREAKS:
                continue
            lost = round(one.lost * prompt)
            requests, before = (known.requests, known.lost_tokens) if known is not None else (0, 0)
            sums.breaks[at] = PrefixBreak(one.where, one.at, one.kind, one.shape, requests + 1, before + lost, now)
        if sums.compared >= ENOUGH and sums.compared % ENOUGH == 0:
            self._say(key, books)

    def _say(self, key: Key, books: _Books) -> None:
        now = self._clock()
        if now - books.said_at < QUIET:
            return
        found = advice(self._group(key, books, now))
        if found:
            books.said_at = now
            log.warning("prompts of %s for %s: %s", key[1], key[0], found)

    # --- for the admin process ---------------------------------------------------------------------------------------

    def state(self) -> PrefixState:
        now = self._clock()
        groups = [self._group(key, books, now) for key, books in self._books.items()]
        return PrefixState(True, tuple([group for group in groups if group.requests]))

    def _group(self, key: Key, books: _Books, now: float) -> PrefixGroup:
        if now >= books.until:
            self._turn(books, now)
        a, b = books.before, books.now
        breaks: dict[tuple[str, str], PrefixBreak] = dict(a.breaks)
        for at, one in b.breaks.items():
            older = breaks.get(at)
            if older is not None:
                requests, lost = older.requests + one.requests, older.lost_tokens + one.lost_tokens
                one = replace(one, requests=requests, lost_tokens=lost)
            breaks[at] = one
        shown = [replace(one, ago=now - one.ago) for one in breaks.values()]
        reported = a.reported + b.reported
        return PrefixGroup(
            model=key[0],
            organisation=key[1],
            requests=a.requests + b.requests,
            prompt_tokens=a.prompt + b.prompt,
            reported_tokens=reported,
            cached_tokens=a.cached + b.cached,
            compared=a.compared + b.compared,
            compared_tokens=a.compared_tokens + b.compared_tokens,
            as_sent_tokens=a.as_sent + b.as_sent,
            could_be_tokens=a.could_be + b.could_be,
            breaks=tuple(sorted(shown, key=lambda one: -one.lost_tokens)),
            engines=tuple(self._hints(key[0], reported)),
        )

    def _hints(self, model: str, reported: int) -> Iterable[str]:
        gateway = self._gateway
        handles = [handle for handle in gateway.fleet.handles.values() if model in handle.models]
        if not reported:
            yield SILENT
        told = [h.config.prompt_cache.cache_control for h in handles if h.adapter.kind == "anthropic"]
        if CacheControl.NO in told:
            yield UNMARKED
        turns = gateway.config.placement.policy is PlacementKind.ROUND_ROBIN and not gateway.config.admission.enabled
        if turns and len(handles) > 1:
            yield IN_TURN

    def snapshot(self) -> Iterable[FamilySnapshot]:
        yield counter_snapshot(self._tokens)
        yield counter_snapshot(self._broken)

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    def __repr__(self) -> str:
        return f"<PromptWatch {len(self._books)} books, {self._waiting} waiting>"


def _counted(found: float, prompt: int, least: int) -> int:
    """Tokens that a cache would find of a prompt: none of a prefix it is not kept of."""
    tokens = round(found * prompt)
    return tokens if tokens >= least else 0


def _least(handle: Handle | None) -> int:
    if handle is not None and (handle.adapter.kind == "anthropic" or urlsplit(handle.config.url).hostname in _VENDORS):
        return _VENDOR_LEAST
    return 0

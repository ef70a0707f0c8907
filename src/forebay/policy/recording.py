"""An admission that writes down every call and what came of it, so that a run can be played again.

`Recording` is an `Admission`; whoever wants no recording makes the latter, and pays nothing. A call is written after it
has returned (or raised), as a struct that holds its arguments as they were before it, its time, and what it gave. JSON
keeps them exactly: floats in the shortest form that reads back the same, infinite ones as strings.

Of a request there is what the policy knows of it and no more: no text, no key, and of its tenant what `hide` makes of
the name. Models and engines have the names of the configuration.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import Any, Final, Protocol, TypeVar

import msgspec

from forebay.policy.admission import Admission
from forebay.policy.asks import Ask, Class
from forebay.policy.decisions import Admit, Decision, Quote, Wait
from forebay.policy.facts import Facts, Report
from forebay.policy.rules import Rules

FORMAT: Final = 1
"""Goes up when a recording can no longer be read as the one before."""

T = TypeVar("T")
Number = float | str
"""JSON has no infinite numbers: these are "inf", "-inf" and "nan"."""


def number(x: float) -> Number:
    return x if -inf < x < inf else str(x)


def plain(rules: Rules | Facts | Report) -> dict[str, Any]:
    """As JSON can hold it."""
    found: dict[str, Any] = _finite(msgspec.to_builtins(rules))
    return found


def _finite(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {name: _finite(value) for name, value in tree.items()}
    return number(tree) if isinstance(tree, float) else tree


def typed(tree: Mapping[str, Any], kind: type[T]) -> T:
    """What `plain` was made of. Raises msgspec.ValidationError."""
    return msgspec.convert(tree, kind, strict=False)  # which takes "inf" for a number


# --- what came of a call ---------------------------------------------------------------------------------------------


class Admitted(msgspec.Struct, tag_field="decision", tag="admit", gc=False, frozen=True):
    engine: str
    bound: Number


class Waits(msgspec.Struct, tag_field="decision", tag="wait", gc=False, frozen=True):
    position: int
    expected: Number


class Refused(msgspec.Struct, tag_field="decision", tag="refuse", gc=False, frozen=True, omit_defaults=True):
    reason: str
    retry_after: Number
    waited: bool = False
    expected: Number = "inf"


class Quoted(msgspec.Struct, gc=False, frozen=True):
    engine: str
    ttft: Number
    now: bool


Told = Admitted | Waits | Refused


def told(decision: Decision) -> Told:
    if isinstance(decision, Admit):
        return Admitted(decision.engine, number(decision.bound))
    if isinstance(decision, Wait):
        return Waits(decision.position, number(decision.expected))
    return Refused(decision.reason, number(decision.retry_after), decision.waited, number(decision.expected))


class Asked(msgspec.Struct, gc=False, frozen=True, omit_defaults=True):
    """An `Ask` as its driver made it."""

    key: int
    prompt_tokens: int
    arrival: float
    cls: Class = msgspec.field(default=Class.NORMAL, name="class")
    tenant: str = ""
    model: str = ""
    max_tokens: int | None = None
    n: int = 1
    deadline: Number = "inf"
    ttft_slo: Number = "inf"
    engines: tuple[str, ...] = ()
    anonymous: bool = False
    streams: bool = True
    prefix: tuple[int, ...] = ()
    block_tokens: float = 0.0
    session: int = 0

    @classmethod
    def of(cls, ask: Ask, hide: Callable[[str], str]) -> Asked:
        return cls(
            key=ask.key,
            prompt_tokens=ask.prompt_tokens,
            arrival=ask.arrival,
            cls=ask.cls,
            tenant=hide(ask.tenant),
            model=ask.model,
            max_tokens=ask.max_tokens,
            n=ask.n,
            deadline=number(ask.deadline),
            ttft_slo=number(ask.ttft_slo),
            engines=ask.engines,
            anonymous=ask.anonymous,
            streams=ask.streams,
            prefix=tuple(ask.prefix),
            block_tokens=ask.block_tokens,
            session=ask.session,
        )

    def ask(self) -> Ask:
        """A new one."""
        return Ask(
            self.key,
            prompt_tokens=self.prompt_tokens,
            arrival=self.arrival,
            cls=self.cls,
            tenant=self.tenant,
            model=self.model,
            max_tokens=self.max_tokens,
            n=self.n,
            deadline=float(self.deadline),
            ttft_slo=float(self.ttft_slo),
            engines=self.engines,
            anonymous=self.anonymous,
            streams=self.streams,
            prefix=self.prefix,
            block_tokens=self.block_tokens,
            session=self.session,
        )


# --- calls -----------------------------------------------------------------------------------------------------------


class Call(msgspec.Struct, tag_field="call", kw_only=True, omit_defaults=True):
    at: float
    """Seconds, the policy's `now`."""
    raised: str | None = None
    """The exception's type, where the call ended in one."""


class Begin(Call, tag="begin"):
    """The first line: how the admission was made."""

    format: int
    forebay: str
    """Version."""
    time: str
    """The time of day at `at`, ISO 8601."""
    rules: dict[str, Any]
    engines: dict[str, dict[str, Any]]


class EngineHere(Call, tag="engine_here"):
    engine: str
    facts: dict[str, Any]


class EngineGone(Call, tag="engine_gone"):
    engine: str
    gave: list[int] = []
    """Keys of the asks on it."""


class Offer(Call, tag="offer"):
    ask: Asked
    gave: Told | None = None


class AskQuote(Call, tag="quote"):
    ask: Asked
    gave: Quoted | None = None


class Due(Call, tag="due"):
    gave: list[tuple[int, Told]] = []
    """By the ask's key, in order."""


class FirstToken(Call, tag="first_token"):
    key: int


class Split(Call, tag="split"):
    """Its prompt is computed on another engine."""

    key: int
    prefill: str


class Tokens(Call, tag="tokens"):
    counts: dict[int, int]


class End(Call, tag="end"):
    key: int
    tokens: int = 0
    whole: bool = True
    cached: int | None = None


class Ease(Call, tag="ease"):
    engine: str
    share: float


class CacheLost(Call, tag="cache_lost"):
    engine: str
    prefix: tuple[int, ...]
    keep: int


class CacheCleared(Call, tag="cache_cleared"):
    engine: str


class Reported(Call, tag="report"):
    engine: str
    report: dict[str, Any]


class Configure(Call, tag="configure"):
    rules: dict[str, Any]
    gave: list[tuple[int, Told]] = []


class Stop(msgspec.Struct, tag_field="call", tag="stop"):
    """The last line: the recording ends, for a reason. `calls`: lines before it; `crc`: CRC-32 of their bytes."""

    why: str
    calls: int
    crc: int


Line = (
    Begin
    | EngineHere
    | EngineGone
    | Offer
    | AskQuote
    | Due
    | FirstToken
    | Split
    | Tokens
    | End
    | Ease
    | CacheLost
    | CacheCleared
    | Reported
    | Configure
    | Stop
)


class Sink(Protocol):
    """Takes calls in order. `open`: whether it still does; `write` never raises."""

    @property
    def open(self) -> bool: ...

    def write(self, call: Call) -> None: ...


class Recording(Admission):
    """Mutable state beside the admission's: whether a call is under way, whose own calls are its own affair.

    `hide`: what is written of a tenant's name; two names must not become the same. `time`: the time of day at `at`.
    """

    def __init__(
        self,
        rules: Rules,
        engines: Mapping[str, Facts],
        sink: Sink,
        hide: Callable[[str], str],
        *,
        at: float,
        time: str,
        version: str,
    ) -> None:
        super().__init__(rules, engines)
        self._sink = sink
        self._hide = hide
        self._inside = False
        known = {name: plain(facts) for name, facts in engines.items()}
        sink.write(Begin(at=at, format=FORMAT, forebay=version, time=time, rules=plain(rules), engines=known))

    def _silent(self) -> bool:
        return self._inside or not self._sink.open

    def _record(self, call: Any, act: Callable[..., T], *args: Any, **named: Any) -> T:
        self._inside = True
        try:
            gave = act(*args, **named)
        except Exception as e:
            call.raised = type(e).__name__
            raise
        else:
            if gave is not None:
                call.gave = _shown(gave)
            return gave
        finally:
            self._inside = False
            self._sink.write(call)

    def quote(self, ask: Ask, now: float) -> Quote:
        if self._silent():
            return super().quote(ask, now)
        return self._record(AskQuote(at=now, ask=Asked.of(ask, self._hide)), super().quote, ask, now)

    def offer(self, ask: Ask, now: float) -> Decision:
        if self._silent():
            return super().offer(ask, now)
        return self._record(Offer(at=now, ask=Asked.of(ask, self._hide)), super().offer, ask, now)

    def due(self, now: float) -> list[tuple[Ask, Decision]]:
        if self._silent():
            return super().due(now)
        return self._record(Due(at=now), super().due, now)

    def on_first_token(self, ask: Ask, now: float) -> None:
        if self._silent():
            return super().on_first_token(ask, now)
        return self._record(FirstToken(at=now, key=ask.key), super().on_first_token, ask, now)

    def on_split(self, ask: Ask, prefill: str, now: float) -> None:
        if self._silent():
            return super().on_split(ask, prefill, now)
        return self._record(Split(at=now, key=ask.key, prefill=prefill), super().on_split, ask, prefill, now)

    def on_tokens(self, counts: Mapping[int, int], now: float) -> None:
        if self._silent():
            return super().on_tokens(counts, now)
        return self._record(Tokens(at=now, counts=dict(counts)), super().on_tokens, counts, now)

    def produced(self, ask: Ask, tokens: int, now: float) -> None:
        if self._silent():
            return super().produced(ask, tokens, now)
        return self._record(Tokens(at=now, counts={ask.key: tokens}), super().produced, ask, tokens, now)

    def on_end(
        self, ask: Ask, now: float, *, tokens: int = 0, whole: bool = True, cached_tokens: int | None = None
    ) -> None:
        act = super().on_end
        if self._silent():
            return act(ask, now, tokens=tokens, whole=whole, cached_tokens=cached_tokens)
        call = End(at=now, key=ask.key, tokens=tokens, whole=whole, cached=cached_tokens)
        return self._record(call, act, ask, now, tokens=tokens, whole=whole, cached_tokens=cached_tokens)

    def ease(self, engine: str, share: float, now: float) -> None:
        if self._silent() or (books := self.books.get(engine)) is None or books.share == share:
            return super().ease(engine, share, now)
        return self._record(Ease(at=now, engine=engine, share=share), super().ease, engine, share, now)

    def cache_lost(self, engine: str, numbers: Sequence[int], keep: int, now: float) -> None:
        if self._silent():
            return super().cache_lost(engine, numbers, keep, now)
        call = CacheLost(at=now, engine=engine, prefix=tuple(numbers), keep=keep)
        return self._record(call, super().cache_lost, engine, numbers, keep, now)

    def cache_cleared(self, engine: str, now: float) -> None:
        if self._silent():
            return super().cache_cleared(engine, now)
        return self._record(CacheCleared(at=now, engine=engine), super().cache_cleared, engine, now)

    def on_report(self, engine: str, report: Report, now: float) -> None:
        if self._silent():
            return super().on_report(engine, report, now)
        return self._record(
            Reported(at=now, engine=engine, report=plain(report)), super().on_report, engine, report, now
        )

    def engine_gone(self, engine: str, now: float) -> list[Ask]:
        if self._silent():
            return super().engine_gone(engine, now)
        return self._record(EngineGone(at=now, engine=engine), super().engine_gone, engine, now)

    def engine_here(self, engine: str, facts: Facts, now: float) -> None:
        if self._silent():
            return super().engine_here(engine, facts, now)
        call = EngineHere(at=now, engine=engine, facts=plain(facts))
        return self._record(call, super().engine_here, engine, facts, now)

    def configure(self, rules: Rules, now: float) -> list[tuple[Ask, Decision]]:
        if self._silent():
            return super().configure(rules, now)
        return self._record(Configure(at=now, rules=plain(rules)), super().configure, rules, now)


def _shown(gave: Any) -> Any:
    if isinstance(gave, Quote):
        return Quoted(gave.engine, number(gave.ttft), gave.now)
    if isinstance(gave, list):
        return [one.key if isinstance(one, Ask) else (one[0].key, told(one[1])) for one in gave]
    return told(gave)

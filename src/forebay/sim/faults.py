"""Faults an engine can be told to have, and which request gets which.

A fault is written `KIND[=ARG][@SHARE]`; several may be in force, and the first one that is due takes the request.
Shares are exact, not drawn: @0.25 takes every fourth request. Nothing here touches a socket; `faulty.py` does.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from types import MappingProxyType
from typing import Any, Final

MAX_FAULTS: Final = 64
MAX_MEGABYTES: Final = 1024
FAULT_HEADER: Final = b"x-forebay-fault"


class BadFault(ValueError):
    """Names what was given and what is allowed."""


class Kind(Enum):
    """The value is the word on the command line."""

    ERROR = "error"
    REFUSE = "refuse"
    RESET = "reset"
    STALL = "stall"
    STALL_AFTER = "stall-after"
    CUT = "cut"
    RESET_AFTER = "reset-after"
    ERROR_EVENT = "error-event"
    GARBAGE = "garbage"
    SHORT_LENGTH = "short-length"
    LONG_LENGTH = "long-length"
    HUGE_ERROR = "huge-error"
    SLOW_BYTES = "slow-bytes"
    GZIP = "gzip"
    OVERLOAD_503 = "overload503"
    OVERLOAD_429 = "overload429"
    SSE_CRLF = "sse-crlf"
    SSE_CR = "sse-cr"
    SPLIT_UTF8 = "split-utf8"
    TOOL_WHOLE = "tool-whole"
    TOOL_NO_ID = "tool-no-id"
    TOOL_EMPTY = "tool-empty"
    TOOL_FINISH = "tool-finish"
    NO_USAGE = "no-usage"
    ROLE_WAIT = "role-wait"
    WRONG_MODEL = "wrong-model"
    AFTER_DONE = "after-done"
    HTML = "html"
    CLOSE_IDLE = "close-idle"
    RESTART = "restart"
    KV_SIZE = "kv-size"
    CLEAR_CACHE = "clear-cache"
    OTHER_METRICS = "other-metrics"
    HTML_METRICS = "html-metrics"
    DEAF = "deaf"


INSTANT: Final = frozenset({Kind.REFUSE, Kind.RESTART, Kind.KV_SIZE, Kind.CLEAR_CACHE})
"""What happens once, when it is asked for."""
STANDING: Final = frozenset({Kind.OTHER_METRICS, Kind.HTML_METRICS, Kind.DEAF})
"""What lasts while it is in force, whatever is asked."""


@dataclass(frozen=True, slots=True)
class _Shape:
    text: str
    low: float = 0
    high: float = 0
    default: float | None = None
    """None: the argument must be given."""
    takes: bool = True
    whole: bool = True


SHAPES: Final[Mapping[Kind, _Shape]] = MappingProxyType(
    {
        Kind.ERROR: _Shape("answer with this status (error=503:{...} also gives the body)", 400, 599, 500),
        Kind.REFUSE: _Shape("refuse connections for so many seconds, from now", 0.001, 3600, 5, whole=False),
        Kind.RESET: _Shape("reset the connection before the head", takes=False),
        Kind.STALL: _Shape(
            "nothing before so many seconds have passed; without a number, never", 0, 86_400, math.inf, whole=False
        ),
        Kind.STALL_AFTER: _Shape("nothing more after so many tokens", 0, 1_000_000),
        Kind.CUT: _Shape("close after so many tokens", 0, 1_000_000),
        Kind.RESET_AFTER: _Shape("reset after so many tokens", 0, 1_000_000),
        Kind.ERROR_EVENT: _Shape("an error event after so many tokens, then [DONE]", 0, 1_000_000),
        Kind.GARBAGE: _Shape("bytes that are no HTTP", takes=False),
        Kind.SHORT_LENGTH: _Shape("Content-Length is so many bytes less than the body", 1, 1_000_000, 10),
        Kind.LONG_LENGTH: _Shape("Content-Length is so many bytes more than the body, then close", 1, 1_000_000, 10),
        Kind.HUGE_ERROR: _Shape("a 500 with a body of so many MB", 1, MAX_MEGABYTES, 100),
        Kind.SLOW_BYTES: _Shape("one byte at a time, so many milliseconds apart", 0, 60_000, 1, whole=False),
        Kind.GZIP: _Shape("a gzip body nobody asked for", takes=False),
        Kind.OVERLOAD_503: _Shape("503 as of a full queue", takes=False),
        Kind.OVERLOAD_429: _Shape("429 with this Retry-After in seconds", 0, 86_400, 1),
        Kind.SSE_CRLF: _Shape("event lines end in CRLF", takes=False),
        Kind.SSE_CR: _Shape("event lines end in CR", takes=False),
        Kind.SPLIT_UTF8: _Shape("words beyond ASCII, cut inside their characters", takes=False),
        Kind.TOOL_WHOLE: _Shape("a whole tool call in one delta", takes=False),
        Kind.TOOL_NO_ID: _Shape("tool arguments without the call's id", takes=False),
        Kind.TOOL_EMPTY: _Shape("a tool call whose arguments are empty", takes=False),
        Kind.TOOL_FINISH: _Shape("content and finish_reason in the delta of the tool call", takes=False),
        Kind.NO_USAGE: _Shape("usage left out, in streams and whole answers", takes=False),
        Kind.ROLE_WAIT: _Shape("the role chunk at once, then so many seconds of nothing", 0, 86_400, whole=False),
        Kind.WRONG_MODEL: _Shape("the answer names a model nobody asked for", takes=False),
        Kind.AFTER_DONE: _Shape("so many chunks after [DONE]", 1, 1_000_000, 1),
        Kind.HTML: _Shape("an HTML page with this status", 200, 599, 200),
        Kind.CLOSE_IDLE: _Shape("the connection closes after the answer, which does not say so", takes=False),
        Kind.RESTART: _Shape(
            "die now, be down for so many seconds, come back with an empty cache", 0, 3600, 0, whole=False
        ),
        Kind.KV_SIZE: _Shape("restart now with a KV cache of so many tokens", 1, 1e12),
        Kind.CLEAR_CACHE: _Shape("forget the prefix cache now, if no request is in it", takes=False),
        Kind.OTHER_METRICS: _Shape("the metrics page is another engine's", takes=False),
        Kind.HTML_METRICS: _Shape("the metrics page is HTML", takes=False),
        Kind.DEAF: _Shape("connections are accepted and no request is answered, but those of /control", takes=False),
    }
)


@dataclass(frozen=True, slots=True)
class Fault:
    kind: Kind
    arg: float = 0
    share: float = 1.0
    count: int | None = None
    """Requests it still takes; None: no end."""
    body: str = ""

    def as_json(self) -> dict[str, Any]:
        out: dict[str, Any] = {"kind": self.kind.value}
        if SHAPES[self.kind].takes:
            out["arg"] = None if math.isinf(self.arg) else self.arg
        if self.body:
            out["body"] = self.body
        return {**out, "share": self.share, "count": self.count}

    def __repr__(self) -> str:
        arg = f"={self.arg:g}" if SHAPES[self.kind].takes else ""
        return f"<Fault {self.kind.value}{arg}@{self.share:g}{'' if self.count is None else f' x{self.count}'}>"


def _kind(word: Any) -> Kind:
    try:
        return Kind(word)
    except ValueError:
        raise BadFault(f"fault kind {str(word)[:40]!r} is unknown; known: {', '.join(k.value for k in Kind)}") from None


def make(word: Any, arg: Any = None, share: Any = 1.0, count: Any = None, body: str = "") -> Fault:
    """A checked fault. Raises BadFault."""
    kind = _kind(word)
    shape = SHAPES[kind]
    if not shape.takes:
        if arg is not None:
            raise BadFault(f"fault '{kind.value}' takes no argument, so not {str(arg)[:40]!r}")
        value = 0.0
    elif arg is None:
        if shape.default is None:
            raise BadFault(f"fault '{kind.value}' needs an argument: {kind.value}=NUMBER ({shape.text})")
        value = shape.default
    else:
        try:
            value = float(arg)
        except (TypeError, ValueError):
            raise BadFault(f"fault '{kind.value}': the argument must be a number, not {str(arg)[:40]!r}") from None
        if not shape.low <= value <= shape.high or (shape.whole and value != int(value)):
            noun = "a whole number" if shape.whole else "a number"
            raise BadFault(f"fault '{kind.value}': the argument must be {noun} from {shape.low:g} to {shape.high:g}")
    if isinstance(share, bool) or not isinstance(share, (int, float)) or not 0 < share <= 1:
        raise BadFault(f"fault '{kind.value}': the share must be over 0 and at most 1, not {str(share)[:40]!r}")
    if count is not None and (isinstance(count, bool) or not isinstance(count, int) or count < 1):
        raise BadFault(f"fault '{kind.value}': count must be a whole number from 1, not {str(count)[:40]!r}")
    if body and kind is not Kind.ERROR:
        raise BadFault(f"fault '{kind.value}' takes no body")
    return Fault(kind, value, float(share), count, body)


def parse(text: str) -> Fault:
    """`KIND[=ARG][@SHARE]`; for `error` ARG may be STATUS:BODY. Raises BadFault."""
    head, at, tail = text.rpartition("@")
    share: Any = 1.0
    if at:
        try:
            share = float(tail)
        except ValueError:
            raise BadFault(f"fault {text[:60]!r}: the share after @ must be a number") from None
    else:
        head = text
    word, equals, arg = head.partition("=")
    body = ""
    if word == Kind.ERROR.value:
        arg, _, body = arg.partition(":")
    return make(word.strip(), arg if equals else None, share, None, body)


def from_json(value: Any) -> list[Fault]:
    """A list of strings or of {"kind", "arg", "share", "count", "body"}. Raises BadFault."""
    if not isinstance(value, list):
        raise BadFault("the body must be a JSON list of faults")
    if len(value) > MAX_FAULTS:
        raise BadFault(f"at most {MAX_FAULTS} faults can be in force, not {len(value)}")
    out = []
    for i, one in enumerate(value):
        if isinstance(one, str):
            out.append(parse(one))
        elif isinstance(one, dict):
            unknown = sorted(set(one) - {"kind", "arg", "share", "count", "body"})
            if unknown:
                raise BadFault(f"fault {i}: unknown key {str(unknown[0])[:40]!r}; known: kind, arg, share, count, body")
            body = one.get("body", "")
            if not isinstance(body, str):
                raise BadFault(f"fault {i}: body must be a string")
            out.append(make(one.get("kind"), one.get("arg"), one.get("share", 1.0), one.get("count"), body))
        else:
            raise BadFault(f"fault {i}: must be a string or an object")
    return out


class FaultBook:
    """The faults in force, each with the fraction of a request it has saved up."""

    def __init__(self, faults: list[Fault]) -> None:
        self.faults: list[Fault] = []
        self._saved: list[float] = []
        self.replace(faults)

    def replace(self, faults: list[Fault]) -> None:
        """Raises BadFault where there are too many."""
        if len(faults) > MAX_FAULTS:
            raise BadFault(f"at most {MAX_FAULTS} faults can be in force, not {len(faults)}")
        self.faults = list(faults)
        self._saved = [0.0] * len(faults)

    def holds(self, kind: Kind) -> bool:
        """A standing fault is in force."""
        return any(f.kind is kind for f in self.faults) if self.faults else False

    def draw(self) -> Fault | None:
        """The fault of the next request; never one that is not a request's own."""
        for i, fault in enumerate(self.faults):
            if fault.kind in INSTANT or fault.kind in STANDING:
                continue
            saved = self._saved[i] + fault.share
            if saved < 1.0 - 1e-9:
                self._saved[i] = saved
                continue
            self._saved[i] = saved - 1.0
            if fault.count is not None:
                if fault.count == 1:
                    del self.faults[i], self._saved[i]
                else:
                    self.faults[i] = replace(fault, count=fault.count - 1)
            return fault
        return None

    def __repr__(self) -> str:
        return f"<FaultBook {self.faults}>"


@dataclass(slots=True)
class Record:
    """One request in the engine's books. Times are monotonic seconds."""

    id: str
    path: str
    started: float
    fault: str | None = None
    ended: float | None = None
    how: str | None = None
    """"finished", "aborted" (the client left), "rejected" (4xx, 503) or "faulted" (ended by a fault)."""
    tokens: int = 0

    def as_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


class Books:
    """Counters of all requests, and records of the last `keep`. started = finished + aborted + rejected + faulted +
    open, at every instant."""

    def __init__(self, keep: int = 4096) -> None:
        self.started = 0
        self.ended: dict[str, int] = {"finished": 0, "aborted": 0, "rejected": 0, "faulted": 0}
        self.records: deque[Record] = deque(maxlen=keep)
        self.on_idle: Callable[[], None] | None = None
        """Called when the last open request ends."""

    @property
    def busy(self) -> int:
        """Requests that have not ended."""
        return self.started - sum(self.ended.values())

    def open(self, request_id: str, path: str, fault: Fault | None, now: float) -> Record:
        self.started += 1
        record = Record(request_id, path, now, fault.kind.value if fault is not None else None)
        self.records.append(record)
        return record

    def close(self, record: Record, how: str, now: float) -> bool:
        """The first close wins; False for a later one."""
        if record.ended is not None:
            return False
        record.ended = now
        record.how = how
        self.ended[how] += 1
        if self.on_idle is not None and not self.busy:
            self.on_idle()
        return True

    def __repr__(self) -> str:
        return f"<Books {self.started} started, {self.ended}>"

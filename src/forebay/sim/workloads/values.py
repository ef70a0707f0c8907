"""Values of a workload's specification: numbers, durations, distributions, lists; and the errors that name the key."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from types import MappingProxyType
from typing import Final, NoReturn, TypeVar

from forebay.errors import shown
from forebay.sim.workloads.distributions import Cdf, Constant, Distribution, Exponential, Geometric, Lognormal, Uniform
from forebay.sim.workloads.errors import WorkloadError

T = TypeVar("T")
_DURATION: Final = re.compile(r"([0-9.eE+-]+?)(ms|s|m|h|d|)")
_UNITS: Final = MappingProxyType({"": 1.0, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0})
_EXACT: Final = 1 << 53
_CALL: Final = re.compile(r"([a-z]+)\((.*)\)", re.DOTALL)
DISTRIBUTIONS: Final = "N, uniform(LOW;HIGH), lognormal(MEDIAN;SIGMA[;MOST]), exp(MEAN), geometric(MEAN), cdf(FILE)"


class Settings:
    """The keys of one specification, taken one by one; those that nobody took are errors."""

    __slots__ = ("_given", "_left", "_taken", "spec")

    def __init__(self, spec: str, given: dict[str, str]) -> None:
        self.spec = spec
        self._given = tuple(given)
        self._left = dict(given)
        self._taken: list[str] = []

    def take(self, key: str, read: Callable[[str], T]) -> T | None:
        """The key's value, None where it is not given. Raises WorkloadError where `read` raises ValueError."""
        self._taken.append(key)
        text = self._left.pop(key, None)
        if text is None:
            return None
        try:
            return read(text)
        except ValueError as e:
            self.wrong(key, str(e))

    def or_else(self, key: str, read: Callable[[str], T], default: T) -> T:
        found = self.take(key, read)
        return default if found is None else found

    def need(self, key: str, read: Callable[[str], T]) -> T:
        """Raises WorkloadError where it is not given."""
        found = self.take(key, read)
        if found is None:
            given = ", ".join(shown(other, 30) for other in self._given)
            self.wrong(key, f"is missing; given are {given or 'no keys'}")
        return found

    def has(self, key: str) -> bool:
        return key in self._left

    def made(self, make: Callable[[], T]) -> T:
        """What the taken values make; its ValueError, which names what is wrong, becomes a WorkloadError."""
        try:
            return make()
        except ValueError as e:
            raise WorkloadError(str(e), file=self.spec) from None

    def wrong(self, key: str, problem: str) -> NoReturn:
        raise WorkloadError(f"{key}: {problem}", file=self.spec)

    def done(self, kind: str) -> None:
        """Raises WorkloadError for keys that were not taken."""
        if self._left:
            unknown = ", ".join(shown(key, 30) for key in self._left)
            allowed = ", ".join(sorted(set(self._taken)))
            raise WorkloadError(f"{kind} has no {unknown}; allowed are {allowed}", file=self.spec)


def split(whole: str, separator: str) -> list[str]:
    """At the separators outside of parentheses and double quotes. Raises ValueError for one that is not closed."""
    parts: list[str] = []
    depth = begin = i = 0
    quoted = False
    while i < len(whole):
        char = whole[i]
        if char == '"':
            quoted = not quoted
        elif not quoted and char == "(":
            depth += 1
        elif not quoted and char == ")":
            depth -= 1
            if depth < 0:
                raise ValueError("a ) without a (")
        elif not quoted and depth == 0 and whole.startswith(separator, i):
            parts.append(whole[begin:i])
            i += len(separator)
            begin = i
            continue
        i += 1
    if quoted or depth:
        raise ValueError('a " that is not closed' if quoted else "a ( that is not closed")
    return [*parts, whole[begin:]]


def text(value: str) -> str:
    """Without the double quotes or parentheses around it."""
    for left, right in ('""', "()"):
        if len(value) >= 2 and value[0] == left and value[-1] == right:
            return value[1:-1]
    return value


def number(value: str) -> float:
    try:
        x = float(value)
    except ValueError:
        x = math.nan
    if not math.isfinite(x):
        raise ValueError(f"a number is wanted, not '{shown(value)}'")
    return x


def integer(value: str) -> int:
    x = number(value)
    if x != int(x) or abs(x) > _EXACT:
        raise ValueError(f"a whole number is wanted, not '{shown(value)}'")
    return int(x)


def duration(value: str) -> float:
    """Seconds; with a unit ms, s, m, h or d."""
    match = _DURATION.fullmatch(value)
    if match is None:
        raise ValueError(f"a duration is wanted, such as 90, 500ms, 10m or 24h, not '{shown(value)}'")
    seconds = number(match[1]) * _UNITS[match[2]]
    if seconds < 0:
        raise ValueError(f"a duration is at least 0, not '{shown(value)}'")
    return seconds


def choice(*allowed: str) -> Callable[[str], str]:
    def read(value: str) -> str:
        if value not in allowed:
            raise ValueError(f"'{shown(value)}' is unknown; allowed are {', '.join(allowed)}")
        return value

    return read


def switch(yes: str, no: str) -> Callable[[str], bool]:
    read = choice(yes, no)
    return lambda value: read(value) == yes


def numbers(value: str) -> tuple[float, ...]:
    """`(1;2;3)`."""
    return tuple(number(part.strip()) for part in split(text(value), ";"))


def weights(value: str) -> dict[str, float]:
    """`(vip=1;low=2)`."""
    out: dict[str, float] = {}
    for part in split(text(value), ";"):
        name, equals, amount = part.partition("=")
        name = name.strip()
        if not equals or not name or name in out:
            raise ValueError(f"'{shown(part)}' is wrong; wanted are names, each once, with a number: (a=1;b=2)")
        out[name] = number(amount.strip())
    return out


def call(value: str) -> tuple[str, list[str]]:
    """`name(a;b)` as its name and its arguments; without parentheses, no name and itself."""
    match = _CALL.fullmatch(value)
    if match is None:
        return "", [value]
    return match[1], [part.strip() for part in split(match[2], ";")]


def times(value: str) -> Distribution:
    """A distribution of durations. Raises ValueError for what is none, and WorkloadError for a file that is none."""
    return _distribution(value, duration)


def counts(value: str) -> Distribution:
    """A distribution of tokens, or of what else is counted. Raises as `times` does."""
    return _distribution(value, _count)


def _count(value: str) -> float:
    x = number(value)
    if x < 0:
        raise ValueError(f"a number of at least 0 is wanted, not '{shown(value)}'")
    return x


def _distribution(value: str, read: Callable[[str], float]) -> Distribution:
    name, arguments = call(value)
    makers: dict[str, tuple[Callable[..., Distribution], int, int]] = {
        "": (Constant, 1, 1),
        "uniform": (Uniform, 2, 2),
        "lognormal": (Lognormal, 2, 3),
        "exp": (Exponential, 1, 1),
        "geometric": (Geometric, 1, 1),
        "cdf": (Cdf.read, 1, 1),
    }
    known = makers.get(name)
    if known is None or not known[1] <= len(arguments) <= known[2]:
        raise ValueError(f"'{shown(value)}' is no distribution; allowed are {DISTRIBUTIONS}")
    make = known[0]
    return make(text(arguments[0])) if name == "cdf" else make(*map(read, arguments))

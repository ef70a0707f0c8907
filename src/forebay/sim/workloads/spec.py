"""A workload from one line of text: the path of a trace, `PATH,key=value,…` or `KIND:key=value,…`; several joined by
` + `. docs/workloads.md has the kinds and keys in a table."""

from __future__ import annotations

import math
import re
import stat
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Final

from forebay.errors import shown
from forebay.sim.workloads.arrivals import DAY, Arrivals, AtOnce, Diurnal, Even, Gamma, OnOff, Poisson, Weighted
from forebay.sim.workloads.bounds import CLASSES, MAX_KEY
from forebay.sim.workloads.distributions import NOTHING, Cdf, Distribution, Lognormal
from forebay.sim.workloads.errors import WorkloadError
from forebay.sim.workloads.formats import FORMATS, BatchOptions
from forebay.sim.workloads.lengths import Drawn, Independent, Lengths, Split
from forebay.sim.workloads.mix import Assigned, Mix, Who, one, zipf
from forebay.sim.workloads.source import Source, Tally, Workload
from forebay.sim.workloads.synthetic import Sessions, Single
from forebay.sim.workloads.trace import Trace, prescan
from forebay.sim.workloads.transforms import Fitted, Limited, Merged, Repeated, Scaled, Skipped, Sped
from forebay.sim.workloads.values import (
    Settings,
    call,
    choice,
    counts,
    duration,
    integer,
    number,
    numbers,
    split,
    switch,
    text,
    times,
    weights,
)

PROMPT: Final[Distribution] = Lognormal(512, 1.0, 131_072)
OUTPUT: Final[Distribution] = Lognormal(200, 0.8, 16_384)
SHARE: Final = 0.8
"""Of the tokens of a request drawn as a whole that are the prompt's, where the specification does not say."""
THINK: Final[Distribution] = Lognormal(15, 1.0)
"""Seconds between an answer and the next message."""


def open_workload(spec: str | Path, *, seed: int = 0, scan: bool = False) -> Workload:
    """The workload of a path or a specification. `seed`: for all that is drawn, unless the specification has its own.
    With `scan`, trace files are scanned for their size.

    Raises WorkloadError for what is no specification, for a file that is missing or of no known form, and for its
    header; what is wrong further down is raised when the stream comes to it.
    """
    whole = str(spec)
    if isinstance(spec, Path) or _is_file(whole):
        return Workload(whole, _checked(Trace(whole), scan))
    try:
        parts = [part.strip() for part in split(whole, " + ")]
    except ValueError as e:
        raise WorkloadError(str(e), file=shown(whole)) from None
    sources = [_one(part, f"{seed}/{i}" if i else f"{seed}", scan) for i, part in enumerate(parts)]
    return Workload(whole, sources[0] if len(sources) == 1 else Merged(tuple(sources)))


def inputs(whole: str) -> set[str]:
    """What of a specification may be the name of a file that is read."""
    found = {whole}
    for part in re.findall(r'"[^"]*"|[^"]+', whole):
        if part.startswith('"'):
            found.add(part[1:-1])
            continue
        found.update(piece.strip() for piece in re.split(r" \+ |[,;()=]", part))
    return found | {name.partition(":")[2] for name in found} - {""}


def _one(spec: str, seed: str, scan: bool) -> Source:
    if _is_file(spec):
        return _checked(Trace(spec), scan)
    kind, colon, rest = spec.partition(":")
    if _is_file(spec.partition(",")[0]):
        kind, colon, rest = "trace", ":", spec
    if not colon or kind not in (*_ARRIVALS, *FORMATS, "trace"):
        known = ", ".join([*_ARRIVALS, "trace", *FORMATS])
        if (what := _no_file(spec)) is not None:
            raise WorkloadError(what, file=shown(spec))
        raise WorkloadError(f"no such file, and no KIND:key=value,… of the kinds {known}", file=shown(spec))
    settings = Settings(shown(spec, 200), _keys(rest, spec, positional=kind not in _ARRIVALS))
    given = settings.take("seed", integer)
    seed = seed if given is None else f"{given}"
    if kind in _ARRIVALS:
        source = _synthetic(kind, settings, seed)
    else:
        source = _trace("" if kind == "trace" else kind, settings, seed, scan)
    source = _limited(_shaped(source, settings, seed), settings)
    settings.done(kind)
    if not math.isfinite(source.size.requests) and kind in _ARRIVALS:
        raise WorkloadError(f"{kind} has no end: give duration= or requests=", file=settings.spec)
    return source


def _keys(rest: str, spec: str, *, positional: bool) -> dict[str, str]:
    out: dict[str, str] = {}
    try:
        items = [item.strip() for item in split(rest, ",")]
    except ValueError as e:
        raise WorkloadError(str(e), file=shown(spec)) from None
    for i, item in enumerate(items):
        if not item:
            continue
        key, equals, value = item.partition("=")
        key, value = key.strip(), value.strip()
        if positional and i == 0 and (not equals or not key.isidentifier()):
            key, value, equals = "path", item, "="
        if not equals or not value:
            raise WorkloadError(f"'{shown(item)}' is not key=value", file=shown(spec))
        if key in out:
            raise WorkloadError(f"{shown(key)} is given twice", file=shown(spec))
        out[key] = value
    return out


# --- synthetic workloads ----------------------------------------------------------------------------------------------


def _synthetic(kind: str, settings: Settings, seed: str) -> Source:
    arrivals = _ARRIVALS[kind](settings)
    lengths = _lengths(settings)
    system = settings.or_else("system", counts, NOTHING)
    who = _who(settings)
    turns = settings.take("turns", counts)
    if turns is None:
        return Single(arrivals, lengths, system, who, seed)
    if isinstance(arrivals, AtOnce):
        settings.wrong("turns", "conversations cannot all begin at once; give another kind")
    return Sessions(
        arrivals,
        lengths,
        turns,
        settings.or_else("think", times, THINK),
        settings.or_else("token_time", duration, 0.02),
        system,
        settings.take("context", integer),
        who,
        seed,
    )


def _poisson(settings: Settings) -> Arrivals:
    rate = settings.need("rate", number)
    return settings.made(lambda: Poisson(rate))


def _gamma(settings: Settings) -> Arrivals:
    rate, cv = settings.need("rate", number), settings.need("cv", number)
    return settings.made(lambda: Gamma(rate, cv))


def _even(settings: Settings) -> Arrivals:
    rate = settings.need("rate", number)
    return settings.made(lambda: Even(rate))


def _onoff(settings: Settings) -> Arrivals:
    low, high = settings.or_else("low", number, 0.0), settings.need("high", number)
    on, off = settings.need("on", duration), settings.need("off", duration)
    random = settings.or_else("phases", switch("random", "fixed"), False)
    return settings.made(lambda: OnOff(low, high, on, off, random))


def _diurnal(settings: Settings) -> Arrivals:
    rate, period = settings.need("rate", number), settings.or_else("period", duration, DAY)
    if settings.has("hours"):
        hours = settings.need("hours", numbers)
        return settings.made(lambda: Weighted(rate, hours, period))
    settings.take("hours", numbers)
    swing = settings.or_else("swing", number, 0.8)
    peak = settings.or_else("peak", duration, period * 14 / 24)
    return settings.made(lambda: Diurnal(rate, swing, period, peak))


def _burst(settings: Settings) -> Arrivals:
    return AtOnce()


_ARRIVALS: Final[Mapping[str, Callable[[Settings], Arrivals]]] = MappingProxyType(
    {
        "poisson": _poisson,
        "gamma": _gamma,
        "constant": _even,
        "onoff": _onoff,
        "diurnal": _diurnal,
        "burst": _burst,
    }
)


def _lengths(settings: Settings) -> Lengths:
    together = settings.take("lengths", _together)
    prompt, output = settings.take("prompt", counts), settings.take("output", counts)
    if together is None:
        return Independent(prompt or PROMPT, output or OUTPUT)
    if prompt or output:
        settings.wrong("lengths", "stands for both prompt and output; give it or these")
    return together


def _together(value: str) -> Lengths:
    name, arguments = call(value)
    if name == "cdf" and 1 <= len(arguments) <= 2:
        return Split(Cdf.read(text(arguments[0])), number(arguments[1]) if len(arguments) > 1 else SHARE)
    if name == "trace" and len(arguments) == 1:
        path = text(arguments[0])
        return Drawn(Trace(path).unordered(Tally()), path)
    raise ValueError(f"'{shown(value)}' is unknown; allowed are cdf(FILE[;PROMPT'S SHARE]) and trace(FILE)")


def _who(settings: Settings) -> Who:
    n, skew = settings.take("tenants", integer), settings.or_else("skew", number, 0.0)
    name = settings.take("tenant", text)
    if n is not None and name is not None:
        settings.wrong("tenant", "is one for all; give it or tenants")
    if name is not None and len(name) > MAX_KEY:
        settings.wrong("tenant", f"has {len(name):,} characters; allowed are {MAX_KEY}")
    cls, shares = settings.take("class", choice(*CLASSES)), settings.take("classes", weights)
    if cls is not None and shares is not None:
        settings.wrong("class", "is one for all; give it or classes")
    told = settings.take("priorities", weights)
    return settings.made(
        lambda: Who(
            zipf(n, skew) if n is not None else None if name is None else one(name),
            Mix(tuple(shares), tuple(shares.values())) if shares else None if cls is None else one(cls),
            None if told is None else {key: integer(str(value)) for key, value in told.items()},
        )
    )


# --- traces -----------------------------------------------------------------------------------------------------------


def _trace(form: str, settings: Settings, seed: str, scan: bool) -> Source:
    path = settings.need("path", text)
    form = form or settings.or_else("format", choice(*FORMATS), "")
    reorder = settings.or_else("reorder", duration, 0.0)
    skip_bad = settings.or_else("bad", switch("skip", "stop"), False)
    trace = Trace(path, form, reorder, skip_bad)
    if (form if _is_pipe(path) else trace.form().name) == "batch":
        trace = replace(trace, batch=_batch(settings, seed))
    source: Source = _checked(trace, scan)
    who = _who(settings)
    if who != Who():
        source = Assigned(source, who, seed)
    passes = settings.take("repeat", integer)
    if passes is not None:
        rename = settings.or_else("prefixes", switch("renamed", "kept"), True)
        again = source
        source = settings.made(lambda: Repeated(again, passes, rename))
    return source


def _batch(settings: Settings, seed: str) -> BatchOptions:
    rate = settings.take("rate", number)
    cv = settings.take("cv", number)
    if cv is not None and rate is None:
        settings.wrong("cv", "needs a rate")
    arrivals: Arrivals | None = None
    if rate is not None:
        arrivals = settings.made(lambda: Poisson(rate) if cv is None else Gamma(rate, cv))
    output: Distribution | None = settings.take("output", counts)
    return BatchOptions(arrivals, output, settings.or_else("part_tokens", integer, 0), seed)


def _checked(trace: Trace, scan: bool) -> Trace:
    """With its first line seen, where it can be read more than once."""
    if _is_pipe(trace.path):
        return trace
    trace.check()
    return replace(trace, scan=prescan(trace)) if scan else trace


def _is_file(path: str) -> bool:
    try:
        return stat.S_ISREG(Path(path).stat().st_mode)
    except (OSError, ValueError):
        return False


def _no_file(path: str) -> str | None:
    """What is there that is no trace file; None for nothing."""
    if _is_pipe(path):
        return "is a pipe or a device, which can be read only once; a workload is read from a file"
    try:
        return "is a folder; a workload is read from a file" if path and Path(path).is_dir() else None
    except ValueError:
        return None


def _is_pipe(path: str) -> bool:
    """Or a device: what can be read only once."""
    try:
        mode = Path(path).stat().st_mode
    except (OSError, ValueError):
        return False
    return not stat.S_ISREG(mode) and not stat.S_ISDIR(mode)


# --- what is done to all ----------------------------------------------------------------------------------------------


def _shaped(source: Source, settings: Settings, seed: str) -> Source:
    skip = settings.take("skip", duration)
    if skip is not None:
        source = _made(settings, Skipped, source, skip)
    speed = settings.take("speed", number)
    if speed is not None:
        source = _made(settings, Sped, source, speed)
    factor = settings.take("scale", number)
    spread = settings.or_else("spread", duration, 60.0)
    rename = settings.or_else("prefixes", switch("renamed", "kept"), True)
    if factor is not None:
        source = _made(settings, Scaled, source, factor, spread, rename, seed)
    context = settings.take("context", integer)
    clip = settings.or_else("longer", switch("clip", "drop"), False)
    if context is not None:
        source = _made(settings, Fitted, source, context, clip)
    return source


def _limited(source: Source, settings: Settings) -> Source:
    most, seconds = settings.take("requests", integer), settings.take("duration", duration)
    return source if most is None and seconds is None else _made(settings, Limited, source, most, seconds)


def _made(settings: Settings, make: Callable[..., Source], *arguments: object) -> Source:
    return settings.made(lambda: make(*arguments))

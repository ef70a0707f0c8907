"""Trace files as sources: rows become asks one by one, errors get the file and the line, and time is kept in order."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import chain, islice
from typing import Final

from forebay.sim.workload import Ask
from forebay.sim.workloads.errors import BadRow, WorkloadError
from forebay.sim.workloads.formats import AZURE, BATCH, FORMATS, BatchOptions, Format, Parser, make_parser, recognise
from forebay.sim.workloads.lines import MAX_LINE, count_lines, last_line, lines
from forebay.sim.workloads.source import Size, Tally

MAX_HELD: Final = 1_000_000
"""Rows that a reorder window may hold."""
_SAMPLE: Final = 2_000
"""Rows that a quick scan reads."""


@dataclass(frozen=True, slots=True)
class Scan:
    """The size of a trace."""

    requests: int
    duration: float | None
    """Seconds from its begin to its last arrival; None where the end cannot be told."""
    prompt_tokens: int
    output_tokens: int
    exact: bool
    """Whether all was read; else requests are lines, and tokens are those of the first rows, scaled up."""


@dataclass(frozen=True, slots=True)
class Trace:
    """A file. Without `format` its first line tells. `reorder`: seconds by which a row may come late. `skip_bad`: rows
    that are no request are counted instead of raised."""

    path: str
    format: str = ""
    reorder: float = 0.0
    skip_bad: bool = False
    batch: BatchOptions = field(default_factory=BatchOptions)
    max_line: int = MAX_LINE
    scan: Scan | None = None
    """What is known of its size."""

    @property
    def size(self) -> Size:
        if self.scan is None:
            return Size(math.nan, math.nan, math.nan)
        n, seconds = self.scan.requests, self.scan.duration
        if seconds is None:
            return Size(n, math.nan, math.nan)
        return Size(n, seconds, n / seconds if seconds else math.inf)

    def form(self) -> Format:
        """Raises WorkloadError for a file that cannot be read or is of no known form."""
        n, first = next(lines(self.path, self.max_line))
        return self._form(n, first)

    def check(self) -> Format:
        """The form, with the first row seen. Raises WorkloadError also where that is no request."""
        form = self.form()
        next(self._rows(Tally()))
        return form

    def unordered(self, tally: Tally) -> Iterator[Ask]:
        """The rows as they stand; times need not be in order. Raises WorkloadError."""
        return (ask for _, ask in self._rows(tally))

    def stream(self, tally: Tally) -> Iterator[Ask]:
        """In order of arrival. Raises WorkloadError for what is no workload, when it comes to it."""
        rows = self._rows(tally)
        if self.reorder > 0:
            return self._reordered(rows)
        return self._ordered(rows)

    def _form(self, n: int, first: bytes) -> Format:
        try:
            form = FORMATS[self.format] if self.format else recognise(first)
            make_parser(form, first, self.batch)
        except BadRow as e:
            raise WorkloadError(str(e), file=self.path, line=n) from None
        return form

    def _rows(self, tally: Tally) -> Iterator[tuple[int, Ask]]:
        numbered = lines(self.path, self.max_line)
        n, first = next(numbered)
        form = self._form(n, first)
        parse: Parser = make_parser(form, first, self.batch)
        if form is not AZURE:
            numbered = chain([(n, first)], numbered)
        some, bad, problem = False, 0, ""
        for n, line in numbered:
            try:
                ask = parse(line)
            except BadRow as e:
                if self.skip_bad:
                    tally.skipped += 1
                    bad, problem = bad + 1, problem or f"line {n}: {e}"
                    continue
                raise WorkloadError(str(e), file=self.path, line=n) from None
            some = True
            yield n, ask
        if not some and bad:
            raise WorkloadError(f"none of its {bad:,} rows is a request; the first is {problem}", file=self.path)
        if not some:
            raise WorkloadError("the file has no requests", file=self.path)

    def _ordered(self, rows: Iterator[tuple[int, Ask]]) -> Iterator[Ask]:
        last = 0.0
        for n, ask in rows:
            arrival = ask.arrival
            if arrival < last:
                raise WorkloadError(
                    f"arrives {last - arrival:.6g} s before the row above it; sort the file, or give a reorder window "
                    "of at least as much (reorder=SECONDS)",
                    file=self.path,
                    line=n,
                )
            last = arrival
            yield ask

    def _reordered(self, rows: Iterator[tuple[int, Ask]]) -> Iterator[Ask]:
        """What has arrived by the newest row less the window can no longer be overtaken. The begin of an absolute clock
        is the first to go."""
        held: list[tuple[float, int, Ask]] = []
        gone = newest = -math.inf
        begin: float | None = None
        for n, ask in rows:
            if ask.arrival < gone:
                raise WorkloadError(
                    f"arrives {newest - ask.arrival:.6g} s late; the reorder window is {self.reorder:g} s",
                    file=self.path,
                    line=n,
                )
            heappush(held, (ask.arrival, n, ask))
            newest = max(newest, ask.arrival)
            if len(held) > MAX_HELD:
                raise WorkloadError(
                    f"the reorder window of {self.reorder:g} s holds over {MAX_HELD:,} rows", file=self.path, line=n
                )
            while held[0][0] <= newest - self.reorder:
                gone, _, first = heappop(held)
                begin = min(0.0, gone) if begin is None else begin
                yield _since(begin, first)
        while held:
            gone, _, first = heappop(held)
            begin = min(0.0, gone) if begin is None else begin
            yield _since(begin, first)


def _since(begin: float, ask: Ask) -> Ask:
    return ask if begin == 0.0 else ask._replace(arrival=ask.arrival - begin)


def prescan(trace: Trace, *, exact: bool = False) -> Scan:
    """How large a trace file is, for a progress bar. Quick: counts line ends and parses the first rows and the last, at
    the disk's speed. With `exact` it reads all. Raises WorkloadError for the rows it reads."""
    form = trace.form()
    limit = None if exact else _SAMPLE
    n = prompt = output = 0
    last = 0.0
    rows = trace.unordered(Tally())
    for ask in islice(rows, limit):
        n += 1
        prompt += ask.prompt_tokens
        output += ask.output_tokens
        last = max(last, ask.arrival)
    if exact or next(rows, None) is None:
        return Scan(n, last, prompt, output, exact=True)
    total = count_lines(trace.path) - (form is AZURE)
    end = None if form is BATCH else _end(trace, form)
    return Scan(total, end, prompt * total // n, output * total // n, exact=False)


def _end(trace: Trace, form: Format) -> float | None:
    """The last row's arrival, by a parser that has seen the first row."""
    numbered = lines(trace.path)
    _, head = next(numbered)
    first = next(numbered)[1] if form is AZURE else head
    last = last_line(trace.path)
    if last is None:
        return None
    parse = make_parser(form, head, trace.batch)
    try:
        parse(first)
        return parse(last).arrival
    except BadRow:
        return None

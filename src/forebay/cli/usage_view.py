"""A usage report on a terminal: a table with its sum, bars, and columns over time."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType
from typing import TYPE_CHECKING, Final
from zoneinfo import ZoneInfo

from forebay.errors import shown as printable
from forebay.ledger.asked import LABEL, TIMES
from forebay.ledger.money import NANO
from forebay.ledger.steps import Step, edges
from forebay.ledger.usage import Line, Report, moment

if TYPE_CHECKING:
    from rich.console import Console

NAMELESS: Final = "(none)"
MOST_NAME: Final = 60
"""Characters of a name on a terminal."""
BARS: Final = 30
"""Rows of a chart; more are one bar."""
HEIGHT: Final = 8
"""Lines of columns over time."""
MOST_STEPS: Final = 2_000
_EIGHTHS: Final = " ▁▂▃▄▅▆▇█"
_TIMES: Final = MappingProxyType(
    {"hour": "%Y-%m-%d %H:%M", "day": "%a %Y-%m-%d", "week": "week %V from %Y-%m-%d", "month": "%b %Y"}
)


def names(report: Report) -> list[tuple[str, ...]]:
    """Of each line, what it is of, for people."""
    columns = []
    for i, name in enumerate(report.by):
        values = [line.of[i] for line in report.lines]
        columns.append(_times(values, name) if name in TIMES else [_name(value) for value in values])
    return list(zip(*columns, strict=True)) if columns else [()] * len(report.lines)


def _name(value: str) -> str:
    return printable(value, MOST_NAME) if value else NAMELESS


def _times(values: Sequence[str], step: str) -> list[str]:
    """The repeated hour at the end of summer time is told apart by its offset."""
    labels = {value: _time(value, step) for value in dict.fromkeys(values)}
    twice = {label for label, count in Counter(labels.values()).items() if count > 1}
    return [f"{labels[v]} {v[19:]}" if labels[v] in twice else labels[v] for v in values]


def _time(value: str, step: str) -> str:
    try:
        when = datetime.fromisoformat(value)
    except ValueError:
        return _name(value)  # "(7 others)"
    return when.strftime(_TIMES[step])


def title(name: str) -> str:
    return name.removeprefix(LABEL).replace("_", " ") if not name.startswith(LABEL) else printable(name, MOST_NAME)


def amount(nanos: int, digits: int) -> str:
    """Exact where `digits` behind the point are as many as it has."""
    whole, rest = divmod(abs(nanos), NANO)
    return f"{'-' if nanos < 0 else ''}{whole:,}.{rest:09d}"[: -(9 - digits) or None]


def digits_of(amounts: Sequence[int]) -> int:
    """Behind the point, as many as all of them need; two at least."""
    return max([2, *(len(f"{abs(nanos) % NANO:09d}".rstrip("0")) for nanos in amounts)])


def print_table(report: Report, console: Console) -> None:
    """Where it is too wide for the console, without what can be spared most; wider than it, rather than without a name
    or with a part of an amount."""
    from rich.cells import cell_len
    from rich.table import Table

    total, rows = report.total, names(report)
    heads = [title(name) for name in report.by]
    wide = [min(24, max(map(cell_len, [head, *(of[i] for of in rows)]))) for i, head in enumerate(heads)]
    columns_ = [
        (column, [column.head, *(column.write(line) for line in (*report.lines, total))])
        for column in _columns(report, total)
    ]
    needed = _width(wide, [texts for _, texts in columns_])
    for spared in sorted({column.spared for column, _ in columns_} - {0}):
        if needed <= console.width:
            break
        columns_ = [(column, texts) for column, texts in columns_ if column.spared != spared]
        needed = _width(wide, [texts for _, texts in columns_])
    table = Table(box=None, pad_edge=False, header_style="bold", show_footer=len(rows) != 1, footer_style="bold")
    for i, head in enumerate(heads):
        table.add_column(head, "total" if i == 0 else "", overflow="fold", min_width=wide[i])
    for _, texts in columns_:
        table.add_column(texts[0], texts[-1], justify="right", no_wrap=True)
    for of, *cells in zip(rows, *(texts[1:-1] for _, texts in columns_), strict=True):
        table.add_row(*of, *cells)
    before, console.width = console.width, max(console.width, needed)
    console.print(table)
    console.width = before


def _width(names: Sequence[int], columns_: Sequence[Sequence[str]]) -> int:
    """Cells of a table with names as wide as these, and these texts in its other columns."""
    from rich.cells import cell_len

    return sum(names) + 2 * (len(names) - 1) + sum(2 + max(map(cell_len, texts)) for texts in columns_)


@dataclass(frozen=True, slots=True)
class _Column:
    head: str
    write: Callable[[Line], str]
    spared: int = 0
    """The lower, the sooner it is left out for want of room; 0: never."""


def _columns(report: Report, total: Line) -> list[_Column]:
    """Those of which there is something in the report."""
    money = digits_of([value for line in (*report.lines, total) for value in (line.cost, line.adjusted, line.total)])
    avoided = digits_of([line.avoided for line in (*report.lines, total)])
    currency, adjusted = report.currency, any(line.adjusted for line in report.lines)
    retried = report.split or any(line.attempts != line.requests for line in report.lines)
    found = (
        (not report.split, _Column("requests", lambda line: f"{line.requests:,}")),
        (retried, _Column("attempts", lambda line: f"{line.attempts:,}", 0 if report.split else 2)),
        (True, _Column("ok", lambda line: share(line.succeeded, report.counted(line)), 4)),
        (True, _Column("tokens in", lambda line: f"{line.tokens.prompt:,}", 6)),
        (total.tokens.cached, _Column("cached", lambda line: f"{line.tokens.cached:,}", 1)),
        (True, _Column("tokens out", lambda line: f"{line.tokens.completion:,}", 6)),
        (total.tokens.images, _Column("images", lambda line: f"{line.tokens.images:,}")),
        (True, _Column("tokens each", lambda line: mean(line.tokens.total, report.counted(line)), 2)),
        (total.estimated, _Column("estimated", lambda line: share(line.estimated, line.attempts), 5)),
        (total.unpriced, _Column("unpriced", lambda line: f"{line.unpriced:,}")),
        (total.avoided, _Column(f"avoided {currency}", lambda line: amount(line.avoided, avoided), 3)),
        (True, _Column(f"cost {currency}", lambda line: _cost(line, line.cost, money), 7 if adjusted else 0)),
        (adjusted, _Column(f"adjusted {currency}", lambda line: amount(line.adjusted, money), 7)),
        (adjusted, _Column(f"total {currency}", lambda line: _cost(line, line.total, money))),
    )
    return [column for wanted, column in found if wanted]


def _cost(line: Line, nanos: int, digits: int) -> str:
    return "?" if line.costless else amount(nanos, digits)


def mean(sum_: int, of: int) -> str:
    return f"{sum_ / of:,.0f}" if of else "–"


def share(part: int, of: int) -> str:
    """As a percentage that is 0 or 100 only where it is exactly so."""
    if not of:
        return "–"
    percent = 100 * min(part, of) / of  # a request's second attempt may be in the next hour
    if 0 < part < of:
        percent = min(max(percent, 0.1), 99.9)
    return f"{percent:.1f}%"


def remarks(report: Report) -> list[str]:
    """What a reader must not miss."""
    total = report.total
    found = list(report.notes)
    if total.unpriced:
        found.append(
            f"{total.unpriced:,} attempt{'s have' if total.unpriced != 1 else ' has'} no known price: tokens are "
            "counted, the cost is not in the sums. `--by served --where how=unpriced` of that time names the models."
        )
    if total.estimated:
        part = share(total.estimated, total.attempts)
        found.append(f"The tokens of {part} of the attempts are estimated: of streams that were cut, say.")
    return found


# --- charts ----------------------------------------------------------------------------------------------------------


def print_chart(report: Report, console: Console) -> None:
    """Bars; where the report is by a time, columns over time, or a row of them for each of the others."""
    money = any(line.total for line in report.lines)
    measure: Callable[[Line], int] = (lambda line: line.total) if money else (lambda line: line.tokens.total)
    digits = digits_of([line.total for line in report.lines])

    def write(value: int) -> str:
        return amount(value, digits) if money else f"{value:,}"

    console.print(f"{f'cost in {report.currency}' if money else 'tokens'}, {report.period}", style="bold")
    step = next((name for name in TIMES if name in report.by), None)
    if step is None:
        _print_bars(report, console, measure, write)
    else:
        _print_over_time(report, console, step, measure, write)


def _print_bars(report: Report, console: Console, measure: Callable[[Line], int], write: Callable[[int], str]) -> None:
    from rich.bar import Bar
    from rich.table import Table

    values = [(" / ".join(of), measure(line)) for of, line in zip(names(report), report.lines, strict=True)]
    values.sort(key=lambda named: named[1], reverse=True)
    if len(values) > BARS:
        rest = values[BARS - 1 :]
        values[BARS - 1 :] = [(f"({len(rest):,} others)", sum(value for _, value in rest))]
    most, total = max(max(value for _, value in values), 1), sum(value for _, value in values)
    room = max(10, console.width - min(40, max(len(name) for name, _ in values)) - len(write(most)) - 12)
    table = Table.grid(padding=(0, 1))
    table.add_column(overflow="fold", max_width=40)
    table.add_column(width=min(60, room))
    table.add_column(justify="right", no_wrap=True)
    table.add_column(justify="right", style="dim", no_wrap=True)
    for name, value in values:
        bar = Bar(most, 0, max(0, value), color="cyan")
        table.add_row(name, bar, write(value), f"{value / total:.1%}" if total > 0 else "")
    console.print(table)


def _print_over_time(
    report: Report, console: Console, step: str, measure: Callable[[Line], int], write: Callable[[int], str]
) -> None:
    from rich.table import Table

    ticks = steps(report, step)
    place = {tick: i for i, tick in enumerate(ticks)}
    at = report.by.index(step)
    series: dict[tuple[str, ...], list[int]] = {}
    for of, line in zip(names(report), report.lines, strict=True):
        if line.of[at] not in place:
            continue
        rest = tuple(value for name, value in zip(report.by, of, strict=True) if name not in TIMES)
        series.setdefault(rest, [0] * len(ticks))[place[line.of[at]]] += measure(line)
    if not series:
        return
    room = max(10, console.width - 30)
    if len(report.by) == 1:
        for text in columns(squeezed(series[()], room), HEIGHT, write):
            console.print(text, no_wrap=True, overflow="crop")
    else:
        table = Table.grid(padding=(0, 1))
        table.add_column(overflow="fold", max_width=40)
        table.add_column(no_wrap=True, style="cyan")
        table.add_column(justify="right", no_wrap=True)
        dearest = sorted(series.items(), key=lambda named: -sum(named[1]))[:BARS]
        rows = [(rest, squeezed(numbers, room), sum(numbers)) for rest, numbers in dearest]
        most = max(max(row) for _, row, _ in rows)
        for rest, row, total in rows:
            table.add_row(" / ".join(rest), "".join(_eighth(value, most) for value in row), write(total))
        console.print(table)
    each = -(-len(ticks) // room)
    every = f"every {each} {step}s" if each > 1 else f"each {step}"
    console.print(f"{_time(ticks[0], step)} … {_time(ticks[-1], step)}, a column {every}", style="dim")


def steps(report: Report, step: str) -> list[str]:
    """Each step from the first line's to the last one's, as lines name them; the newest MOST_STEPS."""
    at = report.by.index(step)
    known = {line.of[at] for line in report.lines}
    begin = report.since
    found: deque[str] = deque(maxlen=MOST_STEPS)
    last = 0
    for end in edges(report.since, report.until, Step(step), ZoneInfo(report.zone)):
        name = moment(begin, report.zone)
        if found or name in known:
            found.append(name)
            last = 0 if name in known else last + 1
        begin = end
    return list(found)[: len(found) - last]


def squeezed(values: Sequence[int], most: int) -> list[int]:
    """At most `most` sums of neighbours."""
    each = -(-len(values) // most)
    return [sum(values[i : i + each]) for i in range(0, len(values), each)]


def columns(values: Sequence[int], height: int, write: Callable[[int], str]) -> list[str]:
    """Lines of text, the highest first, with the most and 0 before them."""
    most = max([*values, 1])
    wide = len(write(most))
    lines = []
    for level in range(height - 1, -1, -1):
        cells = (min(8, max(0, value * height * 8 // most - level * 8)) for value in values)
        head = write(most) if level == height - 1 else "0" if level == 0 else ""
        lines.append(f"{head:>{wide}} ┤{''.join(_EIGHTHS[cell] for cell in cells)}")
    return lines


def _eighth(value: int, most: int) -> str:
    """Something that is not 0 is seen."""
    return _EIGHTHS[max(1, value * 8 // most)] if value > 0 and most > 0 else "·"

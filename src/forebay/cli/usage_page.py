"""A usage report as one HTML page with charts that asks the network for nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from html import escape
from pathlib import Path
from typing import Any, Final

from forebay.cli import usage_view as view
from forebay.errors import shown as printable
from forebay.ledger.asked import TIMES
from forebay.ledger.tokens import KINDS
from forebay.ledger.usage import Line, Report, exact, moment
from forebay.plan.report import page
from forebay.plan.report_figures import PALETTE, label
from forebay.plan.written import replacing

BARS: Final = 30
SERIES: Final = len(PALETTE) - 1
"""Groups that have a colour of their own over time; the others share one."""
MOST_ROWS: Final = 2_000
"""Of the table; more would make a page that no browser likes."""
MOST_TEXT: Final = 400
_GREY: Final = "#94a3b8"
_TOKENS: Final = (
    ("input", ("input", "audio_input", "image_input"), PALETTE[0]),
    ("cached", ("cached",), PALETTE[5]),
    ("cache writes", ("cache_write", "cache_write_long"), PALETTE[6]),
    ("output", ("output", "audio_output"), PALETTE[1]),
    ("reasoning", ("reasoning",), PALETTE[3]),
)

Figure = dict[str, Any]


def html(report: Report) -> str:
    title = f"Usage by {', '.join(view.title(name) for name in report.by)}"
    chips = "".join(f"<li>{_text(chip)}</li>" for chip in _chips(report))
    return page(
        title=_text(title),
        header=f'<h1>{_text(title)}</h1><ul class="chips">{chips}</ul>',
        warnings=_warnings(report),
        cards=_cards(report),
        legend="",
        table=_table(report),
        settings=_settings(report),
        figures=figures(report),
    )


def write_html(report: Report, path: Path) -> None:
    """Raises OSError."""
    text = html(report)
    with replacing(path, errors="replace") as file:
        file.write(text)


def _text(text: str) -> str:
    return escape(printable(text, MOST_TEXT))


def _chips(report: Report) -> list[str]:
    return [report.period, report.zone, report.currency, *(f"{n} {v or view.NAMELESS}" for n, v in report.where)]


def _warnings(report: Report) -> str:
    found = "".join(f"<li>{_text(remark)}</li>" for remark in view.remarks(report))
    return f'<aside class="warnings"><h2>Mind</h2><ul>{found}</ul></aside>' if found else ""


def _cards(report: Report) -> str:
    total = report.total
    cost = [("as settled", exact(total.cost)), ("adjusted", exact(total.adjusted))]
    if total.avoided:
        cost.append(("avoided by caches", exact(total.avoided)))
    unpriced = [("without a price", f"{total.unpriced:,}")] if total.unpriced else []
    tokens = total.tokens
    counted = report.counted(total)
    each = "an attempt" if report.split else "a request"
    cards = (
        (f"Cost in {report.currency}", "?" if total.costless else exact(total.total), "", cost),
        (
            "Attempts" if report.split else "Requests",
            f"{counted:,}",
            "",
            [("ended well", view.share(total.succeeded, counted)), ("attempts", f"{total.attempts:,}"), *unpriced],
        ),
        (
            "Tokens",
            f"{tokens.total:,}",
            f"{view.mean(tokens.total, counted)} {each}",
            [("in", f"{tokens.prompt:,}"), ("of them cached", f"{tokens.cached:,}"), ("out", f"{tokens.completion:,}")],
        ),
        (
            "Counted by the engines",
            view.share(total.attempts - total.estimated, total.attempts),
            "",
            [("estimated", f"{total.estimated:,}"), ("from a cache", f"{total.hits:,}")],
        ),
    )
    out = []
    for i, (head, big, small, facts) in enumerate(cards):
        rows = "".join(f"<div><dt>{_text(k)}</dt><dd>{_text(v)}</dd></div>" for k, v in facts)
        out.append(
            f'<article class="card" style="--run:{PALETTE[i]}"><h3>{_text(head)}</h3>'
            f"<p><strong>{_text(big)}</strong> {_text(small)}</p><dl>{rows}</dl></article>"
        )
    return "".join(out)


def _table(report: Report) -> str:
    heads = [view.title(name) for name in report.by]
    columns: Sequence[tuple[str, Callable[[Line], str]]] = (
        ("requests", lambda line: f"{line.requests:,}"),
        ("attempts", lambda line: f"{line.attempts:,}"),
        ("ended well", lambda line: view.share(line.succeeded, report.counted(line))),
        ("estimated", lambda line: f"{line.estimated:,}"),
        ("unpriced", lambda line: f"{line.unpriced:,}"),
        *((f"{kind} tokens".replace("images tokens", "images").replace("_", " "), _kind(kind)) for kind in KINDS
          if any(getattr(line.tokens, kind) for line in report.lines)),
        ("tokens each", lambda line: view.mean(line.tokens.total, report.counted(line))),
        ("cost", lambda line: "?" if line.costless else exact(line.cost)),
        ("adjusted", lambda line: exact(line.adjusted)),
        (f"total {report.currency}", lambda line: "?" if line.costless else exact(line.total)),
    )  # fmt: skip
    head = "".join(f'<th scope="col">{_text(name)}</th>' for name in [*heads[1:], *(name for name, _ in columns)])
    rows = []
    for of, line in list(zip(view.names(report), report.lines, strict=True))[:MOST_ROWS]:
        rows.append(_row(of, line, columns))
    total = _row(("total", *[""] * (len(heads) - 1)), report.total, columns, ' class="differs"')
    return (
        f"<table><thead><tr><td>{_text(heads[0])}</td>{head}</tr></thead><tbody>{''.join(rows)}{total}</tbody></table>"
    )


def _kind(kind: str) -> Callable[[Line], str]:
    return lambda line: f"{getattr(line.tokens, kind):,}"


def _row(of: Sequence[str], line: Line, columns: Sequence[tuple[str, Callable[[Line], str]]], mark: str = "") -> str:
    first, *rest = of
    cells = "".join(f"<td>{_text(text)}</td>" for text in [*rest, *(write(line) for _, write in columns)])
    return f'<tr{mark}><th scope="row">{_text(first)}</th>{cells}</tr>'


def _settings(report: Report) -> str:
    count = len(report.lines)
    rows = [
        ("from", moment(report.since, report.zone)),
        ("until, not included", moment(report.until, report.zone)),
        ("made at", moment(report.at, report.zone)),
        ("by", ", ".join(report.by)),
        *((f"only {name}", value or view.NAMELESS) for name, value in report.where),
        ("rows", f"{count:,}" + (f", {MOST_ROWS:,} of them above" if count > MOST_ROWS else "")),
    ]
    cells = "".join(f'<tr><th scope="row">{_text(k)}</th><td>{_text(v)}</td></tr>' for k, v in rows)
    return f"<table><tbody>{cells}</tbody></table>"


# --- figures ---------------------------------------------------------------------------------------------------------


def figures(report: Report) -> list[Figure]:
    """As `plan.report_figures` makes them: each a dict of plotly's `data` and `layout` with what stands around it."""
    if not report.lines:
        return []
    groups = _groups(report)
    found = _over_time(report, groups) if any(name in TIMES for name in report.by) else []
    if len(groups) > 1 or not found:
        found += _bars(report, groups)
    return found


def _groups(report: Report) -> list[tuple[str, Line]]:
    """What the lines are of but for the time, the dearest first."""
    sums: dict[str, Line] = {}
    for name, line in zip(_group_names(report), report.lines, strict=True):
        sums[name] = sums.get(name, Line()) + line
    return sorted(sums.items(), key=lambda named: (-named[1].total, -named[1].tokens.total, named[0]))


def _group_names(report: Report) -> list[str]:
    return [
        " / ".join(v for name, v in zip(report.by, of, strict=True) if name not in TIMES) or "all"
        for of in view.names(report)
    ]


def _bars(report: Report, groups: list[tuple[str, Line]]) -> list[Figure]:
    if len(groups) > BARS:
        rest = reduce(Line.__add__, (line for _, line in groups[BARS - 1 :]), Line())
        groups = [*groups[: BARS - 1], (f"({len(groups) - BARS + 1:,} others)", rest)]
    names = [label(name) for name, _ in groups]
    lines = [line for _, line in groups]
    cost = [
        _bar(names, [line.total / 1e9 for line in lines], f"cost in {report.currency}", PALETTE[0],
             [exact(line.total) for line in lines], report.currency)
    ]  # fmt: skip
    tokens = []
    for name, kinds, colour in _TOKENS:
        counts = [sum(getattr(line.tokens, kind) for kind in kinds) for line in lines]
        if any(counts):
            tokens.append(_bar(names, counts, name, colour, [f"{count:,}" for count in counts], "tokens"))
    well, bad = [line.succeeded for line in lines], [max(0, report.counted(line) - line.succeeded) for line in lines]
    requests = [
        _bar(names, well, "ended well", "#10b981", [f"{count:,}" for count in well], ""),
        _bar(names, bad, "did not", "#ef4444", [f"{count:,}" for count in bad], ""),
    ]
    others = [view.title(name) for name in report.by if name not in TIMES]
    section = f"By {', '.join(others)}" if len(groups) > 1 else "All"
    counted = "Attempts" if report.split else "Requests"
    return [
        _figure("cost", section, f"Cost in {report.currency}", cost, len(names), "adjustments included", wide=True),
        _figure("tokens", section, "Tokens", tokens, len(names), "by kind"),
        _figure("requests", section, counted, requests, len(names), "by how they ended"),
    ]


def _bar(
    names: list[str], values: Sequence[float], name: str, colour: str, texts: Sequence[str], unit: str
) -> dict[str, Any]:
    return {
        "type": "bar", "orientation": "h", "y": names, "x": list(values), "name": name, "marker": {"color": colour},
        "customdata": list(texts), "hovertemplate": f"%{{customdata}} {unit}<extra>{name}</extra>",
    }  # fmt: skip


def _figure(
    name: str, section: str, title: str, data: list[Any], rows: int, note: str, *, wide: bool = False
) -> Figure:
    layout = {
        "barmode": "stack",
        "showlegend": len(data) > 1,
        "legend": {"orientation": "h", "y": 1.12, "x": 0},
        "height": max(300, 90 + 24 * rows),
        "yaxis": {"autorange": "reversed", "type": "category"},
        "bargap": 0.35,
    }
    return {
        "id": name, "section": section, "title": title, "note": note, "wide": wide, "data": data, "layout": layout
    }  # fmt: skip


def _over_time(report: Report, groups: list[tuple[str, Line]]) -> list[Figure]:
    step = next(name for name in TIMES if name in report.by)
    ticks = view.steps(report, step)
    place = {tick: i for i, tick in enumerate(ticks)}
    at = report.by.index(step)
    kept = [name for name, _ in groups[:SERIES]]
    costs: dict[str, list[int]] = {name: [0] * len(ticks) for name in kept}
    tokens: dict[str, list[int]] = {name: [0] * len(ticks) for name in kept}
    for name, line in zip(_group_names(report), report.lines, strict=True):
        if line.of[at] not in place:
            continue
        group = name if name in costs else f"({len(groups) - SERIES:,} others)"
        for sums, value in ((costs, line.total), (tokens, line.tokens.total)):
            sums.setdefault(group, [0] * len(ticks))[place[line.of[at]]] += value
    section = f"Over time, a column each {step}"
    x = [tick[:19] for tick in ticks]
    found = []
    for name, title, sums, scale in (
        ("cost-time", f"Cost in {report.currency}", costs, 1e-9),
        ("tokens-time", "Tokens", tokens, 1),
    ):
        data = [
            {
                "type": "bar", "x": x, "y": [value * scale for value in values], "name": label(group),
                "marker": {"color": PALETTE[i] if i < SERIES else _GREY},
                "customdata": [exact(v) if scale != 1 else f"{v:,}" for v in values],
                "hovertemplate": "%{customdata}<extra>%{fullData.name}</extra>",
            }
            for i, (group, values) in enumerate(sums.items())
        ]  # fmt: skip
        layout = {
            "barmode": "relative",
            "showlegend": len(data) > 1,
            "legend": {"orientation": "h", "y": 1.2, "x": 0},
            "xaxis": {"type": "date" if step != "month" else "category"},
            "yaxis": {"title": {"text": title}, "rangemode": "tozero"},
            "bargap": 0.2,
        }
        found.append(
            {"id": name, "section": section, "title": title, "note": report.period, "wide": True, "data": data,
             "layout": layout}
        )  # fmt: skip
    return found

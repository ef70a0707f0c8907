"""The adapters' tables in docs/engines.md: `python -m forebay.engines.table docs/engines.md` writes them anew."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from forebay.config.engine import EngineKind
from forebay.engines.base import Adapter
from forebay.engines.openai import OpenAIAdapter
from forebay.engines.registry import adapter

BEGIN: Final = "<!-- made by forebay.engines.table: begin -->\n"
END: Final = "<!-- made by forebay.engines.table: end -->\n"

Column = tuple[str, Callable[[Adapter], str]]


def _code(text: str) -> str:
    return f"`{text}`"


def _paths(paths: Sequence[bytes]) -> str:
    return ", else ".join(_code(p.decode()) for p in paths) or "–"


def _names(*fields: str) -> Callable[[Adapter], str]:
    def cell(found: Adapter) -> str:
        metrics = found.metrics if isinstance(found, OpenAIAdapter) else ()
        names = [_code(m.names[0]) for m in metrics if m.field in fields and not m.old]
        return ", ".join(names) or "–"

    return cell


def _note(name: str) -> Callable[[Adapter], str]:
    return lambda found: str(getattr(found.notes, name))


_TABLES: Final[tuple[tuple[str, tuple[Column, ...]], ...]] = (
    (
        "What is asked of each. Load: as often as `admission.report_interval` says, but no more often than the engine "
        "bears; facts: once a minute and after a restart.",
        (
            ("`kind`", lambda a: _code(a.kind)),
            ("health", lambda a: _code(a.health_path.decode())),
            ("load", lambda a: _paths(a.metrics_paths)),
            ("not more often than", lambda a: f"{a.least_interval:g} s" if a.least_interval else "–"),
            ("facts", lambda a: "; ".join(_paths(group) for group in a.info_paths) or "–"),
            ("to say its load", lambda a: a.needs or ("–" if not a.metrics_paths else "always")),
        ),
    ),
    (
        "Load and KV use, by the names of today's versions.",
        (
            ("running", _names("running")),
            ("waiting", _names("waiting")),
            ("KV use", _names("kv_usage")),
            ("prefix cache: asked, found (tokens)", _names("prefix_queries", "prefix_hits")),
            ("preempted, swapped", _names("preemptions", "swapped")),
            ("how, and older versions", _note("load")),
        ),
    ),
    (
        "Overload is back-pressure: the request goes to another engine, and the engine is not taken out for it.",
        (
            ("overload", _note("overload")),
            ("a request is ended by", _note("abort")),
            ("`priority`", _note("priority")),
            ("cached tokens in usage", _note("cached")),
        ),
    ),
    (
        "What is read, never assumed.",
        (
            ("block size, KV capacity, sequences", _note("capacity")),
            ("LoRA adapters", _note("lora")),
            ("a restart shows by", _note("restart")),
        ),
    ),
    ("Written after these sources.", (("source", _note("sources")),)),
)


def tables() -> Iterator[str]:
    """The lines between the marks."""
    found = [adapter(kind) for kind in EngineKind if kind is not EngineKind.AUTO]
    for text, columns in _TABLES:
        yield f"{text}\n\n"
        yield "| engine | " + " | ".join(name for name, _ in columns) + " |\n"
        yield "|---" * (len(columns) + 1) + "|\n"
        for one in found:
            yield f"| {one.notes.title} | " + " | ".join(cell(one) for _, cell in columns) + " |\n"
        yield "\n"


def renewed(page: str) -> str:
    """The page with today's tables. Raises ValueError where it has no marks."""
    before, begun, rest = page.partition(BEGIN)
    _, ended, after = rest.partition(END)
    if not begun or not ended:
        raise ValueError("the page has no marks to put the tables between")
    return f"{before}{BEGIN}\n{''.join(tables())}{END}{after}"


def main(path: Path) -> None:
    path.write_text(renewed(path.read_text("utf-8")), "utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
